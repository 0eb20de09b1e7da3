//! Fabric: joins devices, advances time, and counts.

use super::device::{Device, DeviceConfig, SimDevice};
use super::world::World;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Control of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Events occur in [`Fabric::step`] and [`Fabric::run`].
    Stepped,
    /// All possible events occur in every call of a device, each of which advances time by one step.
    Auto,
}

/// Steps until a request without a response is retried, whatever the queue pair's time-out is (never if that is 0).
pub(super) const RETRY_STEPS: u64 = 100;

#[derive(Debug, Clone)]
pub struct FabricConfig {
    /// Seed of the event order.
    pub seed: u64,
    /// Control of events.
    pub mode: Mode,
}

impl Default for FabricConfig {
    fn default() -> Self {
        FabricConfig { seed: 1, mode: Mode::Stepped }
    }
}

/// Statistics of a queue pair.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// Requests posted to the send queue.
    pub requests: u64,
    pub request_posts: u64,
    /// Buffers posted to its own receive queue.
    pub buffers: u64,
    /// Polled completions of requests.
    pub sends_polled: u64,
    /// Polled completions of buffers.
    pub receives_polled: u64,
    /// Number of times that its messages found no buffer.
    pub not_ready: u64,
}

/// Numbers of live objects.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "types of objects")]
pub struct Live {
    pub pds: usize,
    pub tds: usize,
    pub mrs: usize,
    pub mws: usize,
    pub channels: usize,
    pub cqs: usize,
    pub addresses: usize,
    pub srq: usize,
    pub qps: usize,
    pub cm_channels: usize,
    pub cm_ids: usize,
}

/// Fabric that joins devices. Clones are the same fabric.
#[derive(Clone)]
pub struct Fabric(Arc<Mutex<World>>);

impl Fabric {
    /// Creates a fabric without devices.
    pub fn new(config: FabricConfig) -> Self {
        Fabric(Arc::new(Mutex::new(World::new(config))))
    }

    /// Adds a device, opened by a process of its own. The address may have belonged to a vanished device.
    pub fn device(&self, name: &str, config: DeviceConfig) -> Arc<SimDevice> {
        let mut world = self.world();
        let first_index = world.random.u32(1..0x10_0000);
        let device = Device::new(config, first_index);
        let async_fd = device.events.fd();
        world.devices.push(device);
        let index = world.devices.len() - 1;
        drop(world);
        Arc::new(SimDevice { fabric: self.clone(), index, name: name.to_owned(), async_fd })
    }

    /// Ignores poisoning: objects must be destroyed while a failed test unwinds.
    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Performs one event: a request is executed or answered, an object flushed, or a connection manager message
    /// delivered. If all events wait for a time, advances to it. Returns true if there was an event.
    pub fn step(&self) -> bool {
        self.world().step()
    }

    /// Performs events until none is left and returns their number. Messages with unlimited retries keep waiting.
    ///
    /// # Panics
    /// After ten million events, which indicates an endless loop.
    pub fn run(&self) -> usize {
        let mut world = self.world();
        let steps = (0..10_000_000).take_while(|_| world.step()).count();
        assert!(steps < 10_000_000, "the fabric does not settle");
        steps
    }

    /// Advances time without events.
    pub fn advance(&self, steps: u64) {
        self.world().now += steps;
    }

    /// Returns the numbers of objects of all devices.
    pub fn live(&self) -> Live {
        self.world().live(None)
    }

    /// Returns the numbers of objects of a device.
    pub fn live_of(&self, sim: &SimDevice) -> Live {
        self.world().live(Some(sim.index))
    }

    /// Returns the statistics of each queue pair, by number, including destroyed ones.
    pub fn counters(&self) -> BTreeMap<u32, Counters> {
        self.world().counters.clone()
    }

    /// Returns the memory of a device that its peers can write without a window, as addresses and lengths.
    pub fn writable(&self, sim: &SimDevice) -> Vec<(usize, usize)> {
        let world = self.world();
        let mrs = world.mrs.of(sim.index).into_iter().map(|mr| &world.mrs[mr]);
        mrs.filter(|mr| mr.access.remote_write).map(|mr| (mr.start, mr.len)).collect()
    }

    /// Returns the numbers of a device's regions with and without relaxed ordering.
    pub fn relaxed(&self, sim: &SimDevice) -> (usize, usize) {
        let world = self.world();
        let mrs = world.mrs.of(sim.index);
        let relaxed = mrs.iter().filter(|mr| world.mrs[**mr].access.relaxed).count();
        (relaxed, mrs.len() - relaxed)
    }

    /// Returns the numbers of a device's queue pairs with and without a thread domain.
    pub fn threads(&self, sim: &SimDevice) -> (usize, usize) {
        let world = self.world();
        let qps = world.qps.of(sim.index);
        let with = qps.iter().filter(|qp| world.qps[**qp].parent.is_some()).count();
        (with, qps.len() - with)
    }

    /// Returns port, P_Key index, traffic class and service level of each queue pair of a device.
    pub fn paths(&self, sim: &SimDevice) -> Vec<(u8, u16, u8, u8)> {
        let world = self.world();
        let qps = world.qps.of(sim.index).into_iter().map(|qp| &world.qps[qp]);
        qps.map(|qp| (qp.port, qp.partition, qp.classes.0, qp.classes.1)).collect()
    }

    /// Returns the completion vectors of a device's completion queues, in the order of their creation.
    pub fn vectors(&self, sim: &SimDevice) -> Vec<u32> {
        let world = self.world();
        world.cqs.of(sim.index).into_iter().map(|cq| world.cqs[cq].vector).collect()
    }

    /// Returns the number of buffers in the shared receive queues of a device.
    pub fn srq_wrs(&self, sim: &SimDevice) -> usize {
        let world = self.world();
        world.srq.of(sim.index).into_iter().map(|srq| world.srq[srq].buffers.len()).sum()
    }

    /// Returns the number of times that messages found no buffer, on the whole fabric.
    pub fn not_ready(&self) -> u64 {
        self.world().counters.values().map(|counters| counters.not_ready).sum()
    }
}

impl World {
    fn live(&self, device: Option<usize>) -> Live {
        Live {
            pds: self.pds.count(device),
            tds: self.tds.count(device),
            mrs: self.mrs.count(device),
            mws: self.mws.count(device),
            channels: self.channels.count(device),
            cqs: self.cqs.count(device),
            addresses: self.addresses.count(device),
            srq: self.srq.count(device),
            qps: self.qps.count(device),
            cm_channels: self.cm_channels.count(device),
            cm_ids: self.cm_ids.count(device),
        }
    }
}
