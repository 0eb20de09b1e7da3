//! Division of a kernel interface between the kernel and a port (`af_xdp:INTERFACE,share`).
//!
//! An XDP program redirects frames of the port to AF_XDP sockets, and passes all others to the kernel. Frames of the
//! port are frames to addresses that the kernel does not have, or to the port's endpoints at the kernel's own
//! addresses. The program is assembled here, so that no compiler for eBPF is needed, and carries the name and version
//! that libxdp searches for (`xsk_def_prog`, `xsk_prog_version`): the driver of DPDK then inserts its sockets into the
//! program's map, and loads no program of its own. The program is attached by a link, which ends with the process, even
//! by SIGKILL.

mod asm;
mod btf;
mod endpoints;
mod program;
mod reservation;
mod sys;

use endpoints::EndpointSet;
pub use endpoints::Endpoints;
use program::{Fallback, Selection};
pub(crate) use reservation::NotReserved;
use reservation::Reservation;
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::os::fd::OwnedFd;

/// Interface that a port shares with the kernel. Dropping it returns all frames to the kernel.
#[derive(Debug)]
pub struct SharedInterface {
    _link: OwnedFd,
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

/// Failed step of sharing an interface.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShareError {
    /// The kernel refused a step.
    #[error("{step}: {error}")]
    Step {
        /// Step, as a participle phrase.
        step: &'static str,
        /// Reason.
        error: io::Error,
    },
    /// The verifier rejected the program.
    #[error("the verifier of the kernel rejected the XDP program ({error}): {log}")]
    Verifier {
        /// Reason.
        error: io::Error,
        /// Last lines of the verifier's log.
        log: String,
    },
    /// Another XDP program is attached.
    #[error(
        "another XDP program is attached: 'ip link show dev {0}' names it, and 'ip link set dev {0} xdp off' removes it"
    )]
    Occupied(String),
    /// The driver refuses the program.
    #[error(
        "the driver refuses the XDP program ({error}); 'ethtool -K {interface} lro off' or 'ip link set dev \
         {interface} mtu 1500' may help, and 'dmesg' may name the reason"
    )]
    NotAttached {
        /// Name of the interface.
        interface: String,
        /// Reason.
        error: io::Error,
    },
    /// The kernel uses a listening port.
    #[error("{} port of {} is taken", .0.protocol, .0.address)]
    Port(NotReserved),
}

impl ShareError {
    /// Returns whether a capability is missing.
    pub fn is_permission(&self) -> bool {
        match self {
            // A program that the verifier rejects is an EACCES.
            ShareError::Step { error, .. } | ShareError::Verifier { error, .. } => {
                error.raw_os_error() == Some(libc::EPERM)
            }
            _ => false,
        }
    }
}

impl SharedInterface {
    /// Attaches a program to `interface` that redirects frames on its first `queues` queues: frames to `endpoints` at
    /// `addresses`, which are the kernel's, or, without endpoints, all frames to `addresses`.
    pub(crate) fn attach(
        interface: &str,
        addresses: &[IpAddr],
        endpoints: Option<Endpoints>,
        queues: u16,
    ) -> Result<Self, ShareError> {
        let step = |step| move |error| ShareError::Step { step, error };
        let sockets = sys::create_xsk_map(u32::from(queues)).map_err(step("creating a map of sockets"))?;
        let processors = sys::possible_processors().map_err(step("counting the processors"))?;
        let passed = sys::create_counter().map_err(step("creating a counter"))?;
        let index = sys::interface_index(interface).map_err(step("finding the interface"))?;
        let reservation = endpoints.as_ref().map(|endpoints| Reservation::new(endpoints, index));
        let reservation = reservation.transpose().map_err(ShareError::Port)?;
        let endpoints = endpoints.map(EndpointSet::new).transpose().map_err(step("creating a map of endpoints"))?;
        let selection = match &endpoints {
            Some(endpoints) => {
                endpoints.set_addresses(addresses).map_err(step("filling the map of endpoints"))?;
                endpoints.selection()
            }
            None => Selection::Addresses(addresses),
        };
        let btf = sys::load_btf(&btf::describe()).map_err(step("loading the description of the XDP program"))?;
        let code = program::assemble(&selection, &sockets, &passed, Fallback::Pass);
        let program = sys::load_program(&code, &btf, btf::FUNCTION)?;
        let link = sys::attach(&program, index).map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => ShareError::Occupied(interface.to_owned()),
            Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ERANGE) => {
                ShareError::NotAttached { interface: interface.to_owned(), error }
            }
            _ => ShareError::Step { step: "attaching the XDP program", error },
        })?;
        let solicited = if endpoints.is_none() { addresses } else { &[] };
        let groups = join_groups(index, solicited).map_err(step("joining the groups of neighbour solicitation"))?;
        Ok(SharedInterface { _link: link, _groups: groups, endpoints, _reservation: reservation, passed, processors })
    }

    /// Sets the kernel's addresses at which the port has its endpoints.
    pub fn set_addresses(&self, addresses: &[IpAddr]) -> io::Result<()> {
        self.endpoints.as_ref().map_or(Ok(()), |endpoints| endpoints.set_addresses(addresses))
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
