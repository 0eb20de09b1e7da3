//! Processor time of processes and cores, as proc(5) shows it.

use crate::interrupt::is_interrupted;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Part of the time of its cores from which a measurement is disturbed by other programs.
pub const DISTURBED: f64 = 0.05;

/// Clock ticks per second in proc(5): 100 on Linux (`USER_HZ`).
const TICKS: u64 = 100;
/// Resolution of the time of a core.
const TICK: Duration = Duration::from_millis(1000 / TICKS);
/// Number of samples during a measurement. Its processes may end before the last one.
const SAMPLES: u32 = 4;
/// Interval of checks for an interruption.
const NAP: Duration = Duration::from_millis(20);

/// Watch over the cores of a measurement: the time that they give to other programs than its own processes.
#[derive(Debug)]
pub struct CoreWatch {
    cores: Vec<usize>,
    processes: Vec<u32>,
    first: Option<Sample>,
    last: Option<Sample>,
}

/// Times until now.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Instant,
    cores: CoreTimes,
    /// Processor time of the processes, and number of their threads.
    own: Duration,
    threads: usize,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct CoreTimes {
    /// Time of programs and of the kernel on their behalf. It excludes interrupts: whether they also count as time of
    /// the interrupted process depends on the kernel (`CONFIG_IRQ_TIME_ACCOUNTING`).
    busy: Duration,
    /// Time that the hypervisor gave to others.
    stolen: Duration,
}

impl CoreWatch {
    /// Begins to watch `cores`, used by `processes` whose threads all exist.
    pub fn begin(cores: impl IntoIterator<Item = usize>, processes: &[u32]) -> CoreWatch {
        let mut cores: Vec<usize> = cores.into_iter().collect();
        cores.sort_unstable();
        cores.dedup();
        let first = Sample::take(Path::new("/proc"), &cores, processes);
        CoreWatch { cores, processes: processes.to_vec(), first, last: None }
    }

    /// Watches for `time`, or until an interruption.
    pub fn watch(&mut self, time: Duration) {
        let begun = Instant::now();
        for part in 1..=SAMPLES {
            let until = time * part / SAMPLES;
            while !is_interrupted() && begun.elapsed() < until {
                thread::sleep(NAP.min(until.saturating_sub(begun.elapsed())));
            }
            let sample = Sample::take(Path::new("/proc"), &self.cores, &self.processes);
            // The time of threads that have ended is unknown.
            let is_whole = |sample: &Sample| self.first.is_some_and(|first| sample.threads >= first.threads);
            self.last = sample.filter(is_whole).or(self.last);
        }
    }

    /// Returns the part of the cores' time that other programs had, if known.
    pub fn others(&self) -> Option<f64> {
        self.last?.others_since(&self.first?, self.cores.len())
    }
}

impl Sample {
    fn take(proc: &Path, cores: &[usize], processes: &[u32]) -> Option<Sample> {
        let own = processes.iter().map(|process| process_time(proc, *process)).sum();
        let threads = processes.iter().map(|process| threads(proc, *process).len()).sum();
        let cores = CoreTimes::parse(&fs::read_to_string(proc.join("stat")).ok()?, cores)?;
        Some(Sample { at: Instant::now(), cores, own, threads })
    }

    fn others_since(&self, first: &Sample, cores: usize) -> Option<f64> {
        let all = (self.at - first.at).as_secs_f64() * cores as f64;
        let busy = self.cores.busy.saturating_sub(first.cores.busy);
        let stolen = self.cores.stolen.saturating_sub(first.cores.stolen);
        let own = self.own.saturating_sub(first.own) + TICK * cores as u32;
        let others = stolen + busy.saturating_sub(own);
        (all > 0.0).then(|| (others.as_secs_f64() / all).min(1.0))
    }
}

impl CoreTimes {
    /// Adds up the times of `cores` in a proc(5) `stat` file, if it has all of them.
    fn parse(stat: &str, cores: &[usize]) -> Option<CoreTimes> {
        let mut sum = CoreTimes::default();
        for core in cores {
            let fields = stat.lines().find_map(|line| line.strip_prefix(&format!("cpu{core} ")))?;
            let ticks: Vec<u64> = fields.split(' ').map_while(|field| field.parse().ok()).collect();
            // user nice system idle iowait irq softirq steal
            let &[user, nice, system, _, _, _, _, steal, ..] = &*ticks else { return None };
            sum.busy += from_ticks(user + nice + system);
            sum.stolen += from_ticks(steal);
        }
        (!cores.is_empty()).then_some(sum)
    }
}

fn from_ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks * 1000 / TICKS)
}

/// Returns the threads of a process in the directory `proc` of proc(5).
pub fn threads(proc: &Path, process: u32) -> Vec<i32> {
    let entries = fs::read_dir(proc.join(process.to_string()).join("task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the processor time of all threads of a process: in nanoseconds from `schedstat`, otherwise in ticks.
pub fn process_time(proc: &Path, process: u32) -> Duration {
    let of = |thread: i32| {
        let read =
            |file: &str| fs::read_to_string(proc.join(format!("{process}/task/{thread}/{file}"))).unwrap_or_default();
        match read("schedstat").split(' ').next().and_then(|nanos| nanos.parse().ok()) {
            Some(nanos) if nanos > 0 => Duration::from_nanos(nanos),
            _ => ticks(&read("stat")).map_or(Duration::ZERO, from_ticks),
        }
    };
    threads(proc, process).into_iter().map(of).sum()
}

/// Parses `utime` and `stime` of a proc(5) `stat` line. The second field, a name in parentheses, may contain anything.
fn ticks(stat: &str) -> Option<u64> {
    let (_, after) = stat.rsplit_once(')')?;
    let mut fields = after.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_fields_14_and_15() {
        assert_eq!(ticks("7 (a (b) c) R 1 1 1 0 -1 4 5 0 0 0 25 17 0 0 20 0 3 0"), Some(42));
        assert_eq!(ticks("7 (a"), None);
    }

    #[test]
    fn ticks_are_used_without_nanoseconds() {
        let tree = tempfile::tempdir().unwrap();
        for (thread, utime) in [(7, 25), (8, 5)] {
            let task = tree.path().join(format!("7/task/{thread}"));
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("stat"), format!("7 (a) R 1 1 1 0 -1 4 5 0 0 0 {utime} 10 0 0 20 0 3 0")).unwrap();
        }
        assert_eq!(process_time(tree.path(), 7), Duration::from_millis(500));
        fs::write(tree.path().join("7/task/7/schedstat"), "1500000 0 3\n").unwrap();
        assert_eq!(process_time(tree.path(), 7), Duration::from_nanos(151_500_000));
    }

    #[test]
    fn others_have_the_time_that_is_not_of_the_own_processes_and_stolen_time() {
        let stat = |user: u64, steal: u64| {
            format!(
                "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 {user} 1 2 50 0 4 5 {steal} 0 0\ncpu10 7 0 0 0 0 0 0 0 0 0\nintr 8\n"
            )
        };
        let at = Instant::now();
        let sample = |millis, own, user, steal| {
            let (cores, own) = (CoreTimes::parse(&stat(user, steal), &[0, 10]).unwrap(), Duration::from_millis(own));
            Sample { at: at + Duration::from_millis(millis), cores, own, threads: 1 }
        };
        // Two cores for a second, of which the own processes had 1.2 s of 1.5 s, and the hypervisor took 0.1 s. A tick
        // of each core is uncertain.
        let others = sample(1000, 1700, 160, 12).others_since(&sample(0, 500, 10, 2), 2).unwrap();
        assert!((others - 0.19).abs() < 1e-9, "{others}");
        // Processor time of processes is more precise than that of cores.
        assert_eq!(sample(1000, 1700, 129, 2).others_since(&sample(0, 500, 10, 2), 2), Some(0.0));
        assert_eq!(CoreTimes::parse(&stat(0, 0), &[1]), None);
        assert_eq!(CoreTimes::parse("cpu0 1 2 3\n", &[0]), None);
        assert_eq!(CoreTimes::parse(&stat(0, 0), &[]), None);
    }

    #[test]
    fn time_of_another_process_is_that_of_others() {
        let cores = || 0..thread::available_parallelism().map_or(1, usize::from);
        let mut busy = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let time_of = |process: u32| process_time(Path::new("/proc"), process);
        // A busy machine runs the process sometime.
        let (mut watch, before) = (CoreWatch::begin(cores(), &[]), time_of(busy.id()));
        let enough = Duration::from_millis(100) + 4 * TICK * cores().len() as u32;
        while time_of(busy.id()) < before + enough {
            watch.watch(Duration::from_millis(20));
        }
        watch.watch(Duration::from_millis(20));
        busy.kill().unwrap();
        busy.wait().unwrap();
        let (time, others) = (watch.last.unwrap().at - watch.first.unwrap().at, watch.others().unwrap());
        let given = time.as_secs_f64() * cores().len() as f64 * others;
        assert!(given > 0.05, "{given} s");
        watch.processes = vec![busy.id()];
        watch.first = watch.last.map(|sample| Sample { threads: 2, ..sample });
        watch.last = None;
        watch.watch(Duration::from_millis(1));
        assert_eq!(watch.others(), None, "the processes have ended");
    }
}
