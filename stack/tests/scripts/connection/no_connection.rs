//! Segments that open no connection: to closed ports, to listeners, and in SYN-SENT. RFC 9293 §3.10.7.1 to §3.10.7.3.

use crate::harness::*;

/// Drop cause of segments without SYN, RST or ACK, and of SYN+FIN, to a listening port.
const INVALID_FLAGS: &str = "segment to a listening port with invalid flags";

#[test]
fn closed_port_resets_every_segment_except_rst() {
    // RFC 9293 §3.10.7.1.
    let mut s = Script::listen(peer(), |config| config.listen = vec!["10.0.0.2:8".parse().unwrap()]);
    s.inject(syn(0)).expect(refusal(1));
    s.inject(syn(0).len(10)).expect(refusal(11));
    s.inject(data(5, 10).no_ack()).expect(refusal(15));
    s.inject(fin(5, 0).no_ack()).expect(refusal(6));
    s.inject(ack(5, 77)).expect(rst(77));
    s.inject(data(5, 10).ack(78)).expect(rst(78));
    s.inject(syn_ack(5, 79)).expect(rst(79));
    for reset in [rst(5), rst_ack(5, 77), rst(5).with(SYN)] {
        s.inject(reset).expect_nothing();
    }
}

#[test]
fn ignored_syns_are_left_to_another_process() {
    let mut s = Script::listen(peer(), |config| {
        config.listen = vec!["10.0.0.2:8".parse().unwrap()];
        config.ignore_syns = true;
    });
    s.inject(syn(0)).expect_nothing();
    s.inject(ack(5, 77)).expect(rst(77));
    s.inject(syn_ack(5, 79)).expect(rst(79));
}

#[test]
fn closed_port_refuses_syn_with_any_options() {
    // RFC 9293 §3.10.7.1.
    for listen in ["10.0.0.2:8", "10.0.0.3:7", "[::]:7"] {
        let mut s = Script::listen(peer().sack().timestamps().window_scale(7), |config| {
            config.listen = vec![listen.parse().unwrap()];
        });
        s.inject_syn(syn(0)).expect(refusal(1));
    }
}

#[test]
fn listener_resets_ack_and_ignores_rst() {
    // RFC 9293 §3.10.7.2, first and second.
    let mut s = Script::listen(peer(), |_| {});
    s.inject(ack(5, 77)).expect(rst(77));
    s.inject(syn_ack(5, 78)).expect(rst(78));
    s.inject(fin(5, 79)).expect(rst(79));
    for reset in [rst(0), rst_ack(0, 77)] {
        s.inject(reset).expect_nothing();
    }
    s.handshake();
}

/// Returns segments without SYN, RST or ACK, as port scanners send them (FIN, NULL, XMAS), and SYN+FIN.
fn probes() -> [Seg; 6] {
    let with = |flags| data(0, 0).no_ack().flags(flags);
    [with(FIN), with(0), with(FIN | PSH | URG), with(URG), with(SYN | FIN), data(0, 10).no_ack()]
}

#[test]
fn listener_discards_segments_without_syn_rst_or_ack() {
    // RFC 9293 §3.10.7.2, fourth: dropped silently. SYN+FIN is dropped as other systems do.
    for peer in [peer(), peer().ipv6()] {
        let mut s = Script::listen(peer, |_| {});
        for probe in probes() {
            s.inject(probe).expect_nothing();
        }
        assert_eq!(s.drops(INVALID_FLAGS), probes().len() as u64);
        s.handshake();
    }
}

#[test]
fn full_listener_discards_segments_without_syn_rst_or_ack() {
    // As above, while SYNs get cookies (RFC 4987 §3.6).
    let mut s = Script::listen(peer(), |config| config.max_half_open = 0);
    s.inject_syn(syn(0).port(5001)).expect(syn_ack(0, 1).port(5001));
    for probe in probes() {
        s.inject(probe).expect_nothing();
    }
    s.handshake();
}

#[test]
fn probe_before_syn_does_not_refuse_connection() {
    // RFC 9293 §3.10.7.3, second: a reset that acknowledges the SYN would refuse the connection that follows the probe.
    let usual = peer().sack().timestamps().window_scale(7);
    for probe in probes() {
        for peer in [peer(), usual.clone()] {
            let mut s = Script::listen(peer.clone(), |_| {});
            let hello = s.syn_with_options(syn(0));
            s.inject_burst([probe.clone(), hello]).expect(syn_ack(0, 1));
            s.inject(ack(1, 1)).expect_opened();
            s.expect_alive(1, 1);
        }
    }
}

#[test]
fn closed_port_refuses_syn_with_fin() {
    // RFC 9293 §3.10.7.1: every segment except RST is reset. SYN and FIN occupy one sequence number each.
    let mut s = Script::listen(peer(), |config| config.listen = vec!["10.0.0.2:8".parse().unwrap()]);
    for (flags, ack) in [(SYN | FIN, 2), (0, 0), (FIN | PSH | URG, 1)] {
        s.inject(data(0, 0).no_ack().flags(flags)).expect(refusal(ack));
    }
    assert_eq!(s.drops(INVALID_FLAGS), 0);
}

#[test]
fn refused_connection_attempt_fails() {
    // RFC 9293 §3.10.7.3, second.
    let mut s = Script::connecting(peer(), |_| {});
    s.expect(syn(0));
    s.inject(rst_ack(0, 1)).expect_failed(ConnectError::Refused);
    s.expect_nothing_for(secs(60));
    s.expect_no_packets_held();
}

#[test]
fn syn_sent_ignores_rst_without_ack_of_syn() {
    // RFC 9293 §3.10.7.3, first and second.
    let mut s = Script::connecting(peer(), |_| {});
    s.expect(syn(0));
    for reset in [rst(0), rst_ack(0, 0), rst_ack(0, 2), rst_ack(0, -5)] {
        s.inject(reset).expect_nothing();
    }
    s.expect_no_event();
    s.inject_syn(syn_ack(0, 1)).expect(ack(1, 1));
    s.expect_opened();
}

#[test]
fn syn_sent_resets_syn_ack_of_another_syn() {
    // RFC 9293 §3.10.7.3, first; §3.5.1, figure 9.
    let mut s = Script::connecting(peer(), |_| {});
    s.expect(syn(0));
    for wrong in [0, 2, -5, 100_000] {
        s.inject_syn(syn_ack(0, wrong)).expect(rst(wrong));
        s.inject(ack(5, wrong)).expect(rst(wrong));
    }
    s.inject_syn(syn_ack(0, 1)).expect(ack(1, 1));
    s.expect_opened();
    s.expect_alive(1, 1);
}

#[test]
fn syn_sent_ignores_ack_without_syn() {
    // RFC 9293 §3.10.7.3, fifth.
    let mut s = Script::connecting(peer(), |_| {});
    s.expect(syn(0));
    for segment in [ack(1, 1), fin(1, 1), data(1, 10).ack(1), data(1, 10).no_ack()] {
        s.inject(segment).expect_nothing();
    }
    s.expect_no_event();
    s.inject_syn(syn_ack(0, 1)).expect(ack(1, 1));
    s.expect_opened();
}
