//! Output of all machines and programs of a case, kept for failures.

use linerate_harness::child::Event;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum lines kept; older ones are dropped.
const KEPT: usize = 2_000;

/// Log. Clones share the lines.
#[derive(Debug, Clone, Default)]
pub struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    is_shown: bool,
}

impl Log {
    /// Creates a log, which also prints its lines if `is_shown`.
    pub fn new(is_shown: bool) -> Log {
        Log { is_shown, ..Log::default() }
    }

    /// Adds a line of `machine`.
    pub fn line(&self, machine: &str, line: &str) {
        let line = format!("{machine}: {line}");
        if self.is_shown {
            eprintln!("    {line}");
        }
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= KEPT {
            lines.drain(..KEPT / 2);
        }
        lines.push(line);
    }

    /// Adds an event of `machine`.
    pub fn event(&self, machine: &str, event: &Event) {
        match event {
            Event::Out(line) => self.line(machine, line),
            Event::Err(line) => self.line(machine, &format!("! {line}")),
            Event::Ended(status) => self.line(machine, &format!("[{}]", ExitStatus::from_raw(*status))),
        }
    }

    /// Takes all lines.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
