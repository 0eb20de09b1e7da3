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
        count += usize::from(is_one(cx.shards.of(&key), &key, cx.now));
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
    reply.simple(cx.shards.of(&key).value_type(&key, cx.now).map_or("none", type_name));
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
        return if cx.shards.of(&from).exists(&from, cx.now) { Ok(replace) } else { Err(NO_KEY) };
    }
    if !cx.shards.of(&from).exists(&from, cx.now) {
        return Err(NO_KEY);
    }
    if !replace && cx.shards.of(&to).exists(&to, cx.now) {
        return Ok(false);
    }
    if cx.shards.are_in_same_shard(&from, &to) {
        cx.shards.of(&from).rename(&from, &to, cx.now)?;
    } else {
        transfer(cx, &from, &to)?;
        cx.shards.of(&from).remove(&from, cx.now);
    }
    Ok(true)
}

fn transfer(cx: &mut Context<'_, '_>, from: &Key<'_>, to: &Key<'_>) -> CommandResult {
    if let Some(owned) = cx.shards.of(from).dump(from, cx.now) {
        cx.shards.of(to).restore(to, owned, cx.now)?;
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
    let is_there = cx.shards.of(&from).exists(&from, cx.now);
    let is_copied = is_there && (replace || !cx.shards.of(&to).exists(&to, cx.now));
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
    match cx.shards.of(&key).encoding(&key, cx.now) {
        Some(encoding) => reply.bulk(encoding.as_bytes()),
        None => reply.null(),
    }
    Ok(())
}

pub fn frequency(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 2);
    let store = cx.shards.of(&key);
    match store.frequency(&key, cx.now) {
        Some(_) if !matches!(store.evict(), EvictionPolicy::Lfu(_)) => return Err(NO_LFU),
        Some(frequency) => reply.integer(frequency.into()),
        None => reply.null(),
    }
    Ok(())
}

pub fn idle(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 2);
    let store = cx.shards.of(&key);
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
    if cx.shards.of(&key).exists(&key, cx.now) {
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
    match cx.shards.of(&key).size_of(&key, cx.now) {
        Some(size) => reply.count(size),
        None => reply.null(),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::commands::testing::TestClient;

    #[test]
    fn key_commands_count_and_remove() {
        for mut client in TestClient::each() {
            client.expect("mset a 1 b 2 c 3 d 4 e 5", "+OK");
            client.expect("exists a b a nosuch", ":3");
            client.expect("touch a b nosuch", ":2");
            client.expect("del a b nosuch a", ":2");
            client.expect("unlink c", ":1");
            client.expect("dbsize", ":2");
            client.expect("type d", "+string");
            client.expect("type a", "+none");
            client.expect("hset h f v", ":1");
            client.expect("type h", "+hash");
        }
    }

    #[test]
    fn rename_keeps_value_and_expiry() {
        for mut client in TestClient::each() {
            for n in 0..20 {
                client.expect(&format!("set a{n} {n} px 5000"), "+OK");
                client.expect(&format!("rename a{n} b{n}"), "+OK");
                client.expect(&format!("exists a{n}"), ":0");
                client.expect(&format!("pttl b{n}"), ":5000");
                client.expect(&format!("hset h{n} f v g w"), ":2");
                client.expect(&format!("renamenx h{n} b{n}"), ":0");
                client.expect(&format!("rename h{n} b{n}"), "+OK");
                client.expect(&format!("pttl b{n}"), ":-1");
                client.expect(&format!("hmget b{n} f g"), "*2 $1 v $1 w");
                client.expect(&format!("renamenx b{n} h{n}"), ":1");
            }
            client.expect("rename nosuch a", "-ERR no such key");
            client.expect("rename nosuch nosuch", "-ERR no such key");
            client.expect("set a 1", "+OK");
            client.expect("rename a a", "+OK");
            client.expect("renamenx a a", ":0");
            client.expect("get a", "$1 1");
        }
    }

    #[test]
    fn copy_works_across_databases() {
        for mut client in TestClient::each() {
            client.expect("set a 1 px 5000", "+OK");
            client.expect("copy a a", "-ERR source and destination objects are the same");
            client.expect("copy a a db 0", "-ERR source and destination objects are the same");
            client.expect("copy a a db 3", ":1");
            client.expect("copy a a db 3", ":0");
            client.expect("set a 2", "+OK");
            client.expect("copy a a replace db 3", ":1");
            client.expect("copy a b", ":1");
            client.expect("copy nosuch c", ":0");
            client.expect("copy a b db 16", "-ERR DB index is out of range");
            client.expect("copy a b db x", "-ERR value is not an integer or out of range");
            client.expect("copy a b db", "-ERR syntax error");
            client.expect("copy a b x", "-ERR syntax error");
            client.expect("select 3", "+OK");
            client.expect("get a", "$1 2");
            client.expect("pttl a", ":-1");
        }
    }

    #[test]
    fn object_and_memory_describe_values() {
        for mut client in TestClient::each() {
            client.expect("set a abc", "+OK");
            client.expect("object encoding a", "$6 embstr");
            client.expect("object encoding nosuch", "$-1");
            client.expect("object encoding", "-ERR wrong number of arguments for 'object|encoding' command");
            client.expect("object x", "-ERR unknown subcommand 'x'. Try OBJECT HELP.");
            client.expect("object", "-ERR wrong number of arguments for 'object' command");
            assert!(client.run("object freq a").starts_with("-ERR An LFU maxmemory policy is not selected"));
            client.expect("object idletime a", ":0");
            assert!(client.run("memory usage a").starts_with(':'));
            client.expect("memory usage nosuch samples 5", "$-1");
            client.expect("memory usage a samples -1", "-ERR syntax error");
            client.expect("memory usage a samples", "-ERR syntax error");
            client.expect("memory usage a samples x", "-ERR value is not an integer or out of range");
        }
    }
}
