//! Segments that leave request-response mode, or that it must reject: other flags, options and timestamps.

use super::*;

#[test]
fn request_with_fin_is_answered() {
    // RFC 9293 §3.10.7.4, eighth.
    play(in_rr(|s, at| {
        s.inject(request(at, LEN).with_fin()).expect(data(at, LEN).ack(at + LEN + 1));
        s.expect_peer_closed();
        s.expect_rr(false);
        s.close().expect(fin(at + LEN, at + LEN + 1));
        s.inject(ack(at + LEN + 1, at + LEN + 1)).expect_closed(CloseReason::Finished);
        s.expect_no_packets_held();
    }));
}

#[test]
fn fin_leaves_rr_mode() {
    // RFC 9293 §3.10.7.4, eighth.
    play(in_rr(|s, at| {
        s.inject(fin(at, at)).expect(ack(at, at + 1));
        s.expect_peer_closed();
        s.close().expect(fin(at, at + 1));
        s.inject(ack(at + 1, at + 1)).expect_closed(CloseReason::Finished);
        s.expect_no_packets_held();
    }));
}

#[test]
fn rst_leaves_rr_mode() {
    // RFC 5961 §3.2.
    play(in_rr(|s, at| {
        s.inject(rst(at)).expect_nothing();
        s.expect_closed(CloseReason::Reset);
        s.expect_no_packets_held();
    }));
}

#[test]
fn rst_with_request_in_one_burst_leaves_rr_mode() {
    // RFC 5961 §3.2.
    play(in_rr(|s, at| {
        s.inject_burst([request(at, LEN), rst(at + LEN)]).expect_nothing();
        s.expect_closed(CloseReason::Reset);
        s.expect_no_packets_held();
    }));
}

#[test]
fn forgeable_segments_get_challenge_ack() {
    // RFC 5961 §3.2, §4.2.
    for forge in [|at| rst(at + 1), |at| rst(at + 1000), |at| syn(at), |at| syn(at + 1000)] {
        play(in_rr(|s, at| {
            s.inject(forge(at)).expect(ack(at, at));
            s.expect_rr(false);
            s.expect_no_event();
            expect_rr_resumes(s, at);
        }));
    }
}

#[test]
fn request_with_other_flags_is_processed_by_general_path() {
    // RFC 9293 §3.10.7.4, fifth: dropped without ACK; RFC 5961 §4.2.
    play(in_rr(|s, mut at| {
        s.inject(data(at, LEN).junk().no_ack()).expect_nothing_for(DELAYED_ACK);
        s.inject(data(at, LEN).junk().ack(at).with(SYN)).expect(ack(at, at));
        s.inject(request(at, LEN).urgent(5)).expect(answer(at, LEN));
        s.pass(RTT);
        at += LEN;
        s.inject(request(at, LEN).ece().cwr()).expect(answer(at, LEN));
        s.pass(RTT);
        expect_rr_resumes(s, at + LEN);
    }));
}

#[test]
fn corrupted_request_is_dropped() {
    // RFC 9293 §3.1.
    play(in_rr(|s, at| {
        s.inject(request(at, LEN).bad_checksum()).expect_nothing();
        s.expect_rr(true);
        s.expect_delivered(at - 1);
    }));
}

#[test]
fn request_with_old_timestamp_is_rejected() {
    // RFC 7323 §5.3.
    play_to(
        peers_with_timestamps(),
        in_rr(|s, at| {
            let clock = PEER_CLOCK + (s.now().as_micros() / 1000) as u32;
            for old in [1, 20, 1000, 1 << 30] {
                let Some(echo) = s.flow().last_tsval else { panic!("no timestamps") };
                // The last request arrived one round trip ago.
                s.inject(request(at, LEN).junk().timestamp(clock.wrapping_sub(10 + old), echo));
                s.expect(ack(at, at).any_sack());
                s.expect_delivered(at - 1);
                s.expect_rr(false);
            }
            s.inject(request(at, LEN).timestamp(clock - 10, s.sent.last().map_or(0, Got::tsval)));
            s.expect(answer(at, LEN).echoing(clock - 10));
            expect_rr_resumes(s, at + LEN);
        }),
    );
}

#[test]
fn timestamp_of_request_is_echoed_and_kept() {
    // RFC 7323 §4.3, §5.3.
    play_to(
        peers_with_timestamps(),
        in_rr(|s, at| {
            let echo = s.sent.last().map_or(0, Got::tsval);
            s.inject(request(at, LEN).timestamp(1 << 30, echo)).expect(answer(at, LEN).echoing(1 << 30));
            s.expect_rr(true);
            // Two requests may have the same TSval.
            s.inject(request(at + LEN, LEN).timestamp(1 << 30, echo));
            s.expect(answer(at + LEN, LEN).echoing(1 << 30));
            s.expect_rr(true);
            s.inject(request(at + 2 * LEN, LEN).junk().timestamp((1 << 30) - 1, echo));
            s.expect(ack(at + 2 * LEN, at + 2 * LEN).any_sack());
            s.expect_delivered(at - 1 + 2 * LEN);
        }),
    );
}

#[test]
fn request_without_negotiated_timestamp_is_dropped() {
    // RFC 7323 §3.2.
    play_to(
        peers_with_timestamps(),
        in_rr(|s, at| {
            s.inject(request(at, LEN).junk().no_timestamp());
            s.inject(request(at, LEN).junk().no_timestamp().raw_option(&[253, 12, 0, 0, 255, 255, 0, 0, 0, 0, 0, 0]));
            s.expect_nothing_for(DELAYED_ACK);
            s.expect_delivered(at - 1);
            expect_rr_resumes(s, at);
        }),
    );
}

#[test]
fn additional_options_and_other_layouts_are_parsed() {
    // RFC 9293 §3.2, MUST-6: unknown options are skipped; RFC 7323 appendix A only recommends a layout.
    play(in_rr(|s, mut at| {
        s.inject(request(at, LEN).raw_option(&[1, 1, 1, 1])).expect(answer(at, LEN));
        s.pass(RTT);
        at = expect_rr_resumes(s, at + LEN);
        s.inject(request(at, LEN).raw_option(&[253, 4, 0, 0])).expect(answer(at, LEN));
        s.pass(RTT);
        at = expect_rr_resumes(s, at + LEN);
        let Some(echo) = s.flow().last_tsval else { return };
        let value = PEER_CLOCK + (s.now().as_micros() / 1000) as u32;
        let bytes = [&[8, 10][..], &value.to_be_bytes(), &echo.to_be_bytes(), &[1, 1]].concat();
        s.inject(request(at, LEN).no_timestamp().raw_option(&bytes)).expect(answer(at, LEN).echoing(value));
        s.pass(RTT);
        expect_rr_resumes(s, at + LEN);
    }));
}

#[test]
fn timestamps_without_negotiation_are_ignored() {
    // RFC 7323 §3.2.
    play_to(
        vec![peer().rtt(RTT)],
        in_rr(|s, at| {
            s.inject(request(at, LEN).timestamp(1, 1)).expect(answer(at, LEN));
            expect_rr_resumes(s, at + LEN);
        }),
    );
}

#[test]
fn sack_blocks_on_request_are_accepted() {
    play(in_rr(|s, at| {
        s.inject(request(at, LEN).sack(&[(at - 50, at)])).expect(answer(at, LEN));
        s.pass(RTT);
        expect_rr_resumes(s, at + LEN);
    }));
}

#[test]
fn ecn_connection_behaves_as_with_general_path() {
    // RFC 3168 §6.1.
    play_with(vec![peer().rtt(RTT).ecn()], settings::ecn, |s| {
        let mut at = 1;
        for _ in 0..4 {
            s.inject(request(at, LEN).ecn(CE)).expect(answer(at, LEN).any_ecn());
            s.expect_rr(false);
            at += LEN;
            s.pass(RTT);
        }
    });
}
