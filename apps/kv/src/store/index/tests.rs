//! Tests of the index.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

fn location(n: u32) -> Location {
    Location(NonZeroU32::new(n).unwrap())
}

/// Hashes that often share a tag, a segment, or nearly so.
fn hashes() -> impl Strategy<Value = u64> {
    let tag = prop_oneof![Just(0), Just(u32::MAX), 0u32..64, any::<u32>()];
    let upper = prop_oneof![Just(0), Just(u32::MAX), any::<u32>()];
    (upper, tag).prop_map(|(upper, tag)| u64::from(upper) << 32 | u64::from(tag))
}

proptest! {
    #[test]
    fn index_agrees_with_model(operations in prop::collection::vec((hashes(), 0..4u8, any::<prop::sample::Index>()), 1..600)) {
        let mut index = Index::new(3 * SEGMENT);
        let mut model = BTreeMap::new();
        for (n, (hash, operation, which)) in operations.into_iter().enumerate() {
            let there: Vec<(Location, u64)> = model.iter().map(|(location, hash)| (*location, *hash)).collect();
            match operation {
                0 | 1 => {
                    let most = index.bytes() + index.growth_under(hash);
                    index.insert(hash, location(n as u32 + 1));
                    prop_assert!(index.bytes() <= most);
                    model.insert(location(n as u32 + 1), hash);
                }
                2 if !there.is_empty() => {
                    let (old, hash) = there[which.index(there.len())];
                    prop_assert!(index.remove(hash, old));
                    prop_assert!(!index.remove(hash, old));
                    model.remove(&old);
                }
                3 if !there.is_empty() => {
                    let (old, hash) = there[which.index(there.len())];
                    let new = location(n as u32 + 10_000);
                    prop_assert!(index.relocate(hash, old, new));
                    model.remove(&old);
                    model.insert(new, hash);
                }
                _ => {}
            }
            prop_assert_eq!(index.len(), model.len());
        }
        for (location, hash) in &model {
            prop_assert_eq!(index.find(*hash, |it| it == *location), Some(*location));
            prop_assert_eq!(index.find(!*hash, |it| it == *location), None);
            // Only the tag is compared.
            let likely = index.probe(*hash);
            prop_assert_eq!(likely.map(|it| model[&it] as u32), Some(*hash as u32));
        }
        let mut seen = BTreeSet::new();
        let mut cursor = 0;
        loop {
            cursor = index.scan(cursor, 7, |location| { seen.insert(location); });
            if cursor == 0 { break }
        }
        prop_assert_eq!(seen, model.keys().copied().collect::<BTreeSet<_>>());
    }
}

#[test]
fn scan_visits_every_entry_that_stays_while_table_grows_and_shrinks() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut index = Index::new(2 * SEGMENT);
    let stay: Vec<u64> = (0..3000).map(|_| random.u64(..)).collect();
    for (n, hash) in stay.iter().enumerate() {
        index.insert(*hash, location(n as u32 + 1));
    }
    let mut seen = BTreeSet::new();
    let mut passing: Vec<(u64, Location)> = Vec::new();
    let mut cursor = 0;
    for turn in 0.. {
        cursor = index.scan(cursor, 10, |location| {
            seen.insert(location);
        });
        if cursor == 0 {
            break;
        }
        for n in 0..40 {
            // The table grows to three times its size and shrinks again.
            if turn < 150 {
                let (hash, location) = (random.u64(..), location(100_000 + turn * 40 + n));
                index.insert(hash, location);
                passing.push((hash, location));
            } else if let Some((hash, location)) = passing.pop() {
                assert!(index.remove(hash, location));
            }
        }
    }
    for n in 0..3000 {
        assert!(seen.contains(&location(n + 1)), "{n}");
    }
}

#[test]
fn entry_takes_12_to_15_bytes_in_full_size_segments() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut index = Index::new(200_000);
    for n in 0..200_000 {
        index.insert(random.u64(..), location(n + 1));
        if n > 40_000 && n % 10_000 == 0 {
            let each = index.bytes() as f64 / index.len() as f64;
            assert!((12.0..=15.5).contains(&each), "{each} at {n}");
        }
    }
}

#[test]
fn removal_frees_memory() {
    let mut index = Index::new(10_000);
    let empty = index.bytes();
    for n in 0..10_000u64 {
        index.insert(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), location(n as u32 + 1));
    }
    for n in 0..10_000u64 {
        assert!(index.remove(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), location(n as u32 + 1)));
    }
    assert_eq!((index.len(), index.bytes()), (0, empty));
}

#[test]
fn removal_in_tag_order_leaves_no_long_runs() {
    let mut index = Index::new(SEGMENT);
    let mut tags: Vec<u64> = (0..4000u64).map(|n| n << 20 | n).collect();
    for (n, tag) in tags.iter().enumerate() {
        index.insert(*tag, location(n as u32 + 1));
    }
    while let Some(tag) = tags.pop() {
        assert!(index.remove(tag, location(tags.len() as u32 + 1)));
        // Longest run of full lines.
        let lines = &index.segments[0].lines;
        let longest = lines.split(|line| !line.is_full()).map(<[Line]>::len).max().unwrap_or(0) * LINE;
        assert!(longest < 200, "{longest} of {}", tags.len());
    }
    assert_eq!(index.lines, 0);
}

#[test]
fn samples_are_spread_over_the_table() {
    let mut random = fastrand::Rng::with_seed(3);
    let mut index = Index::new(1000);
    assert_eq!(index.sample(5), None);
    for n in 0..1000 {
        index.insert(random.u64(..), location(n + 1));
    }
    let seen: BTreeSet<_> = (0..10_000).map(|_| index.sample(random.u64(..)).unwrap()).collect();
    assert!(seen.len() > 900, "{}", seen.len());
}

#[test]
fn sample_finds_the_only_entry_among_many_segments() {
    let mut random = fastrand::Rng::with_seed(4);
    let mut index = Index::new(8 * SEGMENT);
    index.insert(5 << 61 | 9, location(1));
    for _ in 0..1000 {
        assert_eq!(index.sample(random.u64(..)), Some(location(1)));
    }
}

#[test]
fn segment_shrinks_to_two_thirds_full_when_most_entries_have_gone() {
    let mut random = fastrand::Rng::with_seed(6);
    let mut index = Index::new(SEGMENT);
    let mut hashes: Vec<u64> = (0..4096).map(|_| random.u64(..)).collect();
    for (n, hash) in hashes.iter().enumerate() {
        index.insert(*hash, location(n as u32 + 1));
    }
    let full = index.lines;
    while hashes.len() > 1024 {
        assert_eq!((index.lines, index.shrunk()), (full, 0), "{} entries", hashes.len());
        let hash = hashes.pop().unwrap();
        assert!(index.remove(hash, location(hashes.len() as u32 + 1)));
    }
    // 1536 slots of 8 to a line, and the spare lines after the last home.
    assert_eq!((index.lines, index.shrunk()), (lines_for(192), 1));
    for (n, hash) in hashes.iter().enumerate() {
        assert_eq!(index.find(*hash, |_| true), Some(location(n as u32 + 1)));
    }
}

#[test]
fn scan_starts_at_tag_of_cursor() {
    let mut index = Index::new(2 * SEGMENT);
    let hashes: Vec<u64> = (0..100u64).map(|n| (n % 2) << 63 | n << 25).collect();
    for (n, hash) in hashes.iter().enumerate() {
        index.insert(*hash, location(n as u32 + 1));
    }
    for (n, hash) in hashes.iter().enumerate() {
        let (segment, tag) = (n as u64 % 2, u64::from(*hash as u32));
        assert_eq!(index.cursor_of(*hash), segment << 32 | tag);
        let mut first = BTreeSet::new();
        index.scan(index.cursor_of(*hash), 1, |location| {
            first.insert(location);
        });
        assert!(first.contains(&location(n as u32 + 1)), "{n}");
        assert!(first.iter().all(|it| it.0.get() > n as u32), "{n}: {first:?}");
    }
}

#[test]
fn growth_bounds_bytes_of_many_entries() {
    let mut random = fastrand::Rng::with_seed(2);
    for segments in [1, 8] {
        let mut index = Index::new(segments * SEGMENT);
        let mut last = 0;
        for count in [1, 10, 100, 1000, 5000, 20_000] {
            let most = index.bytes() + index.growth(count);
            for _ in 0..count {
                last += 1;
                index.insert(random.u64(..), location(last));
            }
            assert!(index.bytes() <= most, "{count} entries in {segments} segments");
        }
        assert!(index.growth(1) < index.bytes() / segments, "a segment does not double");
    }
}
