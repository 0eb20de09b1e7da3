//! What is lost, repeated and out of order.

use super::*;

#[test]
fn an_answer_that_is_lost_comes_again() {
    // RFC 6298 §5.4 to §5.6.
    play_with(
        plain_peers(),
        |_| {},
        |s| {
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
            at = recovers(s, at);
            // The time-out is no longer the one that has been doubled.
            s.inject(request(at, LEN));
            s.expect(answer(at, LEN));
            s.expect_within(ms(300), answer(at, LEN));
        },
    );
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
    play_with(
        plain_peers(),
        |config| settings::user_timeout(config, secs(10)),
        |s| {
            begin(s);
            s.pass(secs(60));
            s.expect_closed(CloseReason::TimedOut);
            s.drain();
            s.expect_all_packets_back();
        },
    );
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
    play_with(
        peers(),
        |config| settings::receive_buffer(config, 4096),
        |s| {
            let at = begin(s);
            let edge = s.flow().right_edge;
            for seq in [edge, edge + 1, at - 70_000] {
                s.inject(data(seq, LEN).ack(at));
                s.expect(ack(at, at).any_sack());
            }
            s.expect_delivered(at - 1);
            goes_on(s, at);
        },
    );
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
    play_with(
        peers().into_iter().map(small).collect(),
        |_| {},
        |s| {
            let at = begin(s);
            s.stop_reading();
            s.inject(request(at, 1000));
            s.expect(ack(at, at + 1000));
            s.echo();
            s.expect_delivered(at - 1 + 1000);
        },
    );
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
            s.expect_exchanging(false);
            s.pass(RTT);
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
fn a_small_congestion_window_counts() {
    // RFC 5681 §3.1: a time-out makes it one segment.
    play_with(
        plain_peers(),
        |_| {},
        |s| {
            let mut at = begin(s);
            s.expect_within(ms(300), data(at - LEN, LEN));
            s.expect_within(ms(600), data(at - LEN, LEN));
            at = recovers(s, at);
            for len in [10, 10, 10, SEG, SEG, SEG] {
                at = turn(s, at, len);
                s.pass(RTT);
            }
            s.write(10 * SEG);
            s.drain();
        },
    );
}

#[test]
fn the_time_out_is_that_of_the_round_trips_measured() {
    // RFC 6298 §2.3.
    for (rtts, most) in [([50, 50], 255), ([40, 80], 400), ([500, 20], 2500)] {
        play_with(
            plain_peers().into_iter().map(|peer| peer.rtt(ms(500))).collect(),
            |_| {},
            |s| {
                let mut at = 1;
                for n in 0..50 {
                    at = turn(s, at, LEN);
                    s.expect_exchanging(n > 0);
                    s.pass(ms(rtts[n % 2]));
                }
                s.inject(request(at, LEN));
                s.expect(answer(at, LEN));
                let again = s.expect_between(ms(rtts[0]), ms(most), answer(at, LEN));
                let sent = s.sent[s.sent.len() - 2].at;
                assert!(rtts != [50, 50] || again.at.since(sent) < ms(256), "{:?}", again.at.since(sent));
            },
        );
    }
}

#[test]
fn the_shortest_round_trip_of_the_turns_is_known() {
    // RFC 8985 §6.2 steps 4 and 5: a quarter of it is the reordering window.
    let far = |peer: Peer| peer.sack().rtt(ms(100));
    play_with(
        plain_peers().into_iter().map(far).collect(),
        |_| {},
        |s| {
            let mut at = 1;
            for n in 0..19 {
                at = turn(s, at, LEN);
                s.expect_exchanging(n > 0);
                s.pass(RTT);
            }
            // What is measured from here on is longer.
            s.pass(ms(25));
            s.inject(ack(at, at));
            s.write(2 * SEG);
            s.expect_flight(at, 2);
            s.pass(ms(40));
            s.inject(ack(at, at).sack(&[(at + SEG, at + 2 * SEG)]));
            s.expect_within(RTT / 4, data(at, SEG));
        },
    );
}

#[test]
fn without_a_round_trip_measured_nothing_is_taken_for_lost_too_early() {
    // RFC 6298 §3, §5.7: a SYN sent twice measures nothing; three seconds at least, and the engine doubles twice.
    native_only!();
    let mut s = Script::listen_over(peer(), link(POOL));
    s.inject_hello(syn(0));
    s.expect(syn_ack(0, 1));
    s.expect_after(secs(1), syn_ack(0, 1));
    s.inject(ack(1, 1));
    s.expect_opened();
    s.echo();
    let at = turn(&mut s, 1, LEN);
    s.expect_exchanging(false);
    s.expect_between(secs(3), ms(4100), answer(1, LEN));
    recovers(&mut s, at);
}

#[test]
fn a_time_out_stays_doubled_until_a_round_trip_is_measured() {
    // RFC 6298 §5.7, and not longer.
    play_with(
        plain_peers(),
        |_| {},
        |s| {
            let at = begin(s);
            for _ in 0..2 {
                s.expect_within(secs(2), data(at - LEN, LEN));
            }
            s.inject(ack(at, at));
            s.pass(ms(500));
            let mut at = turn(s, at, LEN);
            for _ in 0..2 {
                s.pass(RTT);
                at = turn(s, at, LEN);
            }
            s.expect_within(ms(300), data(at - LEN, LEN));
        },
    );
}
