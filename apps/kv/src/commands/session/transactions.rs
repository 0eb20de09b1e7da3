//! Commands that are done together.

use crate::commands::error::{ABORTED, DISCARD_ALONE, Done, EXEC_ALONE, NESTED_MULTI, Refused, WATCH_IN_MULTI};
use crate::commands::session::watched_keys::MAX_WATCHED;
use crate::commands::session::{Paused, Queued, Transaction};
use crate::commands::{Context, Request};
use crate::resp::Reply;

/// Keys that are watched, or no longer watched, in a piece of work.
const TOGETHER: usize = 2048;

impl Transaction {
    /// One command more.
    pub fn push(&mut self, queued: Queued) {
        self.bytes += queued.args.bytes() + size_of::<Queued>();
        self.queue.push(queued);
    }
}

pub(in crate::commands) fn multi(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    if cx.session.transaction.is_some() {
        return Err(NESTED_MULTI);
    }
    cx.session.transaction = Some(Box::default());
    reply.ok();
    Ok(())
}

pub(in crate::commands) fn discard(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    if cx.session.paused.is_none() {
        cx.session.transaction.take().ok_or(DISCARD_ALONE)?;
    }
    unwatch(cx, request, reply)
}

pub(in crate::commands) fn exec(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let transaction = cx.session.transaction.take().ok_or(EXEC_ALONE)?;
    let is_changed = cx.session.watched.is_changed(cx.shards, cx.now);
    cx.session.unwatch(cx.shards);
    if transaction.is_spoiled {
        return Err(ABORTED);
    }
    if is_changed {
        reply.null_array();
        return Ok(());
    }
    reply.array(transaction.queue.len());
    for queued in &transaction.queue {
        cx.session.last = Some(queued.command);
        Request::queued(queued).execute(queued.command, cx, reply);
    }
    Ok(())
}

pub(in crate::commands) fn watch(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    if cx.session.transaction.is_some() {
        return Err(WATCH_IN_MULTI);
    }
    if request.args.len() > MAX_WATCHED + 1 {
        return Err(too_many_watched());
    }
    let first = match cx.session.paused.take() {
        Some(Paused::Watch(at)) => at,
        _ => 1,
    };
    let space = cx.session.space;
    for at in first..request.args.len() {
        if at - first == TOGETHER && request.is_done_in_pieces(cx.session) {
            cx.session.paused = Some(Paused::Watch(at));
            return Ok(());
        }
        let key = cx.hasher.key(space, request.args.at(at));
        if !cx.session.watched.watch(&key, cx.shards, cx.now) {
            return Err(too_many_watched());
        }
    }
    reply.ok();
    Ok(())
}

#[cold]
fn too_many_watched() -> Refused {
    Refused::of(&[format!("ERR too many watched keys: {MAX_WATCHED} at most").as_bytes()])
}

pub(in crate::commands) fn unwatch(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    cx.session.paused = None;
    if !request.is_done_in_pieces(cx.session) {
        cx.session.unwatch(cx.shards);
    } else if !cx.session.watched.clear_some(cx.shards, TOGETHER) {
        cx.session.paused = Some(Paused::Unwatch);
        return Ok(());
    }
    reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::commands::testing::Client;

    #[test]
    fn commands_wait_and_are_done_together() {
        for mut client in Client::each() {
            client.says("multi", "+OK");
            client.says("set a 1", "+QUEUED");
            client.says("incr a", "+QUEUED");
            client.says("hget a f", "+QUEUED");
            client.says("select 3", "+QUEUED");
            client.says("set b 2", "+QUEUED");
            client.says("copy b c db 5", "+QUEUED");
            client.says("get nosuch", "+QUEUED");
            assert!(client.session.queued_bytes() > 0);
            client.says(
                "exec",
                "*7 +OK :2 -WRONGTYPE Operation against a key holding the wrong kind of value +OK +OK :1 $-1",
            );
            client.says("get b", "$1 2");
            client.says("select 5", "+OK");
            client.says("get c", "$1 2");
            client.says("multi", "+OK");
            client.says("exec", "*0");
        }
    }

    #[test]
    fn a_refused_command_refuses_all() {
        for mut client in Client::each() {
            for wrong in ["nosuch", "get", "client foo"] {
                client.says("multi", "+OK");
                client.says("set a 1", "+QUEUED");
                assert!(client.run(wrong).starts_with("-ERR "));
                client.says("exec", "-EXECABORT Transaction discarded because of previous errors.");
            }
            client.says("exists a", ":0");
            client.says("exec", "-ERR EXEC without MULTI");
            client.says("discard", "-ERR DISCARD without MULTI");
            client.says("multi", "+OK");
            // These are no part of it.
            client.says("multi", "-ERR MULTI calls can not be nested");
            client.says("watch a", "-ERR WATCH inside MULTI is not allowed");
            client.says("exec", "*0");
            client.says("multi", "+OK");
            client.says("set a 1", "+QUEUED");
            client.says("discard", "+OK");
            client.says("exists a", ":0");
            client.says("multi", "+OK");
            client.says("reset", "+RESET");
            client.says("exists a", ":0");
        }
    }

    #[test]
    fn a_change_of_a_watched_key_refuses_all() {
        for mut client in Client::each() {
            let change =
                ["set a 2", "del a", "pexpire a 5", "flushall", "append a x", "rename a b", "hset h f v", "set c 1"];
            for (n, change) in change.into_iter().enumerate() {
                client.run("flushall");
                client.says("set a 1", "+OK");
                client.says("watch a nosuch h c", "+OK");
                client.run(change);
                client.says("multi", "+OK");
                client.says(&format!("set done {n}"), "+QUEUED");
                client.says("exec", "*-1");
                client.says("exists done", ":0");
            }
            client.says("set a 1 px 10", "+OK");
            client.says("watch a", "+OK");
            client.wait(10);
            client.says("multi", "+OK");
            client.says("ping", "+QUEUED");
            client.says("exec", "*-1");
            // The watch is over, and what has not changed does no harm.
            client.says("watch a", "+OK");
            client.says("unwatch", "+OK");
            client.says("set a 1", "+OK");
            client.says("watch a", "+OK");
            client.says("watch nosuch", "+OK");
            client.says("get a", "$1 1");
            client.says("flushdb", "+OK");
            client.says("unwatch", "+OK");
            client.says("watch nosuch", "+OK");
            client.says("flushdb", "+OK");
            client.says("multi", "+OK");
            client.says("ping", "+QUEUED");
            client.says("exec", "*1 +PONG");
            client.says("watch a", "+OK");
            client.says("multi", "+OK");
            client.says("discard", "+OK");
            assert!(client.session.watches(4).is_empty());
            client.run("hello 3");
            client.says("watch a", "+OK");
            client.says("set a 1", "+OK");
            client.says("multi", "+OK");
            client.says("exec", "_");
        }
    }
}
