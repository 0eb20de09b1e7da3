//! What passed and what failed, told as a test runner does.

use crate::error::{Error, Result};
use crate::log::Log;
use crate::program::is_interrupted;
use std::io::Write;
use std::time::{Duration, Instant};

/// The cases of a run.
pub struct Report {
    log: Log,
    suite: &'static str,
    passed: u32,
    failed: Vec<String>,
    began: Instant,
}

impl Report {
    /// One without cases, of which `log` tells more.
    pub fn new(log: Log) -> Report {
        Report { log, suite: "", passed: 0, failed: Vec::new(), began: Instant::now() }
    }

    /// Begins with the cases of a suite.
    pub fn suite(&mut self, name: &'static str) {
        self.suite = name;
    }

    /// Runs a case, and says in one line what came of it; if it failed, also what was said meanwhile. `None` if it
    /// failed, or did not begin because the lab is to end.
    pub fn case<T>(&mut self, name: &str, body: impl FnOnce() -> Result<T>) -> Option<T> {
        if is_interrupted() {
            return None;
        }
        let name = format!("{} {name}", self.suite);
        print!("{name} ... ");
        // Whoever reads along has seen what is running.
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

    /// The last line, and whether all is well.
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
