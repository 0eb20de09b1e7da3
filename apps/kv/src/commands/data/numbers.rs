//! Commands on strings that are numbers.

use crate::commands::data::long_double::LongDouble;
use crate::commands::error::{CommandResult, DECREMENT, NO_FLOAT, NOT_FINITE, OVERFLOW};
use crate::commands::options::integer;
use crate::commands::{Context, Request};
use crate::resp::Reply;
use crate::resp::number::{self, Digits};
use crate::store::{Expiry, Str};

pub fn incr(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    count(1, cx, request, reply)
}

pub fn decr(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    count(-1, cx, request, reply)
}

pub fn incrby(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    count(integer(&request.args[2])?, cx, request, reply)
}

pub fn decrby(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let by = integer(&request.args[2])?.checked_neg().ok_or(DECREMENT)?;
    count(by, cx, request, reply)
}

fn count(by: i64, cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let store = cx.shards.of(&key);
    let number = match store.get(&key, cx.now)? {
        None => 0,
        Some(Str::Short(bytes)) => integer(bytes)?,
        Some(Str::Long(_)) => integer(b"")?,
    };
    let number = number.checked_add(by).ok_or(OVERFLOW)?;
    store.set(&key, &Digits::of(number)[..], Expiry::Keep, cx.now)?;
    reply.integer(number);
    Ok(())
}

pub fn incrbyfloat(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let store = cx.shards.of(&key);
    let number = match store.get(&key, cx.now)? {
        None => LongDouble::parse(b"0"),
        // A valid number is shorter than this limit.
        Some(value) if value.len() < 1 << 14 => LongDouble::parse(&value.to_vec()),
        Some(_) => None,
    };
    let number = number.ok_or(NO_FLOAT)?;
    let by = LongDouble::parse(&request.args[2]).ok_or(NO_FLOAT)?;
    let sum = number.add(by).write().ok_or(NOT_FINITE)?;
    store.set(&key, &sum[..], Expiry::Keep, cx.now)?;
    reply.bulk(&sum);
    Ok(())
}

/// Returns the integer in `value`.
pub fn number_in(value: &Str<'_>) -> Option<i64> {
    number::parse(value.short()?)
}

#[cfg(test)]
mod tests {
    use crate::commands::testing::TestClient;

    #[test]
    fn incr_and_decr_stay_within_64_bits() {
        for mut client in TestClient::each() {
            client.expect("incr a", ":1");
            client.expect("decrby a 11", ":-10");
            client.expect("incrby a 9223372036854775807", ":9223372036854775797");
            client.expect("incrby a 11", "-ERR increment or decrement would overflow");
            client.expect("decrby a -9223372036854775808", "-ERR decrement would overflow");
            client.expect("incrby a 1.5", "-ERR value is not an integer or out of range");
            client.expect("set b x ex 100", "+OK");
            client.expect("incr b", "-ERR value is not an integer or out of range");
            client.expect("set b 5 ex 100", "+OK");
            client.expect("decr b", ":4");
            client.expect("ttl b", ":100");
            client.expect("object encoding b", "$3 int");
        }
    }

    #[test]
    fn incrbyfloat_adds_as_redis() {
        for mut client in TestClient::each() {
            client.expect("set a 10.50", "+OK");
            client.expect("incrbyfloat a 0.1", "$4 10.6");
            client.expect("incrbyfloat a -10.6", "$1 0");
            client.expect("incrbyfloat a x", "-ERR value is not a valid float");
            client.expect("incrbyfloat a inf", "-ERR increment would produce NaN or Infinity");
            client.expect("set b x", "+OK");
            client.expect("incrbyfloat b 1", "-ERR value is not a valid float");
        }
    }
}
