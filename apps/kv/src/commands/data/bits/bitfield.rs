//! `BITFIELD` and `BITFIELD_RO`: integers of any width in a string.

use super::Snapshot;
use crate::commands::error::{
    BIT_OFFSET, BITFIELD_OVERFLOW, BITFIELD_READ_ONLY, BITFIELD_TYPE, CommandError, CommandResult, SYNTAX,
};
use crate::commands::options::integer;
use crate::commands::{Context, Request};
use crate::resp::{Args, Reply};
use crate::store::{Key, Store};
use std::ops::Range;

/// Bytes of a value that are read and written once for all operations on them, as many as a write of a single byte
/// copies.
const WINDOW: usize = 256 << 10;

#[derive(Debug, Clone, Copy)]
struct Type {
    is_signed: bool,
    bits: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Get,
    Set(i64),
    Add(i64),
}

#[derive(Debug, Clone, Copy)]
struct Operation {
    action: Action,
    of: Type,
    offset: u64,
    overflow: Overflow,
}

impl Type {
    fn parse(text: &[u8]) -> Result<Self, CommandError> {
        let (is_signed, digits) = match text {
            [b'i', digits @ ..] => (true, digits),
            [b'u', digits @ ..] => (false, digits),
            _ => return Err(BITFIELD_TYPE),
        };
        let bits = integer(digits).map_err(|_| BITFIELD_TYPE)?;
        let most = if is_signed { 64 } else { 63 };
        if !(1..=most).contains(&bits) {
            return Err(BITFIELD_TYPE);
        }
        Ok(Type { is_signed, bits: bits as u32 })
    }

    fn range(self) -> (i128, i128) {
        match self.is_signed {
            true => (-(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1),
            false => (0, (1 << self.bits) - 1),
        }
    }

    fn number(self, bits: u64) -> i128 {
        let bits = i128::from(bits) & ((1 << self.bits) - 1);
        let (_, most) = self.range();
        if bits > most { bits - (1 << self.bits) } else { bits }
    }

    /// Returns the number to be set. Redis computes the greatest number of the type minus `number` in 64 bits. If that
    /// overflows, the number counts as above the range, so that `SAT` stores the greatest one. Types of 64 bits are
    /// compared without the subtraction.
    fn wanted(self, number: i64) -> i128 {
        let (_, most) = self.range();
        let is_far = self.bits < 64 && (most as i64).checked_sub(number).is_none();
        i128::from(number) + if is_far { 1 << 64 } else { 0 }
    }

    /// Returns `number` if it is in range. Otherwise applies `overflow`, which returns `None` for `FAIL`.
    fn limited(self, number: i128, overflow: Overflow) -> Option<i128> {
        let (least, most) = self.range();
        match overflow {
            _ if (least..=most).contains(&number) => Some(number),
            Overflow::Wrap => Some(self.number(number as u64)),
            Overflow::Saturate => Some(number.clamp(least, most)),
            Overflow::Fail => None,
        }
    }
}

impl Operation {
    fn is_write(&self) -> bool {
        !matches!(self.action, Action::Get)
    }

    /// Returns the range of bytes that contain the integer.
    fn bytes(&self) -> Range<usize> {
        (self.offset / 8) as usize..(self.offset + u64::from(self.of.bits)).div_ceil(8) as usize
    }

    /// Runs on `bytes`, which start at byte `first` of the value. Returns the reply, and whether the bytes were
    /// written.
    fn run(&self, bytes: &mut [u8], first: usize) -> (Option<i64>, bool) {
        let start = self.offset - first as u64 * 8;
        let bit = |bytes: &[u8], at: u64| u64::from(bytes[(at / 8) as usize] >> (7 - at % 8) & 1);
        let bits = (start..start + u64::from(self.of.bits)).fold(0, |bits, at| bits << 1 | bit(bytes, at));
        let before = self.of.number(bits);
        let wanted = match self.action {
            Action::Get => return (Some(before as i64), false),
            Action::Set(number) if self.of.is_signed => self.of.wanted(number),
            Action::Set(number) => i128::from(number as u64),
            Action::Add(number) => before + i128::from(number),
        };
        let Some(after) = self.of.limited(wanted, self.overflow) else { return (None, false) };
        for (at, shift) in (start..).zip((0..self.of.bits).rev()) {
            let byte = &mut bytes[(at / 8) as usize];
            let mask = 1 << (7 - at % 8);
            *byte = if after as u64 >> shift & 1 == 1 { *byte | mask } else { *byte & !mask };
        }
        let reply = if matches!(self.action, Action::Set(_)) { before } else { after };
        (Some(reply as i64), true)
    }
}

fn parse(cx: &Context<'_, '_>, args: Args<'_>) -> Result<Vec<Operation>, CommandError> {
    let mut operations = Vec::new();
    let mut overflow = Overflow::Wrap;
    let mut at = 2;
    while let Some(name) = args.get(at) {
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        let left = args.len() - at - 1;
        let count = match () {
            () if is("get") && left >= 2 => 2,
            () if (is("set") || is("incrby")) && left >= 3 => 3,
            () if is("overflow") && left >= 1 => {
                let how = &args[at + 1];
                overflow = match &how.to_ascii_lowercase()[..] {
                    b"wrap" => Overflow::Wrap,
                    b"sat" => Overflow::Saturate,
                    b"fail" => Overflow::Fail,
                    _ => return Err(BITFIELD_OVERFLOW),
                };
                at += 2;
                continue;
            }
            () => return Err(SYNTAX),
        };
        let of = Type::parse(&args[at + 1])?;
        let text = &args[at + 2];
        let (text, unit) = text.strip_prefix(b"#").map_or((text, 1), |number| (number, u64::from(of.bits)));
        let offset = integer(text).ok().and_then(|offset| u64::try_from(offset).ok()?.checked_mul(unit));
        let offset = offset.filter(|offset| offset >> 3 < cx.server.settings().bulk).ok_or(BIT_OFFSET)?;
        let action = match count {
            2 => Action::Get,
            _ if is("set") => Action::Set(integer(&args[at + 3])?),
            _ => Action::Add(integer(&args[at + 3])?),
        };
        operations.push(Operation { action, of, offset, overflow });
        at += count + 1;
    }
    Ok(operations)
}

pub fn bitfield(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let operations = parse(cx, request.args)?;
    run(cx, request, &operations, reply)
}

pub fn bitfield_ro(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let operations = parse(cx, request.args)?;
    if operations.iter().any(Operation::is_write) {
        return Err(BITFIELD_READ_ONLY);
    }
    run(cx, request, &operations, reply)
}

fn run(
    cx: &mut Context<'_, '_>,
    request: &Request<'_>,
    operations: &[Operation],
    reply: &mut Reply<'_>,
) -> CommandResult {
    let key = cx.key(request, 1);
    let now = cx.now;
    let store = cx.shards.store(&key);
    let len = store.peek(&key, now)?.map_or(0, |value| value.len());
    // A write extends the string even if it fails.
    let end = operations.iter().filter(|operation| operation.is_write()).map(|operation| operation.bytes().end).max();
    if let Some(end) = end.filter(|end| *end > len) {
        store.set_range(&key, end - 1, &[0], now)?;
    }
    let mut replies = vec![None; operations.len()];
    let mut order: Vec<usize> = (0..operations.len()).collect();
    order.sort_unstable_by_key(|at| operations[*at].offset);
    let mut rest = &mut order[..];
    while let Some(first) = rest.first() {
        let mut window = operations[*first].bytes();
        let mut count = 0;
        // Operations on the same bytes are in the same window.
        for bytes in rest.iter().map(|at| operations[*at].bytes()) {
            if bytes.start >= window.end && bytes.end - window.start > WINDOW {
                break;
            }
            window.end = window.end.max(bytes.end);
            count += 1;
        }
        let (in_window, after) = rest.split_at_mut(count);
        in_window.sort_unstable();
        run_in_window(store, &key, window, operations, in_window, &mut replies, now)?;
        rest = after;
    }
    reply.array(replies.len());
    for number in replies {
        match number {
            Some(number) => reply.integer(number),
            None => reply.null(),
        }
    }
    Ok(())
}

/// Runs the operations with the numbers `in_window`, all of whose bytes are in `window`, sets their replies, and stores
/// the bytes that changed.
fn run_in_window(
    store: &mut Store,
    key: &Key<'_>,
    window: Range<usize>,
    operations: &[Operation],
    in_window: &[usize],
    replies: &mut [Option<i64>],
    now: u64,
) -> Result<(), CommandError> {
    let mut bytes = vec![0; window.len()];
    if let Some(value) = store.get(key, now)? {
        Snapshot::copy_of(&value, window.start, &mut bytes);
    }
    let mut changed = None;
    for at in in_window {
        let operation = &operations[*at];
        let (reply, is_changed) = operation.run(&mut bytes, window.start);
        replies[*at] = reply;
        if is_changed {
            let (own, before) = (operation.bytes(), changed.clone().unwrap_or_else(|| operation.bytes()));
            changed = Some(own.start.min(before.start)..own.end.max(before.end));
        }
    }
    if let Some(Range { start, end }) = changed {
        store.set_range(key, start, &bytes[start - window.start..end - window.start], now)?;
    }
    Ok(())
}
