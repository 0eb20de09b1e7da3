//! Commands on the whole dataset, the time, and the memory exported over RDMA.

use crate::commands::error::{CommandError, CommandResult, NO_COUNTERS, SYNTAX};
use crate::commands::session::Paused;
use crate::commands::{Context, Request};
use crate::resp::Reply;
use crate::store::DATABASES;
use linerate_service::RemoteAddr;

/// Rejects a command that needs a subcommand.
pub fn needs_subcommand(_: &mut Context<'_, '_>, request: &Request<'_>, _: &mut Reply<'_>) -> CommandResult {
    Err(request.arity())
}

pub fn dbsize(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let space = cx.session.space;
    reply.count(cx.server.keys(space) as usize);
    Ok(())
}

pub fn flushdb(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let space = cx.session.space;
    flush(space..space + 1, cx, request, reply)
}

pub fn flushall(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    flush(0..DATABASES, cx, request, reply)
}

/// Index slots examined per step while a flush waits for the removal of previously flushed keys.
const MAX_SLOTS: usize = 1 << 12;

fn flush(
    spaces: std::ops::Range<u8>,
    cx: &mut Context<'_, '_>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    // `ASYNC` and `SYNC` are equivalent: the flush takes constant time.
    let is_mode = |word: &[u8]| word.eq_ignore_ascii_case(b"async") || word.eq_ignore_ascii_case(b"sync");
    match request.args.get(1) {
        None => {}
        Some(mode) if request.args.len() == 2 && is_mode(mode) => {}
        Some(_) => return Err(SYNTAX),
    }
    cx.session.paused = None;
    if request.may_run_in_steps(cx.session) {
        // Flush all shards at once, as soon as none of them has to wait.
        let busy = cx.shards.all().filter_map(|store| (!store.prepare_flush(spaces.clone(), MAX_SLOTS)).then_some(()));
        if busy.count() > 0 {
            cx.session.paused = Some(Paused::Flush);
            return Ok(());
        }
    }
    for store in cx.shards.all() {
        spaces.clone().for_each(|space| store.flush(space));
    }
    reply.ok();
    Ok(())
}

pub fn time(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    reply.array(2);
    let now = cx.wall();
    reply.bulk_number((now / 1000) as i64);
    reply.bulk_number((now % 1000 * 1000) as i64);
    Ok(())
}

/// Replies with the remote address and key of the strings exported for RDMA READ, the parameters of their
/// [`Layout`](crate::export::Layout) (seed, shards, rows, log units), and the time of the server's clock in
/// milliseconds since 1970. Replies with nil if nothing is exported.
pub fn export(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let Some((RemoteAddr { address, key }, layout)) = cx.server.export() else {
        reply.null();
        return Ok(());
    };
    let numbers =
        [address, key.into(), layout.seed(), layout.shards().into(), layout.rows().into(), layout.log().into(), cx.now];
    reply.array(numbers.len());
    // The numbers go up to 2⁶⁴, beyond the integers of RESP.
    numbers.iter().for_each(|number| reply.bulk(number.to_string().as_bytes()));
    Ok(())
}

/// Replies with the remote address and key of the named counter. The first request for a name assigns a counter, which
/// starts at 0. With `VALUE`, replies with the value that the processor sees, or nil if no counter has this name.
/// Without a name, replies with the number of named counters and its limit.
pub fn counter(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let (names, RemoteAddr { address, key }) = cx.server.counters().ok_or(NO_COUNTERS)?;
    let numbers = match (request.args.get(1), request.args.get(2)) {
        (None, _) => [names.len() as u64, names.capacity() as u64],
        (Some(name), None) => {
            let offset =
                names.offset(name).map_err(|no| CommandError::concat(&[b"ERR ", no.to_string().as_bytes()]))?;
            [address + offset, key.into()]
        }
        (Some(name), Some(word)) if request.args.len() == 3 && word.eq_ignore_ascii_case(b"value") => {
            match names.value(name) {
                Some(value) => reply.bulk(value.to_string().as_bytes()),
                None => reply.null(),
            }
            return Ok(());
        }
        _ => return Err(SYNTAX),
    };
    reply.array(numbers.len());
    numbers.iter().for_each(|number| reply.bulk(number.to_string().as_bytes()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::commands::testing::TestClient;

    #[test]
    fn export_is_nil_if_nothing_is_exported() {
        for mut client in TestClient::each() {
            client.expect("linerate.export", "$-1");
        }
    }

    #[test]
    fn counter_keeps_its_index_after_first_request() {
        for mut client in TestClient::each() {
            client.expect("linerate.counter a", "-ERR no counters: start the server with kv serve --counters N");
            client.count(2);
            client.expect("linerate.counter", "*2 $1 0 $1 2");
            client.expect("linerate.counter a value", "$-1");
            client.expect("linerate.counter a", "*2 $4 4096 $1 7");
            client.expect("linerate.counter b", "*2 $4 4104 $1 7");
            client.expect("linerate.counter a", "*2 $4 4096 $1 7");
            client.expect("linerate.counter b VALUE", "$1 0");
            client.expect("linerate.counter", "*2 $1 2 $1 2");
            let full = "-ERR all 2 counters have names: start the server with a larger kv serve --counters N";
            client.expect("linerate.counter c", full);
            client.expect("linerate.counter \"\"", "-ERR counter names have 1 to 250 bytes");
            client.expect(&format!("linerate.counter {}", "n".repeat(251)), "-ERR counter names have 1 to 250 bytes");
            client.expect("linerate.counter a foo", "-ERR syntax error");
            client.expect("linerate.counter a value b", "-ERR syntax error");
            // Counters are not keys.
            client.expect("get a", "$-1");
            client.expect("flushall", "+OK");
            client.expect("linerate.counter a value", "$1 0");
        }
    }

    #[test]
    fn time_is_seconds_and_microseconds() {
        for mut client in TestClient::each() {
            client.wait(7);
            client.expect("time", "*2 $10 1700000000 $4 7000");
        }
    }
}
