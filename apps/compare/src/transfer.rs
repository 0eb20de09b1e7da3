//! Distance of two cores: the time to transfer a cache line from one to the other.
//!
//! Processes that communicate over rings in memory wait for such transfers. A virtual machine does not show how far
//! apart the host has placed its cores, which may share a cache at one time and none at another.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::hint::spin_loop;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

/// Round trips per measurement, and number of measurements. The fastest one is undisturbed.
const TURNS: u32 = 5_000;
const MEASUREMENTS: usize = 10;

/// Returns the nanoseconds of one transfer between two cores.
pub fn nanoseconds(one: usize, other: usize) -> io::Result<f64> {
    let (line, before) = (Line(AtomicU32::new(0)), sched_getaffinity(None)?);
    // A thread starts on its parent's core. Pinning first detects a missing core before any thread starts.
    pin(one)?;
    pin(other)?;
    let fastest = thread::scope(|scope| {
        scope.spawn(|| (0..MEASUREMENTS).for_each(|_| reply_turns(&line.0)));
        let pinned = pin(one);
        let fastest = (0..MEASUREMENTS).map(|_| time_turns(&line.0)).fold(f64::INFINITY, f64::min);
        pinned.map(|()| fastest)
    });
    sched_setaffinity(None, &before)?;
    fastest
}

/// A cache line, and the adjacent one that the core may prefetch.
#[repr(align(128))]
struct Line(AtomicU32);

/// Pins the calling thread to `core` (sched_setaffinity(2)).
pub fn pin(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

fn time_turns(line: &AtomicU32) -> f64 {
    let start = Instant::now();
    for turn in 0..TURNS {
        line.store(2 * turn + 1, Ordering::Release);
        wait(line, 2 * turn + 2);
    }
    start.elapsed().as_nanos() as f64 / f64::from(2 * TURNS)
}

fn reply_turns(line: &AtomicU32) {
    for turn in 0..TURNS {
        wait(line, 2 * turn + 1);
        line.store(2 * turn + 2, Ordering::Release);
    }
}

fn wait(line: &AtomicU32, number: u32) {
    while line.load(Ordering::Acquire) != number {
        spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfer_takes_time_and_affinity_is_restored() {
        let before = sched_getaffinity(None).unwrap();
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| before.is_set(*core));
        let (Some(one), Some(other)) = (cores.next(), cores.next()) else { return };
        let nanoseconds = nanoseconds(one, other).unwrap();
        assert!(nanoseconds > 0.0 && nanoseconds.is_finite(), "{nanoseconds}");
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
