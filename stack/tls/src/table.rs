//! Values by connection.

use linerate_service::ConnId;

/// Values of a worker's connections, by slot.
pub struct Table<T>(Vec<Option<(ConnId, T)>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table(Vec::new())
    }
}

impl<T> Table<T> {
    /// Inserts or replaces the value of `conn`, whose slot holds no other connection.
    pub fn insert(&mut self, conn: ConnId, value: T) {
        if self.0.len() <= conn.slot() {
            self.0.resize_with(conn.slot() + 1, || None);
        }
        self.0[conn.slot()] = Some((conn, value));
    }

    /// Returns the number of slots.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn at_mut(&mut self, slot: usize) -> Option<&mut T> {
        self.0.get_mut(slot)?.as_mut().map(|(_, value)| value)
    }

    #[inline]
    pub fn get(&self, conn: ConnId) -> Option<&T> {
        match self.0.get(conn.slot()) {
            Some(Some((id, value))) if *id == conn => Some(value),
            _ => None,
        }
    }

    #[inline]
    pub fn get_mut(&mut self, conn: ConnId) -> Option<&mut T> {
        match self.0.get_mut(conn.slot()) {
            Some(Some((id, value))) if *id == conn => Some(value),
            _ => None,
        }
    }

    pub fn remove(&mut self, conn: ConnId) -> Option<T> {
        self.get(conn)?;
        self.0[conn.slot()].take().map(|(_, value)| value)
    }
}
