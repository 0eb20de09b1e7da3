//! Meta commands: a line of a key and of flags, each a letter that may have a token behind it.

use super::request::{BAD_LINE, Body, Command, ERROR, How, Request, body};
use super::words::{Words, length, signed, unsigned};
use super::{KEY, Limits, base64};

/// Words that a line may have.
const WORDS: usize = 19;
/// Bytes of the longest opaque token, and of the letter in front of it.
const OPAQUE: usize = 32;

const DUPLICATE: &str = "CLIENT_ERROR duplicate flag\r\n";
const INVALID: &str = "CLIENT_ERROR invalid flag\r\n";
const NEITHER: &str = "CLIENT_ERROR invalid or duplicate flag\r\n";
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

/// What a meta command says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meta<'a> {
    /// The key as it was sent.
    name: &'a [u8],
    /// Its flags, in order.
    pub flags: Words<'a>,
    /// `b`: the key is sent in base64.
    pub binary: bool,
    /// `v`
    pub value: bool,
    /// `u`: it is no use of the item.
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

impl<'a> Meta<'a> {
    fn new(name: &'a [u8], flags: Words<'a>) -> Self {
        Meta {
            name,
            flags,
            binary: false,
            value: false,
            unused: false,
            invalidate: false,
            cas: None,
            client_flags: 0,
            expires: None,
            vivify: None,
            recache: None,
            delta: 1,
            initial: 0,
            mode: None,
        }
    }

    /// Its key, in `room` if it is sent in base64.
    pub fn key<'k>(&self, room: &'k mut [u8; KEY]) -> &'k [u8]
    where
        'a: 'k,
    {
        if self.binary { base64::decode(self.name, room).unwrap_or_default() } else { self.name }
    }

    /// Reads the flags. Returns whether replies are to be few.
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
            // The last that is wrong is what is said.
            let time = |place: &mut Option<i32>| {
                *place = signed(token);
                place.is_none().then_some(BAD_TOKEN)
            };
            let says = match letter {
                b'b' => {
                    self.binary = true;
                    base64::decode(self.name, &mut [0; KEY]).is_none().then_some(BAD_KEY)
                }
                b'N' => time(&mut self.vivify),
                b'T' => time(&mut self.expires),
                b'R' => time(&mut self.recache),
                b'C' => {
                    self.cas = unsigned(token);
                    self.cas.is_none().then_some(BAD_TOKEN)
                }
                b'D' => unsigned(token).map(|delta| self.delta = delta).is_none().then_some(BAD_DELTA),
                b'J' => unsigned(token).map(|initial| self.initial = initial).is_none().then_some(BAD_INITIAL),
                b'F' => match unsigned(token) {
                    Some(flags) => {
                        self.client_flags = flags as u32;
                        None
                    }
                    None => wrong.or(Some(BAD_LINE)),
                },
                b'M' => match token {
                    [mode] => {
                        self.mode = Some(*mode);
                        None
                    }
                    _ => Some(BAD_MODE),
                },
                b'q' => {
                    quiet = true;
                    None
                }
                b'v' => {
                    self.value = true;
                    None
                }
                b'u' => {
                    self.unused = true;
                    None
                }
                b'I' => {
                    self.invalidate = true;
                    None
                }
                b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'h' | b'l' => None,
                _ => return Err(INVALID),
            };
            wrong = says.or(wrong);
        }
        wrong.map_or(Ok(quiet), Err)
    }

    fn has_long_opaque(&self) -> bool {
        { self.flags }.any(|flag| flag[0] == b'O' && flag.len() > OPAQUE)
    }
}

/// The request that the words behind `verb` are, and what follows.
pub(super) fn read<'a>(verb: &[u8], mut words: Words<'a>, limits: &Limits) -> (Request<'a>, Body) {
    let said = |what| (Request { command: Command::Say(what), quiet: false }, Body::None);
    let all = words;
    let Some(name) = words.next() else {
        return said(if verb == b"me" { BAD_LINE } else { ERROR });
    };
    if name.len() > KEY {
        return said(BAD_LINE);
    }
    if verb == b"me" {
        return debug(name, words);
    }
    // Words are counted only where there are flags.
    if !words.0.is_empty() && all.count() >= WORDS {
        return said(if verb == b"mg" { TOO_MANY_TO_GET } else { TOO_MANY });
    }
    if verb == b"ms" {
        return set(name, words, limits);
    }
    let mut meta = Meta::new(name, words);
    let (quiet, command) = match (verb, meta.read(), meta.mode) {
        (b"mg", Err(why), _) => return said(why),
        (_, Err(_), _) => return said(NEITHER),
        (b"mg", Ok(quiet), _) => (quiet, Command::MetaGet(meta)),
        (b"md", Ok(quiet), _) => (quiet, Command::MetaDelete(meta)),
        (_, Ok(quiet), None | Some(b'I' | b'+')) => (quiet, Command::MetaCount(meta, true)),
        (_, Ok(quiet), Some(b'D' | b'-')) => (quiet, Command::MetaCount(meta, false)),
        _ => return said(NO_COUNT_MODE),
    };
    if meta.has_long_opaque() {
        return said(LONG_OPAQUE);
    }
    (Request { command, quiet }, Body::None)
}

fn set<'a>(name: &'a [u8], mut words: Words<'a>, limits: &Limits) -> (Request<'a>, Body) {
    let said = |what, body| (Request { command: Command::Say(what), quiet: false }, body);
    let Some(len) = words.next().and_then(length) else { return said(BAD_LINE, Body::None) };
    let mut meta = Meta::new(name, words);
    let read = meta.read();
    let how = match meta.mode {
        None | Some(b'S') => Some(How::Set),
        Some(b'E') => Some(How::Add),
        Some(b'R') => Some(How::Replace),
        Some(b'A') => Some(How::Append),
        Some(b'P') => Some(How::Prepend),
        Some(_) => None,
    };
    match (read, how) {
        (Err(why), _) => said(why, Body::Refused(len)),
        (_, None) => said(NO_SET_MODE, Body::Refused(len)),
        _ if meta.has_long_opaque() => said(LONG_OPAQUE, Body::Refused(len)),
        (Ok(quiet), Some(how)) => {
            let body = body(meta.key(&mut [0; KEY]).len(), meta.client_flags, len, limits);
            (Request { command: Command::MetaSet(meta, how), quiet }, body)
        }
    }
}

/// `me`, of whose words only a `b` behind the key says anything.
fn debug<'a>(name: &'a [u8], mut words: Words<'a>) -> (Request<'a>, Body) {
    let mut meta = Meta::new(name, words);
    meta.binary = words.next() == Some(b"b");
    let is_key = !meta.binary || base64::decode(name, &mut [0; KEY]).is_some();
    let command = if is_key { Command::MetaDebug(meta) } else { Command::Say(BAD_LINE) };
    (Request { command, quiet: false }, Body::None)
}
