//! Pacing: what the window has room for leaves over the round trip (RFC 9293 leaves it open; RFC 6928 §6 and RFC 9438 §5.8 speak
//! of what bursts do). The rates are Linux's: twice the window in a round trip in slow start, 1.2 times after it
//! (`net.ipv4.tcp_pacing_ss_ratio`, `net.ipv4.tcp_pacing_ca_ratio`).

use super::harness::*;
use linerate_bypass::memory_nic::LinkConfig;

const RTT: Duration = ms(100);

/// A peer at a distance of [`RTT`] with a large window.
fn far() -> Peer {
    peer().sack().window_scale(7).rtt(RTT)
}

fn paced(config: &mut linerate_stack::Config) {
    settings::send_buffer(config, 4 << 20);
    config.pacing = true;
}

/// What a worker sends of `segments` segments to a peer that acknowledges each, and how long that takes.
fn transfer(segments: Rel, configure: impl FnOnce(&mut linerate_stack::Config)) -> (Vec<Got>, Duration) {
    let mut s = Script::accepted_over_with(far(), LinkConfig { pool: 4096, ..LinkConfig::default() }, configure);
    let began = s.now();
    s.write(segments * SEG);
    let sent = Receiver::new(1, RTT, true).play(&mut s, 1 + segments * SEG, secs(60), |_| false);
    (sent, s.now().since(began))
}

/// The most segments of `sent` that leave within any span of `time`.
fn most_within(sent: &[Got], time: Duration) -> usize {
    let leaves = |from: &Got| sent.iter().filter(|got| got.at >= from.at && got.at.since(from.at) < time).count();
    sent.iter().map(leaves).max().unwrap_or(0)
}

#[test]
fn a_window_leaves_spread_over_the_round_trip() {
    native_only!();
    let (sent, _) = transfer(1000, paced);
    assert_eq!(retransmissions(&sent).len(), 0);
    // The window is about 640 segments in the end, so that in slow start 12.8 go in a millisecond.
    let most = most_within(&sent, ms(1));
    assert!((4..=32).contains(&most), "{most} segments in a millisecond");
    let (sent, _) = transfer(1000, |config| settings::send_buffer(config, 4 << 20));
    assert!(most_within(&sent, ms(1)) > 300, "without pacing");
}

#[test]
fn a_hundred_segments_leave_in_bursts_of_four() {
    native_only!();
    // 10, 20, 40 and 80 segments before, so that the window is more than a hundred.
    let (sent, _) = transfer(250, paced);
    let last: Vec<_> = sent[150..].to_vec();
    assert_eq!(most_within(&last, Duration::from_micros(500)), 5);
    let took = last[99].at.since(last[0].at);
    assert!((ms(25)..=RTT).contains(&took), "100 segments in {took:?}");
}

#[test]
fn pacing_lowers_no_throughput() {
    native_only!();
    for segments in [100, 500, 2000] {
        let (_, burst) = transfer(segments, |config| settings::send_buffer(config, 4 << 20));
        let (_, spread) = transfer(segments, paced);
        // The last window is spread, too.
        assert!(spread <= burst + RTT, "{segments} segments: {spread:?} instead of {burst:?}");
    }
}

#[test]
fn a_short_message_after_a_pause_is_not_held_back() {
    native_only!();
    let mut s = Script::accepted_with(far(), paced);
    for n in 0..5 {
        s.write(4 * SEG);
        s.expect_flight(1 + 4 * n * SEG, 4);
        s.pass(RTT);
        s.ack_each(1 + 4 * n * SEG, 1 + 4 * (n + 1) * SEG);
        s.pass(secs(1));
    }
}

#[test]
fn a_near_peer_gets_a_window_at_once() {
    // A round trip of a few ticks of the timer cannot be divided.
    native_only!();
    let mut s = Script::accepted_with(peer().rtt(Duration::from_micros(100)), paced);
    s.write(20 * SEG);
    s.expect_flight(1, INITIAL_WINDOW);
}

#[test]
fn without_a_measured_round_trip_nothing_is_held_back() {
    // RFC 6298 §3: of a SYN-ACK that was sent twice it is not known which is acknowledged.
    native_only!();
    let mut s = Script::listen(peer(), paced);
    s.inject_hello(syn(0));
    s.expect(syn_ack(0, 1));
    s.expect_after(secs(1), syn_ack(0, 1));
    s.inject(ack(1, 1));
    s.expect_opened();
    s.write(SEG);
    s.expect(data(1, SEG));
}
