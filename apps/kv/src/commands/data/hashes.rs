//! Commands on hashes.

use crate::commands::data::numbers::number_in;
use crate::commands::data::scan::{CollectedReplies, KEY_WORK, WORK};
use crate::commands::error::{CommandResult, HASH_INTEGER, OVERFLOW};
use crate::commands::options::integer;
use crate::commands::session::Paused;
use crate::commands::{Context, Request};
use crate::resp::Reply;
use crate::resp::number::Digits;
use crate::store::Str;

/// Sets fields. Returns the number of new ones.
fn put(cx: &mut Context<'_, '_>, request: &Request<'_>) -> Result<usize, crate::commands::CommandError> {
    if request.args.len() % 2 == 1 {
        return Err(request.arity());
    }
    let key = cx.key(request, 1);
    let is_shared = cx.shards.count() > 1;
    let store = cx.shards.store(&key);
    // All or none: reserve memory first. A single field needs no reservation.
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

pub fn hset(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let new = put(cx, request)?;
    reply.count(new);
    Ok(())
}

pub fn hmset(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    put(cx, request)?;
    reply.ok();
    Ok(())
}

pub fn hsetnx(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let store = cx.shards.store(&key);
    let is_new = store.hget(&key, &request.args[2], cx.now)?.is_none();
    if is_new {
        store.hset(&key, &request.args[2], request.args.value(3), cx.now)?;
    }
    reply.flag(is_new);
    Ok(())
}

pub fn hget(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let value = cx.shards.store(&key).hget(&key, &request.args[2], cx.now)?;
    cx.stats.count_lookup(value.is_some());
    reply.optional(value);
    Ok(())
}

pub fn hmget(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let store = cx.shards.store(&key);
    let is_there = store.hlen(&key, cx.now)? > 0;
    reply.array(request.args.len() - 2);
    for field in request.args.iter().skip(2) {
        reply.optional(store.hget(&key, field, cx.now)?);
    }
    cx.stats.count_lookup(is_there);
    Ok(())
}

pub fn hdel(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let store = cx.shards.store(&key);
    let mut gone = 0;
    for field in request.args.iter().skip(2) {
        gone += usize::from(store.hdel(&key, field, cx.now)?);
    }
    reply.count(gone);
    Ok(())
}

pub fn hgetall(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
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

pub fn hkeys(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    visit(cx, request, reply, |reply, len| reply.array(len), |reply, field, _| reply.bulk(field))
}

pub fn hvals(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    visit(cx, request, reply, |reply, len| reply.array(len), |reply, _, value| reply.value(&value))
}

/// Number of fields up to which a hash is read in one step.
const FEW: usize = 4096;
/// Fields read between two checks of the work limit.
const STEP: usize = 256;
/// Number of restarts, because the hash changed between steps, before it is read in one step.
const RESTARTS: usize = 3;

/// State of a command that has read part of a large hash.
#[derive(Debug, Default)]
pub(in crate::commands) struct Fields {
    version: Option<u64>,
    cursor: u64,
    restarts: usize,
    read: CollectedReplies,
}

impl Fields {
    /// Returns the memory of the replies read so far.
    pub fn memory(&self) -> usize {
        self.read.memory()
    }
}

/// Replies with an item for each field, after the `head` for their number.
///
/// A large hash is read in steps if the session may pause. The reply is a consistent snapshot: if the hash changes
/// between two steps, reading starts again.
fn visit(
    cx: &mut Context<'_, '_>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
    head: impl Fn(&mut Reply<'_>, usize),
    each: impl Fn(&mut Reply<'_>, &[u8], Str<'_>),
) -> CommandResult {
    let key = cx.key(request, 1);
    let mut progress = match cx.session.paused.take() {
        Some(Paused::Fields(progress)) => progress,
        _ => Box::default(),
    };
    let may_pause = request.may_run_in_steps(cx.session);
    let store = cx.shards.store(&key);
    let len = store.hlen(&key, cx.now)?;
    let version = store.hversion(&key, cx.now)?;
    if progress.cursor > 0 && progress.version != version {
        *progress = Fields { restarts: progress.restarts + 1, ..Fields::default() };
    }
    if may_pause && len > FEW && progress.restarts <= RESTARTS {
        progress.version = version;
        let most = cx.server.settings().output;
        let (protocol, mut work) = (reply.protocol, 0);
        loop {
            let Fields { cursor, read, .. } = &mut *progress;
            *cursor = store.hscan(&key, *cursor, STEP, cx.now, |field, value| {
                work += KEY_WORK + field.len() + value.short().map_or(KEY_WORK, <[u8]>::len);
                each(&mut Reply::new(read, protocol), field, value);
            })?;
            if read.exceed(most) {
                read.overflow(reply);
                return Ok(());
            }
            if *cursor == 0 {
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
    cx.stats.count_lookup(len > 0);
    Ok(())
}

pub fn hexists(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let is_there = cx.shards.store(&key).hget(&key, &request.args[2], cx.now)?.is_some();
    cx.stats.count_lookup(is_there);
    reply.flag(is_there);
    Ok(())
}

pub fn hlen(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let len = cx.shards.store(&key).hlen(&key, cx.now)?;
    cx.stats.count_lookup(len > 0);
    reply.count(len);
    Ok(())
}

pub fn hstrlen(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let len = cx.shards.store(&key).hstrlen(&key, &request.args[2], cx.now)?;
    reply.count(len);
    Ok(())
}

pub fn hincrby(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let by = integer(&request.args[3])?;
    let store = cx.shards.store(&key);
    let number = match store.hget(&key, &request.args[2], cx.now)? {
        None => 0,
        Some(value) => number_in(&value).ok_or(HASH_INTEGER)?,
    };
    let number = number.checked_add(by).ok_or(OVERFLOW)?;
    store.hset(&key, &request.args[2], &Digits::new(number)[..], cx.now)?;
    reply.integer(number);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::commands::testing::TestClient;

    #[test]
    fn hset_of_more_fields_than_memory_sets_none() {
        for mut client in TestClient::each() {
            client.expect("hset h f v", ":1");
            client.fill();
            let pairs: Vec<String> = (0..60).map(|n| format!("f{n} {}", "v".repeat(900))).collect();
            let refused = client.run(&format!("hset h {}", pairs.join(" ")));
            assert_eq!(refused, "-OOM command not allowed when used memory > 'maxmemory'.");
            client.expect("hgetall h", "*2 $1 f $1 v");
            client.expect("hset nosuch a 1 b", "-ERR wrong number of arguments for 'hset' command");
        }
    }
}
