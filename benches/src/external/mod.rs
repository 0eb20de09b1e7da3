//! Programs that a bench starts: servers, load generators, and DPDK tools.

pub mod sockperf;
pub mod testpmd;

use linerate_harness::Error;
use linerate_harness::process::beside;
use std::path::PathBuf;

/// Returns the path of the `linerate` beside this program.
///
/// # Errors
/// It does not exist.
pub fn linerate() -> Result<PathBuf, Error> {
    beside("linerate", "cargo build --release -p linerate-apps")
}
