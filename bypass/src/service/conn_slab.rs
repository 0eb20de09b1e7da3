//! The connections of one worker, found by their names.

use crate::ConnId;

/// A place for a connection, and how often it has been used.
struct Slot<T> {
    generation: u32,
    connection: Option<T>,
}

/// A slab of connections. A [`ConnId`] of one that is gone finds nothing, whoever has the slot now.
pub struct Slots<T> {
    worker: usize,
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
    limit: usize,
}

impl<T> Slots<T> {
    /// Room for up to `limit` connections of `worker`.
    pub fn new(worker: usize, limit: usize) -> Self {
        Slots { worker, slots: Vec::new(), free: Vec::new(), limit: limit.min(ConnId::MAX_SLOTS) }
    }

    /// Whether there is no room for another connection.
    pub fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() == self.limit
    }

    /// Gives a connection a slot, and with it a name; `None` when there is no room.
    pub fn insert(&mut self, connection: T) -> Option<ConnId> {
        if self.is_full() {
            return None;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, connection: None });
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        slot.connection = Some(connection);
        Some(ConnId::new(self.worker, index, slot.generation))
    }

    /// Takes a connection out: from here on its name means nothing.
    pub fn remove(&mut self, id: ConnId) -> Option<T> {
        self.get(id)?;
        let slot = &mut self.slots[id.slot()];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot());
        slot.connection.take()
    }

    /// The connection, if it is still there.
    #[inline]
    pub fn get(&self, id: ConnId) -> Option<&T> {
        let slot = self.slots.get(id.slot())?;
        if slot.generation == id.generation() && self.worker == id.worker() { slot.connection.as_ref() } else { None }
    }

    /// As [`get`](Self::get), to be changed.
    #[inline]
    pub fn get_mut(&mut self, id: ConnId) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.slot())?;
        if slot.generation == id.generation() && self.worker == id.worker() { slot.connection.as_mut() } else { None }
    }

    /// The name of the connection in slot `index`.
    pub fn name(&self, index: usize) -> Option<ConnId> {
        let slot = self.slots.get(index)?;
        slot.connection.as_ref()?;
        Some(ConnId::new(self.worker, index, slot.generation))
    }

    /// How many connections there are.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// How many connections there have been at a time at most: all are in slots below this.
    pub fn extent(&self) -> usize {
        self.slots.len()
    }

    /// All connections.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| slot.connection.as_mut())
    }

    /// The names of all connections.
    pub fn names(&self) -> Vec<ConnId> {
        (0..self.slots.len()).filter_map(|index| self.name(index)).collect()
    }
}
