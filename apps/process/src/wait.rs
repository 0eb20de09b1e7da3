//! Waiting for a condition.

use crate::error::Error;
use crate::interrupt::is_interrupted;
use std::thread;
use std::time::{Duration, Instant};

/// Interval between two checks of a condition.
const TICK: Duration = Duration::from_millis(5);

/// Calls `done` until it returns `true`.
pub fn until<E: From<Error>>(
    condition: &str,
    limit: Duration,
    mut done: impl FnMut() -> Result<bool, E>,
) -> Result<(), E> {
    let end = Instant::now() + limit;
    while !done()? {
        if is_interrupted() {
            return Err(Error::Interrupted.into());
        }
        if Instant::now() > end {
            return Err(Error::Timeout { condition: condition.to_owned(), limit }.into());
        }
        thread::sleep(TICK);
    }
    Ok(())
}
