//! How long a closed connection goes on delivering: RFC 9293 §3.10.4, §3.10.5.

use super::harness::*;

/// A connection to a peer at a distance of 10 ms that may linger for `time` when closed.
fn lingering(time: Duration) -> Script {
    Script::accepted_with(peer().rtt(ms(10)), |config| config.linger = Some(time))
}

#[test]
fn what_is_not_acknowledged_in_time_is_given_up_with_a_reset() {
    // RFC 9293 §3.10.4 sends what is queued first; §3.10.5 is how it is given up.
    native_only!();
    let mut s = lingering(secs(2));
    s.write(1000);
    s.expect(data(1, 1000));
    s.pass(secs(1));
    s.drain();
    s.close();
    s.expect(fin(1001, 1));
    s.pass(ms(1990));
    s.drain();
    s.expect_no_event();
    s.expect_within(ms(20), rst_ack(1002, 1));
    s.expect_closed(CloseReason::Aborted);
    s.expect_all_packets_back();
}

#[test]
fn a_peer_that_acknowledges_everything_in_time_is_not_reset() {
    // RFC 9293 §3.10.4: it has all of ours, and may take its time with its own.
    native_only!();
    let mut s = lingering(secs(2));
    s.write(1000);
    s.expect(data(1, 1000));
    s.close();
    s.expect(fin(1001, 1));
    s.pass(ms(1500));
    s.drain();
    s.inject(ack(1, 1002));
    s.expect_nothing_for(secs(60));
    s.inject(data(1, 1000).ack(1002));
    s.expect_within(DELAYED_ACK, ack(1002, 1001));
    s.inject(fin(1001, 1002));
    s.expect_within(DELAYED_ACK, ack(1002, 1002));
    s.expect_peer_closed();
    s.expect_closed(CloseReason::Finished);
}

#[test]
fn a_window_that_stays_closed_is_not_waited_for_longer() {
    // RFC 9293 §3.8.6.1 would probe it for as long as the peer answers.
    native_only!();
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
fn who_closes_last_lingers_no_longer() {
    // RFC 9293 §3.3.2, LAST-ACK.
    native_only!();
    let mut s = lingering(ms(100));
    s.inject(fin(1, 1));
    s.expect_within(DELAYED_ACK, ack(1, 2));
    s.expect_peer_closed();
    s.close();
    s.expect(fin(1, 2));
    s.pass(ms(50));
    s.drain();
    s.expect_within(ms(60), rst_ack(2, 2));
    s.expect_closed(CloseReason::Aborted);
}

#[test]
fn to_linger_for_no_time_is_to_reset() {
    // RFC 9293 §3.10.5: what is queued is not sent.
    native_only!();
    let mut s = lingering(Duration::ZERO);
    s.inject(ack(1, 1).window(0));
    s.write(1000);
    s.expect_nothing();
    s.close();
    s.expect(rst_ack(1, 1));
    s.expect_closed(CloseReason::Aborted);
    s.expect_all_packets_back();
}

#[test]
fn a_connection_that_is_not_closed_does_not_linger() {
    native_only!();
    let mut s = lingering(secs(2));
    s.write(1000);
    s.expect(data(1, 1000));
    s.pass(secs(10));
    s.drain();
    s.inject(ack(1, 1001));
    s.expect_alive(1, 1001);
}
