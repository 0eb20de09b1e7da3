//! What crosses between the workers of one port, and to them from other threads: all through mailboxes.

use crate::arp_ndp::receive::NeighborInfo;
use crate::ipv6::Network;
use crate::slow_path::DhcpLease;
use linerate_bypass::mailbox::{Receiver, Sender, mailbox};
use linerate_bypass::{AppMsg, AppSender};
use std::net::IpAddr;

/// Things that one worker may leave at another before the other has read any.
const MAIL: usize = 1024;
/// Messages to the connections of one worker and its service, likewise.
const MESSAGES: usize = 4096;

/// What one worker tells another.
pub(crate) enum Mail<P> {
    /// A frame for a flow that the other owns.
    Frame(P),
    /// What ARP or NDP taught.
    Neighbor(NeighborInfo),
    /// The sender is asking the link for this neighbour; the answer may arrive at the receiver.
    Resolving(IpAddr),
    /// What DHCP came to.
    Lease(Option<DhcpLease>),
    /// The IPv6 addresses that were tried are ours.
    Verified,
    /// What routers have advertised. Apart, so that frames do not lie in letters of its size.
    Network(Box<Network>),
    /// No neighbour answered for the address.
    NeighborLost(IpAddr),
}

/// One worker's mailboxes: the way in, and the ways to all the others. `P` is the port's packet, `M` the service's
/// message.
pub struct Mailboxes<P, M> {
    pub(crate) worker: usize,
    pub(crate) inbox: Receiver<Mail<P>>,
    pub(crate) others: Vec<Sender<Mail<P>>>,
    pub(crate) messages: Receiver<AppMsg<M>>,
    pub(crate) app_sender: AppSender<M>,
}

impl<P: Send, M: Send> Mailboxes<P, M> {
    /// The mailboxes of `workers` workers, in the order of their numbers.
    pub fn for_workers(workers: usize) -> Vec<Self> {
        let (others, inboxes): (Vec<_>, Vec<_>) = (0..workers).map(|_| mailbox(MAIL)).unzip();
        let (senders, messages): (Vec<_>, Vec<_>) = (0..workers).map(|_| mailbox(MESSAGES)).unzip();
        let app_sender = AppSender::new(senders);
        let ends = inboxes.into_iter().zip(messages).enumerate();
        ends.map(|(worker, (inbox, messages))| Mailboxes {
            worker,
            inbox,
            others: others.clone(),
            messages,
            app_sender: app_sender.clone(),
        })
        .collect()
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.others.len()
    }

    /// The way for other threads to the connections and services of all workers.
    pub fn app_sender(&self) -> AppSender<M> {
        self.app_sender.clone()
    }
}
