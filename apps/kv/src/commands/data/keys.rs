//! Commands on keys with values of any type.

use crate::commands::error::{
    COPY_IN_CLUSTER, CommandError, CommandResult, DATABASE, LFU, NO_KEY, NO_LFU, SAME_KEY, SYNTAX,
};
use crate::commands::options::{int, integer};
use crate::commands::{Context, Request};
use crate::resp::{Args, Reply};
use crate::store::{DATABASES, EvictionPolicy, Key, Store, ValueType};

pub fn del(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    count(cx, request, reply, |store, key, now| store.remove(key, now));
    Ok(())
}

pub fn exists(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    count(cx, request, reply, |store, key, now| store.exists(key, now));
    Ok(())
}

pub fn touch(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    count(cx, request, reply, |store, key, now| store.touch(key, now));
    Ok(())
}

/// Replies with the number of keys for which `is_one` returns true.
fn count(
    cx: &mut Context<'_, '_>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
    is_one: impl Fn(&mut Store, &Key<'_>, u64) -> bool,
) {
    let mut count = 0;
    for at in 1..request.args.len() {
        let key = cx.key(request, at);
        count += usize::from(is_one(cx.shards.store(&key), &key, cx.now));
    }
    reply.count(count);
}

pub fn type_name(value_type: ValueType) -> &'static str {
    match value_type {
        ValueType::String => "string",
        ValueType::Hash => "hash",
    }
}

pub fn value_type(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    reply.simple(cx.shards.store(&key).value_type(&key, cx.now).map_or("none", type_name));
    Ok(())
}

pub fn rename(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    move_to(cx, request, true)?;
    reply.ok();
    Ok(())
}

pub fn renamenx(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let is_moved = move_to(cx, request, false)?;
    reply.flag(is_moved);
    Ok(())
}

/// Moves the value of the first key to the second. Returns false if the second exists and must not be replaced.
fn move_to(cx: &mut Context<'_, '_>, request: &Request<'_>, replace: bool) -> Result<bool, CommandError> {
    let (from, to) = (cx.key(request, 1), cx.key(request, 2));
    if from.bytes == to.bytes {
        return if cx.shards.store(&from).exists(&from, cx.now) { Ok(replace) } else { Err(NO_KEY) };
    }
    if !cx.shards.store(&from).exists(&from, cx.now) {
        return Err(NO_KEY);
    }
    if !replace && cx.shards.store(&to).exists(&to, cx.now) {
        return Ok(false);
    }
    if cx.shards.are_in_same_shard(&from, &to) {
        cx.shards.store(&from).rename(&from, &to, cx.now)?;
    } else {
        transfer(cx, &from, &to)?;
        cx.shards.store(&from).remove(&from, cx.now);
    }
    Ok(true)
}

fn transfer(cx: &mut Context<'_, '_>, from: &Key<'_>, to: &Key<'_>) -> CommandResult {
    if let Some(owned) = cx.shards.store(from).dump(from, cx.now) {
        cx.shards.store(to).restore(to, owned, cx.now)?;
    }
    Ok(())
}

pub fn copy(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let (space, replace) = copy_options(request.args, cx.session.space)?;
    if space != 0 && cx.server.cluster().is_some() {
        return Err(COPY_IN_CLUSTER);
    }
    let from = cx.key(request, 1);
    let to = cx.hasher.key(space, request.args.at(2));
    if space == from.space && from.bytes == to.bytes {
        return Err(SAME_KEY);
    }
    let is_there = cx.shards.store(&from).exists(&from, cx.now);
    let is_copied = is_there && (replace || !cx.shards.store(&to).exists(&to, cx.now));
    if is_copied {
        transfer(cx, &from, &to)?;
    }
    reply.flag(is_copied);
    Ok(())
}

/// Returns the target keyspace of a copy from `space`, and whether an existing key may be replaced.
fn copy_options(args: Args<'_>, space: u8) -> Result<(u8, bool), CommandError> {
    let (mut space, mut replace) = (space, false);
    let mut rest = args.iter().skip(3);
    while let Some(option) = rest.next() {
        if option.eq_ignore_ascii_case(b"replace") {
            replace = true;
        } else if option.eq_ignore_ascii_case(b"db")
            && let Some(number) = rest.next()
        {
            space = database(number)?;
        } else {
            return Err(SYNTAX);
        }
    }
    Ok((space, replace))
}

/// Returns the target keyspace of [`copy_options`] if they are valid.
pub fn copy_space(args: Args<'_>, space: u8) -> Option<u8> {
    copy_options(args, space).ok().map(|(space, _)| space)
}

pub fn database(number: &[u8]) -> Result<u8, CommandError> {
    u8::try_from(int(number)?).ok().filter(|number| *number < DATABASES).ok_or(DATABASE)
}

pub fn encoding(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 2);
    match cx.shards.store(&key).encoding(&key, cx.now) {
        Some(encoding) => reply.bulk(encoding.as_bytes()),
        None => reply.null(),
    }
    Ok(())
}

pub fn frequency(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 2);
    let store = cx.shards.store(&key);
    match store.frequency(&key, cx.now) {
        Some(_) if !matches!(store.evict(), EvictionPolicy::Lfu(_)) => return Err(NO_LFU),
        Some(frequency) => reply.integer(frequency.into()),
        None => reply.null(),
    }
    Ok(())
}

pub fn idle(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 2);
    let store = cx.shards.store(&key);
    match store.idle(&key, cx.now) {
        Some(_) if matches!(store.evict(), EvictionPolicy::Lfu(_)) => return Err(LFU),
        Some(seconds) => reply.integer(seconds as i64),
        None => reply.null(),
    }
    Ok(())
}

/// Returns 1 if the key exists: values are not shared.
pub fn reference_count(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 2);
    if cx.shards.store(&key).exists(&key, cx.now) {
        reply.integer(1)
    } else {
        reply.null()
    }
    Ok(())
}

pub fn memory_usage(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let mut rest = request.args.iter().skip(3);
    while let Some(option) = rest.next() {
        let samples = rest.next().filter(|_| option.eq_ignore_ascii_case(b"samples"));
        if integer(samples.ok_or(SYNTAX)?)? < 0 {
            return Err(SYNTAX);
        }
    }
    let key = cx.key(request, 2);
    match cx.shards.store(&key).size_of(&key, cx.now) {
        Some(size) => reply.count(size),
        None => reply.null(),
    }
    Ok(())
}
