//! Commands that can be split into their keys, each of which runs in its own shard.

use crate::commands::{Command, Session, Stats, table};
use crate::resp::Args;

/// Command that is split into its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scatter {
    /// `MGET`: array of the values.
    Values,
    /// `EXISTS`: number of keys that exist.
    Exists,
    /// `TOUCH`: number of keys that exist.
    Touch,
    /// `DEL` and `UNLINK`: number of removed keys.
    Remove,
}

impl Scatter {
    /// Returns the command of a request with several keys, if it can be split into them.
    #[inline]
    pub fn split(args: Args<'_>) -> Option<Self> {
        if args.len() < 3 {
            return None;
        }
        let name = args.at(0);
        let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
        match name.len() {
            3 if is(b"del") => Some(Scatter::Remove),
            4 if is(b"mget") => Some(Scatter::Values),
            5 if is(b"touch") => Some(Scatter::Touch),
            6 if is(b"exists") => Some(Scatter::Exists),
            6 if is(b"unlink") => Some(Scatter::Remove),
            _ => None,
        }
    }

    /// Counts the request `args` of `session`, which does not run as a whole.
    pub fn note(args: Args<'_>, session: &mut Session, stats: &mut Stats, now: u64) {
        stats.commands += 1;
        session.used = now;
        session.last = table::find(args).ok();
        session.last.and_then(Command::command_type).into_iter().for_each(|of| stats.count_type(of));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::OwnedArgs;

    #[test]
    fn commands_with_several_keys_are_found_in_any_case() {
        let of = |words: &str| Scatter::split(words.split(' ').map(str::as_bytes).collect::<OwnedArgs>().args());
        assert_eq!(of("MGET a b"), Some(Scatter::Values));
        assert_eq!((of("del a b"), of("unLink a b")), (Some(Scatter::Remove), Some(Scatter::Remove)));
        assert_eq!((of("exists a b"), of("TOUCH a b c")), (Some(Scatter::Exists), Some(Scatter::Touch)));
        for words in ["del a", "mget", "mget a", "mset a b", "getex a b", "append a b", "nothing a b"] {
            assert_eq!(of(words), None, "{words}");
        }
    }
}
