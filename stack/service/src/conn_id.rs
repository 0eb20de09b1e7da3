//! Connection identifiers.

use std::fmt;

/// Identifier of a connection: worker, slot, and generation of the slot.
///
/// A slot is reused under another generation, so the identifier of a connection that has ended never names another
/// connection; operations on it do nothing. Generations repeat after 2³² connections in one slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(u64);

impl ConnId {
    /// Number of workers that a `ConnId` can distinguish.
    pub const MAX_WORKERS: usize = 1 << 8;
    /// Number of connections of one worker that a `ConnId` can distinguish.
    pub const MAX_SLOTS: usize = 1 << 24;

    /// Creates the identifier of the connection in `slot` of `worker`, in the slot's `generation`.
    ///
    /// # Panics
    /// If `worker` or `slot` is not below [`MAX_WORKERS`](Self::MAX_WORKERS) or [`MAX_SLOTS`](Self::MAX_SLOTS).
    pub fn new(worker: usize, slot: usize, generation: u32) -> Self {
        assert!(worker < Self::MAX_WORKERS && slot < Self::MAX_SLOTS);
        ConnId(u64::from(generation) << 32 | (worker as u64) << 24 | slot as u64)
    }

    /// Returns the index of the worker that owns the connection.
    pub fn worker(self) -> usize {
        (self.0 >> 24) as usize & (Self::MAX_WORKERS - 1)
    }

    /// Returns the slot of the connection at its worker. Slots are dense from 0 and are reused.
    pub fn slot(self) -> usize {
        self.0 as usize & (Self::MAX_SLOTS - 1)
    }

    /// Returns the generation of the slot.
    pub fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns the identifier as a number, for a [`Transport::connect`](crate::Transport::connect) token or a log.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Creates an identifier from the result of [`to_bits`](Self::to_bits).
    pub fn from_bits(bits: u64) -> Self {
        ConnId(bits)
    }
}

/// Identifiers of one worker's connections. Creates and looks up identifiers in fewer instructions than
/// [`ConnId::new`].
#[derive(Debug, Clone, Copy)]
pub struct ConnIdSpace(u32);

impl ConnIdSpace {
    /// Creates the space of `worker`.
    ///
    /// # Panics
    /// If `worker` is not below [`MAX_WORKERS`](ConnId::MAX_WORKERS).
    pub fn new(worker: usize) -> Self {
        ConnIdSpace(ConnId::new(worker, 0, 0).0 as u32)
    }

    /// Returns the identifier of the connection in `slot`, which is below [`MAX_SLOTS`](ConnId::MAX_SLOTS), in the
    /// slot's `generation`.
    #[inline(always)]
    pub fn conn_id(self, slot: u32, generation: u32) -> ConnId {
        debug_assert!((slot as usize) < ConnId::MAX_SLOTS);
        ConnId(u64::from(generation) << 32 | u64::from(self.0 | slot))
    }

    /// Returns the slot of `conn` if it belongs to this worker, and otherwise a number of at least
    /// [`MAX_SLOTS`](ConnId::MAX_SLOTS).
    #[inline(always)]
    pub fn slot(self, conn: ConnId) -> usize {
        (conn.0 as u32 ^ self.0) as usize
    }
}

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}.{}", self.worker(), self.slot(), self.generation())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conn_id_keeps_its_three_parts_apart() {
        let id = ConnId::new(255, (1 << 24) - 1, u32::MAX);
        assert_eq!((id.worker(), id.slot(), id.generation()), (255, (1 << 24) - 1, u32::MAX));
        let id = ConnId::new(1, 2, 3);
        assert_eq!((id.worker(), id.slot(), id.generation()), (1, 2, 3));
        assert_eq!(ConnId::from_bits(id.to_bits()), id);
        assert_eq!(format!("{id:?}"), "1/2.3");
    }

    #[test]
    fn conn_id_space_distinguishes_identifiers_of_other_workers() {
        let last = ConnId::MAX_SLOTS as u32 - 1;
        for (worker, slot, generation) in [(0, 0, 0), (7, 5, 3), (255, last, u32::MAX)] {
            let (space, conn) = (ConnIdSpace::new(worker), ConnId::new(worker, slot as usize, generation));
            assert_eq!((space.conn_id(slot, generation), space.slot(conn)), (conn, slot as usize));
            assert!(ConnIdSpace::new(worker ^ 1).slot(conn) >= ConnId::MAX_SLOTS);
        }
    }
}
