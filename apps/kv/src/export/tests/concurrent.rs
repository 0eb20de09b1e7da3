//! Readers that copy, in any order and any size, what is being written.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// SETs, DELs and flushes, at least.
const CHANGES: u64 = if cfg!(miri) { 300 } else { 1_000_000 };
/// What each reader must have found, and what of it must have been in vain before the writer stops.
const FOUND: usize = if cfg!(miri) { 20 } else { 20_000 };
const TORN: usize = if cfg!(miri) { 0 } else { 100 };
const KEYS: usize = 24;

/// Bytes of `extent`, one by one or eight by eight, in an order that is any. A byte is that which was in its word when its turn came.
fn copy(memory: &Published, extent: Extent, random: &mut fastrand::Rng) -> Vec<u8> {
    let size = [1, 8][random.usize(..2)];
    let parts = extent.len / size;
    let (start, mut step) = (random.usize(..parts), random.usize(..parts));
    match random.u8(..4) {
        0 => step = 1,
        1 => step = parts - 1,
        _ => {}
    }
    // Those that it would come to twice before all are left out.
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

/// What `key` has in its `version`.
fn value(key: usize, version: u64, into: &mut Vec<u8>) {
    into.clear();
    // All lengths come, few of them long.
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

struct LocationHint {
    /// For each key the version that it has had at least, by the time that this can be read here.
    done: Vec<AtomicU64>,
    /// And that which it has at most.
    begun: Vec<AtomicU64>,
    found: Vec<AtomicUsize>,
    torn: Vec<AtomicUsize>,
    is_over: AtomicBool,
}

fn reader(export: &Export, seen: &LocationHint, number: usize) {
    let mut random = fastrand::Rng::with_seed(number as u64);
    let mut expected = Vec::new();
    while !seen.is_over.load(Ordering::Acquire) {
        let key = random.usize(..KEYS);
        let name = name(key);
        let search = Search::new(export.layout(), &name);
        let oldest = seen.done[key].load(Ordering::Acquire);
        // They may be read any time, if it is after the beginning.
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
                let newest = seen.begun[key].load(Ordering::Acquire);
                assert!((oldest..=newest).contains(&version), "{version} is not of {oldest} to {newest}");
                value(key, version, &mut expected);
                assert_eq!(found, expected, "{key} {version}");
                assert!(version % 4 != 3, "{version} was a DEL or a flush");
                seen.found[number].fetch_add(1, Ordering::Relaxed);
            }
        }
        if next == Next::Retry {
            seen.torn[number].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// All keys of `shard` have the next version that is none.
fn flush(seen: &LocationHint, writers: &mut [Writer], shard: usize) {
    let keys = || (shard..KEYS).step_by(writers.len());
    for key in keys() {
        let version = seen.begun[key].load(Ordering::Relaxed) / 4 * 4 + 7;
        seen.begun[key].store(version, Ordering::Release);
    }
    writers[shard].clear();
    for key in (shard..KEYS).step_by(writers.len()) {
        seen.done[key].store(seen.begun[key].load(Ordering::Relaxed), Ordering::Release);
    }
}

/// What is found is whole, the key's own, and no older than what it had when the search began.
fn race(layout: Layout) {
    const READERS: usize = 2;
    let (export, mut writers) = export(layout);
    let counters = |count: usize| (0..count).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>();
    let versions = || (0..KEYS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let seen = LocationHint {
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
                    let (export, seen) = (&export, &seen);
                    move || reader(export, seen, number)
                })
            })
            .collect();
        let mut random = fastrand::Rng::with_seed(1);
        let mut bytes = Vec::new();
        let mut changes = 0;
        let have_seen = |counts: &[AtomicUsize], most| counts.iter().all(|count| count.load(Ordering::Relaxed) >= most);
        while (changes < CHANGES || !have_seen(&seen.found, FOUND) || !have_seen(&seen.torn, TORN))
            && !readers.iter().any(|reader| reader.is_finished())
        {
            changes += 1;
            if changes % 64 == 0 {
                flush(&seen, &mut writers, random.usize(..layout.shards() as usize));
                continue;
            }
            // Few of them often.
            let key = random.usize(..KEYS).min(random.usize(..KEYS));
            let version = seen.begun[key].load(Ordering::Relaxed) + 1;
            seen.begun[key].store(version, Ordering::Release);
            let writer = &mut writers[key % layout.shards() as usize];
            if version % 4 == 3 {
                writer.remove(&name(key));
            } else {
                value(key, version, &mut bytes);
                writer.set(&name(key), &bytes, None);
            }
            seen.done[key].store(version, Ordering::Release);
        }
        seen.is_over.store(true, Ordering::Release);
    });
}

/// Where the same places are written over and over.
#[test]
fn in_the_least_log_nothing_torn_foreign_or_stale_is_found() {
    race(Layout::new(SEED, 1, 1, 64).unwrap());
}

/// Where old versions stay for long.
#[test]
fn in_a_long_log_nothing_torn_foreign_or_stale_is_found() {
    race(Layout::new(SEED, 2, 4, 1 << 17).unwrap());
}
