//! Impairments in command-line syntax: `delay=10ms,loss=1%,rate=100mbit,queue=256k`.

use linerate_bypass::memory_nic::{Impairments, Rate};
use linerate_service::time::Duration;

/// Names that [`parse`] accepts, for usage texts.
pub const NAMES: &str = "delay=TIME, jitter=TIME, loss=CHANCE, duplication=CHANCE, reordering=CHANCE, rate=BITS, \
    queue=BYTES; with TIME such as 200us, 10ms or 1s, CHANCE such as 1% or 0.01, BITS a second such as 100mbit, \
    BYTES such as 256k";

/// Default queue of a rate without one: the data sent in this time.
const QUEUE_TIME: Duration = Duration::from_millis(20);
/// Minimum default queue in bytes.
const LEAST_QUEUE: usize = 16 << 10;

/// Error for text that names no impairments.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{part}': {reason}")]
pub struct InvalidSpec {
    part: String,
    reason: &'static str,
}

/// Parses impairments of a link. Those without a name are absent.
pub fn parse(text: &str) -> Result<Impairments, InvalidSpec> {
    let mut impairments = Impairments::default();
    let (mut rate, mut queue) = (None, None);
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let invalid = |reason| InvalidSpec { part: part.to_owned(), reason };
        let (name, value) = part.split_once('=').ok_or_else(|| invalid("write NAME=VALUE"))?;
        match name {
            "delay" => impairments.delay = time(value).map_err(invalid)?,
            "jitter" => impairments.jitter = time(value).map_err(invalid)?,
            "loss" => impairments.loss = chance(value).map_err(invalid)?,
            "duplication" => impairments.duplication = chance(value).map_err(invalid)?,
            "reordering" => impairments.reordering.chance = chance(value).map_err(invalid)?,
            "rate" => rate = Some(bits(value).map_err(invalid)?),
            "queue" => queue = Some((part, bytes(value).map_err(invalid)?)),
            _ => return Err(invalid("no such impairment")),
        }
    }
    impairments.rate = match (rate, queue) {
        (Some(bits_per_second), queue) => {
            let queue_bytes = queue.map_or_else(|| usual_queue(bits_per_second), |(_, bytes)| bytes);
            Some(Rate { bits_per_second, queue_bytes })
        }
        (None, Some((part, _))) => {
            return Err(InvalidSpec { part: part.to_owned(), reason: "a queue needs a rate: add rate=" });
        }
        (None, None) => None,
    };
    Ok(impairments)
}

fn usual_queue(bits_per_second: u64) -> usize {
    let bytes = u128::from(bits_per_second) * QUEUE_TIME.as_micros() / 8_000_000;
    usize::try_from(bytes).unwrap_or(usize::MAX).max(LEAST_QUEUE)
}

/// Parses a number with one of `units`, given as name and factor.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let count: u64 = text[..text.len() - unit.len()].parse().ok()?;
    let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    count.checked_mul(*scale)
}

fn time(text: &str) -> Result<Duration, &'static str> {
    let units = [("us", 1), ("ms", 1_000), ("s", 1_000_000)];
    let micros = with_unit(text, &units).ok_or("write a number and us, ms or s, such as 200us or 10ms")?;
    // Longer than any test, and short enough for sums without overflow.
    if micros > 3_600_000_000 { Err("it must be an hour at most") } else { Ok(Duration::from_micros(micros)) }
}

fn chance(text: &str) -> Result<f64, &'static str> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    match number.parse::<f64>().map(|number| number / scale) {
        Ok(chance) if (0.0..=1.0).contains(&chance) => Ok(chance),
        _ => Err("write a chance from 0 to 1, or from 0% to 100%"),
    }
}

fn bits(text: &str) -> Result<u64, &'static str> {
    let units = [("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000)];
    with_unit(text, &units).filter(|bits| *bits > 0).ok_or("write a number and kbit, mbit or gbit, such as 100mbit")
}

fn bytes(text: &str) -> Result<usize, &'static str> {
    let units = [("", 1), ("k", 1 << 10), ("m", 1 << 20)];
    let bytes = with_unit(text, &units).and_then(|bytes| usize::try_from(bytes).ok());
    bytes.filter(|bytes| (1..=1 << 30).contains(bytes)).ok_or("write a number of bytes, such as 1400, 256k or 1m")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_sets_its_impairment() {
        let all = parse("delay=10ms,jitter=200us,loss=1%,duplication=0.5,reordering=2%,rate=100mbit,queue=256k");
        let all = all.unwrap();
        assert_eq!((all.delay, all.jitter), (Duration::from_millis(10), Duration::from_micros(200)));
        assert_eq!((all.loss, all.duplication, all.reordering.chance), (0.01, 0.5, 0.02));
        assert_eq!(all.rate, Some(Rate { bits_per_second: 100_000_000, queue_bytes: 256 << 10 }));
        assert!(parse("").unwrap().is_none());
    }

    #[test]
    fn rate_without_queue_gets_20_milliseconds() {
        let queue = |text| parse(text).unwrap().rate.map(|rate| rate.queue_bytes);
        assert_eq!(queue("rate=100mbit"), Some(250_000));
        assert_eq!(queue("rate=1kbit"), Some(LEAST_QUEUE));
    }

    #[test]
    fn invalid_part_is_named_in_error() {
        for part in [
            "loss",
            "loss=",
            "loss=101%",
            "loss=-1%",
            "loss=nan",
            "delay=10",
            "delay=ms",
            "delay=2000m",
            "delay=99999999999999999999s",
            "rate=0mbit",
            "rate=100",
            "queue=0",
            "queue=2g",
            "queue=1m",
            "latency=1ms",
        ] {
            let error = parse(&format!("delay=1ms,{part}")).unwrap_err();
            assert!(error.to_string().starts_with(&format!("'{part}'")), "{error}");
        }
    }
}
