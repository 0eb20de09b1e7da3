//! `BITCOUNT` and `BITPOS`, which run in steps on long values.

use super::{STEP, Snapshot};
use crate::commands::error::{BIT_ARGUMENT, CommandError, CommandResult, SYNTAX};
use crate::commands::options::integer;
use crate::commands::session::Paused;
use crate::commands::{Context, Request};
use crate::resp::{Args, Reply};
use crate::store::LONG_THRESHOLD;
use std::ops::Range;

/// Count of the set bits of a value, or search for a bit, that has examined part of the bytes.
#[derive(Debug)]
pub struct BitSearch {
    value: Snapshot,
    bits: Range<u64>,
    at: usize,
    goal: Goal,
}

#[derive(Debug, Clone, Copy)]
enum Goal {
    /// Number of set bits so far.
    Count(u64),
    /// Bit to find, and the reply if there is none.
    Find(bool, i64),
}

impl BitSearch {
    fn new(value: Snapshot, bits: Range<u64>, goal: Goal) -> Self {
        BitSearch { value, at: (bits.start / 8) as usize, bits, goal }
    }

    /// Returns the memory of the search without long values.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + LONG_THRESHOLD
    }

    /// Returns the mask of the bits to examine in the byte at `at`.
    fn mask(&self, at: usize) -> u8 {
        let first = at as u64 * 8;
        let skipped = self.bits.start.saturating_sub(first).min(8) as u32;
        let after = (first + 8).saturating_sub(self.bits.end).min(8) as u32;
        (0xffu16 >> skipped) as u8 & (0xffu16 << after) as u8
    }

    /// Examines up to `most` bytes. Returns the reply once it is known.
    fn step(&mut self, most: usize) -> Option<i64> {
        let end = self.bits.end.div_ceil(8) as usize;
        let mut left = most;
        while self.at < end && left > 0 {
            let bytes = self.value.from(self.at);
            let count = bytes.len().min(end - self.at).min(left);
            if count == 0 {
                break;
            }
            let bytes = &bytes[..count];
            // The range may start or end inside a byte.
            let is_partial = self.at as u64 * 8 < self.bits.start || (self.at + count) as u64 * 8 > self.bits.end;
            let done = if is_partial { 1 } else { count };
            match &mut self.goal {
                Goal::Count(sum) if !is_partial => *sum += count_ones(bytes),
                Goal::Find(bit, _) if !is_partial => {
                    let skipped = if *bit { 0 } else { u8::MAX };
                    if let Some(at) = position_of_other(bytes, skipped) {
                        return Some(first_bit(self.at + at, bytes[at] ^ skipped));
                    }
                }
                goal => {
                    let (byte, goal) = (bytes[0], *goal);
                    let mask = self.mask(self.at);
                    match goal {
                        Goal::Count(sum) => self.goal = Goal::Count(sum + u64::from((byte & mask).count_ones())),
                        Goal::Find(bit, _) => {
                            let found = if bit { byte } else { !byte } & mask;
                            if found != 0 {
                                return Some(first_bit(self.at, found));
                            }
                        }
                    }
                }
            }
            self.at += done;
            left -= done;
        }
        let is_over = self.at >= end;
        is_over.then_some(match self.goal {
            Goal::Count(sum) => sum as i64,
            Goal::Find(_, none) => none,
        })
    }
}

/// Returns the position of the highest bit of `byte`, the byte at `at`.
fn first_bit(at: usize, byte: u8) -> i64 {
    at as i64 * 8 + i64::from(byte.leading_zeros())
}

fn count_ones(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: u64 = words.iter().map(|word| u64::from(u64::from_ne_bytes(*word).count_ones())).sum();
    words + rest.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>()
}

/// Returns the position of the first byte that is not `skipped`.
fn position_of_other(bytes: &[u8], skipped: u8) -> Option<usize> {
    let (words, _) = bytes.as_chunks::<8>();
    let whole = words.iter().position(|word| *word != [skipped; 8]).unwrap_or(words.len()) * 8;
    bytes[whole..].iter().position(|byte| *byte != skipped).map(|at| whole + at)
}

/// Returns the range of bits from `start` to `end` of a value of `len` bytes. Both are inclusive, count from the end if
/// negative, and are bit positions if `is_bits`, otherwise byte positions.
fn range(start: i64, end: i64, is_bits: bool, len: usize) -> Range<u64> {
    let (unit, total) = if is_bits { (1, len as i64 * 8) } else { (8, len as i64) };
    let from_end = |at: i64| if at < 0 { at.saturating_add(total).max(0) } else { at };
    let (start, end) = (from_end(start), from_end(end).min(total - 1));
    if start > end { 0..0 } else { start as u64 * unit..(end as u64 + 1) * unit }
}

/// Parses the unit of a range.
fn is_bits(args: Args<'_>, at: usize) -> Result<bool, CommandError> {
    match args.get(at) {
        None => Ok(false),
        Some(unit) if unit.eq_ignore_ascii_case(b"byte") => Ok(false),
        Some(unit) if unit.eq_ignore_ascii_case(b"bit") => Ok(true),
        Some(_) => Err(SYNTAX),
    }
}

pub fn bitcount(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    run(cx, request, reply, |args, value| {
        let bits = match args.len() {
            2 => 0..value.len() as u64 * 8,
            4 | 5 => {
                let (start, end) = (integer(&args[2])?, integer(&args[3])?);
                // As in Redis, only BITCOUNT compares them before it limits them to the value.
                let is_empty = start < 0 && end < 0 && start > end;
                let bits = range(start, end, is_bits(args, 4)?, value.len());
                if is_empty { 0..0 } else { bits }
            }
            _ => return Err(SYNTAX),
        };
        Ok((bits, Goal::Count(0)))
    })
}

pub fn bitpos(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    if cx.session.paused.is_none() {
        let bit = integer(&request.args[2])?;
        if bit != 0 && bit != 1 {
            return Err(BIT_ARGUMENT);
        }
    }
    run(cx, request, reply, |args, value| {
        let bit = args.at(2) == b"1";
        let bits = match args.len() {
            3 => 0..value.len() as u64 * 8,
            4..=6 => {
                let start = integer(&args[3])?;
                let is_bits = is_bits(args, 5)?;
                let end = args.get(4).map_or(Ok(-1), integer)?;
                range(start, end, is_bits, value.len())
            }
            _ => return Err(SYNTAX),
        };
        // Without an explicit end, zeros follow the value.
        let is_endless = !bit && args.len() < 5 && !bits.is_empty();
        Ok((bits, Goal::Find(bit, if is_endless { value.len() as i64 * 8 } else { -1 })))
    })
}

/// Runs the search that `begin` defines, in steps if the request may run in steps.
fn run(
    cx: &mut Context<'_, '_>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
    begin: impl FnOnce(Args<'_>, &Snapshot) -> Result<(Range<u64>, Goal), CommandError>,
) -> CommandResult {
    let mut search = match cx.session.paused.take() {
        Some(Paused::Bits(search)) => search,
        _ => {
            let key = cx.key(request, 1);
            let value = cx.shards.store(&key).get(&key, cx.now)?;
            let is_there = value.is_some();
            let value = Snapshot::take(value);
            cx.stats.count_lookup(is_there);
            if !is_there {
                // An absent value has no set bit, and is followed by zeros. The range is not examined.
                let is_clear = request.args.at(0).len() == b"bitpos".len() && request.args.at(2) == b"0";
                let is_count = request.args.at(0).len() != b"bitpos".len();
                reply.integer(if is_clear || is_count { 0 } else { -1 });
                return Ok(());
            }
            let (bits, goal) = begin(request.args, &value)?;
            Box::new(BitSearch::new(value, bits, goal))
        }
    };
    let most = if request.may_run_in_steps(cx.session) { STEP } else { usize::MAX };
    match search.step(most) {
        Some(result) => reply.integer(result),
        None => cx.session.paused = Some(Paused::Bits(search)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_any_size_give_the_result_of_single_bits() {
        let mut random = fastrand::Rng::with_seed(11);
        for _ in 0..3000 {
            let fill = [0, u8::MAX, random.u8(..)][random.usize(..3)];
            let mut bytes = vec![fill; random.usize(..40)];
            if let Some(byte) = bytes.last_mut().filter(|_| random.bool()) {
                *byte = random.u8(..);
            }
            let total = bytes.len() as u64 * 8;
            let start = random.u64(..=total);
            let bits = start..random.u64(start..=total);
            let is_set = |at: &u64| bytes[(*at / 8) as usize] >> (7 - at % 8) & 1 == 1;
            let count = bits.clone().filter(is_set).count() as i64;
            let position = |bit| bits.clone().find(|at| is_set(at) == bit).map_or(-7, |at| at as i64);
            for (goal, expected) in [
                (Goal::Count(0), count),
                (Goal::Find(true, -7), position(true)),
                (Goal::Find(false, -7), position(false)),
            ] {
                let most = random.usize(1..9);
                let mut search = BitSearch::new(Snapshot::Short(bytes.clone()), bits.clone(), goal);
                let found = std::iter::repeat_with(|| search.step(most)).take(100).flatten().next();
                assert_eq!(found, Some(expected), "{goal:?} in {bits:?} of {bytes:?}");
            }
        }
    }
}
