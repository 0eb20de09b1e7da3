//! Mailboxes between the workers of one port, and from other threads to them.

use crate::config::host_network::HostNetwork;
use crate::ip::arp_ndp::NeighborInfo;
use crate::ip::router_info::RouterInfo;
use crate::slow_path::Lease;
use linerate_bypass::Sleeper;
use linerate_service::mailbox::{Receiver, Sender, mailbox, waking_mailbox};
use linerate_service::{AppMsg, AppSender};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

/// Capacity of a mailbox for messages from other workers.
const WORKER_MESSAGES: usize = 1024;
/// Capacity of a mailbox for messages to the service and its connections.
const APP_MESSAGES: usize = 4096;

/// Message between workers.
pub(crate) enum WorkerMsg<P> {
    /// Frame of a flow that the receiver owns.
    Frame(P),
    /// Neighbour learnt from ARP or NDP.
    Neighbor(NeighborInfo),
    /// The host's kernel could not resolve this neighbour.
    NeighborFailed(IpAddr),
    /// The sender resolves this neighbour; the reply may arrive at the receiver.
    Resolving(IpAddr),
    /// New addresses and routes of the host's kernel.
    HostNetwork(Arc<HostNetwork>),
    /// New DHCP lease, or its loss.
    Lease(Lease),
    /// The initial IPv6 addresses have passed DAD.
    AddressesVerified,
    /// Router information, boxed to keep messages with frames small.
    RouterInfo(Box<RouterInfo>),
    /// The neighbour did not reply to solicitations.
    NeighborUnreachable(IpAddr),
}

/// Mailboxes of one worker: its own, and the senders to all others. `P` is the port's packet, `M` the service's
/// message.
pub struct Mailboxes<P, M> {
    pub(crate) worker: usize,
    pub(crate) inbox: Receiver<WorkerMsg<P>>,
    pub(crate) others: Vec<Sender<WorkerMsg<P>>>,
    pub(crate) messages: Receiver<AppMsg<M>>,
    pub(crate) app_sender: AppSender<M>,
    /// Requests to the control plane to resolve neighbours, if the host's kernel does so.
    pub(crate) host_requests: Option<Sender<IpAddr>>,
    /// Present if the worker sleeps without work.
    pub(crate) sleeper: Option<Sleeper>,
}

impl<P: Send, M: Send> Mailboxes<P, M> {
    /// Creates the mailboxes of `workers` workers that poll, in order of worker number.
    pub fn for_workers(workers: usize) -> Vec<Self> {
        Self::with((0..workers).map(|_| None).collect())
    }

    /// Creates the mailboxes of `workers` workers that sleep without work, in order of worker number.
    pub fn for_sleepers(workers: usize) -> io::Result<Vec<Self>> {
        Ok(Self::with((0..workers).map(|_| Sleeper::new().map(Some)).collect::<Result<_, _>>()?))
    }

    fn with(sleepers: Vec<Option<Sleeper>>) -> Vec<Self> {
        let (others, inboxes): (Vec<_>, Vec<_>) = sleepers.iter().map(|it| mailbox_of(it, WORKER_MESSAGES)).unzip();
        let (senders, messages): (Vec<_>, Vec<_>) = sleepers.iter().map(|it| mailbox_of(it, APP_MESSAGES)).unzip();
        let app_sender = AppSender::new(senders);
        let ends = inboxes.into_iter().zip(messages).zip(sleepers).enumerate();
        ends.map(|(worker, ((inbox, messages), sleeper))| Mailboxes {
            worker,
            inbox,
            others: others.clone(),
            messages,
            app_sender: app_sender.clone(),
            host_requests: None,
            sleeper,
        })
        .collect()
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.others.len()
    }

    /// Returns the sender with which other threads reach the services and connections of all workers.
    pub fn app_sender(&self) -> AppSender<M> {
        self.app_sender.clone()
    }
}

/// Creates a mailbox that wakes its worker, if the worker sleeps.
fn mailbox_of<T: Send>(sleeper: &Option<Sleeper>, capacity: usize) -> (Sender<T>, Receiver<T>) {
    match sleeper {
        Some(sleeper) => waking_mailbox(capacity, sleeper.wake()),
        None => mailbox(capacity),
    }
}
