//! Connections whose ends take turns are ordinary ones: RFC 9293, RFC 7323, RFC 5681 and RFC 6298 hold of them, too.
//!
//! The harness compares an engine that keeps such a connection in an exchange with one that does not. Most of these scripts are played to
//! a service that sends back what arrives, to one that consumes it and writes the same, and to one that does that in one step.

mod loss;
mod packets;
mod path;
mod segments;
mod service;

use super::harness::*;
use linerate_bypass::memory_nic::LinkConfig;
use linerate_stack::Config;

const RTT: Duration = ms(10);
/// Bytes of a request where the length does not matter.
const LEN: Rel = 100;
/// What the window field of all segments of the peers is, unless they say otherwise.
const WINDOW: u16 = 50_000;
/// Packets of each end of the link.
const POOL: usize = 512;

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

/// A port that sums: others take no turns.
fn link(pool: usize) -> LinkConfig {
    LinkConfig { checksum_offload: true, pool, ..LinkConfig::default() }
}

/// Plays `script` on a connection to each of `peers` and to each service.
#[track_caller]
fn play_with(peers: Vec<Peer>, configure: impl Fn(&mut Config), script: impl Fn(&mut Script)) {
    play_over(POOL, peers, configure, script);
}

/// [`play_with`] over a link with so many packets.
#[track_caller]
fn play_over(pool: usize, peers: Vec<Peer>, configure: impl Fn(&mut Config), script: impl Fn(&mut Script)) {
    if !runs_native_scripts() {
        return;
    }
    let services = [Command::Echo, Command::Repeat, Command::RepeatAtOnce];
    for (peer, service) in peers.iter().flat_map(|peer| services.clone().map(|service| (peer, service))) {
        let mut taken = true;
        let mut s = Script::accepted_over_with(peer.clone(), link(pool), |config| {
            configure(config);
            taken = !config.pacing && !config.ecn;
        });
        s.exchanges = taken;
        s.order(service);
        script(&mut s);
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
