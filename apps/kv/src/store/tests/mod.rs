mod bound;
mod boundaries;
mod model;

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::ops::Range;

fn store(memory: usize, evict: EvictionPolicy) -> Store {
    Store::new(&Config { evict, key: *b"0123456789abcdef", ..Config::new(memory) }, 0)
}

impl Store {
    /// Sets keys named by the little-endian bytes of `numbers`.
    pub(in crate::store) fn fill(&mut self, space: u8, numbers: Range<u32>, value: &[u8], now: u64) {
        for name in numbers.map(u32::to_le_bytes) {
            self.set(&self.key(space, &name), value, Expiry::Never, now).unwrap();
        }
    }
}

fn name(key: u8) -> Vec<u8> {
    vec![key; 1 + usize::from(key)]
}

#[test]
fn hint_reads_and_overwrites_plain_short_string() {
    let mut store = store(8 << 20, EvictionPolicy::None);
    let [key, other, tagged, expiring, list] =
        [&b"key"[..], b"other", b"tagged", b"expiring", b"hash"].map(|name| store.hasher().key(0, name));
    store.set(&key, &b"one"[..], Expiry::Never, 0).unwrap();
    store.set_with_meta(&tagged, &b"one"[..], 7, 0, Expiry::Never, 0).unwrap();
    store.set(&expiring, &b"one"[..], Expiry::At(99), 0).unwrap();
    store.hset(&list, b"one", &b"two"[..], 0).unwrap();
    let seen = store.location_hint(key.hash());
    assert_eq!(store.get_with_hint(&key, seen, 1), Some(&b"one"[..]));
    assert!(store.set_with_hint(&key, seen, b"two", 1));
    assert_eq!(store.get_with_hint(&key, seen, 1), Some(&b"two"[..]));
    // Expired values and hashes are left to the full lookup.
    let [seen_expiring, seen_hash] = [&expiring, &list].map(|key| store.location_hint(key.hash()));
    assert_eq!(store.get_with_hint(&expiring, seen_expiring, 98), Some(&b"one"[..]));
    assert_eq!(store.get_with_hint(&expiring, seen_expiring, 99), None);
    assert_eq!(store.get_with_hint(&list, seen_hash, 1), None);
    assert!(store.get(&key, 1).unwrap().unwrap() == b"two"[..]);
    // Other length, other key, no hint, and items with metadata, an expiry time or fields.
    assert!(!store.set_with_hint(&key, seen, b"three", 1));
    assert!(!store.set_with_hint(&other, seen, b"two", 1));
    assert!(!store.set_with_hint(&key, LocationHint::default(), b"two", 1));
    for key in [&tagged, &expiring, &list] {
        let seen = store.location_hint(key.hash());
        assert!(!store.set_with_hint(key, seen, b"two", 1), "{key:?}");
    }
    // A hint is void after a removal, even if another item reuses the slot.
    assert!(store.remove(&key, 1));
    store.set(&other, &b"tw"[..], Expiry::Never, 1).unwrap();
    assert!(!store.set_with_hint(&key, seen, b"two", 1));
    assert!(store.get(&key, 1).unwrap().is_none() && store.get(&other, 1).unwrap().unwrap() == b"tw"[..]);
}

#[test]
fn write_is_refused_without_evictable_items_and_loses_none() {
    for evict in [EvictionPolicy::None, EvictionPolicy::Lru(Evictable::Volatile), EvictionPolicy::Ttl] {
        let mut store = store(1 << 20, evict);
        let mut stored = 0u32;
        while store.set(&store.key(0, &stored.to_le_bytes()), &[1; 100], Expiry::Never, 0).is_ok() {
            stored += 1;
        }
        assert!(stored > 6000, "{stored}");
        for n in 0..stored {
            assert!(store.get(&store.key(0, &n.to_le_bytes()), 0).unwrap().unwrap() == [1; 100][..], "{n}");
        }
        // A write that needs no memory succeeds.
        let first = 0u32.to_le_bytes();
        assert_eq!(store.set(&store.key(0, &first), &[2; 100], Expiry::Never, 0), Ok(()));
        assert!(store.remove(&store.key(0, &first), 0));
        assert_eq!(store.set(&store.key(0, b"more"), &[1; 100], Expiry::Never, 0), Ok(()));
    }
}

/// Keeps ten keys in use among many short-lived ones. Returns the number of misses on the ten.
fn lost_of_ten(evict: EvictionPolicy) -> usize {
    let mut store = store(1 << 20, evict);
    let used: Vec<[u8; 4]> = (0..10u32).map(|n| n.to_le_bytes()).collect();
    let mut lost = 0;
    for n in 0..40_000u32 {
        let now = u64::from(n) * 10;
        let key = &used[n as usize % 10];
        if store.get(&store.key(0, key), now).unwrap().is_none() {
            lost += usize::from(n >= 10);
            store.set(&store.key(0, key), &[0; 100], Expiry::At(10_000_000), now).unwrap();
        }
        let other = (n + 1000).to_le_bytes();
        store.set(&store.key(0, &other), &[0; 100], Expiry::At(10_000_000), now).unwrap();
    }
    assert!(store.counts().evicted > 30_000);
    lost
}

#[test]
fn used_keys_outlive_unused_ones() {
    for from in [Evictable::AllKeys, Evictable::Volatile] {
        assert_eq!(lost_of_ten(EvictionPolicy::Lfu(from)), 0, "{from:?}");
        assert!(lost_of_ten(EvictionPolicy::Lru(from)) <= 2, "{from:?}");
        assert!(lost_of_ten(EvictionPolicy::Random(from)) > 10, "{from:?}");
    }
}

/// Simulates a cache with Zipf-distributed requests of exponent 0.99, one in `millis`, where a miss stores the key.
/// Returns the hit rate of a store and of `model`, which gets the requested key and the number of keys in the store, in
/// percent.
fn hits(evict: EvictionPolicy, millis: u64, mut model: impl FnMut(u32, usize) -> bool) -> (f64, f64) {
    const KEYS: usize = 100_000;
    let mut store = store(2 << 20, evict);
    let mut random = fastrand::Rng::with_seed(1);
    let mut sum = 0.0;
    let mut sums = Vec::new();
    for rank in 1..=KEYS {
        sum += (rank as f64).powf(-0.99);
        sums.push(sum);
    }
    let (mut found, mut in_model, mut counted) = (0, 0, 0);
    for n in 0..200_000u64 {
        let drawn = random.f64() * sum;
        let number = sums.partition_point(|to| *to < drawn) as u32;
        let (name, now) = (number.to_le_bytes(), n * millis);
        let key = store.key(0, &name);
        let is_hit = store.get(&key, now).unwrap().is_some();
        if !is_hit {
            store.set(&key, &[0; 100], Expiry::Never, now).unwrap();
        }
        let is_model_hit = model(number, store.len(0));
        if n > 100_000 {
            (found, in_model, counted) = (found + u32::from(is_hit), in_model + u32::from(is_model_hit), counted + 1);
        }
    }
    (f64::from(found) * 100.0 / f64::from(counted), f64::from(in_model) * 100.0 / f64::from(counted))
}

#[test]
fn sampled_lru_hits_as_often_as_exact_lru() {
    let mut used = HashMap::new();
    let mut order = std::collections::BTreeMap::new();
    let (store, model) = hits(EvictionPolicy::Lru(Evictable::AllKeys), 5, |key, room| {
        let time = order.last_key_value().map_or(0, |(time, _)| time + 1);
        let before = used.insert(key, time);
        before.iter().for_each(|before| _ = order.remove(before));
        order.insert(time, key);
        while order.len() > room {
            let (_, oldest) = order.pop_first().unwrap();
            used.remove(&oldest);
        }
        before.is_some()
    });
    assert!((store - model).abs() < 2.0, "{store} of 100, exactly {model}");
}

#[test]
fn sampled_lfu_hits_nearly_as_often_as_exact_lfu() {
    // Keys are numbered by rank, so the most frequent ones are the first.
    let (store, best) = hits(EvictionPolicy::Lfu(Evictable::AllKeys), 1, |key, room| (key as usize) < room);
    assert!(store > best - 6.0, "{store} of 100, at best {best}");
}

/// The memory of a value that is not completed is freed.
#[test]
fn long_value_gets_memory_while_it_arrives() {
    let mut store = store(4 << 20, EvictionPolicy::Lru(Evictable::AllKeys));
    store.fill(0, 0..60_000, &[0; 40], 0);
    let bytes: Vec<u8> = (0..2_000_000u32).map(|n| n as u8).collect();
    let key = Key { bytes: b"long", ..store.key(0, b"long") };
    for is_left in [true, false] {
        let mut writer = LongWriter::new(bytes.len());
        assert_eq!((writer.left(), writer.room()), (bytes.len(), 0));
        let mut rest = &bytes[..if is_left { 1_000_000 } else { bytes.len() }];
        while !rest.is_empty() {
            let before = store.counts().evicted;
            store.extend_long(&mut writer, 0).unwrap();
            assert!(writer.room() > 0 && writer.room() <= 64 << 10);
            assert!(store.counts().evicted - before < 5000, "{} in a call", store.counts().evicted - before);
            rest = &rest[writer.fill(rest)..];
        }
        if !is_left {
            store.set(&key, writer.finish(), Expiry::Never, 0).unwrap();
        }
        assert!(store.used() <= 4 << 20, "{}", store.used());
    }
    assert!(store.get(&key, 0).unwrap().unwrap() == bytes[..]);
    assert_eq!(store.long(5 << 20, 0).err(), Some(Error::Full));
}

#[test]
fn lent_value_is_not_copied_and_is_counted_once() {
    let config = Config { evict: EvictionPolicy::Lru(Evictable::AllKeys), ..Config::new(16 << 20) };
    let [mut writer, mut keeper] = [4 << 20; 2].map(|memory| Store::new(&Config { memory, ..config.clone() }, 0));
    let [before_writer, before_keeper] = [&writer, &keeper].map(Store::used);
    let key = keeper.key(0, b"key");
    let mut long = writer.copy_to_arena(&[7; 300_000], 0).unwrap();
    let address = long.parts()[0].as_ptr();
    assert!(writer.used() - before_writer >= 300_000);
    writer.lend(&mut long);
    assert!(writer.used() - before_writer < 100_000);
    keeper.set(&key, long, Expiry::Never, 0).unwrap();
    assert!(keeper.used() - before_keeper >= 300_000);
    let Ok(Some(Str::Long(stored))) = keeper.get(&key, 0) else { panic!("no long value") };
    assert_eq!((stored.len(), stored.parts()[0].as_ptr()), (300_000, address));
    assert_eq!(keeper.append(&key, b"end", 0), Ok(300_003));
    let Ok(Some(value)) = keeper.get(&key, 0) else { panic!("no value") };
    assert!(value == [&[7; 300_000][..], b"end"].concat()[..]);
    assert!(keeper.remove(&key, 0));
    while keeper.tick(0, 64) {}
    assert!(keeper.used() - before_keeper < 250_000);
    // The lender can use the memory again, and every byte is counted once.
    for n in 0..100u32 {
        let mut long = writer.copy_to_arena(&[7; 300_000], 0).unwrap();
        writer.lend(&mut long);
        keeper.set(&keeper.key(0, &n.to_le_bytes()), long, Expiry::Never, 0).unwrap();
        assert!(keeper.used() <= 4 << 20 && writer.used() <= 4 << 20);
        while keeper.tick(0, 64) | writer.tick(0, 64) {}
    }
    assert!((8..14).contains(&keeper.len(0)), "{} values", keeper.len(0));
}

#[test]
fn ttl_policy_evicts_soonest_expiring_key() {
    let mut store = store(1 << 20, EvictionPolicy::Ttl);
    for n in 0..20_000u32 {
        // Later keys expire sooner, except for one in a hundred, which expires late.
        let at = if n % 100 == 0 { 100_000_000 } else { 10_000_000 - u64::from(n) };
        store.set(&store.key(0, &n.to_le_bytes()), &[0; 100], Expiry::At(at), 0).unwrap();
    }
    let long = (0..20_000u32)
        .step_by(100)
        .filter(|n| store.get(&store.key(0, &n.to_le_bytes()), 1).unwrap().is_some())
        .count();
    assert_eq!(long, 200);
}

#[test]
fn small_item_has_small_overhead() {
    for (expiry, most) in [(Expiry::Never, 32.0), (Expiry::At(1 << 40), 40.0)] {
        let mut store = store(64 << 20, EvictionPolicy::None);
        for n in 0..500_000u128 {
            store.set(&store.key(0, &n.to_le_bytes()), &n.to_be_bytes(), expiry, 0).unwrap();
        }
        let overhead = store.used() as f64 / store.len(0) as f64 - 32.0;
        assert!(overhead <= most, "{overhead} bytes, {expiry:?}");
    }
}

#[test]
fn value_that_grows_by_appends_has_few_parts() {
    let mut store = store(8 << 20, EvictionPolicy::None);
    let key = store.hasher().key(0, b"key");
    let mut random = fastrand::Rng::with_seed(5);
    let mut len = 0;
    while len < 1 << 20 {
        let most = [3, 300, 6000][random.usize(..3)];
        len += random.usize(..most);
        let missing = len - store.peek(&key, 0).unwrap().map_or(0, |value| value.len());
        assert_eq!(store.append(&key, &vec![7; missing], 0), Ok(len));
    }
    let Some(Str::Long(long)) = store.peek(&key, 0).unwrap() else { panic!("no long value") };
    assert!(long.parts().len() < 60, "{long:?}");
}

#[test]
fn hscan_visits_every_field_that_stays_while_hash_grows_and_shrinks() {
    let mut store = store(64 << 20, EvictionPolicy::None);
    let key = Key { bytes: b"key", ..store.key(0, b"key") };
    let stay: Vec<[u8; 4]> = (0..2000u32).map(u32::to_le_bytes).collect();
    for field in &stay {
        store.hset(&key, field, b"value", 0).unwrap();
    }
    for grow_first in [true, false] {
        let passing: Vec<[u8; 4]> = (10_000..40_000u32).map(u32::to_le_bytes).collect();
        let mut seen = HashMap::new();
        let (mut cursor, mut turns) = (0, 0);
        loop {
            cursor =
                store.hscan(&key, cursor, 20, 0, |field, _| *seen.entry(field.to_vec()).or_insert(0) += 1).unwrap();
            if cursor == 0 {
                break;
            }
            turns += 1;
            for field in passing.iter().skip(turns * 500 % passing.len()).take(500) {
                if (turns * 500 / passing.len()).is_multiple_of(2) == grow_first {
                    store.hset(&key, field, b"value", 0).unwrap();
                } else {
                    store.hdel(&key, field, 0).unwrap();
                }
            }
        }
        for field in &stay {
            assert_eq!(seen.get(&field[..]), Some(&1), "{field:?}");
        }
        assert!(turns > 100, "{turns}");
    }
}
