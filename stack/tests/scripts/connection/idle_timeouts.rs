//! FIN-WAIT-2 timeout and idle timeout.

use crate::harness::*;
use linerate_bypass::memory_nic::LinkConfig;

const FIN_TIMEOUT: Duration = secs(60);
const IDLE: Duration = secs(30);

/// Returns a connection in FIN-WAIT-2: the worker has closed, and the peer has acknowledged its FIN.
fn fin_wait_2(configure: impl FnOnce(&mut linerate_stack::Config)) -> Script {
    let mut s = Script::accepted_with(peer(), configure);
    s.close().expect(fin(1, 1));
    s.inject(ack(1, 2));
    s
}

fn with_idle_timeout(peer: Peer) -> Script {
    Script::accepted_with(peer, |config| config.idle_timeout = Some(IDLE))
}

/// Returns a link with checksum offload, which the fast path requires.
fn with_checksum_offload() -> LinkConfig {
    LinkConfig { checksum_offload: true, ..LinkConfig::default() }
}

#[test]
fn fin_wait_2_times_out() {
    // RFC 9293 §3.6 sets no limit for FIN-WAIT-2; §3.10.5 for the reset.
    let mut s = fin_wait_2(|_| {});
    s.expect_after(FIN_TIMEOUT, rst_ack(2, 1));
    s.expect_closed(CloseReason::TimedOut);
    assert_eq!(s.drops("FIN-WAIT-2 timed out"), 1);
    s.inject(data(1, 100).ack(2)).expect(rst(2));
    s.expect_no_packets_held();
}

#[test]
fn fin_wait_2_times_out_despite_keepalive() {
    // The FIN-WAIT-2 timeout replaces keepalive, whose replies would keep the connection.
    let mut s = fin_wait_2(|config| settings::keepalive(config, secs(7), secs(7), 9));
    s.expect_nothing_for(secs(50));
    s.inject(ack(1, 2)).expect_between(secs(9), secs(11), rst_ack(2, 1));
    s.expect_closed(CloseReason::TimedOut);
}

#[test]
fn fin_wait_2_is_extended_by_data() {
    // RFC 9293 §3.6, case 1: the peer may continue to send.
    let mut s = fin_wait_2(|_| {});
    for n in 0..5 {
        s.expect_nothing_for(secs(55));
        s.inject(data(1 + n * SEG, 1000).ack(2)).expect_within(DELAYED_ACK, ack(2, 1001 + n * SEG));
    }
    s.expect_delivered(5000);
    s.expect_after(FIN_TIMEOUT, rst_ack(2, 5001));
    s.expect_closed(CloseReason::TimedOut);
}

#[test]
fn fin_wait_2_is_not_extended_by_segments_without_data() {
    let mut s = fin_wait_2(|_| {});
    for _ in 0..5 {
        s.expect_nothing_for(secs(10));
        s.inject(ack(1, 2)).expect_nothing();
    }
    s.expect_between(secs(9), secs(12), rst_ack(2, 1));
}

#[test]
fn fin_wait_2_is_extended_by_unread_data() {
    // The peer may be waiting for window.
    let mut s = Script::accepted(peer());
    s.stop_reading();
    s.inject(data(1, 1000)).drain_for(DELAYED_ACK);
    s.close().expect(fin(1, 1001));
    s.inject(ack(1001, 2)).expect_nothing_for(5 * FIN_TIMEOUT);
    s.expect_no_event();
    s.start_reading();
    s.expect_delivered(1000);
    s.drain();
    s.expect_between(secs(1), FIN_TIMEOUT + secs(2), rst_ack(2, 1001));
    s.expect_closed(CloseReason::TimedOut);
}

#[test]
fn fin_wait_2_is_unlimited_without_timeout() {
    let mut s = fin_wait_2(|config| config.fin_timeout = None);
    s.expect_nothing_for(secs(3600));
    s.close_by_peer(1, 2);
    s.expect_closed(CloseReason::Finished);
}

#[test]
fn close_wait_has_no_fin_timeout() {
    // The service has not closed.
    let mut s = Script::accepted(peer());
    s.close_by_peer(1, 1);
    s.expect_nothing_for(secs(3600));
    s.write(10).expect(data(1, 10).ack(2));
}

#[test]
fn idle_connection_is_reset() {
    for mut s in [with_idle_timeout(peer()), Script::connected_with(peer(), |config| config.idle_timeout = Some(IDLE))]
    {
        s.expect_nothing_for(IDLE - secs(1));
        s.expect_between(ms(990), ms(1100), rst_ack(1, 1));
        s.expect_closed(CloseReason::IdleTimeout);
        assert_eq!(s.drops("connection idle for too long"), 1);
        s.expect_no_packets_held();
    }
}

#[test]
fn idle_timeout_ignores_keepalive_replies() {
    // Keepalive probes and their replies carry no data.
    let mut s = Script::accepted_with(peer(), |config| {
        config.idle_timeout = Some(IDLE);
        settings::keepalive(config, secs(8), secs(8), 9);
    });
    for _ in 0..3 {
        s.expect_probe_after(secs(8), 1);
        s.inject(ack(1, 1));
    }
    s.expect_between(secs(5), secs(7), rst_ack(1, 1));
    s.expect_closed(CloseReason::IdleTimeout);
}

/// Returns segments that move no data, with the acknowledgement number `ack`: old data, data and a FIN beyond a gap,
/// and old data while such data is held.
fn segments_without_progress(ack: Rel) -> [Vec<Seg>; 4] {
    let (old, beyond) = (data(0, 1).ack(ack), data(101, 10).ack(ack));
    [vec![old.clone()], vec![beyond.clone()], vec![fin(101, ack)], vec![beyond, old]]
}

#[test]
fn timeouts_ignore_segments_without_progress() {
    // The peer is acknowledged, so these segments could keep the connection forever.
    for segments in segments_without_progress(1) {
        let mut s = with_idle_timeout(peer());
        for _ in 0..2 {
            s.pass(IDLE / 3);
            s.inject_burst(segments.clone()).drain();
        }
        s.expect_between(IDLE / 3 - secs(1), IDLE / 3 + secs(1), rst_ack(1, 1));
        s.expect_closed(CloseReason::IdleTimeout);
    }
    for segments in segments_without_progress(2) {
        let mut s = fin_wait_2(|_| {});
        for _ in 0..2 {
            s.pass(FIN_TIMEOUT / 3);
            s.inject_burst(segments.clone()).drain();
        }
        s.expect_between(FIN_TIMEOUT / 3 - secs(1), FIN_TIMEOUT / 3 + secs(1), rst_ack(2, 1));
        s.expect_closed(CloseReason::TimedOut);
    }
}

#[test]
fn old_data_defers_keepalive_probe() {
    // RFC 9293 §3.8.4 MUST-26: only if nothing was received for the interval.
    let mut s = Script::accepted_with(peer(), |config| settings::keepalive(config, secs(60), secs(10), 3));
    for _ in 0..3 {
        s.expect_nothing_for(secs(40));
        s.inject(data(0, 1).ack(1)).expect(ack(1, 1));
    }
    s.expect_probe_between(secs(59), secs(61), 1);
}

#[test]
fn idle_timeout_applies_in_close_wait() {
    let mut s = with_idle_timeout(peer());
    s.close_by_peer(1, 1);
    s.expect_between(IDLE - secs(1), IDLE + secs(1), rst_ack(1, 2));
    s.expect_closed(CloseReason::IdleTimeout);
}

#[test]
fn idle_timeout_counts_from_last_data() {
    for peer in [peer(), peer().sack().timestamps()] {
        let mut s = with_idle_timeout(peer);
        for n in 0..4 {
            s.expect_nothing_for(IDLE - secs(5));
            s.inject(data(1 + 100 * n, 100).ack(1 + 50 * n));
            s.expect_within(DELAYED_ACK, ack(1 + 50 * n, 101 + 100 * n));
            s.expect_nothing_for(IDLE - secs(5));
            s.write(50).expect(data(1 + 50 * n, 50));
            s.inject(ack(101 + 100 * n, 51 + 50 * n));
        }
        s.expect_nothing_for(IDLE - secs(1));
        s.expect_between(ms(900), ms(1100), rst_ack(201, 401));
        s.expect_closed(CloseReason::IdleTimeout);
    }
}

#[test]
fn idle_timeout_applies_with_unread_data() {
    // An incomplete request. The timeout may be up to a quarter late.
    let mut s = with_idle_timeout(peer());
    s.stop_reading();
    s.pass(IDLE / 2);
    s.inject(data(1, 100)).expect_within(DELAYED_ACK, ack(1, 101));
    s.expect_nothing_for(IDLE - secs(1));
    s.expect_between(Duration::ZERO, IDLE / 4 + secs(2), rst_ack(1, 101));
    s.expect_closed(CloseReason::IdleTimeout);
    s.expect_no_packets_held();
}

#[test]
fn idle_timeout_applies_with_closed_window() {
    // RFC 9293 §3.8.6.1 keeps the connection open while the peer answers probes, which carry no data.
    let mut s = with_idle_timeout(peer());
    s.write(1000).expect(data(1, 1000));
    s.inject(ack(1, 1001).window(0));
    s.write(1000);
    let began = s.now();
    loop {
        s.pass(ms(100));
        match s.drain().last() {
            Some(got) if got.has(RST) => break,
            Some(_) => _ = s.inject(ack(1, 1001).window(0)),
            None => assert!(s.now().since(began) < 2 * IDLE, "the idle timeout does not fire"),
        }
    }
    assert!(s.now().since(began) >= IDLE, "the idle timeout fires too early");
    s.expect_closed(CloseReason::IdleTimeout);
}

#[test]
fn idle_connection_without_timeout_stays_open() {
    let mut s = Script::accepted(peer());
    s.expect_nothing_for(secs(100_000));
    s.expect_no_event();
}

/// Echoes `turns` requests, `pause` apart, on a connection in request-response mode. Returns the peer's next sequence
/// number.
fn take_turns(s: &mut Script, turns: Rel, pause: Duration) -> Rel {
    s.command(Command::Echo);
    for n in 0..turns {
        let at = 1 + 100 * n;
        s.inject(data(at, 100).ack(at).push()).expect(data(at, 100).ack(at + 100).push());
        s.pass(pause);
        s.expect_rr(n > 0);
    }
    1 + 100 * turns
}

#[test]
fn rr_mode_is_kept_with_keepalive_and_idle_timeout() {
    // Neither excludes the fast path, and neither closes or probes a connection with traffic.
    for peer in [peer().rtt(ms(10)), peer().rtt(ms(10)).sack().timestamps().ipv6()] {
        let mut s = Script::accepted_over_with(peer, with_checksum_offload(), |config| {
            config.idle_timeout = Some(secs(3));
            settings::keepalive(config, secs(1), ms(500), 2);
        });
        let at = take_turns(&mut s, 400, ms(20));
        s.expect_no_event();
        s.inject(ack(at, at));
        // The connection becomes idle.
        for _ in 0..2 {
            s.expect_probe_between(ms(490), ms(1100), at);
            s.inject(ack(at, at));
        }
        s.expect_between(ms(1), ms(1600), rst_ack(at, at));
        s.expect_closed(CloseReason::IdleTimeout);
    }
}

#[test]
fn keepalive_probe_is_deferred_by_data_on_fast_path() {
    // RFC 9293 §3.8.4 MUST-26: only if nothing was received for the interval, even if the service leaves it unread.
    let mut s = Script::accepted_over_with(peer(), with_checksum_offload(), |config| {
        settings::keepalive(config, secs(60), secs(10), 3)
    });
    s.stop_reading();
    for n in 0..5 {
        s.expect_nothing_for(secs(40));
        s.inject(data(1 + 100 * n, 100)).expect_within(DELAYED_ACK, ack(1, 101 + 100 * n));
    }
    s.expect_probe_between(secs(59), secs(125), 1);
    // Data between probes restarts the count.
    s.expect_probe_after(secs(10), 1);
    s.inject(data(501, 100)).expect_within(DELAYED_ACK, ack(1, 601));
    s.expect_nothing_for(secs(59));
    s.expect_no_event();
}
