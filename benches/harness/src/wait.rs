//! Waiting for a condition in a test.

use linerate_process::{Error, until};
use std::time::Duration;

/// Time limit of every wait in a test.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Calls `done` until it returns `true`.
///
/// # Panics
/// After [`TIMEOUT`].
#[track_caller]
pub fn wait_for(condition: &str, mut done: impl FnMut() -> bool) {
    if let Err(error) = until::<Error>(condition, TIMEOUT, || Ok(done())) {
        panic!("{error}");
    }
}
