//! The whole of the data, and the time.

use crate::commands::error::{Done, NO_COUNTERS, Refused, SYNTAX};
use crate::commands::session::Paused;
use crate::commands::{Context, DATABASES, Request};
use crate::resp::Reply;
use linerate_bypass::RemoteAddr;

/// A command that only has parts.
pub(in crate::commands) fn whole(_: &mut Context<'_, '_>, request: &Request<'_>, _: &mut Reply<'_>) -> Done {
    Err(request.arity())
}

pub(in crate::commands) fn dbsize(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let space = cx.session.space;
    reply.count(cx.server.keys(space) as usize);
    Ok(())
}

pub(in crate::commands) fn flushdb(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let space = cx.session.space;
    flush(space..space + 1, cx, request, reply)
}

pub(in crate::commands) fn flushall(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    flush(0..DATABASES, cx, request, reply)
}

/// Places of the index that are looked at in each turn for keys flushed before, while a flush waits for them.
const PLACES: usize = 1 << 12;

fn flush(spaces: std::ops::Range<u8>, cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    // It takes no time in either way.
    let is_way = |word: &[u8]| word.eq_ignore_ascii_case(b"async") || word.eq_ignore_ascii_case(b"sync");
    match request.args.get(1) {
        None => {}
        Some(how) if request.args.len() == 2 && is_way(how) => {}
        Some(_) => return Err(SYNTAX),
    }
    cx.session.paused = None;
    if request.is_done_in_pieces(cx.session) {
        // All shards are flushed together, when each can be without a wait.
        let busy = cx.shards.all().filter_map(|store| (!store.prepare_flush(spaces.clone(), PLACES)).then_some(()));
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

pub(in crate::commands) fn time(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    reply.array(2);
    reply.bulk_number((cx.now / 1000) as i64);
    reply.bulk_number((cx.now % 1000 * 1000) as i64);
    Ok(())
}

/// Where a client over RDMA finds strings to read by itself: address, key, seed, shards, rows, units of a log; all the numbers that
/// [`Layout`](crate::export::Layout) is made of. Nil, if nothing is exported.
pub(in crate::commands) fn export(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let Some((RemoteAddr { address, key }, layout)) = cx.server.export() else {
        reply.null();
        return Ok(());
    };
    let numbers =
        [address, key.into(), layout.seed(), layout.shards().into(), layout.rows().into(), layout.log().into()];
    reply.array(numbers.len());
    // They go up to 2⁶⁴, and integers of the protocol do not.
    numbers.iter().for_each(|number| reply.bulk(number.to_string().as_bytes()));
    Ok(())
}

/// Where a client over RDMA finds the counter of a name, which is 0 when nobody has asked before: address and key. With `VALUE`, what it
/// is, as far as the processor sees it; nil, if there is none. Without a name, how many there are, and may be.
pub(in crate::commands) fn counter(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let (names, RemoteAddr { address, key }) = cx.server.counters().ok_or(NO_COUNTERS)?;
    let numbers = match (request.args.get(1), request.args.get(2)) {
        (None, _) => [names.len() as u64, names.most() as u64],
        (Some(name), None) => {
            let offset = names.offset(name).map_err(|no| Refused::of(&[b"ERR ", no.to_string().as_bytes()]))?;
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
    use crate::commands::testing::Client;

    #[test]
    fn one_database_is_emptied_or_all() {
        for mut client in Client::each() {
            for database in 0..3 {
                client.says(&format!("select {database}"), "+OK");
                (0..20).for_each(|n| client.says(&format!("set {n} x"), "+OK"));
                client.says("dbsize", ":20");
            }
            client.says("flushdb", "+OK");
            client.says("dbsize", ":0");
            client.says("select 0", "+OK");
            client.says("dbsize", ":20");
            client.says("flushdb foo", "-ERR syntax error");
            client.says("flushall async sync", "-ERR syntax error");
            client.says("flushall ASYNC", "+OK");
            client.says("select 1", "+OK");
            client.says("dbsize", ":0");
        }
    }

    #[test]
    fn where_nothing_is_exported_it_is_said_so() {
        for mut client in Client::each() {
            client.says("linerate.export", "$-1");
        }
    }

    #[test]
    fn a_counter_is_where_it_was_when_it_was_first_asked_for() {
        for mut client in Client::each() {
            client.says("linerate.counter a", "-ERR no counters: start the server with kv serve --counters N");
            client.count(2);
            client.says("linerate.counter", "*2 $1 0 $1 2");
            client.says("linerate.counter a value", "$-1");
            client.says("linerate.counter a", "*2 $4 4096 $1 7");
            client.says("linerate.counter b", "*2 $4 4104 $1 7");
            client.says("linerate.counter a", "*2 $4 4096 $1 7");
            client.says("linerate.counter b VALUE", "$1 0");
            client.says("linerate.counter", "*2 $1 2 $1 2");
            let full = "-ERR all 2 counters have names: start the server with a larger kv serve --counters N";
            client.says("linerate.counter c", full);
            client.says("linerate.counter \"\"", "-ERR names of counters have 1 to 250 bytes");
            client.says(&format!("linerate.counter {}", "n".repeat(251)), "-ERR names of counters have 1 to 250 bytes");
            client.says("linerate.counter a foo", "-ERR syntax error");
            client.says("linerate.counter a value b", "-ERR syntax error");
            // They are no keys.
            client.says("get a", "$-1");
            client.says("flushall", "+OK");
            client.says("linerate.counter a value", "$1 0");
        }
    }

    #[test]
    fn the_time_is_told() {
        for mut client in Client::each() {
            client.wait(7);
            client.says("time", "*2 $10 1700000000 $4 7000");
        }
    }
}
