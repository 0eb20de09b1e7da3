//! Shared parts of the benches. Each published figure comes from one of the programs in `src/bin`.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "not published")]

pub mod certificate;
pub mod client;
pub mod distance;
pub mod engine;
pub mod figures;
pub mod impair;
pub mod kv;
pub mod loss;
pub mod report;
pub mod requirements;
pub mod rounds;
pub mod tls;

pub use linerate_compare::{priority, transfer};

/// Returns the path of the `linerate` in the directory of this program.
///
/// # Errors
/// It does not exist.
pub fn linerate() -> Result<std::path::PathBuf, linerate_harness::Error> {
    linerate_harness::process::sibling("linerate", "cargo build --release -p linerate-apps")
}
