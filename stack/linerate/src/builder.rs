//! Builder of networks.

use crate::config::{Listen, NetConfig, RdmaConfig, ThreadingMode};
use crate::cores::{self, CoreList, CorePlacement};
use crate::error::Error;
use crate::network::Network;
use linerate_bypass::Via;
use linerate_service::Stop;
use linerate_stack::{Idle, IpCidr};
use std::net::{IpAddr, SocketAddr};

/// Builder of a [`Network`], created by [`Network::builder`]. The default is one worker on kernel sockets that does not
/// listen.
///
/// The methods set the options that most programs need; [`config`](Self::config) sets all others.
#[derive(Debug, Default, Clone)]
#[must_use = "a network is opened by `build`"]
pub struct NetworkBuilder {
    config: NetConfig,
    listen: Listen,
    placement: CorePlacement,
    stop: Stop,
    #[cfg(feature = "tls")]
    tls: Option<linerate_tls::TlsConfig>,
}

impl NetworkBuilder {
    /// Replaces the whole configuration, except listening addresses.
    pub fn config(mut self, config: NetConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets the network: `"af_xdp:eth0".parse()?`.
    pub fn via(mut self, via: Via) -> Self {
        self.config.via = via;
        self
    }

    /// Adds a local address with its prefix: `"10.0.0.2/24".parse()?`. Kernel sockets and RDMA devices use the
    /// addresses of the host instead, as does an interface that is shared with the kernel if none is added.
    pub fn ip(mut self, address: IpCidr) -> Self {
        self.config.ip.push(address);
        self
    }

    /// Adds a default router, at most one of each address family.
    pub fn gateway(mut self, router: IpAddr) -> Self {
        self.config.gateway.push(router);
        self
    }

    /// Gets an IPv4 address and a router from a DHCP server.
    pub fn dhcp(mut self) -> Self {
        self.config.dhcp = true;
        self
    }

    /// Sets the number of workers, each pinned to a core; the default is 1.
    pub fn workers(mut self, workers: usize) -> Self {
        self.config.workers = Some(workers);
        self
    }

    /// Sets the cores of the workers, and thereby their number.
    pub fn cores(mut self, cores: CoreList) -> Self {
        self.config.cores = Some(cores);
        self
    }

    /// Sets the default choice of cores; [`CorePlacement::First`] unless set.
    pub fn core_placement(mut self, placement: CorePlacement) -> Self {
        self.placement = placement;
        self
    }

    /// Sets the threads that services run on.
    pub fn threading(mut self, threading: ThreadingMode) -> Self {
        self.config.threading = threading;
        self
    }

    /// Sets the behaviour of idle workers. Kernel sockets always sleep when idle, unless they spin.
    pub fn idle(mut self, idle: Idle) -> Self {
        self.config.idle = Some(idle);
        self
    }

    /// Sets the options of RDMA devices.
    pub fn rdma(mut self, options: RdmaConfig) -> Self {
        self.config.rdma = options;
        self
    }

    /// Adds a TCP listening address.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen.tcp.push(address);
        self
    }

    /// Adds a UDP address at which datagrams are received.
    pub fn listen_udp(mut self, address: SocketAddr) -> Self {
        self.listen.udp.push(address);
        self
    }

    /// Replaces all listening addresses.
    pub fn listen_on(mut self, addresses: Listen) -> Self {
        self.listen = addresses;
        self
    }

    /// Sets TLS of accepted connections, of outgoing ones, or of both. Services see the plaintext.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, config: linerate_tls::TlsConfig) -> Self {
        self.tls = Some(config);
        self
    }

    /// Sets the request that ends [`Network::run`], and the wait of [`build`](Self::build) for another process, such as
    /// the other end of a link.
    pub fn stop(mut self, stop: Stop) -> Self {
        self.stop = stop;
        self
    }

    /// Opens the network and begins to listen.
    ///
    /// # Errors
    /// If options exclude each other, a core cannot be used, or the network cannot be opened.
    pub fn build(self) -> Result<Network, Error> {
        self.config.check(&self.listen)?;
        #[cfg(feature = "tls")]
        if self.tls.is_some() && self.config.via.is_rdma() {
            return Err(Error::NoTls(self.config.via));
        }
        #[cfg(feature = "tls")]
        if self.tls.is_some() && self.config.engine == Some(crate::config::TcpEngine::Smoltcp) {
            return Err(Error::OnlyWith { setting: "tls", with: "`engine` native" });
        }
        let NetworkBuilder { config, listen, placement, stop, .. } = self;
        let cores = cores::choose(&config.via, config.workers, config.cores.as_ref(), placement)?;
        #[cfg_attr(not(feature = "tls"), expect(unused_mut, reason = "TLS is added afterwards"))]
        let mut network = Network::open(&config, &listen, cores, placement, stop)?;
        #[cfg(feature = "tls")]
        network.tls.clone_from(&self.tls);
        Ok(network)
    }
}
