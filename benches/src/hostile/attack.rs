//! Attacks.

use super::frames::{Link, Segment};
use super::packet_socket::PacketSocket;
use super::peers::{Conduct, Peers, stray_segments};
use super::site::METRICS;
use super::{Course, Service, Target, sockets};
use serde::Serialize;
use smoltcp::wire::{EthernetAddress, TcpControl};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::time::Instant;

/// Number of different frames of a flood.
const FRAMES: usize = 8192;
/// Closed port.
const CLOSED_PORT: u16 = 9;

/// Kind of an attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Attack {
    /// Sockets that send requests and do not read the answers
    Unread,
    /// Connections on which single bytes arrive out of order
    OutOfOrder,
    /// Peers with a closed window that acknowledge its probes
    ZeroWindow,
    /// SYNs from random addresses
    Syn,
    /// ACKs from random addresses
    Ack,
    /// RSTs from random addresses
    Rst,
    /// Datagrams from random addresses to a closed port
    UdpClosed,
    /// Datagrams from random addresses to the port of the service
    UdpOpen,
    /// ARP requests from random addresses of the link
    Arp,
    /// Neighbour solicitations from random addresses of the link
    Solicitations,
    /// HTTP requests to the metrics address that do not end
    HalfOpenHttp,
}

impl Attack {
    /// All attacks.
    pub const ALL: [Attack; 11] = [
        Attack::Unread,
        Attack::OutOfOrder,
        Attack::ZeroWindow,
        Attack::Syn,
        Attack::Ack,
        Attack::Rst,
        Attack::UdpClosed,
        Attack::UdpOpen,
        Attack::Arp,
        Attack::Solicitations,
        Attack::HalfOpenHttp,
    ];

    /// Returns the name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Attack::Unread => "unread answers",
            Attack::OutOfOrder => "bytes out of order",
            Attack::ZeroWindow => "closed windows",
            Attack::Syn => "SYN flood",
            Attack::Ack => "ACK flood",
            Attack::Rst => "RST flood",
            Attack::UdpClosed => "UDP flood, closed port",
            Attack::UdpOpen => "UDP flood, open port",
            Attack::Arp => "ARP flood",
            Attack::Solicitations => "neighbour solicitations",
            Attack::HalfOpenHttp => "unfinished HTTP requests",
        }
    }

    /// Returns the default numbers of attackers; 0 for a flood, each frame of which has another source.
    pub fn attackers(self) -> &'static [usize] {
        match self {
            Attack::Unread | Attack::ZeroWindow => &[10, 100, 1000],
            Attack::OutOfOrder => &[1, 100, 1000],
            Attack::HalfOpenHttp => &[1000],
            _ => &[0],
        }
    }

    /// Returns true if the attack applies to `service`.
    pub fn concerns(self, service: Service) -> bool {
        self != Attack::UdpOpen || service == Service::Echo
    }

    /// Returns true if the attackers are on the server's host.
    pub fn is_local(self) -> bool {
        self == Attack::HalfOpenHttp
    }

    /// Returns true if the attackers answer the server, which determines their rate.
    pub fn answers(self) -> bool {
        self == Attack::ZeroWindow
    }

    /// Returns the frames of the attack for a host without connections; `None` if it does not consist of frames.
    pub(super) fn frames(self, target: &Target) -> Option<Vec<Vec<u8>>> {
        let mut random = fastrand::Rng::with_seed(1);
        let to = target.address;
        // Address range for benchmarks (RFC 2544).
        let source = |random: &mut fastrand::Rng| {
            SocketAddrV4::new(Ipv4Addr::from(0xc612_0000 | random.u32(..1 << 17)), random.u16(1024..))
        };
        let segment = |random: &mut fastrand::Rng, control, acknowledges: bool| {
            target.link.segment(&Segment {
                from: source(random),
                to,
                control,
                sequence: random.u32(..),
                acknowledgement: acknowledges.then(|| random.u32(..)),
                window: 64_240,
                payload: &[],
            })
        };
        let neighbor = |random: &mut fastrand::Rng| {
            let mac = random.u32(..).to_be_bytes();
            Link { from: EthernetAddress([2, 1, mac[0], mac[1], mac[2], mac[3]]), ..target.link }
        };
        let mut frame = || match self {
            Attack::Syn => Some(segment(&mut random, TcpControl::Syn, false)),
            Attack::Ack => Some(segment(&mut random, TcpControl::None, true)),
            Attack::Rst => Some(segment(&mut random, TcpControl::Rst, false)),
            Attack::UdpClosed => {
                let to = SocketAddrV4::new(*to.ip(), CLOSED_PORT);
                Some(target.link.datagram(source(&mut random), to, &[b'x'; 64]))
            }
            Attack::UdpOpen => Some(target.link.datagram(source(&mut random), to, &[b'x'; 64])),
            Attack::Arp => {
                let from = Ipv4Addr::from(0x0a63_8000 | random.u32(..1 << 15));
                Some(neighbor(&mut random).arp_request(from, *to.ip()))
            }
            Attack::Solicitations => {
                let from = Ipv6Addr::from(0xfd99 << 112 | 1 << 63 | u128::from(random.u64(..1 << 63)));
                Some(neighbor(&mut random).neighbor_solicitation(from, target.v6))
            }
            Attack::Unread | Attack::OutOfOrder | Attack::ZeroWindow | Attack::HalfOpenHttp => None,
        };
        if matches!(self, Attack::OutOfOrder | Attack::ZeroWindow) {
            return Some(stray_segments(target.link, to, FRAMES));
        }
        (0..FRAMES).map(|_| frame()).collect()
    }

    /// Attacks `target` with `count` attackers in the network namespace of this thread until `course` ends.
    pub(super) fn run(self, target: &Target, count: usize, per_millisecond: usize, course: &Course) -> io::Result<()> {
        match self {
            Attack::Unread => sockets::do_not_read(target, count, course),
            Attack::OutOfOrder => Peers::new(target, Conduct::OutOfOrder, count)?.run(per_millisecond, course),
            Attack::ZeroWindow => Peers::new(target, Conduct::ZeroWindow, count)?.run(per_millisecond, course),
            Attack::HalfOpenHttp => sockets::half_open_requests(METRICS, count, course),
            _ => flood(&self.frames(target).unwrap_or_default(), target, per_millisecond, course),
        }
    }
}

/// Sends `frames` repeatedly until `course` ends, at most `per_millisecond` per millisecond.
pub(super) fn flood(frames: &[Vec<u8>], target: &Target, per_millisecond: usize, course: &Course) -> io::Result<()> {
    let socket = PacketSocket::open(SocketAddr::V4(target.neighbor), false)?;
    let mut frames = frames.iter().map(Vec::as_slice).cycle();
    course.begin();
    let mut next = Instant::now();
    while course.goes_on() {
        let burst: Vec<&[u8]> = frames.by_ref().take(per_millisecond).collect();
        course.count(socket.send(&burst)?);
        course.pace(&mut next);
    }
    Ok(())
}
