//! Requests for keys of other machines.

use crate::cluster::{ClusterMap, key_slot};
use crate::commands::error::CROSS_SLOT;
use crate::commands::{Session, table};
use crate::resp::Args;

/// Returns the error reply to the request `args` if its keys have several slots, or a slot of another machine. Slots of
/// all workers of this process are served, whichever worker the client is connected to.
pub fn redirection(args: Args<'_>, session: &Session, map: &ClusterMap) -> Option<Vec<u8>> {
    if !session.is_authenticated {
        return None;
    }
    // An unknown command fails on its own.
    let command = table::find(args).ok()?;
    let mut slots = table::key_positions(command, args.len()).map(|at| key_slot(args.at(at)));
    let slot = slots.next()?;
    if slots.any(|other| other != slot) {
        return Some([b"-", CROSS_SLOT.text(), b"\r\n"].concat());
    }
    (!map.is_here(slot)).then(|| format!("-{}\r\n", moved(map, slot, session)).into_bytes())
}

/// Returns the error that redirects a client to the owner of `slot`.
pub fn moved(map: &ClusterMap, slot: u16, session: &Session) -> String {
    format!("MOVED {slot} {}", session.address_of(map.owner(slot)))
}
