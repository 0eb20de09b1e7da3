//! Network that the processes of a program open after they have forked.

use crate::config::{Listen, NetConfig};
use crate::error::Error;
use crate::inline::InlineNetwork;
use crate::port::shared::{self, SharedHost};
use crate::port::stack;
use linerate_bypass::dpdk::{PortConfig, PortLock, SharedInterface, XdpInterface};
use linerate_service::{Service, WorkerCtx};
use linerate_stack::IpCidr;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for which a process waits until another one that serves no longer has ended.
const TURNOVER: Duration = Duration::from_secs(10);
/// Interval between two attempts to take a queue.
const RETRY: Duration = Duration::from_millis(10);

/// Network that has been checked, and that this process or children of it may open.
///
/// With `workers`, each of so many processes opens one queue of an interface that is shared with the kernel. Otherwise
/// one process at a time opens the network.
pub struct PreparedNetwork {
    config: NetConfig,
    addresses: Vec<IpAddr>,
    interface: Option<Arc<XdpInterface>>,
    creator: u32,
    /// Random number of this process and its children. A process number may be used again while a child lives.
    family: u64,
}

impl PreparedNetwork {
    /// Checks `config`, and redirects the frames of an interface that is shared with the kernel. Returns `None` if the
    /// addresses are known only once the network is open (`dhcp` or `slaac`).
    ///
    /// # Errors
    /// `config` is invalid, or the interface cannot be shared.
    pub fn new(config: &NetConfig) -> Result<Option<Self>, Error> {
        config.check(&Listen::default())?;
        let creator = std::process::id();
        let mut family = [0; 8];
        getrandom::fill(&mut family).map_err(Error::NoRandomness)?;
        let family = u64::from_ne_bytes(family);
        if config.dhcp || config.slaac {
            return Ok(None);
        }
        let Some(host) = SharedHost::open(config, &Listen::default())? else {
            if config.workers.is_some_and(|workers| workers > 1) {
                return Err(Error::OneProcess(config.via.clone()));
            }
            let addresses = config.ip.iter().map(IpCidr::address).collect();
            return Ok(Some(PreparedNetwork { config: config.clone(), addresses, interface: None, creator, family }));
        };
        let addresses = shared::ips(&host.network());
        let mut endpoints = host.endpoints();
        let mut network = PreparedNetwork { config: config.clone(), addresses, interface: None, creator, family };
        if network.processes() > 1 {
            // The answer could arrive on the queue of another process.
            endpoints.outgoing = None;
        }
        let port = PortConfig {
            queues: network.processes(),
            addresses: network.addresses.clone(),
            endpoints: Some(endpoints),
            mtu: config.mtu,
            force: config.force,
            ..PortConfig::default()
        };
        network.interface = Some(Arc::new(XdpInterface::prepare(&config.via, &port)?));
        Ok(Some(network))
    }

    /// Returns the number of processes that may open the network at a time.
    fn processes(&self) -> u16 {
        self.config.workers.and_then(|workers| u16::try_from(workers).ok()).unwrap_or(1)
    }

    /// Returns whether `ip` is an address of this host.
    pub fn is_local(&self, ip: IpAddr) -> bool {
        self.addresses.contains(&ip)
    }

    /// Withholds the segments to `address` from the kernel that shares the interface, until a process has opened the
    /// network.
    ///
    /// # Errors
    /// The kernel refuses to redirect the segments.
    pub fn listen(&self, address: SocketAddr) -> io::Result<()> {
        self.shared().map_or(Ok(()), |shared| shared.listen(address))
    }

    /// Undoes [`listen`](Self::listen), unless other processes may serve the address.
    ///
    /// # Errors
    /// The kernel still redirects the segments.
    pub fn unlisten(&self, address: SocketAddr) -> io::Result<()> {
        let is_own = self.creator == std::process::id() && self.processes() == 1;
        self.shared().filter(|_| is_own).map_or(Ok(()), |shared| shared.unlisten(address))
    }

    fn shared(&self) -> Option<&SharedInterface> {
        self.interface.as_ref()?.shared().map(Arc::as_ref)
    }

    /// Waits for one of `most` locks on `what` among the processes.
    fn take(&self, what: &str, most: u16) -> Result<(PortLock, u16), Error> {
        let until = Instant::now() + TURNOVER;
        loop {
            match PortLock::of_family(self.family, what, most) {
                Some(taken) => return Ok(taken),
                None if Instant::now() > until => return Err(Error::NoQueueLeft(self.processes())),
                None => std::thread::sleep(RETRY),
            }
        }
    }

    /// Opens the network with its service in this process. If other processes have all queues, waits ten seconds for
    /// the end of one.
    ///
    /// # Errors
    /// No process has ended, or the network cannot be opened.
    pub fn open<S: Service>(
        &self,
        service: impl FnOnce(WorkerCtx<S::Message>) -> S,
    ) -> Result<InlineNetwork<S>, Error> {
        let (queue, index) = self.take("queue", self.processes())?;
        // The choice of hugepages counts those that are free: two processes at a time would count the same ones.
        let _opening = self.take("memory", 1)?;
        let has_siblings = self.processes() > 1;
        let interface = self.interface.clone().map(|interface| stack::OwnQueue { interface, index, has_siblings });
        let mut network = InlineNetwork::open_queue(&self.config, service, interface)?;
        network.set_family(queue, has_siblings);
        Ok(network)
    }
}
