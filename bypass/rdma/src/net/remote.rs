//! What services do with the memory of their peers.

use super::Net;
use super::sending::KEPT;
use crate::calls::Calls;
use crate::connection::{Reader, Stage};
use crate::verbs::Atomic;
use linerate_bypass::{ConnId, OneSidedError, OneSidedOp, OneSidedResult};

/// Bytes of what atomic operations are done with.
const NUMBER: usize = 8;

impl<C: Calls> Net<C> {
    /// Begins an operation on the peer's memory.
    pub fn remote(&mut self, id: ConnId, operation: OneSidedOp, token: u64) -> Result<(), OneSidedError> {
        let open = self.slots.get_mut(id).filter(|conn| conn.stage == Stage::Open);
        let conn = open.ok_or(OneSidedError::NoRoom)?;
        let pair = conn.link.carrier.pair().ok_or(OneSidedError::Unsupported)?;
        if pair.room() <= KEPT {
            return Err(OneSidedError::NoRoom);
        }
        match operation {
            OneSidedOp::Read { address, key, len } => {
                let into = self.arena.alloc(len as usize).ok_or(OneSidedError::NoRoom)?;
                pair.read(into, address, key).map_err(|_| OneSidedError::NoRoom)?;
            }
            OneSidedOp::FetchAdd { .. } | OneSidedOp::CompareSwap { .. } if !self.atomics => {
                return Err(OneSidedError::Unsupported);
            }
            OneSidedOp::FetchAdd { address, key, add } => {
                let into = self.arena.alloc(NUMBER).ok_or(OneSidedError::NoRoom)?;
                pair.atomic(into, Atomic::FetchAdd(add), address, key).map_err(|_| OneSidedError::NoRoom)?;
            }
            OneSidedOp::CompareSwap { address, key, expect, swap } => {
                let into = self.arena.alloc(NUMBER).ok_or(OneSidedError::NoRoom)?;
                let atomic = Atomic::CompareSwap { expect, swap };
                pair.atomic(into, atomic, address, key).map_err(|_| OneSidedError::NoRoom)?;
            }
        }
        conn.readers.push_back(Reader::Service(token));
        self.set_dirty(id);
        Ok(())
    }

    /// What a number of the peer's was, of whose waiters this one's turn it is: answers come in the order of asking.
    pub(super) fn was(&mut self, id: ConnId, was: u64) {
        let Some(conn) = self.slots.get_mut(id) else { return };
        if let Some(Reader::Service(token)) = conn.readers.pop_front()
            && !conn.is_lingering()
        {
            conn.one_sided_done.push_back((token, OneSidedResult::Previous(was)));
            self.list(id);
        }
    }
}
