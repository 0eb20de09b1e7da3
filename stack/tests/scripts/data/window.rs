//! Flow control: RFC 9293 §3.8.6, and window scaling, RFC 7323 §2.

use crate::harness::*;

/// Receive buffer of scripts that fill it.
const BUFFER: usize = 16 << 10;

/// Returns a connection whose service does not read and whose window the peer has filled, and the peer's next sequence
/// number.
fn filled() -> (Script, Rel) {
    let mut s = Script::accepted_with(peer(), |config| settings::receive_buffer(config, BUFFER));
    s.stop_reading();
    let next = s.fill_window(1, 0);
    assert_eq!(s.flow().window, 0);
    s.expect_delivered(next - 1);
    (s, next)
}

/// Returns a connection with an RTT of 100 ms to a peer with a zero window.
fn without_window(configure: impl FnOnce(&mut linerate_stack::Config)) -> Script {
    let mut s = Script::listen(peer(), configure);
    s.inject_syn(syn(0)).expect(syn_ack(0, 1));
    s.pass(ms(100));
    s.inject(ack(1, 1).window(0)).expect_opened();
    s
}

#[test]
fn unread_data_closes_window_and_reading_opens_it() {
    // RFC 9293 §3.8.6; §3.8.6.1 for the reply to the probe.
    let (mut s, next) = filled();
    s.inject(data(next, 1)).expect(ack(1, next).window(0));
    s.expect_delivered(next - 1);
    s.start_reading();
    let update = s.expect(ack(1, next));
    assert!(update.raw.window >= 1460);
    s.inject(data(next, 1000)).expect_within(DELAYED_ACK, ack(1, next + 1000));
}

#[test]
fn reading_little_opens_no_silly_window() {
    // RFC 9293 §3.8.6.2.2 MUST-39: only with space for a segment or half of the buffer.
    let (mut s, next) = filled();
    for _ in 0..10 {
        s.read(50);
        s.expect_nothing();
    }
    s.inject(data(next, 1)).expect(ack(1, next).window(0));
    s.read(BUFFER as Rel / 2);
    let update = s.expect(ack(1, next));
    assert!(update.raw.window >= 1460);
}

#[test]
fn window_below_segment_is_updated_when_segment_fits() {
    // RFC 9293 §3.8.6.2: a sender that avoids silly windows waits for the update.
    let mut s = Script::accepted_with(peer(), |config| settings::receive_buffer(config, BUFFER));
    s.stop_reading();
    let next = s.fill_window(1, 500);
    s.start_reading();
    let update = s.expect(ack(1, next));
    assert!(update.raw.window >= 1460);
}

#[test]
fn data_beyond_window_is_acknowledged_and_dropped() {
    // RFC 9293 §3.10.7.4, first.
    let mut s = Script::accepted(peer());
    let edge = s.flow().right_edge;
    s.inject(data(edge, 100)).expect(ack(1, 1));
    s.expect_delivered(0);
}

#[test]
fn ack_is_accepted_with_closed_window() {
    // RFC 9293 §3.10.7.4, first: special allowance for valid ACKs, also on segments with data beyond the window.
    let (mut s, next) = filled();
    s.write(1000).expect(data(1, 1000));
    s.inject(ack(next, 1001)).expect_nothing_for(secs(1));
    s.write(1000).expect(data(1001, 1000));
    s.inject(data(next, 1).ack(2001)).expect(ack(2001, next).window(0));
    s.expect_nothing_for(secs(1));
}

#[test]
fn rst_is_accepted_with_closed_window() {
    // RFC 9293 §3.10.7.4, first: special allowance for valid RSTs.
    let (mut s, next) = filled();
    s.inject(rst(next)).expect_closed(CloseReason::Reset);
}

#[test]
fn unread_small_segments_do_not_shrink_window() {
    // RFC 9293 §3.8.6: an offered window is not withdrawn, even if small segments take much memory per byte.
    let mut s = Script::accepted_with(peer(), |config| settings::receive_buffer(config, BUFFER));
    s.stop_reading();
    for n in 0..1000 {
        s.inject(data(1 + n, 1)).drain();
    }
    s.drain_for(DELAYED_ACK);
    s.expect_delivered(1000);
    let next = s.fill_window(1001, 0);
    s.expect_delivered(next - 1);
}

#[test]
fn scaled_window_is_exact_in_its_units() {
    // RFC 7323 §2.2, §2.3.
    let mut s = Script::accepted(peer().window_scale(7).window(100));
    s.write(60_000).expect_flight(1, INITIAL_WINDOW);
    s.ack_each(1, 10_001);
    // 12 800 bytes: twelve segments and a rest too small to be sent.
    s.expect_flight(10_001, 12);
    s.expect_nothing();
}

#[test]
fn offered_window_scale_suffices_for_receive_buffer() {
    // RFC 7323 §2.2, §2.3: up to 2^30 bytes.
    let offered = |buffer| {
        let mut s = Script::connecting(peer(), |config| settings::receive_buffer(config, buffer));
        s.expect(syn(0)).raw.options.window_scale.expect("a SYN offers window scaling")
    };
    assert!(65535 << offered(1 << 20) >= 1 << 20);
    assert_eq!(offered(1 << 30), 14);
}

#[test]
fn receive_window_grows_with_reads() {
    // Receive window auto-tuning.
    let mut s =
        Script::accepted_with(peer().window_scale(7).rtt(ms(10)), |config| settings::receive_buffer(config, 1 << 20));
    let first = s.flow().window;
    let mut next = 1;
    for _ in 0..20 {
        let edge = s.flow().right_edge;
        while next + SEG <= edge {
            let burst = ((edge - next) / SEG).min(16);
            s.inject_burst((0..burst).map(|n| data(next + n * SEG, SEG)));
            next += burst * SEG;
        }
        s.drain_for(ms(10));
    }
    let grown = s.flow().window;
    assert!(first >= 1 << 20 || grown >= 4 * first, "from {first} to {grown}");
}

#[test]
fn receive_window_grows_only_if_half_is_read_per_rtt() {
    // After Fisk and Feng, "Dynamic Right-Sizing in TCP", 2001.
    for (pause, grows) in [(ms(11), true), (ms(25), false)] {
        let mut s = Script::accepted(peer().window_scale(7).rtt(ms(10)));
        let first = s.flow().right_edge - 1;
        let burst = first * 3 / 4 / SEG;
        let mut next = 1;
        for _ in 0..4 {
            s.inject_burst((0..burst).map(|n| data(next + n * SEG, SEG)));
            next += burst * SEG;
            s.drain_for(pause);
        }
        let window = s.flow().right_edge - next;
        assert_eq!(window > first + SEG, grows, "from {first} to {window} in {pause:?}");
    }
}

#[test]
fn zero_window_is_probed_with_backoff() {
    // RFC 9293 §3.8.6.1 MUST-36, SHLD-29, SHLD-30.
    let mut s = without_window(|_| {});
    s.write(2000);
    for wait in [1, 2, 4, 8] {
        s.expect_probe_after(wait * rto_after(ms(100)), 1);
        s.inject(ack(1, 1).window(0)).expect_nothing();
    }
    s.inject(ack(1, 1).window(65535)).expect_flight(1, 2);
    s.inject(ack(1, 2001)).expect_nothing_for(secs(60));
}

#[test]
fn zero_window_probe_detects_open_window() {
    // RFC 9293 §3.8.6.1: recovers a lost window update.
    let mut s = without_window(|_| {});
    s.write(2000).expect_probe_after(rto_after(ms(100)), 1);
    s.inject(ack(1, 1)).expect_flight(1, 2);
}

#[test]
fn acknowledged_probe_byte_is_not_sent_again() {
    // RFC 9293 §3.8.6.1: a probe may carry new data, which the peer may accept.
    let mut s = without_window(|_| {});
    let probe = s.write(1000).expect_probe_after(rto_after(ms(100)), 1);
    if probe.end() == 2 {
        s.inject(ack(1, 2)).expect(data(2, 999));
    }
}

#[test]
fn answered_zero_window_probes_keep_connection() {
    // RFC 9293 §3.8.6.1 MUST-37.
    let mut s = without_window(|config| settings::user_timeout(config, secs(20)));
    s.write(1000);
    let until = s.now() + secs(300);
    while s.now() < until {
        s.expect_probe_between(Duration::ZERO, secs(121), 1);
        s.inject(ack(1, 1).window(0));
    }
    s.expect_no_event();
    s.inject(ack(1, 1)).expect_flight(1, 1);
}

#[test]
fn window_below_segment_is_used_after_override_timeout() {
    // RFC 9293 §3.8.6.2.1 MUST-38: the override timeout is 0.1 s to 1 s.
    let mut s = Script::accepted(peer().window(10_000));
    s.write(1000).expect(data(1, 1000));
    s.inject(ack(1, 1001).window(500));
    s.write(5000);
    // The timeout applies again while the window is unchanged.
    for n in 0..5 {
        s.expect_between(ms(100), secs(1), data(1001 + 500 * n, 500));
        s.inject(ack(1, 1501 + 500 * n).window(500));
    }
}

#[test]
fn window_that_grows_to_segment_is_used_immediately() {
    // RFC 9293 §3.8.6.2.1 (1).
    let mut s = Script::accepted(peer().window(10_000));
    s.write(1000).expect(data(1, 1000));
    s.inject(ack(1, 1001).window(0));
    s.write(5000).expect_nothing();
    s.inject(ack(1, 1001).window(2000)).expect_flight(1001, 2);
    s.expect_nothing();
}

#[test]
fn last_data_uses_small_window_immediately() {
    // RFC 9293 §3.8.6.2.1 (2): nothing else is queued.
    let mut s = Script::accepted(peer().window(10_000));
    s.write(1000).expect(data(1, 1000));
    s.inject(ack(1, 1001).window(500));
    s.write(300).expect(data(1001, 300));
}

#[test]
fn half_of_maximum_window_is_used_immediately() {
    // RFC 9293 §3.8.6.2.1 (3): the peer's whole buffer is smaller than a segment.
    let mut s = Script::accepted(peer().window(600));
    s.write(2000).expect(data(1, 600));
    s.inject(ack(1, 601).window(200)).expect_nothing();
    s.inject(ack(1, 601).window(300)).expect(data(601, 300));
}

#[test]
fn shrunk_window_stops_new_data_and_allows_retransmission() {
    // RFC 9293 §3.8.6 MUST-34, SHLD-15, SHLD-16.
    let mut s = Script::accepted(peer().window(5000).rtt(ms(100)));
    s.write(10_000).expect_flight(1, 5);
    s.inject(ack(1, 1).window(2000)).expect_nothing();
    s.pass(ms(100));
    s.inject(ack(1, 2001).window(1000)).expect_within(secs(1), data(2001, 1000));
    s.inject(ack(1, 5001).window(5000));
    let next = s.drain_for(ms(1)).iter().map(|got| got.seq).min();
    assert_eq!(next, Some(5001));
}

#[test]
fn old_ack_does_not_restore_old_window() {
    // RFC 9293 §3.10.7.4, fifth: SND.WL1 and SND.WL2.
    let mut s = Script::accepted(peer().window(2000));
    s.write(10_000).expect_flight(1, 2);
    s.inject(ack(1, 1001).window(1000)).expect_nothing();
    s.inject(ack(1, 1).window(60_000)).expect_nothing();
    s.inject(ack(1, 2001).window(1000)).expect_flight(2001, 1);
}

#[test]
fn pure_window_update_allows_more_data() {
    // RFC 9293 §3.10.7.4, fifth: an ACK of no new data may update the window.
    let mut s = Script::accepted(peer().window(1000));
    s.write(3000).expect_flight(1, 1);
    s.inject(ack(1, 1).window(2000)).expect_flight(1001, 1);
}

/// Returns a listener with connections from `ports` whose service does not read.
fn unread(ports: &[u16], configure: impl FnOnce(&mut linerate_stack::Config)) -> Script {
    let mut s = Script::listen(peer(), configure);
    for port in ports {
        s.on_port(*port).handshake();
        s.stop_reading();
    }
    s
}

#[test]
fn window_limited_by_packet_shortage_opens_unsolicited() {
    // RFC 9293 §3.8.6: otherwise only the peer's next probe would detect the open window, up to a minute later.
    let ports = [6000, 6001, 6002, 6003, 6004];
    let mut s = unread(&ports, |config| {
        settings::receive_buffer(config, BUFFER);
        // Four connections fill their windows with twelve packets each, too full to be packed: four sevenths of the
        // packets.
        config.max_packets = Some(84);
    });
    let next = 1 + BUFFER as Rel;
    for port in ports {
        s.on_port(port);
        for n in 0..12 {
            s.inject(data(1 + 1400 * n, (BUFFER as Rel - 1400 * n).min(1400)));
        }
        s.drain_for(DELAYED_ACK);
    }
    s.on_port(6001);
    // A service that reads is granted a segment.
    let edge = s.on_port(6001).flow().right_edge;
    s.start_reading();
    s.expect(ack(1, next));
    let opened = s.flow().right_edge;
    assert!(opened > edge && opened <= next + 1460, "{edge} {opened} {next}");
    s.on_port(6000).start_reading();
    s.expect(ack(1, next));
    assert!(s.flow().right_edge > next + 1460);
    s.on_port(6001);
    s.expect(ack(1, next));
    assert!(s.flow().right_edge > next + 1460);
    assert_eq!(s.drops("receive queue full"), 0);
}

#[test]
fn packet_shortage_grants_no_window_and_keeps_granted_window() {
    // RFC 9293 §3.8.6: the right edge does not move left.
    let mut s = unread(&[6000, 6001], |config| config.max_packets = Some(56));
    for n in 0..33 {
        s.on_port(6000).inject(data(1 + 1000 * n, 1000));
        s.drain_for(DELAYED_ACK);
    }
    // 32 of 56 packets cause pressure. This connection reads its data and is granted no further window for it.
    s.on_port(6001).start_reading();
    let edge = s.flow().right_edge;
    for n in 0..40 {
        s.inject(data(1 + 1000 * n, 1000)).drain_for(DELAYED_ACK);
        assert_eq!(s.flow().right_edge, edge);
    }
    s.expect_delivered(40_000);
    assert_eq!(s.drops("receive queue full"), 0);
}

#[test]
fn packets_held_by_worker_are_bounded() {
    // For any number of connections and any granted window.
    let mut s = unread(&[6000, 6001], |config| config.max_packets = Some(56));
    for port in [6000, 6001] {
        for n in 0..44 {
            s.on_port(port).inject(data(1 + 1460 * n, 1460));
        }
        s.drain_for(DELAYED_ACK);
    }
    // Five sevenths of the packets. The rest is for replies and for the minimum share of a connection.
    s.on_port(6000).expect_delivered(40 * 1460);
    s.on_port(6001).expect_delivered(4 * 1460);
    assert_eq!(s.drops("receive queue full"), 44);
}

#[test]
fn segment_in_gap_does_not_extend_full_queue() {
    // The data after the gap would be added to the queue.
    let mut s = unread(&[6000], |config| config.max_packets_per_connection = Some(64));
    s.on_port(6000);
    s.inject_run(0..64, 10);
    s.inject_run(65..85, 10);
    s.inject(data(641, 10)).drain_for(DELAYED_ACK);
    s.expect_delivered(640);
    assert_eq!(s.drops("receive queue full"), 1);
}

#[test]
fn payload_up_to_256_bytes_is_merged_in_crowded_queue() {
    // Each packet holds a buffer of the port.
    for (first, len, packets) in [(256, 256, 0), (256, 257, 1), (257, 256, 1)] {
        let mut s = unread(&[6000], |_| {});
        let mut next = 1;
        for len in std::iter::once(first).chain([256; 63]) {
            s.inject(data(next, len));
            next += len;
        }
        s.pass(DELAYED_ACK);
        let before = s.free_packets();
        s.inject(data(next, len)).drain_for(DELAYED_ACK);
        assert_eq!(before - s.free_packets(), packets, "{len} bytes after {first}");
        s.start_reading();
        s.expect_delivered(next - 1 + len);
    }
}

#[test]
fn chained_packet_at_right_edge_is_dropped() {
    // RFC 9293 §3.10.7.4: only data within the window is kept.
    let mut s = unread(&[6000], |config| settings::receive_buffer(config, BUFFER));
    let next = s.fill_window(1, 500);
    let before = s.free_packets();
    s.inject_chain(data(next, 600), 500);
    s.drain_for(DELAYED_ACK);
    s.expect_delivered(next - 1 + 500);
    assert_eq!(before - s.free_packets(), 1);
}

#[test]
fn scaled_window_that_opens_with_queued_data_is_used_completely() {
    // RFC 7323 §2.3.
    let mut s = Script::accepted_with(peer().window_scale(2), |config| settings::receive_buffer(config, 1 << 20));
    s.stop_reading();
    let next = s.fill_window(1, 0);
    s.read(next / 2);
    s.drain();
    let end = s.fill_window(next, 0);
    assert!(end > next + 10 * SEG, "{next} {end}");
    s.expect_delivered(end - 1);
}

#[test]
fn packets_held_by_connection_are_bounded() {
    let mut s = unread(&[6000], |config| config.max_packets_per_connection = Some(80));
    s.on_port(6000);
    // One packet is dropped. After the gap that it leaves, half as many packets are kept.
    s.inject_run(0..200, 300).drain_for(DELAYED_ACK);
    s.expect_delivered(80 * 300);
    assert_eq!(s.drops("receive queue full"), 1 + (119 - 40));
}

#[test]
fn window_update_is_sent_once_segment_fits() {
    // RFC 9293 §3.8.6.2.2: a segment, if less than half of the buffer.
    let mut s = Script::accepted_with(peer(), |config| settings::receive_buffer(config, 16 << 10));
    s.stop_reading();
    let next = s.fill_window(1, 0);
    s.read(SEG - 1);
    s.expect_nothing();
    s.read(1);
    s.expect(ack(1, next).window(SEG as u16));
}

#[test]
fn window_update_is_sent_for_half_of_buffer() {
    // RFC 9293 §3.8.6.2.2, although a segment fits already.
    let mut s = Script::accepted_with(peer(), |config| settings::receive_buffer(config, 16 << 10));
    s.stop_reading();
    let next = s.fill_window(1, 4000);
    s.read((8 << 10) - 1);
    s.expect_nothing();
    s.read(1);
    let got = s.expect(ack(1, next));
    assert!(Rel::from(got.raw.window) >= 4000 + (8 << 10), "{}", got.raw.window);
}

#[test]
fn right_edge_of_unread_scaled_window_is_constant() {
    // RFC 7323 §2.4: the field is rounded up only to avoid a left shift of the right edge. The unit is 32 bytes.
    let mut s = Script::accepted_with(peer().window_scale(2), |config| settings::receive_buffer(config, 1 << 20));
    s.stop_reading();
    s.inject(data(1, 96));
    s.pass(DELAYED_ACK + ms(5));
    let edge = s.flow().right_edge;
    for n in 1..40 {
        s.inject(data(1 + 96 * n, 96));
        s.pass(DELAYED_ACK + ms(5));
    }
    s.drain();
    assert_eq!(s.flow().right_edge, edge);
}

#[test]
fn unread_segments_of_odd_length_do_not_move_right_edge() {
    // RFC 7323 §2.4. Each segment moves the left edge by less than the unit of the window field, which is 32 bytes.
    for (len, segments) in [(1, 400), (100, 39), (33, 200)] {
        let mut s = Script::accepted_with(peer().window_scale(2), |config| settings::receive_buffer(config, 1 << 20));
        s.stop_reading();
        s.inject(data(1, 96));
        s.pass(DELAYED_ACK + ms(5));
        let edge = s.flow().right_edge;
        for n in 0..segments {
            s.inject(data(97 + len * n, len));
            s.pass(DELAYED_ACK + ms(5));
        }
        s.drain();
        let moved = s.flow().right_edge - edge;
        assert!(moved < 32, "segments of {len} bytes moved the right edge by {moved}");
        // The whole window that was announced stays acceptable.
        let next = s.fill_window(97 + len * segments, 0);
        assert!(next >= edge);
        s.expect_delivered(next - 1);
    }
}
