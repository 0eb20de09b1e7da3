//! Before everything else that wants the same cores: a poller that shares its core with a compiler measures the compiler.

use rustix::process::setpriority_process;
use std::{fs, io};

/// Where Linux keeps the niceness of a whole session. With `CONFIG_SCHED_AUTOGROUP` sessions share the cores as one task
/// each, and a process' own niceness counts within its session only (sched(7)).
const SESSION: &str = "/proc/self/autogroup";
const FIRST: i32 = -20;

/// The session comes first as long as this is there.
#[derive(Debug)]
#[must_use = "the session loses its priority again when this is dropped"]
pub struct Priority {
    /// The niceness that the session had, if it is to have it again.
    before: Option<i32>,
}

/// Puts this process, and those it will start, before everything else, and says so when it may not.
pub fn come_first() -> Priority {
    if let Err(error) = setpriority_process(None, FIRST) {
        eprintln!("priority not raised ({error}): what else runs on these cores will show in the figures");
        return Priority { before: None };
    }
    match raise_session() {
        Ok(before) => Priority { before },
        Err(error) => {
            eprintln!("priority of the session not raised ({error}): what else runs will show in the figures");
            Priority { before: None }
        }
    }
}

/// Returns the niceness that the session is to have again, if sessions have any and this one does not come first already: then
/// another comparison has raised it, and lowers it, and to put back what was found here would leave it first for ever.
fn raise_session() -> io::Result<Option<i32>> {
    let Ok(said) = fs::read_to_string(SESSION) else { return Ok(None) };
    let before = parse(&said).filter(|niceness| *niceness != FIRST);
    fs::write(SESSION, FIRST.to_string())?;
    Ok(before)
}

/// The niceness in `/autogroup-11 nice 0`.
fn parse(said: &str) -> Option<i32> {
    said.trim().rsplit_once("nice ")?.1.parse().ok()
}

impl Drop for Priority {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // It could be raised, so it can be lowered.
            let _ = fs::write(SESSION, before.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_niceness_of_a_session_is_read() {
        assert_eq!(parse("/autogroup-11 nice 0\n"), Some(0));
        assert_eq!(parse("/autogroup-3 nice -5\n"), Some(-5));
        assert_eq!(parse("nothing"), None);
    }

    #[test]
    fn a_session_does_not_come_first_for_ever_because_of_two_at_once() {
        let niceness = || fs::read_to_string(SESSION).ok().and_then(|said| parse(&said));
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
