//! Sockets of workers, bound before any worker runs.

use crate::net::Descriptors;
use crate::poller::{Poller, Token};
use crate::{Config, Error, Protocol};
use linerate_bypass::raise_open_files;
use linerate_service::mailbox::{Receiver, mailbox, waking_mailbox};
use linerate_service::{AppMsg, AppSender, ConnId};
use rustix::io::Errno;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::ops::Deref;

/// Maximum connections that wait for `accept`. The kernel may have a lower limit.
const BACKLOG: i32 = 4096;

/// Sockets of one worker, made by [`bind_sockets`].
pub struct BoundSockets {
    pub(crate) worker: usize,
    pub(crate) config: Config,
    pub(crate) poller: Poller,
    pub(crate) listeners: Vec<(TcpListener, SocketAddr)>,
    pub(crate) udp: Vec<(UdpSocket, SocketAddr)>,
    pub(crate) descriptors: Descriptors,
}

/// Sockets and mailbox of one worker, made by [`bind`] and sent to the worker's thread.
pub struct Sockets<M> {
    pub(crate) bound: BoundSockets,
    pub(crate) mailbox: Receiver<AppMsg<M>>,
}

impl<M> Deref for Sockets<M> {
    type Target = BoundSockets;

    fn deref(&self) -> &BoundSockets {
        &self.bound
    }
}

impl BoundSockets {
    /// Returns the number of the worker, counted from 0.
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// Returns the TCP addresses in the order of [`Config::listen`], with the actual ports, followed by the worker's
    /// [own](Self::own_tcp_addrs).
    pub fn tcp_addrs(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|&(_, address)| address).collect()
    }

    /// Returns the TCP addresses of this worker only, in the order of [`Config::listen_by_worker`].
    pub fn own_tcp_addrs(&self) -> Vec<SocketAddr> {
        self.tcp_addrs().split_off(self.config.listen.len())
    }

    /// Returns the UDP addresses in the order of [`Config::listen_udp`], with the actual ports.
    pub fn udp_addrs(&self) -> Vec<SocketAddr> {
        self.udp.iter().map(|&(_, address)| address).collect()
    }
}

/// Binds the sockets of `workers` workers, as [`bind_sockets`] does, and [adds mailboxes](add_mailboxes).
pub fn bind<M: Send + 'static>(config: &Config, workers: usize) -> Result<(AppSender<M>, Vec<Sockets<M>>), Error> {
    Ok(add_mailboxes(bind_sockets(config, workers)?))
}

/// Creates the mailboxes of the workers of `sockets`. Returns a sender of messages to all workers.
pub fn add_mailboxes<M: Send + 'static>(sockets: Vec<BoundSockets>) -> (AppSender<M>, Vec<Sockets<M>>) {
    let with_mailbox = |bound: BoundSockets| {
        let (capacity, waker) = (bound.config.mailbox, bound.poller.waker.wake());
        let (sender, mailbox) = if bound.config.spin { mailbox(capacity) } else { waking_mailbox(capacity, waker) };
        (sender, Sockets { bound, mailbox })
    };
    let (senders, sockets): (Vec<_>, _) = sockets.into_iter().map(with_mailbox).unzip();
    (AppSender::new(senders), sockets)
}

/// Binds the sockets of `workers` workers, which share the addresses of [`Config::listen`] and [`Config::listen_udp`].
/// Raises this process's limit of open files as far as allowed.
pub fn bind_sockets(config: &Config, workers: usize) -> Result<Vec<BoundSockets>, Error> {
    if !(1..=ConnId::MAX_WORKERS).contains(&workers) {
        return Err(Error::Workers(workers));
    }
    for (name, value) in [
        ("max_connections", config.max_connections),
        ("rx_buffer", config.rx_buffer),
        ("tx_buffer", config.tx_buffer),
        ("memory", config.memory),
        ("mailbox", config.mailbox),
    ] {
        if value == 0 {
            return Err(Error::Zero(name));
        }
    }
    let descriptors = raise_descriptor_limit(config.max_connections.saturating_mul(workers));
    let mut sockets = Vec::new();
    for worker in 0..workers {
        let poller = Poller::new().map_err(Error::Epoll)?;
        let (listeners, udp) = (Vec::new(), Vec::new());
        sockets.push(BoundSockets { worker, config: config.clone(), poller, listeners, udp, descriptors });
    }
    for (index, &address) in config.listen.iter().enumerate() {
        let address = claim(Protocol::Tcp, address)?;
        for sockets in &mut sockets {
            let open = || {
                let listener: TcpListener = open(Protocol::Tcp, address, workers > 1, config)?.into();
                sockets.poller.add_source(&listener, Token::Listener(index))?;
                Ok(listener)
            };
            let listener = open().map_err(|error| explain(Protocol::Tcp, address, error))?;
            sockets.listeners.push((listener, address));
        }
    }
    for (index, first) in config.listen_by_worker.iter().enumerate() {
        for sockets in &mut sockets {
            let mut address = *first;
            address.set_port(first.port().wrapping_add(sockets.worker as u16));
            claim(Protocol::Tcp, address)?;
            let open = || {
                let listener: TcpListener = open(Protocol::Tcp, address, false, config)?.into();
                sockets.poller.add_source(&listener, Token::Listener(config.listen.len() + index))?;
                Ok(listener)
            };
            let listener = open().map_err(|error| explain(Protocol::Tcp, address, error))?;
            sockets.listeners.push((listener, address));
        }
    }
    for (index, &address) in config.listen_udp.iter().enumerate() {
        let address = claim(Protocol::Udp, address)?;
        for sockets in &mut sockets {
            let open = || {
                let socket: UdpSocket = open(Protocol::Udp, address, workers > 1, config)?.into();
                sockets.poller.add_source(&socket, Token::Udp(index))?;
                Ok(socket)
            };
            let socket = open().map_err(|error| explain(Protocol::Udp, address, error))?;
            sockets.udp.push((socket, address));
        }
    }
    Ok(sockets)
}

/// Checks that `address` is free, and selects a port if its port is 0. A socket with `SO_REUSEPORT` can share a port
/// with other sockets of the same user, so two services would split connections unnoticed. The probe socket lacks the
/// option, so its bind fails in that case.
fn claim(protocol: Protocol, address: SocketAddr) -> Result<SocketAddr, Error> {
    let claim = || {
        let socket = unbound(protocol, address)?;
        socket.bind(&SockAddr::from(address))?;
        socket.local_addr()
    };
    let claimed = claim().map_err(|error| explain(protocol, address, error))?;
    Ok(claimed.as_socket().unwrap_or(address))
}

fn open(protocol: Protocol, address: SocketAddr, shared: bool, config: &Config) -> io::Result<Socket> {
    let socket = unbound(protocol, address)?;
    socket.set_reuse_port(shared)?;
    if protocol == Protocol::Tcp {
        // Accepted connections inherit these options.
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_user_timeout(Some(config.user_timeout))?;
    }
    socket.bind(&SockAddr::from(address))?;
    if protocol == Protocol::Tcp {
        socket.listen(BACKLOG)?;
    }
    Ok(socket)
}

fn unbound(protocol: Protocol, address: SocketAddr) -> io::Result<Socket> {
    let kind = match protocol {
        Protocol::Tcp => Type::STREAM,
        Protocol::Udp => Type::DGRAM,
    };
    let socket = Socket::new(Domain::for_address(address), kind.nonblocking().cloexec(), None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if protocol == Protocol::Tcp {
        // For TCP the option affects only old connections in TIME-WAIT; for UDP it would share the port.
        socket.set_reuse_address(true)?;
    }
    Ok(socket)
}

fn explain(protocol: Protocol, address: SocketAddr, source: io::Error) -> Error {
    match Errno::from_io_error(&source) {
        Some(Errno::ADDRINUSE) => Error::Taken { protocol, address },
        Some(Errno::ADDRNOTAVAIL) => Error::NotOurs { protocol, address },
        Some(Errno::ACCESS | Errno::PERM) => Error::Denied { protocol, address },
        _ => Error::Bind { protocol, address, source },
    }
}

fn raise_descriptor_limit(connections: usize) -> Descriptors {
    let wanted = connections as u64 + 64;
    match raise_open_files(Some(wanted)) {
        Ok(allowed) => {
            if allowed < wanted {
                tracing::info!(
                    "the limit of open files allows about {allowed} connections, not {connections}: raise it with \
                     `ulimit -Hn` or LimitNOFILE= for more"
                );
            }
            Descriptors::within(allowed)
        }
        Err(error) => {
            tracing::warn!("cannot raise the limit of open files to {wanted}: {error}");
            Descriptors::within(u64::MAX)
        }
    }
}
