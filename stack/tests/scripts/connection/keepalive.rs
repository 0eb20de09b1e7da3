//! Keepalive: RFC 9293 §3.8.4.

use crate::harness::*;

const IDLE: Duration = secs(60);
const INTERVAL: Duration = secs(10);
const COUNT: u32 = 3;

fn with_keepalive() -> Script {
    Script::accepted_with(peer(), |config| settings::keepalive(config, IDLE, INTERVAL, COUNT))
}

#[test]
fn idle_connection_is_not_probed_by_default() {
    // RFC 9293 §3.8.4 MUST-25.
    let mut s = Script::accepted(peer());
    s.expect_nothing_for(secs(4 * 3600));
    s.expect_no_event();
    s.expect_alive(1, 1);
}

#[test]
fn keepalive_probe_of_peer_is_answered() {
    // RFC 9293 §3.8.4, §3.10.7.4, first: SEG.SEQ = SND.NXT-1 is unacceptable, so it is acknowledged.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 100)).expect_within(DELAYED_ACK, ack(1, 101));
    s.pass(secs(60));
    s.inject(ack(100, 1)).expect(ack(1, 101));
    s.pass(secs(60));
    s.inject(data(100, 1).junk()).expect(ack(1, 101));
    s.expect_delivered(100);
}

#[test]
fn silence_may_exceed_timer_range() {
    let years = |config: &mut linerate_stack::Config| settings::keepalive(config, secs(1_000_000_000), INTERVAL, COUNT);
    let mut s = Script::accepted_with(peer(), years);
    s.expect_nothing_for(secs(24 * 3600));
    s.expect_alive(1, 1);
}

#[test]
fn idle_peer_is_probed_and_reply_keeps_connection() {
    // RFC 9293 §3.8.4.
    let mut s = with_keepalive();
    for _ in 0..3 {
        s.expect_probe_after(IDLE, 1);
        s.inject(ack(1, 1));
    }
    s.expect_no_event();
    s.expect_alive(1, 1);
}

#[test]
fn probe_carries_acknowledged_sequence_number() {
    // RFC 9293 §3.8.4: SEG.SEQ = SND.NXT-1, with one byte or none (SHLD-12).
    let mut s = with_keepalive();
    s.write(1000).expect(data(1, 1000));
    let probe = s.inject(ack(1, 1001)).expect_probe_after(IDLE, 1001);
    assert_eq!(probe.seq, 1000);
}

#[test]
fn unanswered_probes_close_connection() {
    // RFC 9293 §3.8.4 MUST-27: one unanswered probe does not.
    let mut s = with_keepalive();
    s.expect_probe_after(IDLE, 1);
    for _ in 1..COUNT {
        s.expect_probe_after(INTERVAL, 1);
    }
    s.expect_no_event();
    s.drain_for(INTERVAL + ms(500));
    s.expect_closed(CloseReason::TimedOut);
    s.expect_nothing_for(secs(600));
}

#[test]
fn late_reply_to_probe_keeps_connection() {
    // RFC 9293 §3.8.4 MUST-27.
    let mut s = with_keepalive();
    s.expect_probe_after(IDLE, 1);
    for _ in 1..COUNT {
        s.expect_probe_after(INTERVAL, 1);
    }
    s.inject(ack(1, 1)).expect_probe_after(IDLE, 1);
    s.inject(ack(1, 1)).expect_no_event();
}

#[test]
fn received_segment_defers_probe() {
    // RFC 9293 §3.8.4 MUST-26: only if nothing was received for the interval.
    let mut s = with_keepalive();
    s.expect_nothing_for(IDLE - secs(1));
    s.inject(data(1, 100)).expect_within(DELAYED_ACK, ack(1, 101));
    s.expect_nothing_for(IDLE - secs(1));
    s.inject(ack(101, 1)).expect_probe_between(IDLE - secs(1), IDLE + secs(1), 1);
}

#[test]
fn probe_to_restarted_peer_is_reset() {
    // RFC 9293 §3.8.4, §3.10.7.1.
    let mut s = with_keepalive();
    s.expect_probe_after(IDLE, 1);
    s.inject(rst(1)).expect_closed(CloseReason::Reset);
}

#[test]
fn unacknowledged_data_replaces_probes() {
    // RFC 9293 §3.8.4 MUST-26: no probe while data is outstanding.
    let mut s = with_keepalive();
    s.write(100).expect(data(1, 100));
    let sent = s.drain_for(IDLE + 2 * INTERVAL);
    assert!(sent.iter().all(|got| got.seq == 1 && got.len == 100));
}

#[test]
fn probe_is_sent_on_time() {
    // Within the granularity of timers, two ticks of 65.5 µs.
    let mut s = with_keepalive();
    s.expect_probe_between(IDLE, IDLE + Duration::from_micros(132), 1);
}

#[test]
fn probe_is_not_deferred_by_peers_probe_after_recovery() {
    // The flight waits for DSACK at that time (RFC 3708 §3).
    let mut s = Script::accepted_with(peer().sack().rtt(ms(20)), |config| {
        settings::keepalive(config, IDLE, INTERVAL, COUNT);
    });
    s.write(5 * SEG).expect_flight(1, 5);
    s.pass(ms(20));
    s.inject(ack(1, 1).sack(&[(SEG + 1, 5 * SEG + 1)])).expect(data(1, SEG));
    s.pass(ms(20));
    s.inject(ack(1, 5 * SEG + 1));
    // Keepalive probe of the peer: SEG.SEQ = RCV.NXT-1.
    s.inject(ack(0, 5 * SEG + 1)).expect(ack(5 * SEG + 1, 1));
    s.expect_probe_between(IDLE, IDLE + secs(1), 5 * SEG + 1);
}
