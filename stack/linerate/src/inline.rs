//! Network whose turns the threads of the caller run.

use crate::config::{Listen, NetConfig};
use crate::error::Error;
use crate::port::stack;
use linerate_bypass::dpdk::{Eal, PortLock, QueuePair};
use linerate_bypass::{Sleeper, Via};
use linerate_service::mailbox::Wake;
use linerate_service::time::{Clock, Duration};
use linerate_service::{Service, Stop, Transport, WorkerCtx};
use linerate_stack::Worker;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

/// Limit of the wait for an address: of DHCP, of router advertisements, or of duplicate address detection.
const START: Duration = Duration::from_secs(10);

/// Network of one worker without a thread of its own, for programs with an event loop: the program calls
/// [`turn`](Self::turn), and operates on the service between turns.
pub struct InlineNetwork<S: Service> {
    worker: Worker<QueuePair, S>,
    clock: Clock,
    /// Declared last: the port closes after its queue pair is gone.
    port: stack::Port,
    /// Queue of this process, if several may open the network.
    queue: Option<PortLock>,
    /// True if other processes serve the same addresses.
    has_siblings: bool,
    /// Wakes the thread that sleeps, with `--idle wait`.
    wake: Option<Wake>,
}

impl<S: Service> InlineNetwork<S> {
    /// Opens the network of `config` and creates its service.
    ///
    /// # Errors
    /// `config` is invalid, names a network without the TCP/IP stack, or cannot be opened; or the host has no address
    /// after ten seconds.
    pub fn open(config: &NetConfig, service: impl FnOnce(WorkerCtx<S::Message>) -> S) -> Result<Self, Error> {
        Self::open_queue(config, service, None)
    }

    /// Opens the network, with one `queue` of an interface if several processes use it.
    pub(crate) fn open_queue(
        config: &NetConfig,
        service: impl FnOnce(WorkerCtx<S::Message>) -> S,
        queue: Option<stack::OwnQueue>,
    ) -> Result<Self, Error> {
        let listen = Listen::default();
        config.check(&listen)?;
        if matches!(config.via, Via::Kernel | Via::Rdma { .. } | Via::Roce { .. }) {
            return Err(Error::NoStack(config.via.clone()));
        }
        let mut port = stack::Port::open_queue(config, &listen, false, 1, &Stop::default(), queue)?;
        let clock = Clock::start();
        let worker = port.worker(service, &clock)?;
        let wake = worker.sleeper().map(Sleeper::wake);
        let mut network = InlineNetwork { worker, clock, port, queue: None, has_siblings: false, wake };
        let until = network.clock.now() + START;
        while !network.worker.has_started() {
            network.turn();
            if let Some(duplicate) = network.worker.duplicate() {
                return Err(duplicate.into());
            }
            if network.clock.now() > until {
                return Err(Error::NoAddressInTime(START.as_secs()));
            }
        }
        Ok(network)
    }

    /// Keeps `queue` as long as the network is open.
    pub(crate) fn set_family(&mut self, queue: PortLock, has_siblings: bool) {
        (self.queue, self.has_siblings) = (Some(queue), has_siblings);
    }

    /// Receives frames, delivers events and sends. Returns the number of frames and events.
    pub fn turn(&mut self) -> usize {
        let now = self.clock.now();
        self.worker.turn(now)
    }

    /// Prepares a sleep after a [turn](Self::turn) without work, with `idle` wait. Returns a descriptor that becomes
    /// readable when a frame arrives or [`wake`](Self::wake) is called, and the time after which [`awake`](Self::awake)
    /// must follow in any case. Returns `None` if the thread should go on with turns. Another turn may have run.
    ///
    /// The descriptor is an epoll set whose events end with `epoll_wait`.
    pub fn about_to_sleep(&mut self) -> Option<(BorrowedFd<'_>, Duration)> {
        let time = self.worker.about_to_sleep(&self.clock)?;
        Some((self.worker.sleeper()?.as_fd(), time))
    }

    /// Ends a sleep and runs a turn. Returns the number of frames and events.
    pub fn awake(&mut self) -> usize {
        self.worker.awake(&self.clock)
    }

    /// Wakes the thread that sleeps after [`about_to_sleep`](Self::about_to_sleep): an operation needs a turn.
    pub fn wake(&self) {
        self.wake.iter().for_each(|wake| wake());
    }

    /// Returns the service and its transport, for operations between turns. The next turn sends what they queue.
    pub fn parts(&mut self) -> (&mut S, &mut impl Transport) {
        self.worker.parts()
    }

    /// Returns whether `ip` is an address of this host.
    pub fn is_local(&self, ip: IpAddr) -> bool {
        self.worker.is_local(ip)
    }

    /// Returns whether there is a route to `ip`. There is none if other processes serve the same addresses: the answer
    /// could arrive at one of them.
    pub fn has_route(&self, ip: IpAddr) -> bool {
        !self.has_siblings && self.worker.has_route(ip)
    }

    /// Begins to accept connections to `address`.
    ///
    /// # Errors
    /// The interface is shared with the kernel, and the kernel refuses to redirect the segments.
    pub fn listen(&mut self, address: SocketAddr) -> io::Result<()> {
        self.port.listen(address)?;
        self.worker.listen(address);
        Ok(())
    }

    /// Stops accepting connections to `address`. Those that exist go on.
    pub fn unlisten(&mut self, address: SocketAddr) {
        self.worker.unlisten(address);
    }

    /// Releases `address`, which has neither a listener nor a connection, to the kernel that shares the interface,
    /// unless other processes may serve it.
    ///
    /// # Errors
    /// The kernel still redirects the segments.
    pub fn release(&mut self, address: SocketAddr) -> io::Result<()> {
        if self.has_siblings { Ok(()) } else { self.port.unlisten(address) }
    }

    /// Begins to receive datagrams to `address`.
    ///
    /// # Errors
    /// The interface is shared with the kernel, and the kernel refuses to redirect the datagrams.
    pub fn listen_udp(&mut self, address: SocketAddr) -> io::Result<()> {
        self.port.listen_udp(address)?;
        self.worker.listen_udp(address);
        Ok(())
    }

    /// Stops receiving datagrams to `address`.
    ///
    /// # Errors
    /// The kernel still redirects the datagrams.
    pub fn unlisten_udp(&mut self, address: SocketAddr) -> io::Result<()> {
        self.worker.unlisten_udp(address);
        if self.has_siblings { Ok(()) } else { self.port.unlisten_udp(address) }
    }

    /// Returns an error if the device has failed.
    pub fn check(&self) -> Result<(), Error> {
        self.port.check()
    }

    /// Returns EAL, with which the threads that call [`turn`](Self::turn) should be registered.
    pub fn eal(&self) -> Eal {
        self.port.eal()
    }

    /// Closes all connections, after a grace period by reset.
    pub fn shut_down(&mut self) {
        self.worker.shut_down(&self.clock);
    }
}
