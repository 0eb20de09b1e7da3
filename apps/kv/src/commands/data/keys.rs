//! Keys, whatever is under them.

use crate::commands::error::{DATABASE, Done, LFU, NO_KEY, NO_LFU, Refused, SAME_KEY, SYNTAX};
use crate::commands::options::{int, integer};
use crate::commands::{Context, DATABASES, Request};
use crate::resp::{Args, Reply};
use crate::store::{EvictionPolicy, Key, Store, ValueType};

pub(in crate::commands) fn del(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    count(cx, request, reply, |store, key, now| store.remove(key, now));
    Ok(())
}

pub(in crate::commands) fn exists(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    count(cx, request, reply, |store, key, now| store.exists(key, now));
    Ok(())
}

pub(in crate::commands) fn touch(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    count(cx, request, reply, |store, key, now| store.touch(key, now));
    Ok(())
}

/// Replies how many keys `is_one` is true of.
fn count(
    cx: &mut Context<'_, '_>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
    is_one: impl Fn(&mut Store, &Key<'_>, u64) -> bool,
) {
    let mut count = 0;
    for at in 1..request.args.len() {
        let key = cx.key(request, at);
        count += usize::from(is_one(cx.shards.of(&key), &key, cx.now));
    }
    reply.count(count);
}

/// What `TYPE` calls it.
pub(in crate::commands) fn kind_name(value_type: ValueType) -> &'static str {
    match value_type {
        ValueType::String => "string",
        ValueType::Hash => "hash",
    }
}

pub(in crate::commands) fn value_type(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    reply.simple(cx.shards.of(&key).value_type(&key, cx.now).map_or("none", kind_name));
    Ok(())
}

pub(in crate::commands) fn rename(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    move_to(cx, request, true)?;
    reply.ok();
    Ok(())
}

pub(in crate::commands) fn renamenx(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let is_moved = move_to(cx, request, false)?;
    reply.flag(is_moved);
    Ok(())
}

/// Moves what is under the first key to the second. Returns whether it did.
fn move_to(cx: &mut Context<'_, '_>, request: &Request<'_>, replace: bool) -> Result<bool, Refused> {
    let (from, to) = (cx.key(request, 1), cx.key(request, 2));
    if from.bytes == to.bytes {
        return if cx.shards.of(&from).exists(&from, cx.now) { Ok(replace) } else { Err(NO_KEY) };
    }
    if !cx.shards.of(&from).exists(&from, cx.now) {
        return Err(NO_KEY);
    }
    if !replace && cx.shards.of(&to).exists(&to, cx.now) {
        return Ok(false);
    }
    if cx.shards.are_together(&from, &to) {
        cx.shards.of(&from).rename(&from, &to, cx.now)?;
    } else {
        transfer(cx, &from, &to)?;
        cx.shards.of(&from).remove(&from, cx.now);
    }
    Ok(true)
}

/// Puts what is under `from` under `to`, too.
fn transfer(cx: &mut Context<'_, '_>, from: &Key<'_>, to: &Key<'_>) -> Done {
    if let Some(owned) = cx.shards.of(from).dump(from, cx.now) {
        cx.shards.of(to).restore(to, owned, cx.now)?;
    }
    Ok(())
}

pub(in crate::commands) fn copy(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let (space, replace) = copy_options(request.args, cx.session.space)?;
    let from = cx.key(request, 1);
    let to = cx.hasher.key(space, request.args.at(2));
    if space == from.space && from.bytes == to.bytes {
        return Err(SAME_KEY);
    }
    let is_there = cx.shards.of(&from).exists(&from, cx.now);
    let is_copied = is_there && (replace || !cx.shards.of(&to).exists(&to, cx.now));
    if is_copied {
        transfer(cx, &from, &to)?;
    }
    reply.flag(is_copied);
    Ok(())
}

/// The keyspace to copy to from `space`, and whether what is there may be replaced.
fn copy_options(args: Args<'_>, space: u8) -> Result<(u8, bool), Refused> {
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

/// As [`copy_options`], if they are understood.
pub(in crate::commands) fn copy_space(args: Args<'_>, space: u8) -> Option<u8> {
    copy_options(args, space).ok().map(|(space, _)| space)
}

/// The keyspace of the database `number`.
pub(in crate::commands) fn database(number: &[u8]) -> Result<u8, Refused> {
    u8::try_from(int(number)?).ok().filter(|number| *number < DATABASES).ok_or(DATABASE)
}

pub(in crate::commands) fn encoding(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 2);
    match cx.shards.of(&key).encoding(&key, cx.now) {
        Some(encoding) => reply.bulk(encoding.as_bytes()),
        None => reply.null(),
    }
    Ok(())
}

pub(in crate::commands) fn frequency(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 2);
    let store = cx.shards.of(&key);
    match store.frequency(&key, cx.now) {
        Some(_) if !matches!(store.evict(), EvictionPolicy::Lfu(_)) => return Err(NO_LFU),
        Some(frequency) => reply.integer(frequency.into()),
        None => reply.null(),
    }
    Ok(())
}

pub(in crate::commands) fn idle(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 2);
    let store = cx.shards.of(&key);
    match store.idle(&key, cx.now) {
        Some(_) if matches!(store.evict(), EvictionPolicy::Lfu(_)) => return Err(LFU),
        Some(seconds) => reply.integer(seconds as i64),
        None => reply.null(),
    }
    Ok(())
}

pub(in crate::commands) fn memory_usage(
    cx: &mut Context<'_, '_>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
) -> Done {
    let mut rest = request.args.iter().skip(3);
    while let Some(option) = rest.next() {
        let samples = rest.next().filter(|_| option.eq_ignore_ascii_case(b"samples"));
        if integer(samples.ok_or(SYNTAX)?)? < 0 {
            return Err(SYNTAX);
        }
    }
    let key = cx.key(request, 2);
    match cx.shards.of(&key).size_of(&key, cx.now) {
        Some(size) => reply.count(size),
        None => reply.null(),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::commands::testing::Client;

    #[test]
    fn keys_are_counted_and_go() {
        for mut client in Client::each() {
            client.says("mset a 1 b 2 c 3 d 4 e 5", "+OK");
            client.says("exists a b a nosuch", ":3");
            client.says("touch a b nosuch", ":2");
            client.says("del a b nosuch a", ":2");
            client.says("unlink c", ":1");
            client.says("dbsize", ":2");
            client.says("type d", "+string");
            client.says("type a", "+none");
            client.says("hset h f v", ":1");
            client.says("type h", "+hash");
        }
    }

    #[test]
    fn what_is_renamed_takes_its_time_along() {
        for mut client in Client::each() {
            for n in 0..20 {
                client.says(&format!("set a{n} {n} px 5000"), "+OK");
                client.says(&format!("rename a{n} b{n}"), "+OK");
                client.says(&format!("exists a{n}"), ":0");
                client.says(&format!("pttl b{n}"), ":5000");
                client.says(&format!("hset h{n} f v g w"), ":2");
                client.says(&format!("renamenx h{n} b{n}"), ":0");
                client.says(&format!("rename h{n} b{n}"), "+OK");
                client.says(&format!("pttl b{n}"), ":-1");
                client.says(&format!("hmget b{n} f g"), "*2 $1 v $1 w");
                client.says(&format!("renamenx b{n} h{n}"), ":1");
            }
            client.says("rename nosuch a", "-ERR no such key");
            client.says("rename nosuch nosuch", "-ERR no such key");
            client.says("set a 1", "+OK");
            client.says("rename a a", "+OK");
            client.says("renamenx a a", ":0");
            client.says("get a", "$1 1");
        }
    }

    #[test]
    fn a_copy_may_be_in_another_database() {
        for mut client in Client::each() {
            client.says("set a 1 px 5000", "+OK");
            client.says("copy a a", "-ERR source and destination objects are the same");
            client.says("copy a a db 0", "-ERR source and destination objects are the same");
            client.says("copy a a db 3", ":1");
            client.says("copy a a db 3", ":0");
            client.says("set a 2", "+OK");
            client.says("copy a a replace db 3", ":1");
            client.says("copy a b", ":1");
            client.says("copy nosuch c", ":0");
            client.says("copy a b db 16", "-ERR DB index is out of range");
            client.says("copy a b db x", "-ERR value is not an integer or out of range");
            client.says("copy a b db", "-ERR syntax error");
            client.says("copy a b x", "-ERR syntax error");
            client.says("select 3", "+OK");
            client.says("get a", "$1 2");
            client.says("pttl a", ":-1");
        }
    }

    #[test]
    fn how_a_value_is_kept_is_told() {
        for mut client in Client::each() {
            client.says("set a abc", "+OK");
            client.says("object encoding a", "$6 embstr");
            client.says("object encoding nosuch", "$-1");
            client.says("object encoding", "-ERR wrong number of arguments for 'object|encoding' command");
            client.says("object x", "-ERR unknown subcommand 'x'. Try OBJECT HELP.");
            client.says("object", "-ERR wrong number of arguments for 'object' command");
            assert!(client.run("object freq a").starts_with("-ERR An LFU maxmemory policy is not selected"));
            client.says("object idletime a", ":0");
            assert!(client.run("memory usage a").starts_with(':'));
            client.says("memory usage nosuch samples 5", "$-1");
            client.says("memory usage a samples -1", "-ERR syntax error");
            client.says("memory usage a samples", "-ERR syntax error");
            client.says("memory usage a samples x", "-ERR value is not an integer or out of range");
        }
    }
}
