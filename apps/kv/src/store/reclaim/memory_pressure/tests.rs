use super::*;
use crate::store::{Config, Counts, Evict, Expiry, From};

fn store(memory: usize) -> Store {
    Store::new(&Config { key: *b"0123456789abcdef", ..Config::new(memory) }, 0)
}

#[test]
fn reserve_is_a_64th_of_memory_but_no_less_than_the_slack() {
    let mut store = store(1 << 20);
    for (memory, reserve) in [(0, SLACK), (1 << 20, SLACK), (4 << 20, 64 << 10), (1 << 30, 16 << 20)] {
        store.set_memory(memory);
        assert_eq!(store.reserve(), reserve);
    }
    let used = store.used();
    for (memory, missing) in [(used, SLACK), (used + SLACK - 1, 1), (used + SLACK, 0), (used + 2 * SLACK, 0)] {
        store.set_memory(memory);
        assert_eq!(store.missing(), missing);
    }
}

#[test]
fn room_is_all_memory_to_the_last_byte() {
    let mut store = store(4 << 20);
    store.set(&store.key(0, b"key"), b"value", Expiry::Never, 0).unwrap();
    // A slot of a page that is there.
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
    // Bytes beside the heap, where nothing may go.
    let used = store.used();
    for (memory, result) in [(used + 99, Err(Error::Full)), (used + 100, Ok(())), (used + 101, Ok(()))] {
        store.set_memory(memory);
        assert_eq!(store.make_room_beside(100, 0), result);
    }
    store.set_memory(used - 1);
    assert_eq!(store.make_room_beside(0, 0), Ok(()));
}

#[test]
fn room_is_needed_for_the_entry_of_a_new_key_only() {
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
    let new = store.keys().key(0, &new);
    assert_eq!(store.entry_growth(&new), grows);
    for (missing, has_room) in [(0, true), (1, false)] {
        store.set_memory(store.used() + grows - missing);
        assert_eq!(store.has_room(17, 1, Some(&new)), has_room);
    }
}

#[test]
fn make_up_works_until_the_reserve_is_free() {
    let mut store = Store::new(&Config { evict: Evict::Lru(From::All), ..Config::new(4 << 20) }, 0);
    for n in 0..20_000u32 {
        store.set(&store.key(0, &n.to_le_bytes()), &[0; 100], Expiry::Never, 0).unwrap();
    }
    assert_eq!(store.missing(), 0);
    assert!(!store.make_up(10, 0) && !store.make_up(0, 0));
    assert_eq!(store.counts().evicted, 0);
    store.set_memory(store.used() - (256 << 10));
    assert!(store.make_up(0, 0) && store.make_up(1, 0));
    while store.make_up(5, 0) {}
    assert_eq!(store.missing(), 0);
    assert!(store.missing() == 0 && store.used() + store.reserve() <= store.memory());
    // No more than a page is cleared in vain.
    assert!(store.used() + store.reserve() + (128 << 10) > store.memory());
    store.set_evict(Evict::None);
    store.set_memory(store.used() / 2);
    while store.make_up(100, 0) {}
    assert!(store.missing() > 0 && !store.make_up(100, 0), "nothing may go");
}

#[test]
fn tick_has_more_to_do_until_nothing_is_left() {
    let mut store = store(8 << 20);
    assert!(!store.tick(0, 10));
    for n in 0..100u32 {
        store.set(&store.key(0, &n.to_le_bytes()), b"value", Expiry::At(100), 0).unwrap();
        store.hset(&store.key(1, b"hash"), &n.to_le_bytes(), &[0; 400], 0).unwrap();
    }
    assert!(!store.tick(99, 10) && store.len(0) == 100);
    // Ten at a time, and fewer where the index shrinks.
    let mut left = vec![100];
    while store.tick(1000, 10) {
        left.push(store.len(0));
    }
    assert!(left.windows(2).all(|of| of[0] - of[1] <= 10) && left.windows(2).any(|of| of[0] - of[1] == 10));
    assert_eq!((store.len(0), store.counts().expired), (0, 100));
    // The buckets of a large hash.
    assert!(store.remove(&store.key(1, b"hash"), 1000));
    assert!(!store.doomed.is_empty() && store.tick(1000, 10));
    while store.tick(1000, 10) {}
    assert_eq!((store.doomed.len(), store.beside, store.tables.len()), (0, 0, 0));
    // Pieces of long values.
    for n in 0..20u32 {
        store.set(&store.key(2, &n.to_le_bytes()), &[0; 5000], Expiry::Never, 1000).unwrap();
    }
    (0..20u32).for_each(|n| assert!(store.remove(&store.key(2, &n.to_le_bytes()), 1000)));
    assert!(store.tick(1000, 1));
    while store.tick(1000, 1) {}
    assert!(!store.heap.pieces.collect(1));
    // Flushed items.
    for n in 0..1000u32 {
        store.set(&store.key(0, &n.to_le_bytes()), b"value", Expiry::Never, 1000).unwrap();
    }
    store.flush(0);
    assert!(store.tick(1000, 10) && store.spaces.flushed() > 900);
    while store.tick(1000, 10) {}
    assert_eq!((store.spaces.flushed(), store.index.len()), (0, 0));
    assert_eq!(store.counts(), Counts { expired: 100, evicted: 0 });
    // The reserve.
    store.set_evict(Evict::Lru(From::All));
    for n in 0..10_000u32 {
        store.set(&store.key(0, &n.to_le_bytes()), &[0; 100], Expiry::Never, 1000).unwrap();
    }
    store.set_memory(store.used());
    assert!(store.tick(1000, 80));
    while store.tick(1000, 80) {}
    assert_eq!(store.missing(), 0);
}

#[test]
fn items_for_which_room_was_made_are_not_refused() {
    let mut random = fastrand::Rng::with_seed(8);
    let mut refused = 0;
    for round in 0..60 {
        let mut store = store((1 << 20) + random.usize(..2 << 20));
        let (count, longest) = [(300, 30), (300, 600), (200, 4000), (20, 50_000)][round % 4];
        let lens: Vec<usize> = (0..random.usize(1..count)).map(|_| random.usize(..longest)).collect();
        let name = |n: usize| (n as u32).to_le_bytes().repeat([1, 40][round / 4 % 2]);
        let items = || lens.iter().enumerate().map(|(n, len)| (name(n).len(), *len));
        // Other items take all but a part of memory.
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
    // Items in slots, items with long names, long values, and many long values.
    for (count, name, value) in [(12_000, 4, 4000), (13_000, 3900, 4), (1, 4, 49 << 20), (700, 4, 70_000)] {
        let fewer = count * 2 / 3;
        assert_eq!(store.make_room_for((0..count).map(|_| (name, value)), 0), Err(Error::Full), "{count} of {value}");
        assert_eq!(store.make_room_for((0..fewer).map(|_| (name, value)), 0), Ok(()), "{fewer} of {value}");
    }
}

/// The least memory of an empty store in which room can be made for `items`.
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
fn room_is_made_for_pages_lists_the_index_and_an_eighth_of_waste() {
    let store = store(8 << 20);
    // A page for the slots, and one for each size of slots that the item may pass through.
    let beside = store.used() + store.tables.growth(1) + SLACK;
    for (count, pages) in [(1, 3), (30, 32), (31, 33), (40, 33)] {
        let expected = beside + store.heap.growth(pages) + store.index.growth(count);
        assert_eq!(least_for(&vec![(4, 0); count]), expected, "{count} items");
    }
    // A long value needs as much for its item as an empty one, and what is beside it.
    for count in [1, 2] {
        let short = least_for(&vec![(4, 0); count]);
        for value in [store.long, 100_000, 1_000_000] {
            let long = value + value / 8 + 1024 + 2048;
            let expected = short + count * long + store.longs.growth(count);
            assert_eq!(least_for(&vec![(4, value); count]), expected, "{count} values of {value} bytes");
        }
    }
}

/// A store in which no page is free, though an eighth of each is in use: by a part of a long value.
fn scattered(evict: Evict) -> Store {
    /// Bytes in chunks.
    const HELD: usize = 3 << 20;
    let mut store = store(6 << 20);
    store.set(&store.key(0, b"short"), b"value", Expiry::Never, 0).unwrap();
    let name = u32::to_le_bytes;
    let mut count = 0u32;
    while store.heap.pieces.held() < HELD || store.heap.pieces.has_free(heap::PAGE) {
        store.set(&store.key(1, &name(count)), &[7; 8 << 10], Expiry::Never, 0).unwrap();
        count += 1;
    }
    for n in (0..count).filter(|n| n % 8 != 0) {
        store.remove(&store.key(1, &name(n)), 0);
    }
    while store.heap.pieces.collect(100) {}
    store.set_evict(evict);
    store.set_memory(2 << 20);
    store.heap.pieces.set_limit(store.chunks());
    store
}

#[test]
fn returned_pieces_and_doomed_buckets_go_before_any_item_is_evicted() {
    let mut store = Store::new(&Config { evict: Evict::Lru(From::All), ..Config::new(4 << 20) }, 0);
    store.set(&store.key(0, b"key"), b"value", Expiry::Never, 0).unwrap();
    store.set(&store.key(0, b"long"), &[7; 10_000], Expiry::Never, 0).unwrap();
    for n in 0..100u32 {
        store.hset(&store.key(0, b"hash"), &n.to_le_bytes(), &[0; 400], 0).unwrap();
    }
    assert!(store.remove(&store.key(0, b"long"), 0));
    assert!(store.clear_some(0));
    assert!(!store.heap.pieces.collect(1) && store.doomed.is_empty());
    assert!(store.remove(&store.key(0, b"hash"), 0));
    while !store.doomed.is_empty() {
        assert!(store.clear_some(0));
    }
    assert_eq!((store.len(0), store.counts().evicted), (1, 0));
    assert!(store.clear_some(0));
    assert_eq!((store.len(0), store.counts().evicted), (0, 1));
}

#[test]
fn page_that_is_emptied_gets_no_items_until_it_is_free() {
    let mut store = store(4 << 20);
    let set = |store: &mut Store, n: u32| store.set(&store.key(0, &n.to_le_bytes()), &[0; 100], Expiry::Never, 0);
    set(&mut store, 0).unwrap();
    let size = store.heap.slot_at(store.find_any(&store.key(0, &[0; 4])).unwrap());
    let slots = (heap::PAGE / size) as u32;
    (1..3 * slots).for_each(|n| set(&mut store, n).unwrap());
    // Of the first page one item more is left than is moved at once, and of each other page half.
    let left = MOVED as u32 + 1;
    for n in (left..slots).chain((slots..3 * slots).filter(|n| n % 2 == 0)) {
        assert!(store.remove(&store.key(0, &n.to_le_bytes()), 0));
    }
    let used = store.heap.pieces.used();
    assert!(store.compact(MOVED));
    (3 * slots..3 * slots + 20).for_each(|n| set(&mut store, n).unwrap());
    assert_eq!(store.heap.pieces.used(), used);
    assert!(store.compact(MOVED));
    assert_eq!(store.heap.pieces.used(), used - heap::PAGE);
}

#[test]
fn page_whose_items_have_no_room_elsewhere_is_kept() {
    let mut store = store(4 << 20);
    let set = |store: &mut Store, n: u32| store.set(&store.key(0, &n.to_le_bytes()), &[0; 100], Expiry::Never, 0);
    set(&mut store, 0).unwrap();
    let size = store.heap.slot_at(store.find_any(&store.key(0, &[0; 4])).unwrap());
    let slots = (heap::PAGE / size) as u32;
    (1..4 * slots).for_each(|n| set(&mut store, n).unwrap());
    for n in (50..slots).chain((slots..4 * slots).filter(|n| n % 2 == 0)) {
        assert!(store.remove(&store.key(0, &n.to_le_bytes()), 0));
    }
    assert!(store.compact(MOVED));
    // Others take the slots that its other items would have had.
    let used = store.heap.pieces.used();
    let mut n = 4 * slots;
    while store.heap.has_slot(size) {
        set(&mut store, n).unwrap();
        n += 1;
    }
    assert!(!store.compact(MOVED));
    // Its free slots are used again.
    assert!(store.heap.has_slot(size));
    for n in n..n + slots - 50 {
        set(&mut store, n).unwrap();
    }
    assert_eq!(store.heap.pieces.used(), used);
}

#[test]
fn parts_of_long_values_are_moved_where_no_page_is_free() {
    let short = |store: &Store| store.key(0, b"short");
    // For items of another size: nothing has to go.
    let mut store = scattered(Evict::Lru(From::All));
    let (count, used) = (store.len(1), store.used());
    assert!(!store.heap.has_pages(1) && used < 1 << 20, "{used}");
    store.set(&store.key(0, b"other"), &[7; 1000], Expiry::Never, 0).unwrap();
    assert!(store.exists(&short(&store), 0));
    assert_eq!((store.len(1), store.counts().evicted), (count, 0));
    // Several pages.
    let mut store = scattered(Evict::None);
    assert!(!store.heap.has_pages(1));
    assert_eq!(store.make_room_for((0..4).map(|_| (4, 4000)), 0), Ok(()));
    assert!(store.heap.has_pages(1 + 5));
    let mut store = scattered(Evict::None);
    assert_eq!(store.make_room(1000, 5, None, 0), Ok(()));
    assert!(store.heap.has_pages(5));
    // To the last byte.
    for (missing, expected) in [(1, Err(Error::Full)), (0, Ok(()))] {
        let mut store = scattered(Evict::None);
        let needed = store.used() + store.heap.growth(2) + SLACK;
        store.set_memory(needed - missing);
        assert_eq!(store.make_room(1000, 2, None, 0), expected, "{missing} missing");
    }
}

#[test]
fn expired_and_flushed_items_go_before_any_is_refused_or_evicted() {
    for evict in [Evict::None, Evict::Lru(From::All)] {
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
fn items_of_a_bucket_are_found_wherever_they_were_moved() {
    let mut store = store(16 << 20);
    let key = store.keys().key(0, b"hash");
    let names: Vec<[u8; 4]> = (0..600u32).map(u32::to_le_bytes).collect();
    for name in &names {
        store.hset(&key, name, &name.repeat(800)[..], 0).unwrap();
    }
    let mut moved = [0; 3];
    for bucket in 0..store.tables.get(0).unwrap().buckets() {
        for (depth, moved) in moved.iter_mut().enumerate() {
            // Each item begins with the location of the next one.
            let mut at = store.tables.get(0).unwrap().head(bucket);
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
