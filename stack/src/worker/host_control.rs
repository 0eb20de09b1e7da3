//! Control plane of workers whose addresses, routes and neighbours the host's kernel determines.
//!
//! The control plane, on its own thread, sends the workers the [`HostNetwork`] and the neighbours of the kernel, and
//! receives their requests to resolve neighbours.

use crate::config::host_network::HostNetwork;
use crate::ip::arp_ndp::NeighborInfo;
use crate::worker::inter_worker::{Mailboxes, WorkerMsg};
use linerate_bypass::MacAddr;
use linerate_service::mailbox::{Receiver, Sender, Wake, waking_mailbox};
use std::net::IpAddr;
use std::sync::Arc;

/// Capacity of the mailbox of the control plane. The neighbour table repeats a request that does not fit.
const REQUESTS: usize = 1024;

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
