//! Memory regions and counters that devices and peers access at any time.

use super::pd::Registration;
use super::{Error, Pd};
use crate::provider::{Access, Provider};
use linerate_bypass::{Published, RemoteCounters};
use std::sync::Arc;

/// Memory region that peers access at any time within its access rights. No reference to the memory exists: the program
/// uses atomic loads and stores only.
///
/// Clones share the memory, which stays registered and mapped until the last one is dropped.
pub struct ExposedMr<C: Provider>(Arc<Registration<C, Arc<Published>>>);

impl<C: Provider> ExposedMr<C> {
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
    use linerate_roce::testing::{DeviceConfig, Fabric, FabricConfig, Live};

    #[test]
    fn region_stays_registered_until_last_clone_is_dropped() {
        let fabric = Fabric::new(FabricConfig::default());
        let device = fabric.device("model", DeviceConfig::roce([10, 0, 0, 1].into()));
        let pd = Pd::new(&device).unwrap();
        let memory = Arc::new(Published::new(9, false).unwrap());
        let region = ExposedMr::open(&pd, memory.clone(), Access::default()).unwrap();
        assert_eq!(region.address(), memory.range().start as u64);
        let other = region.clone();
        drop(pd);
        drop(region);
        assert_eq!(fabric.live(), Live { pds: 1, mrs: 1, ..Live::default() });
        drop(other);
        assert_eq!(fabric.live(), Live::default());
    }
}
