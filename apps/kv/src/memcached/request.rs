//! Parsing of request lines.

use super::flags::{self, Meta};
use super::words::{Words, length, signed, unsigned};
use super::{KEY, Limits};

pub(super) const ERROR: &str = "ERROR\r\n";
pub(super) const BAD_LINE: &str = "CLIENT_ERROR bad command line format\r\n";
const BAD_TIME: &str = "CLIENT_ERROR invalid exptime argument\r\n";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument\r\n";
const BAD_DELETE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";

/// Item header of memcached, which counts towards the item limit.
pub(super) const HEADER: usize = 59;

/// Request without its data block.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    pub(super) command: Command<'a>,
    /// `noreply`, or quiet mode of a meta command.
    pub(super) quiet: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Command<'a> {
    /// Constant reply, independent of the stored data.
    Reply(&'static str),
    Get {
        keys: Words<'a>,
        /// Return CAS values (`gets`).
        cas: bool,
        /// New expiry time (`gat`).
        expires: Option<i32>,
    },
    Put {
        key: &'a [u8],
        how: StoreMode,
        flags: u32,
        expires: i32,
        cas: Option<u64>,
    },
    Count {
        key: &'a [u8],
        up: bool,
        by: u64,
    },
    Delete(&'a [u8]),
    Touch {
        key: &'a [u8],
        expires: i32,
    },
    Flush(i32),
    Stats(Words<'a>),
    Quit,
    /// HTTP request line.
    Http,
    MetaGet(Meta<'a>),
    MetaSet(Meta<'a>, StoreMode),
    MetaDelete(Meta<'a>),
    MetaCount(Meta<'a>, bool),
    MetaDebug(Meta<'a>),
}

/// Storage command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreMode {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
}

/// Body that follows a request line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    None,
    /// Data block of this length, and its end.
    Data(usize),
    /// Data block of this length to be skipped.
    Skip(usize),
}

impl<'a> Request<'a> {
    pub fn each_key(&self, mut visit: impl FnMut(&[u8])) {
        match self.command {
            Command::Get { keys, .. } => keys.for_each(visit),
            Command::Put { key, .. }
            | Command::Count { key, .. }
            | Command::Delete(key)
            | Command::Touch { key, .. } => visit(key),
            Command::MetaGet(meta)
            | Command::MetaSet(meta, _)
            | Command::MetaDelete(meta)
            | Command::MetaCount(meta, _)
            | Command::MetaDebug(meta) => visit(meta.key(&mut [0; KEY])),
            Command::Reply(_) | Command::Flush(_) | Command::Stats(_) | Command::Quit | Command::Http => {}
        }
    }

    /// Returns true if the request needs all shards, not only those of its keys.
    pub fn needs_all(&self) -> bool {
        matches!(self.command, Command::Flush(_))
    }

    /// Returns true if the request may change items.
    pub fn is_write(&self) -> bool {
        match &self.command {
            Command::Get { expires, .. } => expires.is_some(),
            Command::MetaGet(meta) => meta.changes_item(),
            Command::Put { .. }
            | Command::Count { .. }
            | Command::Delete(_)
            | Command::Touch { .. }
            | Command::Flush(_)
            | Command::MetaSet(..)
            | Command::MetaDelete(_)
            | Command::MetaCount(..) => true,
            Command::Reply(_) | Command::Stats(_) | Command::Quit | Command::Http | Command::MetaDebug(_) => false,
        }
    }

    /// Returns true if the request has many keys.
    #[inline]
    pub fn may_take_long(&self) -> bool {
        /// Bytes of keys whose lookup takes far less than a millisecond.
        const SHORT: usize = 4096;
        matches!(&self.command, Command::Get { keys, .. } if keys.0.len() > SHORT)
    }

    /// Returns true for an unknown command, which gets the reply `ERROR`, and for an HTTP request.
    pub fn is_unknown(&self) -> bool {
        matches!(self.command, Command::Reply(ERROR) | Command::Http)
    }

    /// Parses `line`, which has no line end. Returns the request and its kind of body.
    pub(super) fn read(line: &'a [u8], limits: &Limits) -> (Self, Body) {
        // A NUL byte ends a string in memcached.
        let line = memchr::memchr(0, line).map_or(line, |end| &line[..end]);
        let mut words = Words(line);
        let verb = words.next().unwrap_or_default();
        let plain = |command| (Request { command, quiet: false }, Body::None);
        match verb {
            b"get" => plain(get(words, false)),
            b"gets" => plain(get(words, true)),
            b"gat" => plain(get_and_touch(words, false)),
            b"gats" => plain(get_and_touch(words, true)),
            b"mg" | b"ms" | b"md" | b"ma" | b"me" => flags::read(verb, words, limits),
            b"mn" => plain(Command::Reply("MN\r\n")),
            b"version" => plain(Command::Reply(super::VERSION)),
            b"stats" => plain(Command::Stats(words)),
            b"quit" => plain(Command::Quit),
            b"set" => put(StoreMode::Set, false, words, limits),
            b"add" => put(StoreMode::Add, false, words, limits),
            b"replace" => put(StoreMode::Replace, false, words, limits),
            b"append" => put(StoreMode::Append, false, words, limits),
            b"prepend" => put(StoreMode::Prepend, false, words, limits),
            b"cas" => put(StoreMode::Set, true, words, limits),
            b"incr" => parse_few_words(words, |args, _| count(args, true)),
            b"decr" => parse_few_words(words, |args, _| count(args, false)),
            b"delete" => parse_few_words(words, delete),
            b"touch" => parse_few_words(words, |args, _| touch(args)),
            b"flush_all" => parse_few_words(words, flush),
            b"verbosity" => parse_few_words(words, |args, _| verbosity(args)),
            _ if is_http(line) => plain(Command::Http),
            _ => plain(Command::Reply(ERROR)),
        }
    }
}

/// Number of words that memcached splits a line into. The rest of the line is ignored.
const TOKENS: usize = 23;

/// Returns true if `line`, which is not a command, is an HTTP request line, which ends with the version (RFC 9112 §3).
///
/// A web page can make a browser send an HTTP request to any port. Its lines are unknown commands up to the body, whose
/// commands would run.
fn is_http(line: &[u8]) -> bool {
    Words(line).take(TOKENS).last().is_some_and(|word| word.starts_with(b"HTTP/"))
}

/// Limit of words after the command, except in lists of keys.
const MAX_WORDS: usize = 6;

/// Parses a command with few words, the last of which may be `noreply`.
fn parse_few_words<'a>(
    words: Words<'a>,
    read: impl FnOnce(&[&'a [u8]], bool) -> Result<Command<'a>, LineError>,
) -> (Request<'a>, Body) {
    let (args, len) = first_words(words);
    let Some(args) = args.get(..len) else { return no_such_command() };
    let quiet = args.last().is_some_and(|word| *word == b"noreply");
    match read(args, quiet) {
        Err(LineError::Usage) => no_such_command(),
        // The key may be `noreply`.
        Ok(command @ Command::Delete(b"noreply")) if len == 1 => (Request { command, quiet: false }, Body::None),
        Ok(Command::Reply(line)) | Err(LineError::Argument(line)) => {
            (Request { command: error_reply(line, quiet), quiet }, Body::None)
        }
        Ok(command) => (Request { command, quiet }, Body::None),
    }
}

/// Returns the first [`MAX_WORDS`] words and their number, or [`MAX_WORDS`] + 1 if there are more.
fn first_words(mut words: Words<'_>) -> ([&[u8]; MAX_WORDS], usize) {
    let mut args: [&[u8]; MAX_WORDS] = [b""; MAX_WORDS];
    let mut len = 0;
    for arg in &mut args {
        let Some(word) = words.next() else { return (args, len) };
        *arg = word;
        len += 1;
    }
    (args, len + usize::from(words.next().is_some()))
}

/// Error in a line.
enum LineError {
    /// Wrong number of words. Whether `noreply` was meant is unclear.
    Usage,
    Argument(&'static str),
}

fn no_such_command<'a>() -> (Request<'a>, Body) {
    (Request { command: Command::Reply(ERROR), quiet: false }, Body::None)
}

fn error_reply<'a>(line: &'static str, quiet: bool) -> Command<'a> {
    Command::Reply(if quiet { "" } else { line })
}

fn key(word: &[u8]) -> Result<&[u8], LineError> {
    if word.len() <= KEY { Ok(word) } else { Err(LineError::Argument(BAD_LINE)) }
}

fn get<'a>(keys: Words<'a>, cas: bool) -> Command<'a> {
    if { keys }.next().is_none() {
        return Command::Reply(ERROR);
    }
    keys_of(keys, cas, None)
}

fn get_and_touch<'a>(mut words: Words<'a>, cas: bool) -> Command<'a> {
    match words.next().map(signed) {
        None => Command::Reply(ERROR),
        Some(None) => Command::Reply(BAD_TIME),
        Some(expires) => keys_of(words, cas, expires),
    }
}

fn keys_of<'a>(keys: Words<'a>, cas: bool, expires: Option<i32>) -> Command<'a> {
    // Most lines are shorter than the longest key.
    if keys.0.len() > KEY && { keys }.any(|key| key.len() > KEY) {
        return Command::Reply(BAD_LINE);
    }
    Command::Get { keys, cas, expires }
}

fn put<'a>(how: StoreMode, compares: bool, words: Words<'a>, limits: &Limits) -> (Request<'a>, Body) {
    let (args, len) = first_words(words);
    let needed = if compares { 5 } else { 4 };
    if len != needed && len != needed + 1 {
        return no_such_command();
    }
    let quiet = args[len - 1] == b"noreply";
    let command = || {
        let (flags, expires, len) = (unsigned(args[1])?, signed(args[2])?, length(args[3])?);
        let cas = if compares { Some(unsigned(args[4])?) } else { None };
        (args[0].len() <= KEY).then_some(())?;
        Some((Command::Put { key: args[0], how, flags: flags as u32, expires, cas }, flags as u32, len))
    };
    let Some((command, flags, len)) = command() else {
        return (Request { command: error_reply(BAD_LINE, quiet), quiet }, Body::None);
    };
    (Request { command, quiet }, body(args[0].len(), flags, len, limits))
}

/// Returns the kind of body of an item whose value has `len` bytes.
pub(super) fn body(key: usize, flags: u32, len: usize, limits: &Limits) -> Body {
    if size(key, flags, len) <= limits.item { Body::Data(len) } else { Body::Skip(len) }
}

/// Returns the size of an item as memcached counts it.
pub(super) fn size(key: usize, flags: u32, len: usize) -> usize {
    HEADER + key + if flags == 0 { 0 } else { size_of::<u32>() } + len
}

fn count<'a>(args: &[&'a [u8]], up: bool) -> Result<Command<'a>, LineError> {
    let ([name, by] | [name, by, _]) = args else { return Err(LineError::Usage) };
    let key = key(name)?;
    let by = unsigned(by).ok_or(LineError::Argument(BAD_DELTA))?;
    Ok(Command::Count { key, up, by })
}

fn delete<'a>(args: &[&'a [u8]], quiet: bool) -> Result<Command<'a>, LineError> {
    // Old clients send a time.
    match args {
        [name] | [name, b"0"] | [name, b"0", b"noreply"] => Ok(Command::Delete(key(name)?)),
        [name, _] if quiet => Ok(Command::Delete(key(name)?)),
        [_, _] | [_, _, _] => Err(LineError::Argument(BAD_DELETE)),
        _ => Err(LineError::Usage),
    }
}

fn touch<'a>(args: &[&'a [u8]]) -> Result<Command<'a>, LineError> {
    let ([name, expires] | [name, expires, _]) = args else { return Err(LineError::Usage) };
    let key = key(name)?;
    let expires = signed(expires).ok_or(LineError::Argument(BAD_TIME))?;
    Ok(Command::Touch { key, expires })
}

fn flush<'a>(args: &[&'a [u8]], quiet: bool) -> Result<Command<'a>, LineError> {
    match args {
        [] => Ok(Command::Flush(0)),
        [_] if quiet => Ok(Command::Flush(0)),
        [delay] | [delay, _] => signed(delay).map(Command::Flush).ok_or(LineError::Argument(BAD_TIME)),
        _ => Err(LineError::Usage),
    }
}

/// Accepts `verbosity` without effect.
fn verbosity<'a>(args: &[&'a [u8]]) -> Result<Command<'a>, LineError> {
    let ([level] | [level, _]) = args else { return Err(LineError::Usage) };
    unsigned(level).map(|_| Command::Reply("OK\r\n")).ok_or(LineError::Argument(BAD_LINE))
}
