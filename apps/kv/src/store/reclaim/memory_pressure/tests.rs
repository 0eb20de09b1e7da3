use super::*;
use crate::store::{Config, Counts, Evictable, EvictionPolicy, Expiry};

fn store(memory: usize) -> Store {
    Store::new(&Config { key: *b"0123456789abcdef", ..Config::new(memory) }, 0)
}

#[test]
fn reserve_is_a_64th_of_memory_but_at_least_the_slack() {
    let mut store = store(1 << 20);
    for (memory, reserve) in [(0, SLACK), (1 << 20, SLACK), (4 << 20, 64 << 10), (1 << 30, 16 << 20)] {
        store.set_memory(memory);
        assert_eq!(store.reserve(), reserve);
    }
    let used = store.used();
    for (memory, missing) in [(used, SLACK), (used + SLACK - 1, 1), (used + SLACK, 0), (used + 2 * SLACK, 0)] {
        store.set_memory(memory);
        assert_eq!(store.reserve_shortfall(), missing);
    }
}

#[test]
fn room_is_exact_to_the_byte() {
    let mut store = store(4 << 20);
    store.set(&store.key(0, b"key"), b"value", Expiry::Never, 0).unwrap();
    // Slot of an existing page.
    let used = store.used();
    for (memory, has_room) in [(used - 1, false), (used, true), (used + 1, true)] {
        store.set_memory(memory);
        assert_eq!(store.has_room(16, 1, None), has_room);
    }
    // Pages.
    for count in [1, 3] {
        let needed = store.used() + store.heap.growth(count) + SLACK;
        for (memory, has_room) in [(needed - 1, false), (needed, true)] {
            store.set_memory(memory);
            assert_eq!(store.has_room(heap::LARGEST, count, None), has_room, "{count} pages");
        }
    }
    // Bytes outside the heap, with nothing evictable.
    let used = store.used();
    for (memory, result) in [(used + 99, Err(Error::Full)), (used + 100, Ok(())), (used + 101, Ok(()))] {
        store.set_memory(memory);
        assert_eq!(store.make_room_outside_heap(100, 0), result);
    }
    store.set_memory(used - 1);
    assert_eq!(store.make_room_outside_heap(0, 0), Ok(()));
}

#[test]
fn index_entry_needs_room_for_new_keys_only() {
    let mut store = store(4 << 20);
    let mut names = (0..u32::MAX).map(u32::to_le_bytes);
    let grows = loop {
        let name = names.next().unwrap();
        store.set(&store.key(0, &name), b"value", Expiry::Never, 0).unwrap();
        let there = store.key(0, &name);
        let growth = store.index.growth_under(there.hash);
        if growth > 0 {
            assert_eq!(store.entry_growth(&there), 0);
            break growth;
        }
    };
    let hash = store.key(0, &names.next().unwrap()).hash;
    let new = names
        .find(|name| store.index.growth_under(store.key(0, name).hash) == grows && store.key(0, name).hash != hash)
        .unwrap();
    let new = store.hasher().key(0, &new);
    assert_eq!(store.entry_growth(&new), grows);
    for (missing, has_room) in [(0, true), (1, false)] {
        store.set_memory(store.used() + grows - missing);
        assert_eq!(store.has_room(17, 1, Some(&new)), has_room);
    }
}

#[test]
fn refill_stops_when_reserve_is_free() {
    let mut store = Store::new(&Config { evict: EvictionPolicy::Lru(Evictable::AllKeys), ..Config::new(4 << 20) }, 0);
    store.fill(0, 0..20_000, &[0; 100], 0);
    assert_eq!(store.reserve_shortfall(), 0);
    assert!(!store.refill_reserve(10, 0) && !store.refill_reserve(0, 0));
    assert_eq!(store.counts().evicted, 0);
    store.set_memory(store.used() - (256 << 10));
    assert!(store.refill_reserve(0, 0) && store.refill_reserve(1, 0));
    while store.refill_reserve(5, 0) {}
    assert_eq!(store.reserve_shortfall(), 0);
    assert!(store.reserve_shortfall() == 0 && store.used() + store.reserve() <= store.memory());
    // At most one page is freed beyond the need.
    assert!(store.used() + store.reserve() + (128 << 10) > store.memory());
    store.set_evict(EvictionPolicy::None);
    store.set_memory(store.used() / 2);
    while store.refill_reserve(100, 0) {}
    assert!(store.reserve_shortfall() > 0 && !store.refill_reserve(100, 0), "nothing can be evicted");
}

#[test]
fn tick_returns_true_until_no_work_is_left() {
    let mut store = store(8 << 20);
    assert!(!store.tick(0, 10));
    for n in 0..100u32 {
        store.set(&store.key(0, &n.to_le_bytes()), b"value", Expiry::At(100), 0).unwrap();
        store.hset(&store.key(1, b"hash"), &n.to_le_bytes(), &[0; 400], 0).unwrap();
    }
    assert!(!store.tick(99, 10) && store.len(0) == 100);
    // Ten at a time, fewer if the index shrinks.
    let mut left = vec![100];
    while store.tick(1000, 10) {
        left.push(store.len(0));
    }
    assert!(left.windows(2).all(|of| of[0] - of[1] <= 10) && left.windows(2).any(|of| of[0] - of[1] == 10));
    assert_eq!((store.len(0), store.counts().expired), (0, 100));
    // Buckets of a removed large hash.
    assert!(store.remove(&store.key(1, b"hash"), 1000));
    assert!(!store.dead_tables.is_empty() && store.tick(1000, 10));
    while store.tick(1000, 10) {}
    assert_eq!((store.dead_tables.len(), store.external_bytes, store.tables.len()), (0, 0, 0));
    // Parts of removed long values.
    store.fill(2, 0..20, &[0; 5000], 1000);
    (0..20u32).for_each(|n| assert!(store.remove(&store.key(2, &n.to_le_bytes()), 1000)));
    assert!(store.tick(1000, 1));
    while store.tick(1000, 1) {}
    assert!(!store.heap.arena.collect(1));
    // Flushed items.
    store.fill(0, 0..1000, b"value", 1000);
    store.flush(0);
    assert!(store.tick(1000, 10) && store.keyspaces.flushed() > 900);
    while store.tick(1000, 10) {}
    assert_eq!((store.keyspaces.flushed(), store.index.len()), (0, 0));
    assert_eq!(store.counts(), Counts { expired: 100, evicted: 0 });
    // Refill of the reserve.
    store.set_evict(EvictionPolicy::Lru(Evictable::AllKeys));
    store.fill(0, 0..10_000, &[0; 100], 1000);
    store.set_memory(store.used());
    assert!(store.tick(1000, 80));
    while store.tick(1000, 80) {}
    assert_eq!(store.reserve_shortfall(), 0);
}

#[test]
fn items_with_room_made_are_not_refused() {
    let mut random = fastrand::Rng::with_seed(8);
    let mut refused = 0;
    for round in 0..60 {
        let mut store = store((1 << 20) + random.usize(..2 << 20));
        let (count, longest) = [(300, 30), (300, 600), (200, 4000), (20, 50_000)][round % 4];
        let lens: Vec<usize> = (0..random.usize(1..count)).map(|_| random.usize(..longest)).collect();
        let name = |n: usize| (n as u32).to_le_bytes().repeat([1, 40][round / 4 % 2]);
        let items = || lens.iter().enumerate().map(|(n, len)| (name(n).len(), *len));
        // Other items fill part of the memory.
        let most = random.usize(..store.memory());
        for n in 0u32.. {
            let result = store.set(&store.key(0, &n.to_le_bytes()), &[1; 900], Expiry::Never, 0);
            if result.is_err() || store.used() > most {
                break;
            }
        }
        if store.make_room_for(items(), 0).is_err() {
            refused += 1;
            continue;
        }
        for (n, len) in lens.iter().enumerate() {
            let result = store.set(&store.key(1, &name(n)), &vec![2; *len][..], Expiry::Never, 0);
            assert_eq!(result, Ok(()), "item {n} of {lens:?}");
        }
        assert!(store.used() <= store.memory());
    }
    assert!((5..50).contains(&refused), "{refused}");
}

#[test]
fn room_for_more_than_memory_is_refused() {
    let mut store = store(48 << 20);
    // Items in slots, items with long names, a value larger than memory, and many long values.
    for (count, name, value) in [(12_000, 4, 4000), (13_000, 3900, 4), (1, 4, 49 << 20), (700, 4, 70_000)] {
        let fewer = count * 2 / 3;
        assert_eq!(store.make_room_for((0..count).map(|_| (name, value)), 0), Err(Error::Full), "{count} of {value}");
        assert_eq!(store.make_room_for((0..fewer).map(|_| (name, value)), 0), Ok(()), "{fewer} of {value}");
    }
}

/// Returns the least memory of an empty store in which room can be made for `items`.
fn least_for(items: &[(usize, usize)]) -> usize {
    let is_enough = |memory| {
        let mut store = store(8 << 20);
        store.set_memory(memory);
        store.make_room_for(items.iter().copied(), 0).is_ok()
    };
    let (mut too_little, mut enough) = (0, 8 << 20);
    while too_little + 1 < enough {
        let memory = (too_little + enough) / 2;
        *(if is_enough(memory) { &mut enough } else { &mut too_little }) = memory;
    }
    enough
}

#[test]
fn room_includes_pages_lists_index_and_unused_eighth() {
    let store = store(8 << 20);
    // One page for the slots, and one per slot size that the item may pass through.
    let used = store.used() + store.tables.growth(1) + SLACK;
    for (count, pages) in [(1, 3), (30, 32), (31, 33), (40, 33)] {
        let expected = used + store.heap.growth(pages) + store.index.growth(count);
        assert_eq!(least_for(&vec![(4, 0); count]), expected, "{count} items");
    }
    // A long value needs as much for its item as an empty one, plus its own bytes and its list of parts.
    for count in [1, 2] {
        let short = least_for(&vec![(4, 0); count]);
        for value in [store.long, 100_000, 1_000_000] {
            let long = value + value / 8 + 1024 + 2048;
            let expected = short + count * long + store.longs.growth(count);
            assert_eq!(least_for(&vec![(4, value); count]), expected, "{count} values of {value} bytes");
        }
    }
}

/// Returns a store without free pages, in which a long value occupies an eighth of each page.
fn scattered(evict: EvictionPolicy) -> Store {
    /// Bytes in chunks.
    const HELD: usize = 3 << 20;
    let mut store = store(6 << 20);
    store.set(&store.key(0, b"short"), b"value", Expiry::Never, 0).unwrap();
    let name = u32::to_le_bytes;
    let mut count = 0u32;
    while store.heap.arena.chunk_bytes() < HELD || store.heap.arena.has_free(heap::PAGE) {
        store.set(&store.key(1, &name(count)), &[7; 8 << 10], Expiry::Never, 0).unwrap();
        count += 1;
    }
    for n in (0..count).filter(|n| n % 8 != 0) {
        store.remove(&store.key(1, &name(n)), 0);
    }
    while store.heap.arena.collect(100) {}
    store.set_evict(evict);
    store.set_memory(2 << 20);
    store.heap.arena.set_limit(store.chunks());
    store
}

#[test]
fn freed_parts_and_deferred_buckets_are_reclaimed_before_evictions() {
    let mut store = Store::new(&Config { evict: EvictionPolicy::Lru(Evictable::AllKeys), ..Config::new(4 << 20) }, 0);
    store.set(&store.key(0, b"key"), b"value", Expiry::Never, 0).unwrap();
    store.set(&store.key(0, b"long"), &[7; 10_000], Expiry::Never, 0).unwrap();
    for n in 0..100u32 {
        store.hset(&store.key(0, b"hash"), &n.to_le_bytes(), &[0; 400], 0).unwrap();
    }
    assert!(store.remove(&store.key(0, b"long"), 0));
    assert!(store.reclaim_step(0));
    assert!(!store.heap.arena.collect(1) && store.dead_tables.is_empty());
    assert!(store.remove(&store.key(0, b"hash"), 0));
    while !store.dead_tables.is_empty() {
        assert!(store.reclaim_step(0));
    }
    assert_eq!((store.len(0), store.counts().evicted), (1, 0));
    assert!(store.reclaim_step(0));
    assert_eq!((store.len(0), store.counts().evicted), (0, 1));
}

#[test]
fn page_being_evacuated_gets_no_items() {
    let mut store = store(4 << 20);
    let set = |store: &mut Store, n: u32| store.set(&store.key(0, &n.to_le_bytes()), &[0; 100], Expiry::Never, 0);
    set(&mut store, 0).unwrap();
    let size = store.heap.slot_at(store.find_ignoring_expiry(&store.key(0, &[0; 4])).unwrap());
    let slots = (heap::PAGE / size) as u32;
    (1..3 * slots).for_each(|n| set(&mut store, n).unwrap());
    // The first page keeps one item more than a compaction step moves, each other page keeps half.
    let left = MOVED as u32 + 1;
    for n in (left..slots).chain((slots..3 * slots).filter(|n| n % 2 == 0)) {
        assert!(store.remove(&store.key(0, &n.to_le_bytes()), 0));
    }
    let used = store.heap.arena.used();
    assert!(store.compact(MOVED));
    (3 * slots..3 * slots + 20).for_each(|n| set(&mut store, n).unwrap());
    assert_eq!(store.heap.arena.used(), used);
    assert!(store.compact(MOVED));
    assert_eq!(store.heap.arena.used(), used - heap::PAGE);
}

#[test]
fn page_is_kept_if_its_items_fit_nowhere_else() {
    let mut store = store(4 << 20);
    let set = |store: &mut Store, n: u32| store.set(&store.key(0, &n.to_le_bytes()), &[0; 100], Expiry::Never, 0);
    set(&mut store, 0).unwrap();
    let size = store.heap.slot_at(store.find_ignoring_expiry(&store.key(0, &[0; 4])).unwrap());
    let slots = (heap::PAGE / size) as u32;
    (1..4 * slots).for_each(|n| set(&mut store, n).unwrap());
    for n in (50..slots).chain((slots..4 * slots).filter(|n| n % 2 == 0)) {
        assert!(store.remove(&store.key(0, &n.to_le_bytes()), 0));
    }
    assert!(store.compact(MOVED));
    // New items take the slots that the remaining items would have moved to.
    let used = store.heap.arena.used();
    let mut n = 4 * slots;
    while store.heap.has_slot(size) {
        set(&mut store, n).unwrap();
        n += 1;
    }
    assert!(!store.compact(MOVED));
    // The page's free slots are used again.
    assert!(store.heap.has_slot(size));
    for n in n..n + slots - 50 {
        set(&mut store, n).unwrap();
    }
    assert_eq!(store.heap.arena.used(), used);
}

#[test]
fn long_values_are_moved_out_if_no_page_is_free() {
    let short = |store: &Store| store.key(0, b"short");
    // One page for items of another size: no eviction is necessary.
    let mut store = scattered(EvictionPolicy::Lru(Evictable::AllKeys));
    let (count, used) = (store.len(1), store.used());
    assert!(!store.heap.has_pages(1) && used < 1 << 20, "{used}");
    store.set(&store.key(0, b"other"), &[7; 1000], Expiry::Never, 0).unwrap();
    assert!(store.exists(&short(&store), 0));
    assert_eq!((store.len(1), store.counts().evicted), (count, 0));
    // Several pages.
    let mut store = scattered(EvictionPolicy::None);
    assert!(!store.heap.has_pages(1));
    assert_eq!(store.make_room_for((0..4).map(|_| (4, 4000)), 0), Ok(()));
    assert!(store.heap.has_pages(1 + 5));
    let mut store = scattered(EvictionPolicy::None);
    assert_eq!(store.make_room(1000, 5, None, 0), Ok(()));
    assert!(store.heap.has_pages(5));
    // The limit is exact to the byte.
    for (missing, expected) in [(1, Err(Error::Full)), (0, Ok(()))] {
        let mut store = scattered(EvictionPolicy::None);
        let needed = store.used() + store.heap.growth(2) + SLACK;
        store.set_memory(needed - missing);
        assert_eq!(store.make_room(1000, 2, None, 0), expected, "{missing} missing");
    }
}

#[test]
fn expired_and_flushed_items_are_reclaimed_before_refusals_and_evictions() {
    for evict in [EvictionPolicy::None, EvictionPolicy::Lru(Evictable::AllKeys)] {
        for is_flushed in [false, true] {
            let mut store = Store::new(&Config { evict, ..Config::new(1 << 20) }, 0);
            let mut count = 0u32;
            while store.counts().evicted == 0
                && store.set(&store.key(0, &count.to_le_bytes()), &[0; 100], Expiry::At(10), 0).is_ok()
            {
                count += 1;
            }
            let evicted = store.counts().evicted;
            if is_flushed {
                store.flush(0);
            }
            let now = if is_flushed { 0 } else { 100 };
            for n in 0..count / 2 {
                assert_eq!(store.set(&store.key(1, &n.to_le_bytes()), &[0; 100], Expiry::Never, now), Ok(()));
            }
            assert_eq!((store.len(1), store.counts().evicted), (count as usize / 2, evicted));
        }
    }
}

#[test]
fn moved_bucket_items_are_found() {
    let mut store = store(16 << 20);
    let key = store.hasher().key(0, b"hash");
    let names: Vec<[u8; 4]> = (0..600u32).map(u32::to_le_bytes).collect();
    for name in &names {
        store.hset(&key, name, &name.repeat(800)[..], 0).unwrap();
    }
    let mut moved = [0; 3];
    for bucket in 0..store.tables.get(0).unwrap().buckets() {
        for (depth, moved) in moved.iter_mut().enumerate() {
            // The value of an item starts with the location of the next one.
            let mut at = store.tables.get(0).unwrap().header(bucket);
            for _ in 0..depth {
                let next = at.and_then(|at| store.item(at).value().first_chunk().copied());
                at = next.and_then(|next| std::num::NonZeroU32::new(u32::from_le_bytes(next))).map(Location);
            }
            if let Some(at) = at {
                *moved += usize::from(store.move_item(at));
            }
        }
    }
    assert!(moved.iter().all(|count| *count > 0), "{moved:?}");
    for name in &names {
        assert!(store.hget(&key, name, 0).unwrap().unwrap() == name.repeat(800)[..]);
    }
}
