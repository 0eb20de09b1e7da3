//! Packet sockets of the kernel (packet(7)), which send raw frames in batches.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, MMsgHdr, Protocol, RawProtocol, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrAny,
    SocketFlags, SocketType, recv, recvfrom, sendmmsg, socket_with, sockopt,
};
use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

/// Protocols of packet sockets, in network byte order.
const NONE: u16 = 0;
const ALL: u16 = 0x0003_u16.to_be();
const IPV4: u16 = 0x0800_u16.to_be();
/// Maximum time until a frame is seen on the interface.
const PATIENCE: Duration = Duration::from_secs(5);
/// Size of the receive queue in bytes.
const RECEIVE_BUFFER: usize = 8 << 20;

/// Packet socket that sends on one interface and can receive the IPv4 packets of all interfaces.
pub struct PacketSocket {
    socket: OwnedFd,
    interface: SocketAddrAny,
    buffer: Vec<u8>,
}

fn open(ether_type: u16) -> io::Result<OwnedFd> {
    let protocol = RawProtocol::new(ether_type.into()).map(Protocol::from_raw);
    Ok(socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, protocol)?)
}

impl PacketSocket {
    /// Opens a socket in the network namespace of this thread that sends on the interface to `neighbor`, and that
    /// receives if `receives` is true.
    ///
    /// The address of the interface is taken from a frame sent on it: a datagram to `neighbor`, or the request for the
    /// neighbour's Ethernet address. Safe code has no other constructor of such an address.
    pub fn open(neighbor: SocketAddr, receives: bool) -> io::Result<PacketSocket> {
        let all = open(ALL)?;
        let datagrams = UdpSocket::bind((if neighbor.is_ipv4() { "0.0.0.0" } else { "::" }, 0))?;
        let end = Instant::now() + PATIENCE;
        let mut buffer = vec![0; 2048];
        let interface = loop {
            datagrams.send_to(&[0], neighbor)?;
            match recvfrom(&all, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, _, Some(interface))) => break interface,
                Ok(_) | Err(Errno::AGAIN) if Instant::now() < end => thread::sleep(Duration::from_millis(1)),
                Ok(_) => return Err(io::Error::other("the packet socket does not report the interface of a frame")),
                Err(error) => return Err(error.into()),
            }
        };
        let socket = open(if receives { IPV4 } else { NONE })?;
        // Root may exceed the limit of net.core.rmem_max.
        sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER)?;
        Ok(PacketSocket { socket, interface, buffer })
    }

    /// Sends frames until the queue of the interface is full. Returns the number that it accepted.
    pub fn send(&self, frames: &[&[u8]]) -> io::Result<usize> {
        let slices: Vec<[IoSlice<'_>; 1]> = frames.iter().map(|frame| [IoSlice::new(frame)]).collect();
        let mut controls: Vec<SendAncillaryBuffer<'_, '_, '_>> =
            frames.iter().map(|_| SendAncillaryBuffer::default()).collect();
        let mut messages: Vec<MMsgHdr<'_>> = slices
            .iter()
            .zip(&mut controls)
            .map(|(slice, control)| MMsgHdr::new_with_addr(&self.interface, slice, control))
            .collect();
        let mut sent = 0;
        while sent < messages.len() {
            match sendmmsg(&self.socket, &mut messages[sent..], SendFlags::empty()) {
                Ok(taken) => sent += taken,
                Err(Errno::INTR) => {}
                // The queue is full, or the link is down.
                Err(Errno::NOBUFS | Errno::AGAIN | Errno::NETDOWN | Errno::NXIO) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(sent)
    }

    /// Returns the next received IPv4 frame, if any.
    pub fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        match recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()) {
            Ok((_, len)) => Ok(Some(&self.buffer[..len.min(self.buffer.len())])),
            Err(Errno::AGAIN | Errno::INTR | Errno::NETDOWN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
