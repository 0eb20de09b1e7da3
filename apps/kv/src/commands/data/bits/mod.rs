//! Commands on the bits of strings. Bit 0 is the highest one of the first byte.

mod bitfield;
mod bitop;
mod search;
mod snapshot;

pub use bitfield::{bitfield, bitfield_ro};
pub use bitop::{BitOpTask, bitop};
pub use search::{BitSearch, bitcount, bitpos};
pub use snapshot::Snapshot;

use crate::commands::error::{BIT, BIT_OFFSET, CommandError, CommandResult};
use crate::commands::options::integer;
use crate::commands::{Context, Request};
use crate::resp::Reply;

/// Bytes examined per step of a long command: less than a millisecond.
pub const STEP: usize = 2 << 20;

/// Parses a bit offset. Bits are within the length limit of a string.
fn bit_offset(cx: &Context<'_, '_>, text: &[u8]) -> Result<u64, CommandError> {
    let offset = integer(text).ok().and_then(|offset| u64::try_from(offset).ok()).ok_or(BIT_OFFSET)?;
    if offset >> 3 < cx.server.settings().bulk { Ok(offset) } else { Err(BIT_OFFSET) }
}

pub fn setbit(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let offset = bit_offset(cx, &request.args[2])?;
    let bit = match &request.args[3] {
        b"0" => 0,
        b"1" => 1,
        _ => return Err(BIT),
    };
    let store = cx.shards.store(&key);
    let at = (offset / 8) as usize;
    let before = store.peek(&key, cx.now)?.and_then(|value| Snapshot::byte_of(&value, at)).unwrap_or(0);
    let shift = 7 - offset % 8;
    let after = before & !(1 << shift) | bit << shift;
    store.set_range(&key, at, &[after], cx.now)?;
    reply.integer((before >> shift & 1).into());
    Ok(())
}

pub fn getbit(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let offset = bit_offset(cx, &request.args[2])?;
    let value = cx.shards.store(&key).get(&key, cx.now)?;
    let is_there = value.is_some();
    let byte = value.and_then(|value| Snapshot::byte_of(&value, (offset / 8) as usize)).unwrap_or(0);
    cx.stats.count_lookup(is_there);
    reply.integer((byte >> (7 - offset % 8) & 1).into());
    Ok(())
}
