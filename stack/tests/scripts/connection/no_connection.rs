//! Segments that begin no connection: to closed ports, to listeners, and in answer to a SYN. RFC 9293 §3.10.7.1 to §3.10.7.3.

use super::harness::*;

/// The name of the cause under which such segments are counted.
const INVALID_FLAGS: &str = "segment to a listening port with invalid flags";

#[test]
fn a_closed_port_refuses_every_segment_but_a_reset() {
    // RFC 9293 §3.10.7.1.
    let mut s = Script::listen(peer(), |config| config.listen = vec!["10.0.0.2:8".parse().unwrap()]);
    s.inject(syn(0));
    s.expect(refusal(1));
    s.inject(syn(0).len(10));
    s.expect(refusal(11));
    s.inject(data(5, 10).no_ack());
    s.expect(refusal(15));
    s.inject(fin(5, 0).no_ack());
    s.expect(refusal(6));
    s.inject(ack(5, 77));
    s.expect(rst(77));
    s.inject(data(5, 10).ack(78));
    s.expect(rst(78));
    s.inject(syn_ack(5, 79));
    s.expect(rst(79));
    for reset in [rst(5), rst_ack(5, 77), rst(5).with(SYN)] {
        s.inject(reset);
        s.expect_nothing();
    }
}

#[test]
fn a_closed_port_refuses_connections_whatever_they_offer() {
    // RFC 9293 §3.10.7.1.
    for listen in ["10.0.0.2:8", "10.0.0.3:7", "[::]:7"] {
        let mut s = Script::listen(peer().sack().timestamps().window_scale(7), |config| {
            config.listen = vec![listen.parse().unwrap()];
        });
        s.inject_hello(syn(0));
        s.expect(refusal(1));
    }
}

#[test]
fn a_listener_refuses_what_acknowledges_something_and_ignores_resets() {
    // RFC 9293 §3.10.7.2, first and second.
    let mut s = Script::listen(peer(), |_| {});
    s.inject(ack(5, 77));
    s.expect(rst(77));
    s.inject(syn_ack(5, 78));
    s.expect(rst(78));
    s.inject(fin(5, 79));
    s.expect(rst(79));
    for reset in [rst(0), rst_ack(0, 77)] {
        s.inject(reset);
        s.expect_nothing();
    }
    s.shake_hands();
}

/// Segments without SYN, RST or ACK, as port scanners send them (FIN, NULL, XMAS), and a SYN that is a FIN too.
fn probes() -> [Seg; 6] {
    let with = |flags| data(0, 0).no_ack().flags(flags);
    [with(FIN), with(0), with(FIN | PSH | URG), with(URG), with(SYN | FIN), data(0, 10).no_ack()]
}

#[test]
fn a_listener_discards_segments_without_syn_rst_or_ack() {
    // RFC 9293 §3.10.7.2, fourth: dropped silently. A SYN+FIN begins nothing, and is dropped as other systems do.
    for peer in [peer(), peer().ipv6()] {
        let mut s = Script::listen(peer, |_| {});
        for probe in probes() {
            s.inject(probe);
            s.expect_nothing();
        }
        assert_eq!(s.drops(INVALID_FLAGS), probes().len() as u64);
        s.shake_hands();
    }
}

#[test]
fn a_full_listener_discards_segments_without_syn_rst_or_ack() {
    // As above, where SYNs are answered by cookies (RFC 4987 §3.6).
    native_only!();
    let mut s = Script::listen(peer(), |config| config.max_half_open = 0);
    s.inject_hello(syn(0).port(5001));
    s.expect(syn_ack(0, 1).port(5001));
    for probe in probes() {
        s.inject(probe);
        s.expect_nothing();
    }
    s.shake_hands();
}

#[test]
fn a_probe_before_a_syn_does_not_refuse_the_connection() {
    // RFC 9293 §3.10.7.3, second: a reset that acknowledges the SYN would refuse the connection that begins behind the probe.
    let usual = peer().sack().timestamps().window_scale(7);
    for probe in probes() {
        for peer in [peer(), usual.clone()] {
            let mut s = Script::listen(peer.clone(), |_| {});
            let hello = s.hello(syn(0));
            s.inject_burst([probe.clone(), hello]);
            s.expect(syn_ack(0, 1));
            s.inject(ack(1, 1));
            s.expect_opened();
            s.expect_alive(1, 1);
        }
    }
}

#[test]
fn a_closed_port_refuses_a_syn_that_is_a_fin_too() {
    // RFC 9293 §3.10.7.1: all segments but resets are refused; SYN and FIN take up a number each.
    let mut s = Script::listen(peer(), |config| config.listen = vec!["10.0.0.2:8".parse().unwrap()]);
    for (flags, ack) in [(SYN | FIN, 2), (0, 0), (FIN | PSH | URG, 1)] {
        s.inject(data(0, 0).no_ack().flags(flags));
        s.expect(refusal(ack));
    }
    assert_eq!(s.drops(INVALID_FLAGS), 0);
}

#[test]
fn a_connection_that_is_refused_fails() {
    // RFC 9293 §3.10.7.3, second.
    let mut s = Script::connecting(peer(), |_| {});
    s.expect(syn(0));
    s.inject(rst_ack(0, 1));
    s.expect_failed(ConnectError::Refused);
    s.expect_nothing_for(secs(60));
    s.expect_all_packets_back();
}

#[test]
fn a_reset_that_does_not_acknowledge_our_syn_refuses_nothing() {
    // RFC 9293 §3.10.7.3, first and second.
    let mut s = Script::connecting(peer(), |_| {});
    s.expect(syn(0));
    for reset in [rst(0), rst_ack(0, 0), rst_ack(0, 2), rst_ack(0, -5)] {
        s.inject(reset);
        s.expect_nothing();
    }
    s.expect_no_event();
    s.inject_hello(syn_ack(0, 1));
    s.expect(ack(1, 1));
    s.expect_opened();
}

#[test]
fn an_answer_to_another_syn_is_reset_and_the_right_one_is_taken() {
    // RFC 9293 §3.10.7.3, first; §3.5.1, figure 9.
    native_only!();
    let mut s = Script::connecting(peer(), |_| {});
    s.expect(syn(0));
    for wrong in [0, 2, -5, 100_000] {
        s.inject_hello(syn_ack(0, wrong));
        s.expect(rst(wrong));
        s.inject(ack(5, wrong));
        s.expect(rst(wrong));
    }
    s.inject_hello(syn_ack(0, 1));
    s.expect(ack(1, 1));
    s.expect_opened();
    s.expect_alive(1, 1);
}

#[test]
fn an_acknowledgement_of_our_syn_without_the_peers_is_ignored() {
    // RFC 9293 §3.10.7.3, fifth.
    let mut s = Script::connecting(peer(), |_| {});
    s.expect(syn(0));
    for segment in [ack(1, 1), fin(1, 1), data(1, 10).ack(1), data(1, 10).no_ack()] {
        s.inject(segment);
        s.expect_nothing();
    }
    s.expect_no_event();
    s.inject_hello(syn_ack(0, 1));
    s.expect(ack(1, 1));
    s.expect_opened();
}
