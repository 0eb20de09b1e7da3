//! How connections end: RFC 9293 §3.6, §3.10.4, §3.10.5.

use super::harness::*;

#[test]
fn when_the_peer_has_finished_the_worker_may_go_on() {
    // RFC 9293 §3.6, case 2: half-closed by the peer.
    let mut s = Script::accepted(peer());
    s.inject(fin(1, 1));
    s.expect_within(DELAYED_ACK, ack(1, 2));
    s.expect_peer_closed();
    for n in 0..3 {
        s.write(1000);
        s.expect(data(1 + n * SEG, 1000).ack(2));
        s.inject(ack(2, 1001 + n * SEG));
    }
    s.expect_nothing_for(secs(60));
    s.close();
    s.expect(fin(3001, 2));
    s.inject(ack(2, 3002));
    s.expect_closed(CloseReason::Finished);
}

#[test]
fn when_the_worker_has_finished_the_peer_may_go_on() {
    // RFC 9293 §3.6, case 1: half-closed by us.
    let mut s = Script::accepted(peer());
    s.close();
    s.expect(fin(1, 1));
    s.inject(ack(1, 2));
    for n in 0..3 {
        s.inject(data(1 + n * SEG, 1000).ack(2));
        s.expect_within(DELAYED_ACK, ack(2, 1001 + n * SEG));
        s.pass(secs(10));
    }
    s.expect_delivered(3000);
    s.expect_no_event();
    s.inject(fin(3001, 2));
    s.expect_within(DELAYED_ACK, ack(2, 3002));
    s.expect_peer_closed();
    s.expect_closed(CloseReason::Finished);
}

#[test]
fn both_sides_finish_at_the_same_time() {
    // RFC 9293 §3.6, case 3, figure 13.
    let mut s = Script::accepted(peer());
    s.close();
    s.expect(fin(1, 1));
    s.inject(fin(1, 1));
    s.expect_within(DELAYED_ACK, ack(2, 2));
    s.expect_peer_closed();
    s.inject(ack(2, 2));
    s.expect_closed(CloseReason::Finished);
    // It is in TIME-WAIT now.
    s.inject(fin(1, 2));
    s.expect(ack(2, 2));
}

#[test]
fn a_fin_that_acknowledges_ours_ends_the_connection_at_once() {
    // RFC 9293 §3.10.7.4, eighth, FIN-WAIT-1: if our FIN has been acknowledged by it, TIME-WAIT.
    let mut s = Script::accepted(peer());
    s.close();
    s.expect(fin(1, 1));
    s.inject(fin(1, 2));
    s.expect_within(DELAYED_ACK, ack(2, 2));
    s.expect_peer_closed();
    s.expect_closed(CloseReason::Finished);
}

#[test]
fn a_fin_with_data_delivers_the_data_first() {
    // RFC 9293 §3.10.7.4, seventh and eighth.
    let mut s = Script::accepted(peer());
    s.stop_reading();
    s.inject(data(1, 100).with_fin());
    s.expect_within(DELAYED_ACK, ack(1, 102));
    s.expect_delivered(100);
    // The end comes when all before it has been consumed.
    s.expect_no_event();
    s.start_reading();
    s.expect_peer_closed();
}

#[test]
fn a_fin_behind_data_is_told_when_they_have_been_read() {
    // RFC 9293 §3.10.7.4, eighth: the end comes when all before it has been consumed, whenever it arrived.
    let mut s = Script::accepted(peer());
    s.stop_reading();
    s.inject(data(1, 100));
    s.expect_within(DELAYED_ACK, ack(1, 101));
    s.inject(fin(101, 1));
    s.expect_within(DELAYED_ACK, ack(1, 102));
    s.expect_no_event();
    s.start_reading();
    s.expect_delivered(100);
    s.expect_peer_closed();
}

#[test]
fn a_fin_that_comes_with_the_handshakes_end_is_told_behind_it() {
    // RFC 9293 §3.10.7.4, eighth.
    let mut s = Script::listen(peer(), |_| {});
    s.inject_hello(syn(0));
    s.expect(syn_ack(0, 1));
    s.inject_burst([ack(1, 1), fin(1, 1)]);
    s.expect_within(DELAYED_ACK, ack(1, 2));
    s.expect_opened();
    s.expect_peer_closed();
    s.close();
    s.expect(fin(1, 2));
    s.inject(ack(2, 2));
    s.expect_closed(CloseReason::Finished);
}

#[test]
fn a_fin_that_acknowledges_data_makes_room() {
    // RFC 9293 §3.10.7.4, fifth: buffers are given back; the peer may go on reading.
    native_only!();
    let mut s = Script::accepted_with(peer(), |config| settings::send_buffer(config, 4096));
    s.write(1000);
    s.expect(data(1, 1000));
    s.order(Command::Offer(4000));
    s.expect_no_event();
    s.inject(fin(1, 1001));
    s.expect_within(DELAYED_ACK, ack(1001, 2));
    s.expect_writable();
    s.expect_peer_closed();
}

#[test]
fn a_fin_by_itself_says_what_any_segment_does() {
    // RFC 9293 §3.10.4; RFC 7323 §3.2: with the timestamp, if they are in use.
    for peer in [peer(), peer().timestamps(), peer().ipv6(), peer().ipv6().timestamps()] {
        let mut s = Script::accepted(peer);
        s.inject(data(1, 100));
        s.expect_within(DELAYED_ACK, ack(1, 101));
        s.close();
        s.expect(fin(1, 101));
        s.expect_nothing();
        s.inject(fin(101, 2));
        s.expect_within(DELAYED_ACK, ack(2, 102));
        s.expect_peer_closed();
        s.expect_closed(CloseReason::Finished);
    }
}

#[test]
fn a_fin_out_of_order_waits_for_what_is_missing() {
    // RFC 9293 §3.10.7.4, first: held for later processing, with its FIN.
    native_only!();
    for last in [fin(1001, 1), data(501, 500).with_fin()] {
        let mut s = Script::accepted(peer());
        s.inject(last);
        s.expect(ack(1, 1));
        s.expect_no_event();
        s.inject(data(1, 1000));
        s.expect_within(DELAYED_ACK, ack(1, 1002));
        s.expect_delivered(1000);
        s.expect_peer_closed();
    }
}

#[test]
fn a_fin_out_of_order_ends_nothing_before_what_is_missing() {
    // RFC 9293 §3.10.7.4, first: whether it is held or comes again.
    native_only!();
    let mut s = Script::accepted(peer());
    s.inject(data(501, 500).with_fin());
    s.drain();
    s.expect_no_event();
    s.inject(data(1, 500));
    s.drain();
    s.inject(data(501, 500).with_fin());
    s.drain_for(DELAYED_ACK);
    s.expect_delivered(1000);
    s.expect_peer_closed();
}

#[test]
fn a_fin_beyond_the_window_ends_nothing() {
    // RFC 9293 §3.10.7.4, first.
    let mut s = Script::accepted(peer());
    let edge = s.flow().right_edge;
    s.inject(fin(edge + 5, 1));
    s.expect(ack(1, 1));
    s.expect_no_event();
    s.expect_alive(1, 1);
}

#[test]
fn a_repeated_fin_is_acknowledged_again() {
    // RFC 9293 §3.10.7.4, eighth: remain in CLOSE-WAIT.
    let mut s = Script::accepted(peer());
    s.inject(fin(1, 1));
    s.expect_within(DELAYED_ACK, ack(1, 2));
    s.expect_peer_closed();
    s.inject(fin(1, 1));
    s.expect(ack(1, 2));
    s.expect_no_event();
}

#[test]
fn data_behind_the_end_of_the_stream_is_not_delivered() {
    // RFC 9293 §3.10.7.4, seventh: this should not occur; it is ignored.
    native_only!();
    let mut s = Script::accepted(peer());
    s.inject(fin(1, 1));
    s.expect_within(DELAYED_ACK, ack(1, 2));
    s.expect_peer_closed();
    s.inject(data(2, 100).junk());
    s.drain_for(DELAYED_ACK);
    s.expect_delivered(0);
    s.expect_no_event();
    s.write(10);
    s.expect(data(1, 10).ack(2));
}

#[test]
fn an_unacknowledged_fin_is_sent_again() {
    // RFC 9293 §3.8.1 with RFC 6298 §5.4, §5.5: a FIN takes up a sequence number.
    native_only!();
    let mut s = Script::accepted(peer().rtt(ms(100)));
    s.close();
    s.expect(fin(1, 1));
    for back_off in [1, 2, 4] {
        s.expect_after(back_off * rto_after(ms(100)), fin(1, 1));
    }
    s.inject(ack(1, 2));
    s.expect_nothing_for(secs(60));
}

#[test]
fn a_fin_that_ends_unacknowledged_data_is_sent_again_with_it() {
    // RFC 9293 §3.8.1: everything that takes up sequence numbers.
    let mut s = Script::accepted(peer());
    s.write(100);
    s.expect(data(1, 100));
    s.close();
    s.expect(fin(101, 1));
    // As one segment or as two.
    s.pass(secs(2));
    let again = s.drain();
    assert!(again.iter().any(|got| got.seq == 1 && got.len == 100));
    s.inject(ack(1, 101));
    s.pass(secs(4));
    let again = s.drain();
    assert!(again.iter().any(|got| got.end() == 102 && got.has(FIN)));
    s.inject(ack(1, 102));
    s.inject(fin(1, 102));
    s.expect_within(DELAYED_ACK, ack(102, 2));
    s.expect_peer_closed();
    s.expect_closed(CloseReason::Finished);
}

#[test]
fn the_end_comes_behind_everything_that_was_written() {
    // RFC 9293 §3.10.4: CLOSE queues until all preceding SENDs have been segmentized.
    let mut s = Script::accepted(peer().window(2000));
    s.write(5000);
    s.close();
    s.expect_flight(1, 2);
    s.inject(ack(1, 2001));
    s.expect_flight(2001, 2);
    s.inject(ack(1, 4001));
    let mut sent = s.drain();
    if sent.iter().all(|got| !got.has(FIN)) {
        s.inject(ack(1, 5001));
        sent.extend(s.drain());
    }
    assert_eq!(sent[0].seq, 4001);
    assert!(sent.last().is_some_and(|got| got.has(FIN) && got.end() == 5002));
}

#[test]
fn the_last_segment_carries_the_end_when_it_is_known_in_time() {
    // RFC 9293 §3.10.4: a FIN need not be a segment of its own.
    let mut s = Script::accepted(peer().window(1000));
    s.write(1500);
    s.expect(data(1, 1000));
    s.close();
    s.expect_nothing();
    s.inject(ack(1, 1001));
    s.expect(data(1001, 500).with_fin());
}

#[test]
fn the_acknowledgement_of_our_fin_ends_a_connection_that_the_peer_had_finished() {
    // RFC 9293 §3.10.7.4, fifth, LAST-ACK; nothing is left (§3.10.7.1).
    let mut s = Script::accepted(peer());
    s.inject(fin(1, 1));
    s.expect_within(DELAYED_ACK, ack(1, 2));
    s.expect_peer_closed();
    s.close();
    s.expect(fin(1, 2));
    s.inject(ack(2, 1));
    s.drain();
    s.expect_no_event();
    s.inject(ack(2, 2));
    s.expect_closed(CloseReason::Finished);
    s.inject(ack(2, 2));
    s.expect(rst(2));
}

#[test]
fn data_for_a_connection_that_is_over_is_reset() {
    // RFC 9293 §3.10.7.1; §3.6.1: nobody is left to take it.
    let mut s = Script::accepted(peer());
    s.inject(fin(1, 1));
    s.expect_within(DELAYED_ACK, ack(1, 2));
    s.expect_peer_closed();
    s.close();
    s.expect(fin(1, 2));
    s.inject(ack(2, 2));
    s.expect_closed(CloseReason::Finished);
    s.inject(data(2, 100).ack(2).junk());
    s.expect(rst(2));
}

#[test]
fn an_abort_sends_a_reset_and_forgets_everything() {
    // RFC 9293 §3.10.5: <SEQ=SND.NXT><CTL=RST>; all queues are flushed.
    let mut s = Script::accepted(peer().window(2000));
    s.write(5000);
    s.expect_flight(1, 2);
    s.abort();
    s.expect(rst(2001).maybe_ack());
    s.expect_closed(CloseReason::Aborted);
    s.expect_nothing_for(secs(60));
    s.inject(ack(1, 2001));
    s.expect(rst(2001));
    s.expect_all_packets_back();
}

#[test]
fn an_abort_works_whoever_has_finished() {
    // RFC 9293 §3.10.5: FIN-WAIT-2 and CLOSE-WAIT.
    let mut s = Script::accepted(peer());
    s.close();
    s.expect(fin(1, 1));
    s.inject(ack(1, 2));
    s.abort();
    s.expect(rst(2).maybe_ack());
    s.expect_closed(CloseReason::Aborted);
    let mut s = Script::accepted(peer());
    s.inject(fin(1, 1));
    s.expect_within(DELAYED_ACK, ack(1, 2));
    s.expect_peer_closed();
    s.abort();
    s.expect(rst(1).maybe_ack());
    s.expect_closed(CloseReason::Aborted);
}

#[test]
fn a_peer_that_vanishes_while_we_finish_is_given_up() {
    // RFC 9293 §3.8.3 (R2), §3.10.8: a FIN is not sent for ever.
    let mut s = Script::accepted_with(peer(), |config| settings::user_timeout(config, secs(20)));
    s.close();
    s.expect(fin(1, 1));
    s.pass(secs(60));
    s.drain();
    s.expect_closed(CloseReason::TimedOut);
    s.expect_nothing_for(secs(300));
}

#[test]
fn an_abort_when_both_have_finished_ends_it_though_not_all_was_read() {
    // RFC 9293 §3.10.5: the TCB is deleted, whatever is left in it.
    let mut s = Script::accepted(peer());
    s.stop_reading();
    s.inject(data(1, 100));
    s.expect_within(DELAYED_ACK, ack(1, 101));
    s.close();
    s.expect(fin(1, 101));
    s.inject(fin(101, 2));
    s.expect(ack(2, 102));
    s.abort();
    s.expect_closed(CloseReason::Aborted);
}
