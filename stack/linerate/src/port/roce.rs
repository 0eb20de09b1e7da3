//! `--via roce:NETWORK`: the engine of RoCEv2 over the UDP of the stack.

use super::{rdma, shared, stack};
use crate::config::{Listen, NetConfig};
use crate::error::Error;
use crate::kept_devices;
use linerate_bypass::Via;
use linerate_bypass::dpdk::{Mbuf, QueuePair};
use linerate_rdma::Connect;
use linerate_roce::{Carrier, Driver, Engine, StreamTable, UDP_PORT};
use linerate_service::Stop;
use linerate_service::time::{Clock, Instant};
use linerate_stack::{Keepalive, Mailboxes, NativeEngine, Worker};
use std::net::SocketAddr;
use std::sync::Arc;

/// RoCEv2 device on a port of DPDK.
pub type Device = linerate_roce::Device<PortDriver>;

/// ECN field of the traffic class, and its codepoint of a sender that supports ECN (RFC 3168 §5).
const ECN: u8 = 3;
const ECT_0: u8 = 2;

/// Opens the port `via` and listens on its RoCEv2 device for a worker.
pub fn open(
    via: &Via,
    options: &NetConfig,
    listen: &Listen,
    cores: &[usize],
    stop: &Stop,
) -> Result<rdma::Port<Device>, Error> {
    let device = open_device(via, options, &listen.tcp, listen.tcp.is_empty(), stop)?;
    let eal = device.driver().port.eal();
    Ok(rdma::Port::over(&device, options, listen, cores)?.with_eal(eal))
}

/// Opens the RoCEv2 device on the port `via`. If an exchange over TCP connects the queue pairs, the port also carries
/// TCP, on the addresses `listen`. A client's port is opened once the link is up.
pub fn open_device(
    via: &Via,
    options: &NetConfig,
    listen: &[SocketAddr],
    is_client: bool,
    stop: &Stop,
) -> Result<Arc<Device>, Error> {
    let rdma = options.rdma.config();
    let tcp = (rdma.connect == Connect::Exchange).then(|| listen.to_vec());
    let traffic_class =
        options.rdma.traffic_class.unwrap_or_default() & !ECN | if options.native.ecn { ECT_0 } else { 0 };
    let addresses = (&options.ip, options.mac, options.vlan, options.mtu);
    let kept_as = format!("{via} {addresses:?} {traffic_class} {tcp:?}");
    if let Some(device) = kept_devices::find(&kept_as) {
        return Ok(device);
    }
    let own: Vec<_> = options.ip.iter().map(|own| (own.address(), own.prefix())).collect();
    let udp = own.iter().map(|(ip, _)| SocketAddr::new(*ip, UDP_PORT)).collect();
    // The thread of the device decides when to wait, and the port does not wake it.
    let port_options = NetConfig { via: via.clone(), idle: None, ..options.clone() };
    // The port would propose to leave the address out.
    if let (Via::AfXdp { interface, .. }, Some(address)) = (via, shared::address_of_kernel(&port_options)) {
        return Err(Error::RoceAddressOfKernel { address, interface: interface.clone() });
    }
    let bound = Listen { udp, tcp: tcp.clone().unwrap_or_default(), ..Listen::default() };
    let mut port = stack::Port::open(&port_options, &bound, is_client, 1, stop)?;
    let (queue, mut config) = port.take_queue()?;
    config.listen_udp_raw = Some(UDP_PORT);
    config.udp_raw_traffic_class = traffic_class;
    if tcp.is_none() {
        config.max_connections = 1;
    }
    // Handshakes are short.
    (config.rx_buffer, config.tx_buffer) = (Some(1 << 12), Some(1 << 12));
    let linerate_rdma::provider::Keepalive { idle, interval, probes } = rdma.keepalive();
    config.keepalive = Some(Keepalive { idle, interval, probes });
    let clock = Clock::start();
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(Error::NoRandomness)?;
    let mtu = queue_mtu(&queue, config.mtu);
    let engine = linerate_roce::Config { seed: u64::from_ne_bytes(seed), mtu, addresses: own };
    let failed = |source| Error::Roce { via: via.to_string(), source };
    let mut engine = Engine::new(&engine).map_err(failed)?;
    if options.native.ecn {
        engine.enable_ecn();
    }
    let now = clock.now();
    let streams = tcp.map(StreamTable::new).transpose().map_err(failed)?;
    let carrier = Carrier { engine, now, streams: streams.map(Box::new) };
    let mailboxes = Mailboxes::for_workers(1).swap_remove(0);
    let worker = Worker::new(&config, mailboxes, queue, |_| carrier, now);
    let driver = PortDriver { worker, clock, port };
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
    worker: Worker<QueuePair, Carrier, NativeEngine<Mbuf>>,
    clock: Clock,
    /// Declared last: the port closes after its queue pair is gone.
    port: stack::Port,
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

    fn drops(&mut self) -> Vec<(&'static str, u64)> {
        let [worker, port] = [self.worker.summary(), self.port.summary()];
        worker.drops.into_iter().chain(port.drops).collect()
    }

    fn streams(&mut self) -> Option<&mut StreamTable> {
        self.worker.service_mut().streams.as_deref_mut()
    }
}

impl Drop for PortDriver {
    /// Closes the streams, so that their peers need not wait for a probe.
    fn drop(&mut self) {
        self.worker.shut_down(&self.clock);
    }
}
