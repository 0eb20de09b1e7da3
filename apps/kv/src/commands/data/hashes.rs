//! Hashes.

use crate::commands::data::numbers::number_in;
use crate::commands::data::scan::{KEY_WORK, Replies, WORK};
use crate::commands::error::{Done, HASH_INTEGER, OVERFLOW};
use crate::commands::options::integer;
use crate::commands::session::Paused;
use crate::commands::{Context, Request};
use crate::resp::Reply;
use crate::resp::number::Digits;
use crate::store::Str;

/// Puts the fields in. Returns how many are new.
fn put(cx: &mut Context<'_, '_>, request: &Request<'_>) -> Result<usize, crate::commands::Refused> {
    if request.args.len() % 2 == 1 {
        return Err(request.arity());
    }
    let key = cx.key(request, 1);
    let is_shared = cx.shards.count() > 1;
    let store = cx.shards.of(&key);
    // All or none: whoever is refused, is before the first. One alone is by itself.
    if request.args.len() > 4 {
        store.hlen(&key, cx.now)?;
        store.make_room_for(request.sizes(2, is_shared), cx.now)?;
    }
    let mut new = 0;
    for at in (2..request.args.len()).step_by(2) {
        new += usize::from(store.hset(&key, &request.args[at], request.args.value(at + 1), cx.now)?);
    }
    Ok(new)
}

pub(in crate::commands) fn hset(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let new = put(cx, request)?;
    reply.count(new);
    Ok(())
}

pub(in crate::commands) fn hmset(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    put(cx, request)?;
    reply.ok();
    Ok(())
}

pub(in crate::commands) fn hsetnx(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    let store = cx.shards.of(&key);
    let is_new = store.hget(&key, &request.args[2], cx.now)?.is_none();
    if is_new {
        store.hset(&key, &request.args[2], request.args.value(3), cx.now)?;
    }
    reply.flag(is_new);
    Ok(())
}

pub(in crate::commands) fn hget(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    match cx.shards.of(&key).hget(&key, &request.args[2], cx.now)? {
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

pub(in crate::commands) fn hmget(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    let store = cx.shards.of(&key);
    let is_there = store.hlen(&key, cx.now)? > 0;
    reply.array(request.args.len() - 2);
    for field in request.args.iter().skip(2) {
        match store.hget(&key, field, cx.now)? {
            Some(value) => reply.value(&value),
            None => reply.null(),
        }
    }
    cx.looked(is_there);
    Ok(())
}

pub(in crate::commands) fn hdel(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    let store = cx.shards.of(&key);
    let mut gone = 0;
    for field in request.args.iter().skip(2) {
        gone += usize::from(store.hdel(&key, field, cx.now)?);
    }
    reply.count(gone);
    Ok(())
}

pub(in crate::commands) fn hgetall(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    visit(
        cx,
        request,
        reply,
        |reply, len| reply.map(len),
        |reply, field, value| {
            reply.bulk(field);
            reply.value(&value);
        },
    )
}

pub(in crate::commands) fn hkeys(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    visit(cx, request, reply, |reply, len| reply.array(len), |reply, field, _| reply.bulk(field))
}

pub(in crate::commands) fn hvals(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    visit(cx, request, reply, |reply, len| reply.array(len), |reply, _, value| reply.value(&value))
}

/// Fields up to which a hash is read at one go.
const FEW: usize = 4096;
/// Fields that a piece of work looks at before it is compared with its limit.
const TOGETHER: usize = 256;
/// Times that reading is begun again because the hash has changed meanwhile, before it is read at one go.
const RESTARTS: usize = 3;

/// State of a command that reads all fields of a large hash and has not read all of them.
#[derive(Debug, Default)]
pub(in crate::commands) struct Fields {
    version: Option<u64>,
    place: u64,
    restarts: usize,
    read: Replies,
}

/// Replies with something of each field, after the `head` for so many.
///
/// A large hash is read in pieces if the session may be paused. The reply is that of one moment: if the hash has changed between two
/// pieces, reading begins again.
fn visit(
    cx: &mut Context<'_, '_>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
    head: impl Fn(&mut Reply<'_>, usize),
    each: impl Fn(&mut Reply<'_>, &[u8], Str<'_>),
) -> Done {
    let key = cx.key(request, 1);
    let mut progress = match cx.session.paused.take() {
        Some(Paused::Fields(progress)) => progress,
        _ => Box::default(),
    };
    let may_pause = request.is_done_in_pieces(cx.session);
    let store = cx.shards.of(&key);
    let len = store.hlen(&key, cx.now)?;
    let version = store.hversion(&key, cx.now)?;
    if progress.place > 0 && progress.version != version {
        *progress = Fields { restarts: progress.restarts + 1, ..Fields::default() };
    }
    if may_pause && len > FEW && progress.restarts <= RESTARTS {
        progress.version = version;
        let most = cx.server.settings().output;
        let (protocol, mut work) = (reply.protocol, 0);
        loop {
            let Fields { place, read, .. } = &mut *progress;
            *place = store.hscan(&key, *place, TOGETHER, cx.now, |field, value| {
                work += KEY_WORK + field.len() + value.short().map_or(KEY_WORK, <[u8]>::len);
                each(&mut Reply::new(read, protocol), field, value);
            })?;
            if read.exceed(most) {
                read.overflow(reply);
                return Ok(());
            }
            if *place == 0 {
                head(reply, len);
                read.write(reply);
                break;
            }
            if work > WORK {
                cx.session.paused = Some(Paused::Fields(progress));
                return Ok(());
            }
        }
    } else {
        head(reply, len);
        store.hvisit(&key, cx.now, |field, value| each(reply, field, value))?;
    }
    cx.looked(len > 0);
    Ok(())
}

pub(in crate::commands) fn hexists(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    let is_there = cx.shards.of(&key).hget(&key, &request.args[2], cx.now)?.is_some();
    cx.looked(is_there);
    reply.flag(is_there);
    Ok(())
}

pub(in crate::commands) fn hlen(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    let len = cx.shards.of(&key).hlen(&key, cx.now)?;
    cx.looked(len > 0);
    reply.count(len);
    Ok(())
}

pub(in crate::commands) fn hstrlen(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    let len = cx.shards.of(&key).hstrlen(&key, &request.args[2], cx.now)?;
    reply.count(len);
    Ok(())
}

pub(in crate::commands) fn hincrby(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    let by = integer(&request.args[3])?;
    let store = cx.shards.of(&key);
    let number = match store.hget(&key, &request.args[2], cx.now)? {
        None => 0,
        Some(value) => number_in(&value).ok_or(HASH_INTEGER)?,
    };
    let number = number.checked_add(by).ok_or(OVERFLOW)?;
    store.hset(&key, &request.args[2], &Digits::of(number)[..], cx.now)?;
    reply.integer(number);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::commands::testing::Client;

    #[test]
    fn fields_are_set_and_read_and_go() {
        for mut client in Client::each() {
            client.says("hset h a 1 b 2", ":2");
            client.says("hset h b 3 c 4", ":1");
            client.says("hmset h d 5", "+OK");
            client.says("hsetnx h d 6", ":0");
            client.says("hsetnx h e 6", ":1");
            client.says("hget h b", "$1 3");
            client.says("hget h nosuch", "$-1");
            client.says("hget nosuch f", "$-1");
            client.says("hmget h a x c", "*3 $1 1 $-1 $1 4");
            client.says("hmget nosuch a", "*1 $-1");
            client.says("hlen h", ":5");
            client.says("hexists h a", ":1");
            client.says("hstrlen h a", ":1");
            client.says("hdel h a b c x", ":3");
            client.says("hdel h d e", ":2");
            client.says("exists h", ":0");
            client.says("hset h a", "-ERR wrong number of arguments for 'hset' command");
            client.says("hset h a 1 b", "-ERR wrong number of arguments for 'hset' command");
        }
    }

    #[test]
    fn all_of_a_hash_is_a_map_for_whoever_knows_maps() {
        for mut client in Client::each() {
            client.says("hgetall h", "*0");
            client.says("hset h a 1", ":1");
            client.says("hgetall h", "*2 $1 a $1 1");
            client.says("hkeys h", "*1 $1 a");
            client.says("hvals h", "*1 $1 1");
            client.run("hello 3");
            client.says("hgetall h", "%1 $1 a $1 1");
            client.says("hkeys nosuch", "*0");
        }
    }

    #[test]
    fn fields_of_which_some_have_no_room_are_refused() {
        for mut client in Client::each() {
            client.says("hset h f v", ":1");
            client.fill();
            let pairs: Vec<String> = (0..60).map(|n| format!("f{n} {}", "v".repeat(900))).collect();
            let refused = client.run(&format!("hset h {}", pairs.join(" ")));
            assert_eq!(refused, "-OOM command not allowed when used memory > 'maxmemory'.");
            client.says("hgetall h", "*2 $1 f $1 v");
            client.says("hset nosuch a 1 b", "-ERR wrong number of arguments for 'hset' command");
        }
    }

    #[test]
    fn fields_are_counted() {
        for mut client in Client::each() {
            client.says("hincrby h a 5", ":5");
            client.says("hincrby h a -7", ":-2");
            client.says("hset h b x c 9223372036854775807", ":2");
            client.says("hincrby h b 1", "-ERR hash value is not an integer");
            client.says("hincrby h c 1", "-ERR increment or decrement would overflow");
            client.says("hincrby h a x", "-ERR value is not an integer or out of range");
            client.says("set s 1", "+OK");
            for command in ["hget s f", "hset s f v", "hlen s", "hgetall s", "hincrby s f 1", "hscan s 0", "hmget s f"]
            {
                client.says(command, "-WRONGTYPE Operation against a key holding the wrong kind of value");
            }
        }
    }
}
