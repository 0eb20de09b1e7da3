//! Segments that are not a turn: other flags, options and timestamps.

use super::*;

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
fn an_old_timestamp_is_not_taken() {
    // RFC 7323 §5.3.
    play_with(
        peers_with_timestamps(),
        |_| {},
        |s| {
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
        },
    );
}

#[test]
fn the_timestamp_of_a_turn_is_echoed_and_remembered() {
    // RFC 7323 §4.3, §5.3.
    play_with(
        peers_with_timestamps(),
        |_| {},
        |s| {
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
        },
    );
}

#[test]
fn a_request_without_the_timestamp_negotiated_is_dropped() {
    // RFC 7323 §3.2.
    play_with(
        peers_with_timestamps(),
        |_| {},
        |s| {
            let at = begin(s);
            s.inject(request(at, LEN).junk().no_timestamp());
            s.inject(request(at, LEN).junk().no_timestamp().raw_option(&[253, 12, 0, 0, 255, 255, 0, 0, 0, 0, 0, 0]));
            s.expect_nothing_for(DELAYED_ACK);
            s.expect_delivered(at - 1);
            goes_on(s, at);
        },
    );
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
    play_with(
        vec![peer().rtt(RTT)],
        |_| {},
        |s| {
            let at = begin(s);
            s.inject(request(at, LEN).timestamp(1, 1));
            s.expect(answer(at, LEN));
            goes_on(s, at + LEN);
        },
    );
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
