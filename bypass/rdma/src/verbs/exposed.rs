//! Memory that devices and peers reach whenever they like.

use super::{Error, Pd, destroyed};
use crate::provider::{Access, Handle, Keys, Provider, Sge};
use linerate_bypass::Published;
use std::ops::Range;
use std::sync::Arc;

/// Memory that a peer may read or write at any time, as far as it was let to; and that requests may read and write, several of them
/// at once. Nobody ever has a reference to it: it is looked at, and changed, by atomic loads and stores alone. What requests
/// carry from it is what is there when the device reads it.
///
/// Clones are the same memory, which stays registered and mapped until the last is gone; queue pairs have one of what their requests
/// name.
pub struct ExposedMr<C: Provider>(Arc<Inner<C>>);

struct Inner<C: Provider> {
    pd: Pd<C>,
    handle: Handle,
    keys: Keys,
    // Gone after it is deregistered.
    memory: Arc<Published>,
}

impl<C: Provider> ExposedMr<C> {
    /// `len` bytes of its own, all 0, at least one, with which peers of the domain's queue pairs may do what `access` says.
    pub fn new(pd: &Pd<C>, len: usize, access: Access) -> Result<Self, Error> {
        let memory = Published::new(len, false).map_err(Error::new("map memory"))?;
        ExposedMr::open(pd, Arc::new(memory), access)
    }

    /// Opens `memory`, with which peers of the domain's queue pairs may do what `access` says.
    pub fn open(pd: &Pd<C>, memory: Arc<Published>, access: Access) -> Result<Self, Error> {
        let range = memory.range();
        let start = std::ptr::with_exposed_provenance_mut(range.start);
        // SAFETY: the domain is live. The memory stays mapped until after it is deregistered, and whoever accesses it does so by atomic
        // operations, so that peers may do what they like.
        let registered = unsafe { pd.0.provider.reg_mr(pd.0.handle, start, range.len(), access) };
        let (handle, keys) = registered.map_err(Error::new("register memory"))?;
        Ok(ExposedMr(Arc::new(Inner { pd: pd.clone(), handle, keys, memory })))
    }

    /// Its address, for the peer.
    pub fn address(&self) -> u64 {
        self.0.memory.range().start as u64
    }

    /// The key that opens it to the peer.
    pub fn rkey(&self) -> u32 {
        self.0.keys.remote
    }

    /// The byte at `at`.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn load(&self, at: usize) -> u8 {
        (self.0.memory.load(at / 8) >> (8 * (at % 8))) as u8
    }

    /// Changes the byte at `at`. What others write to the same eight bytes meanwhile may be lost.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn store(&self, at: usize, byte: u8) {
        let shift = 8 * (at % 8);
        let word = self.0.memory.load(at / 8) & !(0xff << shift);
        self.0.memory.store(at / 8, word | u64::from(byte) << shift);
    }

    /// The number in the eight bytes at `at`, as this machine has numbers.
    ///
    /// # Panics
    /// If they are not there, or `at` is not a multiple of eight.
    #[inline]
    pub fn load_word(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8), "no word at {at}");
        u64::from_ne_bytes(self.0.memory.load(at / 8).to_le_bytes())
    }

    /// A part of it, as a device is told of it.
    ///
    /// # Panics
    /// If there is no such part.
    #[inline]
    pub(super) fn sge(&self, part: Range<usize>) -> Sge {
        assert!(part.start <= part.end && part.end <= self.0.memory.range().len(), "no bytes {part:?}");
        Sge { address: self.address() + part.start as u64, len: part.len() as u32, lkey: self.0.keys.local }
    }

    /// Whether both are the same memory.
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

impl<C: Provider> Drop for Inner<C> {
    fn drop(&mut self) {
        // SAFETY: made in `new`; queue pairs whose requests name it keep it.
        destroyed("memory region", unsafe { self.pd.0.provider.dereg_mr(self.handle) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_rdma_sim::{DeviceConfig, Fabric, FabricConfig, Live};

    #[test]
    fn it_begins_as_zeros_keeps_its_domain_and_goes_with_nothing_left() {
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
    fn it_ends_where_it_ends() {
        let fabric = Fabric::new(FabricConfig::default());
        let device = fabric.device("model", DeviceConfig::roce([10, 0, 0, 1].into()));
        ExposedMr::new(&Pd::new(&device).unwrap(), 9, Access::default()).unwrap().load(4096);
    }
}
