//! XDP programs of `af_xdp:` ports.
//!
//! A program redirects frames of the port to AF_XDP sockets: all frames of the interface or, on a shared one
//! (`af_xdp:INTERFACE,share`), frames to addresses that the kernel does not have, or to the port's endpoints at the
//! kernel's own addresses. It passes all others to the kernel. The program is assembled here, so that no compiler for
//! eBPF is needed, and carries the name and version that libxdp searches for (`xsk_def_prog`, `xsk_prog_version`): the
//! driver of DPDK then inserts its sockets into the program's map, and loads no program of its own. The program is
//! attached by a link, which ends with the process, even by SIGKILL, and which `ip link set xdp off` does not remove.

mod asm;
mod btf;
mod endpoints;
mod kernel_btf;
mod kernel_sockets;
mod program;
mod reservation;
mod sys;

use endpoints::EndpointSet;
pub use endpoints::Endpoints;
pub(crate) use kernel_sockets::KernelSocket;
use program::{Fallback, Frames, Selection};
pub(crate) use reservation::NotReserved;
use reservation::Reservation;
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

/// Function of Linux 6.8 and later that returns the VLAN tag that is not in a frame, for drivers that support it. A
/// program that calls it is bound to its interface.
const VLAN_TAG: &str = "bpf_xdp_metadata_rx_vlan_tag";
/// Queues for whose sockets a program has room.
const MOST_QUEUES: u32 = 1024;

/// XDP program on an interface. Dropping it returns all frames to the kernel.
#[derive(Debug)]
pub(crate) struct Attachment {
    link: OwnedFd,
    sees_vlan_tags: bool,
}

impl Attachment {
    /// Attaches a program to `interface` that redirects all frames, except those of queues without a socket.
    pub fn of_all(interface: &str) -> Result<Self, XdpError> {
        let index = sys::interface_index(interface).map_err(step("finding the interface"))?;
        attach(interface, index, &Selection::All, Fallback::Pass)
    }

    /// Returns whether the program is attached; it is not if its interface was removed.
    pub fn is_attached(&self) -> bool {
        sys::is_attached(&self.link)
    }

    /// Returns whether the program sees VLAN tags that the driver passes outside of frames.
    pub fn sees_vlan_tags(&self) -> bool {
        self.sees_vlan_tags
    }
}

/// Interface that a port shares with the kernel.
#[derive(Debug)]
pub struct SharedInterface {
    /// Socket that is a member of the groups on which the addresses are solicited (RFC 4861 §7.2.1), so that the device
    /// accepts frames to them.
    _groups: Option<UdpSocket>,
    /// Endpoints at the kernel's addresses; `None` if the port has addresses of its own.
    endpoints: Option<EndpointSet>,
    _reservation: Option<Reservation>,
    /// Frames passed to the kernel.
    passed: OwnedFd,
    processors: usize,
}

/// Failed step of attaching a program.
#[derive(Debug, thiserror::Error)]
pub(crate) enum XdpError {
    #[error("{step}: {error}")]
    Step { step: &'static str, error: io::Error },
    #[error("the verifier of the kernel rejected the XDP program ({error}): {log}")]
    Verifier { error: io::Error, log: String },
    #[error(
        "another XDP program is attached: 'ip link show dev {0}' names it, and 'ip link set dev {0} xdp off' removes it"
    )]
    Occupied(String),
    #[error(
        "the driver refuses the XDP program ({error}); 'ethtool -K {interface} lro off' or 'ip link set dev \
         {interface} mtu 1500' may help, and 'dmesg' may name the reason"
    )]
    NotAttached { interface: String, error: io::Error },
    #[error("{} port of {} is taken", .0.protocol, .0.address)]
    Port(NotReserved),
    #[error("the kernel uses the TCP port of {}", .0.local)]
    Socket(KernelSocket),
}

impl XdpError {
    /// Returns whether a capability is missing.
    pub fn is_permission(&self) -> bool {
        match self {
            // A program that the verifier rejects is an EACCES.
            XdpError::Step { error, .. } | XdpError::Verifier { error, .. } => {
                error.raw_os_error() == Some(libc::EPERM)
            }
            _ => false,
        }
    }
}

/// Returns a conversion of the error of `step`.
fn step(step: &'static str) -> impl Fn(io::Error) -> XdpError {
    move |error| XdpError::Step { step, error }
}

/// Attaches a program that redirects the frames of `selection` to the interface `interface` with the number `index`.
fn attach(interface: &str, index: u32, selection: &Selection, fallback: Fallback) -> Result<Attachment, XdpError> {
    let sockets = sys::create_xsk_map(MOST_QUEUES).map_err(step("creating a map of sockets"))?;
    let btf = sys::load_btf(&btf::describe()).map_err(step("loading the description of the XDP program"))?;
    let attach = |vlan_tag: Option<i32>| {
        let code = program::assemble(selection, &sockets, vlan_tag, fallback);
        let program = sys::load_program(&code, &btf, btf::FUNCTION, vlan_tag.map(|_| index))?;
        let attachment = |link| Attachment { link, sees_vlan_tags: vlan_tag.is_some() };
        sys::attach(&program, index).map(attachment).map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => XdpError::Occupied(interface.to_owned()),
            Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ERANGE) => {
                XdpError::NotAttached { interface: interface.to_owned(), error }
            }
            _ => step("attaching the XDP program")(error),
        })
    };
    match kernel_btf::function(VLAN_TAG).map(|function| attach(Some(function))) {
        Some(result @ (Ok(_) | Err(XdpError::Occupied(_)))) => result,
        // No interface in generic mode accepts a bound program.
        _ => attach(None),
    }
}

impl SharedInterface {
    /// Attaches a program to `interface` that redirects frames to `endpoints` at `addresses`, which are the kernel's,
    /// or, without endpoints, all frames to `addresses`.
    pub(crate) fn attach(
        interface: &str,
        addresses: &[IpAddr],
        endpoints: Option<Endpoints>,
    ) -> Result<(Self, Attachment), XdpError> {
        let processors = sys::possible_processors().map_err(step("counting the processors"))?;
        let passed = sys::create_counter().map_err(step("creating a counter"))?;
        let index = sys::interface_index(interface).map_err(step("finding the interface"))?;
        let reservation = endpoints.as_ref().map(|endpoints| Reservation::new(endpoints, index));
        let reservation = reservation.transpose().map_err(XdpError::Port)?;
        let conflict = endpoints.as_ref().and_then(|endpoints| kernel_sockets::conflicting(endpoints, addresses));
        conflict.map_or(Ok(()), |socket| Err(XdpError::Socket(socket)))?;
        let endpoints = endpoints.map(EndpointSet::new).transpose().map_err(step("creating a map of endpoints"))?;
        let frames = match &endpoints {
            Some(endpoints) => {
                endpoints.set_addresses(addresses).map_err(step("filling the map of endpoints"))?;
                endpoints.selection()
            }
            None => Frames::Addresses(addresses),
        };
        let fallback = match &endpoints {
            Some(endpoints) if endpoints.may_grow() => Fallback::Drop,
            _ => Fallback::Pass,
        };
        let attachment = attach(interface, index, &Selection::Some { frames, passed: &passed }, fallback)?;
        let solicited = if endpoints.is_none() { addresses } else { &[] };
        let groups = join_groups(index, solicited).map_err(step("joining the groups of neighbour solicitation"))?;
        let shared = SharedInterface { _groups: groups, endpoints, _reservation: reservation, passed, processors };
        Ok((shared, attachment))
    }

    /// Sets the kernel's addresses at which the port has its endpoints.
    pub fn set_addresses(&self, addresses: &[IpAddr]) -> io::Result<()> {
        self.endpoints.as_ref().map_or(Ok(()), |endpoints| endpoints.set_addresses(addresses))
    }

    /// Redirects segments to `tcp`, which is at the kernel's addresses. The interface has been attached with endpoints
    /// that [may grow](Endpoints::may_grow).
    pub fn listen(&self, tcp: SocketAddr) -> io::Result<()> {
        self.endpoints.as_ref().map_or(Ok(()), |endpoints| endpoints.listen(tcp))
    }

    /// Passes segments to `tcp` to the kernel again.
    pub fn unlisten(&self, tcp: SocketAddr) -> io::Result<()> {
        self.endpoints.as_ref().map_or(Ok(()), |endpoints| endpoints.unlisten(tcp))
    }

    /// Redirects datagrams to `udp`, as [`listen`](Self::listen) does segments.
    pub fn listen_udp(&self, udp: SocketAddr) -> io::Result<()> {
        self.endpoints.as_ref().map_or(Ok(()), |endpoints| endpoints.listen_udp(udp))
    }

    /// Passes datagrams to `udp` to the kernel again.
    pub fn unlisten_udp(&self, udp: SocketAddr) -> io::Result<()> {
        self.endpoints.as_ref().map_or(Ok(()), |endpoints| endpoints.unlisten_udp(udp))
    }

    /// Returns the number of frames passed to the kernel.
    pub fn passed(&self) -> io::Result<u64> {
        sys::read_counter(&self.passed, self.processors)
    }
}

/// Joins the solicited-node groups of the IPv6 addresses, if any.
fn join_groups(interface: u32, addresses: &[IpAddr]) -> io::Result<Option<UdpSocket>> {
    let mut groups = addresses.iter().filter_map(|ip| program::solicited_node(*ip)).peekable();
    if groups.peek().is_none() {
        return Ok(None);
    }
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    // Joining a group again fails; addresses with equal last 24 bits share one.
    let groups: BTreeSet<_> = groups.collect();
    groups.iter().try_for_each(|group| socket.join_multicast_v6(group, interface))?;
    Ok(Some(socket))
}

#[cfg(test)]
mod tests;
