//! Endpoints of a port at the kernel's own addresses.

use super::program::{ANY_PORT, Frames, Key};
use super::sys;
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum endpoints at all addresses.
const MOST: u32 = 8192;

/// Endpoints whose frames a port receives at addresses of the kernel. An unspecified address stands for all addresses
/// of its family.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Endpoints {
    /// TCP addresses.
    pub tcp: Vec<SocketAddr>,
    /// UDP addresses.
    pub udp: Vec<SocketAddr>,
    /// Local ports of outgoing TCP connections.
    pub outgoing: Option<RangeInclusive<u16>>,
    /// True if [`SharedInterface::listen`](super::SharedInterface::listen) and
    /// [`listen_udp`](super::SharedInterface::listen_udp) may add addresses. Frames to an endpoint are then dropped
    /// while their queue has no socket: a process will open one, and until then the kernel would reset connections, or
    /// begin some that it could not continue.
    pub may_grow: bool,
}

impl Endpoints {
    fn keys(&self, addresses: &[IpAddr]) -> BTreeSet<Key> {
        let at = |bound: &SocketAddr, own: &IpAddr| {
            bound.ip() == *own || bound.ip().is_unspecified() && bound.is_ipv4() == own.is_ipv4()
        };
        let mut keys = BTreeSet::new();
        for own in addresses {
            keys.extend(self.tcp.iter().filter(|tcp| at(tcp, own)).map(|tcp| Key::tcp(*own, tcp.port())));
            keys.extend(self.udp.iter().filter(|udp| at(udp, own)).map(|udp| Key::udp(*own, udp.port())));
            keys.extend(self.outgoing.is_some().then(|| Key::tcp(*own, ANY_PORT)));
        }
        keys
    }
}

/// Map of the endpoints, which an XDP program reads.
#[derive(Debug)]
pub(super) struct EndpointSet {
    map: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    endpoints: Endpoints,
    addresses: Vec<IpAddr>,
    /// Keys in the map.
    keys: BTreeSet<Key>,
}

impl EndpointSet {
    /// Creates the map, without addresses.
    pub fn new(endpoints: Endpoints) -> io::Result<Self> {
        let state = State { endpoints, addresses: Vec::new(), keys: BTreeSet::new() };
        Ok(EndpointSet { map: sys::create_set(Key::LEN, MOST)?, state: Mutex::new(state) })
    }

    pub fn selection(&self) -> Frames<'_> {
        let Endpoints { tcp, udp, outgoing, may_grow, .. } = &self.state().endpoints;
        let ports = tcp.iter().chain(udp).map(SocketAddr::port).collect();
        Frames::Endpoints { keys: &self.map, ports: (!may_grow).then_some(ports), outgoing: outgoing.clone() }
    }

    pub fn may_grow(&self) -> bool {
        self.state().endpoints.may_grow
    }

    /// Changes the addresses. Frames to an address in the old and the new set are redirected all the time.
    pub fn set_addresses(&self, addresses: &[IpAddr]) -> io::Result<()> {
        let mut state = self.state();
        addresses.clone_into(&mut state.addresses);
        state.fill(&self.map)
    }

    /// Adds a TCP address.
    pub fn listen(&self, tcp: SocketAddr) -> io::Result<()> {
        let mut state = self.state();
        if !state.endpoints.tcp.contains(&tcp) {
            state.endpoints.tcp.push(tcp);
        }
        state.fill(&self.map)
    }

    /// Removes a TCP address.
    pub fn unlisten(&self, tcp: SocketAddr) -> io::Result<()> {
        let mut state = self.state();
        state.endpoints.tcp.retain(|other| *other != tcp);
        state.fill(&self.map)
    }

    /// Adds a UDP address.
    pub fn listen_udp(&self, udp: SocketAddr) -> io::Result<()> {
        let mut state = self.state();
        state.endpoints.udp.push(udp);
        state.fill(&self.map)
    }

    /// Removes a UDP address.
    pub fn unlisten_udp(&self, udp: SocketAddr) -> io::Result<()> {
        let mut state = self.state();
        state.endpoints.udp.retain(|other| *other != udp);
        state.fill(&self.map)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Writes the keys of the endpoints to `map`.
    fn fill(&mut self, map: &OwnedFd) -> io::Result<()> {
        let wanted = self.endpoints.keys(&self.addresses);
        for key in &wanted {
            if !self.keys.contains(key) {
                sys::insert(map, key.bytes())?;
                self.keys.insert(*key);
            }
        }
        for key in self.keys.iter().filter(|key| !wanted.contains(key)) {
            sys::remove(map, key.bytes())?;
        }
        self.keys = wanted;
        Ok(())
    }
}
