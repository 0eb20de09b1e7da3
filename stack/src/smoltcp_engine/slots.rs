//! Connection table of the smoltcp engine: slots with generations, as in [`ConnId`].

use linerate_bypass::ConnId;

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Values in dense slots, which are reused under another generation.
pub(crate) struct Slots<T> {
    worker: usize,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    /// Creates a table for the connections of `worker`.
    pub fn new(worker: usize) -> Self {
        Slots { worker, slots: Vec::new(), free: Vec::new() }
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the number of slots ever used.
    pub fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Stores `value` in a free slot; `None` beyond the slots that a [`ConnId`] can express.
    pub fn insert(&mut self, value: T) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize].value = Some(value);
            return Some(slot);
        }
        if self.slots.len() >= ConnId::MAX_SLOTS {
            return None;
        }
        self.slots.push(Slot { generation: 0, value: Some(value) });
        Some(self.slots.len() as u32 - 1)
    }

    /// Removes the value in `slot` and invalidates its identifiers.
    pub fn remove(&mut self, slot: u32) -> Option<T> {
        let entry = self.slots.get_mut(slot as usize)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot);
        Some(value)
    }

    /// Returns the identifier of the connection in `slot`.
    pub fn id(&self, slot: u32) -> ConnId {
        ConnId::new(self.worker, slot as usize, self.slots[slot as usize].generation)
    }

    pub fn get(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize)?.value.as_ref()
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.slots.get_mut(slot as usize)?.value.as_mut()
    }

    /// Returns the connection `conn`, if it exists.
    pub fn find(&self, conn: ConnId) -> Option<&T> {
        let slot = self.slots.get(conn.slot())?;
        slot.value.as_ref().filter(|_| slot.generation == conn.generation() && self.worker == conn.worker())
    }

    #[inline]
    pub fn find_mut(&mut self, conn: ConnId) -> Option<&mut T> {
        let slot = self.slots.get_mut(conn.slot())?;
        slot.value.as_mut().filter(|_| slot.generation == conn.generation() && self.worker == conn.worker())
    }

    /// Returns all used slots.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.slots.iter_mut().enumerate().filter_map(|(i, slot)| Some((i as u32, slot.value.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_identifier_finds_nothing_in_a_reused_slot() {
        let mut slots = Slots::new(1);
        let a = slots.insert('a').unwrap();
        let old = slots.id(a);
        assert_eq!(slots.find(old), Some(&'a'));
        assert_eq!(slots.remove(a), Some('a'));
        assert_eq!(slots.remove(a), None);
        let b = slots.insert('b').unwrap();
        assert_eq!(a, b);
        assert_eq!(slots.find(old), None);
        assert_eq!(slots.find_mut(slots.id(b)), Some(&mut 'b'));
        assert_eq!(slots.find(ConnId::new(0, b as usize, slots.id(b).generation())), None);
        assert_eq!(slots.find(ConnId::new(1, 99, 0)), None);
        assert_eq!(slots.len(), 1);
    }
}
