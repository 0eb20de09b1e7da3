//! What every machine and program of a case says, kept in case that it fails.

use crate::process::Event;
use std::sync::{Arc, Mutex, PoisonError};

/// Lines that are kept. The first ones go when there are more.
const KEPT: usize = 2_000;

/// What was said so far; clones are the same log.
#[derive(Debug, Clone, Default)]
pub struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    is_shown: bool,
}

impl Log {
    /// One whose lines are also shown at once, if that is asked for.
    pub fn new(is_shown: bool) -> Log {
        Log { is_shown, ..Log::default() }
    }

    /// Adds a line that `who` says.
    pub fn line(&self, who: &str, line: &str) {
        let line = format!("{who}: {line}");
        if self.is_shown {
            eprintln!("    {line}");
        }
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= KEPT {
            lines.drain(..KEPT / 2);
        }
        lines.push(line);
    }

    /// Adds what became of `who`.
    pub fn event(&self, who: &str, event: &Event) {
        match event {
            Event::Out(line) => self.line(who, line),
            Event::Err(line) => self.line(who, &format!("! {line}")),
            Event::Ended(status) => self.line(who, &format!("[ended with {status}]")),
        }
    }

    /// Takes all lines out.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
