//! When keys expire.

use crate::commands::error::{Done, GT_AND_LT, NX_AND, Refused};
use crate::commands::options::{Unit, expiry, integer};
use crate::commands::{Context, Request};
use crate::resp::{Args, Reply};

pub(in crate::commands) fn expire(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    set(Unit::EX, "expire", cx, request, reply)
}

pub(in crate::commands) fn pexpire(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    set(Unit::PX, "pexpire", cx, request, reply)
}

pub(in crate::commands) fn expireat(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    set(Unit::EXAT, "expireat", cx, request, reply)
}

pub(in crate::commands) fn pexpireat(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    set(Unit::PXAT, "pexpireat", cx, request, reply)
}

/// Under which condition a key gets another time.
#[derive(Debug, Default, Clone, Copy)]
struct Condition {
    is_never: bool,
    is_some_time: bool,
    is_later: bool,
    is_sooner: bool,
}

impl Condition {
    fn parse(args: Args<'_>) -> Result<Self, Refused> {
        let mut condition = Condition::default();
        for option in args.iter().skip(3) {
            match &option.to_ascii_lowercase()[..] {
                b"nx" => condition.is_never = true,
                b"xx" => condition.is_some_time = true,
                b"gt" => condition.is_later = true,
                b"lt" => condition.is_sooner = true,
                _ => return Err(Refused::of(&[b"ERR Unsupported option ", option])),
            }
        }
        let Condition { is_never, is_some_time, is_later, is_sooner } = condition;
        if is_never && (is_some_time || is_later || is_sooner) {
            return Err(NX_AND);
        }
        if is_later && is_sooner { Err(GT_AND_LT) } else { Ok(condition) }
    }

    /// Whether what expires at `before`, or never, may expire at `at`. Never is later than any time.
    fn is_met(self, before: Option<u64>, at: i64) -> bool {
        let before = before.map(|before| before as i64);
        !(self.is_never && before.is_some()
            || self.is_some_time && before.is_none()
            || self.is_later && before.is_none_or(|before| at <= before)
            || self.is_sooner && before.is_some_and(|before| at >= before))
    }
}

fn set(unit: Unit, name: &str, cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let condition = Condition::parse(request.args)?;
    let time = integer(&request.args[2])?;
    let at = unit.to_millis(time, cx.now).ok_or_else(|| Refused::expire_time(name))?;
    let key = cx.key(request, 1);
    let store = cx.shards.of(&key);
    let is_met = store.expires_at(&key, cx.now).is_some_and(|before| condition.is_met(before, at));
    if is_met && at <= cx.now as i64 {
        store.remove(&key, cx.now);
    } else if is_met {
        store.set_expiry(&key, Some(expiry(at)), cx.now)?;
    }
    reply.flag(is_met);
    Ok(())
}

pub(in crate::commands) fn persist(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    let store = cx.shards.of(&key);
    let expires = store.expires_at(&key, cx.now).flatten().is_some();
    if expires {
        store.set_expiry(&key, None, cx.now)?;
    }
    reply.flag(expires);
    Ok(())
}

pub(in crate::commands) fn ttl(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let now = cx.now;
    tell(cx, request, reply, |at| (at - now + 500) / 1000)
}

pub(in crate::commands) fn pttl(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let now = cx.now;
    tell(cx, request, reply, |at| at - now)
}

pub(in crate::commands) fn expiretime(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    tell(cx, request, reply, |at| (at + 500) / 1000)
}

pub(in crate::commands) fn pexpiretime(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    tell(cx, request, reply, |at| at)
}

/// Replies with when the key expires; `-1` is never, `-2` is no key.
fn tell(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>, as_told: impl Fn(u64) -> u64) -> Done {
    let key = cx.key(request, 1);
    let found = cx.shards.of(&key).expires_at(&key, cx.now);
    cx.looked(found.is_some());
    reply.integer(match found {
        None => -2,
        Some(None) => -1,
        Some(Some(at)) => as_told(at) as i64,
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::commands::testing::{Client, START};

    #[test]
    fn a_key_expires_when_it_was_told_to() {
        for mut client in Client::each() {
            client.says("set a 1", "+OK");
            client.says("ttl a", ":-1");
            client.says("ttl nosuch", ":-2");
            client.says("expire nosuch 10", ":0");
            client.says("expire a 10", ":1");
            client.says("ttl a", ":10");
            client.says("pexpire a 1499", ":1");
            client.says("ttl a", ":1");
            client.says("pexpiretime a", &format!(":{}", START + 1499));
            client.says("persist a", ":1");
            client.says("persist a", ":0");
            let at = START / 1000 + 100;
            client.says(&format!("expireat a {at}"), ":1");
            client.says("expiretime a", &format!(":{at}"));
            client.says(&format!("pexpireat a {}", START + 100), ":1");
            client.wait(99);
            client.says("exists a", ":1");
            client.wait(1);
            client.says("exists a", ":0");
        }
    }

    #[test]
    fn a_time_that_is_over_takes_the_key_at_once() {
        for mut client in Client::each() {
            for command in ["expire a -1", "expire a 0", "pexpire a -5", "expireat a 1", "pexpireat a -9"] {
                client.says("set a 1", "+OK");
                client.says(command, ":1");
                client.says("exists a", ":0");
            }
            client.says("expire a 9223372036854775807", "-ERR invalid expire time in 'expire' command");
            client.says("expire a -9223372036854775807", "-ERR invalid expire time in 'expire' command");
            client.says("pexpire a 9223372036854775807", "-ERR invalid expire time in 'pexpire' command");
            client.says("expire a x", "-ERR value is not an integer or out of range");
        }
    }

    #[test]
    fn another_time_may_have_a_condition() {
        for mut client in Client::each() {
            client.says("set a 1", "+OK");
            client.says("expire a 100 xx", ":0");
            client.says("expire a 100 gt", ":0");
            client.says("expire a 100 lt", ":1");
            client.says("expire a 200 nx", ":0");
            client.says("expire a 200 lt", ":0");
            client.says("expire a 200 gt xx", ":1");
            client.says("expire a 200 gt", ":0");
            client.says("ttl a", ":200");
            client.says("expire a 1 nx gt", "-ERR NX and XX, GT or LT options at the same time are not compatible");
            client.says("expire a 1 gt lt", "-ERR GT and LT options at the same time are not compatible");
            client.says("expire a 1 foo", "-ERR Unsupported option foo");
        }
    }

    #[test]
    fn the_last_time_that_is_kept_is_far_away() {
        for mut client in Client::each() {
            client.says("set a 1 pxat 9223372036854775807", "+OK");
            client.says("pexpiretime a", ":281474976710655");
        }
    }
}
