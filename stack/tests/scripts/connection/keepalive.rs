//! Keepalive: RFC 9293 §3.8.4.

use super::harness::*;

const IDLE: Duration = secs(60);
const INTERVAL: Duration = secs(10);
const COUNT: u32 = 3;

fn with_keepalive() -> Script {
    Script::accepted_with(peer(), |config| settings::keepalive(config, IDLE, INTERVAL, COUNT))
}

#[test]
fn an_idle_connection_is_left_alone_unless_keepalive_is_asked_for() {
    // RFC 9293 §3.8.4 MUST-25.
    native_only!();
    let mut s = Script::accepted(peer());
    s.expect_nothing_for(secs(4 * 3600));
    s.expect_no_event();
    s.expect_alive(1, 1);
}

#[test]
fn a_keepalive_probe_of_the_peer_is_answered() {
    // RFC 9293 §3.8.4, §3.10.7.4, first: SEG.SEQ = SND.NXT-1 is not acceptable, so it is acknowledged.
    let mut s = Script::accepted(peer());
    s.inject(data(1, 100));
    s.expect_within(DELAYED_ACK, ack(1, 101));
    s.pass(secs(60));
    s.inject(ack(100, 1));
    s.expect(ack(1, 101));
    s.pass(secs(60));
    s.inject(data(100, 1).junk());
    s.expect(ack(1, 101));
    s.expect_delivered(100);
}

#[test]
fn a_peer_may_be_silent_for_longer_than_timers_reach() {
    native_only!();
    let years = |config: &mut linerate_stack::Config| settings::keepalive(config, secs(1_000_000_000), INTERVAL, COUNT);
    let mut s = Script::accepted_with(peer(), years);
    s.expect_nothing_for(secs(24 * 3600));
    s.expect_alive(1, 1);
}

#[test]
fn an_idle_peer_is_probed_and_its_answer_suffices() {
    // RFC 9293 §3.8.4.
    native_only!();
    let mut s = with_keepalive();
    for _ in 0..3 {
        s.expect_probe_after(IDLE, 1);
        s.inject(ack(1, 1));
    }
    s.expect_no_event();
    s.expect_alive(1, 1);
}

#[test]
fn a_probe_names_a_byte_that_was_acknowledged_long_ago() {
    // RFC 9293 §3.8.4: SEG.SEQ = SND.NXT-1, with a byte or without (SHLD-12).
    native_only!();
    let mut s = with_keepalive();
    s.write(1000);
    s.expect(data(1, 1000));
    s.inject(ack(1, 1001));
    let probe = s.expect_probe_after(IDLE, 1001);
    assert_eq!(probe.seq, 1000);
}

#[test]
fn a_peer_that_answers_no_probe_is_given_up() {
    // RFC 9293 §3.8.4 MUST-27: a failure to answer any one probe is no dead connection.
    native_only!();
    let mut s = with_keepalive();
    s.expect_probe_after(IDLE, 1);
    for _ in 1..COUNT {
        s.expect_probe_after(INTERVAL, 1);
    }
    s.expect_no_event();
    s.pass(INTERVAL + ms(500));
    s.drain();
    s.expect_closed(CloseReason::TimedOut);
    s.expect_nothing_for(secs(600));
}

#[test]
fn a_late_answer_is_an_answer() {
    // RFC 9293 §3.8.4 MUST-27.
    native_only!();
    let mut s = with_keepalive();
    s.expect_probe_after(IDLE, 1);
    for _ in 1..COUNT {
        s.expect_probe_after(INTERVAL, 1);
    }
    s.inject(ack(1, 1));
    s.expect_probe_after(IDLE, 1);
    s.inject(ack(1, 1));
    s.expect_no_event();
}

#[test]
fn whatever_arrives_puts_the_probe_off() {
    // RFC 9293 §3.8.4 MUST-26: only when nothing has been received for the interval.
    native_only!();
    let mut s = with_keepalive();
    s.expect_nothing_for(IDLE - secs(1));
    s.inject(data(1, 100));
    s.expect_within(DELAYED_ACK, ack(1, 101));
    s.expect_nothing_for(IDLE - secs(1));
    s.inject(ack(101, 1));
    s.expect_probe_between(IDLE - secs(1), IDLE + secs(1), 1);
}

#[test]
fn a_peer_that_has_forgotten_the_connection_resets_it() {
    // RFC 9293 §3.8.4, §3.10.7.1.
    native_only!();
    let mut s = with_keepalive();
    s.expect_probe_after(IDLE, 1);
    s.inject(rst(1));
    s.expect_closed(CloseReason::Reset);
}

#[test]
fn while_data_is_unacknowledged_it_is_that_which_asks() {
    // RFC 9293 §3.8.4 MUST-26: no probe while data is outstanding.
    let mut s = with_keepalive();
    s.write(100);
    s.expect(data(1, 100));
    let sent = s.drain_for(IDLE + 2 * INTERVAL);
    assert!(sent.iter().all(|got| got.seq == 1 && got.len == 100));
}

#[test]
fn probe_is_sent_as_soon_as_the_connection_has_been_idle_for_long_enough() {
    // Within the granularity of timers, two ticks of 65.5 µs.
    native_only!();
    let mut s = with_keepalive();
    s.expect_probe_between(IDLE, IDLE + Duration::from_micros(132), 1);
}

#[test]
fn probe_is_not_put_off_by_a_probe_of_the_peer_after_a_loss_was_repaired() {
    // The flight waits for a report of duplicates then (RFC 3708 §3).
    native_only!();
    let mut s = Script::accepted_with(peer().sack().rtt(ms(20)), |config| {
        settings::keepalive(config, IDLE, INTERVAL, COUNT);
    });
    s.write(5 * SEG);
    s.expect_flight(1, 5);
    s.pass(ms(20));
    s.inject(ack(1, 1).sack(&[(SEG + 1, 5 * SEG + 1)]));
    s.expect(data(1, SEG));
    s.pass(ms(20));
    s.inject(ack(1, 5 * SEG + 1));
    // A probe of the peer's: the number before RCV.NXT.
    s.inject(ack(0, 5 * SEG + 1));
    s.expect(ack(5 * SEG + 1, 1));
    s.expect_probe_between(IDLE, IDLE + secs(1), 5 * SEG + 1);
}
