//! Lingering close: how long a closed connection delivers data. RFC 9293 §3.10.4, §3.10.5.

use crate::harness::*;

/// Returns a connection with an RTT of 10 ms that lingers for `time` when closed.
fn lingering(time: Duration) -> Script {
    Script::accepted_with(peer().rtt(ms(10)), |config| config.linger = Some(time))
}

#[test]
fn linger_timeout_resets_connection_with_unacknowledged_data() {
    // RFC 9293 §3.10.4 sends queued data first; §3.10.5 for the reset.
    let mut s = lingering(secs(2));
    s.write(1000).expect(data(1, 1000));
    s.drain_for(secs(1));
    s.close().expect(fin(1001, 1));
    s.drain_for(ms(1990));
    s.expect_no_event();
    s.expect_within(ms(20), rst_ack(1002, 1));
    s.expect_closed(CloseReason::Aborted);
    s.expect_no_packets_held();
}

#[test]
fn linger_timeout_does_not_reset_acknowledged_connection() {
    // RFC 9293 §3.10.4: the peer has received everything and may continue to send.
    let mut s = lingering(secs(2));
    s.write(1000).expect(data(1, 1000));
    s.close().expect(fin(1001, 1));
    s.drain_for(ms(1500));
    s.inject(ack(1, 1002)).expect_nothing_for(secs(60));
    s.inject(data(1, 1000).ack(1002)).expect_within(DELAYED_ACK, ack(1002, 1001));
    s.close_by_peer(1001, 1002);
    s.expect_closed(CloseReason::Finished);
}

#[test]
fn linger_timeout_applies_with_closed_window() {
    // RFC 9293 §3.8.6.1 would probe while the peer answers.
    let mut s = lingering(secs(3));
    s.inject(ack(1, 1).window(0));
    s.write(1000);
    s.close();
    for _ in 0..29 {
        s.pass(ms(100));
        if !s.drain().is_empty() {
            s.inject(ack(1, 1).window(0));
        }
    }
    s.expect_no_event();
    s.expect_within(ms(110), rst_ack(1, 1));
    s.expect_closed(CloseReason::Aborted);
}

#[test]
fn linger_timeout_applies_in_last_ack() {
    // RFC 9293 §3.3.2, LAST-ACK.
    let mut s = lingering(ms(100));
    s.close_by_peer(1, 1);
    s.close().expect(fin(1, 2));
    s.drain_for(ms(50));
    s.expect_within(ms(60), rst_ack(2, 2));
    s.expect_closed(CloseReason::Aborted);
}

#[test]
fn linger_of_zero_resets_connection() {
    // RFC 9293 §3.10.5: queued data is discarded.
    let mut s = lingering(Duration::ZERO);
    s.inject(ack(1, 1).window(0));
    s.write(1000).expect_nothing();
    s.close().expect(rst_ack(1, 1));
    s.expect_closed(CloseReason::Aborted);
    s.expect_no_packets_held();
}

#[test]
fn linger_does_not_affect_open_connection() {
    let mut s = lingering(secs(2));
    s.write(1000).expect(data(1, 1000));
    s.drain_for(secs(10));
    s.inject(ack(1, 1001)).expect_alive(1, 1001);
}
