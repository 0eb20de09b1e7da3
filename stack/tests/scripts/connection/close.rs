//! Closing connections: RFC 9293 §3.6, §3.10.4, §3.10.5.

use crate::harness::*;

#[test]
fn worker_may_send_after_peer_closes() {
    // RFC 9293 §3.6, case 2: half-closed by the peer.
    let mut s = Script::accepted(peer());
    s.close_by_peer(1, 1);
    for n in 0..3 {
        s.write(1000).expect(data(1 + n * SEG, 1000).ack(2));
        s.inject(ack(2, 1001 + n * SEG));
    }
    s.expect_nothing_for(secs(60));
    s.finish(3001, 2);
}

#[test]
fn peer_may_send_after_worker_closes() {
    // RFC 9293 §3.6, case 1: half-closed by the worker.
    let mut s = Script::accepted(peer());
    s.close().expect(fin(1, 1));
    s.inject(ack(1, 2));
    for n in 0..3 {
        s.inject(data(1 + n * SEG, 1000).ack(2)).expect_within(DELAYED_ACK, ack(2, 1001 + n * SEG));
        s.pass(secs(10));
    }
    s.expect_delivered(3000);
    s.expect_no_event();
    s.close_by_peer(3001, 2);
    s.expect_closed(CloseReason::Finished);
}

#[test]
fn simultaneous_close_enters_time_wait() {
    // RFC 9293 §3.6, case 3, figure 13.
    let mut s = Script::accepted(peer());
    s.close().expect(fin(1, 1));
    s.inject(fin(1, 1)).expect_within(DELAYED_ACK, ack(2, 2));
    s.expect_peer_closed();
    s.inject(ack(2, 2)).expect_closed(CloseReason::Finished);
    // The connection is in TIME-WAIT.
    s.inject(fin(1, 2)).expect(ack(2, 2));
}

#[test]
fn fin_that_acknowledges_our_fin_enters_time_wait() {
    // RFC 9293 §3.10.7.4, eighth, FIN-WAIT-1.
    let mut s = Script::accepted(peer());
    s.close().expect(fin(1, 1));
    s.close_by_peer(1, 2);
    s.expect_closed(CloseReason::Finished);
}

#[test]
fn fin_with_data_delivers_data_first() {
    // RFC 9293 §3.10.7.4, seventh and eighth.
    let mut s = Script::accepted(peer());
    s.stop_reading();
    s.inject(data(1, 100).with_fin()).expect_within(DELAYED_ACK, ack(1, 102));
    s.expect_delivered(100);
    // `peer_closed` follows once all data has been consumed.
    s.expect_no_event();
    s.start_reading();
    s.expect_peer_closed();
}

#[test]
fn peer_closed_follows_consumption_of_earlier_data() {
    // RFC 9293 §3.10.7.4, eighth: independent of the arrival of the FIN.
    let mut s = Script::accepted(peer());
    s.stop_reading();
    s.inject(data(1, 100)).expect_within(DELAYED_ACK, ack(1, 101));
    s.inject(fin(101, 1)).expect_within(DELAYED_ACK, ack(1, 102));
    s.expect_no_event();
    s.start_reading();
    s.expect_delivered(100);
    s.expect_peer_closed();
}

#[test]
fn peer_closed_follows_opened_if_fin_completes_handshake() {
    // RFC 9293 §3.10.7.4, eighth.
    let mut s = Script::listen(peer(), |_| {});
    s.inject_syn(syn(0)).expect(syn_ack(0, 1));
    s.inject_burst([ack(1, 1), fin(1, 1)]).expect_within(DELAYED_ACK, ack(1, 2));
    s.expect_opened();
    s.expect_peer_closed();
    s.finish(1, 2);
}

#[test]
fn fin_that_acknowledges_data_frees_send_buffer() {
    // RFC 9293 §3.10.7.4, fifth: the peer may go on reading.
    let mut s = Script::accepted_with(peer(), |config| settings::send_buffer(config, 4096));
    s.write(1000).expect(data(1, 1000));
    s.command(Command::Oversend(4000));
    s.expect_no_event();
    s.inject(fin(1, 1001)).expect_within(DELAYED_ACK, ack(1001, 2));
    s.expect_writable();
    s.expect_peer_closed();
}

#[test]
fn pure_fin_carries_ack_and_timestamps() {
    // RFC 9293 §3.10.4; RFC 7323 §3.2.
    for peer in [peer(), peer().timestamps(), peer().ipv6(), peer().ipv6().timestamps()] {
        let mut s = Script::accepted(peer);
        s.inject(data(1, 100)).expect_within(DELAYED_ACK, ack(1, 101));
        s.close().expect(fin(1, 101));
        s.expect_nothing();
        s.close_by_peer(101, 2);
        s.expect_closed(CloseReason::Finished);
    }
}

#[test]
fn out_of_order_fin_waits_for_missing_data() {
    // RFC 9293 §3.10.7.4, first: held for later processing, with its FIN.
    for last in [fin(1001, 1), data(501, 500).with_fin()] {
        let mut s = Script::accepted(peer());
        s.inject(last).expect(ack(1, 1));
        s.expect_no_event();
        s.inject(data(1, 1000)).expect_within(DELAYED_ACK, ack(1, 1002));
        s.expect_delivered(1000);
        s.expect_peer_closed();
    }
}

#[test]
fn out_of_order_fin_closes_nothing_before_missing_data() {
    // RFC 9293 §3.10.7.4, first: held or retransmitted.
    let mut s = Script::accepted(peer());
    s.inject(data(501, 500).with_fin()).drain();
    s.expect_no_event();
    s.inject(data(1, 500)).drain();
    s.inject(data(501, 500).with_fin()).drain_for(DELAYED_ACK);
    s.expect_delivered(1000);
    s.expect_peer_closed();
}

#[test]
fn fin_beyond_window_is_ignored() {
    // RFC 9293 §3.10.7.4, first.
    let mut s = Script::accepted(peer());
    let edge = s.flow().right_edge;
    s.inject(fin(edge + 5, 1)).expect(ack(1, 1));
    s.expect_no_event();
    s.expect_alive(1, 1);
}

#[test]
fn repeated_fin_is_acknowledged() {
    // RFC 9293 §3.10.7.4, eighth: remain in CLOSE-WAIT.
    let mut s = Script::accepted(peer());
    s.close_by_peer(1, 1);
    s.inject(fin(1, 1)).expect(ack(1, 2));
    s.expect_no_event();
}

#[test]
fn data_after_fin_is_not_delivered() {
    // RFC 9293 §3.10.7.4, seventh: "should not occur"; ignored.
    let mut s = Script::accepted(peer());
    s.close_by_peer(1, 1);
    s.inject(data(2, 100).junk()).drain_for(DELAYED_ACK);
    s.expect_delivered(0);
    s.expect_no_event();
    s.write(10).expect(data(1, 10).ack(2));
}

#[test]
fn unacknowledged_fin_is_retransmitted() {
    // RFC 9293 §3.8.1 with RFC 6298 §5.4, §5.5: a FIN occupies a sequence number.
    let mut s = Script::accepted(peer().rtt(ms(100)));
    s.close().expect(fin(1, 1));
    for back_off in [1, 2, 4] {
        s.expect_after(back_off * rto_after(ms(100)), fin(1, 1));
    }
    s.inject(ack(1, 2)).expect_nothing_for(secs(60));
}

#[test]
fn unacknowledged_fin_is_retransmitted_with_its_data() {
    // RFC 9293 §3.8.1: everything that occupies sequence space.
    let mut s = Script::accepted(peer());
    s.write(100).expect(data(1, 100));
    s.close().expect(fin(101, 1));
    // In one segment or two.
    let again = s.drain_for(secs(2));
    assert!(again.iter().any(|got| got.seq == 1 && got.len == 100));
    s.inject(ack(1, 101));
    let again = s.drain_for(secs(4));
    assert!(again.iter().any(|got| got.end() == 102 && got.has(FIN)));
    s.inject(ack(1, 102));
    s.close_by_peer(1, 102);
    s.expect_closed(CloseReason::Finished);
}

#[test]
fn fin_follows_all_written_data() {
    // RFC 9293 §3.10.4: CLOSE queues until all preceding SENDs have been segmentized.
    let mut s = Script::accepted(peer().window(2000));
    s.write(5000);
    s.close().expect_flight(1, 2);
    s.inject(ack(1, 2001)).expect_flight(2001, 2);
    let mut sent = s.inject(ack(1, 4001)).drain();
    if sent.iter().all(|got| !got.has(FIN)) {
        s.inject(ack(1, 5001));
        sent.extend(s.drain());
    }
    assert_eq!(sent[0].seq, 4001);
    assert!(sent.last().is_some_and(|got| got.has(FIN) && got.end() == 5002));
}

#[test]
fn fin_is_carried_by_last_data_segment() {
    // RFC 9293 §3.10.4: a FIN may share a segment with data.
    let mut s = Script::accepted(peer().window(1000));
    s.write(1500).expect(data(1, 1000));
    s.close().expect_nothing();
    s.inject(ack(1, 1001)).expect(data(1001, 500).with_fin());
}

#[test]
fn ack_of_fin_in_last_ack_deletes_tcb() {
    // RFC 9293 §3.10.7.4, fifth, LAST-ACK; §3.10.7.1 afterwards.
    let mut s = Script::accepted(peer());
    s.close_by_peer(1, 1);
    s.close().expect(fin(1, 2));
    s.inject(ack(2, 1)).drain();
    s.expect_no_event();
    s.inject(ack(2, 2)).expect_closed(CloseReason::Finished);
    s.inject(ack(2, 2)).expect(rst(2));
}

#[test]
fn data_after_both_sides_closed_is_reset() {
    // RFC 9293 §3.10.7.1; §3.6.1: the service no longer reads.
    let mut s = Script::accepted(peer());
    s.close_by_peer(1, 1);
    s.finish(1, 2);
    s.inject(data(2, 100).ack(2).junk()).expect(rst(2));
}

#[test]
fn abort_sends_rst_and_flushes_queues() {
    // RFC 9293 §3.10.5: <SEQ=SND.NXT><CTL=RST>.
    let mut s = Script::accepted(peer().window(2000));
    s.write(5000).expect_flight(1, 2);
    s.abort();
    s.expect(rst(2001).maybe_ack());
    s.expect_closed(CloseReason::Aborted);
    s.expect_nothing_for(secs(60));
    s.inject(ack(1, 2001)).expect(rst(2001));
    s.expect_no_packets_held();
}

#[test]
fn abort_in_fin_wait_2_and_close_wait_sends_rst() {
    // RFC 9293 §3.10.5.
    let mut s = Script::accepted(peer());
    s.close().expect(fin(1, 1));
    s.inject(ack(1, 2));
    s.abort();
    s.expect(rst(2).maybe_ack());
    s.expect_closed(CloseReason::Aborted);
    let mut s = Script::accepted(peer());
    s.close_by_peer(1, 1);
    s.abort();
    s.expect(rst(1).maybe_ack());
    s.expect_closed(CloseReason::Aborted);
}

#[test]
fn unanswered_fin_times_out() {
    // RFC 9293 §3.8.3 (R2), §3.10.8: retransmissions of a FIN are bounded.
    let mut s = Script::accepted_with(peer(), |config| settings::user_timeout(config, secs(20)));
    s.close().expect(fin(1, 1));
    s.drain_for(secs(60));
    s.expect_closed(CloseReason::TimedOut);
    s.expect_nothing_for(secs(300));
}

#[test]
fn abort_after_both_sides_closed_discards_unread_data() {
    // RFC 9293 §3.10.5: the TCB is deleted.
    let mut s = Script::accepted(peer());
    s.stop_reading();
    s.inject(data(1, 100)).expect_within(DELAYED_ACK, ack(1, 101));
    s.close().expect(fin(1, 101));
    s.inject(fin(101, 2)).expect(ack(2, 102));
    s.abort();
    s.expect_closed(CloseReason::Aborted);
}
