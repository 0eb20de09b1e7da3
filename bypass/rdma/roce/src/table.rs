//! Objects by handle.

use linerate_rdma_provider::Handle;
use std::io;

/// Bits of a handle that are the index of an object. The bits above are the generation of its slot.
const INDEX_BITS: u32 = 24;

/// Objects of one type. A handle is not used again after its object is destroyed, except after 2⁴⁰ objects.
pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
}

struct Slot<T> {
    generation: usize,
    object: Option<T>,
}

impl<T> Table<T> {
    pub fn new() -> Self {
        Table { slots: Vec::new(), free: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn add(&mut self, object: T) -> Handle {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 1, object: None });
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        slot.object = Some(object);
        Handle(slot.generation << INDEX_BITS | index)
    }

    pub fn get(&self, handle: Handle) -> io::Result<&T> {
        let slot = self.slots.get(handle.0 & ((1 << INDEX_BITS) - 1));
        let slot = slot.filter(|slot| slot.generation == handle.0 >> INDEX_BITS);
        slot.and_then(|slot| slot.object.as_ref()).ok_or_else(|| errno(libc::EINVAL))
    }

    pub fn get_mut(&mut self, handle: Handle) -> io::Result<&mut T> {
        let slot = self.slots.get_mut(handle.0 & ((1 << INDEX_BITS) - 1));
        let slot = slot.filter(|slot| slot.generation == handle.0 >> INDEX_BITS);
        slot.and_then(|slot| slot.object.as_mut()).ok_or_else(|| errno(libc::EINVAL))
    }

    /// Returns the object with this index, whatever its generation.
    pub fn at(&mut self, index: usize) -> Option<&mut T> {
        self.slots.get_mut(index)?.object.as_mut()
    }

    /// Returns true if the object of a handle was destroyed.
    #[cfg(any(test, feature = "testing"))]
    pub fn is_gone(&self, handle: Handle) -> bool {
        let generation = handle.0 >> INDEX_BITS;
        let slot = self.slots.get(handle.0 & ((1 << INDEX_BITS) - 1));
        generation > 0 && slot.is_some_and(|slot| generation < slot.generation)
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| slot.object.as_mut())
    }

    pub fn remove(&mut self, handle: Handle) -> io::Result<T> {
        self.get(handle)?;
        let index = handle.0 & ((1 << INDEX_BITS) - 1);
        let slot = &mut self.slots[index];
        slot.generation += 1;
        self.free.push(index);
        slot.object.take().ok_or_else(|| errno(libc::EINVAL))
    }

    pub fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(index, slot)| Some((Handle(slot.generation << INDEX_BITS | index), slot.object.as_ref()?)))
    }
}

pub(crate) fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

pub(crate) fn require(condition: bool, number: i32) -> io::Result<()> {
    if condition { Ok(()) } else { Err(errno(number)) }
}
