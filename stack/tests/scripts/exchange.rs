//! Connections whose ends take turns are ordinary ones: RFC 9293, RFC 7323, RFC 5681, RFC 6298 hold of them as of all others.
//!
//! Most of these scripts are played twice: to an engine that keeps such a connection in an exchange, and to one that watches
//! over silent peers as well, and therefore does not. What it sends, and when, must be the same to the byte.

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

/// Plays `script` on a connection to each of `peers`, whose service sends back what arrives, to both engines.
#[track_caller]
fn play_with(peers: Vec<Peer>, configure: impl Fn(&mut Config), script: impl Fn(&mut Script)) {
    if !runs_native_scripts() {
        return;
    }
    for peer in peers {
        let [exchange, ordinary] = [true, false].map(|exchanges| {
            let mut taken = true;
            let mut s = Script::accepted_over_with(peer.clone(), link(4096), |config| {
                configure(config);
                taken = config.keepalive.is_none() && !config.pacing && !config.ecn;
                if !exchanges && config.keepalive.is_none() {
                    // Longer than any script.
                    settings::keepalive(config, secs(100_000), secs(1), 9);
                }
            });
            s.exchanges = exchanges && taken;
            s.echo();
            script(&mut s);
            (traffic(&mut s), s)
        });
        let same = exchange.0.iter().zip(&ordinary.0).take_while(|(one, other)| one == other).count();
        if same != exchange.0.len().max(ordinary.0.len()) {
            let [one, other] = [&exchange, &ordinary].map(|(traffic, _)| traffic.get(same));
            exchange.1.fail(&format!(
                "segment {same} is not that of an ordinary connection, of {peer:?}:\n{one:02x?}\nbut\n{other:02x?}"
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
    for _ in 0..4 {
        at = turn(s, at, LEN);
        s.expect_exchanging(true);
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
            s.expect_exchanging(true);
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
fn a_turn_with_or_without_push_is_one() {
    // RFC 9293 §3.9.1.2: what PSH says is of no account.
    play(|s| {
        let at = begin(s);
        s.inject(data(at, LEN).ack(at));
        s.expect(answer(at, LEN));
        s.expect_exchanging(true);
    });
}

#[test]
fn an_answer_that_is_lost_comes_again() {
    // RFC 6298 §5.4 to §5.6.
    play_with(plain_peers(), |_| {}, |s| {
        let mut at = begin(s);
        s.inject(request(at, LEN));
        s.expect(answer(at, LEN));
        let sent = s.now();
        let again = s.expect_within(ms(300), answer(at, LEN));
        let time_out = again.at.since(sent);
        assert!(time_out > RTT, "{time_out:?}");
        s.expect_exchanging(false);
        s.expect_after(2 * time_out, answer(at, LEN));
        s.expect_after(4 * time_out, answer(at, LEN));
        s.pass(RTT);
        at += LEN;
        for _ in 0..4 {
            at = turn(s, at, LEN);
            s.pass(RTT);
        }
        s.expect_delivered(at - 1);
        recovers(s, at);
    });
}

#[test]
fn an_answer_that_is_lost_is_probed_for() {
    // RFC 8985 §7.2, §7.3.
    play(|s| {
        let at = begin(s);
        s.inject(request(at, LEN));
        s.expect(answer(at, LEN));
        s.expect_within(ms(300), answer(at, LEN));
        s.expect_exchanging(false);
        s.pass(RTT);
        s.inject(ack(at + LEN, at + LEN));
        s.expect_nothing_for(secs(60));
        recovers(s, at + LEN);
    });
}

#[test]
fn a_connection_that_is_given_up_says_so() {
    // RFC 9293 §3.8.3.
    play_with(plain_peers(), |config| settings::user_timeout(config, secs(10)), |s| {
        begin(s);
        s.pass(secs(60));
        s.expect_closed(CloseReason::TimedOut);
        s.drain();
        s.expect_all_packets_back();
    });
}

#[test]
fn a_request_that_is_repeated_is_known() {
    // RFC 9293 §3.10.7.4, first; RFC 2883 §4.1.
    for (from, len) in [(LEN, LEN), (LEN, LEN / 2), (LEN / 2, LEN / 2), (1, 1), (2 * LEN, LEN), (2 * LEN, 2 * LEN)] {
        play(|s| {
            let at = begin(s);
            s.inject(data(at - from, len).ack(at - LEN).push());
            let want = sacked(s, ack(at, at), &[(at - from, at - from + len)]);
            s.expect(want);
            s.expect_exchanging(false);
            s.expect_delivered(at - 1);
            goes_on(s, at);
        });
    }
}

#[test]
fn a_request_that_is_repeated_in_part_is_answered_in_part() {
    // RFC 9293 §3.10.7.4, seventh; RFC 2883 §4.3.
    play(|s| {
        let at = begin(s);
        s.inject(data(at - 50, LEN).ack(at).push());
        s.expect(answer(at, 50).any_sack());
        s.expect_delivered(at - 1 + 50);
        goes_on(s, at + 50);
    });
}

#[test]
fn a_request_that_comes_twice_at_once_is_answered_once() {
    // RFC 9293 §3.10.7.4, first.
    play(|s| {
        let at = begin(s);
        s.inject_burst([request(at, LEN), request(at, LEN)]);
        s.expect(answer(at, LEN).any_sack());
        s.expect_nothing();
        s.expect_delivered(at - 1 + LEN);
        goes_on(s, at + LEN);
    });
}

#[test]
fn a_request_out_of_order_waits_for_what_is_before_it() {
    // RFC 5681 §4.2; RFC 2018 §4.
    play(|s| {
        let at = begin(s);
        s.inject(data(at + LEN, LEN).ack(at).push());
        let want = sacked(s, ack(at, at), &[(at + LEN, at + 2 * LEN)]);
        s.expect(want);
        s.expect_exchanging(false);
        s.expect_delivered(at - 1);
        s.inject(request(at, LEN));
        assert_eq!(s.drain().last().map(|got| (got.end(), got.ack)), Some((at + 2 * LEN, at + 2 * LEN)));
        s.pass(RTT);
        goes_on(s, at + 2 * LEN);
    });
}

#[test]
fn what_lies_outside_of_the_window_is_not_taken() {
    // RFC 9293 §3.4.
    play_with(peers(), |config| settings::receive_buffer(config, 4096), |s| {
        let at = begin(s);
        let edge = s.flow().right_edge;
        for seq in [edge, edge + 1, at - 70_000] {
            s.inject(data(seq, LEN).ack(at));
            s.expect(ack(at, at).any_sack());
        }
        s.expect_delivered(at - 1);
        goes_on(s, at);
    });
}

#[test]
fn a_request_that_overflows_the_window_is_cut() {
    // RFC 9293 §3.10.7.4, first.
    let tight = |config: &mut Config| settings::receive_buffer(config, 4096);
    play_with(peers().into_iter().map(|peer| peer.mss(1400)).collect(), tight, |s| {
        let mut at = begin(s);
        s.stop_reading();
        s.inject(request(at, 1300));
        s.expect_within(DELAYED_ACK, ack(at, at + 1300));
        at += 1300;
        s.inject_burst((0..3).map(|n| data(at + 1300 * n, 1300).ack(at - 1300)));
        s.pass(DELAYED_ACK);
        s.drain();
        let edge = s.flow().right_edge;
        s.expect_delivered(edge - 1);
    });
}

#[test]
fn a_request_that_is_answered_later_is_acknowledged_in_time() {
    // RFC 9293 §3.8.6.3.
    play(|s| {
        let at = begin(s);
        s.stop_reading();
        s.inject(request(at, LEN));
        s.expect_nothing();
        s.expect_exchanging(false);
        s.expect_after(DELAYED_ACK, ack(at, at + LEN));
        s.echo();
        s.expect(answer(at, LEN));
        s.pass(RTT);
        goes_on(s, at + LEN);
    });
}

#[test]
fn a_request_before_the_answer_is_answered_after_it() {
    // RFC 9293 §3.8.6.3; RFC 5681 §4.2.
    play(|s| {
        let at = begin(s);
        s.stop_reading();
        s.inject(request(at, LEN));
        s.expect_nothing_for(ms(5));
        s.inject(data(at + LEN, LEN).ack(at).push());
        s.expect(ack(at, at + 2 * LEN));
        s.expect_delivered(at - 1 + 2 * LEN);
        s.echo();
        assert_eq!(s.drain().last().map(|got| got.end()), Some(at + 2 * LEN));
        s.pass(RTT);
        goes_on(s, at + 2 * LEN);
    });
}

#[test]
fn requests_that_come_together_are_answered_in_order() {
    // RFC 9293 §3.10.7.4, seventh.
    play(|s| {
        let at = begin(s);
        s.inject_burst((0..3).map(|n| data(at + n * LEN, LEN).ack(at).push()));
        assert_eq!(s.drain().last().map(|got| (got.end(), got.ack)), Some((at + 3 * LEN, at + 3 * LEN)));
        s.pass(RTT);
        goes_on(s, at + 3 * LEN);
    });
}

#[test]
fn a_request_of_several_segments_is_acknowledged_at_once() {
    // RFC 5681 §4.2: what the port has put together of several wants an answer as they do.
    let small = |peer: Peer| if peer.timestamps { peer.mss(512) } else { peer.mss(500) };
    play_with(peers().into_iter().map(small).collect(), |_| {}, |s| {
        let at = begin(s);
        s.stop_reading();
        s.inject(request(at, 1000));
        s.expect(ack(at, at + 1000));
        s.echo();
        s.expect_delivered(at - 1 + 1000);
    });
}

#[test]
fn a_connection_that_falls_silent_keeps_nothing() {
    play(|s| {
        let mut at = begin(s);
        for pause in [ms(1), secs(1), secs(3600)] {
            s.inject(ack(at, at));
            s.expect_exchanging(false);
            s.expect_all_packets_back();
            s.expect_nothing_for(pause);
            at = turn(s, at, LEN);
            s.expect_exchanging(true);
            s.pass(RTT);
        }
    });
}

#[test]
fn a_pure_acknowledgement_of_what_is_known_changes_nothing() {
    // RFC 9293 §3.10.7.4, fifth.
    play(|s| {
        let at = begin(s);
        s.inject(ack(at, at - LEN));
        s.inject(ack(at, at - 2 * LEN));
        s.expect_nothing();
        s.expect_within(ms(300), data(at - LEN, LEN).ack(at));
        recovers(s, at);
    });
}

#[test]
fn a_request_that_acknowledges_a_part_of_the_answer_leaves_the_rest_to_be_sent_again() {
    // RFC 9293 §3.8.1.
    play(|s| {
        let at = begin(s);
        s.inject(data(at, LEN).ack(at - 40).push());
        s.expect(answer(at, LEN));
        s.expect_exchanging(false);
        s.pass(ms(400));
        assert!(s.drain().iter().any(|got| got.len > 0 && got.seq < at), "the rest comes again");
        recovers(s, at + LEN);
    });
}

#[test]
fn a_request_that_acknowledges_nothing_new_is_answered() {
    // RFC 9293 §3.10.7.4, fifth.
    for acknowledged in [LEN, LEN + 50] {
        play(|s| {
            let at = begin(s);
            s.inject(data(at, LEN).ack(at - acknowledged).push());
            s.expect(answer(at, LEN));
            s.expect_exchanging(false);
            s.pass(RTT / 2);
            s.inject(ack(at + LEN, at + LEN));
            goes_on(s, at + LEN);
        });
    }
}

#[test]
fn a_request_that_acknowledges_what_was_never_sent_is_not_taken() {
    // RFC 5961 §5.2.
    for beyond in [1, 1_000_000] {
        play(|s| {
            let at = begin(s);
            s.inject(data(at, LEN).ack(at + beyond).junk());
            s.expect(ack(at, at));
            s.expect_delivered(at - 1);
            goes_on(s, at);
        });
    }
}

#[test]
fn a_request_with_a_fin_is_answered() {
    // RFC 9293 §3.10.7.4, eighth.
    play(|s| {
        let at = begin(s);
        s.inject(request(at, LEN).with_fin());
        s.expect(data(at, LEN).ack(at + LEN + 1));
        s.expect_peer_closed();
        s.expect_exchanging(false);
        s.close();
        s.expect(fin(at + LEN, at + LEN + 1));
        s.inject(ack(at + LEN + 1, at + LEN + 1));
        s.expect_closed(CloseReason::Finished);
        s.expect_all_packets_back();
    });
}

#[test]
fn a_fin_ends_the_turns() {
    // RFC 9293 §3.10.7.4, eighth.
    play(|s| {
        let at = begin(s);
        s.inject(fin(at, at));
        s.expect(ack(at, at + 1));
        s.expect_peer_closed();
        s.close();
        s.expect(fin(at, at + 1));
        s.inject(ack(at + 1, at + 1));
        s.expect_closed(CloseReason::Finished);
        s.expect_all_packets_back();
    });
}

#[test]
fn a_reset_ends_the_turns() {
    // RFC 5961 §3.2.
    play(|s| {
        let at = begin(s);
        s.inject(rst(at));
        s.expect_nothing();
        s.expect_closed(CloseReason::Reset);
        s.expect_all_packets_back();
    });
}

#[test]
fn a_reset_together_with_a_request_ends_the_turns() {
    // RFC 5961 §3.2.
    play(|s| {
        let at = begin(s);
        s.inject_burst([request(at, LEN), rst(at + LEN)]);
        s.expect_nothing();
        s.expect_closed(CloseReason::Reset);
        s.expect_all_packets_back();
    });
}

#[test]
fn what_may_be_forged_is_challenged() {
    // RFC 5961 §3.2, §4.2.
    for forge in [|at| rst(at + 1), |at| rst(at + 1000), |at| syn(at), |at| syn(at + 1000)] {
        play(|s| {
            let at = begin(s);
            s.inject(forge(at));
            s.expect(ack(at, at));
            s.expect_exchanging(false);
            s.expect_no_event();
            goes_on(s, at);
        });
    }
}

#[test]
fn a_request_with_other_flags_is_looked_at_closely() {
    // RFC 9293 §3.10.7.4, fifth: without ACK it is dropped; RFC 5961 §4.2.
    play(|s| {
        let mut at = begin(s);
        s.inject(data(at, LEN).junk().no_ack());
        s.expect_nothing_for(DELAYED_ACK);
        s.inject(data(at, LEN).junk().ack(at).with(SYN));
        s.expect(ack(at, at));
        s.inject(request(at, LEN).urgent(5));
        s.expect(answer(at, LEN));
        s.pass(RTT);
        at += LEN;
        s.inject(request(at, LEN).ece().cwr());
        s.expect(answer(at, LEN));
        s.pass(RTT);
        goes_on(s, at + LEN);
    });
}

#[test]
fn a_damaged_request_is_dropped() {
    // RFC 9293 §3.1.
    play(|s| {
        let at = begin(s);
        s.inject(request(at, LEN).bad_checksum());
        s.expect_nothing();
        s.expect_exchanging(true);
        s.expect_delivered(at - 1);
    });
}

#[test]
fn a_closed_window_keeps_the_answer_back() {
    // RFC 9293 §3.8.6.1.
    play(|s| {
        let at = begin(s);
        s.inject(request(at, LEN).window(0));
        s.expect_within(DELAYED_ACK, ack(at, at + LEN));
        s.expect_exchanging(false);
        for _ in 0..3 {
            s.expect_probe_between(ms(1), secs(3), at);
            s.inject(ack(at + LEN, at).window(0));
        }
        s.inject(ack(at + LEN, at));
        s.expect(answer(at, LEN));
        s.pass(RTT);
        goes_on(s, at + LEN);
    });
}

#[test]
fn the_window_of_every_turn_counts() {
    // RFC 9293 §3.8.6, §3.8.6.2.1.
    play(|s| {
        let shift = s.flow().peer.window_scale.unwrap_or(0);
        let mut at = begin(s);
        for window in [400, 300, 200, 30_000, 104, 100, 100] {
            s.inject(request(at, LEN).window(window >> shift));
            s.expect(answer(at, LEN));
            s.expect_exchanging(true);
            s.pass(RTT);
            at += LEN;
        }
        // What fits is one byte less than the answer, or with scaling four.
        s.inject(request(at, LEN).window(96 >> shift));
        s.expect_within(DELAYED_ACK, ack(at, at + LEN));
        s.expect_exchanging(false);
        s.inject(ack(at + LEN, at).window(LEN as u16));
        s.pass(secs(1));
        s.drain();
    });
}

#[test]
fn the_window_of_the_last_turn_limits_what_else_is_sent() {
    // RFC 9293 §3.8.6.
    for window in [3000, 40_000] {
        play(|s| {
            let shift = s.flow().peer.window_scale.unwrap_or(0);
            let at = begin(s);
            s.inject(request(at, LEN).window(window >> shift));
            s.expect(answer(at, LEN));
            s.write(20 * SEG);
            let end = s.drain().last().map(|got| got.end());
            assert!(end <= Some(at + Rel::from(window)), "{end:?}");
        });
    }
}

#[test]
fn the_largest_window_counts_where_half_of_it_does() {
    // RFC 9293 §3.8.6.2.1: half of the largest window that the peer has had is worth a segment.
    let narrow = |peer: Peer| peer.window(120);
    play_with(plain_peers().into_iter().map(narrow).collect(), |_| {}, |s| {
        let mut at = begin(s);
        for window in [LEN as u16, 2000, 150] {
            s.inject(request(at, LEN).window(window));
            s.expect(answer(at, LEN));
            s.pass(RTT);
            at += LEN;
        }
        s.inject(request(at, LEN).window(90));
        s.pass(secs(2));
        s.drain();
    });
}

#[test]
fn an_answer_of_several_segments_goes_in_as_many() {
    // RFC 9293 §3.7.1.
    let small = |peer: Peer| if peer.timestamps { peer.mss(512) } else { peer.mss(500) };
    play_with(peers().into_iter().map(small).collect(), |_| {}, |s| {
        let mut at = begin(s);
        for len in [500, 501, 1000, 1200] {
            s.inject(request(at, len));
            let sent = s.drain();
            assert!(sent.iter().all(|got| got.len <= 500), "{sent:?}");
            at += len;
            assert_eq!(sent.last().map(|got| (got.end(), got.ack)), Some((at, at)));
            s.expect_exchanging(len == 500);
            s.pass(RTT);
            at = goes_on(s, at);
        }
    });
}

#[test]
fn a_request_in_a_chain_of_packets_is_answered() {
    play(|s| {
        let mut at = begin(s);
        for first in [0, 1, 300, 999] {
            s.inject_chain(request(at, SEG), first);
            assert_eq!(s.drain().last().map(|got| (got.end(), got.ack)), Some((at + SEG, at + SEG)));
            s.pass(RTT);
            at = goes_on(s, at + SEG);
        }
        s.inject(ack(at, at));
        s.expect_all_packets_back();
    });
}

#[test]
fn a_small_congestion_window_counts() {
    // RFC 5681 §3.1: a time-out makes it one segment.
    play_with(plain_peers(), |_| {}, |s| {
        let mut at = begin(s);
        s.expect_within(ms(300), data(at - LEN, LEN));
        s.expect_within(ms(600), data(at - LEN, LEN));
        s.pass(RTT);
        for len in [10, 10, 10, SEG, SEG, SEG] {
            at = turn(s, at, len);
            s.pass(RTT);
        }
        s.write(10 * SEG);
        s.drain();
    });
}

#[test]
fn an_old_timestamp_is_not_taken() {
    // RFC 7323 §5.3.
    play_with(peers_with_timestamps(), |_| {}, |s| {
        let at = begin(s);
        let clock = PEER_CLOCK + (s.now().as_micros() / 1000) as u32;
        for old in [1, 20, 1000, 1 << 30] {
            let Some(echo) = s.flow().last_tsval else { panic!("timestamps") };
            // The last request came a round trip ago.
            s.inject(request(at, LEN).junk().timestamp(clock.wrapping_sub(10 + old), echo));
            s.expect(ack(at, at).any_sack());
            s.expect_delivered(at - 1);
            s.expect_exchanging(false);
        }
        s.inject(request(at, LEN).timestamp(clock - 10, s.sent.last().map_or(0, Got::tsval)));
        s.expect(answer(at, LEN).echoing(clock - 10));
        goes_on(s, at + LEN);
    });
}

#[test]
fn the_timestamp_of_a_turn_is_echoed_and_remembered() {
    // RFC 7323 §4.3, §5.3.
    play_with(peers_with_timestamps(), |_| {}, |s| {
        let at = begin(s);
        let echo = s.sent.last().map_or(0, Got::tsval);
        s.inject(request(at, LEN).timestamp(1 << 30, echo));
        s.expect(answer(at, LEN).echoing(1 << 30));
        s.expect_exchanging(true);
        // The clock may stand still.
        s.inject(request(at + LEN, LEN).timestamp(1 << 30, echo));
        s.expect(answer(at + LEN, LEN).echoing(1 << 30));
        s.expect_exchanging(true);
        s.inject(request(at + 2 * LEN, LEN).junk().timestamp((1 << 30) - 1, echo));
        s.expect(ack(at + 2 * LEN, at + 2 * LEN).any_sack());
        s.expect_delivered(at - 1 + 2 * LEN);
    });
}

#[test]
fn a_request_without_the_timestamp_negotiated_is_dropped() {
    // RFC 7323 §3.2.
    play_with(peers_with_timestamps(), |_| {}, |s| {
        let at = begin(s);
        s.inject(request(at, LEN).junk().no_timestamp());
        s.inject(request(at, LEN).junk().no_timestamp().raw_option(&[253, 12, 0, 0, 255, 255, 0, 0, 0, 0, 0, 0]));
        s.expect_nothing_for(DELAYED_ACK);
        s.expect_delivered(at - 1);
        goes_on(s, at);
    });
}

#[test]
fn options_beside_and_other_layouts_are_read() {
    // RFC 9293 §3.2, MUST-6: options it does not know are skipped; RFC 7323 appendix A: the layout is a recommendation.
    play(|s| {
        let mut at = begin(s);
        s.inject(request(at, LEN).raw_option(&[1, 1, 1, 1]));
        s.expect(answer(at, LEN));
        s.pass(RTT);
        at = goes_on(s, at + LEN);
        s.inject(request(at, LEN).raw_option(&[253, 4, 0, 0]));
        s.expect(answer(at, LEN));
        s.pass(RTT);
        at = goes_on(s, at + LEN);
        let Some(echo) = s.flow().last_tsval else { return };
        let value = PEER_CLOCK + (s.now().as_micros() / 1000) as u32;
        let bytes = [&[8, 10][..], &value.to_be_bytes(), &echo.to_be_bytes(), &[1, 1]].concat();
        s.inject(request(at, LEN).no_timestamp().raw_option(&bytes));
        s.expect(answer(at, LEN).echoing(value));
        s.pass(RTT);
        goes_on(s, at + LEN);
    });
}

#[test]
fn timestamps_that_were_not_negotiated_are_no_matter() {
    // RFC 7323 §3.2.
    play_with(vec![peer().rtt(RTT)], |_| {}, |s| {
        let at = begin(s);
        s.inject(request(at, LEN).timestamp(1, 1));
        s.expect(answer(at, LEN));
        goes_on(s, at + LEN);
    });
}

#[test]
fn sack_blocks_beside_a_request_are_no_matter() {
    play(|s| {
        let at = begin(s);
        s.inject(request(at, LEN).sack(&[(at - 50, at)]));
        s.expect(answer(at, LEN));
        s.pass(RTT);
        goes_on(s, at + LEN);
    });
}

#[test]
fn answers_go_to_where_the_neighbour_is() {
    // RFC 826; RFC 4861 §7.2.5.
    play(|s| {
        let mut at = begin(s);
        for last in [7, 8] {
            s.move_peer([2, 0, 0, 0, 1, last]);
            s.expect_exchanging(true);
            at = turn(s, at, LEN);
            s.expect_exchanging(true);
            s.pass(RTT);
        }
    });
}

#[test]
fn answers_go_to_whoever_is_there_when_the_link_comes_back() {
    play_with(peers().into_iter().map(|peer| peer.rtt(ms(100))).collect(), |_| {}, |s| {
        let at = turn(s, 1, LEN);
        // The timer of the first turn is out of the way.
        s.pass(ms(250));
        let at = turn(s, at, LEN);
        s.set_link(false);
        s.pass(ms(100));
        s.set_link(true);
        let at = turn(s, at, LEN);
        s.pass(ms(100));
        s.expect_exchanging(true);
        s.replace_peer([2, 0, 0, 0, 1, 7]);
        s.inject(request(at, LEN));
        s.expect(answer(at, LEN));
        s.pass(RTT);
        goes_on(s, at + LEN);
    });
}

#[test]
fn a_neighbour_is_asked_whether_it_is_there_while_turns_go_on() {
    // RFC 4861 §7.3: what is sent to for long is confirmed, and where it has gone to is found out.
    play_with(vec![peer().rtt(ms(50))], |_| {}, |s| {
        let mut at = 1;
        for _ in 0..40 {
            at = turn(s, at, LEN);
            s.expect_exchanging(true);
            s.pass(ms(50));
        }
        // It answers from another address; until it is asked it is not known.
        let asked = s.questions;
        for _ in 0..4000 {
            at = turn(s, at, LEN);
            s.pass(ms(50));
        }
        assert!(s.questions > asked, "the neighbour is never asked");
    });
}

#[test]
fn the_service_closes_when_it_is_its_turn() {
    // RFC 9293 §3.10.4: what is queued goes first.
    play(|s| {
        let at = begin(s);
        s.next(vec![Command::Forward, Command::Close]);
        s.inject(request(at, LEN));
        let sent = s.drain();
        let last = sent.last().map(|got| (got.end(), got.ack, got.has(FIN)));
        if last != Some((at + LEN + 1, at + LEN, true)) {
            s.expect_nothing_for(ms(1));
            s.inject(ack(at + LEN, at + LEN));
            s.expect(fin(at + LEN, at + LEN));
        }
        s.inject(fin(at + LEN, at + LEN + 1));
        s.expect(ack(at + LEN + 1, at + LEN + 1));
        s.expect_peer_closed();
        s.expect_closed(CloseReason::Finished);
        s.expect_all_packets_back();
    });
}

#[test]
fn the_service_closes_without_an_answer() {
    // RFC 9293 §3.10.4.
    play(|s| {
        let at = begin(s);
        s.next(vec![Command::Close, Command::Read(LEN as usize)]);
        s.inject(request(at, LEN));
        s.expect(fin(at, at + LEN));
        s.inject(fin(at + LEN, at + 1));
        s.expect(ack(at + 1, at + LEN + 1));
        s.expect_peer_closed();
        s.expect_closed(CloseReason::Finished);
        s.expect_all_packets_back();
    });
}

#[test]
fn the_service_closes_when_it_is_the_peers_turn() {
    // RFC 9293 §3.10.4.
    play(|s| {
        let at = begin(s);
        s.close();
        s.expect_exchanging(false);
        let early = s.drain().iter().any(|got| got.has(FIN));
        s.inject(request(at, LEN));
        if !early {
            s.expect(fin(at, at + LEN));
        }
        s.drain();
        s.inject(rst(at + LEN));
        s.expect_closed(CloseReason::Reset);
        s.expect_all_packets_back();
    });
}

#[test]
fn the_service_aborts_whoever_has_the_turn() {
    // RFC 9293 §3.10.5.
    play(|s| {
        let at = begin(s);
        s.abort();
        s.expect(rst_ack(at, at));
        s.expect_closed(CloseReason::Aborted);
        s.expect_all_packets_back();
    });
    for (commands, sent) in [(vec![Command::Abort], 0), (vec![Command::Peek, Command::Abort], 0)] {
        play(|s| {
            let at = begin(s);
            s.next(commands.clone());
            s.inject(request(at, LEN));
            s.expect(rst_ack(at + sent, at + LEN));
            s.expect_closed(CloseReason::Aborted);
            s.expect_all_packets_back();
        });
    }
    play(|s| {
        let at = begin(s);
        s.next(vec![Command::Forward, Command::Abort]);
        s.inject(request(at, LEN));
        assert!(s.drain().last().is_some_and(|got| got.has(RST)));
        s.expect_closed(CloseReason::Aborted);
        s.expect_all_packets_back();
    });
}

#[test]
fn a_service_that_consumes_sends_nothing_back() {
    // RFC 9293 §3.8.6.3.
    play(|s| {
        let at = begin(s);
        s.start_reading();
        s.inject(request(at, LEN));
        s.expect_exchanging(false);
        s.expect_after(DELAYED_ACK, ack(at, at + LEN));
        s.expect_delivered(at - 1 + LEN);
        s.expect_nothing_for(secs(1));
        s.expect_all_packets_back();
    });
}

#[test]
fn a_service_may_do_with_its_turn_what_it_likes() {
    let half = LEN as usize / 2;
    let whole = LEN as usize;
    let ways = [
        vec![Command::Peek, Command::Forward],
        vec![Command::Peek, Command::Peek, Command::Read(half), Command::Write(half), Command::Forward],
        vec![Command::Write(whole), Command::Read(whole)],
        vec![Command::Send(whole), Command::Read(whole)],
        vec![Command::Read(whole), Command::Write(whole)],
        vec![Command::Take(whole), Command::Send(whole)],
        vec![Command::Take(half), Command::Write(half), Command::Forward],
        vec![Command::Write(half), Command::Take(half), Command::Forward],
        vec![Command::Timer(None), Command::Forward],
        vec![Command::Forward, Command::Forward],
        vec![Command::Forward, Command::Peek, Command::Read(whole)],
        vec![Command::Room, Command::Forward, Command::Room],
    ];
    for commands in ways {
        play(|s| {
            let at = begin(s);
            s.next(commands.clone());
            s.inject(request(at, LEN));
            let sent = s.drain();
            assert_eq!(sent.last().map(|got| (got.end(), got.ack)), Some((at + LEN, at + LEN)), "{commands:?}");
            s.expect_delivered(at - 1 + LEN);
            s.pass(RTT);
            let at = goes_on(s, at + LEN);
            s.order(Command::Timer(Some(ms(5))));
            s.pass(ms(6));
            s.expect_timer();
            s.inject(ack(at, at));
            s.pass(ms(1));
        });
    }
}

#[test]
fn a_service_may_say_more_than_its_answer() {
    play(|s| {
        let at = begin(s);
        s.next(vec![Command::Forward, Command::Write(50)]);
        s.inject(request(at, LEN));
        assert_eq!(s.drain().iter().map(|got| got.len).sum::<Rel>(), LEN + 50);
        s.expect_exchanging(false);
        s.next(vec![Command::Read(50)]);
        s.pass(RTT);
        s.inject(data(at + LEN, 50).ack(at + LEN + 50));
        s.pass(DELAYED_ACK);
        s.drain();
        goes_on(s, at + LEN + 50);
    });
}

#[test]
fn a_service_may_speak_out_of_turn() {
    play(|s| {
        let at = begin(s);
        s.write(50);
        s.expect(data(at, 50).ack(at));
        s.expect_exchanging(false);
        s.next(vec![Command::Read(50)]);
        s.pass(RTT);
        s.inject(data(at, 50).ack(at + 50));
        s.expect_within(DELAYED_ACK, ack(at + 50, at + 50));
        goes_on(s, at + 50);
    });
}

#[test]
fn what_a_service_keeps_stays_what_it_is() {
    play(|s| {
        let mut at = begin(s);
        for _ in 0..20 {
            s.next(vec![Command::Take(LEN as usize), Command::Write(LEN as usize)]);
            at = turn(s, at, LEN);
            s.pass(RTT);
            at = turn(s, at, LEN);
            s.pass(RTT);
        }
        s.order(Command::Timer(Some(ms(1))));
        s.pass(ms(2));
        s.expect_timer();
    });
}

#[test]
fn the_timer_of_the_service_comes_while_turns_go_on() {
    for delay in [ms(1), ms(25), ms(1000)] {
        play(|s| {
            let mut at = begin(s);
            s.order(Command::Timer(Some(delay)));
            let due = s.now() + delay;
            while s.now() < due + ms(20) {
                at = turn(s, at, LEN);
                s.pass(RTT);
            }
            let came = s.expect_timer();
            assert!(came >= due && came.since(due) < ms(4), "{:?} late", came.since(due));
            s.next(vec![Command::Timer(Some(ms(5))), Command::Forward]);
            at = turn(s, at, LEN);
            s.pass(RTT);
            s.expect_timer();
            goes_on(s, at);
        });
    }
}

#[test]
fn with_other_settings_turns_are_as_they_were() {
    for configure in [
        settings::nagle as fn(&mut Config),
        |config| config.pacing = true,
        |config| settings::keepalive(config, secs(5), secs(1), 2),
        settings::newreno,
        settings::dctcp,
        |config| config.linger = Some(secs(1)),
    ] {
        play_with(peers(), configure, |s| {
            let mut at = 1;
            for _ in 0..8 {
                at = turn(s, at, LEN);
                s.pass(RTT);
            }
            s.inject(ack(at, at));
            s.pass(secs(20));
            s.drain();
        });
    }
}

#[test]
fn a_peer_that_marks_congestion_is_an_ordinary_one() {
    // RFC 3168 §6.1.
    play_with(vec![peer().rtt(RTT).ecn()], settings::ecn, |s| {
        let mut at = 1;
        for _ in 0..4 {
            s.inject(request(at, LEN).ecn(CE));
            s.expect(answer(at, LEN).any_ecn());
            s.expect_exchanging(false);
            at += LEN;
            s.pass(RTT);
        }
    });
}

#[test]
fn the_time_out_is_that_of_the_round_trips_measured() {
    // RFC 6298 §2.3.
    for (rtts, most) in [([50, 50], 255), ([40, 80], 400), ([500, 20], 2500)] {
        play_with(plain_peers().into_iter().map(|peer| peer.rtt(ms(500))).collect(), |_| {}, |s| {
            let mut at = 1;
            for n in 0..50 {
                at = turn(s, at, LEN);
                s.expect_exchanging(true);
                s.pass(ms(rtts[n % 2]));
            }
            s.inject(request(at, LEN));
            s.expect(answer(at, LEN));
            let again = s.expect_between(ms(rtts[0]), ms(most), answer(at, LEN));
            let sent = s.sent[s.sent.len() - 2].at;
            assert!(rtts != [50, 50] || again.at.since(sent) < ms(256), "{:?}", again.at.since(sent));
        });
    }
}

#[test]
fn a_path_that_becomes_narrower_is_noticed() {
    // RFC 1191 §6.4; RFC 8201 §5.2.
    play_with(peers().into_iter().map(|peer| peer.mss(1460)).collect(), |_| {}, |s| {
        let at = begin(s);
        s.inject(request(at, 1400));
        let sent = s.expect(answer(at, 1400));
        s.expect_exchanging(true);
        let (kind, code, mtu) = if s.flow().peer.ipv6 { (2, 0, 1280) } else { (3, 4, 1000) };
        s.inject_icmp(kind, code, mtu, &sent);
        s.expect_exchanging(false);
        let again = s.drain();
        assert!(!again.is_empty() && again.iter().all(|got| got.raw.ip_len <= mtu as usize), "{again:?}");
        s.pass(RTT);
        s.inject(ack(at + 1400, at + 1400));
        let at = goes_on(s, at + 1400);
        s.inject(request(at, 1400));
        let sent = s.drain();
        assert!(sent.len() == 2 && sent.iter().all(|got| got.raw.ip_len <= mtu as usize), "{sent:?}");
    });
}

#[test]
fn an_unreachable_peer_may_be_reached_again() {
    // RFC 9293 §3.9.2.2 MUST-56.
    play(|s| {
        let at = begin(s);
        let Some(sent) = s.sent.last().cloned() else { panic!("an answer") };
        let kind = if s.flow().peer.ipv6 { 1 } else { 3 };
        for code in [0, 1, 3] {
            s.inject_icmp(kind, code, 0, &sent);
        }
        s.expect_no_event();
        goes_on(s, at);
    });
}

#[test]
fn turns_end_when_packets_run_low() {
    // Nothing of what has been acknowledged is lost, and every turn is answered in the end.
    native_only!();
    let mut s = Script::accepted_over(peer().rtt(RTT), link(72));
    let ports: Vec<u16> = (5000..5060).collect();
    for port in &ports {
        s.on_port(*port);
        if *port != 5000 {
            s.shake_hands();
        }
        s.echo();
    }
    for round in 0..3 {
        let at = 1 + round * LEN;
        let mut waiting = ports.clone();
        let mut exchanging = 0;
        while !waiting.is_empty() {
            let before = waiting.len();
            for port in std::mem::take(&mut waiting) {
                s.on_port(port).inject(request(at, LEN));
                match s.drain().last() {
                    Some(got) if got.len > 0 => assert_eq!((got.port, got.end(), got.ack), (port, at + LEN, at + LEN)),
                    _ => waiting.push(port),
                }
                exchanging += usize::from(s.is_exchanging());
            }
            assert!(exchanging > 0 && waiting.len() < before, "{exchanging} take turns, {waiting:?} have no answer");
            // Those that have been answered say so.
            for port in ports.iter().filter(|port| !waiting.contains(port)) {
                s.on_port(*port).inject(ack(at + LEN, at + LEN));
            }
            s.drain();
        }
        assert!(exchanging < ports.len(), "packets never run low");
    }
    for port in &ports {
        s.on_port(*port).expect_delivered(3 * LEN);
    }
    s.expect_all_packets_back();
}

#[test]
fn when_packets_are_low_no_more_window_is_offered() {
    native_only!();
    let mut s = Script::accepted_over(peer().rtt(RTT), link(72));
    s.echo();
    let at = begin(&mut s);
    let edge = s.flow().right_edge;
    // Another connection's service leaves what it receives where it is.
    s.on_port(5001).shake_hands();
    s.stop_reading();
    for n in 0..60 {
        s.inject(data(1 + 10 * n, 10));
    }
    s.drain();
    s.on_port(5000).inject(request(at, LEN));
    s.expect(answer(at, LEN));
    s.expect_exchanging(false);
    assert!(s.flow().right_edge <= edge.max(at + LEN + SEG), "{edge} {}", s.flow().right_edge);
    s.on_port(5001).start_reading();
    s.pass(ms(1));
    s.drain();
    s.on_port(5000).pass(RTT);
    goes_on(&mut s, at + LEN);
}

#[test]
fn many_connections_take_turns_and_end_in_every_way() {
    native_only!();
    // More than there is another way in for.
    let mut s = Script::accepted_over(peer(), link(8192));
    let ports: Vec<u16> = (5000..6100).collect();
    for port in &ports {
        s.on_port(*port);
        if *port != 5000 {
            s.shake_hands();
        }
        s.echo();
    }
    let mut at = 1;
    for _ in 0..3 {
        for some in ports.chunks(128) {
            s.inject_burst(some.iter().map(|port| request(at, LEN).port(*port)));
        }
        let mut answered: Vec<_> = s.drain().iter().map(|got| (got.port, got.seq, got.len, got.ack)).collect();
        answered.sort_unstable();
        assert!(answered.iter().copied().eq(ports.iter().map(|port| (*port, at, LEN, at + LEN))));
        at += LEN;
        s.pass(ms(1));
    }
    for port in ports.iter().step_by(50) {
        s.on_port(*port).expect_exchanging(true);
    }
    for some in ports.chunks(128) {
        let ends = some.iter().filter(|port| **port % 4 != 3).map(|port| match port % 4 {
            0 => rst(at).port(*port),
            1 => fin(at, at).port(*port),
            _ => ack(at, at).port(*port),
        });
        s.inject_burst(ends.collect::<Vec<_>>());
    }
    for port in ports.iter().filter(|port| **port % 4 != 0) {
        s.on_port(*port).abort();
    }
    s.drain();
    s.expect_all_packets_back();
}
