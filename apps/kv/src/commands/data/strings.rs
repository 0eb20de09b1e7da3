//! Strings.

use crate::commands::error::{Done, OFFSET, Refused, TOO_LONG};
use crate::commands::options::{Of, Options, Unit, expiry, integer, millis};
use crate::commands::{Context, Request};
use crate::resp::Reply;
use crate::store::{Expiry, Long, Str};

pub(in crate::commands) fn get(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    match cx.shards.of(&key).get(&key, cx.now)? {
        Some(value) => {
            cx.stats.hits += 1;
            reply.value(&value);
        }
        None => {
            cx.stats.misses += 1;
            reply.null();
        }
    }
    Ok(())
}

pub(in crate::commands) fn set(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    let value = request.args.value(2);
    if request.args.len() == 3 {
        cx.shards.of(&key).set(&key, value, Expiry::Never, cx.now)?;
        reply.ok();
        return Ok(());
    }
    let options = Options::parse(request.args, 3, Of::Set)?;
    let (expiry, _) = options.expiry("set", cx.now)?;
    let store = cx.shards.of(&key);
    let old = if options.get { Some(Old::of(store.get(&key, cx.now)?)) } else { None };
    let is_there = (options.if_new || options.if_there) && store.exists(&key, cx.now);
    let is_wanted = !(options.if_new && is_there || options.if_there && !is_there);
    if is_wanted {
        store.set(&key, value, expiry, cx.now)?;
    }
    match old {
        Some(old) => old.reply(cx, reply),
        None if is_wanted => reply.ok(),
        None => reply.null(),
    }
    Ok(())
}

/// A value that is replied once another is in its place.
enum Old {
    None,
    Short(Vec<u8>),
    Long(Long),
}

impl Old {
    fn of(value: Option<Str<'_>>) -> Self {
        match value {
            None => Old::None,
            Some(Str::Short(bytes)) => Old::Short(bytes.to_vec()),
            Some(Str::Long(long)) => Old::Long(long.clone()),
        }
    }

    fn reply(&self, cx: &mut Context<'_, '_>, reply: &mut Reply<'_>) {
        cx.looked(!matches!(self, Old::None));
        match self {
            Old::None => reply.null(),
            Old::Short(bytes) => reply.bulk(bytes),
            Old::Long(long) => reply.value(&Str::Long(long)),
        }
    }
}

pub(in crate::commands) fn setnx(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    let store = cx.shards.of(&key);
    let is_new = !store.exists(&key, cx.now);
    if is_new {
        store.set(&key, request.args.value(2), Expiry::Never, cx.now)?;
    }
    reply.flag(is_new);
    Ok(())
}

pub(in crate::commands) fn setex(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    set_for(Unit::EX, "setex", cx, request, reply)
}

pub(in crate::commands) fn psetex(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    set_for(Unit::PX, "psetex", cx, request, reply)
}

fn set_for(unit: Unit, name: &str, cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    let millis = millis(&request.args[2], unit, name, cx.now)?;
    cx.shards.of(&key).set(&key, request.args.value(3), Expiry::At(expiry(millis)), cx.now)?;
    reply.ok();
    Ok(())
}

pub(in crate::commands) fn getset(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    let store = cx.shards.of(&key);
    let old = Old::of(store.get(&key, cx.now)?);
    store.set(&key, request.args.value(2), Expiry::Never, cx.now)?;
    old.reply(cx, reply);
    Ok(())
}

pub(in crate::commands) fn getdel(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    let store = cx.shards.of(&key);
    let value = store.get(&key, cx.now)?;
    let is_there = value.is_some();
    match value {
        Some(value) => reply.value(&value),
        None => reply.null(),
    }
    store.remove(&key, cx.now);
    cx.looked(is_there);
    Ok(())
}

pub(in crate::commands) fn getex(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    let options = Options::parse(request.args, 2, Of::Getex)?;
    let store = cx.shards.of(&key);
    if store.get(&key, cx.now)?.is_none() {
        cx.looked(false);
        reply.null();
        return Ok(());
    }
    // Only whoever is there has a time that may be wrong.
    let (_, at) = options.expiry("getex", cx.now)?;
    let is_over = at.is_some_and(|at| at <= cx.now as i64);
    if !is_over && (at.is_some() || options.persist) {
        store.set_expiry(&key, at.map(expiry), cx.now)?;
    }
    if let Some(value) = store.peek(&key, cx.now)? {
        reply.value(&value);
    }
    if is_over {
        store.remove(&key, cx.now);
    }
    cx.looked(true);
    Ok(())
}

pub(in crate::commands) fn mget(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    reply.array(request.args.len() - 1);
    for at in 1..request.args.len() {
        let key = cx.key(request, at);
        // What is no string is no value here, and no error.
        let value = cx.shards.of(&key).get(&key, cx.now).ok().flatten();
        match &value {
            Some(value) => reply.value(value),
            None => reply.null(),
        }
        let is_there = value.is_some();
        cx.looked(is_there);
    }
    Ok(())
}

pub(in crate::commands) fn mset(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    set_all(cx, request)?;
    reply.ok();
    Ok(())
}

pub(in crate::commands) fn msetnx(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    if request.args.len().is_multiple_of(2) {
        return Err(request.arity());
    }
    let is_any_there = (1..request.args.len()).step_by(2).any(|at| {
        let key = cx.key(request, at);
        cx.shards.of(&key).exists(&key, cx.now)
    });
    if !is_any_there {
        set_all(cx, request)?;
    }
    reply.flag(!is_any_there);
    Ok(())
}

fn set_all(cx: &mut Context<'_, '_>, request: &Request<'_>) -> Done {
    if request.args.len().is_multiple_of(2) {
        return Err(request.arity());
    }
    // All or none: whoever is refused, is before the first.
    let (now, is_shared) = (cx.now, cx.shards.count() > 1);
    for store in cx.shards.all() {
        store.make_room_for(request.sizes(1, is_shared), now)?;
    }
    for at in (1..request.args.len()).step_by(2) {
        let key = cx.key(request, at);
        cx.shards.of(&key).set(&key, request.args.value(at + 1), Expiry::Never, cx.now)?;
    }
    Ok(())
}

/// A string may become no longer than an argument.
fn check_len(cx: &Context<'_, '_>, len: u64) -> Result<(), Refused> {
    if len > cx.server.settings().bulk { Err(TOO_LONG) } else { Ok(()) }
}

pub(in crate::commands) fn append(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    let more = &request.args[2];
    if let Some(old) = cx.shards.of(&key).peek(&key, cx.now)? {
        let len = old.len() + more.len();
        check_len(cx, len as u64)?;
    }
    let len = cx.shards.of(&key).append(&key, more, cx.now)?;
    reply.count(len);
    Ok(())
}

pub(in crate::commands) fn setrange(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    let at = integer(&request.args[2])?;
    let at = u64::try_from(at).map_err(|_| OFFSET)?;
    let bytes = &request.args[3];
    if bytes.is_empty() {
        // Nothing is written, not even what lies between.
        let len = cx.shards.of(&key).peek(&key, cx.now)?.map_or(0, |value| value.len());
        reply.count(len);
        return Ok(());
    }
    // What is no string is refused first.
    cx.shards.of(&key).peek(&key, cx.now)?;
    check_len(cx, at.saturating_add(bytes.len() as u64))?;
    let len = cx.shards.of(&key).set_range(&key, at as usize, bytes, cx.now)?;
    reply.count(len);
    Ok(())
}

pub(in crate::commands) fn strlen(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    let len = cx.shards.of(&key).get(&key, cx.now)?.map(|value| value.len());
    cx.looked(len.is_some());
    reply.count(len.unwrap_or(0));
    Ok(())
}

pub(in crate::commands) fn getrange(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    let (start, end) = (integer(&request.args[2])?, integer(&request.args[3])?);
    let value = cx.shards.of(&key).get(&key, cx.now)?;
    let is_there = value.is_some();
    match value {
        Some(value) => {
            let range = range(start, end, value.len());
            reply.part(&value, range);
        }
        None => reply.bulk(b""),
    }
    cx.looked(is_there);
    Ok(())
}

/// What lies from `start` to `end`, inclusively, of `len` bytes; what is negative counts from the end.
fn range(start: i64, end: i64, len: usize) -> std::ops::Range<usize> {
    let from_end = |at: i64| if at < 0 { at.saturating_add(len as i64).max(0) } else { at };
    if start < 0 && end < 0 && start > end {
        return 0..0;
    }
    let (start, end) = (from_end(start) as usize, (from_end(end) as usize).saturating_add(1).min(len));
    if start < end { start..end } else { 0..0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::Client;

    #[test]
    fn ranges_count_from_both_ends() {
        for (start, end, expected) in [
            (0, 3, 0..4),
            (-3, -1, 4..7),
            (0, -1, 0..7),
            (5, 100, 5..7),
            (7, 9, 0..0),
            (3, 2, 0..0),
            (-1, -3, 0..0),
            (-100, 1, 0..2),
            (i64::MIN, i64::MAX, 0..7),
            (i64::MIN, i64::MIN, 0..1),
        ] {
            assert_eq!(range(start, end, 7), expected, "{start} {end}");
        }
        assert_eq!(range(0, -1, 0), 0..0);
    }

    #[test]
    fn a_string_is_set_under_conditions_and_for_a_time() {
        for mut client in Client::each() {
            client.says("set a 1", "+OK");
            client.says("set a 2 nx", "$-1");
            client.says("set b 2 xx", "$-1");
            client.says("set a 3 xx get", "$1 1");
            client.says("set c 3 nx get", "$-1");
            client.says("get c", "$1 3");
            client.says("set a 4 px 1500", "+OK");
            client.says("set a 5 keepttl", "+OK");
            client.says("pttl a", ":1500");
            client.says("set a 6", "+OK");
            client.says("pttl a", ":-1");
            client.says("set a 6 ex 10 px 10", "-ERR syntax error");
            client.says("set a 6 ex 0", "-ERR invalid expire time in 'set' command");
            client.says("set a 6 ex 9223372036854775807", "-ERR invalid expire time in 'set' command");
            client.says("set a 6 ex x", "-ERR value is not an integer or out of range");
            client.says("setex a 2 x", "+OK");
            client.wait(2000);
            client.says("get a", "$-1");
            client.says("psetex a 0 x", "-ERR invalid expire time in 'psetex' command");
        }
    }

    #[test]
    fn a_value_is_returned_and_goes_or_stays() {
        for mut client in Client::each() {
            client.says("getset a 1", "$-1");
            client.says("getset a 2", "$1 1");
            client.says("getex a px 100", "$1 2");
            client.says("pttl a", ":100");
            client.says("getex a persist", "$1 2");
            client.says("pttl a", ":-1");
            client.says("getex a pxat 1", "$1 2");
            client.says("get a", "$-1");
            client.says("set a 3", "+OK");
            client.says("getdel a", "$1 3");
            client.says("getdel a", "$-1");
            client.says("hset h f v", ":1");
            for command in ["get h", "getset h 1", "getdel h", "getex h", "append h x", "strlen h", "set h x get"] {
                client.says(command, "-WRONGTYPE Operation against a key holding the wrong kind of value");
            }
        }
    }

    #[test]
    fn several_of_which_some_have_no_room_are_refused() {
        for mut client in Client::each() {
            client.fill();
            let pairs: Vec<String> = (0..60).map(|n| format!("new{n} {}", "v".repeat(900))).collect();
            for command in ["mset", "msetnx"] {
                let refused = client.run(&format!("{command} {}", pairs.join(" ")));
                assert_eq!(refused, "-OOM command not allowed when used memory > 'maxmemory'.");
                (0..60).for_each(|n| client.says(&format!("exists new{n}"), ":0"));
            }
            client.says(&format!("set new0 {}", "v".repeat(900)), "+OK");
        }
    }

    #[test]
    fn several_are_set_together_or_none() {
        for mut client in Client::each() {
            client.says("mset a 1 b 2 c 3 d 4", "+OK");
            client.says("mget a b nosuch c d", "*5 $1 1 $1 2 $-1 $1 3 $1 4");
            client.says("msetnx e 1 a 2", ":0");
            client.says("get e", "$-1");
            client.says("msetnx e 1 f 2", ":1");
            client.says("mset a 1 b", "-ERR wrong number of arguments for 'mset' command");
            client.says("msetnx a 1 b", "-ERR wrong number of arguments for 'msetnx' command");
        }
    }

    #[test]
    fn parts_are_read_and_written() {
        for mut client in Client::each() {
            client.says("append a Hello", ":5");
            client.says("append a World", ":10");
            client.says("setrange a 5 _", ":10");
            client.says("getrange a 3 -3", "$5 lo_or");
            client.says("setrange a 12 x", ":13");
            client.says("strlen a", ":13");
            client.says("setrange nosuch 3 \"\"", ":0");
            client.says("exists nosuch", ":0");
            client.says("setrange a -1 x", "-ERR offset is out of range");
            client.says("setrange a 536870912 x", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)");
            client.says("getrange nosuch 0 -1", "$0");
        }
    }
}
