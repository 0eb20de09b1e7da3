//! Report of passed and failed cases.

use crate::error::{Error, Result};
use crate::log::Log;
use linerate_harness::interrupt::is_interrupted;
use std::io::Write;
use std::time::{Duration, Instant};

/// Cases of a run.
pub struct Report {
    log: Log,
    suite: &'static str,
    passed: u32,
    failed: Vec<String>,
    began: Instant,
}

impl Report {
    /// Creates an empty report. `log` has the output of failed cases.
    pub fn new(log: Log) -> Report {
        Report { log, suite: "", passed: 0, failed: Vec::new(), began: Instant::now() }
    }

    /// Starts a suite.
    pub fn suite(&mut self, name: &'static str) {
        self.suite = name;
    }

    /// Runs a case and prints one line, and the log if it failed. Returns `None` if it failed, or was skipped because
    /// the lab was interrupted.
    pub fn case<T>(&mut self, name: &str, body: impl FnOnce() -> Result<T>) -> Option<T> {
        if is_interrupted() {
            return None;
        }
        let name = format!("{} {name}", self.suite);
        print!("{name} ... ");
        // Shows the running case at once.
        let _ = std::io::stdout().flush();
        drop(self.log.take());
        let began = Instant::now();
        let result = body();
        let seconds = seconds(began.elapsed());
        match result {
            Ok(value) => {
                println!("ok ({seconds})");
                self.passed += 1;
                Some(value)
            }
            Err(Error::Interrupted) => {
                println!("interrupted");
                None
            }
            Err(error) => {
                println!("FAILED ({seconds})");
                for line in self.log.take() {
                    println!("    {line}");
                }
                println!("    {name}: {error}");
                self.failed.push(name);
                None
            }
        }
    }

    /// Prints the summary and returns true if all passed.
    pub fn end(self) -> bool {
        println!();
        for name in &self.failed {
            println!("FAILED: {name}");
        }
        let (passed, failed) = (self.passed, self.failed.len());
        println!("lab: {passed} passed, {failed} failed in {}", seconds(self.began.elapsed()));
        failed == 0 && passed > 0
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
