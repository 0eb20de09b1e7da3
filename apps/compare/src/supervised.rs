//! `--supervised`: control of a program on another machine, started by ssh or similar, through its standard input.
//!
//! Signals do not reach a program over ssh without a terminal, but the end of its standard input does.

use crate::counters::{CpuUsage, ProcessCounters};
use linerate_process::output::{eprint_line, print_line};
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead};
use std::thread;
use std::time::Duration;

/// Processor usage of this process, printed as one line of JSON for each input line.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time of all threads in seconds.
    pub cpu_seconds: f64,
    /// Cycles since the first line, if the machine counts them.
    pub cycles: Option<u64>,
    /// Instructions since the first line, if the machine counts them.
    pub instructions: Option<u64>,
}

impl From<CpuUsage> for Usage {
    fn from(CpuUsage { cpu, cycles, instructions }: CpuUsage) -> Usage {
        Usage { cpu_seconds: cpu.as_secs_f64(), cycles, instructions }
    }
}

impl From<Usage> for CpuUsage {
    fn from(Usage { cpu_seconds, cycles, instructions }: Usage) -> CpuUsage {
        CpuUsage { cpu: Duration::try_from_secs_f64(cpu_seconds).unwrap_or_default(), cycles, instructions }
    }
}

/// Starts a thread that prints a [`Usage`] for each line of standard input, and sends this process SIGTERM at its end.
///
/// # Errors
/// The thread cannot be started.
pub fn begin() -> io::Result<()> {
    let serve = || {
        report_usage(io::stdin().lock(), &mut |usage| match serde_json::to_string(&usage) {
            Ok(line) => print_line(line),
            Err(error) => Err(error.into()),
        });
        // SIGTERM ends the process in an orderly way if it has a handler, and at once otherwise.
        if let Err(error) = kill_process(getpid(), Signal::TERM) {
            eprint_line(format_args!("linerate: standard input has ended, and SIGTERM cannot be sent: {error}"));
        }
    };
    thread::Builder::new().name("supervised".to_owned()).spawn(serve).map(drop)
}

/// Answers each line until the input ends or an answer cannot be written.
fn report_usage(input: impl BufRead, report: &mut dyn FnMut(Usage) -> io::Result<()>) {
    let mut observed = None;
    for _ in input.lines().map_while(Result::ok) {
        // Create the counters at the first request, when all threads exist.
        let observed = observed.get_or_insert_with(|| ProcessCounters::new(std::process::id()));
        if report(observed.used().into()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_grows_with_each_line() {
        // In a process of its own: usage is that of live threads, and threads of other tests end at any time.
        linerate_harness::rerun::alone(|| {
            let mut seconds = Vec::new();
            report_usage(&b"\n\nthird"[..], &mut |usage| {
                seconds.push(usage.cpu_seconds);
                let mut number = 1_u64;
                (0..10_000_000_u64).for_each(|n| number = std::hint::black_box(number.wrapping_mul(n | 1)));
                Ok(())
            });
            assert_eq!(seconds.len(), 3);
            assert!(seconds.is_sorted() && seconds[2] > seconds[0], "{seconds:?}");
        });
    }

    #[test]
    fn answering_stops_when_output_fails() {
        let mut times = 0;
        report_usage(&b"\n\n\n"[..], &mut |_| {
            times += 1;
            Err(io::ErrorKind::BrokenPipe.into())
        });
        assert_eq!(times, 1);
    }

    #[test]
    fn printed_usage_is_parsed() {
        let used = CpuUsage { cpu: Duration::from_millis(1250), cycles: Some(7), instructions: None };
        let line = serde_json::to_string(&Usage::from(used)).unwrap();
        assert_eq!(line, r#"{"cpu_seconds":1.25,"cycles":7,"instructions":null}"#);
        assert_eq!(CpuUsage::from(serde_json::from_str::<Usage>(&line).unwrap()), used);
    }
}
