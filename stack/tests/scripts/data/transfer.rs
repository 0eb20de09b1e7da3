//! Data in both directions, in order and out of order: RFC 9293 §3.10.7.4, seventh, and §3.7.

use crate::harness::*;

#[test]
fn in_order_data_with_old_ack_is_accepted() {
    // RFC 9293 §3.10.7.4, fifth: a duplicate ACK can be ignored; the data is processed.
    let mut s = Script::accepted(peer());
    s.write(1000).expect(data(1, 1000));
    s.inject(ack(1, 1001));
    s.inject(data(1, 100).ack(1)).expect_within(DELAYED_ACK, ack(1001, 101));
    s.expect_delivered(100);
}

#[test]
fn segment_overlapping_rcv_nxt_is_trimmed_to_new_data() {
    // RFC 9293 §3.10.7.4, first.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 100)).expect_within(DELAYED_ACK, ack(1, 101));
    s.inject(data(51, 100)).expect_within(DELAYED_ACK, ack(1, 151));
    s.expect_delivered(150);
}

#[test]
fn segment_beyond_window_is_trimmed_to_window() {
    // RFC 9293 §3.10.7.4, first.
    let mut s = Script::accepted_with(peer(), |config| settings::receive_buffer(config, 16 << 10));
    s.stop_reading();
    let next = s.fill_window(1, 500);
    s.inject(data(next, 1000)).expect_within(DELAYED_ACK, ack(1, next + 500).window(0));
    s.expect_delivered(next - 1 + 500);
}

#[test]
fn out_of_order_segments_are_delivered_in_order() {
    // RFC 9293 §3.10.7.4, first, SHLD-31.
    let mut s = Script::accepted(peer());
    for seq in [1001, 3001, 2001] {
        s.inject(data(seq, 1000)).expect(ack(1, 1));
    }
    s.expect_delivered(0);
    s.inject(data(1, 1000)).expect(ack(1, 4001));
    s.expect_delivered(4000);
}

#[test]
fn overlapping_out_of_order_segments_are_delivered_once() {
    // RFC 9293 §3.4, §3.10.7.4, first.
    let mut s = Script::accepted(peer());
    for (seq, len) in [(501, 1000), (1001, 1000), (701, 200), (301, 900), (1901, 300)] {
        s.inject(data(seq, len)).expect(ack(1, 1));
    }
    s.inject(data(1, 400)).expect(ack(1, 2201));
    s.expect_delivered(2200);
}

#[test]
fn segment_enclosing_held_data_fills_both_gaps() {
    // RFC 9293 §3.10.7.4, first.
    let mut s = Script::accepted(peer());
    s.inject(data(401, 100)).expect(ack(1, 1));
    s.inject(data(1, 1000)).expect(ack(1, 1001));
    s.expect_delivered(1000);
}

#[test]
fn duplicate_is_acknowledged_and_not_delivered_again() {
    // RFC 9293 §3.10.7.4, first: an unacceptable segment is answered with an ACK.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 100)).expect_within(DELAYED_ACK, ack(1, 101));
    s.inject(data(1, 100)).expect(ack(1, 101));
    s.expect_delivered(100);
}

#[test]
fn segment_without_ack_is_dropped() {
    // RFC 9293 §3.10.7.4, fifth: if the ACK bit is off, drop the segment.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 100).no_ack()).expect_nothing_for(secs(1));
    s.expect_delivered(0);
    s.expect_alive(1, 1);
}

#[test]
fn segment_with_wrong_checksum_is_dropped() {
    // RFC 9293 §3.1 MUST-3.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 100).bad_checksum());
    s.inject(rst(1).bad_checksum()).expect_nothing_for(secs(1));
    s.expect_delivered(0);
    s.expect_alive(1, 1);
}

#[test]
fn urgent_data_is_delivered_in_line() {
    // RFC 9293 §3.8.5 MUST-30, MUST-31; RFC 6093 §3.1: in practice the urgent pointer is unreliable.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 100).urgent(10)).expect_within(DELAYED_ACK, ack(1, 101));
    s.inject(data(101, 100).urgent(0)).expect_within(DELAYED_ACK, ack(1, 201));
    s.inject(data(201, 100).urgent(65535)).expect_within(DELAYED_ACK, ack(1, 301));
    s.inject(ack(301, 1).urgent(5)).expect_nothing_for(ms(500));
    s.expect_delivered(300);
    s.expect_alive(301, 1);
}

#[test]
fn data_is_delivered_with_and_without_psh() {
    // RFC 9293 §3.9.1: passing PSH to the service is optional; delivery does not wait for it.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 100)).expect_delivered(100);
    s.inject(data(101, 100).push()).expect_delivered(200);
}

#[test]
fn sequence_numbers_of_peer_wrap() {
    // RFC 9293 §3.4: arithmetic modulo 2^32. The peer's numbers wrap after byte 1024.
    let mut s = Script::accepted(peer());
    s.inject(data(1001, 100)).expect(ack(1, 1));
    s.inject(data(1, 1000)).expect(ack(1, 1101));
    s.inject(data(1101, 1000)).expect_within(DELAYED_ACK, ack(1, 2101));
    s.expect_delivered(2100);
    s.inject(rst(2101)).expect_closed(CloseReason::Reset);
}

#[test]
fn large_write_is_sent_in_full_segments_with_final_psh() {
    // RFC 9293 §3.8.6.2.1; §3.9.1 MUST-61: the last buffered segment has PSH.
    let mut s = Script::accepted(peer());
    s.write(4500).expect_flight(1, 4);
    s.expect(data(4001, 500).push());
    s.expect_nothing();
}

#[test]
fn owned_slice_is_sent_in_full_segments() {
    // RFC 9293 §3.8.6.2.1.
    let mut s = Script::accepted(peer());
    s.send(3500);
    s.expect_flight(1, 3);
    s.expect(data(3001, 500).push());
    s.send(10);
    s.expect(data(3501, 10).push());
}

#[test]
fn write_beyond_send_buffer_continues_with_acks() {
    // RFC 9293 §3.9.1: SEND. The stream is complete for every buffer size.
    let mut s = Script::accepted_with(peer(), |config| settings::send_buffer(config, 8000));
    s.write(50_000);
    let mut next = 1;
    for _ in 0..1000 {
        let sent: Rel = s.drain().iter().map(|got| got.len).sum();
        assert!(sent <= 8000, "{sent} bytes at once with a buffer of 8000");
        next += sent;
        if next > 50_000 {
            break;
        }
        s.inject(ack(1, next));
        if sent == 0 {
            s.pass(ms(500));
        }
    }
    assert_eq!(next, 50_001);
}

#[test]
fn small_writes_are_sent_immediately() {
    // RFC 9293 §3.7.4 MUST-17: Nagle's algorithm is off by default here.
    let mut s = Script::accepted(peer());
    s.write(10).expect(data(1, 10).push());
    s.write(20).expect(data(11, 20).push());
    s.write(30).expect(data(31, 30).push());
}

#[test]
fn nagle_delays_small_segment() {
    // RFC 9293 §3.7.4 SHLD-7.
    let mut s = Script::accepted_with(peer(), settings::nagle);
    s.write(10).expect(data(1, 10));
    s.write(20).expect_nothing_for(ms(50));
    s.inject(ack(1, 11)).expect(data(11, 20));
}

#[test]
fn nagle_does_not_delay_full_segment() {
    // RFC 9293 §3.7.4 SHLD-7.
    let mut s = Script::accepted_with(peer(), settings::nagle);
    s.write(10).expect(data(1, 10));
    s.write(20).expect_nothing();
    s.write(1000).expect(data(11, 1000));
    s.expect_nothing_for(ms(50));
    s.inject(ack(1, 1011)).expect(data(1011, 20));
}

#[test]
fn nagle_does_not_delay_fin() {
    // RFC 9293 §3.7.4: Nagle's algorithm combines small writes, and no further write follows.
    let mut s = Script::accepted_with(peer(), settings::nagle);
    s.write(10).expect(data(1, 10));
    s.write(20).expect_nothing();
    s.close().expect(data(11, 20).with_fin());
}

#[test]
fn chained_packet_is_delivered_whole_after_crowded_queue() {
    for queued in 60..66 {
        let mut s = Script::accepted(peer());
        s.stop_reading();
        s.inject_run(0..queued, 10);
        let next = 1 + 10 * queued;
        s.inject_chunks(data(next, 40), &[10, 20, 30]);
        s.pass(DELAYED_ACK + ms(5));
        assert_eq!(s.drain().last().map(|got| got.ack), Some(next + 40), "{queued}");
        s.start_reading();
        s.expect_delivered(next + 39);
        s.expect_no_packets_held();
    }
}

#[test]
fn echo_beyond_send_buffer_continues_with_acks() {
    let end = 1 + 6 * SEG;
    for in_one_burst in [false, true] {
        let mut s = Script::accepted_with(peer(), |config| settings::send_buffer(config, 4096));
        s.echo();
        s.inject(ack(1, 1).window(0));
        let segs = (0..6).map(|n| data(1 + n * SEG, SEG).window(0));
        if in_one_burst {
            s.inject_burst(segs);
        } else {
            segs.for_each(|seg| _ = s.inject(seg));
        }
        let mut next = 1;
        while next < end {
            s.inject(ack(end, next).window(2 * SEG as u16));
            let before = next;
            next = s.drain().iter().map(|got| got.end()).fold(next, Rel::max);
            assert!(next > before, "no data after {next}");
        }
        s.inject(ack(end, end)).expect_delivered(6 * SEG);
        s.expect_no_packets_held();
    }
}
