//! Parsing of meta commands: a key and flags, each a letter with an optional token.

use super::request::{BAD_LINE, Body, Command, ERROR, Request, StoreMode, body};
use super::words::{Words, length, signed, unsigned};
use super::{KEY, Limits, binary_key};

/// Limit of words in a line.
const WORDS: usize = 19;
/// Limit of the `O` flag, letter and opaque token.
const OPAQUE: usize = 32;

const DUPLICATE: &str = "CLIENT_ERROR duplicate flag\r\n";
const INVALID: &str = "CLIENT_ERROR invalid flag\r\n";
const INVALID_OR_DUPLICATE: &str = "CLIENT_ERROR invalid or duplicate flag\r\n";
const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format\r\n";
const BAD_KEY: &str = "CLIENT_ERROR error decoding key\r\n";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta value\r\n";
const BAD_INITIAL: &str = "CLIENT_ERROR invalid numeric initial value\r\n";
const BAD_MODE: &str = "CLIENT_ERROR incorrect length for M token\r\n";
const NO_SET_MODE: &str = "CLIENT_ERROR invalid mode for ms M token\r\n";
const NO_COUNT_MODE: &str = "CLIENT_ERROR invalid mode for ma M token\r\n";
const LONG_OPAQUE: &str = "CLIENT_ERROR opaque token too long\r\n";
const TOO_MANY: &str = "CLIENT_ERROR options flags too long\r\n";
const TOO_MANY_TO_GET: &str = "CLIENT_ERROR options flags are too long\r\n";

/// Key and flags of a meta command.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Meta<'a> {
    /// Key as sent.
    name: &'a [u8],
    pub flags: Words<'a>,
    /// `b`: the key is encoded in base64.
    pub binary: bool,
    /// `v`
    pub value: bool,
    /// `u`: do not record a use.
    pub unused: bool,
    /// `I`
    pub invalidate: bool,
    /// `C`
    pub cas: Option<u64>,
    /// `F`
    pub client_flags: u32,
    /// `T`
    pub expires: Option<i32>,
    /// `N`
    pub vivify: Option<i32>,
    /// `R`
    pub recache: Option<i32>,
    /// `D`
    pub delta: u64,
    /// `J`
    pub initial: u64,
    /// `M`
    pub mode: Option<u8>,
}

/// Assigns `value` to `field`, or returns `error` if there is none.
fn assign<T>(field: &mut T, value: Option<T>, error: &'static str) -> Option<&'static str> {
    match value {
        Some(value) => *field = value,
        None => return Some(error),
    }
    None
}

impl<'a> Meta<'a> {
    fn new(name: &'a [u8], flags: Words<'a>) -> Self {
        Meta { name, flags, delta: 1, ..Meta::default() }
    }

    /// Returns true if `mg` with these flags may store an item, change its expiry time, or let a client win it.
    pub fn changes_item(&self) -> bool {
        self.vivify.is_some() || self.expires.is_some() || self.recache.is_some()
    }

    /// Returns the key, decoded into `room` if it is encoded.
    pub fn key<'k>(&self, room: &'k mut [u8; KEY]) -> &'k [u8]
    where
        'a: 'k,
    {
        if self.binary { binary_key::decode(self.name, room).unwrap_or_default() } else { self.name }
    }

    /// Parses the flags. Returns true for quiet mode.
    fn read(&mut self) -> Result<bool, &'static str> {
        let mut seen = [false; 127];
        let mut wrong = None;
        let mut quiet = false;
        for flag in self.flags {
            let [letter, token @ ..] = flag else { continue };
            match seen.get_mut(usize::from(*letter)) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err(DUPLICATE),
            }
            // The last error is reported.
            let is_key = || binary_key::decode(self.name, &mut [0; KEY]).map(|_| true);
            let invalid = match letter {
                b'b' => assign(&mut self.binary, is_key(), BAD_KEY),
                b'N' => assign(&mut self.vivify, signed(token).map(Some), BAD_TOKEN),
                b'T' => assign(&mut self.expires, signed(token).map(Some), BAD_TOKEN),
                b'R' => assign(&mut self.recache, signed(token).map(Some), BAD_TOKEN),
                b'C' => assign(&mut self.cas, unsigned(token).map(Some), BAD_TOKEN),
                b'D' => assign(&mut self.delta, unsigned(token), BAD_DELTA),
                b'J' => assign(&mut self.initial, unsigned(token), BAD_INITIAL),
                b'F' => {
                    let flags = unsigned(token).map(|flags| flags as u32);
                    assign(&mut self.client_flags, flags, wrong.unwrap_or(BAD_LINE))
                }
                b'M' => {
                    assign(&mut self.mode, token.first().filter(|_| token.len() == 1).map(|mode| Some(*mode)), BAD_MODE)
                }
                b'q' => assign(&mut quiet, Some(true), ""),
                b'v' => assign(&mut self.value, Some(true), ""),
                b'u' => assign(&mut self.unused, Some(true), ""),
                b'I' => assign(&mut self.invalidate, Some(true), ""),
                b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'h' | b'l' => None,
                _ => return Err(INVALID),
            };
            wrong = invalid.or(wrong);
        }
        wrong.map_or(Ok(quiet), Err)
    }

    fn has_long_opaque(&self) -> bool {
        { self.flags }.any(|flag| flag[0] == b'O' && flag.len() > OPAQUE)
    }
}

/// Parses the `words` after `verb`. Returns the request and the kind of its body.
pub(super) fn read<'a>(verb: &[u8], mut words: Words<'a>, limits: &Limits) -> (Request<'a>, Body) {
    let error_reply = |line| (Request { command: Command::Reply(line), quiet: false }, Body::None);
    let all = words;
    let Some(name) = words.next() else {
        return error_reply(if verb == b"me" { BAD_LINE } else { ERROR });
    };
    if name.len() > KEY {
        return error_reply(BAD_LINE);
    }
    if verb == b"me" {
        return debug(name, words);
    }
    // Counting is needed only if there are flags.
    if !words.0.is_empty() && all.count() >= WORDS {
        return error_reply(if verb == b"mg" { TOO_MANY_TO_GET } else { TOO_MANY });
    }
    if verb == b"ms" {
        return set(name, words, limits);
    }
    let mut meta = Meta::new(name, words);
    let (quiet, command) = match (verb, meta.read(), meta.mode) {
        (b"mg", Err(error), _) => return error_reply(error),
        (_, Err(_), _) => return error_reply(INVALID_OR_DUPLICATE),
        (b"mg", Ok(quiet), _) => (quiet, Command::MetaGet(meta)),
        (b"md", Ok(quiet), _) => (quiet, Command::MetaDelete(meta)),
        (_, Ok(quiet), None | Some(b'I' | b'+')) => (quiet, Command::MetaCount(meta, true)),
        (_, Ok(quiet), Some(b'D' | b'-')) => (quiet, Command::MetaCount(meta, false)),
        _ => return error_reply(NO_COUNT_MODE),
    };
    if meta.has_long_opaque() {
        return error_reply(LONG_OPAQUE);
    }
    (Request { command, quiet }, Body::None)
}

fn set<'a>(name: &'a [u8], mut words: Words<'a>, limits: &Limits) -> (Request<'a>, Body) {
    let error_reply = |line, body| (Request { command: Command::Reply(line), quiet: false }, body);
    let Some(len) = words.next().and_then(length) else { return error_reply(BAD_LINE, Body::None) };
    let mut meta = Meta::new(name, words);
    let read = meta.read();
    let how = match meta.mode {
        None | Some(b'S') => Some(StoreMode::Set),
        Some(b'E') => Some(StoreMode::Add),
        Some(b'R') => Some(StoreMode::Replace),
        Some(b'A') => Some(StoreMode::Append),
        Some(b'P') => Some(StoreMode::Prepend),
        Some(_) => None,
    };
    match (read, how) {
        (Err(error), _) => error_reply(error, Body::Skip(len)),
        (_, None) => error_reply(NO_SET_MODE, Body::Skip(len)),
        _ if meta.has_long_opaque() => error_reply(LONG_OPAQUE, Body::Skip(len)),
        (Ok(quiet), Some(how)) => {
            let body = body(meta.key(&mut [0; KEY]).len(), meta.client_flags, len, limits);
            (Request { command: Command::MetaSet(meta, how), quiet }, body)
        }
    }
}

/// Parses `me`, whose only flag is a `b` after the key.
fn debug<'a>(name: &'a [u8], mut words: Words<'a>) -> (Request<'a>, Body) {
    let mut meta = Meta::new(name, words);
    meta.binary = words.next() == Some(b"b");
    let is_key = !meta.binary || binary_key::decode(name, &mut [0; KEY]).is_some();
    let command = if is_key { Command::MetaDebug(meta) } else { Command::Reply(BAD_LINE) };
    (Request { command, quiet: false }, Body::None)
}
