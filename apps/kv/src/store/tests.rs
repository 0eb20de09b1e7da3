mod bound;
mod boundaries;
mod model;

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

fn store(memory: usize, evict: EvictionPolicy) -> Store {
    Store::new(&Config { evict, key: *b"0123456789abcdef", ..Config::new(memory) }, 0)
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

/// Expected contents: value and expiry time by keyspace and key.
type Model = HashMap<(u8, Vec<u8>), (Vec<u8>, Option<u64>)>;

#[derive(Debug, Clone)]
enum Step {
    Set(u8, u8, usize, u8, Option<Option<u64>>),
    Get(u8, u8),
    Remove(u8, u8),
    Expiry(u8, u8, Option<u64>),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Step> {
    let key = || (0..2u8, 0..40u8);
    let delay = || prop_oneof![1..60u64, 1..5000u64, 1..1_000_000u64];
    let len = prop_oneof![0..40usize, 0..600usize, 0..5000usize];
    prop_oneof![
        6 => (key(), len, any::<u8>(), prop::option::of(prop::option::of(delay())))
            .prop_map(|((space, key), len, fill, expiry)| Step::Set(space, key, len, fill, expiry)),
        4 => key().prop_map(|(space, key)| Step::Get(space, key)),
        2 => key().prop_map(|(space, key)| Step::Remove(space, key)),
        2 => (key(), prop::option::of(delay())).prop_map(|((space, key), at)| Step::Expiry(space, key, at)),
        2 => delay().prop_map(Step::Wait),
    ]
}

proptest! {
    /// With enough memory, a store is a map whose values expire.
    #[test]
    fn store_is_a_map_whose_values_expire(steps in prop::collection::vec(steps(), 1..300)) {
        let mut store = store(8 << 20, EvictionPolicy::None);
        let mut model = Model::new();
        let (mut now, mut expired) = (0, Vec::new());
        for step in steps {
            match step {
                Step::Set(space, key, len, fill, expiry) => {
                    let (name, value) = (vec![key; 1 + key as usize], vec![fill; len]);
                    let old = model.get(&(space, name.clone())).and_then(|(_, at)| *at);
                    let (requested, at) = match expiry {
                        None => (Expiry::Keep, old),
                        Some(None) => (Expiry::Never, None),
                        Some(Some(delay)) => (Expiry::At(now + delay), Some(now + delay)),
                    };
                    let key = store.key(space, &name);
                    prop_assert_eq!(store.set(&key, &value[..], requested, now), Ok(()));
                    model.insert((space, name), (value, at));
                }
                Step::Get(space, key) => {
                    let name = vec![key; 1 + key as usize];
                    let expected = model.get(&(space, name.clone()));
                    let key = store.key(space, &name);
                    prop_assert_eq!(store.get(&key, now).unwrap().map(|value| value.to_vec()), expected.map(|(value, _)| value.clone()));
                    prop_assert_eq!(store.expires_at(&key, now), expected.map(|(_, at)| *at));
                }
                Step::Remove(space, key) => {
                    let name = vec![key; 1 + key as usize];
                    let key = store.key(space, &name);
                    prop_assert_eq!(store.remove(&key, now), model.remove(&(space, name.clone())).is_some());
                }
                Step::Expiry(space, key, delay) => {
                    let name = vec![key; 1 + key as usize];
                    let at = delay.map(|delay| now + delay);
                    let key = store.key(space, &name);
                    let there = model.get_mut(&(space, name.clone()));
                    prop_assert_eq!(store.set_expiry(&key, at, now), Ok(there.is_some()));
                    if let Some((_, expires)) = there {
                        *expires = at;
                    }
                }
                Step::Wait(delay) => {
                    now += delay;
                    while !store.expire(now, 3) {}
                    expired.extend(model.values().filter_map(|(_, at)| at.filter(|at| *at <= now)));
                    model.retain(|_, (_, at)| at.is_none_or(|at| at > now));
                    let len = store.len(0) + store.len(1);
                    let late = expired.iter().filter(|at| **at + 16 > now).count();
                    // Only items that expired within the last tick of the wheel may remain.
                    prop_assert!(len >= model.len() && len <= model.len() + late, "{} keys of {}", len, model.len());
                }
            }
        }
        for space in 0..2 {
            let mut seen = Vec::new();
            let mut cursor = 0;
            loop {
                cursor = store.scan(space, cursor, 5, now, |key, _| seen.push(key.to_vec()));
                if cursor == 0 { break }
            }
            seen.sort();
            seen.dedup();
            let mut expected: Vec<_> = model.keys().filter(|(of, _)| *of == space).map(|(_, key)| key.clone()).collect();
            expected.sort();
            prop_assert_eq!(seen, expected);
        }
    }
}

proptest! {
    // One case takes as long as a thousand cases of the other tests.
    #![proptest_config(ProptestConfig { cases: 14, ..ProptestConfig::default() })]

    /// Evictions leave the other values unchanged, and memory stays bounded.
    #[test]
    fn eviction_bounds_memory_and_keeps_other_values(seed in any::<u64>(), policy in 0..7usize) {
        let policies = [
            EvictionPolicy::Random(Evictable::AllKeys), EvictionPolicy::Lru(Evictable::AllKeys), EvictionPolicy::Lfu(Evictable::AllKeys), EvictionPolicy::Ttl,
            EvictionPolicy::Random(Evictable::Volatile), EvictionPolicy::Lru(Evictable::Volatile), EvictionPolicy::Lfu(Evictable::Volatile),
        ];
        let memory = 1 << 20;
        let mut store = store(memory, policies[policy]);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut model: HashMap<u32, u8> = HashMap::new();
        // Each phase uses values of other sizes.
        for phase in 0..6 {
            let most = [20, 2000, 100, 7000, 10, 500][phase];
            for n in 0..4000u64 {
                let (key, fill, now) = (random.u32(..20_000), random.u8(..), phase as u64 * 4000 + n);
                let (name, value) = (key.to_le_bytes(), vec![fill; random.usize(..most)]);
                let name = store.key(0, &name);
                prop_assert_eq!(store.set(&name, &value[..], Expiry::At(1_000_000 + u64::from(key)), now), Ok(()));
                model.insert(key, fill);
                prop_assert!(store.used() <= memory, "{} bytes", store.used());
                let key = random.u32(..20_000);
                let name = key.to_le_bytes();
                let name = store.key(0, &name);
                if let Some(value) = store.get(&name, now).unwrap() {
                    prop_assert!(value.to_vec().iter().all(|byte| *byte == model[&key]));
                }
            }
        }
        prop_assert!(store.counts().evicted > 0);
    }
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

#[test]
fn random_key_is_found_at_once_in_sparse_keyspace() {
    let mut store = store(32 << 20, EvictionPolicy::None);
    for n in 0..100_000u32 {
        store.set(&store.key(0, &n.to_le_bytes()), &[0; 10], Expiry::Never, 0).unwrap();
    }
    let names: Vec<[u8; 4]> = (0..10u32).map(u32::to_le_bytes).collect();
    for name in &names {
        store.set(&store.key(1, name), &[0; 10], Expiry::At(1000), 0).unwrap();
    }
    for gone in 0..10 {
        let found = store.random_key(1, 0).unwrap();
        assert!(names[gone..].iter().any(|name| name[..] == found));
        assert!(store.remove(&store.key(1, &names[gone]), 0));
    }
    assert_eq!(store.random_key(1, 0), None);
    store.set(&store.key(1, b"last"), &[0; 10], Expiry::At(1000), 0).unwrap();
    assert_eq!((store.random_key(1, 999), store.random_key(1, 1000)), (Some(b"last".to_vec()), None));
}

/// The memory of a value that is not completed is freed.
#[test]
fn long_value_gets_memory_while_it_arrives() {
    let mut store = store(4 << 20, EvictionPolicy::Lru(Evictable::AllKeys));
    for n in 0..60_000u32 {
        store.set(&store.key(0, &n.to_le_bytes()), &[0; 40], Expiry::Never, 0).unwrap();
    }
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
fn append_and_set_range_change_parts_of_strings() {
    let mut store = store(8 << 20, EvictionPolicy::None);
    let bytes = b"key".to_vec();
    let key = store.key(0, &bytes);
    let mut model = Vec::new();
    let mut random = fastrand::Rng::with_seed(5);
    for n in 0..2000u64 {
        let most = [3, 300, 6000][random.usize(..3)];
        let part: Vec<u8> = (0..random.usize(..most)).map(|_| random.u8(..)).collect();
        if random.bool() {
            model.extend_from_slice(&part);
            assert_eq!(store.append(&key, &part, n), Ok(model.len()));
        } else {
            let at = random.usize(0..model.len() + 2 + 5000 * usize::from(n % 50 == 0));
            if !part.is_empty() && model.len() < at + part.len() {
                model.resize(at + part.len(), 0);
            }
            if !part.is_empty() {
                model[at..at + part.len()].copy_from_slice(&part);
            }
            assert_eq!(store.set_range(&key, at, &part, n), Ok(model.len()));
        }
        let there = store.get(&key, n).unwrap();
        assert!(there.is_none() && model.is_empty() || there.unwrap() == model[..], "{n}");
        if model.len() > 200_000 {
            let Some(Str::Long(long)) = store.peek(&key, n).unwrap() else { panic!("{n}") };
            assert!(long.parts().len() < 60, "{long:?}");
            model.truncate(random.usize(0..6000));
            store.set(&key, &model[..], Expiry::Never, n).unwrap();
        }
    }
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
