//! Child processes of a bench.

pub use linerate_compare::process::*;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::{fs, io};

/// Returns a flag that SIGINT and SIGTERM set.
pub fn interruption() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, flag.clone())?;
    }
    Ok(flag)
}

/// Returns a command that runs `program` on one core.
pub fn pinned(core: usize, program: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string(), program]);
    command
}

/// Returns the path of the `linerate` beside this program.
pub fn linerate() -> Result<std::path::PathBuf, Error> {
    let missing = |error| Error::Start { program: "linerate".to_owned(), error };
    let path = std::env::current_exe().map_err(missing)?.with_file_name("linerate");
    match fs::metadata(&path) {
        Ok(_) => Ok(path),
        Err(_) => Err(missing(io::Error::other(format!(
            "{} is missing: cargo build --release -p linerate-apps",
            path.display()
        )))),
    }
}
