//! Commands on strings that are numbers.

use crate::commands::error::{CommandError, CommandResult, DECREMENT, NO_FLOAT, NOT_FINITE, OVERFLOW};
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
    let store = cx.shards.store(&key);
    let number = match store.get(&key, cx.now)? {
        None => 0,
        Some(Str::Short(bytes)) => integer(bytes)?,
        Some(Str::Long(_)) => integer(b"")?,
    };
    let number = number.checked_add(by).ok_or(OVERFLOW)?;
    store.set(&key, &Digits::new(number)[..], Expiry::Keep, cx.now)?;
    reply.integer(number);
    Ok(())
}

pub fn incrbyfloat(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let key = cx.key(request, 1);
    let store = cx.shards.store(&key);
    let number = match store.get(&key, cx.now)? {
        None => 0.0,
        Some(value) if value.len() <= LONGEST_FLOAT => float(&value.to_vec())?,
        Some(_) => return Err(NO_FLOAT),
    };
    let sum = number + float(&request.args[2])?;
    if !sum.is_finite() {
        return Err(NOT_FINITE);
    }
    // A whole number has all digits, another one as many as distinguish it. Adding 0 removes the sign of -0.
    let sum = if sum.fract() == 0.0 { format!("{:.0}", sum + 0.0) } else { sum.to_string() };
    store.set(&key, sum.as_bytes(), Expiry::Keep, cx.now)?;
    reply.bulk(sum.as_bytes());
    Ok(())
}

/// Length limit of a number of INCRBYFLOAT in bytes, as in Redis.
const LONGEST_FLOAT: usize = 5 * 1024 - 1;

/// Parses a decimal number or an infinity.
fn float(text: &[u8]) -> Result<f64, CommandError> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= LONGEST_FLOAT);
    text.and_then(|text| text.parse().ok()).filter(|number: &f64| !number.is_nan()).ok_or(NO_FLOAT)
}

pub fn number_in(value: &Str<'_>) -> Option<i64> {
    number::parse(value.short()?)
}

#[cfg(test)]
mod tests {
    use crate::commands::testing::TestClient;

    #[test]
    fn incrbyfloat_adds_doubles() {
        for mut client in TestClient::each() {
            client.expect("set a 10.50", "+OK");
            client.expect("incrbyfloat a 0.1", "$4 10.6");
            client.expect("incrbyfloat a -10.6", "$1 0");
            client.expect("incrbyfloat a 0.1", "$3 0.1");
            client.expect("incrbyfloat a 0.2", "$19 0.30000000000000004");
            client.expect("set a 5.0e3", "+OK");
            client.expect("incrbyfloat a 1e20", "$21 100000000000000000000");
            client.expect("incrbyfloat a nan", "-ERR value is not a valid float");
            client.expect("incrbyfloat a 0x10", "-ERR value is not a valid float");
            client.expect("incrbyfloat a x", "-ERR value is not a valid float");
            client.expect("incrbyfloat a inf", "-ERR increment would produce NaN or Infinity");
            client.expect("set b x", "+OK");
            client.expect("incrbyfloat b 1", "-ERR value is not a valid float");
        }
    }
}
