//! `SLOWLOG` commands.

use crate::commands::error::{CommandResult, SLOW_COUNT};
use crate::commands::options::integer;
use crate::commands::{Context, Request, Session};
use crate::resp::{Args, Reply};
use crate::store::Value;

/// Limit of arguments in an entry, as in Redis (`SLOWLOG_ENTRY_MAX_ARGC`).
const ARGS: usize = 32;
/// Limit of an argument's bytes in an entry, as in Redis (`SLOWLOG_ENTRY_MAX_STRING`).
const BYTES: usize = 128;
/// Default number of entries that `SLOWLOG GET` returns.
const USUAL: usize = 10;
/// Commands whose arguments may contain passwords.
const SECRET: [&str; 3] = ["auth", "hello", "config|set"];

/// Entry of the slow log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlowRequest {
    /// Number of the entry, higher than those of all entries before it.
    pub id: u64,
    /// Time of the request, in seconds since 1970.
    pub time: u64,
    /// Microseconds for which the request occupied its worker.
    pub micros: u64,
    /// Command and arguments, shortened.
    pub args: Vec<Vec<u8>>,
    pub peer: String,
    pub name: Vec<u8>,
}

impl Request<'_> {
    /// Returns true if the run time depends on the size of the data or on many arguments.
    pub fn may_take_long(&self) -> bool {
        /// Numbers of arguments and bytes that take far less than a millisecond.
        const FEW: usize = 64;
        const SHORT: usize = 64 << 10;
        let depends_on_size = self.command().is_some_and(|command| command.depends_on_size());
        depends_on_size || self.args.len() > FEW || self.args.len_of_text() > SHORT
    }

    /// Returns an entry of the slow log without a number.
    pub fn slow(&self, session: &Session, micros: u64, now: u64) -> SlowRequest {
        let is_secret = self.command().is_some_and(|command| SECRET.contains(&command.name));
        SlowRequest {
            id: 0,
            time: now / 1000,
            micros,
            args: shortened(self.args, is_secret),
            peer: session.peer.to_string(),
            name: session.name.clone(),
        }
    }
}

/// Returns the arguments as Redis logs them. Secret arguments are replaced.
fn shortened(args: Args<'_>, is_secret: bool) -> Vec<Vec<u8>> {
    let shown = if args.len() > ARGS { ARGS - 1 } else { args.len() };
    let mut short: Vec<Vec<u8>> = (0..shown)
        .map(|at| {
            if is_secret && at > 0 {
                return b"(redacted)".to_vec();
            }
            let len = match args.value(at) {
                Value::Short(bytes) => bytes.len(),
                Value::Long(long) => long.len(),
            };
            let mut arg = args.prefix(at, BYTES);
            if len > BYTES {
                arg.extend(format!("... ({} more bytes)", len - BYTES).bytes());
            }
            arg
        })
        .collect();
    if args.len() > shown {
        short.push(format!("... ({} more arguments)", args.len() - shown).into_bytes());
    }
    short
}

pub fn get(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let count = match request.args.get(2) {
        None => USUAL,
        Some(_) if request.args.len() > 3 => return Err(request.arity()),
        Some(count) => match integer(count).map_err(|_| SLOW_COUNT)? {
            -1 => usize::MAX,
            count => usize::try_from(count).map_err(|_| SLOW_COUNT)?,
        },
    };
    let mut entries = cx.server.slow_log();
    entries.truncate(count);
    reply.array(entries.len());
    for SlowRequest { id, time, micros, args, peer, name } in &entries {
        reply.array(6);
        [id, time, micros].into_iter().for_each(|number| reply.integer(*number as i64));
        reply.array(args.len());
        args.iter().for_each(|arg| reply.bulk(arg));
        reply.bulk(peer.as_bytes());
        reply.bulk(name);
    }
    Ok(())
}

pub fn len(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    reply.count(cx.server.slow_log().len());
    Ok(())
}

pub fn reset(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    cx.server.reset_slow_log();
    reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::TestClient;
    use crate::resp::OwnedArgs;

    fn short(args: &[&[u8]], is_secret: bool) -> Vec<String> {
        let owned: OwnedArgs = args.iter().copied().collect();
        shortened(owned.args(), is_secret).into_iter().map(|arg| String::from_utf8(arg).unwrap()).collect()
    }

    #[test]
    fn slowlog_lists_and_resets_entries() {
        for mut client in TestClient::each() {
            client.expect("slowlog get", "*0");
            let args = vec![b"keys".to_vec(), b"*".to_vec()];
            let entry = |id| SlowRequest {
                id,
                time: 1_700_000_000,
                micros: 12_345,
                args: args.clone(),
                peer: "192.0.2.1:1000".to_owned(),
                name: b"me".to_vec(),
            };
            client.server.slow = (0..12).rev().map(entry).collect();
            let shown = "*6 :11 :1700000000 :12345 *2 $4 keys $1 * $14 192.0.2.1:1000 $2 me";
            client.expect("slowlog get 1", &format!("*1 {shown}"));
            assert!(client.run("slowlog get").starts_with(&format!("*10 {shown} ")));
            assert!(client.run("slowlog get -1").starts_with("*12 "));
            for wrong in ["-2", "x"] {
                client.expect(&format!("slowlog get {wrong}"), "-ERR count should be greater than or equal to -1");
            }
            client.expect("slowlog get 1 2", "-ERR wrong number of arguments for 'slowlog|get' command");
            client.expect("slowlog len", ":12");
            client.expect("slowlog reset", "+OK");
            client.expect("slowlog len", ":0");
            client.expect("config set slowlog-log-slower-than -1 slowlog-max-len 3", "+OK");
            let shown = "*4 $23 slowlog-log-slower-than $2 -1 $15 slowlog-max-len $1 3";
            client.expect("config get slowlog-*", shown);
        }
    }

    #[test]
    fn arguments_are_shortened_as_in_redis() {
        let long = [b'x'; 200];
        assert_eq!(short(&[b"get", &long[..128]], false), ["get".to_owned(), "x".repeat(128)]);
        assert_eq!(short(&[b"get", &long], false)[1], format!("{}... (72 more bytes)", "x".repeat(128)));
        assert_eq!(short(&[&b"a"[..]; 32], false), ["a"; 32]);
        let many = short(&[&b"a"[..]; 40], false);
        assert_eq!((many.len(), many[31].as_str()), (32, "... (9 more arguments)"));
        assert_eq!(short(&[b"auth", b"secret"], true), ["auth", "(redacted)"]);
    }
}
