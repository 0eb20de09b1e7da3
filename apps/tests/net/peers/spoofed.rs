//! SYN segments and neighbour solicitations with forged source addresses, sent through a raw kernel socket.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Protocol number of TCP (RFC 9293 §3.1).
const TCP: u8 = 6;
/// Protocol number of ICMPv6 (RFC 4443 §1).
const ICMPV6: u8 = 58;
/// Upper half of on-link addresses.
const ON_LINK: u128 = 0xfd09 << 112;

/// Sender of packets to one address, each from a different source: SYNs from the benchmarking ranges (RFC 2544, RFC
/// 5180), or neighbour solicitations from on-link addresses.
pub struct Flood {
    socket: OwnedFd,
    to: SocketAddr,
    random: fastrand::Rng,
    message: Message,
}

#[derive(Clone, Copy)]
enum Message {
    Syn,
    NeighborSolicitation,
}

impl Flood {
    /// Creates a flood of neighbour solicitations for the IPv6 address `to`, each from a different on-link address.
    pub fn solicitations(to: SocketAddr) -> Flood {
        Flood { message: Message::NeighborSolicitation, ..Flood::new(to) }
    }

    /// Creates a flood of SYNs to `to`.
    pub fn new(to: SocketAddr) -> Flood {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        // With IPPROTO_RAW the kernel expects the IP header from the program.
        let socket = socket(family, SocketType::RAW, Some(ipproto::RAW)).unwrap();
        Flood { socket, to, random: fastrand::Rng::with_seed(u64::from(to.is_ipv6())), message: Message::Syn }
    }

    /// Sends `per_millisecond` packets every millisecond until `stop`, and counts them in `sent`.
    pub fn run(mut self, per_millisecond: u32, sent: &AtomicU64, stop: &AtomicBool) {
        let mut next = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let taken = (0..per_millisecond).filter(|_| self.send()).count();
            sent.fetch_add(taken as u64, Ordering::Relaxed);
            // A late interval is not made up for.
            next = (next + Duration::from_millis(1)).max(Instant::now());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    /// Sends one packet. Returns whether the kernel accepted it.
    fn send(&mut self) -> bool {
        let source = match self.to {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::from(0xc612_0000 | self.random.u32(..1 << 17))),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::from(0x2001_0002_u128 << 96 | u128::from(self.random.u64(..)))),
        };
        let from = SocketAddr::new(source, self.random.u16(1024..));
        let packet = match (self.message, self.to.ip()) {
            (Message::NeighborSolicitation, IpAddr::V6(target)) => {
                solicitation(Ipv6Addr::from(ON_LINK | u128::from(self.random.u64(..))), target)
            }
            _ => syn(from, self.to, self.random.u32(..)),
        };
        // The port in the address of a raw socket is its protocol, or 0.
        match sendto(&self.socket, &packet, SendFlags::empty(), &SocketAddr::new(self.to.ip(), 0)) {
            Ok(_) => true,
            // The queue of the interface is full. A flood does not wait.
            Err(Errno::NOBUFS | Errno::AGAIN) => false,
            Err(error) => panic!("sending on a raw socket: {error}"),
        }
    }
}

/// Builds an IP packet with a SYN and an MSS option (RFC 9293 §3.1, §3.7.1).
fn syn(from: SocketAddr, to: SocketAddr, sequence: u32) -> Vec<u8> {
    let mut segment = Vec::with_capacity(24);
    segment.extend(from.port().to_be_bytes());
    segment.extend(to.port().to_be_bytes());
    segment.extend(sequence.to_be_bytes());
    segment.extend([0; 4]);
    // Header of six words; SYN; window of 64 240 bytes; checksum filled in below.
    segment.extend([6 << 4, 0x02, 0xfa, 0xf0, 0, 0, 0, 0]);
    segment.extend([2, 4, 0x05, 0xb4]);
    let length = segment.len() as u16;
    let (mut packet, pseudo) = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let addresses = [from.octets(), to.octets()].concat();
            // RFC 791 §3.1. The kernel computes the header checksum.
            let mut header = vec![0x45, 0];
            header.extend((20 + length).to_be_bytes());
            header.extend([0, 0, 0, 0, 64, TCP, 0, 0]);
            header.extend(&addresses);
            (header, addresses)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let addresses = [from.octets(), to.octets()].concat();
            // RFC 8200 §3.
            let mut header = vec![0x60, 0, 0, 0];
            header.extend(length.to_be_bytes());
            header.extend([TCP, 64]);
            header.extend(&addresses);
            (header, addresses)
        }
        _ => panic!("{from} and {to} are of different families"),
    };
    let pseudo = [pseudo, vec![0, TCP], length.to_be_bytes().to_vec()].concat();
    let sum = checksum(&[pseudo, segment.clone()].concat());
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    packet.extend(segment);
    packet
}

/// Builds an IPv6 packet with a unicast neighbour solicitation of `from` for `target` (RFC 4861 §4.3, §7.2.2).
fn solicitation(from: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.octets());
    // Source link-layer address option (RFC 4861 §4.6.1), different for each sender.
    message.extend([1, 1, 2]);
    message.extend(&from.octets()[11..]);
    let addresses = [from.octets(), target.octets()].concat();
    let length = message.len() as u16;
    let pseudo = [addresses.clone(), vec![0, ICMPV6], length.to_be_bytes().to_vec()].concat();
    let sum = checksum(&[pseudo, message.clone()].concat());
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([ICMPV6, 255]);
    packet.extend(addresses);
    packet.extend(message);
    packet
}

/// Computes the Internet checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[test]
fn spoofed_syn_has_a_valid_checksum() {
    for (from, to) in [("198.18.0.1:1025", "10.9.0.2:7"), ("[2001:2::1]:1025", "[fd09::2]:7")] {
        let [from, to]: [SocketAddr; 2] = [from, to].map(|address| address.parse().unwrap());
        let packet = syn(from, to, 0x0102_0304);
        let (segment, addresses) = match to {
            SocketAddr::V4(_) => (&packet[20..], &packet[12..20]),
            SocketAddr::V6(_) => (&packet[40..], &packet[8..40]),
        };
        let length = (segment.len() as u16).to_be_bytes();
        assert_eq!(checksum(&[addresses, &[0, TCP], &length, segment].concat()), 0);
    }
}
