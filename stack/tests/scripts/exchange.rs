//! Connections whose ends take turns are ordinary ones: RFC 9293, RFC 7323, RFC 5681 and RFC 6298 hold of them, too.
//!
//! Most of these scripts are played twice: to an engine that keeps such a connection in an exchange, and to one that
//! watches over silent peers as well, and therefore does not. What it sends, and when, must be the same to the byte. And
//! they are played to a service that sends back what arrives, to one that consumes it and writes the same, and to one that does
//! that in one step.

mod loss;
mod packets;
mod path;
mod segments;
mod service;

use super::harness::*;
use linerate_bypass::memory::LinkConfig;
use linerate_stack::Config;

const RTT: Duration = ms(10);
/// Bytes of a request where the length does not matter.
const LEN: Rel = 100;
/// What the window field of all segments of the peers is, unless they say otherwise.
const WINDOW: u16 = 50_000;

/// Peers over both families, with nothing and with everything.
fn peers() -> Vec<Peer> {
    let plain = peer().rtt(RTT).window(WINDOW);
    let full = plain.clone().sack().timestamps().window_scale(2);
    vec![plain.clone(), full.clone(), plain.sack().ipv6(), full.ipv6()]
}

/// Those of them with timestamps.
fn peers_with_timestamps() -> Vec<Peer> {
    peers().into_iter().filter(|peer| peer.timestamps).collect()
}

/// Those of them that lose nothing to a tail loss probe, as they have no SACK.
fn plain_peers() -> Vec<Peer> {
    let plain = peer().rtt(RTT).window(WINDOW);
    vec![plain.clone(), plain.timestamps().ipv6()]
}

/// What was sent, and when, without the checksums.
fn traffic(s: &mut Script) -> Vec<(u64, Vec<u8>)> {
    let bytes = |got: &Got| {
        let mut packet = got.raw.packet.clone();
        let tcp = if packet[0] >> 4 == 4 { 20 } else { 40 };
        if tcp == 20 {
            packet[10..12].fill(0);
        }
        packet[tcp + 16..tcp + 18].fill(0);
        packet
    };
    s.sent.iter().map(|got| (got.at.as_micros(), bytes(got))).collect()
}

/// A port that sums: others take no turns.
fn link(pool: usize) -> LinkConfig {
    LinkConfig { checksum_offload: true, pool, ..LinkConfig::default() }
}

/// Plays `script` on a connection to each of `peers` and to each service, to both engines.
#[track_caller]
fn play_with(peers: Vec<Peer>, configure: impl Fn(&mut Config), script: impl Fn(&mut Script)) {
    play_over(4096, peers, configure, script);
}

/// [`play_with`] over a link with so many packets.
#[track_caller]
fn play_over(pool: usize, peers: Vec<Peer>, configure: impl Fn(&mut Config), script: impl Fn(&mut Script)) {
    if !runs_native_scripts() {
        return;
    }
    let services = [Command::Echo, Command::Repeat, Command::RepeatAtOnce];
    for (peer, service) in peers.iter().flat_map(|peer| services.clone().map(|service| (peer, service))) {
        let [exchange, ordinary] = [true, false].map(|exchanges| {
            let mut taken = true;
            let mut s = Script::accepted_over_with(peer.clone(), link(pool), |config| {
                configure(config);
                taken = config.keepalive.is_none() && !config.pacing && !config.ecn;
                if !exchanges && config.keepalive.is_none() {
                    // Longer than any script.
                    settings::keepalive(config, secs(100_000), secs(1), 9);
                }
            });
            s.exchanges = exchanges && taken;
            s.order(service.clone());
            script(&mut s);
            (traffic(&mut s), s)
        });
        let same = exchange.0.iter().zip(&ordinary.0).take_while(|(one, other)| one == other).count();
        if same != exchange.0.len().max(ordinary.0.len()) {
            let [one, other] = [&exchange, &ordinary].map(|(traffic, _)| traffic.get(same));
            exchange.1.fail(&format!(
                "segment {same} is not that of an ordinary connection, of {peer:?} and {service:?}:\n{one:02x?}\nbut\n{other:02x?}"
            ));
        }
    }
}

/// [`play_with`] the usual configuration, and [`peers`].
#[track_caller]
fn play(script: impl Fn(&mut Script)) {
    play_with(peers(), |_| {}, script);
}

/// The peer says `len` bytes from `at` on, where it has had the answers to all before it.
fn request(at: Rel, len: Rel) -> Seg {
    data(at, len).ack(at).push()
}

/// What the service sends back for it.
fn answer(at: Rel, len: Rel) -> Seg {
    data(at, len).ack(at + len).push()
}

/// Each end has a turn. Returns where the next request begins.
#[track_caller]
fn turn(s: &mut Script, at: Rel, len: Rel) -> Rel {
    s.inject(request(at, len));
    s.expect(answer(at, len));
    s.expect_nothing();
    at + len
}

/// Turns until the connection is known to take them, a round trip after the last of them.
#[track_caller]
fn begin(s: &mut Script) -> Rel {
    let mut at = 1;
    for n in 0..4 {
        at = turn(s, at, LEN);
        s.expect_exchanging(n > 0);
        s.pass(RTT);
    }
    at
}

/// After what was not a turn, both ends take turns again.
#[track_caller]
fn goes_on(s: &mut Script, mut at: Rel) -> Rel {
    s.expect_nothing();
    for _ in 0..2 {
        at = turn(s, at, LEN);
        s.pass(RTT);
    }
    at = turn(s, at, LEN);
    s.expect_exchanging(true);
    s.pass(RTT);
    at
}

/// After something was the matter with what was sent, both ends take turns again as soon as nothing is on its way.
fn recovers(s: &mut Script, at: Rel) -> Rel {
    s.inject(ack(at, at));
    s.pass(ms(500));
    goes_on(s, at)
}

/// Blocks for a peer that has permitted them.
fn sacked(s: &mut Script, seg: Seg, blocks: &[(Rel, Rel)]) -> Seg {
    if s.flow().peer.sack { seg.sack(blocks) } else { seg }
}

#[test]
fn turns_are_those_of_an_ordinary_connection() {
    // RFC 9293 §3.4, §3.8; RFC 7323 §4.3.
    play(|s| {
        let mut at = 1;
        for n in 0..40 {
            let len = [1, 2, 99, 536, SEG][n % 5];
            let clock = PEER_CLOCK + (s.now().as_micros() / 1000) as u32;
            s.inject(request(at, len).window(WINDOW - n as u16));
            let mut want = answer(at, len);
            if s.flow().peer.timestamps {
                want = want.echoing(clock);
            }
            let got = s.expect(want);
            assert!(got.raw.dont_fragment && got.raw.window > 0);
            s.expect_exchanging(n > 0);
            at += len;
            s.pass(ms(3 + n as u64));
        }
        s.expect_delivered(at - 1);
        s.inject(ack(at, at));
        s.expect_nothing_for(secs(60));
        s.expect_all_packets_back();
    });
}

#[test]
fn turns_go_on_while_the_timers_of_those_before_would_have_expired() {
    // RFC 6298 §5.3: the timer is that of what was sent last.
    play(|s| {
        let mut at = begin(s);
        for _ in 0..100 {
            at = turn(s, at, LEN);
            s.pass(ms(20));
            s.expect_exchanging(true);
        }
    });
}

#[test]
fn a_turn_with_or_without_push_is_one() {
    // RFC 9293 §3.9.1.2: what PSH says is of no account.
    play(|s| {
        let at = begin(s);
        s.inject(data(at, LEN).ack(at));
        s.expect(answer(at, LEN));
        s.expect_exchanging(true);
    });
}
