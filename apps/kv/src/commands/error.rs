//! Errors of commands, in the words of Redis: clients match on them.

use crate::resp::Args;
use crate::store;
use std::borrow::Cow;

/// Error reply of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandError(Cow<'static, [u8]>);

/// Result of a command handler. On success the handler has replied, on error the caller does.
pub type CommandResult = Result<(), CommandError>;

const fn error(text: &'static str) -> CommandError {
    CommandError(Cow::Borrowed(text.as_bytes()))
}

pub const SYNTAX: CommandError = error("ERR syntax error");
pub const NO_INTEGER: CommandError = error("ERR value is not an integer or out of range");
pub const NO_INT: CommandError = error("ERR value is out of range, value must between -2147483648 and 2147483647");
pub const NO_FLOAT: CommandError = error("ERR value is not a valid float");
pub const NOT_FINITE: CommandError = error("ERR increment would produce NaN or Infinity");
pub const OVERFLOW: CommandError = error("ERR increment or decrement would overflow");
pub const DECREMENT: CommandError = error("ERR decrement would overflow");
pub const HASH_INTEGER: CommandError = error("ERR hash value is not an integer");
pub const BIT: CommandError = error("ERR bit is not an integer or out of range");
pub const BIT_OFFSET: CommandError = error("ERR bit offset is not an integer or out of range");
pub const BIT_ARGUMENT: CommandError = error("ERR The bit argument must be 1 or 0.");
pub const BITOP_NOT: CommandError = error("ERR BITOP NOT must be called with a single source key.");
pub const BITFIELD_TYPE: CommandError =
    error("ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.");
pub const BITFIELD_OVERFLOW: CommandError = error("ERR Invalid OVERFLOW type specified");
pub const BITFIELD_READ_ONLY: CommandError = error("ERR BITFIELD_RO only supports the GET subcommand");
pub const FUNCTION_FLUSH: CommandError = error("ERR FUNCTION FLUSH only supports SYNC|ASYNC option");
pub const SCRIPT_FLUSH: CommandError = error("ERR SCRIPT FLUSH only support SYNC|ASYNC option");
pub const LIBRARY_NAME: CommandError = error("ERR library name argument was not given");
pub const OFFSET: CommandError = error("ERR offset is out of range");
pub const TOO_LONG: CommandError = error("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
pub const DATABASE: CommandError = error("ERR DB index is out of range");
pub const SELECT_IN_CLUSTER: CommandError = error("ERR SELECT is not allowed in cluster mode");
pub const COPY_IN_CLUSTER: CommandError = error("ERR Copying to another database is not allowed in cluster mode");
pub const NO_CLUSTER: CommandError = error("ERR This instance has cluster support disabled");
pub const CROSS_SLOT: CommandError = error("CROSSSLOT Keys in request don't hash to the same slot");
pub const SLOT: CommandError = error("ERR Invalid slot");
pub const SLOT_OR_COUNT: CommandError = error("ERR Invalid slot or number of keys");
pub const NO_KEY: CommandError = error("ERR no such key");
pub const SAME_KEY: CommandError = error("ERR source and destination objects are the same");
pub const CURSOR: CommandError = error("ERR invalid cursor");
pub const SLOW_COUNT: CommandError = error("ERR count should be greater than or equal to -1");
pub const LONG_PATTERN: CommandError = error("ERR pattern is too long: 256 bytes at most");
pub const NX_AND: CommandError = error("ERR NX and XX, GT or LT options at the same time are not compatible");
pub const GT_AND_LT: CommandError = error("ERR GT and LT options at the same time are not compatible");
pub const NO_AUTH: CommandError = error("NOAUTH Authentication required.");
pub const NO_AUTH_FOR_HELLO: CommandError = error(
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> option \
     can be used to authenticate the client and select the RESP protocol version at the same time",
);
pub const WRONG_PASSWORD: CommandError = error("WRONGPASS invalid username-password pair or user is disabled.");
pub const NO_PASSWORD: CommandError = error(
    "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration \
     is correct?",
);
pub const NO_PROTOCOL: CommandError = error("NOPROTO unsupported protocol version");
pub const PROTOCOL_NUMBER: CommandError = error("ERR Protocol version is not an integer or out of range");
pub const NO_CLIENT: CommandError = error("ERR No such client");
pub const CLIENT_ID: CommandError = error("ERR client-id should be greater than 0");
pub const BAD_CLIENT_ID: CommandError = error("ERR Invalid client ID");
pub const PAUSE_INTEGER: CommandError = error("ERR timeout is not an integer or out of range");
pub const PAUSE_NEGATIVE: CommandError = error("ERR timeout is negative");
pub const PAUSE_MODE: CommandError = error("ERR CLIENT PAUSE mode must be WRITE or ALL");
pub const NESTED_MULTI: CommandError = error("ERR MULTI calls can not be nested");
pub const WATCH_IN_MULTI: CommandError = error("ERR WATCH inside MULTI is not allowed");
pub const EXEC_ALONE: CommandError = error("ERR EXEC without MULTI");
pub const DISCARD_ALONE: CommandError = error("ERR DISCARD without MULTI");
pub const ABORTED: CommandError = error("EXECABORT Transaction discarded because of previous errors.");
pub const NO_COUNTERS: CommandError = error("ERR no counters: start the server with kv serve --counters N");
pub const NO_LFU: CommandError = error(
    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between \
     policies at runtime LRU and LFU data will take some time to adjust.",
);
pub const LFU: CommandError = error(
    "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching between policies \
     at runtime LRU and LFU data will take some time to adjust.",
);

/// Limit of the client's words shown in an error, as in Redis.
const MAX_SHOWN: usize = 128;

impl CommandError {
    /// Returns the text without line end.
    pub fn text(&self) -> &[u8] {
        &self.0
    }

    /// Creates an error from `parts`, which may contain bytes from a client.
    pub fn concat(parts: &[&[u8]]) -> Self {
        let mut text = parts.concat();
        text.iter_mut().filter(|byte| matches!(byte, b'\r' | b'\n')).for_each(|byte| *byte = b' ');
        CommandError(Cow::Owned(text))
    }

    pub fn arity(name: &str) -> Self {
        CommandError::concat(&[b"ERR wrong number of arguments for '", name.as_bytes(), b"' command"])
    }

    pub fn unknown(args: Args<'_>) -> Self {
        let name = args.prefix(0, MAX_SHOWN);
        let mut text = [&b"ERR unknown command '"[..], until_nul(&name), b"', with args beginning with: "].concat();
        let start = text.len();
        for at in 1..args.len() {
            let Some(left) = MAX_SHOWN.checked_sub(text.len() - start).filter(|left| *left > 0) else { break };
            text.push(b'\'');
            text.extend_from_slice(until_nul(&args.prefix(at, left)));
            text.extend_from_slice(b"' ");
        }
        CommandError::concat(&[&text])
    }

    pub fn unknown_subcommand(parent: &str, name: &[u8]) -> Self {
        let parent = parent.to_ascii_uppercase();
        CommandError::concat(&[
            b"ERR unknown subcommand '",
            until_nul(&name[..name.len().min(MAX_SHOWN)]),
            b"'. Try ",
            parent.as_bytes(),
            b" HELP.",
        ])
    }

    pub fn expire_time(name: &str) -> Self {
        CommandError::concat(&[b"ERR invalid expire time in '", name.as_bytes(), b"' command"])
    }

    pub fn hello_option(option: &[u8]) -> Self {
        CommandError::concat(&[b"ERR Syntax error in HELLO option '", until_nul(option), b"'"])
    }
}

/// Returns `word` up to a NUL byte, which ends a string in Redis.
fn until_nul(word: &[u8]) -> &[u8] {
    let end = word.iter().position(|byte| *byte == 0).unwrap_or(word.len());
    &word[..end]
}

impl From<store::Error> for CommandError {
    fn from(error: store::Error) -> Self {
        CommandError::concat(&[error.to_string().as_bytes()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::OwnedArgs;

    fn unknown(words: &[&str]) -> String {
        let args: OwnedArgs = words.iter().map(|word| word.as_bytes()).collect();
        CommandError::unknown(args.args()).text().escape_ascii().to_string()
    }

    #[test]
    fn unknown_command_is_quoted_up_to_limit() {
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
