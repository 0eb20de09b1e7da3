//! Impairments in command-line syntax: `delay=10ms,loss=1%,rate=100mbit,queue=256k`.

use linerate_bypass::memory_nic::{Impairments, Rate};
use linerate_service::time::Duration;
use std::fmt;
use std::str::FromStr;

/// Names that a [`Spec`] accepts, for usage texts.
pub const NAMES: &str = "delay=TIME, jitter=TIME, loss=CHANCE, duplication=CHANCE, corruption=CHANCE, \
    truncation=CHANCE, reordering=CHANCE, reordering-frames=N, reordering-within=TIME, rate=BITS, queue=BYTES, \
    mtu=BYTES; with TIME such as 200us, 10ms or 1s, CHANCE such as 1% or 0.01, BITS a second such as 100mbit, \
    BYTES such as 256k";

/// Default queue of a rate without one: the data sent in this time.
const QUEUE_TIME: Duration = Duration::from_millis(20);
/// Minimum default queue in bytes.
const LEAST_QUEUE: usize = 16 << 10;

/// Set of impairments of a link; unnamed ones stay unchanged.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Spec(Vec<Setting>);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Setting {
    Delay(Duration),
    Jitter(Duration),
    Loss(f64),
    Duplication(f64),
    Corruption(f64),
    Truncation(f64),
    Reordering(f64),
    ReorderingFrames(u32),
    ReorderingWithin(Duration),
    Rate(u64),
    Queue(usize),
    Mtu(usize),
}

/// Error for text that is no [`Spec`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{part}': {reason}")]
pub struct InvalidSpec {
    part: String,
    reason: &'static str,
}

impl Spec {
    /// Returns `before` with these impairments changed.
    pub fn onto(&self, before: &Impairments) -> Impairments {
        let mut after = before.clone();
        let mut queue = after.rate.map(|rate| rate.queue_bytes);
        let mut rate = after.rate.map(|rate| rate.bits_per_second);
        for setting in &self.0 {
            match *setting {
                Setting::Delay(delay) => after.delay = delay,
                Setting::Jitter(jitter) => after.jitter = jitter,
                Setting::Loss(chance) => after.loss = chance,
                Setting::Duplication(chance) => after.duplication = chance,
                Setting::Corruption(chance) => after.corruption = chance,
                Setting::Truncation(chance) => after.truncation = chance,
                Setting::Reordering(chance) => after.reordering.chance = chance,
                Setting::ReorderingFrames(frames) => after.reordering.frames = frames,
                Setting::ReorderingWithin(within) => after.reordering.within = within,
                Setting::Rate(bits_per_second) => rate = Some(bits_per_second),
                Setting::Queue(bytes) => queue = Some(bytes),
                Setting::Mtu(mtu) => after.path_mtu = Some(mtu),
            }
        }
        after.rate = rate.map(|bits_per_second| Rate {
            bits_per_second,
            queue_bytes: queue.unwrap_or_else(|| usual_queue(bits_per_second)),
        });
        after
    }

    /// Returns true if it names a queue, which has no effect without a rate.
    pub fn names_queue(&self) -> bool {
        self.0.iter().any(|setting| matches!(setting, Setting::Queue(_)))
    }
}

fn usual_queue(bits_per_second: u64) -> usize {
    let bytes = u128::from(bits_per_second) * QUEUE_TIME.as_micros() / 8_000_000;
    usize::try_from(bytes).unwrap_or(usize::MAX).max(LEAST_QUEUE)
}

impl FromStr for Spec {
    type Err = InvalidSpec;

    fn from_str(text: &str) -> Result<Self, InvalidSpec> {
        text.split(',').filter(|part| !part.is_empty()).map(setting).collect::<Result<_, _>>().map(Spec)
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.onto(&Impairments::default()))
    }
}

fn setting(part: &str) -> Result<Setting, InvalidSpec> {
    let invalid = |reason| InvalidSpec { part: part.to_owned(), reason };
    let (name, value) = part.split_once('=').ok_or_else(|| invalid("write NAME=VALUE"))?;
    let setting = match name {
        "delay" => time(value).map(Setting::Delay),
        "jitter" => time(value).map(Setting::Jitter),
        "loss" => chance(value).map(Setting::Loss),
        "duplication" => chance(value).map(Setting::Duplication),
        "corruption" => chance(value).map(Setting::Corruption),
        "truncation" => chance(value).map(Setting::Truncation),
        "reordering" => chance(value).map(Setting::Reordering),
        "reordering-frames" => count(value).map(Setting::ReorderingFrames),
        "reordering-within" => time(value).map(Setting::ReorderingWithin),
        "rate" => bits(value).map(Setting::Rate),
        "queue" => bytes(value).map(Setting::Queue),
        "mtu" => bytes(value).map(Setting::Mtu),
        _ => Err("no such impairment"),
    };
    setting.map_err(invalid)
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

fn count(text: &str) -> Result<u32, &'static str> {
    text.parse().ok().filter(|count| *count > 0).ok_or("write a number of at least 1")
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

    fn impairments(text: &str) -> Impairments {
        text.parse::<Spec>().unwrap().onto(&Impairments::default())
    }

    #[test]
    fn every_name_sets_its_impairment() {
        let all = impairments(
            "delay=10ms,jitter=200us,loss=1%,duplication=0.5,corruption=100%,truncation=0,reordering=2%,\
             reordering-frames=20,reordering-within=1s,rate=100mbit,queue=256k,mtu=1400",
        );
        assert_eq!((all.delay, all.jitter), (Duration::from_millis(10), Duration::from_micros(200)));
        assert_eq!((all.loss, all.duplication, all.corruption, all.truncation), (0.01, 0.5, 1.0, 0.0));
        assert_eq!((all.reordering.chance, all.reordering.frames), (0.02, 20));
        assert_eq!(all.reordering.within, Duration::from_secs(1));
        assert_eq!(all.rate, Some(Rate { bits_per_second: 100_000_000, queue_bytes: 256 << 10 }));
        assert_eq!(all.path_mtu, Some(1400));
    }

    #[test]
    fn unnamed_impairments_are_unchanged() {
        let both = impairments("delay=10ms,loss=1%,rate=10mbit,queue=64k");
        let one: Spec = "loss=5%,rate=1gbit".parse().unwrap();
        let one = one.onto(&both);
        assert_eq!((one.delay, one.loss), (both.delay, 0.05));
        assert_eq!(one.rate, Some(Rate { bits_per_second: 1_000_000_000, queue_bytes: 64 << 10 }));
        assert!(impairments("").is_none());
    }

    #[test]
    fn rate_without_queue_gets_20_milliseconds() {
        assert_eq!(impairments("rate=100mbit").rate.map(|rate| rate.queue_bytes), Some(250_000));
        assert_eq!(impairments("rate=1kbit").rate.map(|rate| rate.queue_bytes), Some(LEAST_QUEUE));
        assert!("queue=1m".parse::<Spec>().unwrap().names_queue());
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
            "mtu=2g",
            "reordering-frames=0",
            "latency=1ms",
        ] {
            let error = format!("delay=1ms,{part}").parse::<Spec>().unwrap_err();
            assert!(error.to_string().starts_with(&format!("'{part}'")), "{error}");
        }
    }
}
