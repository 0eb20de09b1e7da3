//! What a client is told when a command is not done, in Redis' words: clients match on them.

use crate::resp::Args;
use crate::store;
use std::borrow::Cow;

/// Why a command was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused(Cow<'static, [u8]>);

/// What comes of a command that has replied, or that replies by what is refused.
pub type Done = Result<(), Refused>;

const fn said(text: &'static str) -> Refused {
    Refused(Cow::Borrowed(text.as_bytes()))
}

pub const SYNTAX: Refused = said("ERR syntax error");
pub const NO_INTEGER: Refused = said("ERR value is not an integer or out of range");
pub const NO_INT: Refused = said("ERR value is out of range, value must between -2147483648 and 2147483647");
pub const NO_FLOAT: Refused = said("ERR value is not a valid float");
pub const NOT_FINITE: Refused = said("ERR increment would produce NaN or Infinity");
pub const OVERFLOW: Refused = said("ERR increment or decrement would overflow");
pub const DECREMENT: Refused = said("ERR decrement would overflow");
pub const HASH_INTEGER: Refused = said("ERR hash value is not an integer");
pub const OFFSET: Refused = said("ERR offset is out of range");
pub const TOO_LONG: Refused = said("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
pub const DATABASE: Refused = said("ERR DB index is out of range");
pub const NO_KEY: Refused = said("ERR no such key");
pub const SAME_KEY: Refused = said("ERR source and destination objects are the same");
pub const CURSOR: Refused = said("ERR invalid cursor");
pub const SLOW_COUNT: Refused = said("ERR count should be greater than or equal to -1");
pub const LONG_PATTERN: Refused = said("ERR pattern is too long: 256 bytes at most");
pub const NX_AND: Refused = said("ERR NX and XX, GT or LT options at the same time are not compatible");
pub const GT_AND_LT: Refused = said("ERR GT and LT options at the same time are not compatible");
pub const NO_AUTH: Refused = said("NOAUTH Authentication required.");
pub const NO_AUTH_FOR_HELLO: Refused = said(
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> \
     option can be used to authenticate the client and select the RESP protocol version at the same time",
);
pub const WRONG_PASSWORD: Refused = said("WRONGPASS invalid username-password pair or user is disabled.");
pub const NO_PASSWORD: Refused = said(
    "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration \
     is correct?",
);
pub const NO_PROTOCOL: Refused = said("NOPROTO unsupported protocol version");
pub const PROTOCOL_NUMBER: Refused = said("ERR Protocol version is not an integer or out of range");
pub const CLIENT_NAME: Refused = said("ERR Client names cannot contain spaces, newlines or special characters.");
pub const NO_CLIENT: Refused = said("ERR No such client");
pub const CLIENT_ID: Refused = said("ERR client-id should be greater than 0");
pub const BAD_CLIENT_ID: Refused = said("ERR Invalid client ID");
pub const NESTED_MULTI: Refused = said("ERR MULTI calls can not be nested");
pub const WATCH_IN_MULTI: Refused = said("ERR WATCH inside MULTI is not allowed");
pub const EXEC_ALONE: Refused = said("ERR EXEC without MULTI");
pub const DISCARD_ALONE: Refused = said("ERR DISCARD without MULTI");
pub const ABORTED: Refused = said("EXECABORT Transaction discarded because of previous errors.");
pub const NO_COUNTERS: Refused = said("ERR no counters: start the server with kv serve --counters N");
pub const NO_LFU: Refused = said(
    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between \
     policies at runtime LRU and LFU data will take some time to adjust.",
);
pub const LFU: Refused = said(
    "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching between policies \
     at runtime LRU and LFU data will take some time to adjust.",
);

/// What Redis shows of a client's words at most.
const SHOWN: usize = 128;

impl Refused {
    /// What is told, without a line end.
    pub fn text(&self) -> &[u8] {
        &self.0
    }

    /// `parts` together, some of which may come from a client.
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut text = parts.concat();
        text.iter_mut().filter(|byte| matches!(byte, b'\r' | b'\n')).for_each(|byte| *byte = b' ');
        Refused(Cow::Owned(text))
    }

    /// The number of arguments is not what the command called `name` takes.
    pub fn arity(name: &str) -> Self {
        Refused::of(&[b"ERR wrong number of arguments for '", name.as_bytes(), b"' command"])
    }

    /// There is no such command.
    pub fn unknown(args: Args<'_>) -> Self {
        let name = args.beginning(0, SHOWN);
        let mut text = [&b"ERR unknown command '"[..], shown(&name), b"', with args beginning with: "].concat();
        let start = text.len();
        for at in 1..args.len() {
            let Some(left) = SHOWN.checked_sub(text.len() - start).filter(|left| *left > 0) else { break };
            text.push(b'\'');
            text.extend_from_slice(shown(&args.beginning(at, left)));
            text.extend_from_slice(b"' ");
        }
        Refused::of(&[&text])
    }

    /// The command called `parent` has no such part.
    pub fn unknown_part(parent: &str, name: &[u8]) -> Self {
        let parent = parent.to_ascii_uppercase();
        Refused::of(&[
            b"ERR unknown subcommand '",
            shown(&name[..name.len().min(SHOWN)]),
            b"'. Try ",
            parent.as_bytes(),
            b" HELP.",
        ])
    }

    /// The time that the command called `name` was given is none.
    pub fn expire_time(name: &str) -> Self {
        Refused::of(&[b"ERR invalid expire time in '", name.as_bytes(), b"' command"])
    }

    /// An option is followed by what does not belong there.
    pub fn hello_option(option: &[u8]) -> Self {
        Refused::of(&[b"ERR Syntax error in HELLO option '", shown(option), b"'"])
    }
}

/// A string ends at a zero for Redis.
fn shown(word: &[u8]) -> &[u8] {
    let end = word.iter().position(|byte| *byte == 0).unwrap_or(word.len());
    &word[..end]
}

impl From<store::Error> for Refused {
    fn from(error: store::Error) -> Self {
        Refused::of(&[error.to_string().as_bytes()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::OwnedArgs;

    fn unknown(words: &[&str]) -> String {
        let args: OwnedArgs = words.iter().map(|word| word.as_bytes()).collect();
        Refused::unknown(args.args()).text().escape_ascii().to_string()
    }

    #[test]
    fn what_is_unknown_is_shown_in_part() {
        assert_eq!(unknown(&["foo"]), r"ERR unknown command \'foo\', with args beginning with: ");
        assert_eq!(
            unknown(&["f", "a\r\nb", "c\0d"]),
            r"ERR unknown command \'f\', with args beginning with: \'a  b\' \'c\' "
        );
        let long = "x".repeat(200);
        let shown = "x".repeat(128);
        assert_eq!(unknown(&[&long]), format!(r"ERR unknown command \'{shown}\', with args beginning with: "));
        assert_eq!(
            unknown(&["f", "a", &long, "b"]),
            format!(r"ERR unknown command \'f\', with args beginning with: \'a\' \'{}\' ", &shown[4..])
        );
    }
}
