//! Addresses, routes and neighbours that the host's kernel determines, for a port that shares an interface with it.
//!
//! The workers then do not run ARP, NDP, DAD, DHCP or SLAAC. The control plane, on its own thread, sends them the
//! [`HostNetwork`] and the neighbours of the kernel, and receives their requests to resolve neighbours.

use crate::arp_ndp::receive::NeighborInfo;
use crate::ip_cidr::{IpCidr, share_prefix};
use crate::worker::inter_worker::{Mailboxes, WorkerMsg};
use linerate_bypass::MacAddr;
use linerate_bypass::mailbox::{Receiver, Sender, Wake, waking_mailbox};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Capacity of the mailbox of the control plane. The neighbour table repeats a request that does not fit.
const REQUESTS: usize = 1024;

/// Ethernet address, IP addresses and routes of an interface.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct HostNetwork {
    /// Ethernet address. With `None`, the port's address.
    pub mac: Option<MacAddr>,
    /// Local addresses, at most [`MAX_ADDRESSES`](crate::Config::MAX_ADDRESSES).
    pub addresses: Vec<IpCidr>,
    /// Local addresses that new connections use only if there is no other.
    pub deprecated: Vec<IpAddr>,
    /// Routes, most preferred first: the first route that contains a destination applies.
    pub routes: Vec<Route>,
}

/// Route to a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Address of the prefix.
    pub destination: IpAddr,
    /// Length of the prefix in bits.
    pub prefix: u8,
    /// Next hop; `None` for destinations on the link.
    pub gateway: Option<IpAddr>,
    /// Preferred local address of connections.
    pub source: Option<IpAddr>,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.destination, self.prefix)?;
        self.gateway.map_or(Ok(()), |gateway| write!(f, " via {gateway}"))
    }
}

impl Route {
    /// Returns whether `ip` is in the prefix.
    #[inline]
    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        share_prefix(self.destination, ip, self.prefix)
    }
}

/// Control plane's end of the mailboxes, for workers whose port has packets of type `P`.
pub struct HostControl<P> {
    workers: Vec<Sender<WorkerMsg<P>>>,
    requests: Receiver<IpAddr>,
}

impl<P: Send> HostControl<P> {
    /// Connects the workers of `mailboxes` with a control plane. `wake` wakes its thread.
    pub fn connect<M: Send>(mailboxes: &mut [Mailboxes<P, M>], wake: Wake) -> Self {
        let (sender, requests) = waking_mailbox(REQUESTS, wake);
        for mailboxes in mailboxes.iter_mut() {
            mailboxes.host_requests = Some(sender.clone());
        }
        let workers = mailboxes.first().map_or_else(Vec::new, |first| first.others.clone());
        HostControl { workers, requests }
    }

    /// Sends the addresses and routes to all workers. Returns `false` if a mailbox is full, after which they must be
    /// sent again.
    #[must_use]
    pub fn set_network(&self, network: &Arc<HostNetwork>) -> bool {
        let send = |worker: &&Sender<_>| worker.send(WorkerMsg::HostNetwork(network.clone())).is_ok();
        // A full mailbox does not prevent the messages to the other workers.
        self.workers.iter().filter(send).count() == self.workers.len()
    }

    /// Reports the Ethernet address of a neighbour, or that it does not answer, to all workers. If a mailbox is full,
    /// the worker requests the neighbour again on its next use.
    pub fn report(&self, ip: IpAddr, mac: Option<MacAddr>) {
        for worker in &self.workers {
            let _ = worker.send(match mac {
                Some(mac) => WorkerMsg::Neighbor(NeighborInfo { ip, mac, may_create: true }),
                None => WorkerMsg::NeighborFailed(ip),
            });
        }
    }

    /// Returns the next neighbour that a worker needs.
    pub fn requested(&mut self) -> Option<IpAddr> {
        self.requests.receive()
    }

    /// Prepares the thread to sleep. Returns `false` if there are requests.
    pub fn about_to_sleep(&mut self) -> bool {
        self.requests.about_to_sleep()
    }

    /// Ends the preparation to sleep.
    pub fn awake(&mut self) {
        self.requests.awake();
    }
}
