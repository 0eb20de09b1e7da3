//! Lengths and times at the limits between representations.

use super::*;

#[test]
fn value_of_long_threshold_is_in_arena() {
    for long in [100, LONG_THRESHOLD] {
        let mut store = Store::new(&Config { long, ..Config::new(4 << 20) }, 0);
        let [string, hash] = [&b"string"[..], b"hash"].map(|name| store.hasher().key(0, name));
        let value = vec![7; long];
        for (len, longs) in [(long - 1, 0), (long, 2)] {
            store.set(&string, &value[..len], Expiry::Never, 0).unwrap();
            store.hset(&hash, b"field", &value[..len], 0).unwrap();
            assert_eq!(store.longs.len(), longs, "{len} bytes");
            assert!(store.get(&string, 0).unwrap().unwrap() == value[..len]);
            assert!(store.hget(&hash, b"field", 0).unwrap().unwrap() == value[..len]);
        }
        // The same values, received as long values.
        for (len, longs) in [(long - 1, 0), (long, 2)] {
            let received = store.copy_to_arena(&value[..len], 0).unwrap();
            store.set(&string, received.clone(), Expiry::Never, 0).unwrap();
            store.hset(&hash, b"field", received, 0).unwrap();
            assert_eq!(store.longs.len(), longs, "{len} bytes");
            assert!(store.get(&string, 0).unwrap().unwrap() == value[..len]);
            assert!(store.hget(&hash, b"field", 0).unwrap().unwrap() == value[..len]);
        }
        store.set(&string, &value[1..], Expiry::Never, 0).unwrap();
        assert_eq!((store.append(&string, b"x", 0), store.longs.len()), (Ok(long), 2));
    }
}

#[test]
fn key_and_field_length_is_limited() {
    let mut store = store(4 << 20, EvictionPolicy::None);
    let name = [b'n'; Store::LONGEST_KEY + 2];
    let short = store.hasher().key(0, b"hash");
    for len in [Store::LONGEST_KEY, Store::LONGEST_KEY + 1, Store::LONGEST_KEY + 2] {
        let is_refused = len > Store::LONGEST_KEY;
        let key = store.hasher().key(0, &name[..len]);
        // Longest value stored in the item.
        let value = [7; LONG_THRESHOLD - 1];
        let expected = if is_refused { Err(Error::TooLong) } else { Ok(()) };
        assert_eq!(store.set(&key, &value, Expiry::At(9), 0), expected, "{len} bytes");
        assert_eq!(store.set_with_meta(&key, &value, 7, 0, Expiry::At(9), 0).map(|_| ()), expected, "{len} bytes");
        assert_eq!(store.remove(&key, 0), !is_refused);
        let expected = if is_refused { Err(Error::TooLong) } else { Ok(true) };
        assert_eq!(store.hset(&key, b"field", b"value", 0), expected, "{len} bytes");
        assert_eq!(store.hset(&short, &name[..len], &value, 0), expected, "{len} bytes");
        assert_eq!(store.exists(&key, 0), !is_refused);
    }
}

#[test]
fn set_range_at_start_of_long_string_keeps_the_rest() {
    let mut store = store(4 << 20, EvictionPolicy::None);
    let key = store.hasher().key(0, b"key");
    let mut value = vec![7; 10_000];
    store.set(&key, &value[..], Expiry::Never, 0).unwrap();
    for len in 1..6 {
        value[..len].fill(len as u8);
        assert_eq!(store.set_range(&key, 0, &vec![len as u8; len], 0), Ok(10_000));
        assert!(store.get(&key, 0).unwrap().unwrap() == value[..]);
    }
    assert_eq!(store.longs.len(), 1);
}

#[test]
fn metadata_follows_the_value_in_the_same_slot_size() {
    let mut store = store(4 << 20, EvictionPolicy::None);
    let key = store.hasher().key(0, b"key");
    let meta = |flags, cas| Some(ItemMeta { flags, cas, marks: 0 });
    // The metadata takes 13 bytes.
    for (untagged, tagged) in [(&b"thirteen and 7"[..], &b"7"[..]), (b"", b""), (b"1234567890123", b"")] {
        store.set(&key, untagged, Expiry::Never, 0).unwrap();
        assert_eq!(store.meta(&key, 0), meta(0, 0));
        let cas = store.set_with_meta(&key, tagged, 7, 0, Expiry::Never, 0).unwrap();
        assert_eq!(store.meta(&key, 0), meta(7, cas));
        assert!(store.get(&key, 0).unwrap().unwrap() == *tagged);
        store.set(&key, untagged, Expiry::Never, 0).unwrap();
        assert_eq!(store.meta(&key, 0), meta(0, 0));
        assert!(store.get(&key, 0).unwrap().unwrap() == *untagged);
    }
    let cas = store.set_with_meta(&key, b"value", 7, 0, Expiry::Never, 0).unwrap();
    assert_eq!([store.next_cas(), store.next_cas()], [cas + 1, cas + 2]);
    assert!(store.set_meta(&key, ItemMeta { flags: 8, cas: cas + 9, marks: 1 }, 0));
    assert_eq!(store.meta(&key, 0), Some(ItemMeta { flags: 8, cas: cas + 9, marks: 1 }));
    assert_eq!(store.next_cas(), cas + 10);
    let other = store.hasher().key(0, b"other");
    assert_eq!(
        (store.meta(&other, 0), store.set_meta(&other, ItemMeta { flags: 8, cas: 1, marks: 0 }, 0)),
        (None, false)
    );
    store.set(&other, b"untagged", Expiry::Never, 0).unwrap();
    assert!(!store.set_meta(&other, ItemMeta { flags: 8, cas: 1, marks: 0 }, 0));
}

#[test]
fn key_is_gone_at_the_millisecond_of_its_expiry() {
    let mut store = store(4 << 20, EvictionPolicy::None);
    let key = store.hasher().key(0, b"key");
    store.set(&key, b"value", Expiry::At(1000), 0).unwrap();
    let visited = |store: &Store, now| {
        let mut count = 0;
        store.scan(0, 0, 100, now, |_, _| count += 1);
        count
    };
    assert_eq!((visited(&store, 999), visited(&store, 1000), visited(&store, 1001)), (1, 0, 0));
    assert_eq!(store.random_key(0, 999), Some(b"key".to_vec()));
    assert_eq!((store.random_key(0, 1000), store.random_key(0, 1001)), (None, None));
    assert!(store.exists(&key, 999) && !store.exists(&key, 1000));
    assert_eq!(store.counts(), Counts { expired: 1, evicted: 0 });
}

#[test]
fn random_key_search_wraps_around_its_starting_point() {
    let mut store = store(32 << 20, EvictionPolicy::None);
    store.fill(0, 0..100_000, &[0; 10], 0);
    let mut names: Vec<[u8; 4]> = (0..10u32).map(u32::to_le_bytes).collect();
    let cursor = |store: &Store, name: &[u8]| store.index.cursor_of(store.key(1, name).hash);
    names.sort_by_key(|name| cursor(&store, name));
    for name in &names {
        store.set(&store.key(1, name), &[0; 10], Expiry::Never, 0).unwrap();
        let only = cursor(&store, name);
        for start in [0, only, only + 1, cursor(&store, &names[0]), cursor(&store, &names[9]), u64::MAX] {
            store.keyspaces.set_near(1, start);
            assert_eq!(store.random_key(1, 0), Some(name.to_vec()), "from {start}");
            assert_eq!(store.keyspaces.near(1), only, "the next search begins there");
        }
        // The key added last was removed.
        store.set(&store.key(1, b"last"), &[0; 10], Expiry::Never, 0).unwrap();
        store.remove(&store.key(1, b"last"), 0);
        assert_eq!((store.random_key(1, 0), store.keyspaces.near(1)), (Some(name.to_vec()), only));
        store.remove(&store.key(1, name), 0);
    }
}

#[test]
fn watched_key_changes_on_expiry_and_eviction_but_not_on_removal_after_flush() {
    let mut store = store(1 << 20, EvictionPolicy::Lru(Evictable::AllKeys));
    let key = store.hasher().key(0, b"key");
    store.set(&key, b"value", Expiry::At(1000), 0).unwrap();
    let version = store.watch(&key);
    while store.tick(2000, Store::TICK) {}
    assert_eq!(store.len(0), 0);
    assert_ne!(store.version(&key), version);

    store.set(&key, b"value", Expiry::Never, 2000).unwrap();
    let version = store.version(&key);
    store.fill(0, 0..20_000, &[0; 100], 1_000_000);
    assert_ne!(store.version(&key), version, "the key was evicted");

    store.set(&key, b"value", Expiry::Never, 1_000_000).unwrap();
    let (version, flushes) = (store.version(&key), store.flushes(0));
    store.flush(0);
    assert_eq!((store.version(&key), store.flushes(0)), (version, flushes + 1));
    store.flush(0);
    let flushes = store.flushes(0);
    while store.tick(1_000_000, Store::TICK) {}
    assert_eq!((store.version(&key), store.flushes(0), store.keyspaces.flushed()), (version, flushes, 0));
}

#[test]
fn growing_key_is_not_evicted_for_its_own_growth() {
    let mut store = store(1 << 20, EvictionPolicy::Lru(Evictable::AllKeys));
    store.fill(0, 0..20_000, &[0; 100], 0);
    let evicted = store.counts().evicted;
    assert!(evicted > 0);
    let key = store.hasher().key(0, b"key");
    let mut value = Vec::new();
    for n in 0..400usize {
        let part = vec![n as u8; 1000];
        value.extend_from_slice(&part);
        assert_eq!(store.append(&key, &part, 0), Ok(value.len()));
    }
    assert!(store.peek(&key, 0).unwrap().unwrap() == value[..]);
    assert!(store.counts().evicted > evicted);
}

#[test]
fn small_hash_moves_to_smaller_slot_when_it_shrinks() {
    let mut store = store(4 << 20, EvictionPolicy::None);
    let key = store.hasher().key(0, b"hash");
    let form = |store: &Store| store.item(store.find_ignoring_expiry(&key).unwrap()).form();
    // The header of the hash takes 3 bytes, that of the field 4.
    let most = crate::store::values::hashes::SMALL - 3 - 4 - 1;
    store.hset(&key, b"a", &vec![7; most][..], 0).unwrap();
    assert_eq!(form(&store), Form::Fields);
    store.hset(&key, b"a", &vec![7; most + 1][..], 0).unwrap();
    assert_eq!(form(&store), Form::Buckets);
    assert!(store.remove(&key, 0));
    store.hset(&key, b"a", &[7; 2000], 0).unwrap();
    store.hset(&key, b"b", &[7; 200], 0).unwrap();
    assert!(store.size_of(&key, 0).unwrap() > 2000);
    assert_eq!(store.hdel(&key, b"a", 0), Ok(true));
    assert!(store.size_of(&key, 0).unwrap() < 300);
    assert_eq!(store.hstrlen(&key, b"b", 0), Ok(200));
    // A shrinking hash keeps its slot if a smaller one would save less than half.
    store.hset(&key, b"c", &[7; 100], 0).unwrap();
    let size = store.size_of(&key, 0);
    assert_eq!(store.hdel(&key, b"c", 0), Ok(true));
    assert_eq!(store.size_of(&key, 0), size);
}

#[test]
fn large_hash_has_buckets_in_proportion_to_its_bytes() {
    /// Field bytes per bucket.
    const BUCKET: usize = 512;
    let mut store = store(16 << 20, EvictionPolicy::None);
    let key = store.hasher().key(0, b"hash");
    let names: Vec<[u8; 4]> = (0..3000u32).map(u32::to_le_bytes).collect();
    for (n, name) in names.iter().enumerate() {
        store.hset(&key, name, &[7; 32], 0).unwrap();
        let expected = if n < 512 { "listpack" } else { "hashtable" };
        assert_eq!(store.encoding(&key, 0), Some(expected), "{n}");
        let Some(table) = store.tables.get(0) else { continue };
        assert_eq!((table.count, table.bytes), (n + 1, (n + 1) * 40));
        let fewest = table.bytes.div_ceil(BUCKET);
        let buckets = table.buckets() as usize;
        // A hash starts with one bucket, and each new field adds up to two until there are enough.
        assert!(buckets == fewest || n < 110 && buckets < fewest, "{buckets} of {fewest} for {n} fields");
        assert_eq!(store.external_bytes, table.size());
    }
    // A longer value replaces a short one, and is replaced by a short one.
    for (len, more) in [(50, 18), (32, 0)] {
        assert_eq!(store.hset(&key, &names[9], &vec![7; len][..], 0), Ok(false));
        let table = store.tables.get(0).unwrap();
        assert_eq!((table.count, table.bytes), (3000, 3000 * 40 + more));
    }
    assert!(store.size_of(&key, 0).unwrap() > 3000 * 40);
    let parts =
        [store.heap.used(), store.index.bytes(), store.longs.bytes(), store.tables.bytes(), store.external_bytes];
    assert_eq!((store.used(), store.is_empty()), (parts.iter().sum(), false));
    assert!(store.tables.bytes() > 0);
    let table = store.tables.get(0).unwrap();
    let filled = (0..table.buckets()).filter(|bucket| table.header(*bucket).is_some()).count();
    assert!(filled > table.buckets() as usize / 2, "{filled} of {} buckets have fields", table.buckets());
    for (n, name) in names.iter().enumerate().rev() {
        assert_eq!(store.hdel(&key, name, 0), Ok(true));
        let Some(table) = store.tables.get(0).filter(|_| n > 0) else { continue };
        assert_eq!((table.count, table.bytes), (n, n * 40));
        let buckets = table.buckets() as usize;
        assert!(buckets == 1 || buckets <= table.bytes * 4 / BUCKET + 1, "{buckets} for {n} fields");
        assert_eq!(store.external_bytes, table.size());
        // No bucket item has a slot twice as large as it needs.
        let heads = (0..table.buckets()).filter_map(|bucket| table.header(bucket)).filter(|_| n % 100 == 0);
        for head in heads {
            assert!(crate::store::Heap::slot_len(store.item(head).size()) * 2 > store.heap.slot_at(head), "{n} fields");
        }
    }
    assert!(!store.exists(&key, 0));
    while store.tick(0, 10) {}
    assert_eq!((store.external_bytes, store.tables.len()), (0, 0));
}

#[test]
fn small_hash_keeps_hashtable_encoding() {
    let mut store = store(4 << 20, EvictionPolicy::None);
    let key = store.hasher().key(0, b"hash");
    for (field, len, encoding) in
        [(b"a", 64, "listpack"), (b"a", 65, "hashtable"), (b"a", 1, "hashtable"), (b"b", 1, "hashtable")]
    {
        store.hset(&key, field, &vec![7; len][..], 0).unwrap();
        assert_eq!(store.item(store.find_ignoring_expiry(&key).unwrap()).form(), Form::Fields);
        assert_eq!(store.encoding(&key, 0), Some(encoding), "{len} bytes");
    }
}

#[test]
fn flush_waits_for_earlier_flushes_only_if_there_are_keys_to_flush() {
    let mut store = store(4 << 20, EvictionPolicy::None);
    let set = |store: &mut Store, space: u8, n: u32| {
        store.set(&store.key(space, &n.to_le_bytes()), b"value", Expiry::Never, 0).unwrap();
    };
    let mut flushes = 0;
    set(&mut store, 0, flushes);
    while store.keyspaces.can_flush(0..1) {
        store.flush(0);
        flushes += 1;
        set(&mut store, 0, flushes);
    }
    assert!(flushes >= 200, "{flushes}");
    assert!(store.keyspaces.can_flush(1..16) && store.prepare_flush(1..16, 0));
    assert!(!store.keyspaces.can_flush(0..16) && !store.prepare_flush(0..16, 0));
    assert_eq!(store.keyspaces.flushed(), flushes as usize);
    // Only the dead keys are removed.
    set(&mut store, 1, 0);
    assert!(store.prepare_flush(0..16, usize::MAX));
    assert_eq!((store.keyspaces.flushed(), store.len(0), store.len(1)), (0, 1, 1));
}

#[test]
fn hash_is_a_hashtable_to_redis_beyond_64_bytes_or_512_fields() {
    use crate::store::values::hashes::is_wide;
    assert!(!is_wide(&[7; 64], 64, 512));
    assert!(is_wide(&[7; 65], 64, 512) && is_wide(&[7; 64], 65, 512) && is_wide(&[7; 64], 64, 513));
    assert!(is_wide(&[7; 66], 1, 1) && is_wide(&[7; 1], 66, 1) && is_wide(&[7; 1], 1, 514));
}

#[test]
fn change_is_noted_while_any_watch_of_the_key_lasts() {
    let mut store = store(4 << 20, EvictionPolicy::None);
    let [one, other] = [&b"one"[..], b"other"].map(|name| store.hasher().key(0, name));
    let [first, second] = [&one, &other].map(|key| store.watch(key));
    assert_eq!(store.watch(&one), first);
    store.unwatch(&one);
    store.set(&one, b"value", Expiry::Never, 0).unwrap();
    assert!(store.version(&one) != first && store.version(&other) == second);
    store.unwatch(&one);
    assert_eq!(store.version(&one), 0);
    store.set(&other, b"value", Expiry::Never, 0).unwrap();
    assert_ne!(store.version(&other), second);
    store.unwatch(&other);
    assert_eq!((store.version(&other), store.has_observers), (0, false));
}
