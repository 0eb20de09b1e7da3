//! `linerate run`: an unmodified program whose sockets are carried by the stack.

mod filter;
mod program;

use crate::error::Error;
use linerate::{Listen, NetConfig, Via};
use linerate_sockets::SocketOptions;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Variable with the options of the network, as a JSON array of strings, which the library reads.
const VARIABLE: &str = "LINERATE_RUN";
/// Name of the library.
const LIBRARY: &str = "liblinerate_preload.so";

/// Arguments of `linerate run`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("eal", |arg| {
    arg.value_name("PROGRAM").required(true).help("Program and its arguments, after a lone --")
}))]
pub struct RunArgs {
    #[command(flatten)]
    network: NetConfig,
    #[command(flatten)]
    sockets: SocketOptions,
}

/// Error of `linerate run`.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The program is not found or cannot work with the library.
    #[error(transparent)]
    Program(#[from] program::ProgramError),
    /// The library is missing.
    #[error("{LIBRARY}: not found in {}: install it there", places(.0))]
    NoLibrary(Vec<PathBuf>),
    /// The cores cannot be used.
    #[error("--cores: {0}")]
    Cores(rustix::io::Errno),
    /// The program could not be executed.
    #[error("{}: {source}", program.display())]
    Exec { program: PathBuf, source: std::io::Error },
}

fn places(directories: &[PathBuf]) -> String {
    directories.iter().map(|directory| directory.display().to_string()).collect::<Vec<_>>().join(" and ")
}

/// Replaces this process by the program. `options` are the arguments of the command up to the lone `--`.
pub fn run(args: RunArgs, options: &[OsString], verbose: u8) -> Result<(), Error> {
    // The library in the program reads the options of sockets.
    let RunArgs { mut network, sockets: _ } = args;
    let command = std::mem::take(&mut network.eal);
    check(&network)?;
    let (name, arguments) = command.split_first().expect("clap requires the program");
    let program = program::find(name).map_err(RunError::from)?;
    program::check(&program).map_err(RunError::from)?;
    let library = library()?;
    if let Some(cores) = &network.cores {
        let mut set = CpuSet::new();
        cores.cores().iter().for_each(|core| set.set(*core));
        sched_setaffinity(None, &set).map_err(RunError::Cores)?;
    }
    let options: Vec<_> = options.iter().map(|option| option.to_string_lossy()).collect();
    let options = serde_json::to_string(&options).expect("strings");
    let mut started = Command::new(&program);
    started.arg0(name).args(arguments).env(VARIABLE, options).env("LD_PRELOAD", preloaded(&library));
    if verbose > 0 && std::env::var_os("RUST_LOG").is_none() {
        started.env("RUST_LOG", ["info", "debug", "trace"][usize::from(verbose - 1).min(2)]);
    }
    if let Err(error) = filter::deny_io_uring() {
        tracing::warn!("the kernel carries sockets that the program uses by io_uring: {error}");
    }
    Err(RunError::Exec { program, source: started.exec() }.into())
}

/// Checks the options of the network, whose errors would otherwise appear when the program binds its first address.
fn check(network: &NetConfig) -> Result<(), Error> {
    if let Via::Kernel | Via::Rdma { .. } | Via::Roce { .. } = network.via {
        return Err(linerate::Error::NoStack(network.via.clone()).into());
    }
    if network.workers.is_some_and(|workers| workers > 1) && !network.uses_kernel_addresses() {
        return Err(linerate::Error::OneProcess(network.via.clone()).into());
    }
    Ok(network.check(&Listen::default())?)
}

/// Returns the library, which is next to the program `linerate`, or in `../lib/linerate` as packages install it.
fn library() -> Result<PathBuf, RunError> {
    let own = std::env::current_exe().unwrap_or_default();
    let directory = own.parent().unwrap_or(Path::new("."));
    let places = vec![directory.to_owned(), directory.join("../lib/linerate")];
    let found = places.iter().map(|place| place.join(LIBRARY)).find(|library| library.exists());
    found.ok_or(RunError::NoLibrary(places))
}

/// Returns `LD_PRELOAD` with the library in front of those that are given.
fn preloaded(library: &Path) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        all.push(OsStr::new(":"));
        all.push(others);
    }
    all
}
