//! Scheduling priority: a poller that shares its core with a compiler measures the compiler.

use rustix::process::setpriority_process;
use std::{fs, io};

/// File of the session's niceness. With `CONFIG_SCHED_AUTOGROUP` the scheduler shares cores between sessions, and a
/// process's own niceness applies only within its session (sched(7)).
const SESSION: &str = "/proc/self/autogroup";
const FIRST: i32 = -20;

/// Raised priority of the session, lowered again on drop.
#[derive(Debug)]
#[must_use = "the session loses its priority again when this is dropped"]
pub struct Priority {
    /// Niceness to restore, if any.
    before: Option<i32>,
}

/// Raises the priority of this process and its children, and prints a warning if that is not permitted.
pub fn raise_priority() -> Priority {
    if let Err(error) = setpriority_process(None, FIRST) {
        eprintln!("priority not raised ({error}): other processes on these cores affect the figures");
        return Priority { before: None };
    }
    match raise_session() {
        Ok(before) => Priority { before },
        Err(error) => {
            eprintln!("priority of the session not raised ({error}): other processes affect the figures");
            Priority { before: None }
        }
    }
}

/// Raises the session's priority and returns the niceness to restore: `None` without autogroups, or if another
/// comparison has already raised the priority. The other comparison restores the niceness: restoring the raised value
/// would keep the priority raised forever.
fn raise_session() -> io::Result<Option<i32>> {
    let Ok(session) = fs::read_to_string(SESSION) else { return Ok(None) };
    let before = parse(&session).filter(|niceness| *niceness != FIRST);
    fs::write(SESSION, FIRST.to_string())?;
    Ok(before)
}

/// Parses the niceness of a line such as `/autogroup-11 nice 0`.
fn parse(session: &str) -> Option<i32> {
    session.trim().rsplit_once("nice ")?.1.parse().ok()
}

impl Drop for Priority {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // Lowering the priority needs no more privileges than raising it.
            let _ = fs::write(SESSION, before.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_niceness_is_parsed() {
        assert_eq!(parse("/autogroup-11 nice 0\n"), Some(0));
        assert_eq!(parse("/autogroup-3 nice -5\n"), Some(-5));
        assert_eq!(parse("nothing"), None);
    }

    #[test]
    fn two_concurrent_comparisons_restore_the_priority() {
        let niceness = || fs::read_to_string(SESSION).ok().and_then(|session| parse(&session));
        let before = niceness().filter(|niceness| *niceness != FIRST);
        let Ok(one) = raise_session().map(|before| Priority { before }) else {
            return println!("skipped: it takes root to raise the priority of a session");
        };
        let other = Priority { before: raise_session().unwrap() };
        drop(one);
        drop(other);
        if before.is_some() {
            assert_eq!(niceness(), before);
        }
    }
}
