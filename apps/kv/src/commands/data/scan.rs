//! Keys and fields, one after the other.

use crate::commands::data::glob;
use crate::commands::data::keys::kind_name;
use crate::commands::error::{CURSOR, Done, LONG_PATTERN, Refused, SYNTAX};
use crate::commands::options::integer;
use crate::commands::session::Paused;
use crate::commands::{Context, Request};
use crate::resp::{Args, Protocol, Reply};
use crate::sink::Sink;
use crate::store::Str;
use linerate_bypass::Bytes;

/// Maximum number of places of the index that a call of `SCAN` looks at, or a piece of `KEYS`.
const PLACES: usize = 1 << 13;
/// Steps of work after which a call of `SCAN` or a piece of `KEYS` ends: some milliseconds.
pub(in crate::commands) const WORK: usize = 1 << 20;
/// Steps of work that a key takes beside its bytes and the comparison with the pattern: a cache miss.
pub(in crate::commands) const KEY_WORK: usize = 64;

/// State of a `KEYS` that has not looked at all keys yet.
#[derive(Debug, Default)]
pub(in crate::commands) struct Progress {
    /// Shard that is looked at next, and the cursor there.
    pub shard: usize,
    cursor: u64,
    found: Replies,
}

/// Looks at some of the keys and leaves the session paused, or at all of them where it must not be.
pub(in crate::commands) fn keys(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let (space, now) = (cx.session.space, cx.now);
    let pattern = pattern(&request.args[1])?;
    let is_done_in_pieces = request.is_done_in_pieces(cx.session);
    let mut progress = match cx.session.paused.take() {
        Some(Paused::Keys(progress)) => progress,
        _ => Box::default(),
    };
    let most = cx.server.settings().output;
    let mut found = Found::new(pattern, reply.protocol, std::mem::take(&mut progress.found));
    let mut places = 0;
    while let Some(store) = cx.shards.at(progress.shard) {
        let together = found.places();
        progress.cursor = store.scan(space, progress.cursor, together, now, |key, _| found.take(key, None));
        places += together;
        progress.shard += usize::from(progress.cursor == 0);
        if progress.shard == cx.shards.count() {
            break;
        }
        if found.replies.exceed(most) {
            found.replies.overflow(reply);
            return Ok(());
        }
        if is_done_in_pieces && (progress.cursor == 0 || places >= PLACES || found.work >= WORK) {
            progress.found = found.replies;
            cx.session.paused = Some(Paused::Keys(progress));
            return Ok(());
        }
    }
    found.replies.reply(reply);
    Ok(())
}

/// Returns `pattern` if its length is allowed.
fn pattern(pattern: &[u8]) -> Result<&[u8], Refused> {
    if pattern.len() > glob::LONGEST { Err(LONG_PATTERN) } else { Ok(pattern) }
}

pub(in crate::commands) fn randomkey(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let (space, now) = (cx.session.space, cx.now);
    let count = cx.shards.count();
    let lens: Vec<usize> = (0..count).map(|at| cx.shards.at(at).map_or(0, |store| store.len(space))).collect();
    let all = lens.iter().sum::<usize>();
    let mut left = if all > 0 { fastrand::usize(..all) } else { 0 };
    let first = lens.iter().position(|len| {
        let is_here = left < *len;
        left = left.saturating_sub(*len);
        is_here
    });
    // Those of a shard may all have expired.
    let first = first.unwrap_or(0);
    let key = (first..first + count).find_map(|at| cx.shards.at(at % count)?.random_key(space, now));
    match key {
        Some(key) => reply.bulk(&key),
        None => reply.null(),
    }
    Ok(())
}

/// The shard that a cursor is in: the cursor within it is multiplied by the number of shards, and the shard's added.
pub(in crate::commands) fn shard(cursor: &[u8], count: usize) -> Option<usize> {
    Some((parse_cursor(cursor).ok()? % count as u64) as usize)
}

/// A cursor, as C's `strtoul` reads it.
fn parse_cursor(text: &[u8]) -> Result<u64, Refused> {
    let (is_negative, digits) = match text {
        [] => return Ok(0),
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] | rest => (false, rest),
    };
    let number = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'));
    let number: u64 = number.and_then(|digits| digits.parse().ok()).ok_or(CURSOR)?;
    Ok(if is_negative { number.wrapping_neg() } else { number })
}

/// The options of `SCAN` and `HSCAN`.
struct Options<'a> {
    pattern: &'a [u8],
    count: usize,
    kind: Option<&'a [u8]>,
}

impl<'a> Options<'a> {
    fn parse(args: Args<'a>, from: usize, takes_kind: bool) -> Result<Self, Refused> {
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

/// Replies that are collected before their number is known. Long values are not copied.
#[derive(Debug, Default)]
pub(in crate::commands) struct Replies {
    count: usize,
    text: Vec<u8>,
    /// Long values, and the position of each in the text.
    values: Vec<(usize, Bytes)>,
}

impl Sink for Replies {
    fn put(&mut self, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
    }

    fn attach(&mut self, bytes: Bytes) {
        self.values.push((self.text.len(), bytes));
    }
}

impl Replies {
    /// Returns true if the text is longer than `most` bytes, unless that is 0.
    pub fn exceed(&self, most: u64) -> bool {
        most > 0 && self.text.len() as u64 > most
    }

    /// Writes an array of the replies.
    fn reply(&mut self, reply: &mut Reply<'_>) {
        reply.array(self.count);
        self.write(reply);
    }

    /// Writes all text at once, which has the client disconnected if it exceeds the limit of its output.
    pub fn overflow(&self, reply: &mut Reply<'_>) {
        reply.put(&self.text);
    }

    /// Writes the replies. Long text is not copied, but is sent as there is room.
    pub fn write(&mut self, reply: &mut Reply<'_>) {
        /// Text that is copied at once.
        const SHORT: usize = 64 << 10;
        if self.values.is_empty() && self.text.len() > SHORT {
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
struct Found<'a> {
    pattern: &'a [u8],
    protocol: Protocol,
    replies: Replies,
    /// Steps of work that were done.
    work: usize,
}

impl<'a> Found<'a> {
    fn new(pattern: &'a [u8], protocol: Protocol, replies: Replies) -> Self {
        Found { pattern, protocol, replies, work: 0 }
    }

    /// Returns the number of places to look at before the work is compared with its limit: the fewer the longer the pattern is.
    fn places(&self) -> usize {
        const FEWEST: usize = 8;
        const MOST: usize = 512;
        (4 * MOST / self.pattern.len().max(1)).clamp(FEWEST, MOST)
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

pub(in crate::commands) fn scan(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let cursor = parse_cursor(&request.args[1])?;
    let options = Options::parse(request.args, 2, true)?;
    let shards = cx.shards.count() as u64;
    let number = cursor % shards;
    let mut found = Found::new(options.pattern, reply.protocol, Replies::default());
    let is_kind = |name: &str| options.kind.is_none_or(|kind| kind.eq_ignore_ascii_case(name.as_bytes()));
    let (space, now) = (cx.session.space, cx.now);
    let mut next = 0;
    if let Some(store) = cx.shards.at(number as usize).filter(|store| store.len(space) > 0) {
        next = cursor / shards;
        let (mut keys, mut places) = (0, 0);
        // Where few keys are, more places are looked at, to a limit.
        while keys < options.count && places < PLACES && found.work < WORK {
            let together = options.count.min(found.places());
            next = store.scan(space, next, together, now, |key, kind| {
                keys += 1;
                if is_kind(kind_name(kind)) {
                    found.take(key, None);
                }
            });
            places += together;
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

pub(in crate::commands) fn hscan(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let mut next = parse_cursor(&request.args[2])?;
    let key = cx.key(request, 1);
    let store = cx.shards.of(&key);
    if store.hlen(&key, cx.now)? == 0 {
        reply_scanned(0, &mut Replies::default(), reply);
        return Ok(());
    }
    let options = Options::parse(request.args, 3, false)?;
    let mut found = Found::new(options.pattern, reply.protocol, Replies::default());
    let mut left = options.count.min(PLACES);
    while left > 0 && found.work < WORK {
        let together = left.min(found.places());
        next = store.hscan(&key, next, together, cx.now, |field, value| found.take(field, Some(&value)))?;
        left -= together;
        if next == 0 {
            break;
        }
    }
    reply_scanned(next, &mut found.replies, reply);
    Ok(())
}

fn reply_scanned(next: u64, found: &mut Replies, reply: &mut Reply<'_>) {
    reply.array(2);
    reply.bulk(next.to_string().as_bytes());
    found.reply(reply);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::Client;
    use std::collections::BTreeSet;

    /// What all turns of a scan return together.
    fn scanned(client: &mut Client, command: &str, options: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut cursor = "0".to_owned();
        loop {
            let reply = client.run(&format!("{command} {cursor} {options}"));
            let words: Vec<&str> = reply.split(' ').collect();
            // The lengths are between.
            found.extend(words.iter().skip(4).skip(1).step_by(2).map(|word| word.to_string()));
            cursor = words[2].to_owned();
            if cursor == "0" {
                return found;
            }
        }
    }

    #[test]
    fn a_scan_finds_all_keys_and_only_those_asked_for() {
        for mut client in Client::each() {
            let mut expected = BTreeSet::new();
            for n in 0..300 {
                client.run(&format!("set key:{n} x"));
                expected.insert(format!("key:{n}"));
            }
            client.run("hset hash f v");
            client.run("select 1");
            client.run("set other x");
            client.run("select 0");
            assert_eq!(scanned(&mut client, "scan", "type string"), expected);
            assert_eq!(scanned(&mut client, "scan", "match key:*7 count 1000").len(), 30);
            assert_eq!(scanned(&mut client, "scan", "type hash"), ["hash".to_owned()].into());
            assert_eq!(scanned(&mut client, "scan", "type list").len(), 0);
            let keys = client.run("keys key:1?");
            assert!(keys.starts_with("*10 "), "{keys}");
            assert!(client.run("keys *").starts_with("*301 "));
            assert!(client.run("randomkey").contains(' '));
            client.says("scan x", "-ERR invalid cursor");
            client.says("scan 18446744073709551616", "-ERR invalid cursor");
            client.says("scan 0 count 0", "-ERR syntax error");
            client.says("scan 0 count x", "-ERR value is not an integer or out of range");
            client.says("scan 0 match", "-ERR syntax error");
            client.says("scan 0 foo 1", "-ERR syntax error");
            for n in 0..1000u64 {
                // No cursor does harm.
                client.run(&format!("scan {}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            }
            client.run("flushdb");
            client.says("randomkey", "$-1");
            client.says("keys *", "*0");
        }
    }

    #[test]
    fn a_scan_of_a_hash_finds_fields_and_values() {
        for mut client in Client::each() {
            (0..300).for_each(|n| drop(client.run(&format!("hset h f{n} v{n}"))));
            assert_eq!(scanned(&mut client, "hscan h", "").len(), 600);
            assert_eq!(scanned(&mut client, "hscan h", "match f1?").len(), 20);
            client.says("hscan nosuch 0 foo", "*2 $1 0 *0");
            client.says("hscan h 0 type hash", "-ERR syntax error");
            client.says("hscan nosuch x", "-ERR invalid cursor");
        }
    }

    #[test]
    fn cursors_are_read_as_c_reads_them() {
        for (text, cursor) in [("", Some(0)), ("12", Some(12)), ("+5", Some(5)), ("-1", Some(u64::MAX))] {
            assert_eq!(parse_cursor(text.as_bytes()).ok(), cursor);
        }
        for text in ["-", "+", "++1", "1x", " 1", "18446744073709551616"] {
            assert!(parse_cursor(text.as_bytes()).is_err(), "{text}");
        }
    }
}
