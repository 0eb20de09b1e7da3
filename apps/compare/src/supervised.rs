//! `--supervised`: a program that is run from another machine, by ssh or the like, lives and tells by its standard input.
//!
//! No signal reaches a program over ssh without a terminal; that its standard input has ended does, whatever ended it.

use crate::run::counters::{Observed, Used};
use linerate_net::process::output::{eprint_line, print_line};
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead};
use std::thread;
use std::time::Duration;

/// What is asked for with each line, and what is printed then as one JSON object on one line: what processors have done for this process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Seconds that processors were busy with all of its threads.
    pub cpu_seconds: f64,
    /// Cycles and instructions since the first line, where the machine counts them.
    pub cycles: Option<u64>,
    /// See `cycles`.
    pub instructions: Option<u64>,
}

impl From<Used> for Usage {
    fn from(Used { cpu, cycles, instructions }: Used) -> Usage {
        Usage { cpu_seconds: cpu.as_secs_f64(), cycles, instructions }
    }
}

impl From<Usage> for Used {
    fn from(Usage { cpu_seconds, cycles, instructions }: Usage) -> Used {
        Used { cpu: Duration::try_from_secs_f64(cpu_seconds).unwrap_or_default(), cycles, instructions }
    }
}

/// Reads standard input on a thread that does nothing else: prints a [`Usage`] at each line, and ends this process by SIGTERM when there
/// are no more.
///
/// # Errors
/// There is no thread to be had.
pub fn begin() -> io::Result<()> {
    let serve = || {
        answer(io::stdin().lock(), &mut |usage| match serde_json::to_string(&usage) {
            Ok(line) => print_line(line),
            Err(error) => Err(error.into()),
        });
        // Who catches it ends in an orderly way; who does not, ends.
        if let Err(error) = kill_process(getpid(), Signal::TERM) {
            eprint_line(format_args!("linerate: standard input has ended, and SIGTERM cannot be sent: {error}"));
        }
    };
    thread::Builder::new().name("supervised".to_owned()).spawn(serve).map(drop)
}

/// Answers each line, until there are no more or answers are not taken.
fn answer(input: impl BufRead, tell: &mut dyn FnMut(Usage) -> io::Result<()>) {
    let mut observed = None;
    for _ in input.lines().map_while(Result::ok) {
        // All threads are there when somebody asks.
        let observed = observed.get_or_insert_with(|| Observed::new(std::process::id()));
        if tell(observed.used().into()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_answered_with_more_than_the_one_before() {
        let mut told = Vec::new();
        answer(&b"\n\nthird"[..], &mut |usage| {
            told.push(usage.cpu_seconds);
            let mut number = 1_u64;
            (0..10_000_000_u64).for_each(|n| number = std::hint::black_box(number.wrapping_mul(n | 1)));
            Ok(())
        });
        assert_eq!(told.len(), 3);
        assert!(told.is_sorted() && told[2] > told[0], "{told:?}");
    }

    #[test]
    fn who_listens_no_more_is_told_no_more() {
        let mut times = 0;
        answer(&b"\n\n\n"[..], &mut |_| {
            times += 1;
            Err(io::ErrorKind::BrokenPipe.into())
        });
        assert_eq!(times, 1);
    }

    #[test]
    fn what_is_printed_is_read() {
        let used = Used { cpu: Duration::from_millis(1250), cycles: Some(7), instructions: None };
        let line = serde_json::to_string(&Usage::from(used)).unwrap();
        assert_eq!(line, r#"{"cpu_seconds":1.25,"cycles":7,"instructions":null}"#);
        assert_eq!(Used::from(serde_json::from_str::<Usage>(&line).unwrap()), used);
    }
}
