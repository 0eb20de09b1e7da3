//! Commands that iterate over keys and fields.

use crate::commands::data::glob;
use crate::commands::data::keys::type_name;
use crate::commands::error::{CURSOR, CommandError, CommandResult, LONG_PATTERN, SYNTAX};
use crate::commands::options::integer;
use crate::commands::session::Paused;
use crate::commands::{Context, Request};
use crate::resp::{Args, Protocol, Reply};
use crate::store::Str;
use crate::value::Sink;
use linerate_service::Bytes;
use std::ops::Range;

/// Limit of index slots examined per `SCAN` or per step of `KEYS`.
const MAX_SLOTS: usize = 1 << 13;
/// Work limit of a `SCAN` or a step of `KEYS`: some milliseconds.
pub(in crate::commands) const WORK: usize = 1 << 20;
/// Work per key in addition to its bytes and the pattern match: a cache miss.
pub(in crate::commands) const KEY_WORK: usize = 64;

/// State of a `KEYS` that has examined part of the keys.
#[derive(Debug, Default)]
pub(in crate::commands) struct Progress {
    /// Number of shards examined in full, and the cursor in the next one.
    pub visited: usize,
    cursor: u64,
    found: CollectedReplies,
}

impl Progress {
    /// Returns the memory of the keys found.
    pub fn memory(&self) -> usize {
        self.found.memory()
    }
}

/// Examines some keys and pauses the session, or all keys if the session must not pause.
pub fn keys(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let (space, now) = (cx.session.space, cx.now);
    let pattern = pattern(&request.args[1])?;
    let may_run_in_steps = request.may_run_in_steps(cx.session);
    let mut progress = match cx.session.paused.take() {
        Some(Paused::Keys(progress)) => progress,
        _ => Box::default(),
    };
    let most = cx.server.settings().output;
    let mut found = Matches::new(pattern, reply.protocol, std::mem::take(&mut progress.found));
    let mut slots = 0;
    let shards = cx.shards.of_node();
    while let Some(store) = cx.shards.at(shards.start + progress.visited) {
        let together = found.slots();
        progress.cursor = store.scan(space, progress.cursor, together, now, |key, _| found.take(key, None));
        slots += together;
        progress.visited += usize::from(progress.cursor == 0);
        if progress.visited == shards.len() {
            break;
        }
        if found.replies.exceed(most) {
            found.replies.overflow(reply);
            return Ok(());
        }
        if may_run_in_steps && (progress.cursor == 0 || slots >= MAX_SLOTS || found.work >= WORK) {
            progress.found = found.replies;
            cx.session.paused = Some(Paused::Keys(progress));
            return Ok(());
        }
    }
    found.replies.reply(reply);
    Ok(())
}

/// Returns `pattern` if its length is allowed.
fn pattern(pattern: &[u8]) -> Result<&[u8], CommandError> {
    if pattern.len() > glob::LONGEST { Err(LONG_PATTERN) } else { Ok(pattern) }
}

pub fn randomkey(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let (space, now) = (cx.session.space, cx.now);
    let shards = cx.shards.of_node();
    let lens: Vec<usize> = shards.clone().map(|at| cx.shards.at(at).map_or(0, |store| store.len(space))).collect();
    let all = lens.iter().sum::<usize>();
    let mut left = if all > 0 { fastrand::usize(..all) } else { 0 };
    let first = lens.iter().position(|len| {
        let is_here = left < *len;
        left = left.saturating_sub(*len);
        is_here
    });
    // All keys of a shard may have expired.
    let first = first.unwrap_or(0);
    let in_turn = shards.clone().cycle().skip(first).take(shards.len());
    let key = { in_turn }.find_map(|at| cx.shards.at(at)?.random_key(space, now));
    match key {
        Some(key) => reply.bulk(&key),
        None => reply.null(),
    }
    Ok(())
}

/// Returns the shard of a cursor, which is one of `shards`. A cursor is the cursor in the shard times the number of
/// shards, plus the position of the shard among them.
pub fn shard(cursor: &[u8], shards: Range<usize>) -> Option<usize> {
    Some(shards.start + (parse_cursor(cursor).ok()? % shards.len() as u64) as usize)
}

/// Parses a cursor as C's `strtoul` does.
fn parse_cursor(text: &[u8]) -> Result<u64, CommandError> {
    let (is_negative, digits) = match text {
        [] => return Ok(0),
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] | rest => (false, rest),
    };
    let number = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'));
    let number: u64 = number.and_then(|digits| digits.parse().ok()).ok_or(CURSOR)?;
    Ok(if is_negative { number.wrapping_neg() } else { number })
}

/// Options of `SCAN` and `HSCAN`.
struct Options<'a> {
    pattern: &'a [u8],
    count: usize,
    kind: Option<&'a [u8]>,
}

impl<'a> Options<'a> {
    fn parse(args: Args<'a>, from: usize, takes_kind: bool) -> Result<Self, CommandError> {
        let mut options = Options { pattern: b"*", count: 10, kind: None };
        let mut rest = args.iter().skip(from);
        while let Some(option) = rest.next() {
            let value = rest.next().ok_or(SYNTAX)?;
            match &option.to_ascii_lowercase()[..] {
                b"match" => options.pattern = pattern(value)?,
                b"type" if takes_kind => options.kind = Some(value),
                b"count" => {
                    let count = usize::try_from(integer(value)?).unwrap_or(0);
                    options.count = Some(count).filter(|count| *count > 0).ok_or(SYNTAX)?;
                }
                _ => return Err(SYNTAX),
            }
        }
        Ok(options)
    }
}

/// Replies collected before their number is known. Long values are not copied.
#[derive(Debug, Default)]
pub(in crate::commands) struct CollectedReplies {
    count: usize,
    text: Vec<u8>,
    /// Long values and their positions in the text.
    values: Vec<(usize, Bytes)>,
}

impl Sink for CollectedReplies {
    fn put(&mut self, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
    }

    fn attach(&mut self, bytes: Bytes) {
        self.values.push((self.text.len(), bytes));
    }
}

impl CollectedReplies {
    /// Returns the memory of the replies without attached values.
    pub fn memory(&self) -> usize {
        self.text.len() + size_of_val(&self.values[..])
    }

    /// Returns true if the text is longer than `most` bytes, unless `most` is 0.
    pub fn exceed(&self, most: u64) -> bool {
        most > 0 && self.text.len() as u64 > most
    }

    fn reply(&mut self, reply: &mut Reply<'_>) {
        reply.array(self.count);
        self.write(reply);
    }

    /// Writes all text at once, so that the output limit disconnects the client.
    pub fn overflow(&self, reply: &mut Reply<'_>) {
        reply.put(&self.text);
    }

    /// Writes the replies. Long text is not copied, and is sent as the connection has room.
    pub fn write(&mut self, reply: &mut Reply<'_>) {
        /// Length up to which text is copied.
        const SHORT: usize = 64 << 10;
        if self.values.is_empty() && self.text.len() > SHORT {
            self.text.shrink_to_fit();
            return reply.attach(std::mem::take(&mut self.text).into());
        }
        let mut from = 0;
        for (at, bytes) in self.values.drain(..) {
            reply.put(&self.text[from..at]);
            reply.attach(bytes);
            from = at;
        }
        reply.put(&self.text[from..]);
    }
}

/// Keys or fields that match a pattern.
struct Matches<'a> {
    pattern: &'a [u8],
    protocol: Protocol,
    replies: CollectedReplies,
    /// Work done so far.
    work: usize,
}

impl<'a> Matches<'a> {
    fn new(pattern: &'a [u8], protocol: Protocol, replies: CollectedReplies) -> Self {
        Matches { pattern, protocol, replies, work: 0 }
    }

    /// Returns the number of slots to examine before the next check of the work limit: the longer the pattern, the
    /// fewer.
    fn slots(&self) -> usize {
        const MIN_BATCH: usize = 8;
        const MAX_BATCH: usize = 512;
        (4 * MAX_BATCH / self.pattern.len().max(1)).clamp(MIN_BATCH, MAX_BATCH)
    }

    fn take(&mut self, name: &[u8], value: Option<&Str<'_>>) {
        self.work += KEY_WORK + name.len();
        if self.pattern != b"*" && !glob::is_match(self.pattern, name, &mut self.work) {
            return;
        }
        let mut reply = Reply::new(&mut self.replies, self.protocol);
        reply.bulk(name);
        if let Some(value) = value {
            reply.value(value);
            self.work += value.short().map_or(KEY_WORK, <[u8]>::len);
        }
        self.replies.count += 1 + usize::from(value.is_some());
    }
}

pub fn scan(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let cursor = parse_cursor(&request.args[1])?;
    let options = Options::parse(request.args, 2, true)?;
    let Range { start, end } = cx.shards.of_node();
    let shards = (end - start) as u64;
    let number = cursor % shards;
    let mut found = Matches::new(options.pattern, reply.protocol, CollectedReplies::default());
    let is_kind = |name: &str| options.kind.is_none_or(|kind| kind.eq_ignore_ascii_case(name.as_bytes()));
    let (space, now) = (cx.session.space, cx.now);
    let mut next = 0;
    if let Some(store) = cx.shards.at(start + number as usize).filter(|store| store.len(space) > 0) {
        next = cursor / shards;
        let (mut keys, mut slots) = (0, 0);
        // Sparse parts of the index are scanned further, up to a limit.
        while keys < options.count && slots < MAX_SLOTS && found.work < WORK {
            let together = options.count.min(found.slots());
            next = store.scan(space, next, together, now, |key, kind| {
                keys += 1;
                if is_kind(type_name(kind)) {
                    found.take(key, None);
                }
            });
            slots += together;
            if next == 0 {
                break;
            }
        }
    }
    let next = match next {
        0 if number + 1 == shards => 0,
        0 => number + 1,
        next => next * shards + number,
    };
    reply_scanned(next, &mut found.replies, reply);
    Ok(())
}

pub fn hscan(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let mut next = parse_cursor(&request.args[2])?;
    let key = cx.key(request, 1);
    let store = cx.shards.store(&key);
    if store.hlen(&key, cx.now)? == 0 {
        reply_scanned(0, &mut CollectedReplies::default(), reply);
        return Ok(());
    }
    let options = Options::parse(request.args, 3, false)?;
    let mut found = Matches::new(options.pattern, reply.protocol, CollectedReplies::default());
    let mut left = options.count.min(MAX_SLOTS);
    while left > 0 && found.work < WORK {
        let together = left.min(found.slots());
        next = store.hscan(&key, next, together, cx.now, |field, value| found.take(field, Some(&value)))?;
        left -= together;
        if next == 0 {
            break;
        }
    }
    reply_scanned(next, &mut found.replies, reply);
    Ok(())
}

fn reply_scanned(next: u64, found: &mut CollectedReplies, reply: &mut Reply<'_>) {
    reply.array(2);
    reply.bulk(next.to_string().as_bytes());
    found.reply(reply);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::TestClient;

    #[test]
    fn scan_takes_any_cursor() {
        for mut client in TestClient::each() {
            (0..300).for_each(|n| _ = client.run(&format!("set key:{n} x")));
            for n in 0..1000u64 {
                let reply = client.run(&format!("scan {}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
                assert!(reply.starts_with("*2 $"), "{reply}");
            }
        }
    }

    #[test]
    fn cursors_are_parsed_as_by_strtoul() {
        for (text, cursor) in [("", Some(0)), ("12", Some(12)), ("+5", Some(5)), ("-1", Some(u64::MAX))] {
            assert_eq!(parse_cursor(text.as_bytes()).ok(), cursor);
        }
        for text in ["-", "+", "++1", "1x", " 1", "18446744073709551616"] {
            assert!(parse_cursor(text.as_bytes()).is_err(), "{text}");
        }
    }
}
