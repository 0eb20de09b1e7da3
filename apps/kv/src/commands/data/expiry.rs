//! Commands on expiry times.

use crate::commands::error::{CommandError, CommandResult, GT_AND_LT, NX_AND};
use crate::commands::options::{Unit, expiry, integer};
use crate::commands::{Context, Request};
use crate::resp::{Args, Reply};

pub fn expire(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    set(Unit::EX, "expire", cx, request, reply)
}

pub fn pexpire(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    set(Unit::PX, "pexpire", cx, request, reply)
}

pub fn expireat(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    set(Unit::EXAT, "expireat", cx, request, reply)
}

pub fn pexpireat(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    set(Unit::PXAT, "pexpireat", cx, request, reply)
}

/// Condition for a new expiry time (`NX`, `XX`, `GT`, `LT`).
#[derive(Debug, Default, Clone, Copy)]
struct Condition {
    is_never: bool,
    is_some_time: bool,
    is_later: bool,
    is_sooner: bool,
}

impl Condition {
    fn parse(args: Args<'_>) -> Result<Self, CommandError> {
        let mut condition = Condition::default();
        for option in args.iter().skip(3) {
            match &option.to_ascii_lowercase()[..] {
                b"nx" => condition.is_never = true,
                b"xx" => condition.is_some_time = true,
                b"gt" => condition.is_later = true,
                b"lt" => condition.is_sooner = true,
                _ => return Err(CommandError::concat(&[b"ERR Unsupported option ", option])),
            }
        }
        let Condition { is_never, is_some_time, is_later, is_sooner } = condition;
        if is_never && (is_some_time || is_later || is_sooner) {
            return Err(NX_AND);
        }
        if is_later && is_sooner { Err(GT_AND_LT) } else { Ok(condition) }
    }

    /// Returns true if an expiry time `before`, or none, may change to `at`. No expiry counts as later than any time.
    fn is_met(self, before: Option<u64>, at: i64) -> bool {
        let before = before.map(|before| before as i64);
        !(self.is_never && before.is_some()
            || self.is_some_time && before.is_none()
            || self.is_later && before.is_none_or(|before| at <= before)
            || self.is_sooner && before.is_some_and(|before| at >= before))
    }
}

fn set(
    unit: Unit,
    name: &str,
    cx: &mut Context<'_, '_>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let condition = Condition::parse(request.args)?;
    let time = integer(&request.args[2])?;
    let at = unit.to_millis(time, cx).ok_or_else(|| CommandError::expire_time(name))?;
    let key = cx.key(request, 1);
    let store = cx.shards.store(&key);
    let is_met = store.expires_at(&key, cx.now).is_some_and(|before| condition.is_met(before, at));
    if is_met && at <= cx.now as i64 {
        store.remove(&key, cx.now);
    } else if is_met {
        store.set_expiry(&key, Some(expiry(at)), cx.now)?;
    }
    reply.flag(is_met);
    Ok(())
}

pub fn persist(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let store = cx.shards.store(&key);
    let expires = store.expires_at(&key, cx.now).flatten().is_some();
    if expires {
        store.set_expiry(&key, None, cx.now)?;
    }
    reply.flag(expires);
    Ok(())
}

pub fn ttl(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let now = cx.now;
    reply_expiry(cx, request, reply, |at| (at - now + 500) / 1000)
}

pub fn pttl(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let now = cx.now;
    reply_expiry(cx, request, reply, |at| at - now)
}

pub fn expiretime(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let ahead = cx.wall_ahead;
    reply_expiry(cx, request, reply, |at| (at.saturating_add_signed(ahead) + 500) / 1000)
}

pub fn pexpiretime(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let ahead = cx.wall_ahead;
    reply_expiry(cx, request, reply, |at| at.saturating_add_signed(ahead))
}

/// Replies with the expiry time, -1 if the key does not expire, or -2 if it does not exist.
fn reply_expiry(
    cx: &mut Context<'_, '_>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
    convert: impl Fn(u64) -> u64,
) -> CommandResult {
    let key = cx.key(request, 1);
    let found = cx.shards.store(&key).expires_at(&key, cx.now);
    cx.stats.count_lookup(found.is_some());
    reply.integer(match found {
        None => -2,
        Some(None) => -1,
        Some(Some(at)) => convert(at) as i64,
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::commands::testing::{START, TestClient};

    #[test]
    fn key_expires_at_its_time() {
        for mut client in TestClient::each() {
            client.expect("set a 1", "+OK");
            client.expect("ttl a", ":-1");
            client.expect("ttl nosuch", ":-2");
            client.expect("expire nosuch 10", ":0");
            client.expect("expire a 10", ":1");
            client.expect("ttl a", ":10");
            client.expect("pexpire a 1499", ":1");
            client.expect("ttl a", ":1");
            client.expect("pexpiretime a", &format!(":{}", START + 1499));
            client.expect("persist a", ":1");
            client.expect("persist a", ":0");
            let at = START / 1000 + 100;
            client.expect(&format!("expireat a {at}"), ":1");
            client.expect("expiretime a", &format!(":{at}"));
            client.expect(&format!("pexpireat a {}", START + 100), ":1");
            client.wait(99);
            client.expect("exists a", ":1");
            client.wait(1);
            client.expect("exists a", ":0");
        }
    }

    #[test]
    fn expiry_beyond_limit_is_reduced_to_it() {
        for mut client in TestClient::each() {
            client.expect("set a 1 pxat 9223372036854775807", "+OK");
            client.expect("pexpiretime a", ":281474976710655");
        }
    }

    #[test]
    fn absolute_times_follow_the_wall_clock_and_relative_times_do_not() {
        const STEP: i64 = 3_600_000;
        for mut client in TestClient::each() {
            client.expect("set relative 1 ex 10", "+OK");
            for ahead in [STEP, 0, -STEP] {
                client.set_wall_ahead(ahead);
                let at = START.saturating_add_signed(ahead) + 5000;
                client.expect("time", &format!("*2 $10 {} $1 0", (at - 5000) / 1000));
                client.expect("ttl relative", ":10");
                client.expect("pexpiretime relative", &format!(":{}", at + 5000));
                client.expect(&format!("set a 1 pxat {at}"), "+OK");
                client.expect("pttl a", ":5000");
                client.expect(&format!("expireat a {}", at / 1000), ":1");
                client.expect("pttl a", ":5000");
                client.expect("expiretime a", &format!(":{}", at / 1000));
                client.expect(&format!("getex a exat {}", at / 1000), "$1 1");
                client.expect("pttl a", ":5000");
                client.expect(&format!("pexpireat a {}", at - 5000), ":1");
                client.expect("exists a", ":0");
                client.expect("set a 1 pxat 5", "+OK");
                client.expect("exists a", ":0");
            }
        }
    }
}
