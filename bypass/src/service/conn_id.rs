//! Connection identifiers.

use std::fmt;

/// The name of one connection of one worker. It is never given to another connection while anyone can hold it:
/// a slot that is used again has another generation, and an operation on an old name does nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(u64);

impl ConnId {
    /// Workers that a `ConnId` can tell apart.
    pub const MAX_WORKERS: usize = 1 << 8;
    /// Connections of one worker that a `ConnId` can tell apart.
    pub const MAX_SLOTS: usize = 1 << 24;

    /// The connection in `slot` of `worker`, in the slot's `generation`.
    ///
    /// # Panics
    /// If `worker` or `slot` is not below [`MAX_WORKERS`](Self::MAX_WORKERS) or [`MAX_SLOTS`](Self::MAX_SLOTS).
    pub fn new(worker: usize, slot: usize, generation: u32) -> Self {
        assert!(worker < Self::MAX_WORKERS && slot < Self::MAX_SLOTS);
        ConnId(u64::from(generation) << 32 | (worker as u64) << 24 | slot as u64)
    }

    /// The worker that owns the connection.
    pub fn worker(self) -> usize {
        (self.0 >> 24) as usize & (Self::MAX_WORKERS - 1)
    }

    /// The connection's slot at its worker: small, dense, and used again.
    pub fn slot(self) -> usize {
        self.0 as usize & (Self::MAX_SLOTS - 1)
    }

    /// Which use of the slot this is.
    pub fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// All of it as one number, for a [`Transport::connect`] token or a log.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The reverse of [`to_bits`](Self::to_bits).
    pub fn from_bits(bits: u64) -> Self {
        ConnId(bits)
    }
}

/// The names of one worker's connections: what is the same in all of them, for whoever makes and looks up many.
#[derive(Debug, Clone, Copy)]
pub struct Names(u32);

impl Names {
    /// Those of the connections of `worker`.
    ///
    /// # Panics
    /// If it is not below [`MAX_WORKERS`](ConnId::MAX_WORKERS).
    pub fn of(worker: usize) -> Self {
        Names(ConnId::new(worker, 0, 0).0 as u32)
    }

    /// The connection in `slot`, which is below [`MAX_SLOTS`](ConnId::MAX_SLOTS), in the slot's `generation`.
    #[inline(always)]
    pub fn name(self, slot: u32, generation: u32) -> ConnId {
        debug_assert!((slot as usize) < ConnId::MAX_SLOTS);
        ConnId(u64::from(generation) << 32 | u64::from(self.0 | slot))
    }

    /// The connection's slot, if it is of this worker; otherwise a number that is too large for a slot.
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
    fn a_conn_id_keeps_its_three_parts_apart() {
        let id = ConnId::new(255, (1 << 24) - 1, u32::MAX);
        assert_eq!((id.worker(), id.slot(), id.generation()), (255, (1 << 24) - 1, u32::MAX));
        let id = ConnId::new(1, 2, 3);
        assert_eq!((id.worker(), id.slot(), id.generation()), (1, 2, 3));
        assert_eq!(ConnId::from_bits(id.to_bits()), id);
        assert_eq!(format!("{id:?}"), "1/2.3");
    }

    #[test]
    fn a_worker_knows_its_own_names() {
        let last = ConnId::MAX_SLOTS as u32 - 1;
        for (worker, slot, generation) in [(0, 0, 0), (7, 5, 3), (255, last, u32::MAX)] {
            let (names, conn) = (Names::of(worker), ConnId::new(worker, slot as usize, generation));
            assert_eq!((names.name(slot, generation), names.slot(conn)), (conn, slot as usize));
            assert!(Names::of(worker ^ 1).slot(conn) >= ConnId::MAX_SLOTS);
        }
    }
}
