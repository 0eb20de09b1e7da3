//! Request-response mode: each end alternately sends one segment. RFC 9293, RFC 7323, RFC 5681 and RFC 6298 apply
//! unchanged.
//!
//! The harness compares an engine with this mode to one without it. Most scripts run with four services: one forwards
//! the request, one consumes it and writes the same bytes, one does both in one call, and one takes the request and
//! writes its bytes.

mod demotion;
mod loss;
mod path;
mod segment_budget;
mod service;

use crate::harness::*;
use linerate_bypass::memory_nic::LinkConfig;
use linerate_stack::Config;

const RTT: Duration = ms(10);
/// Length of a request unless it matters.
const LEN: Rel = 100;
/// Window field of the peers' segments, unless a segment sets it.
const WINDOW: u16 = 50_000;
/// Packets in the pool of each end of the link.
const POOL: usize = 512;

/// Returns peers of both families, with few and with all options.
fn peers() -> Vec<Peer> {
    let plain = peer().rtt(RTT).window(WINDOW);
    let full = plain.clone().sack().timestamps().window_scale(2);
    vec![plain.clone(), full.clone(), plain.sack().ipv6(), full.ipv6()]
}

fn peers_with_timestamps() -> Vec<Peer> {
    peers().into_iter().filter(|peer| peer.timestamps).collect()
}

/// Returns the peers without SACK, which get no tail loss probe.
fn plain_peers() -> Vec<Peer> {
    let plain = peer().rtt(RTT).window(WINDOW);
    vec![plain.clone(), plain.timestamps().ipv6()]
}

/// Returns a link with checksum offload, which request-response mode requires.
fn link(pool: usize) -> LinkConfig {
    LinkConfig { checksum_offload: true, pool, ..LinkConfig::default() }
}

/// Runs `script` on a connection to each of `peers`, with each service.
#[track_caller]
fn play_with(peers: impl IntoIterator<Item = Peer>, configure: impl Fn(&mut Config), script: impl Fn(&mut Script)) {
    play_over(POOL, peers, configure, script);
}

/// As [`play_with`], over a link with `pool` packets.
#[track_caller]
fn play_over(
    pool: usize,
    peers: impl IntoIterator<Item = Peer>,
    configure: impl Fn(&mut Config),
    script: impl Fn(&mut Script),
) {
    for peer in peers {
        for service in [Command::Echo, Command::CopyBack, Command::AnswerEach, Command::TakeBack] {
            let mut taken = true;
            let mut s = Script::accepted_over_with(peer.clone(), link(pool), |config| {
                configure(config);
                taken = !config.pacing && !config.ecn;
            });
            s.rr_allowed = taken;
            s.command(service);
            script(&mut s);
        }
    }
}

/// As [`play_with`], with the default configuration.
#[track_caller]
fn play_to(peers: impl IntoIterator<Item = Peer>, script: impl Fn(&mut Script)) {
    play_with(peers, |_| {}, script);
}

/// As [`play_to`], with all [`peers`].
#[track_caller]
fn play(script: impl Fn(&mut Script)) {
    play_to(peers(), script);
}

/// Returns a request of `len` bytes at `at` from a peer that has received all earlier answers.
fn request(at: Rel, len: Rel) -> Seg {
    data(at, len).ack(at).push()
}

/// Returns the answer of the service to [`request`].
fn answer(at: Rel, len: Rel) -> Seg {
    data(at, len).ack(at + len).push()
}

/// Exchanges one request and answer. Returns the sequence number of the next request.
#[track_caller]
fn exchange(s: &mut Script, at: Rel, len: Rel) -> Rel {
    s.inject(request(at, len)).expect(answer(at, len));
    s.expect_nothing();
    at + len
}

/// Exchanges requests until the connection is in request-response mode, and waits one round trip.
#[track_caller]
fn enter_rr(s: &mut Script) -> Rel {
    let mut at = 1;
    for n in 0..4 {
        at = exchange(s, at, LEN);
        s.expect_rr(n > 0);
        s.pass(RTT);
    }
    at
}

/// Returns a script that enters request-response mode, and then runs `script` with the next sequence number.
fn in_rr(script: impl Fn(&mut Script, Rel)) -> impl Fn(&mut Script) {
    move |s| {
        let at = enter_rr(s);
        script(s, at);
    }
}

/// Expects that the connection returns to request-response mode.
#[track_caller]
fn expect_rr_resumes(s: &mut Script, mut at: Rel) -> Rel {
    s.expect_nothing();
    for _ in 0..2 {
        at = exchange(s, at, LEN);
        s.pass(RTT);
    }
    at = exchange(s, at, LEN);
    s.expect_rr(true);
    s.pass(RTT);
    at
}

/// Expects that the connection returns to request-response mode once no data is in flight, after a loss or an error.
fn expect_rr_after_recovery(s: &mut Script, at: Rel) -> Rel {
    s.inject(ack(at, at));
    s.pass(ms(500));
    expect_rr_resumes(s, at)
}

/// Adds SACK blocks to `seg` if the peer has SACK.
fn with_sack_blocks(s: &mut Script, seg: Seg, blocks: &[(Rel, Rel)]) -> Seg {
    if s.flow().peer.sack { seg.sack(blocks) } else { seg }
}

#[test]
fn rr_mode_behaves_as_general_path() {
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
            s.expect_rr(n > 0);
            at += len;
            s.pass(ms(3 + n as u64));
        }
        s.expect_delivered(at - 1);
        s.inject(ack(at, at)).expect_nothing_for(secs(60));
        s.expect_no_packets_held();
    });
}

#[test]
fn rr_mode_outlasts_timers_of_earlier_segments() {
    // RFC 6298 §5.3: the timer belongs to the most recent segment.
    play(in_rr(|s, mut at| {
        for _ in 0..100 {
            at = exchange(s, at, LEN);
            s.pass(ms(20));
            s.expect_rr(true);
        }
    }));
}

#[test]
fn psh_does_not_affect_rr_mode() {
    // RFC 9293 §3.9.1.2.
    play(in_rr(|s, at| {
        s.inject(data(at, LEN).ack(at)).expect(answer(at, LEN));
        s.expect_rr(true);
    }));
}
