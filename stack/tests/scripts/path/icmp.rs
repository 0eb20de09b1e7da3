//! ICMP errors of connections: RFC 9293 §3.9.2.2, RFC 5461, RFC 5927.

use crate::harness::*;

/// Type "destination unreachable" and its codes.
const UNREACHABLE: u8 = 3;
const NETWORK: u8 = 0;
const HOST: u8 = 1;
const PROTOCOL: u8 = 2;
const PORT: u8 = 3;
const SOURCE_QUENCH: u8 = 4;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;

/// ICMPv6 type "destination unreachable" and its code "address unreachable".
const UNREACHABLE6: u8 = 1;
const ADDRESS6: u8 = 3;

#[test]
fn connection_attempt_fails_if_syn_is_unreachable() {
    // RFC 5461 §4.1; RFC 5927 §4.1: the error must quote the sequence number of the SYN.
    for code in [NETWORK, HOST, PORT] {
        let mut s = Script::connecting(peer(), |_| {});
        let sent = s.expect(syn(0));
        s.inject_icmp(UNREACHABLE, code, 0, &sent);
        s.expect_failed(ConnectError::Unreachable);
        s.expect_nothing_for(secs(60));
    }
}

#[test]
fn connection_attempt_over_ipv6_fails_if_syn_is_unreachable() {
    // RFC 5461 §4.1; RFC 4443 §3.1.
    let mut s = Script::connecting(peer().ipv6(), |_| {});
    let sent = s.expect(syn(0));
    s.inject_icmp(UNREACHABLE6, ADDRESS6, 0, &sent);
    s.expect_failed(ConnectError::Unreachable);
    s.expect_nothing_for(secs(60));
}

#[test]
fn error_about_other_sequence_number_is_ignored() {
    // RFC 5927 §4.1.
    let mut s = Script::connecting(peer(), |_| {});
    let sent = s.expect(syn(0));
    for at in [24, 27] {
        // After an IP header of 20 bytes the sequence number is at offset 24.
        let mut packet = sent.raw.packet.clone();
        packet[at] ^= 1;
        s.inject_icmp_quoting(UNREACHABLE, HOST, 0, &packet);
    }
    s.expect_no_event();
    s.inject_syn(syn_ack(0, 1)).expect(ack(1, 1));
    s.expect_opened();
}

#[test]
fn established_connection_survives_errors() {
    // Soft errors: RFC 9293 §3.9.2.2 MUST-56. Hard errors: RFC 5461 §4, RFC 5927 §5.2, since otherwise any sender of
    // ICMP errors could close connections.
    let soft =
        [(UNREACHABLE, NETWORK), (UNREACHABLE, HOST), (UNREACHABLE, 5), (TIME_EXCEEDED, 0), (PARAMETER_PROBLEM, 0)];
    for errors in [&soft[..], &[(UNREACHABLE, PROTOCOL), (UNREACHABLE, PORT)]] {
        let mut s = Script::accepted(peer());
        let sent = s.write(1000).expect(data(1, 1000));
        for (kind, code) in errors {
            s.inject_icmp(*kind, *code, 0, &sent);
        }
        s.expect_nothing();
        s.inject(ack(1, 1001)).expect_alive(1, 1001);
    }
}

#[test]
fn source_quench_is_discarded() {
    // RFC 9293 §3.9.2.2 MUST-55; RFC 6633.
    let mut s = Script::accepted(peer());
    let sent = s.write(1000).expect(data(1, 1000));
    s.inject_icmp(SOURCE_QUENCH, 0, 0, &sent);
    s.inject(ack(1, 1001));
    s.write(2000).expect_flight(1001, 2);
}

#[test]
fn errors_with_short_quote_are_ignored() {
    // RFC 792: an error quotes 64 bits of the segment. A shorter quote identifies no connection.
    let mut s = Script::connecting(peer(), |_| {});
    let sent = s.expect(syn(0));
    for len in [0, 1, 19, 20, 21, 24, 27] {
        s.inject_icmp_quoting(UNREACHABLE, HOST, 0, &sent.raw.packet[..len]);
    }
    s.expect_no_event();
    s.drain_non_tcp();
    s.inject_syn(syn_ack(0, 1)).expect(ack(1, 1));
    s.expect_opened();
}
