//! Commands on features that this server does not have, answered as by a server that does not use them: scripts,
//! functions and the latency monitor. Clients and test suites reset them first.

use crate::commands::error::{CommandError, CommandResult, FUNCTION_FLUSH, LIBRARY_NAME, SCRIPT_FLUSH};
use crate::commands::{Context, Request};
use crate::resp::Reply;

/// Reply to `LATENCY DOCTOR`, modelled on the reply of a Redis server whose latency monitor is off.
const NO_MONITOR: &str = "Latency monitoring is disabled in this Redis instance. See SLOWLOG for slow requests.";

fn is_mode(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"async") || word.eq_ignore_ascii_case(b"sync")
}

/// Answers a flush whose only argument may be a mode.
fn flush(request: &Request<'_>, refused: CommandError, reply: &mut Reply<'_>) -> CommandResult {
    match request.args.get(2) {
        Some(mode) if request.args.len() > 3 || !is_mode(mode) => Err(refused),
        _ => {
            reply.ok();
            Ok(())
        }
    }
}

pub fn function_flush(_: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    flush(request, FUNCTION_FLUSH, reply)
}

pub fn function_list(_: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let (mut has_name, mut has_code) = (false, false);
    let mut rest = request.args.iter().skip(2);
    while let Some(word) = rest.next() {
        if !has_code && word.eq_ignore_ascii_case(b"withcode") {
            has_code = true;
        } else if !has_name && word.eq_ignore_ascii_case(b"libraryname") {
            rest.next().ok_or(LIBRARY_NAME)?;
            has_name = true;
        } else {
            return Err(CommandError::concat(&[b"ERR Unknown argument ", word]));
        }
    }
    reply.array(0);
    Ok(())
}

pub fn function_stats(_: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    reply.map(2);
    reply.bulk(b"running_script");
    reply.null();
    reply.bulk(b"engines");
    reply.map(1);
    reply.bulk(b"LUA");
    reply.map(2);
    for name in [&b"libraries_count"[..], b"functions_count"] {
        reply.bulk(name);
        reply.integer(0);
    }
    Ok(())
}

pub fn script_flush(_: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    flush(request, SCRIPT_FLUSH, reply)
}

pub fn script_exists(_: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let count = request.args.len() - 2;
    reply.array(count);
    (0..count).for_each(|_| reply.integer(0));
    Ok(())
}

/// Answers `LATENCY LATEST` and `LATENCY HISTORY`.
pub fn no_events(_: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    reply.array(0);
    Ok(())
}

pub fn latency_reset(_: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    reply.integer(0);
    Ok(())
}

pub fn latency_doctor(_: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    reply.verbatim(NO_MONITOR.as_bytes());
    Ok(())
}

pub fn latency_histogram(_: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    reply.map(0);
    Ok(())
}

/// Returns the memory in use and the number of keys.
pub fn memory_stats(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let totals = cx.server.totals(cx.stats);
    let keys = totals.databases.iter().map(|(keys, _)| keys).sum::<u64>();
    let numbers = [
        ("total.allocated", totals.used),
        ("startup.allocated", 0),
        ("keys.count", keys),
        ("keys.bytes-per-key", totals.used.checked_div(keys).unwrap_or(0)),
        ("dataset.bytes", totals.used),
    ];
    reply.map(numbers.len());
    for (name, number) in numbers {
        reply.bulk(name.as_bytes());
        reply.integer(number as i64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::commands::testing::TestClient;

    #[test]
    fn statistics_of_absent_features_are_empty() {
        for mut client in TestClient::each() {
            // Redis has this command since 7.2.
            client.expect("client no-touch OFF", "+OK");
            client.expect("latency histogram get", "*0");
            client.expect("set a 1", "+OK");
            assert!(client.run("memory stats").contains("$10 keys.count :1 "));
            assert!(client.run("latency doctor").contains("SLOWLOG"));
        }
    }
}
