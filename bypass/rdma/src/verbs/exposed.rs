//! Memory regions and counters that devices and peers access at any time.

use super::pd::Registration;
use super::{Error, Pd};
use crate::provider::{Access, Provider, Sge};
use linerate_bypass::{Published, RemoteCounters};
use std::ops::Range;
use std::sync::Arc;

/// Memory region that peers access at any time within its access rights, and that several requests may use at once.
/// No reference to the memory exists: the program uses atomic loads and stores only. A request sends the bytes
/// present when the device reads them.
///
/// Clones share the memory, which stays registered and mapped until the last one is dropped. Queue pairs keep a clone
/// of each region that their requests name.
pub struct ExposedMr<C: Provider>(Arc<Registration<C, Arc<Published>>>);

impl<C: Provider> ExposedMr<C> {
    /// Allocates and registers `len` zero bytes, at least one, with the rights `access` for peers of the protection
    /// domain.
    pub fn new(pd: &Pd<C>, len: usize, access: Access) -> Result<Self, Error> {
        let memory = Published::new(len, false).map_err(Error::new("map memory"))?;
        ExposedMr::open(pd, Arc::new(memory), access)
    }

    /// Registers `memory` with the rights `access` for peers of the protection domain.
    pub fn open(pd: &Pd<C>, memory: Arc<Published>, access: Access) -> Result<Self, Error> {
        // SAFETY: the memory stays mapped as long as `memory`. The program accesses it with atomic operations only, so
        // that concurrent access by peers is no data race.
        let mr = unsafe { Registration::new(pd, memory.range(), access, memory, "register memory") };
        Ok(ExposedMr(Arc::new(mr?)))
    }

    /// Returns the address that peers use.
    pub fn address(&self) -> u64 {
        self.0.range.start as u64
    }

    /// Returns the R_Key.
    pub fn rkey(&self) -> u32 {
        self.0.keys.remote
    }

    /// Loads the byte at `at`.
    ///
    /// # Panics
    /// If `at` is out of bounds.
    #[inline]
    pub fn load(&self, at: usize) -> u8 {
        (self.0.kept.load(at / 8) >> (8 * (at % 8))) as u8
    }

    /// Stores the byte at `at`. A concurrent write to the same eight bytes may be lost.
    ///
    /// # Panics
    /// If `at` is out of bounds.
    #[inline]
    pub fn store(&self, at: usize, byte: u8) {
        let shift = 8 * (at % 8);
        let word = self.0.kept.load(at / 8) & !(0xff << shift);
        self.0.kept.store(at / 8, word | u64::from(byte) << shift);
    }

    /// Loads the eight bytes at `at` in native byte order.
    ///
    /// # Panics
    /// If they are out of bounds, or `at` is not a multiple of eight.
    #[inline]
    pub fn load_word(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8), "no word at {at}");
        u64::from_ne_bytes(self.0.kept.load(at / 8).to_le_bytes())
    }

    /// Returns the scatter/gather element of `part`.
    ///
    /// # Panics
    /// If `part` is out of bounds.
    #[inline]
    pub(super) fn sge(&self, part: Range<usize>) -> Sge {
        assert!(part.start <= part.end && part.end <= self.0.range.len(), "no bytes {part:?}");
        Sge { address: self.address() + part.start as u64, len: part.len() as u32, lkey: self.0.keys.local }
    }

    /// Returns true if both are the same region.
    #[inline]
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<C: Provider> Clone for ExposedMr<C> {
    fn clone(&self) -> Self {
        ExposedMr(self.0.clone())
    }
}

/// Counters on which peers can do atomic operations only: an operation returns the old value, and nothing else reads
/// or writes them. Locally they can only be [loaded](Self::load); see [`RemoteCounters`] for the
/// ordering.
///
/// Clones share the counters, which stay registered until the last one is dropped.
pub struct Counters<C: Provider>(Arc<Registration<C, Arc<RemoteCounters>>>);

impl<C: Provider> Counters<C> {
    /// Registers `memory`. A peer that guesses the R_Key can change the counters.
    pub fn open(pd: &Pd<C>, memory: Arc<RemoteCounters>) -> Result<Self, Error> {
        let access = Access { local_write: true, remote_atomic: true, ..Access::default() };
        // SAFETY: the memory stays mapped as long as `memory`. The program uses atomic loads only, so that the device
        // may change whole words at any time.
        let mr = unsafe { Registration::new(pd, memory.range(), access, memory, "register counters") };
        Ok(Counters(Arc::new(mr?)))
    }

    /// Returns the address of the first counter. The others follow, eight bytes each.
    pub fn address(&self) -> u64 {
        self.0.range.start as u64
    }

    /// Returns the R_Key.
    pub fn rkey(&self) -> u32 {
        self.0.keys.remote
    }

    /// Loads counter `at`, counted from 0.
    ///
    /// # Panics
    /// If there are fewer counters.
    #[inline]
    pub fn load(&self, at: usize) -> u64 {
        self.0.kept.load(at)
    }
}

impl<C: Provider> Clone for Counters<C> {
    fn clone(&self) -> Self {
        Counters(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_rdma_sim::{DeviceConfig, Fabric, FabricConfig, Live};

    #[test]
    fn region_starts_zeroed_and_keeps_pd() {
        let fabric = Fabric::new(FabricConfig::default());
        let device = fabric.device("model", DeviceConfig::roce([10, 0, 0, 1].into()));
        let pd = Pd::new(&device).unwrap();
        let memory = ExposedMr::new(&pd, 9, Access::default()).unwrap();
        let other = memory.clone();
        drop(pd);
        drop(memory);
        assert_eq!((0..9).map(|at| other.load(at)).max(), Some(0));
        other.store(7, 1);
        assert_eq!(other.load_word(0).to_ne_bytes()[7], 1);
        assert_eq!(other.sge(2..9), Sge { address: other.address() + 2, len: 7, ..other.sge(0..1) });
        assert_eq!(fabric.live(), Live { pds: 1, mrs: 1, ..Live::default() });
        drop(other);
        assert_eq!(fabric.live(), Live::default());
    }

    #[test]
    #[should_panic = "index out of bounds"]
    fn load_beyond_end_panics() {
        let fabric = Fabric::new(FabricConfig::default());
        let device = fabric.device("model", DeviceConfig::roce([10, 0, 0, 1].into()));
        ExposedMr::new(&Pd::new(&device).unwrap(), 9, Access::default()).unwrap().load(4096);
    }
}
