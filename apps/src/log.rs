//! Logs on standard error.

use linerate_process::output::is_coloured;
use std::io;
use tracing_subscriber::EnvFilter;

/// Sends logs to standard error. `RUST_LOG`, if set, takes precedence over `verbose`, the number of `-v` options.
pub fn to_stderr(verbose: u8) {
    let level = ["warn", "info", "debug", "trace"][usize::from(verbose.min(3))];
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .log_internal_errors(false)
        .with_ansi(is_coloured(&io::stderr()))
        .with_target(false)
        .with_env_filter(filter)
        .init();
}
