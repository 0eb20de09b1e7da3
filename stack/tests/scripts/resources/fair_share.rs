//! Fair shares of the port's packets: peers that do not read or leave gaps do not keep others from being served.

use super::harness::*;
use linerate_bypass::CloseReason;
use linerate_bypass::memory_nic::LinkConfig;

/// Packets of the port.
const POOL: usize = 1024;
/// Reply of the service to a peer that is served.
const REPLY: Rel = 20_000;

/// Packets that the worker sets aside while connections write.
const SET_ASIDE: usize = 32;

/// Asserts that at most `most` packets of `free` are held.
#[track_caller]
fn assert_held(s: &mut Script, free: usize, most: usize) {
    let held = free - s.free_packets();
    assert!(held <= most + SET_ASIDE, "{held} packets are held");
}

fn link() -> LinkConfig {
    LinkConfig { pool: POOL, ..LinkConfig::default() }
}

/// A worker with connections to `n` peers of MSS 88 that have closed their window, to which it has much to send.
fn peers_that_do_not_read(n: u16) -> Script {
    let mut s = Script::listen_over_with(peer().mss(88).window(0), link(), |_| {});
    for port in 6000..6000 + n {
        s.on_port(port).shake_hands();
        s.write(1 << 20);
    }
    s.pass(ms(100));
    s.drain();
    s
}

/// A peer that reads is sent a reply within round trips, without the help of a timer.
fn expect_served(s: &mut Script, port: u16) {
    s.on_port(port).shake_hands();
    let start = s.now();
    s.write(REPLY);
    let mut next = 1;
    while next < 1 + REPLY {
        let before = next;
        for got in s.drain() {
            next = next.max(got.end());
        }
        assert!(next > before, "nothing has come behind {next}");
        s.inject(ack(1, next));
    }
    assert!(s.now().since(start) < ms(1), "a timer was waited for");
    s.expect_delivered(0);
}

#[test]
fn peer_that_reads_is_served_beside_peers_that_do_not() {
    native_only!();
    for n in [2, 12, 50] {
        let mut s = peers_that_do_not_read(n);
        for port in [5000, 5001] {
            s.use_peer(peer());
            expect_served(&mut s, port);
        }
    }
}

#[test]
fn peer_with_a_small_mss_pins_full_packets() {
    native_only!();
    let mut s = Script::listen_over_with(peer().mss(88).window(0), link(), |_| {});
    let free = s.free_packets();
    s.on_port(6000).shake_hands();
    s.write(40_000);
    s.drain();
    // 2048 bytes have room for 23 segments.
    assert_held(&mut s, free, 40_000 / (23 * 88) + 2);
}

#[test]
fn data_of_a_silent_peer_leave_the_packets() {
    native_only!();
    let mut s = Script::listen_over_with(peer().window(50_000), link(), |_| {});
    let free = s.free_packets();
    s.on_port(6000).shake_hands();
    s.write(100_000);
    s.pass(secs(30));
    s.drain();
    assert_held(&mut s, free, 2);
    // They are delivered from the heap.
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
    panic!("the peer was sent {next} of 100001");
}

#[test]
fn queued_data_that_are_on_the_heap_are_not_copied_again() {
    // The time to copy all of them for each packet more would grow with the square of their length.
    native_only!();
    let mut s = Script::listen_over_with(peer().window(0), link(), |_| {});
    s.on_port(6000).shake_hands();
    s.write(1000);
    s.pass(secs(20));
    s.drain();
    let before = s.copied();
    for _ in 0..60 {
        s.write(1000);
        s.pass(secs(2));
        s.drain();
    }
    let copied = s.copied() - before;
    // Each byte when it is written and when it is moved, and some as pieces are joined.
    assert!(copied <= 6 * 60_000, "{copied} bytes were copied for 60000");
}

#[test]
fn unread_data_of_a_silent_peer_share_packets() {
    // A service that waits for room to answer does not read.
    native_only!();
    let mut s = Script::listen_over_with(peer().window(0), link(), |_| {});
    let free = s.free_packets();
    s.on_port(6000).shake_hands();
    s.stop_reading();
    s.write(10_000);
    for n in 0..200 {
        s.inject(data(1 + 50 * n, 50));
    }
    s.pass(secs(30));
    s.drain();
    // 10000 bytes fit into 5 packets of 2048 bytes.
    assert_held(&mut s, free, 7);
    s.start_reading();
    s.expect_delivered(10_000);
}

#[test]
fn segments_of_one_byte_beyond_gaps_are_bounded() {
    native_only!();
    let mut s = Script::listen_over_with(peer().sack(), link(), |_| {});
    let free = s.free_packets();
    s.on_port(6000).shake_hands();
    for n in 0..1000 {
        s.inject(data(3 + 2 * n, 1));
    }
    s.drain();
    assert_held(&mut s, free, 66);
    // After a time they are the peer's to retransmit.
    s.pass(secs(12));
    s.drain();
    assert_eq!(s.free_packets(), free);
    s.inject(data(1, 4));
    s.expect_within(DELAYED_ACK, ack(1, 5));
    s.expect_delivered(4);
}

#[test]
fn contiguous_segments_of_one_byte_beyond_a_gap_share_packets() {
    native_only!();
    let mut s = Script::listen_over_with(peer().sack(), link(), |_| {});
    let free = s.free_packets();
    s.on_port(6000).shake_hands();
    for n in 0..1000 {
        s.inject(data(3 + n, 1));
    }
    s.drain();
    assert_held(&mut s, free, 17);
    s.inject(data(1, 2));
    s.expect(ack(1, 1003));
    s.expect_delivered(1002);
}

#[test]
fn peer_that_reads_is_served_beside_peers_that_leave_gaps() {
    native_only!();
    for n in [1, 20, 200] {
        let mut s = Script::listen_over_with(peer().sack(), link(), |_| {});
        for port in 6000..6000 + n {
            s.on_port(port).shake_hands();
            for n in 0..200 {
                s.inject(data(3 + 2 * n, 1));
            }
            s.drain();
        }
        s.pass(ms(100));
        s.drain();
        s.use_peer(peer());
        expect_served(&mut s, 5000);
    }
}

#[test]
fn peer_that_answers_probes_and_acknowledges_nothing_is_reset() {
    // RFC 6429 §4: a peer of a closed window may be reset to recover memory.
    native_only!();
    let mut s = Script::listen_over_with(peer().window(0), link(), |config| config.stall_timeout = Some(secs(60)));
    s.on_port(6000).shake_hands();
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
    assert!(s.drain().iter().any(|got| got.has(RST)), "it is not reset");
    s.expect_closed(CloseReason::TimedOut);
    assert_eq!(s.drops("peer acknowledged nothing for too long"), 1);
    s.expect_all_packets_back();
}

#[test]
fn window_of_less_than_a_segment_reopens_under_pressure() {
    // RFC 9293 §3.8.6.2.2: the peer else waits for its persist timer.
    native_only!();
    let mut s = Script::listen_over_with(peer().window_scale(0), LinkConfig { pool: 128, ..link() }, |config| {
        settings::receive_buffer(config, 1 << 20);
    });
    // Unread data that cannot be packed.
    for port in [6000, 6001] {
        s.on_port(port).shake_hands();
        s.stop_reading();
        for n in 0..44 {
            s.inject(data(1 + 1400 * n, 1400));
        }
        s.pass(DELAYED_ACK);
        s.drain();
    }
    s.on_port(5000).shake_hands();
    let mut next = 1;
    // Beyond the window that the handshake promised, in lengths that are no multiple of the scale.
    while next < 150_000 {
        let len = (s.flow().right_edge - next).min(333);
        assert!(len > 0, "the window is closed at {next}");
        s.inject(data(next, len));
        next += len;
        s.pass(DELAYED_ACK + ms(5));
        s.drain();
        let window = s.flow().right_edge - next;
        assert!(window >= 1000, "a window of {window} is left at {next}");
    }
    s.expect_delivered(next - 1);
}

#[test]
fn data_for_closed_windows_leave_a_seventh_of_the_packets() {
    native_only!();
    let mut s = Script::listen_over_with(peer().window(0), link(), |config| config.max_packets = Some(84));
    let free = s.free_packets();
    // Together their least shares are more than all packets.
    for port in 6000..6040 {
        s.on_port(port).shake_hands();
        s.write(20 * SEG);
    }
    assert_held(&mut s, free, 72);
}

#[test]
fn queued_data_do_not_count_as_unread() {
    native_only!();
    let mut s = Script::listen_over_with(peer().window(0), link(), |config| config.max_packets = Some(84));
    s.on_port(6000).shake_hands();
    s.write(30 * SEG);
    s.use_peer(peer());
    s.on_port(5000).shake_hands();
    s.stop_reading();
    // Five sevenths of 84 packets may be unread.
    for n in 0..40 {
        s.inject(data(1 + n * SEG, SEG));
    }
    s.drain_for(DELAYED_ACK);
    s.expect_delivered(40 * SEG);
}

#[test]
fn answers_that_are_not_acknowledged_do_not_count_as_unread() {
    native_only!();
    let link = LinkConfig { checksum_offload: true, ..link() };
    let mut s = Script::listen_over_with(peer(), link, |config| config.max_packets = Some(84));
    // Connections whose ends take turns.
    for port in 6000..6020 {
        s.on_port(port).shake_hands();
        s.echo();
        for at in [1, 101, 201] {
            s.inject(data(at, 100).ack(at));
            s.expect(data(at, 100).ack(at + 100));
            s.pass(ms(1));
        }
        s.expect_exchanging(true);
    }
    s.on_port(5000).shake_hands();
    s.stop_reading();
    for n in 0..40 {
        s.inject(data(1 + n * SEG, SEG));
    }
    s.drain_for(DELAYED_ACK);
    s.expect_delivered(40 * SEG);
}
