//! Slab of a worker's connections.

use crate::ConnId;

/// Slot of the slab.
struct Slot<T> {
    generation: u32,
    connection: Option<T>,
}

/// Slab of connections, indexed by [`ConnId`]. A lookup by the identifier of a removed connection finds nothing, even
/// after its slot has been reused. The native TCP engine keeps its connections in two parallel vectors instead, which
/// separate fields by frequency of use.
pub struct ConnSlab<T> {
    worker: usize,
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
    limit: usize,
}

impl<T> ConnSlab<T> {
    /// Creates an empty slab for up to `limit` connections of `worker`.
    pub fn new(worker: usize, limit: usize) -> Self {
        ConnSlab { worker, slots: Vec::new(), free: Vec::new(), limit: limit.min(ConnId::MAX_SLOTS) }
    }

    /// Returns whether the slab is at its limit.
    pub fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() == self.limit
    }

    /// Inserts a connection and returns its identifier, or `None` if the slab is full.
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

    /// Removes and returns a connection. Its identifier is invalid from now on.
    pub fn remove(&mut self, id: ConnId) -> Option<T> {
        self.get(id)?;
        let slot = &mut self.slots[id.slot()];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot());
        slot.connection.take()
    }

    /// Returns the connection.
    #[inline]
    pub fn get(&self, id: ConnId) -> Option<&T> {
        let slot = self.slots.get(id.slot())?;
        if slot.generation == id.generation() && self.worker == id.worker() { slot.connection.as_ref() } else { None }
    }

    /// Returns the connection for modification.
    #[inline]
    pub fn get_mut(&mut self, id: ConnId) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.slot())?;
        if slot.generation == id.generation() && self.worker == id.worker() { slot.connection.as_mut() } else { None }
    }

    /// Returns the connection in slot `index`.
    pub fn at(&self, index: usize) -> Option<&T> {
        self.slots.get(index)?.connection.as_ref()
    }

    /// Returns the connection in slot `index` for modification.
    pub fn at_mut(&mut self, index: usize) -> Option<&mut T> {
        self.slots.get_mut(index)?.connection.as_mut()
    }

    /// Returns the identifier of the connection in slot `index`.
    pub fn conn_id(&self, index: usize) -> Option<ConnId> {
        let slot = self.slots.get(index)?;
        slot.connection.as_ref()?;
        Some(ConnId::new(self.worker, index, slot.generation))
    }

    /// Returns the number of connections.
    #[expect(clippy::len_without_is_empty, reason = "unused")]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the number of slots ever used. All connections are in slots below it.
    pub fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Iterates over all connections and their slots.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        self.slots.iter_mut().enumerate().filter_map(|(index, slot)| Some((index, slot.connection.as_mut()?)))
    }

    /// Returns the identifiers of all connections.
    pub fn conn_ids(&self) -> Vec<ConnId> {
        (0..self.slots.len()).filter_map(|index| self.conn_id(index)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_identifier_finds_nothing_in_a_reused_slot() {
        let mut slab = ConnSlab::new(1, 8);
        let old = slab.insert('a').unwrap();
        assert_eq!((slab.get(old), slab.at(old.slot())), (Some(&'a'), Some(&'a')));
        assert_eq!((slab.remove(old), slab.remove(old)), (Some('a'), None));
        let new = slab.insert('b').unwrap();
        assert_eq!(new.slot(), old.slot());
        assert_eq!(slab.get(old), None);
        assert_eq!(slab.get_mut(new), Some(&mut 'b'));
        assert_eq!(slab.get(ConnId::new(0, new.slot(), new.generation())), None);
        assert_eq!(slab.get(ConnId::new(1, 99, 0)), None);
        assert_eq!((slab.len(), slab.conn_ids()), (1, vec![new]));
    }
}
