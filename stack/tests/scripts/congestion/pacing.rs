//! Pacing: segments are spread over the round trip. RFC 9293 leaves this open; RFC 6928 §6 and RFC 9438 §5.8 discuss
//! bursts. The rates are those of Linux: twice the window per round trip in slow start, 1.2 times afterwards
//! (`net.ipv4.tcp_pacing_ss_ratio`, `net.ipv4.tcp_pacing_ca_ratio`).

use super::RTT;
use crate::harness::*;
use linerate_bypass::memory_nic::LinkConfig;

/// Returns a peer with an RTT of [`RTT`] and a large window.
fn far() -> Peer {
    peer().sack().window_scale(7).rtt(RTT)
}

fn paced(config: &mut linerate_stack::Config) {
    settings::send_buffer(config, 4 << 20);
    config.pacing = true;
}

/// Sends `segments` segments to a peer that acknowledges each. Returns the worker's segments and the duration.
fn transfer(segments: Rel, configure: impl FnOnce(&mut linerate_stack::Config)) -> (Vec<Got>, Duration) {
    let mut s = Script::accepted_over_with(far(), LinkConfig { pool: 4096, ..LinkConfig::default() }, configure);
    let began = s.now();
    s.write(segments * SEG);
    let sent = Receiver::new(1, RTT, true).play(&mut s, 1 + segments * SEG, secs(60), |_| false);
    (sent, s.now().since(began))
}

/// Returns the maximum number of segments of `sent` within any span of `time`.
fn most_within(sent: &[Got], time: Duration) -> usize {
    let leaves = |from: &Got| sent.iter().filter(|got| got.at >= from.at && got.at.since(from.at) < time).count();
    sent.iter().map(leaves).max().unwrap_or(0)
}

#[test]
fn window_is_spread_over_the_round_trip() {
    let (sent, _) = transfer(1000, paced);
    assert_eq!(retransmissions(&sent).len(), 0);
    // The final window is about 640 segments, so slow start sends 12.8 per millisecond.
    let most = most_within(&sent, ms(1));
    assert!((4..=32).contains(&most), "{most} segments in a millisecond");
    let (sent, _) = transfer(1000, |config| settings::send_buffer(config, 4 << 20));
    assert!(most_within(&sent, ms(1)) > 300, "without pacing");
}

#[test]
fn hundred_segments_leave_in_bursts_of_four() {
    // Windows of 10, 20, 40 and 80 segments precede, so the window exceeds 100.
    let (sent, _) = transfer(250, paced);
    let last: Vec<_> = sent[150..].to_vec();
    assert_eq!(most_within(&last, Duration::from_micros(500)), 5);
    let took = last[99].at.since(last[0].at);
    assert!((ms(25)..=RTT).contains(&took), "100 segments in {took:?}");
}

#[test]
fn pacing_keeps_throughput() {
    for segments in [100, 500, 2000] {
        let (_, burst) = transfer(segments, |config| settings::send_buffer(config, 4 << 20));
        let (_, spread) = transfer(segments, paced);
        // The last window is spread too.
        assert!(spread <= burst + RTT, "{segments} segments: {spread:?} instead of {burst:?}");
    }
}

#[test]
fn short_message_after_pause_is_not_delayed() {
    let mut s = Script::accepted_with(far(), paced);
    for n in 0..5 {
        s.write(4 * SEG).expect_flight(1 + 4 * n * SEG, 4);
        s.pass(RTT);
        s.ack_each(1 + 4 * n * SEG, 1 + 4 * (n + 1) * SEG);
        s.pass(secs(1));
    }
}

#[test]
fn nearby_peer_receives_window_at_once() {
    // An RTT of a few timer ticks cannot be divided.
    let mut s = Script::accepted_with(peer().rtt(Duration::from_micros(100)), paced);
    s.write(20 * SEG).expect_flight(1, INITIAL_WINDOW);
}

#[test]
fn pacing_waits_for_rtt_sample() {
    // RFC 6298 §3: the ACK of a retransmitted SYN-ACK gives no sample.
    let mut s = Script::listen(peer(), paced);
    s.inject_syn(syn(0)).expect(syn_ack(0, 1));
    s.expect_after(secs(1), syn_ack(0, 1));
    s.inject(ack(1, 1)).expect_opened();
    s.write(SEG).expect(data(1, SEG));
}
