//! Lost, repeated and out-of-order segments in request-response mode.

use super::*;

#[test]
fn lost_answer_is_retransmitted() {
    // RFC 6298 §5.4 to §5.6.
    play_to(
        plain_peers(),
        in_rr(|s, mut at| {
            s.inject(request(at, LEN)).expect(answer(at, LEN));
            let sent = s.now();
            let again = s.expect_within(ms(300), answer(at, LEN));
            let rto = again.at.since(sent);
            assert!(rto > RTT, "{rto:?}");
            s.expect_rr(false);
            s.expect_after(2 * rto, answer(at, LEN));
            s.expect_after(4 * rto, answer(at, LEN));
            s.pass(RTT);
            at += LEN;
            for _ in 0..4 {
                at = exchange(s, at, LEN);
                s.pass(RTT);
            }
            s.expect_delivered(at - 1);
            at = expect_rr_after_recovery(s, at);
            // The timeout is no longer doubled.
            s.inject(request(at, LEN)).expect(answer(at, LEN));
            s.expect_within(ms(300), answer(at, LEN));
        }),
    );
}

#[test]
fn lost_answer_gets_tail_loss_probe() {
    // RFC 8985 §7.2, §7.3.
    play(in_rr(|s, at| {
        s.inject(request(at, LEN)).expect(answer(at, LEN));
        s.expect_within(ms(300), answer(at, LEN));
        s.expect_rr(false);
        s.pass(RTT);
        s.inject(ack(at + LEN, at + LEN)).expect_nothing_for(secs(60));
        expect_rr_after_recovery(s, at + LEN);
    }));
}

#[test]
fn connection_times_out_with_event() {
    // RFC 9293 §3.8.3.
    play_with(
        plain_peers(),
        |config| settings::user_timeout(config, secs(10)),
        |s| {
            enter_rr(s);
            s.pass(secs(60));
            s.expect_closed(CloseReason::TimedOut);
            s.drain();
            s.expect_no_packets_held();
        },
    );
}

#[test]
fn repeated_request_is_acknowledged_as_duplicate() {
    // RFC 9293 §3.10.7.4, first; RFC 2883 §4.1.
    for (from, len) in [(LEN, LEN), (LEN, LEN / 2), (LEN / 2, LEN / 2), (1, 1), (2 * LEN, LEN), (2 * LEN, 2 * LEN)] {
        play(in_rr(|s, at| {
            s.inject(data(at - from, len).ack(at - LEN).push());
            let want = with_sack_blocks(s, ack(at, at), &[(at - from, at - from + len)]);
            s.expect(want);
            s.expect_rr(false);
            s.expect_delivered(at - 1);
            expect_rr_resumes(s, at);
        }));
    }
}

#[test]
fn partly_repeated_request_is_answered_in_part() {
    // RFC 9293 §3.10.7.4, seventh; RFC 2883 §4.3.
    play(in_rr(|s, at| {
        s.inject(data(at - 50, LEN).ack(at).push()).expect(answer(at, 50).any_sack());
        s.expect_delivered(at - 1 + 50);
        expect_rr_resumes(s, at + 50);
    }));
}

#[test]
fn request_twice_in_one_burst_is_answered_once() {
    // RFC 9293 §3.10.7.4, first.
    play(in_rr(|s, at| {
        s.inject_burst([request(at, LEN), request(at, LEN)]).expect(answer(at, LEN).any_sack());
        s.expect_nothing();
        s.expect_delivered(at - 1 + LEN);
        expect_rr_resumes(s, at + LEN);
    }));
}

#[test]
fn out_of_order_request_waits_for_missing_data() {
    // RFC 5681 §4.2; RFC 2018 §4.
    play(in_rr(|s, at| {
        s.inject(data(at + LEN, LEN).ack(at).push());
        let want = with_sack_blocks(s, ack(at, at), &[(at + LEN, at + 2 * LEN)]);
        s.expect(want);
        s.expect_rr(false);
        s.expect_delivered(at - 1);
        s.inject(request(at, LEN));
        assert_eq!(s.drain().last().map(|got| (got.end(), got.ack)), Some((at + 2 * LEN, at + 2 * LEN)));
        s.pass(RTT);
        expect_rr_resumes(s, at + 2 * LEN);
    }));
}

#[test]
fn request_outside_window_is_rejected() {
    // RFC 9293 §3.4.
    play_with(
        peers(),
        |config| settings::receive_buffer(config, 4096),
        |s| {
            let at = enter_rr(s);
            let edge = s.flow().right_edge;
            for seq in [edge, edge + 1, at - 70_000] {
                s.inject(data(seq, LEN).ack(at)).expect(ack(at, at).any_sack());
            }
            s.expect_delivered(at - 1);
            expect_rr_resumes(s, at);
        },
    );
}

#[test]
fn request_beyond_window_is_trimmed() {
    // RFC 9293 §3.10.7.4, first.
    let tight = |config: &mut Config| settings::receive_buffer(config, 4096);
    play_with(
        peers().into_iter().map(|peer| peer.mss(1400)),
        tight,
        in_rr(|s, mut at| {
            s.stop_reading();
            s.inject(request(at, 1300)).expect_within(DELAYED_ACK, ack(at, at + 1300));
            at += 1300;
            s.inject_burst((0..3).map(|n| data(at + 1300 * n, 1300).ack(at - 1300))).drain_for(DELAYED_ACK);
            let edge = s.flow().right_edge;
            s.expect_delivered(edge - 1);
        }),
    );
}

#[test]
fn late_answer_does_not_delay_ack() {
    // RFC 9293 §3.8.6.3.
    play(in_rr(|s, at| {
        s.stop_reading();
        s.inject(request(at, LEN)).expect_nothing();
        s.expect_rr(false);
        s.expect_after(DELAYED_ACK, ack(at, at + LEN));
        s.echo();
        s.expect(answer(at, LEN));
        s.pass(RTT);
        expect_rr_resumes(s, at + LEN);
    }));
}

#[test]
fn request_before_answer_is_answered_after_it() {
    // RFC 9293 §3.8.6.3; RFC 5681 §4.2.
    play(in_rr(|s, at| {
        s.stop_reading();
        s.inject(request(at, LEN)).expect_nothing_for(ms(5));
        s.inject(data(at + LEN, LEN).ack(at).push()).expect(ack(at, at + 2 * LEN));
        s.expect_delivered(at - 1 + 2 * LEN);
        s.echo();
        assert_eq!(s.drain().last().map(|got| got.end()), Some(at + 2 * LEN));
        s.pass(RTT);
        expect_rr_resumes(s, at + 2 * LEN);
    }));
}

#[test]
fn requests_in_one_burst_are_answered_in_order() {
    // RFC 9293 §3.10.7.4, seventh.
    play(in_rr(|s, at| {
        s.inject_burst((0..3).map(|n| data(at + n * LEN, LEN).ack(at).push()));
        assert_eq!(s.drain().last().map(|got| (got.end(), got.ack)), Some((at + 3 * LEN, at + 3 * LEN)));
        s.pass(RTT);
        expect_rr_resumes(s, at + 3 * LEN);
    }));
}

#[test]
fn request_of_several_segments_is_acknowledged_immediately() {
    // RFC 5681 §4.2: also applies to segments that the port has merged.
    let small = |peer: Peer| if peer.timestamps { peer.mss(512) } else { peer.mss(500) };
    play_to(
        peers().into_iter().map(small),
        in_rr(|s, at| {
            s.stop_reading();
            s.inject(request(at, 1000)).expect(ack(at, at + 1000));
            s.echo();
            s.expect_delivered(at - 1 + 1000);
        }),
    );
}

#[test]
fn silent_connection_holds_no_packets() {
    play(in_rr(|s, mut at| {
        for pause in [ms(1), secs(1), secs(3600)] {
            s.inject(ack(at, at)).expect_rr(false);
            s.expect_no_packets_held();
            s.expect_nothing_for(pause);
            at = exchange(s, at, LEN);
            s.expect_rr(false);
            s.pass(RTT);
            at = exchange(s, at, LEN);
            s.expect_rr(true);
            s.pass(RTT);
        }
    }));
}

#[test]
fn pure_ack_of_acknowledged_data_changes_nothing() {
    // RFC 9293 §3.10.7.4, fifth.
    play(in_rr(|s, at| {
        s.inject(ack(at, at - LEN));
        s.inject(ack(at, at - 2 * LEN)).expect_nothing();
        s.expect_within(ms(300), data(at - LEN, LEN).ack(at));
        expect_rr_after_recovery(s, at);
    }));
}

#[test]
fn request_that_acknowledges_part_of_answer_leaves_rest_for_retransmission() {
    // RFC 9293 §3.8.1.
    play(in_rr(|s, at| {
        s.inject(data(at, LEN).ack(at - 40).push()).expect(answer(at, LEN));
        s.expect_rr(false);
        s.pass(ms(400));
        assert!(s.drain().iter().any(|got| got.len > 0 && got.seq < at), "the rest is retransmitted");
        expect_rr_after_recovery(s, at + LEN);
    }));
}

#[test]
fn request_without_new_ack_is_answered() {
    // RFC 9293 §3.10.7.4, fifth.
    for acknowledged in [LEN, LEN + 50] {
        play(in_rr(|s, at| {
            s.inject(data(at, LEN).ack(at - acknowledged).push()).expect(answer(at, LEN));
            s.expect_rr(false);
            s.pass(RTT / 2);
            s.inject(ack(at + LEN, at + LEN));
            expect_rr_resumes(s, at + LEN);
        }));
    }
}

#[test]
fn request_that_acknowledges_unsent_data_is_rejected() {
    // RFC 5961 §5.2.
    for beyond in [1, 1_000_000] {
        play(in_rr(|s, at| {
            s.inject(data(at, LEN).ack(at + beyond).junk()).expect(ack(at, at));
            s.expect_delivered(at - 1);
            expect_rr_resumes(s, at);
        }));
    }
}

#[test]
fn small_cwnd_limits_answer() {
    // RFC 5681 §3.1: a timeout sets cwnd to one segment.
    play_to(
        plain_peers(),
        in_rr(|s, mut at| {
            s.expect_within(ms(300), data(at - LEN, LEN));
            s.expect_within(ms(600), data(at - LEN, LEN));
            at = expect_rr_after_recovery(s, at);
            for len in [10, 10, 10, SEG, SEG, SEG] {
                at = exchange(s, at, len);
                s.pass(RTT);
            }
            s.write(10 * SEG).drain();
        }),
    );
}

#[test]
fn rto_follows_measured_round_trips() {
    // RFC 6298 §2.3.
    for (rtts, most) in [([50, 50], 255), ([40, 80], 400), ([500, 20], 2500)] {
        play_to(plain_peers().into_iter().map(|peer| peer.rtt(ms(500))), |s| {
            let mut at = 1;
            for n in 0..50 {
                at = exchange(s, at, LEN);
                s.expect_rr(n > 0);
                s.pass(ms(rtts[n % 2]));
            }
            s.inject(request(at, LEN)).expect(answer(at, LEN));
            let again = s.expect_between(ms(rtts[0]), ms(most), answer(at, LEN));
            let sent = s.sent[s.sent.len() - 2].at;
            assert!(rtts != [50, 50] || again.at.since(sent) < ms(256), "{:?}", again.at.since(sent));
        });
    }
}

#[test]
fn minimum_rtt_is_measured() {
    // RFC 8985 §6.2 steps 4 and 5: a quarter of it is the reordering window.
    let far = |peer: Peer| peer.sack().rtt(ms(100));
    play_to(plain_peers().into_iter().map(far), |s| {
        let mut at = 1;
        for n in 0..19 {
            at = exchange(s, at, LEN);
            s.expect_rr(n > 0);
            s.pass(RTT);
        }
        // Later samples are longer.
        s.pass(ms(25));
        s.inject(ack(at, at));
        s.write(2 * SEG).expect_flight(at, 2);
        s.pass(ms(40));
        s.inject(ack(at, at).sack(&[(at + SEG, at + 2 * SEG)])).expect_within(RTT / 4, data(at, SEG));
    });
}

#[test]
fn rto_without_rtt_sample_is_conservative() {
    // RFC 6298 §3, §5.7: a retransmitted SYN gives no sample. The timeout is at least three seconds, and the engine
    // doubles it twice.
    let mut s = Script::listen_over(peer(), link(POOL));
    s.inject_syn(syn(0)).expect(syn_ack(0, 1));
    s.expect_after(secs(1), syn_ack(0, 1));
    s.inject(ack(1, 1)).expect_opened();
    s.echo();
    let at = exchange(&mut s, 1, LEN);
    s.expect_rr(false);
    s.expect_between(secs(3), ms(4100), answer(1, LEN));
    expect_rr_after_recovery(&mut s, at);
}

#[test]
fn doubled_rto_lasts_until_next_rtt_sample() {
    // RFC 6298 §5.7.
    play_to(
        plain_peers(),
        in_rr(|s, at| {
            for _ in 0..2 {
                s.expect_within(secs(2), data(at - LEN, LEN));
            }
            s.inject(ack(at, at));
            s.pass(ms(500));
            let mut at = exchange(s, at, LEN);
            for _ in 0..2 {
                s.pass(RTT);
                at = exchange(s, at, LEN);
            }
            s.expect_within(ms(300), data(at - LEN, LEN));
        }),
    );
}
