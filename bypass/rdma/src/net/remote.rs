//! What services do with the memory of their peers.

use super::Net;
use super::sending::KEPT;
use crate::calls::Calls;
use crate::connection::{Reader, Stage};
use linerate_bypass::{ConnId, NoRemote, Remote};

impl<C: Calls> Net<C> {
    /// Begins an operation on the peer's memory.
    pub fn remote(&mut self, id: ConnId, operation: Remote, token: u64) -> Result<(), NoRemote> {
        let open = self.slots.get_mut(id).filter(|conn| conn.stage == Stage::Open);
        let conn = open.ok_or(NoRemote::NoRoom)?;
        let pair = conn.link.carrier.pair().ok_or(NoRemote::Unsupported)?;
        if pair.room() <= KEPT {
            return Err(NoRemote::NoRoom);
        }
        match operation {
            Remote::Read { address, key, len } => {
                let into = self.arena.alloc(len as usize).ok_or(NoRemote::NoRoom)?;
                pair.read(into, address, key).map_err(|_| NoRemote::NoRoom)?;
            }
            Remote::FetchAdd { .. } | Remote::CompareSwap { .. } => return Err(NoRemote::Unsupported),
        }
        conn.readers.push_back(Reader::Service(token));
        self.set_dirty(id);
        Ok(())
    }
}
