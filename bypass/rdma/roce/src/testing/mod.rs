//! Devices on a network in virtual time, for tests of everything above [`linerate_rdma_provider`].
//!
//! A [`Fabric`] joins devices, each a [`SimDevice`]: an [`Engine`] with the limits and habits of a [`DeviceConfig`].
//! Nothing runs on its own: [`Fabric::step`] performs one event, chosen by a seeded generator, so that every order that
//! a network can produce occurs and can be reproduced. With [`Mode::Auto`], each call performs all possible events, for
//! use by threads. [`Fabric`] also injects faults, and counts objects.

mod call;
mod calls;
mod device;
mod faults;
mod iwarp;
mod provider;
#[cfg(test)]
mod tests;

pub use crate::engine::testing::Live;
pub use call::Call;
pub use device::{DeviceConfig, SimDevice};
pub use faults::Faults;

use crate::path::{Path, Port};
use crate::{Config, Device, Driver, Engine};
use device::Site;
use linerate_service::time::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Control of events.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Events occur in [`Fabric::step`] and [`Fabric::run`].
    #[default]
    Stepped,
    /// All possible events occur in every call of a device, each of which takes a microsecond.
    Auto,
}

/// Configuration of a fabric.
#[derive(Debug, Default, Clone)]
pub struct FabricConfig {
    /// Seed of the event order.
    pub seed: u64,
    /// Control of events.
    pub mode: Mode,
    /// Faults of packets.
    pub faults: Faults,
}

/// Engine whose packets a [`Fabric`] carries.
pub(crate) struct Node {
    pub engine: Engine,
    clock: Clock,
}

impl Driver for Node {
    fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Does nothing: the fabric carries packets.
    fn turn(&mut self) {}
}

/// Virtual time in nanoseconds.
#[derive(Clone)]
struct Clock(Arc<AtomicU64>);

impl Clock {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, now: Instant) {
        self.0.store(now.as_nanos(), Ordering::Relaxed);
    }
}

struct Packet {
    from: IpAddr,
    to: IpAddr,
    bytes: Vec<u8>,
}

/// Packets in flight. Those between two addresses arrive in this order.
struct Network {
    faults: Faults,
    random: fastrand::Rng,
    packets: VecDeque<Packet>,
    lost: u64,
    /// Copies of all packets, before faults.
    #[cfg(test)]
    sent: Vec<Vec<u8>>,
}

impl Network {
    fn has_room(&self) -> bool {
        self.packets.len() < 64
    }

    fn send(&mut self, packet: Packet) {
        #[cfg(test)]
        self.sent.push(packet.bytes.clone());
        let Faults { lost, twice, late } = self.faults;
        let mut chance = |percent: u8| percent > 0 && self.random.u8(0..100) < percent;
        let (lost, twice, late) = (chance(lost), chance(twice), chance(late));
        self.lost += u64::from(lost);
        for _ in 0..u8::from(!lost) + u8::from(twice && !lost) {
            let at = if late { self.random.usize(0..=self.packets.len()) } else { self.packets.len() };
            let Packet { from, to, ref bytes } = packet;
            self.packets.insert(at, Packet { from, to, bytes: bytes.clone() });
        }
    }

    /// Takes the next packet between two random addresses.
    fn receive(&mut self) -> Option<Packet> {
        let any = self.packets.get(self.random.usize(0..self.packets.len().max(1)))?;
        let is_next = |packet: &Packet| (packet.from, packet.to) == (any.from, any.to);
        let next = self.packets.iter().position(is_next)?;
        self.packets.remove(next)
    }
}

/// Port of a device, in one turn to send.
struct Outlet<'a> {
    site: &'a Site,
    network: &'a mut Network,
    /// Packets that the port takes in this turn.
    room: usize,
    sent: usize,
}

impl Port for Outlet<'_> {
    fn has_room(&mut self) -> bool {
        self.sent < self.room
    }

    fn send(&mut self, path: &Path, len: usize, write: impl FnOnce(&mut [u8])) {
        self.sent += 1;
        let mut packet = vec![0; len];
        write(&mut packet);
        let [from, to] = [path.local, path.remote].map(|address| address.ip());
        if self.site.carries(from) {
            let bytes = [path.headers(len).bytes(), &packet].concat();
            self.network.send(Packet { from, to, bytes });
        }
    }
}

/// State of a fabric, under its lock.
struct World {
    mode: Mode,
    random: fastrand::Rng,
    clock: Clock,
    network: Network,
    sites: Vec<Site>,
    /// Number of queue pairs created so far.
    created: usize,
}

/// Greatest step of the time while nothing else can happen. Programs with a clock of their own act meanwhile.
const IDLE_STEP: Duration = Duration::from_micros(400);

impl World {
    /// Performs an event that is possible now: delivers a packet, or lets a device send.
    fn act(&mut self) -> bool {
        let holds = self.network.has_room() && self.random.u8(0..4) == 0;
        if !holds && self.deliver() {
            return true;
        }
        let count = self.sites.len();
        let first = if count > 0 { self.random.usize(0..count) } else { 0 };
        (0..count).any(|offset| self.transmit((first + offset) % count)) || self.deliver()
    }

    fn deliver(&mut self) -> bool {
        let Some(packet) = self.network.receive() else { return false };
        if let Some(to) = self.sites.iter().rposition(|site| site.carries(packet.to)) {
            self.receive(to, &packet.bytes);
        }
        true
    }

    fn receive(&mut self, to: usize, packet: &[u8]) {
        let now = self.clock.now();
        self.sites[to].device.driver().engine.receive(packet, now);
        self.follow_up(to);
    }

    /// Lets a device send up to a random number of packets. Returns whether it sent any.
    fn transmit(&mut self, index: usize) -> bool {
        let now = self.clock.now();
        let World { sites, network, random, .. } = self;
        if sites[index].next_turn().is_none_or(|next| next > now) {
            return false;
        }
        sites[index].post_late(now);
        let site = &sites[index];
        let mut outlet = Outlet { site, network, room: random.usize(1..=8), sent: 0 };
        site.device.driver().engine.transmit(now, &mut outlet);
        let has_sent = outlet.sent > 0;
        self.follow_up(index);
        has_sent
    }

    /// Performs all events that are possible now.
    fn settle(&mut self) {
        while self.act() {}
    }

    /// Performs one event. If none is possible, advances the time towards the next timer by `most`, unless the timer is
    /// due after `end`. Returns whether something happened.
    fn step(&mut self, end: Instant, most: Duration) -> bool {
        if self.act() {
            return true;
        }
        let now = self.clock.now();
        let timers = self.sites.iter().filter_map(Site::next_turn);
        let Some(next) = timers.min().filter(|next| *next <= end) else { return false };
        self.clock.set(next.max(now + Duration::from_nanos(1)).min(now + most));
        true
    }

    fn run_until(&mut self, end: Instant) -> usize {
        let steps = (0..10_000_000).take_while(|_| self.step(end, Duration::MAX)).count();
        assert!(steps < 10_000_000, "the network does not settle");
        steps
    }
}

/// Network that joins devices. Clones are the same network.
#[derive(Clone)]
pub struct Fabric(Arc<Mutex<World>>);

impl Fabric {
    /// Creates a fabric without devices.
    pub fn new(config: FabricConfig) -> Self {
        let FabricConfig { seed, mode, faults } = config;
        let mut random = fastrand::Rng::with_seed(seed);
        let network = Network {
            faults,
            random: random.fork(),
            packets: VecDeque::new(),
            lost: 0,
            #[cfg(test)]
            sent: Vec::new(),
        };
        let clock = Clock(Arc::new(AtomicU64::new(1)));
        Fabric(Arc::new(Mutex::new(World { mode, random, clock, network, sites: Vec::new(), created: 0 })))
    }

    /// Adds a device, opened by a process of its own. The address may have belonged to a vanished device.
    ///
    /// # Panics
    /// If no file descriptor is left.
    pub fn device(&self, name: &str, config: DeviceConfig) -> Arc<SimDevice> {
        let mut world = self.world();
        let mtu = config.mtu.bytes() as usize + 100;
        let engine_config = Config { seed: world.random.u64(..), mtu, addresses: config.prefixes() };
        let mut engine = Engine::new(&engine_config).expect("a device");
        engine.set_limits(config.limits.clone());
        let device = Arc::new(Device::new(name, Node { engine, clock: world.clock.clone() }));
        let index = world.sites.len();
        let site = Site::new(config, Arc::clone(&device), index);
        let async_fd = site.events.fd();
        world.sites.push(site);
        drop(world);
        Arc::new(SimDevice { fabric: self.clone(), index, device, async_fd })
    }

    /// Ignores poisoning: objects must be destroyed while a failed test unwinds.
    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers a packet, or lets a device send, or advances the time towards the next timer. Returns whether something
    /// happened.
    pub fn step(&self) -> bool {
        self.world().step(Instant::from_nanos(u64::MAX), IDLE_STEP)
    }

    /// Performs events until none is left, at most for a virtual second. Returns their number.
    pub fn run(&self) -> usize {
        let mut world = self.world();
        let end = world.clock.now() + Duration::from_secs(1);
        world.run_until(end)
    }

    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        let mut world = self.world();
        let end = world.clock.now() + time;
        world.run_until(end);
        world.clock.set(end);
    }

    /// Returns the numbers of objects of all devices.
    pub fn live(&self) -> Live {
        let mut live = Live::default();
        self.world().sites.iter().for_each(|site| site.add_live(&mut live));
        live
    }

    /// Returns the numbers of objects of a device.
    pub fn live_of(&self, sim: &SimDevice) -> Live {
        let mut live = Live::default();
        self.world().sites[sim.index].add_live(&mut live);
        live
    }

    /// Returns the numbers of all queue pairs, in the order of their creation.
    pub fn numbers(&self) -> Vec<u32> {
        let world = self.world();
        let qps = world.sites.iter().flat_map(|site| site.qps.values());
        let numbers: BTreeMap<_, _> = qps.map(|qp| (qp.nth, qp.number)).collect();
        numbers.into_values().collect()
    }

    /// Returns the number of queue pairs created so far.
    pub fn created(&self) -> usize {
        self.world().created
    }

    /// Returns the memory of a device that its peers can write without a window, as addresses and lengths.
    pub fn writable(&self, sim: &SimDevice) -> Vec<(usize, usize)> {
        let mut driver = sim.device.driver();
        let regions = driver.engine.memory().registered();
        regions
            .filter(|(.., access)| access.remote_write)
            .map(|(_, start, len, _)| (start as usize, len as usize))
            .collect()
    }

    /// Returns the numbers of a device's regions with and without relaxed ordering.
    pub fn relaxed(&self, sim: &SimDevice) -> (usize, usize) {
        let mut driver = sim.device.driver();
        let (relaxed, strict): (Vec<_>, Vec<_>) =
            driver.engine.memory().registered().partition(|(.., access)| access.relaxed);
        (relaxed.len(), strict.len())
    }

    /// Returns the numbers of a device's queue pairs with and without a thread domain.
    pub fn threads(&self, sim: &SimDevice) -> (usize, usize) {
        let mut driver = sim.device.driver();
        let (with, without): (Vec<_>, Vec<_>) =
            driver.engine.parts().0.iter().map(|(_, qp)| qp.domain != qp.pd).partition(|has_thread| *has_thread);
        (with.len(), without.len())
    }

    /// Returns port, P_Key index, traffic class and service level of each queue pair of a device.
    pub fn paths(&self, sim: &SimDevice) -> Vec<(u8, u16, u8, u8)> {
        let world = self.world();
        let qps = world.sites[sim.index].qps.values();
        qps.map(|qp| (qp.port, qp.partition, qp.classes.0, qp.classes.1)).collect()
    }

    /// Returns the completion vectors of a device's completion queues, in the order of their creation.
    pub fn vectors(&self, sim: &SimDevice) -> Vec<u32> {
        self.world().sites[sim.index].vectors.iter().map(|(_, vector)| *vector).collect()
    }

    /// Returns the number of buffers in the shared receive queues of a device.
    pub fn srq_wrs(&self, sim: &SimDevice) -> usize {
        let world = self.world();
        let late = world.sites[sim.index].late.iter().filter(|late| late.is_shared).count();
        sim.device.driver().engine.parts().1.srqs.iter().map(|(_, srq)| srq.queue.usage().0).sum::<usize>() + late
    }

    /// Returns the number of messages that found no buffer.
    pub fn not_ready(&self) -> u64 {
        self.world().sites.iter().map(|site| site.device.driver().engine.counters().not_ready).sum()
    }

    /// Returns the number of packets that [`Faults`] have lost.
    pub fn lost(&self) -> u64 {
        self.world().network.lost
    }
}

#[cfg(test)]
impl Fabric {
    /// Returns the packets that were sent since the last call, with their IP headers.
    pub fn take_sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.world().network.sent)
    }

    /// Delivers a packet of the test to the device with this address.
    pub fn inject(&self, to: IpAddr, packet: &[u8]) {
        let mut world = self.world();
        let to = world.sites.iter().rposition(|site| site.carries(to)).expect("a device");
        world.receive(to, packet);
    }
}
