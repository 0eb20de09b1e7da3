//! Devices joined by a network in virtual time, with faults.

use crate::{Config, Device, Driver, Engine, Path, Port};
use linerate_rdma_provider::{DeviceLimits, Mtu};
use linerate_service::time::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

/// Device of a [`Fabric`].
pub type SimDevice = Device<Node>;

#[derive(Debug, Clone, Default)]
pub struct FabricConfig {
    pub seed: u64,
    /// Probabilities in percent that a packet is lost, sent twice, or overtaken.
    pub lost: u8,
    pub twice: u8,
    pub late: u8,
}

#[derive(Debug, Clone)]
pub struct DeviceConfig {
    pub address: IpAddr,
    pub limits: DeviceLimits,
    pub mtu: Mtu,
}

impl DeviceConfig {
    pub fn roce(address: IpAddr) -> Self {
        DeviceConfig { address, limits: crate::engine::limits(), mtu: Mtu::Mtu1024 }
    }
}

/// Packets in flight, in order of arrival.
struct Network {
    config: FabricConfig,
    random: fastrand::Rng,
    now: Instant,
    packets: VecDeque<(IpAddr, Vec<u8>)>,
    /// Copies of all packets that were sent, before faults.
    sent: Vec<Vec<u8>>,
}

/// Engine on the network of a fabric.
pub struct Node {
    engine: Engine,
    network: Arc<Mutex<Network>>,
}

impl Driver for Node {
    fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    fn now(&self) -> Instant {
        lock(&self.network).now
    }

    /// Does nothing: [`Fabric::step`] carries packets.
    fn turn(&mut self) {}
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Port for Network {
    fn has_room(&mut self) -> bool {
        self.packets.len() < 64
    }

    fn send(&mut self, path: &Path, len: usize, write: impl FnOnce(&mut [u8])) {
        let mut packet = vec![0; len];
        write(&mut packet);
        let packet = [path.headers(len).bytes(), &packet].concat();
        self.sent.push(packet.clone());
        let mut chance = |percent: u8| percent > 0 && self.random.u8(0..100) < percent;
        let (lost, twice, late) = (chance(self.config.lost), chance(self.config.twice), chance(self.config.late));
        for _ in 0..u8::from(!lost) + u8::from(twice && !lost) {
            let at = if late { self.random.usize(0..=self.packets.len()) } else { self.packets.len() };
            self.packets.insert(at, (path.remote, packet.clone()));
        }
    }
}

/// Network that joins devices. Clones are the same network.
#[derive(Clone)]
pub struct Fabric {
    network: Arc<Mutex<Network>>,
    devices: Arc<Mutex<BTreeMap<IpAddr, Arc<SimDevice>>>>,
}

impl Fabric {
    pub fn new(config: FabricConfig) -> Self {
        let network = Network {
            random: fastrand::Rng::with_seed(config.seed),
            config,
            now: Instant::from_nanos(1),
            packets: VecDeque::new(),
            sent: Vec::new(),
        };
        Fabric { network: Arc::new(Mutex::new(network)), devices: Arc::default() }
    }

    pub fn device(&self, name: &str, config: DeviceConfig) -> Arc<SimDevice> {
        let seed = lock(&self.network).random.u64(..);
        let mtu = config.mtu.bytes() as usize + 100;
        let mut engine = Engine::new(&Config { seed, mtu, addresses: vec![(config.address, 24)] }).unwrap();
        engine.set_limits(config.limits);
        let device = Arc::new(Device::new(name, Node { engine, network: Arc::clone(&self.network) }));
        lock(&self.devices).insert(config.address, Arc::clone(&device));
        device
    }

    /// Delivers a packet, or lets the devices send, or advances the time to the next timer. Returns whether something
    /// happened.
    pub fn step(&self) -> bool {
        self.step_until(Instant::from_nanos(u64::MAX))
    }

    /// Like [`step`](Self::step), unless the next timer is due after `end`.
    fn step_until(&self, end: Instant) -> bool {
        let (packet, now) = {
            let mut network = lock(&self.network);
            // Where packets may be late, devices also answer before all have arrived.
            let holds = network.config.late > 0 && network.random.u8(0..4) == 0;
            let packet = if holds && network.has_room() { None } else { network.packets.pop_front() };
            (packet, network.now)
        };
        let devices: Vec<_> = lock(&self.devices).values().cloned().collect();
        if let Some((to, packet)) = packet {
            if let Some(device) = lock(&self.devices).get(&to) {
                device.driver().engine.receive(&packet, now);
            }
            return true;
        }
        for device in &devices {
            let mut driver = device.driver();
            driver.engine.transmit(now, &mut *lock(&self.network));
        }
        let mut network = lock(&self.network);
        if !network.packets.is_empty() {
            return true;
        }
        let next = devices.iter().filter_map(|device| device.driver().engine.next_deadline()).min();
        let Some(next) = next.filter(|next| *next <= end) else { return false };
        network.now = next.max(network.now + Duration::from_nanos(1));
        true
    }

    /// Runs until nothing happens, at most for a virtual second.
    pub fn run(&self) -> usize {
        self.run_until(self.now() + Duration::from_secs(1))
    }

    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        let end = self.now() + time;
        self.run_until(end);
        lock(&self.network).now = end;
    }

    fn run_until(&self, end: Instant) -> usize {
        let mut steps = 0;
        while self.step_until(end) {
            steps += 1;
            assert!(steps < 10_000_000, "the network does not settle");
        }
        steps
    }

    pub fn now(&self) -> Instant {
        lock(&self.network).now
    }

    /// Returns the number of messages that found no buffer.
    pub fn not_ready(&self) -> u64 {
        lock(&self.devices).values().map(|device| device.driver().engine.counters().not_ready).sum()
    }

    /// Returns the packets that were sent since the last call, with their IP headers.
    pub fn take_sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut lock(&self.network).sent)
    }

    /// Delivers a packet of the test to the device with this address.
    pub fn inject(&self, to: IpAddr, packet: &[u8]) {
        let device = lock(&self.devices).get(&to).cloned();
        device.unwrap().driver().engine.receive(packet, self.now());
    }
}
