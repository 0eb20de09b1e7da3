//! `--via roce:NETWORK`: the engine of RoCEv2 over the UDP of the stack.

use super::{rdma, stack};
use crate::config::{Listen, NetConfig};
use crate::error::Error;
use crate::kept_devices;
use linerate_bypass::Via;
use linerate_bypass::dpdk::{Mbuf, QueuePair};
use linerate_roce::{Driver, Engine, Path, UDP_PORT};
use linerate_service::time::{Clock, Instant};
use linerate_service::{ConnId, Datagram, Origin, Service, Stop, Transport};
use linerate_stack::{Mailboxes, NativeEngine, Worker};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// RoCEv2 device on a port of DPDK.
pub type Device = linerate_roce::Device<PortDriver>;

/// Opens the port `via` and listens on its RoCEv2 device for a worker.
pub fn open(
    via: &Via,
    options: &NetConfig,
    listen: &Listen,
    cores: &[usize],
    stop: &Stop,
) -> Result<rdma::Port<Device>, Error> {
    rdma::Port::over(&open_device(via, options, stop)?, options, listen, cores)
}

/// Opens the RoCEv2 device on the port `via`.
pub fn open_device(via: &Via, options: &NetConfig, stop: &Stop) -> Result<Arc<Device>, Error> {
    let kept_as = format!("{via} {:?} {:?} {:?} {:?}", options.ip, options.mac, options.vlan, options.mtu);
    if let Some(device) = kept_devices::find(&kept_as) {
        return Ok(device);
    }
    let own: Vec<_> = options.ip.iter().map(|own| (own.address(), own.prefix())).collect();
    let udp = own.iter().map(|(ip, _)| SocketAddr::new(*ip, UDP_PORT)).collect();
    let port_options = NetConfig { via: via.clone(), ..options.clone() };
    let mut port = stack::Port::open(&port_options, &Listen { udp, ..Listen::default() }, 1, stop)?;
    let (queue, mut config) = port.take_queue()?;
    config.listen_udp_raw = Some(UDP_PORT);
    // The stack carries no connections of its own.
    config.max_connections = 1;
    let clock = Clock::start();
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(Error::NoRandomness)?;
    let mtu = queue_mtu(&queue, config.mtu);
    let engine = linerate_roce::Config { seed: u64::from_ne_bytes(seed), mtu, addresses: own };
    let engine = Engine::new(&engine).map_err(|source| Error::Roce { via: via.to_string(), source })?;
    let now = clock.now();
    let mailboxes = Mailboxes::for_workers(1).swap_remove(0);
    let worker = Worker::new(&config, mailboxes, queue, |_| Packets { engine, now }, now);
    let driver = PortDriver { worker, clock, _port: port };
    let name = format!("roce:{via}");
    let device = Arc::new(Device::new(&name, driver));
    kept_devices::keep(kept_as, &device);
    Ok(device)
}

/// Returns the largest IP packet in bytes.
fn queue_mtu(queue: &QueuePair, configured: Option<u16>) -> usize {
    use linerate_bypass::Nic;
    let mtu = queue.capabilities().mtu;
    configured.map_or(mtu, |configured| mtu.min(configured)).into()
}

/// Worker of the stack that carries the packets of an engine.
pub struct PortDriver {
    worker: Worker<QueuePair, Packets, NativeEngine<Mbuf>>,
    clock: Clock,
    /// Declared last: the port closes after its queue pair is gone.
    _port: stack::Port,
}

impl Driver for PortDriver {
    fn engine(&mut self) -> &mut Engine {
        &mut self.worker.service_mut().engine
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn turn(&mut self) {
        let now = self.clock.now();
        self.worker.service_mut().now = now;
        self.worker.turn(now);
    }
}

/// Service that passes datagrams to and from an engine.
pub struct Packets {
    engine: Engine,
    now: Instant,
}

impl Service for Packets {
    type Conn = ();
    type Message = ();

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        net.abort(conn);
    }

    fn datagram(&mut self, _: &mut impl Transport, datagram: Datagram) {
        self.engine.receive(&datagram.payload, self.now);
    }

    fn turn(&mut self, net: &mut impl Transport) -> Option<Duration> {
        self.engine.transmit(self.now, &mut Egress(net));
        None
    }
}

/// Transmit side of the stack.
struct Egress<'a, T>(&'a mut T);

impl<T: Transport> linerate_roce::Port for Egress<'_, T> {
    fn has_room(&mut self) -> bool {
        self.0.datagram_space() > 0
    }

    fn send(&mut self, path: &Path, len: usize, write: &mut dyn FnMut(&mut [u8])) {
        let [local, remote] = [path.local, path.remote].map(|ip| SocketAddr::new(ip, UDP_PORT));
        self.0.write_datagram(local, remote, len, write);
    }
}
