//! Models of the cache with one writer.

use super::shared_cache::{CacheWriter, SharedCache};
use super::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use std::sync::Arc;

/// Words of the log, in which twelve records of five words fit.
const LOG: usize = 64;
const RECORDS: u64 = 12;
const WORDS: usize = 8 + LOG / 4 * 5;

/// [`model`](super::model) with room for the writes before the threads start.
fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.max_branches = 100_000;
    model.check(body);
}

type Words = Box<[AtomicU64]>;

fn cache() -> (Arc<SharedCache<Words>>, CacheWriter<Words>) {
    let cache = SharedCache::new((0..WORDS).map(|_| AtomicU64::new(0)).collect()).unwrap();
    let cache = Arc::new(cache);
    (cache.clone(), CacheWriter::new(cache))
}

fn publish(writer: &mut CacheWriter<Words>, n: u64) {
    writer.publish(n << 60 | n, n, &[n as u8; 8], &[n as u8; 8]);
}

/// Reads the record of `n`, and fails if it is not whole.
fn check(cache: &SharedCache<Words>, n: u64) -> bool {
    let hash = n << 60 | n;
    let mut value = [0; 8];
    let Some(entry) = cache.find(hash) else { return false };
    let Some(read) = cache.read(entry, hash, &[n as u8; 8], &mut value) else { return false };
    assert_eq!((read, value), ((n, 8), [n as u8; 8]));
    true
}

#[test]
fn record_is_whole_or_absent_while_it_is_overwritten() {
    model(|| {
        let (cache, mut writer) = cache();
        (1..=RECORDS).for_each(|n| publish(&mut writer, n));
        assert!(check(&cache, 1) && check(&cache, RECORDS));
        // The record of the same key and length, but another value, is written over the first.
        let reader = thread::spawn(move || check(&cache, 1));
        writer.publish(1 << 60 | 99, 1, &[1; 8], &[99; 8]);
        reader.join().unwrap();
    });
}

#[test]
fn published_record_is_whole() {
    model(|| {
        let (cache, mut writer) = cache();
        let reader = thread::spawn(move || check(&cache, 3));
        publish(&mut writer, 3);
        reader.join().unwrap();
    });
}

#[test]
fn record_is_absent_after_a_change_is_known() {
    model(|| {
        let (cache, mut writer) = cache();
        publish(&mut writer, 3);
        publish(&mut writer, 4);
        let is_changed = loom::sync::Arc::new(AtomicU64::new(0));
        let seen = is_changed.clone();
        let reader = thread::spawn(move || {
            let known = seen.load(Ordering::Acquire);
            let found = [3, 4].map(|n| check(&cache, n));
            assert!(known < 1 || !found[0], "the record was invalidated");
            assert!(known < 2 || !found[1], "all records were removed");
        });
        writer.invalidate(3 << 60 | 3);
        is_changed.store(1, Ordering::Release);
        writer.clear();
        is_changed.store(2, Ordering::Release);
        reader.join().unwrap();
    });
}
