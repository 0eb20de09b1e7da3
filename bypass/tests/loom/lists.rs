//! Models of the free list, the return list, and the reference count of a block.

use super::free_list::FreeList;
use super::model;
use super::refcount::RefCount;
use super::return_list::ReturnList;
use super::sync::atomic::{AtomicU32, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const ENTRIES: usize = 3;

struct Pool {
    free: FreeList,
    links: [AtomicU32; ENTRIES],
    memory: [UnsafeCell<u32>; ENTRIES],
}

impl Pool {
    fn full() -> Arc<Pool> {
        let pool = Pool {
            free: FreeList::new(),
            links: std::array::from_fn(|entry| AtomicU32::new(entry as u32 + 1)),
            memory: std::array::from_fn(|_| UnsafeCell::new(0)),
        };
        pool.free.push_chain(0, ENTRIES as u32 - 1, |entry| &pool.links[entry as usize]);
        Arc::new(pool)
    }

    /// Pops an entry and writes to its memory, as an owner does.
    fn take(&self) -> Option<u32> {
        let entry = self.free.pop(|entry| &self.links[entry as usize])?;
        self.write(entry);
        Some(entry)
    }

    fn write(&self, entry: u32) {
        // SAFETY: the caller has popped the entry; loom reports another thread that accesses it.
        self.memory[entry as usize].with_mut(|word| unsafe { *word += 1 });
    }

    fn give(&self, entry: u32) {
        self.write(entry);
        self.free.push(entry, |entry| &self.links[entry as usize]);
    }
}

#[test]
fn free_list_entry_has_one_owner() {
    model(|| {
        let pool = Pool::full();
        let other = pool.clone();
        // Pops two entries and pushes the first again, which an interrupted pop must not mistake for an unchanged list.
        let taker = thread::spawn(move || {
            let (first, second) = (other.take(), other.take());
            first.into_iter().for_each(|entry| other.give(entry));
            second
        });
        let mine = pool.take();
        let also_mine = pool.take();
        let others = taker.join().unwrap();
        let rest = std::iter::from_fn(|| pool.take());
        let mut all: Vec<_> = [mine, also_mine, others].into_iter().flatten().chain(rest).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
    });
}

#[test]
fn return_list_hands_over_each_entry_with_earlier_accesses() {
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
        let refs: Vec<_> = (0..2)
            .map(|chunk: u32| {
                let home = home.clone();
                thread::spawn(move || {
                    // SAFETY: the entry is this thread's; loom reports another thread that accesses it.
                    home.memory[chunk as usize].with_mut(|word| unsafe { *word = chunk + 1 });
                    home.returned.push(chunk, &home.links[chunk as usize]);
                })
            })
            .collect();
        let mut seen = [false; 2];
        let mut collect = || {
            let mut next = home.returned.take();
            while let Some(chunk) = next.checked_sub(1) {
                // SAFETY: as above.
                assert_eq!(home.memory[chunk as usize].with_mut(|word| unsafe { *word }), chunk + 1);
                assert!(!std::mem::replace(&mut seen[chunk as usize], true));
                next = home.links[chunk as usize].load(Ordering::Relaxed);
            }
        };
        collect();
        refs.into_iter().for_each(|holder| holder.join().unwrap());
        collect();
        assert!(home.returned.is_empty());
        assert_eq!(seen, [true; 2]);
    });
}

#[test]
fn last_release_of_a_block_sees_earlier_accesses() {
    struct Block {
        refs: RefCount,
        memory: UnsafeCell<u32>,
    }
    impl Block {
        fn read_and_release(&self) {
            // SAFETY: no one writes while there are references; loom reports a writer.
            self.memory.with(|word| unsafe { *word });
            if self.refs.release() {
                // SAFETY: the last reference is exclusive.
                self.memory.with_mut(|word| unsafe { *word += 1 });
            }
        }
    }
    model(|| {
        let block = Arc::new(Block { refs: RefCount::one(), memory: UnsafeCell::new(0) });
        // SAFETY: this thread holds the only reference.
        unsafe { block.refs.share_own() };
        let other = block.clone();
        let thread = thread::spawn(move || {
            other.refs.share();
            other.read_and_release();
            other.read_and_release();
        });
        // SAFETY: this thread's own reference.
        unsafe { block.refs.share_own() };
        block.read_and_release();
        block.read_and_release();
        thread.join().unwrap();
        // SAFETY: there are no references.
        assert_eq!(block.memory.with(|word| unsafe { *word }), 1);
        block.refs.restart();
        assert!(block.refs.is_sole());
    });
}
