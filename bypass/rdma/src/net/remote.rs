//! One-sided operations of services on the memory of their peers.

use super::Net;
use crate::config::KEPT;
use crate::connection::Reader;
use crate::provider::Provider;
use crate::verbs::Atomic;
use linerate_service::{ConnId, OneSidedError, OneSidedOp, OneSidedResult, Stage};

/// Operand size of atomic operations in bytes.
const ATOMIC_LEN: usize = 8;

impl<C: Provider> Net<C> {
    /// Starts an operation on the peer's memory.
    pub fn remote(&mut self, id: ConnId, operation: OneSidedOp, token: u64) -> Result<(), OneSidedError> {
        let is_silenced = self.table.silenced.has(id);
        let open = self.table.slots.get_mut(id).filter(|conn| conn.life.stage == Stage::Open && !is_silenced);
        let conn = open.ok_or(OneSidedError::NoRoom)?;
        let qp = conn.link.transport.qp().ok_or(OneSidedError::Unsupported)?;
        if qp.room() <= KEPT {
            return Err(OneSidedError::NoRoom);
        }
        match operation {
            OneSidedOp::Read { address, key, len } => {
                let into = self.arena.alloc(len as usize).ok_or(OneSidedError::NoRoom)?;
                qp.read(into, address, key).map_err(|_| OneSidedError::NoRoom)?;
            }
            OneSidedOp::FetchAdd { .. } | OneSidedOp::CompareSwap { .. } if !self.atomics => {
                return Err(OneSidedError::Unsupported);
            }
            OneSidedOp::FetchAdd { address, key, add } => {
                let into = self.arena.alloc(ATOMIC_LEN).ok_or(OneSidedError::NoRoom)?;
                qp.atomic(into, Atomic::FetchAdd(add), address, key).map_err(|_| OneSidedError::NoRoom)?;
            }
            OneSidedOp::CompareSwap { address, key, expect, swap } => {
                let into = self.arena.alloc(ATOMIC_LEN).ok_or(OneSidedError::NoRoom)?;
                let atomic = Atomic::CompareSwap { expect, swap };
                qp.atomic(into, atomic, address, key).map_err(|_| OneSidedError::NoRoom)?;
            }
        }
        conn.readers.push_back(Reader::Service(token));
        self.set_dirty(id);
        Ok(())
    }

    /// Delivers the old value that an atomic operation returned. Operations complete in the order they were started.
    pub(super) fn was(&mut self, id: ConnId, was: u64) {
        let Some(conn) = self.table.slots.get_mut(id) else { return };
        if let Some(Reader::Service(token)) = conn.readers.pop_front() {
            self.one_sided_done(id, token, OneSidedResult::Previous(was));
        }
    }

    /// Makes `one_sided_done` due.
    pub(super) fn one_sided_done(&mut self, id: ConnId, token: u64, result: OneSidedResult) {
        let Some(conn) = self.table.slots.get_mut(id) else { return };
        conn.one_sided_done.push_back((token, result));
        conn.life.pending.one_sided_done = true;
        self.table.list(id);
    }
}
