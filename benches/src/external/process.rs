//! Programs that a bench starts.

pub use linerate_compare::process::*;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::{fs, io};

/// A flag that SIGINT and SIGTERM set.
pub fn interruption() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, flag.clone())?;
    }
    Ok(flag)
}

/// A command that runs `program` on one core.
pub fn pinned(core: usize, program: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string(), program]);
    command
}

/// The `linerate` that was built beside this program.
pub fn linerate() -> Result<std::path::PathBuf, Error> {
    let missing = |error| Error::Start { program: "linerate".to_owned(), error };
    let path = std::env::current_exe().map_err(missing)?.with_file_name("linerate");
    match fs::metadata(&path) {
        Ok(_) => Ok(path),
        Err(_) => Err(missing(io::Error::other(format!(
            "{} is not there: cargo build --release -p linerate-apps",
            path.display()
        )))),
    }
}
