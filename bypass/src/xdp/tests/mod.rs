//! Runs of the program over frames (`BPF_PROG_TEST_RUN`).

mod endpoints;

use super::program::{Fallback, Frames, Selection, assemble};
use super::{btf, sys};
use std::net::IpAddr;
use std::os::fd::OwnedFd;

const PASS: u32 = 2;
/// Result of a redirected frame: its queue has no socket here.
const REDIRECTED: u32 = 0;

fn addresses() -> Vec<IpAddr> {
    ["10.0.0.5", "203.0.113.7", "fd00::5", "2001:db8::1:ff00:7"].map(|ip| ip.parse().unwrap()).into()
}

/// Loads the program for addresses, or prints the error.
fn load(addresses: &[IpAddr]) -> Option<OwnedFd> {
    load_with_counter(Frames::Addresses(addresses)).map(|(program, _)| program)
}

/// Loads a program with its counter, or prints the error.
fn load_with_counter(frames: Frames) -> Option<(OwnedFd, OwnedFd)> {
    let sockets = match sys::create_xsk_map(4) {
        Ok(map) => map,
        Err(error) => {
            println!("skipped: creating a map: {error}");
            return None;
        }
    };
    let passed = sys::create_counter().unwrap();
    let btf = sys::load_btf(&btf::describe()).unwrap();
    let code = assemble(&Selection::Some { frames, passed: &passed }, &sockets, None, Fallback::Abort);
    Some((sys::load_program(&code, &btf, btf::FUNCTION, None).unwrap(), passed))
}

/// Returns a frame of at least `length` bytes with the given fields.
fn frame(ether_type: u16, length: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut frame = vec![0; length];
    frame[12..14].copy_from_slice(&ether_type.to_be_bytes());
    for (at, bytes) in fields {
        frame[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    frame
}

fn octets(ip: &str) -> Vec<u8> {
    match ip.parse().unwrap() {
        IpAddr::V4(ip) => ip.octets().into(),
        IpAddr::V6(ip) => ip.octets().into(),
    }
}

fn ipv4_to(ip: &str) -> Vec<u8> {
    frame(0x0800, 64, &[(30, &octets(ip))])
}

fn ipv6_to(ip: &str) -> Vec<u8> {
    frame(0x86dd, 86, &[(38, &octets(ip))])
}

fn arp_for(ip: &str) -> Vec<u8> {
    frame(0x0806, 42, &[(38, &octets(ip))])
}

/// Returns an ICMPv6 message to the solicited-node group ff02::1:ff00:5 with a target.
fn icmpv6(kind: u8, target: &str) -> Vec<u8> {
    frame(0x86dd, 86, &[(20, &[58]), (38, &octets("ff02::1:ff00:5")), (54, &[kind]), (62, &octets(target))])
}

#[test]
fn frames_of_own_addresses_are_redirected_and_others_pass() {
    let Some(program) = load(&addresses()) else { return };
    let vlan = frame(0x8100, 64, &[(16, &[8, 0]), (34, &octets("10.0.0.5"))]);
    for (name, frame, expected) in [
        ("IPv4", ipv4_to("10.0.0.5"), REDIRECTED),
        ("IPv4 with the highest bit", ipv4_to("203.0.113.7"), REDIRECTED),
        ("IPv4 to the kernel", ipv4_to("10.0.0.4"), PASS),
        ("IPv4 broadcast", ipv4_to("255.255.255.255"), PASS),
        ("IPv6", ipv6_to("fd00::5"), REDIRECTED),
        ("IPv6, second address", ipv6_to("2001:db8::1:ff00:7"), REDIRECTED),
        ("IPv6 with an equal upper half", ipv6_to("fd00::6"), PASS),
        ("IPv6 with an equal lower half", ipv6_to("fd01::5"), PASS),
        ("ARP", arp_for("10.0.0.5"), REDIRECTED),
        ("ARP for the kernel", arp_for("10.0.0.4"), PASS),
        ("solicitation", icmpv6(135, "fd00::5"), REDIRECTED),
        ("solicitation of the kernel", icmpv6(135, "fd00::1:0:5"), PASS),
        ("other ICMPv6 to the group", icmpv6(128, "fd00::5"), PASS),
        ("VLAN tag", vlan, PASS),
        ("other protocol", frame(0x88cc, 64, &[]), PASS),
    ] {
        assert_eq!(sys::test_run(&program, &frame, 1).unwrap().0, expected, "{name}");
    }
}

#[test]
fn truncated_frames_pass() {
    let Some(program) = load(&addresses()) else { return };
    for (name, whole, header) in [
        ("IPv4", ipv4_to("10.0.0.5"), 34),
        ("ARP", arp_for("10.0.0.5"), 42),
        ("IPv6", ipv6_to("fd00::5"), 54),
        ("solicitation", icmpv6(135, "fd00::5"), 78),
    ] {
        for length in 14..whole.len() {
            let expected = if length < header { PASS } else { REDIRECTED };
            assert_eq!(sys::test_run(&program, &whole[..length], 1).unwrap().0, expected, "{name}, {length} bytes");
        }
    }
}

#[test]
fn program_is_accepted_with_many_addresses() {
    let many: Vec<IpAddr> = (0..32_u8)
        .flat_map(|n| [format!("10.0.0.{n}"), format!("fd00::{n:x}")])
        .map(|ip| ip.parse().unwrap())
        .collect();
    let Some(program) = load(&many) else { return };
    assert_eq!(sys::test_run(&program, &ipv6_to("fd00::1f"), 1).unwrap().0, REDIRECTED);
}

/// Prints the time that the program adds to a frame of the kernel: `cargo test -p linerate-bypass --features dpdk --lib
/// -- --ignored --nocapture nanoseconds`.
#[test]
#[ignore = "a measurement"]
fn nanoseconds_per_passed_frame() {
    let Some(program) = load(&addresses()[..1]) else { return };
    for (name, frame) in [("IPv4", ipv4_to("10.0.0.4")), ("ARP", arp_for("10.0.0.4")), ("IPv6", ipv6_to("fd00::6"))] {
        println!("{name}: {} ns", sys::test_run(&program, &frame, 10_000_000).unwrap().1);
    }
}

#[test]
fn rejected_program_is_an_error_with_the_log_of_the_verifier() {
    if sys::create_xsk_map(1).is_err() {
        return;
    }
    let mut asm = super::asm::Assembler::default();
    asm.exit();
    let btf = sys::load_btf(&btf::describe()).unwrap();
    let error = sys::load_program(&asm.finish(), &btf, btf::FUNCTION, None).unwrap_err();
    assert!(error.to_string().contains("R0 !read_ok") && !error.is_permission(), "{error}");
}

#[test]
fn solicited_node_group_has_the_last_24_bits() {
    let group = |ip: &str| super::program::solicited_node(ip.parse().unwrap());
    assert_eq!(group("2001:db8::1:fe12:3456"), Some("ff02::1:ff12:3456".parse().unwrap()));
    assert_eq!(group("10.0.0.5"), None);
}

#[test]
fn attachment_ends_when_it_is_dropped_and_excludes_another() {
    use super::{Attachment, SharedInterface, XdpError};
    let Ok(_) = sys::create_xsk_map(1) else { return };
    let share = || SharedInterface::attach("lo", &addresses(), None).map(|(_, attachment)| attachment);
    let attach = || Attachment::of_all("lo");
    let first = attach().unwrap();
    assert!(first.is_attached());
    for second in [attach(), share()] {
        assert!(matches!(second.unwrap_err(), XdpError::Occupied(name) if name == "lo"));
    }
    drop(first);
    drop(share().unwrap());
    drop(attach().unwrap());
}
