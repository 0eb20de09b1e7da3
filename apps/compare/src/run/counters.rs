//! What a server has had of the processors, seen from outside.

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Clock ticks that proc(5) counts processor time in: Linux gives all programs 100 in a second (`USER_HZ`).
const TICKS: u64 = 100;

/// Watches all threads of a process that is running.
#[derive(Debug)]
pub struct Observed {
    process: u32,
    /// The cycles and instructions of each thread, where the machine counts them for us.
    threads: Option<Vec<[Counter; 2]>>,
}

/// What the threads had until a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    /// Processor time, in their own code and in the kernel.
    pub cpu: Duration,
    /// Cycles, those in the kernel included.
    pub cycles: Option<u64>,
    /// Instructions, those in the kernel included.
    pub instructions: Option<u64>,
}

impl Used {
    /// What was added since `before`.
    pub fn since(self, before: Used) -> Used {
        let difference = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        Used {
            cpu: self.cpu.saturating_sub(before.cpu),
            cycles: difference(self.cycles, before.cycles),
            instructions: difference(self.instructions, before.instructions),
        }
    }
}

impl Observed {
    /// Watches the threads that `process` has now: those of a server that is ready are all that it will have.
    pub fn new(process: u32) -> Observed {
        let counters =
            |thread| Some([counter(Hardware::CPU_CYCLES, thread)?, counter(Hardware::INSTRUCTIONS, thread)?]);
        let threads = threads(Path::new("/proc"), process);
        let counted: Option<Vec<_>> = threads.into_iter().map(counters).collect();
        Observed { process, threads: counted.filter(|threads| !threads.is_empty()) }
    }

    /// What they have had until now.
    pub fn used(&mut self) -> Used {
        let mut sums = self.threads.as_ref().map(|_| [0, 0]);
        for counters in self.threads.iter_mut().flatten() {
            for (number, counter) in counters.iter_mut().enumerate() {
                match (counter.read(), &mut sums) {
                    (Ok(count), Some(sums)) => sums[number] += count,
                    _ => sums = None,
                }
            }
        }
        // A machine that has no counters may still open them.
        let sums = sums.filter(|[cycles, instructions]| *cycles > 0 && *instructions > 0);
        Used {
            cpu: busy(Path::new("/proc"), self.process),
            cycles: sums.map(|[cycles, _]| cycles),
            instructions: sums.map(|[_, instructions]| instructions),
        }
    }
}

/// Counts an event of one thread, in its own code and in the kernel: half of it would say little of kernel sockets.
fn counter(event: Hardware, thread: i32) -> Option<Counter> {
    let mut builder = Builder::new(event);
    builder.observe_pid(thread).any_cpu().include_kernel().enabled(true);
    builder.build().ok()
}

fn threads(proc: &Path, process: u32) -> Vec<i32> {
    let entries = fs::read_dir(proc.join(process.to_string()).join("task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// How long processors were busy with all threads of a process: to the nanosecond where the kernel tells (`schedstat`), else to the tick.
fn busy(proc: &Path, process: u32) -> Duration {
    let of = |thread: i32| {
        let read =
            |file: &str| fs::read_to_string(proc.join(format!("{process}/task/{thread}/{file}"))).unwrap_or_default();
        match read("schedstat").split(' ').next().and_then(|nanos| nanos.parse().ok()) {
            Some(nanos) if nanos > 0 => Duration::from_nanos(nanos),
            _ => ticks(&read("stat")).map_or(Duration::ZERO, |ticks| Duration::from_millis(ticks * 1000 / TICKS)),
        }
    };
    threads(proc, process).into_iter().map(of).sum()
}

/// `utime` and `stime` of a line as proc(5) has it, whose second field is a name in parentheses, with whatever in it.
fn ticks(stat: &str) -> Option<u64> {
    let (_, after) = stat.rsplit_once(')')?;
    let mut fields = after.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_computes_is_seen_to_compute() {
        let mut observed = Observed::new(std::process::id());
        let before = observed.used();
        let mut number = 1_u64;
        while observed.used().since(before).cpu < Duration::from_millis(20) {
            (0..100_000_u64).for_each(|n| number = std::hint::black_box(number.wrapping_mul(n | 1)));
        }
        let used = observed.used().since(before);
        assert!(used.cycles.is_none_or(|cycles| cycles > 0) && used.cpu >= Duration::from_millis(20), "{used:?}");
    }

    #[test]
    fn ticks_are_the_fourteenth_field_and_the_next() {
        assert_eq!(ticks("7 (a (b) c) R 1 1 1 0 -1 4 5 0 0 0 25 17 0 0 20 0 3 0"), Some(42));
        assert_eq!(ticks("7 (a"), None);
    }

    #[test]
    fn where_no_nanoseconds_are_told_ticks_are_taken() {
        let tree = tempfile::tempdir().unwrap();
        for (thread, utime) in [(7, 25), (8, 5)] {
            let task = tree.path().join(format!("7/task/{thread}"));
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("stat"), format!("7 (a) R 1 1 1 0 -1 4 5 0 0 0 {utime} 10 0 0 20 0 3 0")).unwrap();
        }
        assert_eq!(busy(tree.path(), 7), Duration::from_millis(500));
        fs::write(tree.path().join("7/task/7/schedstat"), "1500000 0 3\n").unwrap();
        assert_eq!(busy(tree.path(), 7), Duration::from_nanos(151_500_000));
    }

    #[test]
    fn differences_need_both_ends() {
        let used = |cycles, millis| Used { cycles, cpu: Duration::from_millis(millis), instructions: None };
        assert_eq!(used(Some(7), 30).since(used(Some(2), 10)), used(Some(5), 20));
        assert_eq!(used(None, 30).since(used(Some(2), 40)), used(None, 0));
    }
}
