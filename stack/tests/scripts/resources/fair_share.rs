//! Fair shares of the port's packets: peers that do not read or that leave gaps do not starve other connections.

use crate::harness::*;
use linerate_bypass::memory_nic::LinkConfig;
use linerate_service::CloseReason;

/// Packets of the port.
const POOL: usize = 1024;
/// Length of the reply to a peer that reads.
const REPLY: Rel = 20_000;

/// Asserts that at most `most` of the `free` packets are held.
#[track_caller]
fn assert_held(s: &mut Script, free: usize, most: usize) {
    let held = free - s.free_packets();
    assert!(held <= most + CONTROL_RESERVE, "{held} packets held");
}

fn link() -> LinkConfig {
    LinkConfig { pool: POOL, ..LinkConfig::default() }
}

/// Returns a worker with connections to `n` peers of MSS 88 with closed windows, and with much data to send to each.
fn peers_that_do_not_read(n: u16) -> Script {
    let mut s = Script::listen_over_with(peer().mss(88).window(0), link(), |_| {});
    for port in 6000..6000 + n {
        s.on_port(port).handshake();
        s.write(1 << 20);
    }
    s.drain_for(ms(100));
    s
}

/// Sends a reply to a peer that reads and checks that no timer is involved.
fn expect_served(s: &mut Script, port: u16) {
    s.on_port(port).handshake();
    let start = s.now();
    s.write(REPLY);
    let mut next = 1;
    while next < 1 + REPLY {
        let before = next;
        for got in s.drain() {
            next = next.max(got.end());
        }
        assert!(next > before, "no data after {next}");
        s.inject(ack(1, next));
    }
    assert!(s.now().since(start) < ms(1), "the reply waited for a timer");
    s.expect_delivered(0);
}

#[test]
fn reading_peer_is_served_despite_peers_that_do_not_read() {
    for n in [2, 12, 50] {
        let mut s = peers_that_do_not_read(n);
        for port in [5000, 5001] {
            s.set_peer(peer());
            expect_served(&mut s, port);
        }
    }
}

#[test]
fn small_mss_fills_packets_completely() {
    let mut s = Script::listen_over_with(peer().mss(88).window(0), link(), |_| {});
    let free = s.free_packets();
    s.on_port(6000).handshake();
    s.write(40_000).drain();
    // 2048 bytes hold 23 segments.
    assert_held(&mut s, free, 40_000 / (23 * 88) + 2);
}

#[test]
fn data_of_stalled_peer_moves_out_of_packets() {
    let mut s = Script::listen_over_with(peer().window(50_000), link(), |_| {});
    let free = s.free_packets();
    s.on_port(6000).handshake();
    s.write(100_000).drain_for(secs(30));
    assert_held(&mut s, free, 2);
    // The data is sent from the heap.
    let mut next = 1;
    for _ in 0..200 {
        s.inject(ack(1, next));
        for got in s.drain_for(secs(1)) {
            next = next.max(got.end());
        }
        if next == 100_001 {
            return;
        }
    }
    panic!("the peer received {next} of 100001");
}

#[test]
fn queued_heap_data_is_not_copied_again() {
    // Copying everything for each further packet would take quadratic time.
    let mut s = Script::listen_over_with(peer().window(0), link(), |_| {});
    s.on_port(6000).handshake();
    s.write(1000).drain_for(secs(20));
    let before = s.copied();
    for _ in 0..60 {
        s.write(1000).drain_for(secs(2));
    }
    let copied = s.copied() - before;
    // Each byte is copied when written and when moved, and some when chunks are merged.
    assert!(copied <= 6 * 60_000, "{copied} bytes copied for 60000");
}

/// Returns a worker whose peer does not read and has sent 10000 bytes that the service does not read, on the heap.
fn unread_data_on_heap() -> Script {
    // A service that waits for send buffer space does not read.
    let mut s = Script::listen_over_with(peer().window(0), link(), |_| {});
    let free = s.free_packets();
    s.on_port(6000).handshake();
    s.stop_reading();
    s.write(10_000);
    s.inject_run(0..200, 50).drain_for(secs(30));
    assert_held(&mut s, free, 0);
    s
}

#[test]
fn unread_data_of_stalled_peer_moves_out_of_packets() {
    let mut s = unread_data_on_heap();
    s.start_reading();
    s.pass(ms(20));
    s.expect_delivered(10_000);
}

#[test]
fn data_after_unread_data_on_heap_is_read_in_order() {
    let mut s = unread_data_on_heap();
    s.inject_run(200..300, 50);
    s.inject(fin(15_001, 1)).drain_for(ms(50));
    s.start_reading();
    s.pass(ms(20));
    s.expect_delivered(15_000);
    s.expect_peer_closed();
    s.drain();
}

#[test]
fn data_beyond_gap_after_unread_data_on_heap_is_retransmitted() {
    let mut s = unread_data_on_heap();
    s.inject(data(10_101, 50));
    s.inject(data(10_001, 100));
    s.start_reading();
    s.pass(ms(20));
    s.expect_delivered(10_100);
    s.inject(data(10_101, 50)).expect_delivered(10_150);
    s.drain();
}

#[test]
fn unread_data_on_heap_does_not_open_the_window() {
    let mut s = unread_data_on_heap();
    let edge = s.flow().right_edge;
    s.inject_run(200..300, 50).drain_for(secs(1));
    assert_eq!(s.flow().right_edge, edge);
    s.start_reading();
    s.pass(ms(20));
    s.inject(data(15_001, 50)).drain_for(DELAYED_ACK + ms(5));
    assert!(s.flow().right_edge > edge, "the window is still at {edge}");
}

#[test]
fn unread_data_returns_from_heap_when_peer_reads() {
    let mut s = unread_data_on_heap();
    let free = s.free_packets();
    s.inject(ack(10_001, 1).window(50_000));
    let mut next = 1;
    while next < 10_001 {
        for got in s.drain_for(secs(1)) {
            next = next.max(got.end());
        }
        s.inject(ack(10_001, next).window(50_000));
    }
    s.drain_for(secs(3));
    let held = free - s.free_packets();
    assert!((5..8).contains(&held), "{held} packets for 10000 bytes");
}

#[test]
fn unread_data_that_returned_in_part_keeps_its_order_on_heap() {
    let mut s = Script::listen_over_with(peer().window(0), link(), |_| {});
    s.on_port(6000).handshake();
    s.stop_reading();
    s.write(10_000);
    let sent = 43 * SEG;
    s.inject_run(0..43, SEG).drain_for(secs(20));
    // Packets run low, so that less than the unread data may return at once.
    s.set_peer(peer());
    for port in 5000..5014 {
        s.on_port(port).handshake();
        s.stop_reading();
        s.inject_run(0..43, SEG).drain_for(ms(1));
    }
    // The service calls `received`, which moves unread data back into packets, but does not read.
    s.on_port(6000).stop_reading();
    s.drain_for(secs(20));
    s.start_reading();
    s.drain_for(secs(1));
    s.expect_delivered(sent);
}

#[test]
fn read_attempts_do_not_delay_stall_timeout() {
    let mut s = Script::listen_over_with(peer().window(0), link(), |config| config.stall_timeout = Some(secs(60)));
    s.on_port(6000).handshake();
    s.stop_reading();
    s.write(10_000);
    s.inject(data(1, SEG));
    for _ in 0..13 {
        s.drain_for(secs(5));
        if s.drops("peer acknowledged nothing for too long") == 1 {
            return;
        }
        // The service calls `received`, which counts as a read attempt.
        s.stop_reading();
    }
    panic!("the connection was not reset");
}

#[test]
fn long_slice_is_sent_while_the_heap_is_in_use() {
    let mut s = peers_that_do_not_read(50);
    s.drain_for(secs(2));
    s.set_peer(peer());
    s.on_port(5000).handshake();
    // Longer than the reduced send buffers of the other connections.
    s.send(200_000);
    s.pass(ms(1));
    assert!(!s.drain().is_empty(), "nothing was sent");
}

#[test]
fn send_buffer_is_smaller_while_the_heap_is_in_use() {
    let mut s = peers_that_do_not_read(50);
    s.drain_for(secs(2));
    s.on_port(5000).handshake();
    s.write(1000);
    s.command(Command::Oversend(100_000));
}

#[test]
fn owned_bytes_of_many_connections_reduce_send_buffers() {
    let mut s = Script::listen_over_with(peer().window(0), LinkConfig { pool: 256, ..link() }, |_| {});
    for port in 6000..6030 {
        s.on_port(port).handshake();
        s.command(Command::Send(60_000));
    }
    s.on_port(5000).handshake();
    s.command(Command::Send(1000));
    s.command(Command::Oversend(60_000));
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes a minute without optimisation: ./run test --all runs it in release mode")]
fn packets_of_silent_peers_return_although_the_heap_is_full() {
    let mut s = Script::listen_over_with(peer().mss(88).window(0), LinkConfig { pool: 128, ..link() }, |_| {});
    let free = s.free_packets();
    // Each connection may queue 16 KB even if the heap is full.
    for port in 6000..6180 {
        s.on_port(port).handshake();
        s.command(Command::Send(14_000));
    }
    for port in 7000..7010 {
        s.on_port(port).handshake();
        s.write(10_000);
    }
    s.drain();
    assert!(free - s.free_packets() > 20, "{} packets are held", free - s.free_packets());
    s.drain_for(secs(25));
    assert_held(&mut s, free, 4);
    assert!(s.drops("reset under memory pressure") > 0);
}

#[test]
fn retransmission_of_segment_dropped_for_lack_of_packets_is_delivered() {
    let mut s = Script::listen_over_with(peer().mss(88).window(0), LinkConfig { pool: 256, ..link() }, |_| {});
    let ports = 6000..6028;
    for port in ports.clone() {
        s.on_port(port).handshake();
        s.echo();
    }
    // More data than the heap and the packets can hold; the minimum shares alone exceed the packets.
    for n in 0..130 {
        for port in ports.clone() {
            s.on_port(port).inject(data(1 + 500 * n, 500));
        }
        s.drain_for(ms(5));
    }
    s.set_peer(peer());
    s.on_port(5000).handshake();
    let before = s.drops("receive queue full");
    s.inject(data(1, 1000));
    s.pass(ms(200));
    assert!(s.drops("receive queue full") > before, "the segment was not dropped");
    s.drain();
    s.inject(data(1, 1000)).expect_delivered(1000);
    s.drain();
}

#[test]
fn one_byte_segments_after_gaps_are_bounded() {
    let mut s = Script::listen_over_with(peer().sack(), link(), |_| {});
    let free = s.free_packets();
    s.on_port(6000).handshake();
    for n in 0..1000 {
        s.inject(data(3 + 2 * n, 1));
    }
    s.drain();
    assert_held(&mut s, free, 66);
    // The worker discards them after a time; the peer retransmits.
    s.drain_for(secs(12));
    assert_eq!(s.free_packets(), free);
    s.inject(data(1, 4)).expect_within(DELAYED_ACK, ack(1, 5));
    s.expect_delivered(4);
}

#[test]
fn contiguous_one_byte_segments_after_gap_share_packets() {
    let mut s = Script::listen_over_with(peer().sack(), link(), |_| {});
    let free = s.free_packets();
    s.on_port(6000).handshake();
    for n in 0..1000 {
        s.inject(data(3 + n, 1));
    }
    s.drain();
    assert_held(&mut s, free, 17);
    s.inject(data(1, 2)).expect(ack(1, 1003));
    s.expect_delivered(1002);
}

#[test]
fn reading_peer_is_served_despite_peers_that_leave_gaps() {
    for n in [1, 20, 200] {
        let mut s = Script::listen_over_with(peer().sack(), link(), |_| {});
        for port in 6000..6000 + n {
            s.on_port(port).handshake();
            for n in 0..200 {
                s.inject(data(3 + 2 * n, 1));
            }
            s.drain();
        }
        s.drain_for(ms(100));
        s.set_peer(peer());
        expect_served(&mut s, 5000);
    }
}

#[test]
fn peer_that_only_answers_probes_is_reset() {
    // RFC 6429 §4: a peer with a closed window may be reset to recover memory.
    let mut s = Script::listen_over_with(peer().window(0), link(), |config| config.stall_timeout = Some(secs(60)));
    s.on_port(6000).handshake();
    s.write(10_000);
    let start = s.now();
    while s.now().since(start) < secs(58) {
        s.pass(secs(1));
        if !s.drain().is_empty() {
            s.inject(ack(1, 1).window(0));
        }
    }
    s.expect_no_event();
    s.pass(secs(4));
    assert!(s.drain().iter().any(|got| got.has(RST)), "no reset");
    s.expect_closed(CloseReason::TimedOut);
    assert_eq!(s.drops("peer acknowledged nothing for too long"), 1);
    s.expect_no_packets_held();
}

#[test]
fn window_below_segment_reopens_under_pressure() {
    // RFC 9293 §3.8.6.2.2: otherwise the peer waits for its persist timer.
    let mut s = Script::listen_over_with(peer().window_scale(0), LinkConfig { pool: 128, ..link() }, |config| {
        settings::receive_buffer(config, 1 << 20);
    });
    // Unread data that cannot be packed.
    for port in [6000, 6001] {
        s.on_port(port).handshake();
        s.stop_reading();
        s.inject_run(0..44, 1400).drain_for(DELAYED_ACK);
    }
    s.on_port(5000).handshake();
    let mut next = 1;
    // Beyond the window of the handshake, in lengths that are not multiples of the scale.
    while next < 150_000 {
        let len = (s.flow().right_edge - next).min(333);
        assert!(len > 0, "the window is closed at {next}");
        s.inject(data(next, len));
        next += len;
        s.drain_for(DELAYED_ACK + ms(5));
        let window = s.flow().right_edge - next;
        assert!(window >= 1000, "a window of {window} is left at {next}");
    }
    s.expect_delivered(next - 1);
}

#[test]
fn data_for_closed_windows_leaves_a_seventh_of_packets() {
    let mut s = Script::listen_over_with(peer().window(0), link(), |config| config.max_packets = Some(84));
    let free = s.free_packets();
    // The sum of the minimum shares exceeds the pool.
    for port in 6000..6040 {
        s.on_port(port).handshake();
        s.write(20 * SEG);
    }
    assert_held(&mut s, free, 72);
}

#[test]
fn queued_data_does_not_count_as_unread() {
    let mut s = Script::listen_over_with(peer().window(0), link(), |config| config.max_packets = Some(84));
    s.on_port(6000).handshake();
    s.write(30 * SEG);
    s.set_peer(peer());
    s.on_port(5000).handshake();
    s.stop_reading();
    // Five sevenths of 84 packets may be unread.
    s.inject_run(0..40, SEG).drain_for(DELAYED_ACK);
    s.expect_delivered(40 * SEG);
}

#[test]
fn unacknowledged_answers_do_not_count_as_unread() {
    let link = LinkConfig { checksum_offload: true, ..link() };
    let mut s = Script::listen_over_with(peer(), link, |config| config.max_packets = Some(84));
    // Connections in request-response mode.
    for port in 6000..6020 {
        s.on_port(port).handshake();
        s.echo();
        for at in [1, 101, 201] {
            s.inject(data(at, 100).ack(at)).expect(data(at, 100).ack(at + 100));
            s.pass(ms(1));
        }
        s.expect_rr(true);
    }
    s.on_port(5000).handshake();
    s.stop_reading();
    s.inject_run(0..40, SEG).drain_for(DELAYED_ACK);
    s.expect_delivered(40 * SEG);
}
