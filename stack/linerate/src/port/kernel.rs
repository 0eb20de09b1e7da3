//! `--via kernel`: workers on kernel sockets.

use crate::config::Listen;
use crate::config::NetConfig;
use crate::error::Error;
use crate::jobs::{Job, Make};
use linerate_kernel::{BoundSockets, Config, Sockets, Worker, add_mailboxes, bind_sockets};
use linerate_service::{Service, Stop, WorkerCtx};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Candidate ports to try for one that is free over both TCP and UDP.
const ATTEMPTS: usize = 16;

/// The bound sockets of all workers.
pub struct Port {
    sockets: Vec<BoundSockets>,
}

impl Port {
    /// Binds the sockets of `workers` workers.
    pub fn open(options: &NetConfig, listen: &Listen, workers: usize) -> Result<Self, Error> {
        let defaults = Config::default();
        // A port number that does not exist has an error of its own.
        listen.all_tcp(workers)?;
        let (tcp, udp) = same_ports(listen);
        let config = Config {
            listen: tcp,
            listen_by_worker: listen.by_worker.clone(),
            listen_udp: udp,
            spin: options.spin,
            rx_buffer: options.buffer.unwrap_or(defaults.rx_buffer),
            tx_buffer: options.buffer.unwrap_or(defaults.tx_buffer),
            idle_timeout: options.idle_timeout,
            ..defaults
        };
        Ok(Port { sockets: bind_sockets(&config, workers)? })
    }

    /// Returns the TCP listening addresses, with the ports that the kernel chose for port 0.
    pub fn listening(&self) -> Vec<SocketAddr> {
        let (first, others) = self.sockets.split_at(1);
        let own = others.iter().flat_map(BoundSockets::own_tcp_addrs);
        first.iter().flat_map(BoundSockets::tcp_addrs).chain(own).collect()
    }

    /// Returns the workers, each for its own thread; each increments `ready` when it serves.
    pub fn jobs<S: Service + 'static>(self, make: Make<S>, stop: &Stop, ready: &Arc<AtomicUsize>) -> Vec<Job<S>> {
        let (app_sender, sockets) = add_mailboxes(self.sockets);
        let workers = sockets.len();
        let job = |sockets: Sockets<S::Message>| -> Job<S> {
            let ctx = WorkerCtx { worker: sockets.worker(), workers, app_sender: app_sender.clone() };
            let (make, stop, ready) = (make.clone(), stop.clone(), ready.clone());
            Box::new(move || {
                let worker = Worker::new(sockets, make(ctx));
                // The kernel accepts connections as soon as the sockets are bound.
                ready.fetch_add(1, Ordering::Relaxed);
                Ok(worker.run(&stop))
            })
        };
        sockets.into_iter().map(job).collect()
    }
}

/// Returns the listening addresses. An address that serves both TCP and UDP with port 0 gets the same port for both.
fn same_ports(listen: &Listen) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
    let mut tcp = listen.tcp.clone();
    let mut udp = listen.udp.clone();
    for udp in udp.iter_mut().filter(|address| address.port() == 0) {
        if let Some(tcp) = tcp.iter_mut().find(|tcp| *tcp == udp)
            && let Some(port) = (0..ATTEMPTS).find_map(|_| free_port(*tcp))
        {
            tcp.set_port(port);
            udp.set_port(port);
        }
    }
    (tcp, udp)
}

/// Returns a port that is free on `address` over both TCP and UDP. On any other error returns `None`: the later bind
/// reports it.
fn free_port(mut address: SocketAddr) -> Option<u16> {
    let tcp = TcpListener::bind(address).ok()?;
    address.set_port(tcp.local_addr().ok()?.port());
    UdpSocket::bind(address).ok().map(|_| address.port())
}
