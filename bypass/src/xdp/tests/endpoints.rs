//! The program for endpoints of the kernel's addresses.

use super::{PASS, REDIRECTED, frame, load_with_counter, octets};
use crate::xdp::Endpoints;
use crate::xdp::endpoints::EndpointSet;
use crate::xdp::sys;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

const OWN_V4: &str = "203.0.113.7";
const OWN_V6: &str = "2001:db8::7";

fn addresses() -> Vec<IpAddr> {
    [OWN_V4, OWN_V6].map(|ip| ip.parse().unwrap()).into()
}

/// Loads the program for port 7 of both protocols and addresses, port 80 of IPv4, and outgoing ports from 61000 on.
fn load() -> Option<(EndpointSet, OwnedFd, OwnedFd)> {
    load_next_to(0)
}

/// Loads the program with that many further ports, which are too many to be compared one by one.
fn load_next_to(further: u16) -> Option<(EndpointSet, OwnedFd, OwnedFd)> {
    let parse = |all: &[&str]| all.iter().map(|address| address.parse().unwrap()).collect();
    let mut endpoints = Endpoints {
        tcp: parse(&["0.0.0.0:7", "[::]:7", "203.0.113.7:80", "203.0.113.8:81"]),
        udp: parse(&["203.0.113.7:7", "[2001:db8::7]:7"]),
        outgoing: Some(61_000..=65_535),
        may_grow: false,
    };
    endpoints.udp.extend((1000..1000 + further).map(|port| SocketAddr::new(addresses()[0], port)));
    let set = match EndpointSet::new(endpoints) {
        Ok(set) => set,
        Err(error) => {
            println!("skipped: creating a map: {error}");
            return None;
        }
    };
    set.set_addresses(&addresses()).unwrap();
    let (program, passed) = load_with_counter(set.selection())?;
    Some((set, program, passed))
}

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Returns an IPv4 packet with ports.
fn ipv4(to: &str, protocol: u8, port: u16) -> Vec<u8> {
    frame(0x0800, 60, &[(14, &[0x45]), (23, &[protocol]), (30, &octets(to)), (36, &port.to_be_bytes())])
}

/// Returns an IPv6 packet with ports.
fn ipv6(to: &str, protocol: u8, port: u16) -> Vec<u8> {
    frame(0x86dd, 80, &[(14, &[0x60]), (20, &[protocol]), (38, &octets(to)), (56, &port.to_be_bytes())])
}

/// Returns an ICMP error about a packet from `from`.
fn icmpv4(kind: u8, from: &str, protocol: u8, port: u16) -> Vec<u8> {
    let mut error = frame(0x0800, 70, &[(14, &[0x45]), (23, &[1]), (30, &octets(OWN_V4)), (34, &[kind])]);
    error[42] = 0x45;
    error[51] = protocol;
    error[54..58].copy_from_slice(&octets(from));
    error[62..64].copy_from_slice(&port.to_be_bytes());
    error
}

fn icmpv6(kind: u8, from: &str, protocol: u8, port: u16) -> Vec<u8> {
    let mut error = frame(0x86dd, 110, &[(14, &[0x60]), (20, &[58]), (38, &octets(OWN_V6)), (54, &[kind])]);
    error[68] = protocol;
    error[70..86].copy_from_slice(&octets(from));
    error[102..104].copy_from_slice(&port.to_be_bytes());
    error
}

/// Returns `frame` with bytes replaced.
fn with(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

/// Returns frames with their names and expected results.
fn corpus() -> Vec<(&'static str, Vec<u8>, u32)> {
    let vlan = [&[0; 12][..], &[0x81, 0, 0, 5], &ipv4(OWN_V4, TCP, 7)[12..]].concat();
    vec![
        ("TCP", ipv4(OWN_V4, TCP, 7), REDIRECTED),
        ("TCP to a port at one address", ipv4(OWN_V4, TCP, 80), REDIRECTED),
        ("UDP", ipv4(OWN_V4, UDP, 7), REDIRECTED),
        ("TCP over IPv6", ipv6(OWN_V6, TCP, 7), REDIRECTED),
        ("UDP over IPv6", ipv6(OWN_V6, UDP, 7), REDIRECTED),
        ("reply to an outgoing connection", ipv4(OWN_V4, TCP, 61_000), REDIRECTED),
        ("reply to the last outgoing port", ipv6(OWN_V6, TCP, 65_535), REDIRECTED),
        ("ssh", ipv4(OWN_V4, TCP, 22), PASS),
        ("ssh over IPv6", ipv6(OWN_V6, TCP, 22), PASS),
        ("reply to a connection of the kernel", ipv4(OWN_V4, TCP, 60_999), PASS),
        ("port 0", ipv4(OWN_V4, TCP, 0), PASS),
        ("UDP to an outgoing port of TCP", ipv4(OWN_V4, UDP, 61_000), PASS),
        ("UDP to a port of TCP", ipv4(OWN_V4, UDP, 80), PASS),
        ("port of an address that the interface does not have", ipv4("203.0.113.8", TCP, 81), PASS),
        ("wildcard port of another address", ipv4("203.0.113.9", TCP, 7), PASS),
        ("IPv6 with an equal upper half", ipv6("2001:db8::8", TCP, 7), PASS),
        ("IPv6 with an equal lower half", ipv6("2001:db9::7", TCP, 7), PASS),
        ("IPv4 address in the lower bits of IPv6", ipv6("::203.0.113.7", TCP, 7), PASS),
        ("SCTP", ipv4(OWN_V4, 132, 7), PASS),
        ("IP options", with(ipv4(OWN_V4, TCP, 7), 14, &[0x46]), PASS),
        ("first fragment", with(ipv4(OWN_V4, TCP, 7), 20, &[0x20]), PASS),
        ("later fragment", with(ipv4(OWN_V4, TCP, 7), 21, &[1]), PASS),
        ("don't fragment", with(ipv4(OWN_V4, TCP, 7), 20, &[0x40]), REDIRECTED),
        ("fragment of IPv6", ipv6(OWN_V6, 44, 7), PASS),
        ("hop-by-hop options", ipv6(OWN_V6, 0, 7), PASS),
        ("VLAN tag", vlan, PASS),
        ("ARP", frame(0x0806, 42, &[(38, &octets(OWN_V4))]), PASS),
        ("neighbour solicitation", with(icmpv6(135, OWN_V6, TCP, 7), 62, &octets(OWN_V6)), PASS),
        ("echo request", with(ipv4(OWN_V4, 1, 7), 34, &[8]), PASS),
        ("unreachable", icmpv4(3, OWN_V4, TCP, 7), REDIRECTED),
        ("unreachable for an outgoing connection", icmpv4(3, OWN_V4, TCP, 62_000), REDIRECTED),
        ("unreachable for the kernel", icmpv4(3, OWN_V4, TCP, 22), PASS),
        ("unreachable for UDP", icmpv4(3, OWN_V4, UDP, 7), REDIRECTED),
        ("unreachable about another host", icmpv4(3, "203.0.113.9", TCP, 7), PASS),
        ("unreachable with a quoted fragment", with(icmpv4(3, OWN_V4, TCP, 7), 49, &[1]), PASS),
        ("time exceeded", icmpv4(11, OWN_V4, TCP, 7), PASS),
        ("packet too big", icmpv6(2, OWN_V6, TCP, 7), REDIRECTED),
        ("unreachable over IPv6", icmpv6(1, OWN_V6, TCP, 61_001), REDIRECTED),
        ("packet too big for the kernel", icmpv6(2, OWN_V6, TCP, 22), PASS),
        ("packet too big for UDP", icmpv6(2, OWN_V6, UDP, 7), REDIRECTED),
        ("unreachable for UDP of the kernel", icmpv4(3, OWN_V4, UDP, 53), PASS),
        ("unreachable for SCTP", icmpv4(3, OWN_V4, 132, 7), PASS),
        ("other protocol", frame(0x88cc, 64, &[]), PASS),
    ]
}

#[test]
fn frames_of_endpoints_are_redirected_and_others_pass() {
    for further in [0, 100] {
        let Some((_set, program, _)) = load_next_to(further) else { return };
        for (name, frame, expected) in corpus() {
            // The key of all outgoing ports has port 0, from which no host sends.
            let expected = if name == "port 0" && further > 0 { REDIRECTED } else { expected };
            assert_eq!(sys::test_run(&program, &frame, 1).unwrap().0, expected, "{name}, {further} further ports");
        }
    }
}

#[test]
fn truncated_frames_pass() {
    let Some((_set, program, _)) = load() else { return };
    for (name, whole, headers) in [
        ("IPv4", ipv4(OWN_V4, TCP, 7), 38),
        ("IPv6", ipv6(OWN_V6, TCP, 7), 58),
        ("ICMP", icmpv4(3, OWN_V4, TCP, 7), 66),
        ("ICMPv6", icmpv6(2, OWN_V6, TCP, 7), 106),
    ] {
        for length in 14..whole.len() {
            let expected = if length < headers { PASS } else { REDIRECTED };
            assert_eq!(sys::test_run(&program, &whole[..length], 1).unwrap().0, expected, "{name}, {length} bytes");
        }
    }
}

#[test]
fn passed_frames_are_counted() {
    let Some((_set, program, passed)) = load() else { return };
    let count = || sys::read_counter(&passed, sys::possible_processors().unwrap()).unwrap();
    assert_eq!(count(), 0);
    sys::test_run(&program, &ipv4(OWN_V4, TCP, 22), 5).unwrap();
    sys::test_run(&program, &ipv4(OWN_V4, TCP, 7), 5).unwrap();
    assert_eq!(count(), 5);
}

#[test]
fn addresses_of_endpoints_change_while_the_program_runs() {
    let Some((set, program, _)) = load() else { return };
    let run = |frame: Vec<u8>| sys::test_run(&program, &frame, 1).unwrap().0;
    set.set_addresses(&["203.0.113.8".parse().unwrap()]).unwrap();
    for (name, frame, expected) in [
        ("removed", ipv4(OWN_V4, TCP, 7), PASS),
        ("removed, outgoing", ipv4(OWN_V4, TCP, 61_000), PASS),
        ("added", ipv4("203.0.113.8", TCP, 7), REDIRECTED),
        ("added, outgoing", ipv4("203.0.113.8", TCP, 61_000), REDIRECTED),
        ("port at the added address", ipv4("203.0.113.8", TCP, 81), REDIRECTED),
    ] {
        assert_eq!(run(frame), expected, "{name}");
    }
    set.set_addresses(&[]).unwrap();
    assert_eq!(run(ipv4("203.0.113.8", TCP, 7)), PASS);
}

/// Prints the time that the program adds to a frame of the kernel: see
/// [`super::nanoseconds_per_passed_frame`].
#[test]
#[ignore = "a measurement"]
fn nanoseconds_per_frame_by_endpoint() {
    let Some((_set, program, _)) = load() else { return };
    for (name, frame) in
        [("ssh", ipv4(OWN_V4, TCP, 22)), ("ARP", frame(0x0806, 42, &[])), ("IPv6", ipv6(OWN_V6, TCP, 22))]
    {
        println!("{name}: {} ns", sys::test_run(&program, &frame, 10_000_000).unwrap().1);
    }
}
