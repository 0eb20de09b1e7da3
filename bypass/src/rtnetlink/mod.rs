//! Addresses, routes and neighbours of an interface, as the kernel has them (rtnetlink(7)).
//!
//! [`InterfaceMonitor`] reads them once and follows their changes. After a change of an address or a route it reads all
//! of them again, so that a lost notification costs only time. The kernel resolves neighbours on request (`NTF_USE`),
//! which leaves no entry to remove when the process ends.

mod message;
mod parse;
mod socket;

use crate::Waker;
use message::Request;
pub use parse::{InterfaceAddress, InterfaceNetwork, InterfaceRoute, Neighbor};
use parse::{NeighborEntry, Reachability};
use rustix::event::{PollFd, PollFlags, poll};
use socket::Received;
pub(crate) use socket::Socket;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

const RTM_GETLINK: u16 = 18;
const RTM_GETADDR: u16 = 22;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;

/// Group of notifications about interfaces.
pub(crate) const LINK: u32 = 0x1;
/// Groups of notifications: interfaces (when one goes down, the kernel removes its IPv4 routes without notifications),
/// neighbours, and addresses and routes of both families.
const GROUPS: u32 = LINK | 0x4 | 0x10 | 0x40 | 0x100 | 0x400;

/// Minimum time between two reads of all addresses and routes: a routing daemon changes many at a time.
const READ_INTERVAL: Duration = Duration::from_millis(20);

/// Flags of requests (`NLM_F_*`).
const CREATE: u16 = 0x400;
/// Flag of a neighbour that starts its resolution (`NTF_USE`).
const USE: u8 = 1;

/// Monitor of the addresses, routes and neighbours of one interface, in the network namespace of the thread that opened
/// it.
#[derive(Debug)]
pub struct InterfaceMonitor {
    index: u32,
    events: Socket,
    requests: Socket,
    network: InterfaceNetwork,
    /// Time of the last read of the network.
    read: Instant,
    /// True if the network may have changed since.
    is_stale: bool,
}

/// Changes since the last [`InterfaceMonitor::poll`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// True if [`InterfaceMonitor::network`] has changed.
    pub network: bool,
    /// Changed neighbours.
    pub neighbors: Vec<Neighbor>,
}

impl InterfaceMonitor {
    /// Opens a monitor of the interface `name`.
    pub fn open(name: &str) -> io::Result<Self> {
        // Opened before the first dump: changes during the dump may be reported again, but none is missed.
        let events = Socket::open(GROUPS)?;
        let mut requests = Socket::open(0)?;
        let index = rustix::net::netdevice::name_to_index(&events, name)?;
        let network = read_network(&mut requests, index)?;
        Ok(InterfaceMonitor { index, events, requests, network, read: Instant::now(), is_stale: false })
    }

    /// Returns the Ethernet address, IP addresses and routes.
    pub fn network(&self) -> &InterfaceNetwork {
        &self.network
    }

    /// Returns the neighbours with a known Ethernet address.
    pub fn neighbors(&mut self) -> io::Result<Vec<Neighbor>> {
        let mut found = Vec::new();
        let index = self.index;
        let request = Request::new(RTM_GETNEIGH, 0, &parse::neighbor_header(0, 0, 0));
        self.requests.dump(request, |message| {
            found.extend(parse::neighbor(message, index).and_then(|entry| entry.report()));
        })?;
        Ok(found)
    }

    /// Waits until [`poll`](Self::poll) has work, `waker` is signalled, or `limit` has passed.
    pub fn wait(&self, waker: &Waker, limit: Duration) {
        let until_read = READ_INTERVAL.saturating_sub(self.read.elapsed());
        let limit = if self.is_stale { limit.min(until_read) } else { limit }.try_into().ok();
        let mut ready = [PollFd::new(&self.events, PollFlags::IN), PollFd::new(waker, PollFlags::IN)];
        // A signal ends the wait early, as does an error, which `poll` reports.
        let _ = poll(&mut ready, limit.as_ref());
        waker.quiet();
    }

    /// Returns the changes, without waiting.
    pub fn poll(&mut self) -> io::Result<Changes> {
        let mut changes = Changes::default();
        let mut has_lost = false;
        let index = self.index;
        while let Some(received) = self.events.receive()? {
            let Received::Messages(messages) = received else {
                has_lost = true;
                continue;
            };
            for message in messages {
                self.is_stale |= parse::concerns_network(&message, index);
                let entry = parse::neighbor(&message, index);
                changes.neighbors.extend(entry.and_then(|entry| entry.report()));
            }
        }
        if has_lost {
            self.is_stale = true;
            changes.neighbors = self.neighbors()?;
        }
        if self.is_stale && self.read.elapsed() >= READ_INTERVAL {
            // Set before the read: after an error the next attempt waits for the interval, too.
            self.read = Instant::now();
            let network = read_network(&mut self.requests, index)?;
            changes.network = network != self.network;
            (self.network, self.is_stale) = (network, false);
        }
        Ok(changes)
    }

    /// Makes the kernel resolve or verify the neighbour `ip`. Returns its present state, if that is known; otherwise
    /// [`poll`](Self::poll) reports the result.
    pub fn resolve(&mut self, ip: IpAddr) -> io::Result<Option<Neighbor>> {
        let entry = self.entry_of(ip)?;
        // `NTF_USE` would convert a permanent entry to an ordinary one.
        if entry.as_ref().is_none_or(|entry| entry.reachability == Reachability::Unverified) {
            let body = parse::neighbor_header(family_of(ip), self.index, USE);
            let request = Request::new(RTM_NEWNEIGH, CREATE, &body).attribute(parse::NDA_DST, &octets(ip));
            self.requests.call(request, |_| {})?;
        }
        Ok(entry.filter(|entry| entry.mac.is_some()).and_then(|entry| entry.report()))
    }

    fn entry_of(&mut self, ip: IpAddr) -> io::Result<Option<NeighborEntry>> {
        let mut found = None;
        let index = self.index;
        let body = parse::neighbor_header(family_of(ip), index, 0);
        let request = Request::new(RTM_GETNEIGH, 0, &body).attribute(parse::NDA_DST, &octets(ip));
        let result = self.requests.call(request, |message| found = parse::neighbor(message, index));
        match result {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            result => result.map(|()| found),
        }
    }
}

/// Reads the Ethernet address, IP addresses and routes of an interface.
fn read_network(socket: &mut Socket, index: u32) -> io::Result<InterfaceNetwork> {
    let mut network = InterfaceNetwork::default();
    let link = Request::new(RTM_GETLINK, 0, &parse::link_header(index));
    match socket.call(link, |message| network.mac = parse::link(message, index).or(network.mac)) {
        // A removed interface has no addresses either.
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
        result => result?,
    }
    // An address header has 8 bytes, a route header 12.
    socket.dump(Request::new(RTM_GETADDR, 0, &[0; 8]), |message| {
        network.addresses.extend(parse::address(message, index));
    })?;
    socket.dump(Request::new(RTM_GETROUTE, 0, &[0; 12]), |message| {
        network.routes.extend(parse::route(message, index));
    })?;
    network.routes.sort_by_key(|route| (std::cmp::Reverse(route.prefix_len), route.metric));
    Ok(network)
}

fn family_of(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { parse::IPV4 } else { parse::IPV6 }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().into(),
        IpAddr::V6(ip) => ip.octets().into(),
    }
}

#[cfg(test)]
mod tests;
