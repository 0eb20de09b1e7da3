//! Pieces: no two overlap, each comes back from wherever it is, and memory serves any size.

use super::*;
use crate::Bytes;
use crate::arena::ArenaConfig;
use proptest::prelude::*;
use std::sync::mpsc::channel;

fn pieces(bytes: usize) -> Pieces {
    Pieces::new(Arena::new(ArenaConfig { bytes, hugepages: false }).unwrap())
}

fn filled(pieces: &mut Pieces, len: usize, fill: u8) -> Option<Bytes> {
    let mut piece = pieces.take(len)?;
    piece.fill(fill);
    Some(piece.freeze())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    #[cfg_attr(miri, ignore = "Miri takes too long to make as many chunks")]
    fn pieces_and_pages_keep_what_was_written(
        steps in prop::collection::vec((0..7u8, prop_oneof![0..3000usize, 0..100_000usize, 0..=Pieces::LARGEST], any::<prop::sample::Index>()), 1..300),
    ) {
        let mut pieces = pieces(6 << 20);
        let mut live: Vec<(Bytes, u8)> = Vec::new();
        let mut pages: Vec<(u32, u8)> = Vec::new();
        for (n, (what, len, which)) in steps.into_iter().enumerate() {
            let fill = n as u8;
            match what {
                0..3 => live.extend(filled(&mut pieces, len, fill).map(|bytes| (bytes, fill))),
                3 | 4 if !live.is_empty() => drop(live.swap_remove(which.index(live.len()))),
                5 => if let Some(page) = pieces.open_page() {
                    pieces.page_mut(page).fill(fill);
                    pages.push((page, fill));
                },
                6 if !pages.is_empty() => pieces.close_page(pages.swap_remove(which.index(pages.len())).0),
                _ => {}
            }
        }
        prop_assert!(live.iter().all(|(bytes, fill)| pieces.owns(bytes) && bytes.iter().all(|byte| byte == fill)));
        prop_assert!(pages.iter().all(|(page, fill)| pieces.page(*page).iter().all(|byte| byte == fill)));
        live.clear();
        pages.into_iter().for_each(|(page, _)| pieces.close_page(page));
        while pieces.collect(7) {}
        prop_assert_eq!((pieces.used(), pieces.held()), (0, 0));
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri takes too long to make as many chunks")]
fn all_of_the_memory_serves_one_size_after_another() {
    let mut pieces = pieces(4 << 20);
    for len in [512usize, 100_000, 4096, 1 << 20, 700] {
        let size = len.next_power_of_two();
        let mut live: Vec<Piece> = std::iter::from_fn(|| pieces.take(len)).collect();
        assert_eq!(live.len(), (4 << 20) / size, "{len}");
        assert!(pieces.used() >= live.len() * size && pieces.used() <= live.len() * size + 4 * (40 << 10));
        // In another order.
        while !live.is_empty() {
            live.swap_remove(live.len() * 5 / 7);
        }
        while pieces.collect(1000) {}
    }
    assert_eq!(std::iter::from_fn(|| pieces.open_page()).count(), (4 << 20) / Pieces::PAGE);
}

#[test]
#[cfg_attr(miri, ignore = "Miri takes too long to make as many chunks")]
fn owners_of_one_arena_and_its_blocks_share_its_memory() {
    let arena = Arena::new(ArenaConfig { bytes: 4 << 20, hugepages: false }).unwrap();
    let mut owners = [Pieces::new(arena.clone()), Pieces::new(arena.clone())];
    let block = arena.alloc(1000).unwrap();
    let first: Vec<Piece> = std::iter::from_fn(|| owners[0].take(1 << 20)).collect();
    assert_eq!(first.len(), 3);
    assert!(owners[1].take(1).is_none());
    drop(first);
    assert!(owners[0].collect(10));
    let bytes = filled(&mut owners[1], 3 << 18, 1).unwrap();
    assert!(owners[1].owns(&bytes) && !owners[0].owns(&bytes));
    assert!(!owners[0].owns(&block.freeze()));
    owners[0].set_limit(1 << 20);
    assert!(owners[0].take(1 << 20).is_some_and(|_| owners[0].take(1 << 20).is_none()));
}

#[test]
fn what_is_lent_is_not_counted_until_it_is_back() {
    let mut owner = pieces(4 << 20);
    let bytes = filled(&mut owner, 1 << 20, 1).unwrap();
    owner.set_label(&bytes, 5);
    let used = owner.used();
    owner.lend(&bytes);
    owner.lend(&bytes);
    owner.set_label(&bytes, 6);
    assert_eq!(owner.used(), used - (1 << 20));
    // Nor does it count among what the owner may have.
    owner.set_limit(1 << 20);
    let other = owner.take(1 << 20).unwrap();
    assert!(owner.take(1 << 20).is_none());
    drop((bytes, other));
    while owner.collect(10) {}
    assert_eq!(owner.used(), 0);
    owner.set_limit(1 << 20);
    assert!(owner.take(1 << 20).is_some_and(|_| owner.take(1 << 20).is_none()));
}

#[test]
fn pieces_outlive_their_owner_and_its_memory_comes_back_with_the_last() {
    const SIZE: usize = if cfg!(miri) { 32 << 10 } else { 1 << 10 };
    // They take two chunks and do not fill the second.
    const LIVE: usize = 2000 * 1024 / SIZE;
    let arena = Arena::new(ArenaConfig { bytes: 2 << 20, hugepages: false }).unwrap();
    let mut owner = Pieces::new(arena.clone());
    let mut live = Vec::new();
    for n in 0..LIVE {
        let mut piece = owner.take(SIZE).unwrap();
        piece.truncate(700);
        piece.fill(n as u8);
        live.push(piece.freeze());
    }
    drop(owner);
    let mut other = Pieces::new(arena);
    assert!(other.take(1).is_none());
    let (kept, gone) = live.split_at(LIVE / 2);
    let kept = kept.to_vec();
    drop(gone.to_vec());
    assert!(kept.iter().enumerate().all(|(n, bytes)| bytes.iter().all(|byte| *byte == n as u8)));
    std::thread::spawn(move || drop((kept, live))).join().unwrap();
    assert_eq!(std::iter::from_fn(|| other.take(1 << 20)).collect::<Vec<_>>().len(), 2);
}

#[test]
fn pieces_come_back_from_other_threads() {
    const ROUNDS: usize = if cfg!(miri) { 50 } else { 10_000 };
    const LONGEST: usize = if cfg!(miri) { 1_000 } else { 20_000 };
    let mut owner = pieces(2 << 20);
    let mut random = fastrand::Rng::with_seed(1);
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..3)
            .map(|thread| {
                let (sender, receiver) = channel::<Bytes>();
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(thread);
                    let mut kept = Vec::new();
                    for bytes in receiver {
                        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                        kept.push(bytes.slice(1..));
                        if kept.len() > 20 {
                            kept.swap_remove(random.usize(..20));
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
    assert_eq!((owner.used(), owner.held()), (0, 0));
}

#[test]
fn a_page_is_cleared_of_its_pieces() {
    let mut pieces = pieces(1 << 20);
    let mut live: Vec<Bytes> = std::iter::from_fn(|| filled(&mut pieces, 4096, 1)).collect();
    // One in four is left, and no page.
    let mut n = 0;
    live.retain(|_| {
        n += 1;
        n % 4 == 0
    });
    while pieces.collect(100) {}
    assert!(!pieces.has_free(Pieces::PAGE) && pieces.open_page().is_none());
    for (n, bytes) in live.iter().enumerate() {
        pieces.set_label(bytes, n as u32 + 1);
    }
    let mut labels = Vec::new();
    let clearing = pieces.begin_clearing(&mut labels).unwrap();
    assert_eq!(labels.len(), 4);
    for label in labels {
        let bytes = &mut live[label as usize - 1];
        assert!(clearing.contains(bytes));
        let mut moved = pieces.take(4096).unwrap();
        moved.copy_from_slice(bytes);
        *bytes = moved.freeze();
        assert!(!clearing.contains(bytes));
    }
    assert!(pieces.collect(100));
    pieces.end_clearing();
    assert!(pieces.has_free(Pieces::PAGE) && pieces.open_page().is_some());
}
