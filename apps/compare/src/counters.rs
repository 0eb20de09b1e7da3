//! Processor usage of a server, measured from outside.

use linerate_process::cpu_time::{process_time, threads};
use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use std::path::Path;
use std::time::Duration;

/// Counters of all threads of a running process.
#[derive(Debug)]
pub struct ProcessCounters {
    process: u32,
    /// Cycles and instructions of each thread, if the machine counts them.
    threads: Option<Vec<[Counter; 2]>>,
}

/// Processor usage up to a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuUsage {
    /// Processor time in user and kernel mode.
    pub cpu: Duration,
    /// Cycles in user and kernel mode.
    pub cycles: Option<u64>,
    /// Instructions in user and kernel mode.
    pub instructions: Option<u64>,
}

impl CpuUsage {
    pub fn since(self, before: CpuUsage) -> CpuUsage {
        let difference = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        CpuUsage {
            cpu: self.cpu.saturating_sub(before.cpu),
            cycles: difference(self.cycles, before.cycles),
            instructions: difference(self.instructions, before.instructions),
        }
    }
}

impl ProcessCounters {
    /// Creates counters for the current threads of `process`. A server that is ready has created all its threads.
    pub fn new(process: u32) -> ProcessCounters {
        let counters =
            |thread| Some([counter(Hardware::CPU_CYCLES, thread)?, counter(Hardware::INSTRUCTIONS, thread)?]);
        let threads = threads(Path::new("/proc"), process);
        let counted: Option<Vec<_>> = threads.into_iter().map(counters).collect();
        ProcessCounters { process, threads: counted.filter(|threads| !threads.is_empty()) }
    }

    /// Returns the usage so far.
    pub fn used(&mut self) -> CpuUsage {
        let mut sums = self.threads.as_ref().map(|_| [0, 0]);
        for counters in self.threads.iter_mut().flatten() {
            for (number, counter) in counters.iter_mut().enumerate() {
                match (counter.read(), &mut sums) {
                    (Ok(count), Some(sums)) => sums[number] += count,
                    _ => sums = None,
                }
            }
        }
        // A machine without counters may still open them; they then read zero.
        let sums = sums.filter(|[cycles, instructions]| *cycles > 0 && *instructions > 0);
        CpuUsage {
            cpu: process_time(Path::new("/proc"), self.process),
            cycles: sums.map(|[cycles, _]| cycles),
            instructions: sums.map(|[_, instructions]| instructions),
        }
    }
}

/// Counts an event of one thread in user and kernel mode: kernel sockets spend much of their time in the kernel.
fn counter(event: Hardware, thread: i32) -> Option<Counter> {
    let mut builder = Builder::new(event);
    builder.observe_pid(thread).any_cpu().include_kernel().enabled(true);
    builder.build().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computation_is_measured() {
        let mut observed = ProcessCounters::new(std::process::id());
        let before = observed.used();
        let mut number = 1_u64;
        while observed.used().since(before).cpu < Duration::from_millis(20) {
            (0..100_000_u64).for_each(|n| number = std::hint::black_box(number.wrapping_mul(n | 1)));
        }
        let used = observed.used().since(before);
        assert!(used.cycles.is_none_or(|cycles| cycles > 0) && used.cpu >= Duration::from_millis(20), "{used:?}");
    }

    #[test]
    fn differences_need_both_values() {
        let used = |cycles, millis| CpuUsage { cycles, cpu: Duration::from_millis(millis), instructions: None };
        assert_eq!(used(Some(7), 30).since(used(Some(2), 10)), used(Some(5), 20));
        assert_eq!(used(None, 30).since(used(Some(2), 40)), used(None, 0));
    }
}
