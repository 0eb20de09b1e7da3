//! What joins devices, lets time pass, and counts.

use super::device::{Device, DeviceConfig, SimDevice};
use super::world::World;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// When things happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// At [`Fabric::step`] and [`Fabric::run`].
    Stepped,
    /// In every call of a device, all that can; a step of time passes with each call.
    Auto,
}

/// What a fabric is like.
#[derive(Debug, Clone)]
pub struct FabricConfig {
    /// What the order of things is chosen with.
    pub seed: u64,
    /// When things happen.
    pub mode: Mode,
    /// Steps after which a request that has no answer is tried again, whatever the queue pair's timeout is (for ever if that is
    /// 0).
    pub retry_steps: u64,
    /// Steps after which a message is tried again that found no buffer.
    pub not_ready_steps: u64,
    /// Steps after which a connection that is over is forgotten.
    pub time_wait_steps: u64,
}

impl Default for FabricConfig {
    fn default() -> Self {
        FabricConfig { seed: 1, mode: Mode::Stepped, retry_steps: 100, not_ready_steps: 20, time_wait_steps: 200 }
    }
}

/// What was done with a queue pair.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// Requests posted to its send queue.
    pub requests: u64,
    /// Calls that posted them.
    pub request_posts: u64,
    /// Buffers posted to its own receive queue.
    pub buffers: u64,
    /// Completions of requests that were polled.
    pub sends_polled: u64,
    /// Completions of buffers that were polled.
    pub receives_polled: u64,
    /// How often a message of its found no buffer at the peer.
    pub not_ready: u64,
}

/// How many objects there are.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kinds of objects")]
pub struct Live {
    pub pds: usize,
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

/// What joins devices. Its clones are the same fabric.
#[derive(Clone)]
pub struct Fabric(Arc<Mutex<World>>);

impl Fabric {
    /// One without devices.
    pub fn new(config: FabricConfig) -> Self {
        Fabric(Arc::new(Mutex::new(World::new(config))))
    }

    /// Adds a device, which stands for one process that has opened it. The address may be one whose device has vanished.
    pub fn device(&self, name: &str, config: DeviceConfig) -> Arc<SimDevice> {
        let mut world = self.world();
        let first_index = world.random.u32(1..0x10_0000);
        let device = Device::new(config.clone(), first_index);
        let async_fd = device.events.fd();
        world.devices.push(device);
        let index = world.devices.len() - 1;
        drop(world);
        Arc::new(SimDevice {
            fabric: self.clone(),
            index,
            name: name.to_owned(),
            emulated_by: config.emulated_by,
            async_fd,
        })
    }

    /// A panic in a test leaves the world as it is: objects are still destroyed while the test unwinds.
    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets one thing happen: a request is executed or answered, an object flushed, a message of the connection manager
    /// delivered. When all wait for a time, it is then. Returns whether there was something.
    pub fn step(&self) -> bool {
        self.world().step()
    }

    /// Lets things happen until nothing does, and returns how many did. Messages that wait for a buffer for ever wait on.
    ///
    /// # Panics
    /// After ten million: something goes round in a circle.
    pub fn run(&self) -> usize {
        let mut world = self.world();
        let steps = (0..10_000_000).take_while(|_| world.step()).count();
        assert!(steps < 10_000_000, "the fabric does not come to rest");
        steps
    }

    /// Lets time pass in which nothing happens.
    pub fn advance(&self, steps: u64) {
        self.world().now += steps;
    }

    /// How many objects there are, of all devices.
    pub fn live(&self) -> Live {
        self.world().live(None)
    }

    /// How many objects a device has.
    pub fn live_of(&self, sim: &SimDevice) -> Live {
        self.world().live(Some(sim.index))
    }

    /// What was done with each queue pair, by its number; those that are gone, too.
    pub fn counters(&self) -> BTreeMap<u32, Counters> {
        self.world().counters.clone()
    }

    /// Buffers that wait in the shared receive queues of a device.
    pub fn srq_wrs(&self, sim: &SimDevice) -> usize {
        let world = self.world();
        world.srq.of(sim.index).into_iter().map(|srq| world.srq[srq].buffers.len()).sum()
    }

    /// How often a message found no buffer, on the whole fabric.
    pub fn not_ready(&self) -> u64 {
        self.world().counters.values().map(|counters| counters.not_ready).sum()
    }
}

impl World {
    fn live(&self, device: Option<usize>) -> Live {
        Live {
            pds: self.pds.count(device),
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
