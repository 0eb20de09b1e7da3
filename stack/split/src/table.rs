//! Connection table of the relay and of the service's thread.

use linerate_service::ConnId;
use std::collections::HashMap;

/// Values by connection.
///
/// The worker reuses a slot as soon as its connection has ended there. On the service's thread, a connection with
/// unread data then moves out of the slot.
pub(crate) struct Table<T> {
    slots: Vec<Option<(ConnId, T)>>,
    aside: HashMap<ConnId, T>,
}

impl<T> Table<T> {
    pub fn new() -> Self {
        Table { slots: Vec::new(), aside: HashMap::new() }
    }

    pub fn insert(&mut self, conn: ConnId, value: T) {
        if self.slots.len() <= conn.slot() {
            self.slots.resize_with(conn.slot() + 1, || None);
        }
        self.slots[conn.slot()] = Some((conn, value));
    }

    #[inline]
    pub fn get(&self, conn: ConnId) -> Option<&T> {
        match self.slots.get(conn.slot()) {
            Some(Some((id, value))) if *id == conn => Some(value),
            _ if self.aside.is_empty() => None,
            _ => self.aside.get(&conn),
        }
    }

    #[inline]
    pub fn get_mut(&mut self, conn: ConnId) -> Option<&mut T> {
        match self.slots.get_mut(conn.slot()) {
            Some(Some((id, value))) if *id == conn => Some(value),
            _ if self.aside.is_empty() => None,
            _ => self.aside.get_mut(&conn),
        }
    }

    pub fn remove(&mut self, conn: ConnId) -> Option<T> {
        match self.slots.get_mut(conn.slot()) {
            Some(slot) if slot.as_ref().is_some_and(|(id, _)| *id == conn) => slot.take().map(|(_, value)| value),
            _ => self.aside.remove(&conn),
        }
    }

    /// Moves `conn` out of its slot.
    pub fn move_aside(&mut self, conn: ConnId) {
        if let Some(value) = self.remove(conn) {
            self.aside.insert(conn, value);
        }
    }

    pub fn ids(&self) -> Vec<ConnId> {
        let in_slots = self.slots.iter().flatten().map(|(id, _)| *id);
        in_slots.chain(self.aside.keys().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_set_aside_is_found_next_to_its_successor() {
        let (old, new) = (ConnId::new(0, 3, 7), ConnId::new(0, 3, 8));
        let mut table = Table::new();
        table.insert(old, "old");
        assert_eq!((table.get(old), table.get(new)), (Some(&"old"), None));
        table.move_aside(old);
        table.insert(new, "new");
        assert_eq!((table.get(old), table.get(new)), (Some(&"old"), Some(&"new")));
        assert_eq!(table.ids().len(), 2);
        assert_eq!((table.remove(old), table.remove(old)), (Some("old"), None));
        assert_eq!(table.get_mut(old), None);
        assert_eq!((table.get_mut(new).copied(), table.remove(new)), (Some("new"), Some("new")));
    }
}
