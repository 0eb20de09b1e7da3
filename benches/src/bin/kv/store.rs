//! Memory of a store's keys, and its longest single calls.

use linerate_benches::client::BenchError;
use linerate_benches::engine::memory::resident;
use linerate_benches::priority::raise_priority;
use linerate_benches::report::table;
use linerate_benches::requirements::limit::{self, Limit};
use linerate_bypass::arena::{Arena, ArenaConfig};
use linerate_kv::store::{Config, Error, Evictable, EvictionPolicy, Expiry, Store};
use rustix::time::{ClockId, clock_gettime};
use std::fmt;

/// Bytes of a key and its value.
const ITEM: f64 = 32.0;
/// Maximum overhead per item in bytes: without expiry, and with expiry.
const OVERHEAD: f64 = 32.0;
const OVERHEAD_EXPIRING: f64 = 40.0;
/// Memory of a store in bytes per key.
const ROOM: usize = 96;
/// Maximum duration of a call in nanoseconds.
const LONGEST: u32 = 100_000;
/// Memory of the store that is filled to the last key, and free memory required in addition.
const ALL: usize = 8 << 30;
const SPARE: usize = 1 << 30;
/// Memory of the store that evicts.
const SMALL: usize = 256 << 20;

#[derive(clap::Args)]
pub struct Args {
    /// Millions of keys whose memory is measured
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,10")]
    millions: Vec<usize>,

    /// Also fill 8 GB to the last key
    #[arg(long)]
    all: bool,

    /// Millions of keys for the search of the longest calls; 0 skips it
    #[arg(long, value_name = "N", default_value_t = 10)]
    calls: usize,

    /// Repetitions of each call; the minimum counts, since a disturbance rarely hits the same call twice
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
}

pub struct Report {
    memory: Vec<Memory>,
    calls: Vec<Calls>,
    /// Memory backing of the store.
    backing: Option<String>,
    rounds: u32,
    limits: Vec<Limit>,
    /// Requested measurements that were not possible.
    missing: Vec<String>,
}

/// Memory of keys.
#[derive(Debug)]
struct Memory {
    keys: usize,
    expire: bool,
    /// Overhead per item in bytes, by the store's counters.
    overhead: f64,
    /// Overhead per item in bytes, by the growth of the process.
    resident_overhead: f64,
}

/// Durations of single calls.
#[derive(Debug)]
struct Calls {
    call: &'static str,
    calls: usize,
    p50_ns: u32,
    p999_ns: u32,
    worst_ns: u32,
    /// Number of calls above the limit.
    over: usize,
}

pub fn run(args: &Args) -> Result<Report, crate::Error> {
    let mut report = Report {
        memory: Vec::new(),
        calls: Vec::new(),
        backing: None,
        rounds: args.rounds,
        limits: Vec::new(),
        missing: Vec::new(),
    };
    let _first = raise_priority();
    let mut fills: Vec<(usize, usize)> = Vec::new();
    for millions in &args.millions {
        let keys = millions.max(&1) * 1_000_000;
        fills.push((keys, (keys * ROOM).next_multiple_of(1 << 20)));
    }
    if args.all {
        fills.push((usize::MAX, ALL));
    }
    for (most, memory) in fills {
        if available().is_some_and(|available| available < memory + SPARE) {
            let skipped = format!("keys in {} MB: {} MB must be free", memory >> 20, (memory + SPARE) >> 20);
            eprintln!("not measured: {skipped}");
            report.missing.push(skipped);
            continue;
        }
        for (expire, expiry, limit) in
            [(false, Expiry::Never, OVERHEAD), (true, Expiry::At(1 << 40), OVERHEAD_EXPIRING)]
        {
            eprintln!("bytes: {} MB, expire: {expire}", memory >> 20);
            let measured = keys_in(memory, most, expire, expiry)?;
            let call = format!(
                "bytes beside key and value, {} keys that {}expire",
                measured.keys,
                if expire { "" } else { "never " }
            );
            report.limits.push(Limit::new(call, measured.overhead, limit));
            report.memory.push(measured);
        }
    }
    if args.calls > 0 {
        let (calls, backing) = calls(args.calls * 1_000_000, args.rounds);
        report.backing = Some(backing);
        let bounded = calls.iter().zip(KINDS).filter(|(_, (_, is_bounded))| *is_bounded);
        let micros = |ns| f64::from(ns) / 1e3;
        let limit = |calls: &Calls| {
            Limit::new(format!("longest of {}, µs", calls.call), micros(calls.worst_ns), micros(LONGEST))
        };
        report.limits.extend(bounded.map(|(calls, _)| limit(calls)));
        report.calls = calls;
    }
    Ok(report)
}

fn store(memory: usize, evict: EvictionPolicy, hugepages: bool) -> (Store, String) {
    let arena = Arena::new(ArenaConfig { bytes: memory + (2 << 20), hugepages }).expect("memory");
    let backing = arena.backing().to_string();
    // A fixed hash secret makes equal calls do equal work.
    (Store::new(&Config { memory, evict, arena, key: [7; 16], ..Config::new(1 << 20) }, 0), backing)
}

/// Measures the memory of `most` keys, or of as many as fit.
fn keys_in(memory: usize, most: usize, expire: bool, expiry: Expiry) -> Result<Memory, BenchError> {
    let before = resident()?;
    let (mut store, _) = store(memory, EvictionPolicy::None, false);
    let mut keys = 0;
    while keys < most {
        let n = keys as u128;
        let key = n.to_le_bytes();
        match store.set(&store.key(0, &key), &n.to_be_bytes(), expiry, 0) {
            Ok(_) => keys += 1,
            Err(Error::Full) => break,
            Err(error) => unreachable!("{error}"),
        }
    }
    let each = |bytes: usize| bytes as f64 / keys as f64 - ITEM;
    let grown = resident()?.saturating_sub(before) as usize;
    Ok(Memory { keys, expire, overhead: each(store.used()), resident_overhead: each(grown) })
}

/// Returns the available memory in bytes, as estimated by the kernel.
fn available() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<usize>().ok()? << 10)
}

/// Returns the CPU time of this thread.
fn nanoseconds() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Durations of calls in order, each the minimum of the rounds so far.
#[derive(Debug, Default)]
struct Times {
    least: Vec<u32>,
    /// Position in the current round.
    at: usize,
}

impl Times {
    fn measure<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = nanoseconds();
        let result = call();
        self.note((nanoseconds() - start).min(u32::MAX.into()) as u32);
        result
    }

    fn note(&mut self, took: u32) {
        match self.least.get_mut(self.at) {
            Some(least) => *least = took.min(*least),
            None => self.least.push(took),
        }
        self.at += 1;
    }

    fn summary(mut self, call: &'static str) -> Calls {
        self.least.sort_unstable();
        let calls = self.least.len();
        let at = |part: f64| self.least.get((calls.saturating_sub(1) as f64 * part) as usize).copied().unwrap_or(0);
        let over = self.least.iter().filter(|time| **time > LONGEST).count();
        Calls { call, calls, p50_ns: at(0.5), p999_ns: at(0.999), worst_ns: at(1.0), over }
    }
}

/// Kinds of calls in the order of [`round`], and whether [`LONGEST`] applies.
const KINDS: [(&str, bool); 8] = [
    ("empty calls: noise of the machine", false),
    ("sets of new keys, and ticks meanwhile", true),
    ("ticks while all of them expire", true),
    ("a flush of half as many, and ticks", false),
    ("sets of new keys in used memory, and ticks", true),
    ("sets of short values with eviction, sizes change", false),
    ("sets of values of up to 40 kB among these", false),
    ("ticks among these", false),
];

/// Finds the longest single calls while a store is filled, emptied and filled again, and those of a store that evicts.
fn calls(count: usize, rounds: u32) -> (Vec<Calls>, String) {
    let mut times: [Times; KINDS.len()] = Default::default();
    let mut backing = String::new();
    for number in 1..=rounds {
        eprintln!("calls: round {number} of {rounds}");
        times.iter_mut().for_each(|times| times.at = 0);
        backing = round(count, &mut times);
    }
    (times.into_iter().zip(KINDS).map(|(times, (call, _))| times.summary(call)).collect(), backing)
}

fn round(
    count: usize,
    [nothing, sets, expiring, flushing, again, short, long, ticks]: &mut [Times; KINDS.len()],
) -> String {
    for n in 0..count {
        nothing.measure(|| std::hint::black_box(n));
    }
    let (mut grown, backing) = store((count * ROOM).next_multiple_of(1 << 20), EvictionPolicy::None, true);
    let fill = |store: &mut Store, times: &mut Times, count: usize, expiry, now| {
        for n in 0..count as u128 {
            let key = n.to_le_bytes();
            times.measure(|| store.set(&store.key(0, &key), &key, expiry, now)).expect("room");
            if n % 64 == 0 {
                times.measure(|| store.tick(now, Store::TICK));
            }
        }
    };
    fill(&mut grown, sets, count, Expiry::At(1_000_000), 0);
    while expiring.measure(|| grown.tick(2_000_000, Store::TICK)) {}
    fill(&mut grown, &mut Times::default(), count / 2, Expiry::Never, 2_000_000);
    flushing.measure(|| grown.flush(0));
    while flushing.measure(|| grown.tick(2_000_000, Store::TICK)) {}
    fill(&mut grown, again, count, Expiry::At(3_000_000), 2_000_000);
    drop(grown);

    let (mut full, _) = store(SMALL, EvictionPolicy::Lru(Evictable::AllKeys), true);
    let mut random = fastrand::Rng::with_seed(1);
    let value = [7; 40_000];
    // Value sizes change from one phase to another.
    for n in 0..count as u128 {
        let key = n.to_le_bytes();
        let len = match n * 5 / count as u128 {
            0 => random.usize(..40),
            1 => random.usize(..400),
            2 => random.usize(..16),
            3 if n % 16 == 0 => random.usize(..40_000),
            3 => random.usize(..300),
            _ => random.usize(..100),
        };
        let now = n as u64 / 1000;
        let times = if len >= linerate_kv::store::LONG_THRESHOLD { &mut *long } else { &mut *short };
        times.measure(|| full.set(&full.key(0, &key), &value[..len], Expiry::Never, now)).expect("room");
        if n % 64 == 0 {
            ticks.measure(|| full.tick(now, Store::TICK));
        }
    }
    backing
}

impl Report {
    /// Returns true if all requested measurements were made and are within their limits.
    pub fn is_met(&self) -> bool {
        self.missing.is_empty() && self.limits.iter().all(|limit| limit.met)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.memory.is_empty() {
            let mut table = table(["#keys", "expire", "#bytes beside key and value", "#in resident memory"]);
            for Memory { keys, expire, overhead, resident_overhead } in &self.memory {
                let expire = if *expire { "yes" } else { "no" };
                table.add_row([
                    &keys.to_string(),
                    expire,
                    &format!("{overhead:.1}"),
                    &format!("{resident_overhead:.1}"),
                ]);
            }
            writeln!(f, "{table}\n")?;
        }
        if let Some(backing) = &self.backing {
            let micros = |ns: &u32| format!("{:.1}", f64::from(*ns) / 1e3);
            let times = ["#median µs", "#99.9 % µs", "#longest µs", "#over 100 µs"];
            let mut table = table(["single calls", "#how many"].into_iter().chain(times));
            for Calls { call, calls, p50_ns, p999_ns, worst_ns, over } in &self.calls {
                let times = [p50_ns, p999_ns, worst_ns].map(micros);
                let row = [(*call).to_owned(), calls.to_string()].into_iter().chain(times).chain([over.to_string()]);
                table.add_row(row);
            }
            writeln!(f, "{table}")?;
            writeln!(f, "in {backing}; the processor's time, each call's least of {} rounds\n", self.rounds)?;
        }
        for missing in &self.missing {
            writeln!(f, "not measured: {missing}")?;
        }
        write!(f, "{}", limit::table("store", &self.limits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_takes_minimum_of_rounds() {
        let mut times = Times::default();
        for round in [[5, 900_000, 7, 8], [900_000, 200_000, 6, 9]] {
            times.at = 0;
            round.into_iter().for_each(|took| times.note(took));
        }
        let calls = times.summary("calls");
        assert_eq!((calls.calls, calls.worst_ns, calls.over, calls.p50_ns), (4, 200_000, 1, 6));
    }

    #[test]
    fn store_is_filled_to_the_last_key() {
        let memory = keys_in(4 << 20, usize::MAX, false, Expiry::Never).unwrap();
        assert!((10_000..131_072).contains(&memory.keys) && memory.overhead > 0.0, "{memory:?}");
        assert_eq!(keys_in(4 << 20, 1000, true, Expiry::At(1 << 40)).unwrap().keys, 1000);
    }

    #[test]
    fn every_kind_of_call_is_measured() {
        let (calls, _) = calls(10_000, 2);
        assert!(calls.iter().all(|calls| calls.calls > 0 && calls.p50_ns <= calls.worst_ns), "{calls:?}");
    }
}
