//! Tests of writer and reader: sequential, concurrent, and with arbitrary bytes.

mod concurrent;
mod hostile;

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

pub(crate) const SEED: u64 = 0x0123_4567_89ab_cdef;

pub(crate) fn export(layout: Layout) -> (Export, Vec<Writer>) {
    let export = Export::new(layout, false).unwrap();
    let writers = (0..layout.shards() as usize).map(|shard| export.writer(shard)).collect();
    (export, writers)
}

fn read(export: &Export, extent: Extent) -> Vec<u8> {
    let mut bytes = vec![0; extent.len];
    export.memory().read(extent.at as usize / 8, &mut bytes);
    bytes
}

/// Returns the value of `key` at `now`. Nothing is written meanwhile, so no read is repeated.
pub(crate) fn find(export: &Export, key: &[u8], now: u64) -> Option<Vec<u8>> {
    let search = Search::new(export.layout(), key);
    let (row, floors) = (read(export, search.row()), read(export, search.floors()));
    let mut next = search.in_row(&row);
    loop {
        let record = match next {
            Next::Read(candidate) => {
                let record = read(export, candidate.extent);
                next = search.in_record(candidate, &record, (&row, &floors), now);
                record
            }
            Next::Absent => return None,
            Next::Found(_) | Next::Retry => panic!("{next:?} of a row"),
        };
        match &next {
            Next::Found(range) => return Some(record[range.clone()].to_vec()),
            Next::Retry => panic!("a record is not whole"),
            Next::Read(_) | Next::Absent => {}
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Set(u8, usize, u8),
    Remove(u8),
    Clear(usize),
}

fn steps() -> impl Strategy<Value = Step> {
    let len = prop_oneof![4 => 0..40usize, 3 => 0..200usize, 1 => 0..5000usize];
    prop_oneof![
        20 => (any::<u8>(), len, any::<u8>()).prop_map(|(key, len, fill)| Step::Set(key, len, fill)),
        6 => any::<u8>().prop_map(Step::Remove),
        1 => (0..3usize).prop_map(Step::Clear),
    ]
}

/// The shard of a key is arbitrary.
fn shard_of(key: u8, layout: &Layout) -> usize {
    usize::from(key / 3) % layout.shards() as usize
}

fn name(key: u8) -> Vec<u8> {
    vec![key; 1 + usize::from(key % 41)]
}

/// Runs `steps` and compares all keys after each one: a value found is the last one set, and with enough `room` it is
/// found.
fn compare(layout: Layout, steps: Vec<Step>, room: bool) -> Result<(), TestCaseError> {
    let (export, mut writers) = export(layout);
    let mut model: HashMap<u8, Vec<u8>> = HashMap::new();
    for step in steps {
        let mut last = None;
        match step {
            Step::Set(key, len, fill) => {
                let value: Vec<u8> = (0..len).map(|n| fill.wrapping_add(n as u8)).collect();
                writers[shard_of(key, &layout)].set(&name(key), &value, None);
                last = Some(key);
                model.insert(key, value);
            }
            Step::Remove(key) => {
                writers[shard_of(key, &layout)].remove(&name(key));
                model.remove(&key);
            }
            Step::Clear(shard) => {
                let shard = shard % writers.len();
                writers[shard].clear();
                model.retain(|key, _| shard_of(*key, &layout) != shard);
            }
        }
        for key in 0..=u8::MAX {
            let found = find(&export, &name(key), 0);
            let there = model.get(&key);
            if found.is_some() {
                prop_assert_eq!(found.as_ref(), there, "{}", key);
            } else if let Some(value) = there {
                let fits = layout.units(name(key).len(), value.len()).is_some();
                prop_assert!(!fits || !room && last != Some(key), "{} is lost", key);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// In small exports keys are lost but values are right: the smallest log wraps around every few steps.
    #[test]
    fn found_value_is_the_last_one_set(
        steps in prop::collection::vec(steps(), 1..200),
        shards in 1..4u32,
        rows in 1..9u32,
        log in prop_oneof![Just(64u32), 64..300u32, 64..5000u32],
    ) {
        compare(Layout::new(SEED, shards, rows, log).unwrap(), steps, false)?;
    }

    #[test]
    fn short_values_are_found_in_large_export(steps in prop::collection::vec(steps(), 1..200), shards in 1..4u32) {
        compare(Layout::new(SEED, shards, 1000, 40_000).unwrap(), steps, true)?;
    }
}

/// Records that end exactly at the end of the log, and records that leave a rest too short for the next one.
#[test]
fn log_wraps_around_at_any_record_end() {
    for lens in [&[92][..], &[92, 76], &[0, 1, 12, 13, 76], &[33]] {
        let (export, mut writers) = export(Layout::new(SEED, 1, 50, 64).unwrap());
        for n in 0..10_000u32 {
            let value = vec![n as u8; lens[n as usize % lens.len()]];
            writers[0].set(&n.to_le_bytes(), &value, None);
            // At most five records of eight units fit, plus the rest at the end of a lap.
            for recent in n.saturating_sub(4)..=n {
                let value = vec![recent as u8; lens[recent as usize % lens.len()]];
                assert_eq!(find(&export, &recent.to_le_bytes(), 0), Some(value), "{n} {recent}");
            }
        }
    }
}

#[test]
fn full_bucket_keeps_last_written_keys() {
    let (export, mut writers) = export(Layout::new(SEED, 1, 1, 4096).unwrap());
    for n in 0..1000u32 {
        writers[0].set(&n.to_le_bytes(), b"value", None);
        for recent in 0..=n {
            let found = find(&export, &recent.to_le_bytes(), 0);
            assert_eq!(found.is_some(), recent + 7 > n, "{n} {recent}");
        }
    }
}

#[test]
fn key_expired_by_readers_clock_is_absent() {
    let (export, mut writers) = export(Layout::new(SEED, 1, 10, 100).unwrap());
    writers[0].set(b"key", b"value", Some(1000));
    assert_eq!(find(&export, b"key", 999).as_deref(), Some(&b"value"[..]));
    assert_eq!(find(&export, b"key", 1000), None);
    writers[0].set(b"key", b"value", None);
    assert_eq!(find(&export, b"key", u64::MAX).as_deref(), Some(&b"value"[..]));
}

#[test]
fn record_length_is_limited_to_fraction_of_log() {
    for (log, longest) in [(64, 8 * 16 - 32 - 3), (1 << 20, 255 * 16 - 32 - 3)] {
        assert_eq!(Layout::new(SEED, 1, 10, log).unwrap().longest(), longest + 3);
        let (export, mut writers) = export(Layout::new(SEED, 1, 10, log).unwrap());
        writers[0].set(b"key", &vec![1; longest], None);
        assert_eq!(find(&export, b"key", 0), Some(vec![1; longest]));
        writers[0].set(b"key", &vec![2; longest + 1], None);
        assert_eq!(find(&export, b"key", 0), None);
    }
}

/// The hashes come from the reference implementation of XXH3.
#[test]
fn memory_matches_documented_format() {
    let layout = Layout::new(SEED, 2, 3, 64).unwrap();
    assert_eq!(layout.bytes(), 2 * 3 * 64 + 2 * 64 * 16 + 2 * 16);
    let (export, mut writers) = export(layout);
    // The next entry is then not the first of its log.
    writers[1].set(b"another", b"", None);
    writers[1].set(b"key", b"some value", Some(0x0102_0304_0506));
    let hash = 0x9016_9e50_fc3f_b66fu64;
    let row = ((u128::from(hash) * 3) >> 64) as usize;
    let entry = (hash & 0xffff) << 48 | 3 << 40 | 3;
    let bucket = read(&export, Extent { at: ((row * 2 + 1) * 64) as u64, len: 64 });
    let slot = bucket.chunks(8).position(|word| word == entry.to_le_bytes());
    assert!(slot.is_some_and(|slot| slot > 0), "{bucket:x?}");
    let record = read(&export, Extent { at: 6 * 64 + 64 * 16 + 3 * 16, len: 48 });
    let mut expected = 0xa8fb_85e3_2279_42d4u64.to_le_bytes().to_vec();
    expected.extend(hash.to_le_bytes());
    expected.extend([6, 5, 4, 3, 2, 1, 0, 0, 3, 0, 10, 0, 0, 0, 0, 0]);
    expected.extend(b"keysome value\0\0\0");
    assert_eq!(record, expected);
    let empty = read(&export, Extent { at: ((row * 2) * 64) as u64, len: 64 });
    assert_eq!(empty[..8], 0xc0bd_a4d2_8938_268au64.to_le_bytes());
    assert_eq!(empty[8..], [0; 56]);
    writers[1].clear();
    let floor = read(&export, Extent { at: layout.bytes() - 16, len: 16 });
    assert_eq!(floor[..8], 0x129b_932f_9eaf_5c07u64.to_le_bytes());
    assert_eq!(floor[8..], [6, 0, 0, 0, 0, 0, 0, 0]);
}

/// Returns the candidate that a search for `key` finds first.
fn candidate(export: &Export, key: &[u8]) -> Candidate {
    let search = Search::new(export.layout(), key);
    let Next::Read(candidate) = search.in_row(&read(export, search.row())) else { panic!("no record of {key:?}") };
    candidate
}

/// Evaluates the record of a candidate that was found earlier.
fn known(export: &Export, key: &[u8], candidate: Candidate) -> Option<Next> {
    let search = Search::new(export.layout(), key);
    search.in_known_record(candidate, &read(export, candidate.extent), &read(export, search.floors()), 0)
}

#[test]
fn known_record_is_valid_until_its_key_changes() {
    let (export, mut writers) = export(Layout::new(SEED, 1, 1, 4096).unwrap());
    let writer = &mut writers[0];
    writer.set(b"key", b"value", None);
    let first = candidate(&export, b"key");
    writer.set(b"other", b"value", None);
    assert!(matches!(known(&export, b"key", first), Some(Next::Found(_))));
    assert_eq!(known(&export, b"other", first), None);
    writer.set(b"key", b"VALUE", None);
    assert_eq!(known(&export, b"key", first), None);
    let second = candidate(&export, b"key");
    writer.remove(b"key");
    assert_eq!(known(&export, b"key", second), None);
    writer.set(b"key", b"value", None);
    let third = candidate(&export, b"key");
    writer.clear();
    assert_eq!(known(&export, b"key", third), Some(Next::Absent));
    writer.set(b"key", b"value", None);
    assert_eq!(known(&export, b"key", third), None);
    // A full bucket drops the entry of its oldest record.
    let fourth = candidate(&export, b"key");
    (0..7u32).for_each(|n| writer.set(&n.to_le_bytes(), b"value", None));
    assert_eq!(known(&export, b"key", fourth), None);
}

#[test]
fn superseded_record_still_answers_a_search_that_read_its_row() {
    let (export, mut writers) = export(Layout::new(SEED, 1, 1, 4096).unwrap());
    for removes in [false, true] {
        writers[0].set(b"key", b"value", Some(9));
        let search = Search::new(export.layout(), b"key");
        let (row, floors) = (read(&export, search.row()), read(&export, search.floors()));
        let candidate = candidate(&export, b"key");
        assert!(search.is_current(candidate, &read(&export, candidate.extent)));
        if removes {
            writers[0].remove(b"key");
        } else {
            writers[0].set(b"key", b"other", None);
        }
        let record = read(&export, candidate.extent);
        assert!(!search.is_current(candidate, &record));
        let next = search.in_record(candidate, &record, (&row, &floors), 8);
        assert!(matches!(&next, Next::Found(range) if record[range.clone()] == *b"value"), "{next:?}");
        assert_eq!(search.in_record(candidate, &record, (&row, &floors), 9), Next::Absent);
    }
}

/// A key that leaves the log and returns must not be found where it was.
#[test]
fn known_record_is_obsolete_when_it_leaves_the_log() {
    let (export, mut writers) = export(Layout::new(SEED, 1, 50, 64).unwrap());
    for n in 0..2000u32 {
        writers[0].set(b"key", &n.to_le_bytes(), None);
        let place = candidate(&export, b"key");
        let others = (0..20u32).take_while(|other| {
            writers[0].set(&other.to_le_bytes(), &[1; 90], None);
            find(&export, b"key", 0).is_some()
        });
        assert!(others.count() < 20, "{n}");
        assert_eq!(known(&export, b"key", place), None, "{n}");
    }
}

/// For any number of keys and any position in the log.
#[test]
fn flush_writes_two_words() {
    let (export, mut writers) = export(Layout::new(SEED, 2, 200, 640).unwrap());
    let memory = export.memory();
    for round in 0..30u32 {
        let from = round * 90;
        (from..from + 90).for_each(|n| writers[n as usize % 2].set(&n.to_le_bytes(), b"value", None));
        let before: Vec<u64> = (0..memory.len()).map(|at| memory.load(at)).collect();
        writers[0].clear();
        let changed = (0..memory.len()).filter(|at| memory.load(*at) != before[*at]).count();
        assert_eq!(changed, 2);
        for n in from..from + 90 {
            assert_eq!(find(&export, &n.to_le_bytes(), 0).is_some(), n % 2 == 1, "{round} {n}");
        }
    }
}

/// Entries store fewer bits of a position than floors do.
#[test]
fn flushed_key_stays_absent_and_new_keys_are_found_over_many_laps() {
    let (export, mut writers) = export(Layout::new(SEED, 1, 50, 64).unwrap());
    writers[0].set(b"flushed", b"value", None);
    writers[0].clear();
    // The log wraps around some 3000 times, which entries count modulo 1024.
    for n in 0..40_000u32 {
        writers[0].set(&n.to_le_bytes(), b"value", None);
        assert_eq!(find(&export, b"flushed", 0), None);
        assert_eq!(find(&export, &n.to_le_bytes(), 0).as_deref(), Some(&b"value"[..]), "{n}");
    }
}

/// The search began, and read the row, before the flush.
#[test]
fn flush_after_reading_row_is_seen_in_floors() {
    let (export, mut writers) = export(Layout::new(SEED, 1, 50, 64).unwrap());
    writers[0].set(b"key", b"value", None);
    let search = Search::new(export.layout(), b"key");
    let (row, before) = (read(&export, search.row()), read(&export, search.floors()));
    writers[0].clear();
    let Next::Read(candidate) = search.in_row(&row) else { panic!("no record") };
    let (record, floors) = (read(&export, candidate.extent), read(&export, search.floors()));
    assert!(matches!(search.in_record(candidate, &record, (&row, &before), 0), Next::Found(_)));
    assert_eq!(search.in_record(candidate, &record, (&row, &floors), 0), Next::Absent);
}

#[test]
fn layout_fits_and_leaves_little_unused() {
    for (bytes, shards) in [(64 << 20, 1), (64 << 20, 7), (100_000, 3), (5000, 1)] {
        let layout = Layout::fitting(bytes, shards, SEED).unwrap();
        let taken = layout.bytes() as usize;
        assert!(taken <= bytes && taken + shards * 16 > bytes, "{layout:?}");
        let index = layout.rows() as usize * shards * 64;
        assert!(index <= bytes / 6 && index + shards * 64 > bytes / 6, "{layout:?}");
    }
    for (bytes, shards) in [(0, 1), (1000, 1), (64 << 20, 0), (64 << 20, 257), (usize::MAX, usize::MAX)] {
        assert_eq!(Layout::fitting(bytes, shards, SEED), None);
    }
    // The log has its maximum length.
    assert_eq!(Layout::fitting(1 << 40, 1, SEED).unwrap().log(), 1 << 30);
}

#[test]
#[should_panic(expected = "shard 0 has two writers")]
fn shard_has_one_writer() {
    let (export, _writers) = export(Layout::new(SEED, 1, 1, 64).unwrap());
    let _ = export.writer(0);
}
