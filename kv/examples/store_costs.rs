//! What a store costs: bytes beside each key and value, and the worst single call.
//!
//! `cargo run --release -p linerate-kv --example store_costs -- [bytes|calls] [keys in millions…]`

use linerate_bypass::arena::{Arena, ArenaConfig};
use linerate_kv::store::{Config, Evict, Expiry, From, Store};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

fn store(memory: usize, evict: Evict) -> Store {
    let arena = Arena::new(ArenaConfig { bytes: memory + (2 << 20), hugepages: true }).expect("memory");
    Store::new(&Config { memory, evict, arena, ..Config::new(1 << 20) }, 0)
}

/// Bytes beside 16-byte keys and 16-byte values.
fn bytes(millions: usize) {
    for (name, expiry) in [("never", Expiry::Never), ("expires", Expiry::At(1 << 40))] {
        let count = millions * 1_000_000;
        let mut store = store((count * 96).next_multiple_of(1 << 20), Evict::None);
        for n in 0..count as u128 {
            let key = n.to_le_bytes();
            let key = store.key(0, &key);
            store.set(&key, &n.to_be_bytes(), expiry, 0).expect("room");
        }
        let beside = store.used() as f64 / count as f64 - 32.0;
        println!("{millions:>4} M keys, {name:>8}: {beside:.1} bytes beside key and value");
    }
}

/// Of the processor's time, without what it does for others meanwhile.
fn nanoseconds() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Times of calls.
#[derive(Default)]
struct Times {
    all: Vec<u32>,
}

impl Times {
    fn measure<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = nanoseconds();
        let result = call();
        self.all.push((nanoseconds() - start).min(u32::MAX.into()) as u32);
        result
    }

    fn print(mut self, what: &str) {
        self.all.sort_unstable();
        let at = |part: f64| Duration::from_nanos(self.all[((self.all.len() - 1) as f64 * part) as usize].into());
        let long = self.all.iter().filter(|time| **time > 100_000).count();
        println!(
            "{what:<60} median {:>9.1?}  99.9 % {:>9.1?}  99.9999 % {:>9.1?}  worst {:>9.1?}  over 100 us: {long} of {}",
            at(0.5),
            at(0.999),
            at(0.999_999),
            at(1.0),
            self.all.len()
        );
    }
}

/// The worst single calls among `millions` sets and more.
fn calls(millions: usize) {
    let count = millions * 1_000_000;
    let mut random = fastrand::Rng::with_seed(1);
    let mut grown = store((count * 96).next_multiple_of(1 << 20), Evict::None);
    // What the machine does to a loop that does nothing.
    let mut times = Times::default();
    for n in 0..count {
        times.measure(|| std::hint::black_box(n));
    }
    times.print("nothing");
    let mut times = Times::default();
    for n in 0..count as u128 {
        let key = n.to_le_bytes();
        times.measure(|| grown.set(&grown.key(0, &key), &key, Expiry::At(1_000_000), 0)).expect("room");
    }
    times.print("sets of new keys, 16 bytes each");
    let mut times = Times::default();
    let mut has_more = true;
    while has_more {
        has_more = times.measure(|| grown.tick(2_000_000, 64));
    }
    times.print("ticks of 64 while all of them expire");
    for n in 0..count as u128 / 2 {
        let key = n.to_le_bytes();
        grown.set(&grown.key(0, &key), &key, Expiry::Never, 2_000_000).expect("room");
    }
    let mut times = Times::default();
    times.measure(|| grown.flush(0));
    while times.measure(|| grown.tick(2_000_000, 64)) {}
    times.print("a flush of half as many, and ticks of 64");
    let mut times = Times::default();
    for n in 0..count as u128 {
        let key = n.to_le_bytes();
        times.measure(|| grown.set(&grown.key(0, &key), &key, Expiry::At(3_000_000), 2_000_000)).expect("room");
    }
    times.print("sets of new keys again, in memory that has been used");
    drop(grown);
    let mut full = store(256 << 20, Evict::Lru(From::All));
    let mut times = Times::default();
    let (mut long, mut ticks) = (Times::default(), Times::default());
    let value = [7; 40_000];
    // What sizes there are changes from one phase to another.
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
        let is_long = len >= 4096;
        let times = if is_long { &mut long } else { &mut times };
        times.measure(|| full.set(&full.key(0, &key), &value[..len], Expiry::Never, now)).expect("room");
        if n % 64 == 0 {
            ticks.measure(|| full.tick(now, 64));
        }
        assert!(full.used() <= (256 << 20) + (256 << 10), "{} bytes", full.used());
    }
    times.print("sets of short values, 256 MB with eviction, sizes change");
    long.print("and of long ones of up to 40 kB");
    ticks.print("and ticks of 64, each 64 sets");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let millions: Vec<usize> = arguments.iter().filter_map(|argument| argument.parse().ok()).collect();
    match arguments.first().map(String::as_str) {
        Some("bytes") => millions.into_iter().for_each(bytes),
        Some("calls") => millions.into_iter().for_each(calls),
        _ => eprintln!("bytes or calls, and millions of keys"),
    }
}
