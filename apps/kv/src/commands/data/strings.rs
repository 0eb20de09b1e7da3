//! Commands on strings.

use crate::commands::error::{CommandError, CommandResult, OFFSET, TOO_LONG};
use crate::commands::options::{Of, Options, Unit, expiry, integer, millis};
use crate::commands::{Context, Request};
use crate::resp::Reply;
use crate::store::{Expiry, Long, Str};

pub fn get(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let value = cx.shards.store(&key).get(&key, cx.now)?;
    cx.stats.count_lookup(value.is_some());
    reply.optional(value);
    Ok(())
}

pub fn set(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let value = request.args.value(2);
    if request.args.len() == 3 {
        cx.shards.store(&key).set(&key, value, Expiry::Never, cx.now)?;
        reply.ok();
        return Ok(());
    }
    let options = Options::parse(request.args, 3, Of::Set)?;
    let (expiry, _) = options.expiry("set", cx)?;
    let store = cx.shards.store(&key);
    let old = if options.get { Some(Old::new(store.get(&key, cx.now)?)) } else { None };
    let is_there = (options.if_new || options.if_exists) && store.exists(&key, cx.now);
    let is_wanted = !(options.if_new && is_there || options.if_exists && !is_there);
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

/// Replaced value for the reply.
enum Old {
    None,
    Short(Vec<u8>),
    Long(Long),
}

impl Old {
    fn new(value: Option<Str<'_>>) -> Self {
        match value {
            None => Old::None,
            Some(Str::Short(bytes)) => Old::Short(bytes.to_vec()),
            Some(Str::Long(long)) => Old::Long(long.clone()),
        }
    }

    fn reply(&self, cx: &mut Context<'_, '_>, reply: &mut Reply<'_>) {
        cx.stats.count_lookup(!matches!(self, Old::None));
        match self {
            Old::None => reply.null(),
            Old::Short(bytes) => reply.bulk(bytes),
            Old::Long(long) => reply.value(&Str::Long(long)),
        }
    }
}

pub fn setnx(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let store = cx.shards.store(&key);
    let is_new = !store.exists(&key, cx.now);
    if is_new {
        store.set(&key, request.args.value(2), Expiry::Never, cx.now)?;
    }
    reply.flag(is_new);
    Ok(())
}

pub fn setex(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    set_for(Unit::EX, "setex", cx, request, reply)
}

pub fn psetex(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    set_for(Unit::PX, "psetex", cx, request, reply)
}

fn set_for(
    unit: Unit,
    name: &str,
    cx: &mut Context<'_, '_>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let key = cx.key(request, 1);
    let millis = millis(&request.args[2], unit, name, cx)?;
    cx.shards.store(&key).set(&key, request.args.value(3), Expiry::At(expiry(millis)), cx.now)?;
    reply.ok();
    Ok(())
}

pub fn getset(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let store = cx.shards.store(&key);
    let old = Old::new(store.get(&key, cx.now)?);
    store.set(&key, request.args.value(2), Expiry::Never, cx.now)?;
    old.reply(cx, reply);
    Ok(())
}

pub fn getdel(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let store = cx.shards.store(&key);
    let value = store.get(&key, cx.now)?;
    cx.stats.count_lookup(value.is_some());
    reply.optional(value);
    store.remove(&key, cx.now);
    Ok(())
}

pub fn getex(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let options = Options::parse(request.args, 2, Of::Getex)?;
    let expiry_time = options.expiry("getex", cx);
    let store = cx.shards.store(&key);
    if store.get(&key, cx.now)?.is_none() {
        cx.stats.count_lookup(false);
        reply.null();
        return Ok(());
    }
    // The time is checked only if the key exists.
    let (_, at) = expiry_time?;
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
    cx.stats.count_lookup(true);
    Ok(())
}

pub fn mget(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    reply.array(request.args.len() - 1);
    for at in 1..request.args.len() {
        let key = cx.key(request, at);
        // Values of other types are nil, not an error.
        let value = cx.shards.store(&key).get(&key, cx.now).ok().flatten();
        cx.stats.count_lookup(value.is_some());
        reply.optional(value);
    }
    Ok(())
}

pub fn mset(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    set_all(cx, request)?;
    reply.ok();
    Ok(())
}

pub fn msetnx(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    if request.args.len().is_multiple_of(2) {
        return Err(request.arity());
    }
    let is_any_there = (1..request.args.len()).step_by(2).any(|at| {
        let key = cx.key(request, at);
        cx.shards.store(&key).exists(&key, cx.now)
    });
    if !is_any_there {
        set_all(cx, request)?;
    }
    reply.flag(!is_any_there);
    Ok(())
}

fn set_all(cx: &mut Context<'_, '_>, request: &Request<'_>) -> CommandResult {
    if request.args.len().is_multiple_of(2) {
        return Err(request.arity());
    }
    // All or none: reserve memory first.
    let (now, is_shared) = (cx.now, cx.shards.count() > 1);
    for store in cx.shards.all() {
        store.make_room_for(request.sizes(1, is_shared), now)?;
    }
    for at in (1..request.args.len()).step_by(2) {
        let key = cx.key(request, at);
        cx.shards.store(&key).set(&key, request.args.value(at + 1), Expiry::Never, cx.now)?;
    }
    Ok(())
}

/// Checks the length of a string against the limit of an argument.
fn check_len(cx: &Context<'_, '_>, len: u64) -> Result<(), CommandError> {
    if len > cx.server.settings().bulk { Err(TOO_LONG) } else { Ok(()) }
}

pub fn append(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let more = &request.args[2];
    if let Some(old) = cx.shards.store(&key).peek(&key, cx.now)? {
        let len = old.len() + more.len();
        check_len(cx, len as u64)?;
    }
    let len = cx.shards.store(&key).append(&key, more, cx.now)?;
    reply.count(len);
    Ok(())
}

pub fn setrange(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let at = integer(&request.args[2])?;
    let at = u64::try_from(at).map_err(|_| OFFSET)?;
    let bytes = &request.args[3];
    if bytes.is_empty() {
        // Writing no bytes does not extend the string.
        let len = cx.shards.store(&key).peek(&key, cx.now)?.map_or(0, |value| value.len());
        reply.count(len);
        return Ok(());
    }
    // The type is checked before the length.
    cx.shards.store(&key).peek(&key, cx.now)?;
    check_len(cx, at.saturating_add(bytes.len() as u64))?;
    let len = cx.shards.store(&key).set_range(&key, at as usize, bytes, cx.now)?;
    reply.count(len);
    Ok(())
}

pub fn strlen(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let len = cx.shards.store(&key).get(&key, cx.now)?.map(|value| value.len());
    cx.stats.count_lookup(len.is_some());
    reply.count(len.unwrap_or(0));
    Ok(())
}

pub fn getrange(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let (start, end) = (integer(&request.args[2])?, integer(&request.args[3])?);
    let value = cx.shards.store(&key).get(&key, cx.now)?;
    let is_there = value.is_some();
    match value {
        Some(value) => {
            let range = range(start, end, value.len());
            reply.part(&value, range);
        }
        None => reply.bulk(b""),
    }
    cx.stats.count_lookup(is_there);
    Ok(())
}

/// Returns the bytes from `start` to `end` inclusive. Negative positions count from the end.
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
    use crate::commands::testing::TestClient;

    #[test]
    fn mset_of_more_values_than_memory_sets_none() {
        for mut client in TestClient::each() {
            client.fill();
            let pairs: Vec<String> = (0..60).map(|n| format!("new{n} {}", "v".repeat(900))).collect();
            for command in ["mset", "msetnx"] {
                let refused = client.run(&format!("{command} {}", pairs.join(" ")));
                assert_eq!(refused, "-OOM command not allowed when used memory > 'maxmemory'.");
                (0..60).for_each(|n| client.expect(&format!("exists new{n}"), ":0"));
            }
            client.expect(&format!("set new0 {}", "v".repeat(900)), "+OK");
        }
    }
}
