//! Batch program on the core of a server (`--batch`): a fixed loop whose iterations show how much of the core is left.

use crate::transfer::pin;
use rustix::process::setpriority_process;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::io;
use std::time::{Duration, Instant};

/// Iterations between looks at the clock: a few microseconds.
const BLOCK: u64 = 5_000;

/// Work of a batch program, printed as one JSON object.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    pub iterations: u64,
    pub seconds: f64,
}

impl Batch {
    /// Returns the iterations per second.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.iterations as f64 / self.seconds } else { 0.0 }
    }
}

/// Runs the loop on `core` for `time`, at default priority: the comparison has raised that of its children.
///
/// # Errors
/// The core cannot be used.
pub fn run(core: usize, time: Duration) -> io::Result<Batch> {
    pin(core)?;
    setpriority_process(None, 0)?;
    let (begun, mut iterations, mut number) = (Instant::now(), 0, 1_u64);
    while begun.elapsed() < time {
        (0..BLOCK).for_each(|n| number = black_box(number.wrapping_mul(n | 1)));
        iterations += BLOCK;
    }
    Ok(Batch { iterations, seconds: begun.elapsed().as_secs_f64() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{CpuSet, sched_getaffinity};

    #[test]
    fn iterations_are_counted_for_the_given_time() {
        let usable = sched_getaffinity(None).unwrap();
        let core = (0..CpuSet::MAX_CPU).find(|core| usable.is_set(*core)).unwrap();
        // Pinned and at default priority in a thread of its own.
        let batch = std::thread::spawn(move || run(core, Duration::from_millis(20)).unwrap()).join().unwrap();
        assert!(batch.iterations >= BLOCK && batch.seconds >= 0.02 && batch.rate() > 0.0, "{batch:?}");
        assert!(run(CpuSet::MAX_CPU - 1, Duration::ZERO).is_err() || usable.is_set(CpuSet::MAX_CPU - 1));
    }
}
