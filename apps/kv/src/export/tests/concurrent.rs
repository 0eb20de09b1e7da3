//! Readers that copy memory in any order and granularity while it is written.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Minimum number of SETs, DELs and flushes.
const CHANGES: u64 = if cfg!(miri) { 300 } else { 1_000_000 };
/// Numbers of successful and of torn searches that each reader must have made before the writer stops.
const FOUND: usize = if cfg!(miri) { 20 } else { 20_000 };
const TORN: usize = if cfg!(miri) { 0 } else { 100 };
const KEYS: usize = 24;

/// Copies `extent` bytewise or wordwise in a random order. Each byte is as in memory when its turn comes.
fn copy(memory: &Published, extent: Extent, random: &mut fastrand::Rng) -> Vec<u8> {
    let size = [1, 8][random.usize(..2)];
    let parts = extent.len / size;
    let (start, mut step) = (random.usize(..parts), random.usize(..parts));
    match random.u8(..4) {
        0 => step = 1,
        1 => step = parts - 1,
        _ => {}
    }
    // The step must visit every part once.
    while step == 0 || gcd(step, parts) != 1 {
        step += 1;
    }
    let mut bytes = vec![0; extent.len];
    for part in 0..parts {
        let at = (start + part * step) % parts * size;
        let word = memory.load((extent.at as usize + at) / 8).to_le_bytes();
        bytes[at..at + size].copy_from_slice(&word[at % 8..][..size]);
        if parts < 100 && random.u8(..) == 0 {
            std::hint::spin_loop();
        }
    }
    bytes
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn value(key: usize, version: u64, into: &mut Vec<u8>) {
    into.clear();
    // All lengths occur, long ones seldom.
    let len =
        16 + (version.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % [40, 100, 40, 400][version as usize % 4];
    into.extend(version.to_le_bytes());
    into.extend((key as u64).to_le_bytes());
    into.extend((16..len).map(|at| (version as u8).wrapping_mul(31).wrapping_add(at as u8)));
}

fn name(key: usize) -> [u8; 9] {
    let mut name = *b"key of 00";
    name[7..].copy_from_slice(&[b'0' + (key / 10) as u8, b'0' + (key % 10) as u8]);
    name
}

struct Observed {
    /// Version that each key has at least, once this value is visible to a reader.
    done: Vec<AtomicU64>,
    /// Version that each key has at most.
    begun: Vec<AtomicU64>,
    found: Vec<AtomicUsize>,
    torn: Vec<AtomicUsize>,
    is_over: AtomicBool,
}

fn reader(export: &Export, observed: &Observed, number: usize) {
    let mut random = fastrand::Rng::with_seed(number as u64);
    let mut expected = Vec::new();
    while !observed.is_over.load(Ordering::Acquire) {
        let key = random.usize(..KEYS);
        let name = name(key);
        let search = Search::new(export.layout(), &name);
        let oldest = observed.done[key].load(Ordering::Acquire);
        // The floors may be read at any time after the start of the search.
        let before = random.bool().then(|| copy(export.memory(), search.floors(), &mut random));
        let row = copy(export.memory(), search.row(), &mut random);
        let mut next = search.in_row(&row);
        while let Next::Read(candidate) = next {
            if random.u8(..) < 8 {
                std::thread::yield_now();
            }
            let record = copy(export.memory(), candidate.extent, &mut random);
            let floors = before.clone().unwrap_or_else(|| copy(export.memory(), search.floors(), &mut random));
            next = search.in_record(candidate, &record, (&row, &floors), 0);
            if let Next::Found(range) = &next {
                let found = &record[range.clone()];
                let version = u64::from_le_bytes(*found.first_chunk().unwrap());
                let newest = observed.begun[key].load(Ordering::Acquire);
                assert!((oldest..=newest).contains(&version), "{version} is not of {oldest} to {newest}");
                value(key, version, &mut expected);
                assert_eq!(found, expected, "{key} {version}");
                assert!(version % 4 != 3, "{version} was a DEL or a flush");
                observed.found[number].fetch_add(1, Ordering::Relaxed);
            }
        }
        if next == Next::Retry {
            observed.torn[number].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Gives all keys of `shard` the next version without a value.
fn flush(observed: &Observed, writers: &mut [Writer], shard: usize) {
    let keys = || (shard..KEYS).step_by(writers.len());
    for key in keys() {
        let version = observed.begun[key].load(Ordering::Relaxed) / 4 * 4 + 7;
        observed.begun[key].store(version, Ordering::Release);
    }
    writers[shard].clear();
    for key in (shard..KEYS).step_by(writers.len()) {
        observed.done[key].store(observed.begun[key].load(Ordering::Relaxed), Ordering::Release);
    }
}

/// Checks that values found are complete, belong to the key, and are not older than at the start of the search.
fn race(layout: Layout) {
    const READERS: usize = 2;
    let (export, mut writers) = export(layout);
    let counters = |count: usize| (0..count).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>();
    let versions = || (0..KEYS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let observed = Observed {
        done: versions(),
        begun: versions(),
        found: counters(READERS),
        torn: counters(READERS),
        is_over: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|number| {
                scope.spawn({
                    let (export, observed) = (&export, &observed);
                    move || reader(export, observed, number)
                })
            })
            .collect();
        let mut random = fastrand::Rng::with_seed(1);
        let mut bytes = Vec::new();
        let mut changes = 0;
        let have_seen = |counts: &[AtomicUsize], most| counts.iter().all(|count| count.load(Ordering::Relaxed) >= most);
        while (changes < CHANGES || !have_seen(&observed.found, FOUND) || !have_seen(&observed.torn, TORN))
            && !readers.iter().any(|reader| reader.is_finished())
        {
            changes += 1;
            if changes % 64 == 0 {
                flush(&observed, &mut writers, random.usize(..layout.shards() as usize));
                continue;
            }
            // Prefer a few keys.
            let key = random.usize(..KEYS).min(random.usize(..KEYS));
            let version = observed.begun[key].load(Ordering::Relaxed) + 1;
            observed.begun[key].store(version, Ordering::Release);
            let writer = &mut writers[key % layout.shards() as usize];
            if version % 4 == 3 {
                writer.remove(&name(key));
            } else {
                value(key, version, &mut bytes);
                writer.set(&name(key), &bytes, None);
            }
            observed.done[key].store(version, Ordering::Release);
        }
        observed.is_over.store(true, Ordering::Release);
    });
}

/// The same memory is overwritten again and again.
#[test]
fn smallest_log_shows_no_torn_foreign_or_stale_value() {
    race(Layout::new(SEED, 1, 1, 64).unwrap());
}

/// Old versions remain for long.
#[test]
fn long_log_shows_no_torn_foreign_or_stale_value() {
    race(Layout::new(SEED, 2, 4, 1 << 17).unwrap());
}
