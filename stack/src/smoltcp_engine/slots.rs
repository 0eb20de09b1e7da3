//! Connections by slot and generation: the table behind [`ConnId`].

use linerate_bypass::ConnId;

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Values in dense slots that are used again under another generation.
pub(crate) struct Slots<T> {
    worker: usize,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    /// No slots yet, for the connections of `worker`.
    pub fn new(worker: usize) -> Self {
        Slots { worker, slots: Vec::new(), free: Vec::new() }
    }

    /// Values held.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Slots that values are in or have been in.
    pub fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Puts `value` into a free slot; `None` when a [`ConnId`] could not tell one more apart.
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

    /// Takes the value out of `slot`; names of it are void from now on.
    pub fn remove(&mut self, slot: u32) -> Option<T> {
        let entry = self.slots.get_mut(slot as usize)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot);
        Some(value)
    }

    /// The name of the connection in `slot`.
    pub fn id(&self, slot: u32) -> ConnId {
        ConnId::new(self.worker, slot as usize, self.slots[slot as usize].generation)
    }

    pub fn get(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize)?.value.as_ref()
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.slots.get_mut(slot as usize)?.value.as_mut()
    }

    /// The connection that `conn` names, if it is still there.
    pub fn find(&self, conn: ConnId) -> Option<&T> {
        let slot = self.slots.get(conn.slot())?;
        slot.value.as_ref().filter(|_| slot.generation == conn.generation() && self.worker == conn.worker())
    }

    /// See [`find`](Self::find).
    #[inline]
    pub fn find_mut(&mut self, conn: ConnId) -> Option<&mut T> {
        let slot = self.slots.get_mut(conn.slot())?;
        slot.value.as_mut().filter(|_| slot.generation == conn.generation() && self.worker == conn.worker())
    }

    /// Every slot in use.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.slots.iter_mut().enumerate().filter_map(|(i, slot)| Some((i as u32, slot.value.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_name_finds_nothing_in_a_slot_that_is_used_again() {
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
