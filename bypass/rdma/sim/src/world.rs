//! State of a fabric, behind its lock.

use super::cm::{CmChannel, CmId};
use super::device::Device;
use super::fabric::{Counters, FabricConfig};
use super::faults::{DatagramCounts, DatagramFaults};
use super::objects::{Address, Channel, Mr, Mw, Pd, Queue, SharedReceiveQueue, Td};
use super::qp::Pair;
use super::qp::datagrams::Datagram;
use linerate_rdma_provider::Handle;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::{Index, IndexMut};

/// Objects of one type, by handle.
pub(super) struct Table<T>(BTreeMap<usize, Entry<T>>);

struct Entry<T> {
    device: usize,
    object: T,
}

impl<T> Table<T> {
    pub fn new() -> Self {
        Table(BTreeMap::new())
    }

    pub fn get(&self, handle: Handle) -> Option<&T> {
        self.0.get(&handle.0).map(|entry| &entry.object)
    }

    pub fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        self.0.get_mut(&handle.0).map(|entry| &mut entry.object)
    }

    pub fn device(&self, handle: Handle) -> usize {
        self.0[&handle.0].device
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.values().map(|entry| &entry.object)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.0.iter().map(|(&handle, entry)| (Handle(handle), &entry.object))
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.values_mut().map(|entry| &mut entry.object)
    }

    pub fn of(&self, device: usize) -> Vec<Handle> {
        self.0.iter().filter(|(_, entry)| entry.device == device).map(|(&handle, _)| Handle(handle)).collect()
    }

    pub fn count(&self, device: Option<usize>) -> usize {
        self.0.values().filter(|entry| device.is_none_or(|device| entry.device == device)).count()
    }

    /// Removes the objects of a device.
    pub fn remove_of(&mut self, device: usize) {
        self.0.retain(|_, entry| entry.device != device);
    }

    /// Removes an object that its owner did not destroy itself.
    pub fn take(&mut self, handle: Handle) -> Option<T> {
        self.0.remove(&handle.0).map(|entry| entry.object)
    }
}

impl<T> Index<Handle> for Table<T> {
    type Output = T;

    fn index(&self, handle: Handle) -> &T {
        &self.0[&handle.0].object
    }
}

impl<T> IndexMut<Handle> for Table<T> {
    fn index_mut(&mut self, handle: Handle) -> &mut T {
        &mut self.0.get_mut(&handle.0).expect("looked up before").object
    }
}

/// Last issued handle, and the handles of destroyed objects.
pub(super) struct Handles {
    next: usize,
    gone: BTreeSet<usize>,
}

impl Handles {
    pub fn add<T>(&mut self, table: &mut Table<T>, device: usize, object: T) -> Handle {
        self.next += 1;
        table.0.insert(self.next, Entry { device, object });
        Handle(self.next)
    }

    /// Returns `EINVAL` unless the handle is an object of this type and device.
    ///
    /// # Panics
    /// If the object was destroyed: on a real device that would be a use after free.
    pub fn check<T>(&self, table: &Table<T>, device: usize, handle: Handle) -> io::Result<()> {
        match table.0.get(&handle.0) {
            Some(entry) if entry.device == device => Ok(()),
            _ => {
                assert!(!self.gone.contains(&handle.0), "{handle:?} is used after it was destroyed");
                Err(errno(libc::EINVAL))
            }
        }
    }

    /// Removes an object that its owner destroys.
    pub fn remove<T>(&mut self, table: &mut Table<T>, handle: Handle) -> T {
        self.gone.insert(handle.0);
        table.take(handle).expect("checked before")
    }
}

pub(super) struct World {
    pub config: FabricConfig,
    pub random: fastrand::Rng,
    /// Elapsed steps.
    pub now: u64,
    pub handles: Handles,
    pub devices: Vec<Device>,
    pub pds: Table<Pd>,
    pub tds: Table<Td>,
    pub mrs: Table<Mr>,
    pub mws: Table<Mw>,
    pub channels: Table<Channel>,
    pub cqs: Table<Queue>,
    pub addresses: Table<Address>,
    pub srq: Table<SharedReceiveQueue>,
    pub qps: Table<Pair>,
    pub cm_channels: Table<CmChannel>,
    pub cm_ids: Table<CmId>,
    /// Queue pairs by number. By default, a number is used once per fabric, so that a stale number is detected.
    pub numbers: BTreeMap<u32, Handle>,
    pub next_number: u32,
    /// Queue pairs and identifiers that may have events.
    pub active: BTreeSet<usize>,
    pub counters: BTreeMap<u32, Counters>,
    pub next_port: u16,
    /// Datagrams in flight, in the order of sending.
    pub air: Vec<Datagram>,
    pub datagram_faults: DatagramFaults,
    pub datagram_counts: DatagramCounts,
}

impl World {
    pub fn new(config: FabricConfig) -> Self {
        World {
            random: fastrand::Rng::with_seed(config.seed),
            config,
            now: 0,
            handles: Handles { next: 0x1000, gone: BTreeSet::new() },
            devices: Vec::new(),
            pds: Table::new(),
            tds: Table::new(),
            mrs: Table::new(),
            mws: Table::new(),
            channels: Table::new(),
            cqs: Table::new(),
            addresses: Table::new(),
            srq: Table::new(),
            qps: Table::new(),
            cm_channels: Table::new(),
            cm_ids: Table::new(),
            numbers: BTreeMap::new(),
            next_number: 0x11,
            active: BTreeSet::new(),
            counters: BTreeMap::new(),
            next_port: 49_152,
            air: Vec::new(),
            datagram_faults: DatagramFaults::default(),
            datagram_counts: DatagramCounts::default(),
        }
    }

    /// Marks a queue pair or identifier as one that may have events.
    pub fn wake(&mut self, handle: Handle) {
        self.active.insert(handle.0);
    }
}

pub(super) fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

pub(super) fn require(condition: bool, number: i32) -> io::Result<()> {
    if condition { Ok(()) } else { Err(errno(number)) }
}
