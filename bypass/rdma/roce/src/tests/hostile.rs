//! Packets of a hostile peer: the corpus of the fuzz target, mutations of it, and random inputs.

use super::attack::Victim;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATED: Cell<isize> = const { Cell::new(0) };
}

/// Allocator that counts the bytes of each thread.
struct Counting;

// SAFETY: calls are passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        _ = ALLOCATED.try_with(|bytes| bytes.set(bytes.get() + layout.size() as isize));
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        _ = ALLOCATED.try_with(|bytes| bytes.set(bytes.get() - layout.size() as isize));
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn hostile_packets_change_no_foreign_memory_and_keep_none() {
    let inputs: Vec<Vec<u8>> = include_str!("../../fuzz/corpus/packets")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| (0..line.len()).step_by(2).map(|at| u8::from_str_radix(&line[at..at + 2], 16).unwrap()).collect())
        .collect();
    let mut victim = Victim::new();
    let mut random = fastrand::Rng::with_seed(1);
    let mut play = |victim: &mut Victim| {
        for round in 0..2000 {
            let mut input = inputs[round % inputs.len()].clone();
            for _ in 0..random.usize(0..8) {
                let at = random.usize(..input.len());
                input[at] = random.u8(..);
            }
            // Restarts the queue pairs.
            victim.attack(&[1, 0, 1, 1, 1, 2]);
            victim.attack(&input);
            let noise: Vec<u8> = (0..random.usize(..400)).map(|_| random.u8(..)).collect();
            victim.attack(&noise);
            victim.assert_intact();
        }
        ALLOCATED.get()
    };
    let first = play(&mut victim);
    let second = play(&mut victim);
    assert!(second - first < 64_000, "{} bytes", second - first);
}
