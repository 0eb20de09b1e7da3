//! Strings that are numbers.

use crate::commands::data::long_double::LongDouble;
use crate::commands::error::{DECREMENT, Done, NO_FLOAT, NOT_FINITE, OVERFLOW};
use crate::commands::options::integer;
use crate::commands::{Context, Request};
use crate::resp::Reply;
use crate::resp::number::{self, Digits};
use crate::store::{Expiry, Str};

pub(in crate::commands) fn incr(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    count(1, cx, request, reply)
}

pub(in crate::commands) fn decr(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    count(-1, cx, request, reply)
}

pub(in crate::commands) fn incrby(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    count(integer(&request.args[2])?, cx, request, reply)
}

pub(in crate::commands) fn decrby(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let by = integer(&request.args[2])?.checked_neg().ok_or(DECREMENT)?;
    count(by, cx, request, reply)
}

fn count(by: i64, cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
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

pub(in crate::commands) fn incrbyfloat(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> Done {
    let key = cx.key(request, 1);
    let store = cx.shards.of(&key);
    let number = match store.get(&key, cx.now)? {
        None => LongDouble::parse(b"0"),
        // No number is as long as a few kilobytes, wherever they lie.
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

/// The number `bytes` are.
pub(in crate::commands) fn number_in(value: &Str<'_>) -> Option<i64> {
    number::parse(value.short()?)
}

#[cfg(test)]
mod tests {
    use crate::commands::testing::Client;

    #[test]
    fn numbers_are_counted_up_and_down_within_their_range() {
        for mut client in Client::each() {
            client.says("incr a", ":1");
            client.says("decrby a 11", ":-10");
            client.says("incrby a 9223372036854775807", ":9223372036854775797");
            client.says("incrby a 11", "-ERR increment or decrement would overflow");
            client.says("decrby a -9223372036854775808", "-ERR decrement would overflow");
            client.says("incrby a 1.5", "-ERR value is not an integer or out of range");
            client.says("set b x ex 100", "+OK");
            client.says("incr b", "-ERR value is not an integer or out of range");
            client.says("set b 5 ex 100", "+OK");
            client.says("decr b", ":4");
            client.says("ttl b", ":100");
            client.says("object encoding b", "$3 int");
        }
    }

    #[test]
    fn fractions_are_added_as_redis_adds_them() {
        for mut client in Client::each() {
            client.says("set a 10.50", "+OK");
            client.says("incrbyfloat a 0.1", "$4 10.6");
            client.says("incrbyfloat a -10.6", "$1 0");
            client.says("incrbyfloat a x", "-ERR value is not a valid float");
            client.says("incrbyfloat a inf", "-ERR increment would produce NaN or Infinity");
            client.says("set b x", "+OK");
            client.says("incrbyfloat b 1", "-ERR value is not a valid float");
        }
    }
}
