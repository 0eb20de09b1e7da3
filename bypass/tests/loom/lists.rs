//! Free lists, return lists, and the count of the holders of a block.

use super::free_list::FreeList;
use super::model;
use super::refcount::RefCount;
use super::return_list::ReturnList;
use super::sync::atomic::{AtomicU32, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const PLACES: usize = 3;

struct Pool {
    free: FreeList,
    links: [AtomicU32; PLACES],
    memory: [UnsafeCell<u32>; PLACES],
}

impl Pool {
    fn full() -> Arc<Pool> {
        let pool = Pool {
            free: FreeList::new(),
            links: std::array::from_fn(|place| AtomicU32::new(place as u32 + 1)),
            memory: std::array::from_fn(|_| UnsafeCell::new(0)),
        };
        pool.free.push_chain(0, PLACES as u32 - 1, |place| &pool.links[place as usize]);
        Arc::new(pool)
    }

    /// Pops a place and writes to its memory, as an owner does.
    fn take(&self) -> Option<u32> {
        let place = self.free.pop(|place| &self.links[place as usize])?;
        self.write(place);
        Some(place)
    }

    fn write(&self, place: u32) {
        // SAFETY: the caller took the place out of the list; loom reports whoever else did.
        self.memory[place as usize].with_mut(|word| unsafe { *word += 1 });
    }

    fn give(&self, place: u32) {
        self.write(place);
        self.free.push(place, |place| &self.links[place as usize]);
    }
}

#[test]
fn free_list_gives_each_place_to_one_owner() {
    model(|| {
        let pool = Pool::full();
        let other = pool.clone();
        // Takes two and gives the first back, which a pop that was interrupted meanwhile must not take for an unchanged
        // list.
        let taker = thread::spawn(move || {
            let (first, second) = (other.take(), other.take());
            first.into_iter().for_each(|place| other.give(place));
            second
        });
        let mine = pool.take();
        let also_mine = pool.take();
        let theirs = taker.join().unwrap();
        let rest = std::iter::from_fn(|| pool.take());
        let mut all: Vec<_> = [mine, also_mine, theirs].into_iter().flatten().chain(rest).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
    });
}

#[test]
fn return_list_hands_over_each_piece_with_what_was_done_to_it() {
    struct Home {
        returned: ReturnList,
        links: [AtomicU32; 2],
        memory: [UnsafeCell<u32>; 2],
    }
    model(|| {
        let home = Arc::new(Home {
            returned: ReturnList::new(),
            links: std::array::from_fn(|_| AtomicU32::new(7)),
            memory: std::array::from_fn(|_| UnsafeCell::new(0)),
        });
        let holders: Vec<_> = (0..2)
            .map(|piece: u32| {
                let home = home.clone();
                thread::spawn(move || {
                    // SAFETY: the piece is this thread's; loom reports whoever else has it.
                    home.memory[piece as usize].with_mut(|word| unsafe { *word = piece + 1 });
                    home.returned.push(piece, &home.links[piece as usize]);
                })
            })
            .collect();
        let mut seen = [false; 2];
        let mut collect = || {
            let mut next = home.returned.take();
            while let Some(piece) = next.checked_sub(1) {
                // SAFETY: as above.
                assert_eq!(home.memory[piece as usize].with_mut(|word| unsafe { *word }), piece + 1);
                assert!(!std::mem::replace(&mut seen[piece as usize], true));
                next = home.links[piece as usize].load(Ordering::Relaxed);
            }
        };
        collect();
        holders.into_iter().for_each(|holder| holder.join().unwrap());
        collect();
        assert!(home.returned.is_empty());
        assert_eq!(seen, [true; 2]);
    });
}

#[test]
fn last_holder_of_a_block_sees_what_the_others_did() {
    struct Block {
        holders: RefCount,
        memory: UnsafeCell<u32>,
    }
    impl Block {
        fn read_and_release(&self) {
            // SAFETY: nobody writes while there are holders; loom reports whoever does.
            self.memory.with(|word| unsafe { *word });
            if self.holders.release() {
                // SAFETY: the last holder has it alone.
                self.memory.with_mut(|word| unsafe { *word += 1 });
            }
        }
    }
    model(|| {
        let block = Arc::new(Block { holders: RefCount::one(), memory: UnsafeCell::new(0) });
        // SAFETY: the only holder is this thread.
        unsafe { block.holders.share_own() };
        let other = block.clone();
        let thread = thread::spawn(move || {
            other.holders.share();
            other.read_and_release();
            other.read_and_release();
        });
        // SAFETY: this thread's hold, which it has to itself.
        unsafe { block.holders.share_own() };
        block.read_and_release();
        block.read_and_release();
        thread.join().unwrap();
        // SAFETY: all holders are gone.
        assert_eq!(block.memory.with(|word| unsafe { *word }), 1);
        block.holders.restart();
        assert!(block.holders.is_sole());
    });
}
