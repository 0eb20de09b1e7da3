//! Tests of the buddy arena: blocks do not overlap, all blocks return, and memory moves between sizes.

use super::*;
use crate::arena::ArenaConfig;
use linerate_service::Bytes;
use proptest::prelude::*;
use std::sync::mpsc::channel;

fn buddy_arena(bytes: usize) -> BuddyArena {
    BuddyArena::new(Arena::new(ArenaConfig { bytes, hugepages: false }).unwrap())
}

fn filled(buddy_arena: &mut BuddyArena, len: usize, fill: u8) -> Option<Bytes> {
    let mut block = buddy_arena.alloc(len)?;
    block.fill(fill);
    Some(block.freeze())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    #[cfg_attr(miri, ignore = "Miri takes too long to make as many chunks")]
    fn chunks_and_pages_keep_their_content(
        steps in prop::collection::vec((0..7u8, prop_oneof![0..3000usize, 0..100_000usize, 0..=BuddyArena::LARGEST], any::<prop::sample::Index>()), 1..300),
    ) {
        let mut buddy_arena = buddy_arena(6 << 20);
        let mut live: Vec<(Bytes, u8)> = Vec::new();
        let mut pages: Vec<(u32, u8)> = Vec::new();
        for (n, (operation, len, which)) in steps.into_iter().enumerate() {
            let fill = n as u8;
            match operation {
                0..3 => live.extend(filled(&mut buddy_arena, len, fill).map(|bytes| (bytes, fill))),
                3 | 4 if !live.is_empty() => drop(live.swap_remove(which.index(live.len()))),
                5 => if let Some(page) = buddy_arena.alloc_page() {
                    buddy_arena.page_mut(page).fill(fill);
                    pages.push((page, fill));
                },
                6 if !pages.is_empty() => buddy_arena.free_page(pages.swap_remove(which.index(pages.len())).0),
                _ => {}
            }
        }
        prop_assert!(live.iter().all(|(bytes, fill)| buddy_arena.owns(bytes) && bytes.iter().all(|byte| byte == fill)));
        prop_assert!(pages.iter().all(|(page, fill)| buddy_arena.page(*page).iter().all(|byte| byte == fill)));
        live.clear();
        pages.into_iter().for_each(|(page, _)| buddy_arena.free_page(page));
        while buddy_arena.collect(7) {}
        prop_assert_eq!((buddy_arena.used(), buddy_arena.chunk_bytes()), (0, 0));
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri takes too long to make as many chunks")]
fn memory_serves_one_size_after_another() {
    let mut buddy_arena = buddy_arena(4 << 20);
    for len in [512usize, 100_000, 4096, 1 << 20, 700] {
        let size = len.next_power_of_two();
        let mut live: Vec<BuddyMut> = std::iter::from_fn(|| buddy_arena.alloc(len)).collect();
        assert_eq!(live.len(), (4 << 20) / size, "{len}");
        assert!(buddy_arena.used() >= live.len() * size && buddy_arena.used() <= live.len() * size + 4 * (40 << 10));
        // Frees in another order.
        while !live.is_empty() {
            live.swap_remove(live.len() * 5 / 7);
        }
        while buddy_arena.collect(1000) {}
    }
    assert_eq!(std::iter::from_fn(|| buddy_arena.alloc_page()).count(), (4 << 20) / BuddyArena::PAGE);
}

#[test]
#[cfg_attr(miri, ignore = "Miri takes too long to make as many chunks")]
fn buddy_arenas_and_blocks_share_an_arena() {
    let arena = Arena::new(ArenaConfig { bytes: 4 << 20, hugepages: false }).unwrap();
    let mut owners = [BuddyArena::new(arena.clone()), BuddyArena::new(arena.clone())];
    let block = arena.alloc(1000).unwrap();
    let first: Vec<BuddyMut> = std::iter::from_fn(|| owners[0].alloc(1 << 20)).collect();
    assert_eq!(first.len(), 3);
    assert!(owners[1].alloc(1).is_none());
    drop(first);
    assert!(owners[0].collect(10));
    let bytes = filled(&mut owners[1], 3 << 18, 1).unwrap();
    assert!(owners[1].owns(&bytes) && !owners[0].owns(&bytes));
    assert!(!owners[0].owns(&block.freeze()));
    owners[0].set_limit(1 << 20);
    assert!(owners[0].alloc(1 << 20).is_some_and(|_| owners[0].alloc(1 << 20).is_none()));
}

#[test]
fn excluded_block_is_not_counted_until_it_returns() {
    let mut owner = buddy_arena(4 << 20);
    let bytes = filled(&mut owner, 1 << 20, 1).unwrap();
    owner.set_label(&bytes, 5);
    let used = owner.used();
    owner.exclude(&bytes);
    owner.exclude(&bytes);
    owner.set_label(&bytes, 6);
    assert_eq!(owner.used(), used - (1 << 20));
    // An excluded block does not count against the limit.
    owner.set_limit(1 << 20);
    let other = owner.alloc(1 << 20).unwrap();
    assert!(owner.alloc(1 << 20).is_none());
    drop((bytes, other));
    while owner.collect(10) {}
    assert_eq!(owner.used(), 0);
    owner.set_limit(1 << 20);
    assert!(owner.alloc(1 << 20).is_some_and(|_| owner.alloc(1 << 20).is_none()));
}

#[test]
fn blocks_outlive_their_allocator_and_memory_returns_with_the_last() {
    const SIZE: usize = if cfg!(miri) { 32 << 10 } else { 1 << 10 };
    // The blocks occupy two chunks and do not fill the second.
    const LIVE: usize = 2000 * 1024 / SIZE;
    let arena = Arena::new(ArenaConfig { bytes: 2 << 20, hugepages: false }).unwrap();
    let mut owner = BuddyArena::new(arena.clone());
    let mut live = Vec::new();
    for n in 0..LIVE {
        let mut block = owner.alloc(SIZE).unwrap();
        block.truncate(700);
        block.fill(n as u8);
        live.push(block.freeze());
    }
    drop(owner);
    let mut other = BuddyArena::new(arena);
    assert!(other.alloc(1).is_none());
    let (allocated, gone) = live.split_at(LIVE / 2);
    let allocated = allocated.to_vec();
    drop(gone.to_vec());
    assert!(allocated.iter().enumerate().all(|(n, bytes)| bytes.iter().all(|byte| *byte == n as u8)));
    std::thread::spawn(move || drop((allocated, live))).join().unwrap();
    assert_eq!(std::iter::from_fn(|| other.alloc(1 << 20)).collect::<Vec<_>>().len(), 2);
}

#[test]
fn blocks_return_from_other_threads() {
    const ROUNDS: usize = if cfg!(miri) { 50 } else { 10_000 };
    const LONGEST: usize = if cfg!(miri) { 1_000 } else { 20_000 };
    let mut owner = buddy_arena(2 << 20);
    let mut random = fastrand::Rng::with_seed(1);
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..3)
            .map(|thread| {
                let (sender, receiver) = channel::<Bytes>();
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(thread);
                    let mut allocated = Vec::new();
                    for bytes in receiver {
                        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                        allocated.push(bytes.slice(1..));
                        if allocated.len() > 20 {
                            allocated.swap_remove(random.usize(..20));
                        }
                    }
                });
                sender
            })
            .collect();
        let mut refused = 0;
        for n in 0..ROUNDS {
            match filled(&mut owner, random.usize(2..LONGEST), n as u8) {
                Some(bytes) => {
                    senders[random.usize(..3)].send(bytes.clone()).unwrap();
                    senders[random.usize(..3)].send(bytes).unwrap();
                }
                None => {
                    refused += 1;
                    std::thread::yield_now();
                }
            }
        }
        assert!(refused < ROUNDS);
    });
    while owner.collect(100) {}
    assert_eq!((owner.used(), owner.chunk_bytes()), (0, 0));
}

#[test]
fn page_is_evacuated() {
    let mut buddy_arena = buddy_arena(1 << 20);
    let mut live: Vec<Bytes> = std::iter::from_fn(|| filled(&mut buddy_arena, 4096, 1)).collect();
    // One block in four remains, and no page is free.
    let mut n = 0;
    live.retain(|_| {
        n += 1;
        n % 4 == 0
    });
    while buddy_arena.collect(100) {}
    assert!(!buddy_arena.has_free(BuddyArena::PAGE) && buddy_arena.alloc_page().is_none());
    for (n, bytes) in live.iter().enumerate() {
        buddy_arena.set_label(bytes, n as u32 + 1);
    }
    let mut labels = Vec::new();
    let evacuation = buddy_arena.begin_evacuation(&mut labels).unwrap();
    assert_eq!(labels.len(), 4);
    for label in labels {
        let bytes = &mut live[label as usize - 1];
        assert!(evacuation.contains(bytes));
        let mut moved = buddy_arena.alloc(4096).unwrap();
        moved.copy_from_slice(bytes);
        *bytes = moved.freeze();
        assert!(!evacuation.contains(bytes));
    }
    assert!(buddy_arena.collect(100));
    buddy_arena.end_evacuation();
    assert!(buddy_arena.has_free(BuddyArena::PAGE) && buddy_arena.alloc_page().is_some());
}
