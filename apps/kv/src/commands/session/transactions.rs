//! Transactions.

use crate::cluster::key_slot;
use crate::commands::cluster::moved;
use crate::commands::error::{
    ABORTED, CROSS_SLOT, CommandError, CommandResult, DISCARD_ALONE, EXEC_ALONE, NESTED_MULTI, WATCH_IN_MULTI,
};
use crate::commands::session::watched_keys::MAX_WATCHED;
use crate::commands::session::{Paused, Queued, Transaction};
use crate::commands::{Context, Request, table};
use crate::resp::Reply;

/// Keys whose watch begins or ends in one step.
const STEP: usize = 2048;
/// Allocator overhead of the arguments of a queued command.
const ALLOCATIONS: usize = 64;

impl Transaction {
    pub fn push(&mut self, queued: Queued) {
        self.bytes += queued.args.bytes() + size_of::<Queued>();
        self.args += queued.args.memory() + ALLOCATIONS;
        self.queue.push(queued);
    }

    /// Returns the memory of the commands without long values.
    pub fn memory(&self) -> usize {
        self.args + self.queue.capacity() * size_of::<Queued>()
    }
}

pub fn multi(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    if cx.session.transaction.is_some() {
        return Err(NESTED_MULTI);
    }
    cx.session.transaction = Some(Box::default());
    reply.ok();
    Ok(())
}

pub fn discard(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    if cx.session.paused.is_none() {
        cx.session.transaction.take().ok_or(DISCARD_ALONE)?;
    }
    unwatch(cx, request, reply)
}

pub fn exec(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let transaction = cx.session.transaction.take().ok_or(EXEC_ALONE)?;
    let is_changed = cx.session.watched.is_changed(cx.shards, cx.now);
    cx.session.unwatch(cx.shards);
    if transaction.is_failed {
        return Err(ABORTED);
    }
    if is_changed {
        reply.null_array();
        return Ok(());
    }
    if let Some((map, _)) = cx.server.cluster() {
        let mut slots = slots(&transaction);
        if let Some(slot) = slots.next() {
            if slots.any(|other| other != slot) {
                return Err(CROSS_SLOT);
            }
            // The map may have been replaced since the commands were queued.
            if !map.is_here(slot) {
                return Err(CommandError::concat(&[moved(map, slot, cx.session).as_bytes()]));
            }
        }
    }
    reply.array(transaction.queue.len());
    for queued in &transaction.queue {
        cx.session.last = Some(queued.command);
        Request::queued(queued).execute(queued.command, cx, reply);
    }
    Ok(())
}

/// Returns the slots of the keys of the queued commands.
fn slots(transaction: &Transaction) -> impl Iterator<Item = u16> {
    transaction.queue.iter().flat_map(|queued| {
        let args = queued.args.args();
        table::key_positions(queued.command, args.len()).map(move |at| key_slot(args.at(at)))
    })
}

pub fn watch(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
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
        if at - first == STEP && request.may_run_in_steps(cx.session) {
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
fn too_many_watched() -> CommandError {
    CommandError::concat(&[format!("ERR too many watched keys: {MAX_WATCHED} at most").as_bytes()])
}

pub fn unwatch(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    cx.session.paused = None;
    if !request.may_run_in_steps(cx.session) {
        cx.session.unwatch(cx.shards);
    } else if !cx.session.watched.clear_some(cx.shards, STEP) {
        cx.session.paused = Some(Paused::Unwatch);
        return Ok(());
    }
    reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::commands::testing::TestClient;
    use crate::shards::Placement;

    #[test]
    fn expiry_of_watched_key_aborts_transaction_which_ends_the_watch() {
        for mut client in TestClient::each() {
            client.expect("set a 1 px 10", "+OK");
            client.expect("watch a", "+OK");
            client.wait(10);
            client.expect("multi", "+OK");
            client.expect("ping", "+QUEUED");
            client.expect("exec", "*-1");
            client.expect("watch a", "+OK");
            client.expect("multi", "+OK");
            client.expect("discard", "+OK");
            assert!(client.session.watched_shards(&Placement::new(4)).is_empty());
        }
    }
}
