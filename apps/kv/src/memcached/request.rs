//! What a line asks for.

use super::flags::{self, Meta};
use super::words::{Words, length, signed, unsigned};
use super::{KEY, Limits};

pub(super) const ERROR: &str = "ERROR\r\n";
pub(super) const BAD_LINE: &str = "CLIENT_ERROR bad command line format\r\n";
const BAD_TIME: &str = "CLIENT_ERROR invalid exptime argument\r\n";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument\r\n";
const BAD_DELETE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";

/// Bytes that an item has for memcached beside its key, its flags and its value: they count for the largest.
pub(super) const HEADER: usize = 59;

/// A request, but for its data.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    pub(super) command: Command<'a>,
    /// Only what the client must know is said.
    pub(super) quiet: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Command<'a> {
    /// What is answered is clear without a look at what is stored.
    Say(&'static str),
    Get {
        keys: Words<'a>,
        /// Whether the unique numbers are asked for.
        cas: bool,
        /// When what is there is to expire.
        expires: Option<i32>,
    },
    Put {
        key: &'a [u8],
        how: How,
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
    /// Request line of HTTP.
    Http,
    MetaGet(Meta<'a>),
    MetaSet(Meta<'a>, How),
    MetaDelete(Meta<'a>),
    MetaCount(Meta<'a>, bool),
    MetaDebug(Meta<'a>),
}

/// When a value is put where, and what it is put to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
}

/// What follows a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    /// The next line.
    None,
    /// So many bytes of data, and the end of a line.
    Data(usize),
    /// The same, which nobody wants.
    Refused(usize),
}

impl<'a> Request<'a> {
    /// Calls `visit` with each of its keys.
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
            Command::Say(_) | Command::Flush(_) | Command::Stats(_) | Command::Quit | Command::Http => {}
        }
    }

    /// Whether it needs all shards, and not only those of its keys.
    pub fn needs_all(&self) -> bool {
        matches!(self.command, Command::Flush(_))
    }

    /// Returns true if it names many keys.
    #[inline]
    pub fn may_take_long(&self) -> bool {
        /// Bytes of keys that take far less than a millisecond.
        const SHORT: usize = 4096;
        matches!(&self.command, Command::Get { keys, .. } if keys.0.len() > SHORT)
    }

    /// Returns true for an unknown command, which is answered with `ERROR`, and for an HTTP request.
    pub fn is_unknown(&self) -> bool {
        matches!(self.command, Command::Say(ERROR) | Command::Http)
    }

    /// The request that `line` is, which has no end of a line, and what follows.
    pub(super) fn read(line: &'a [u8], limits: &Limits) -> (Self, Body) {
        // A string ends there for memcached.
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
            b"mn" => plain(Command::Say("MN\r\n")),
            b"version" => plain(Command::Say(super::VERSION)),
            b"stats" => plain(Command::Stats(words)),
            b"quit" => plain(Command::Quit),
            b"set" => put(How::Set, false, words, limits),
            b"add" => put(How::Add, false, words, limits),
            b"replace" => put(How::Replace, false, words, limits),
            b"append" => put(How::Append, false, words, limits),
            b"prepend" => put(How::Prepend, false, words, limits),
            b"cas" => put(How::Set, true, words, limits),
            b"incr" => few(words, |args, _| count(args, true)),
            b"decr" => few(words, |args, _| count(args, false)),
            b"delete" => few(words, delete),
            b"touch" => few(words, |args, _| touch(args)),
            b"flush_all" => few(words, flush),
            b"verbosity" => few(words, |args, _| verbosity(args)),
            _ if is_http(line) => plain(Command::Http),
            _ => plain(Command::Say(ERROR)),
        }
    }
}

/// Words of a line that memcached tells apart; the rest of the line belongs to none.
const TOKENS: usize = 23;

/// Returns true if `line`, which is not a command, is an HTTP request line, which ends with the version (RFC 9112 §3).
///
/// A web page can have a browser send an HTTP request to any port. Its lines are unknown commands up to the body, whose commands
/// would be run.
fn is_http(line: &[u8]) -> bool {
    Words(line).take(TOKENS).last().is_some_and(|word| word.starts_with(b"HTTP/"))
}

/// Words of a line behind its first at most, where they are not any number of keys.
const MOST: usize = 6;

/// A request that is a line of few words, the last of which may be `noreply`.
fn few<'a>(
    words: Words<'a>,
    read: impl FnOnce(&[&'a [u8]], bool) -> Result<Command<'a>, Wrong>,
) -> (Request<'a>, Body) {
    let (args, len) = collected(words);
    let Some(args) = args.get(..len) else { return no_such_command() };
    let quiet = args.last().is_some_and(|word| *word == b"noreply");
    match read(args, quiet) {
        Err(Wrong::Usage) => no_such_command(),
        // A key may have the name.
        Ok(command @ Command::Delete(b"noreply")) if len == 1 => (Request { command, quiet: false }, Body::None),
        Ok(Command::Say(what)) | Err(Wrong::Argument(what)) => {
            (Request { command: said(what, quiet), quiet }, Body::None)
        }
        Ok(command) => (Request { command, quiet }, Body::None),
    }
}

/// The first [`MOST`] words, and how many there are; one too many stands for any.
fn collected(mut words: Words<'_>) -> ([&[u8]; MOST], usize) {
    let mut args: [&[u8]; MOST] = [b""; MOST];
    let mut len = 0;
    for arg in &mut args {
        let Some(word) = words.next() else { return (args, len) };
        *arg = word;
        len += 1;
    }
    (args, len + usize::from(words.next().is_some()))
}

/// What is wrong with a line.
enum Wrong {
    /// Its words are too few or too many: nobody knows whether it wants a reply.
    Usage,
    Argument(&'static str),
}

fn no_such_command<'a>() -> (Request<'a>, Body) {
    (Request { command: Command::Say(ERROR), quiet: false }, Body::None)
}

fn said<'a>(what: &'static str, quiet: bool) -> Command<'a> {
    Command::Say(if quiet { "" } else { what })
}

fn key(word: &[u8]) -> Result<&[u8], Wrong> {
    if word.len() <= KEY { Ok(word) } else { Err(Wrong::Argument(BAD_LINE)) }
}

fn get<'a>(keys: Words<'a>, cas: bool) -> Command<'a> {
    if { keys }.next().is_none() {
        return Command::Say(ERROR);
    }
    keys_of(keys, cas, None)
}

fn get_and_touch<'a>(mut words: Words<'a>, cas: bool) -> Command<'a> {
    match words.next().map(signed) {
        None => Command::Say(ERROR),
        Some(None) => Command::Say(BAD_TIME),
        Some(expires) => keys_of(words, cas, expires),
    }
}

fn keys_of<'a>(keys: Words<'a>, cas: bool, expires: Option<i32>) -> Command<'a> {
    // Most lines are shorter than the longest key.
    if keys.0.len() > KEY && { keys }.any(|key| key.len() > KEY) {
        return Command::Say(BAD_LINE);
    }
    Command::Get { keys, cas, expires }
}

fn put<'a>(how: How, compares: bool, words: Words<'a>, limits: &Limits) -> (Request<'a>, Body) {
    let (args, len) = collected(words);
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
        return (Request { command: said(BAD_LINE, quiet), quiet }, Body::None);
    };
    (Request { command, quiet }, body(args[0].len(), flags, len, limits))
}

/// What follows the line of an item whose value has `len` bytes.
pub(super) fn body(key: usize, flags: u32, len: usize, limits: &Limits) -> Body {
    if size(key, flags, len) <= limits.item { Body::Data(len) } else { Body::Refused(len) }
}

/// Bytes of an item as memcached counts them.
pub(super) fn size(key: usize, flags: u32, len: usize) -> usize {
    HEADER + key + if flags == 0 { 0 } else { size_of::<u32>() } + len
}

fn count<'a>(args: &[&'a [u8]], up: bool) -> Result<Command<'a>, Wrong> {
    let ([name, by] | [name, by, _]) = args else { return Err(Wrong::Usage) };
    let key = key(name)?;
    let by = unsigned(by).ok_or(Wrong::Argument(BAD_DELTA))?;
    Ok(Command::Count { key, up, by })
}

fn delete<'a>(args: &[&'a [u8]], quiet: bool) -> Result<Command<'a>, Wrong> {
    // Clients of old say when.
    match args {
        [name] | [name, b"0"] | [name, b"0", b"noreply"] => Ok(Command::Delete(key(name)?)),
        [name, _] if quiet => Ok(Command::Delete(key(name)?)),
        [_, _] | [_, _, _] => Err(Wrong::Argument(BAD_DELETE)),
        _ => Err(Wrong::Usage),
    }
}

fn touch<'a>(args: &[&'a [u8]]) -> Result<Command<'a>, Wrong> {
    let ([name, expires] | [name, expires, _]) = args else { return Err(Wrong::Usage) };
    let key = key(name)?;
    let expires = signed(expires).ok_or(Wrong::Argument(BAD_TIME))?;
    Ok(Command::Touch { key, expires })
}

fn flush<'a>(args: &[&'a [u8]], quiet: bool) -> Result<Command<'a>, Wrong> {
    match args {
        [] => Ok(Command::Flush(0)),
        [_] if quiet => Ok(Command::Flush(0)),
        [delay] | [delay, _] => signed(delay).map(Command::Flush).ok_or(Wrong::Argument(BAD_TIME)),
        _ => Err(Wrong::Usage),
    }
}

/// There is nothing to be more or less verbose about.
fn verbosity<'a>(args: &[&'a [u8]]) -> Result<Command<'a>, Wrong> {
    let ([level] | [level, _]) = args else { return Err(Wrong::Usage) };
    unsigned(level).map(|_| Command::Say("OK\r\n")).ok_or(Wrong::Argument(BAD_LINE))
}
