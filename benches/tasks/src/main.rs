//! Commands of the script `run`, which installs packages and builds this program first.
//!
//! Each command releases its processes, network namespaces, temporary directories and hugepages, however it ends. The
//! current directory is the root of the repository.
#![forbid(unsafe_code)]

mod demo;
mod machine;
mod process;
mod test;

use machine::{Machine, reserve_hugepages};
use process::{built, cargo, command, script};
use std::io;
use std::process::ExitCode;

/// Exit status of a command that cannot run on this machine.
const UNABLE: u8 = 77;

/// End of a step or of a command other than success.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("interrupted")]
    Interrupted,
    /// A requirement is missing on this machine.
    #[error("skipped: {0}")]
    Skipped(String),
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Failed(String),
}

impl From<linerate_harness::Error> for Error {
    fn from(error: linerate_harness::Error) -> Error {
        match error {
            linerate_harness::Error::Interrupted => Error::Interrupted,
            error => Error::Failed(error.to_string()),
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Failed(error.to_string())
    }
}

/// Prints the title of a section.
fn say(title: &str) {
    println!("\n== {title}");
}

fn note(text: &str) {
    text.lines().for_each(|line| println!("   {line}"));
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = process::supervise().and_then(|()| execute(&args.iter().map(String::as_str).collect::<Vec<_>>()));
    process::end_descendants();
    let code = match result {
        Ok(()) => 0,
        Err(Error::Interrupted) => 130,
        Err(Error::Skipped(_)) => UNABLE,
        Err(Error::Usage(_)) => 2,
        Err(Error::Failed(_)) => 1,
    };
    if let Err(error) = result {
        note(&error.to_string());
    }
    ExitCode::from(process::signal_status().unwrap_or(code))
}

/// Runs the command. The script `run` prints the usage.
fn execute(args: &[&str]) -> Result<(), Error> {
    match args {
        ["demo"] => demo::run(&Machine::detect()),
        ["test", "--all", steps @ ..] => test::run(&Machine::detect(), true, steps),
        ["test", steps @ ..] => test::run(&Machine::detect(), false, steps),
        ["bench", arguments @ ..] => bench(&Machine::detect(), arguments),
        ["book"] => {
            say("book");
            process::run(cargo("run --profile test -p linerate-book --features mdbook --example book"))
        }
        ["pictures"] => draw_pictures(&Machine::detect()),
        ["lab", suites @ ..] => lab(&Machine::detect(), suites),
        ["package"] => {
            let machine = Machine::detect();
            if !machine.dpdk() || !machine.rdma() {
                return Err(Error::Failed(
                    "a package has all features: it needs DPDK, cmake, make and libclang".into(),
                ));
            }
            say("package for x86-64-v3");
            process::run(script("package"))
        }
        _ => Err(Error::Usage(format!("unknown arguments '{}': ./run prints the commands", args.join(" ")))),
    }
}

/// Measures the published figures: `figures` has the parts.
fn bench(machine: &Machine, arguments: &[&str]) -> Result<(), Error> {
    say("building in release mode");
    process::run(machine.build(&format!("-p linerate-benches{}", machine.preload())))?;
    let _hugepages = reserve_hugepages(1200);
    process::run(command(&format!("{} {}", built("release", "figures"), arguments.join(" "))))
}

/// Draws the pictures of the book.
fn draw_pictures(machine: &Machine) -> Result<(), Error> {
    process::run(cargo("run --profile test -p linerate-book --example pictures"))?;
    if !machine.dpdk() {
        note("left out: the pictures of linerate top and of the dashboard need DPDK");
        return Ok(());
    }
    say("building in release mode");
    process::run(machine.build(""))?;
    let _hugepages = reserve_hugepages(512);
    for example in ["screens", "dashboard"] {
        let linerate = built("release", "linerate");
        process::run(cargo(&format!("run --profile test -p linerate-book --example {example} {linerate}")))?;
    }
    Ok(())
}

/// Runs suites of the lab, or all if `suites` is empty.
fn lab(machine: &Machine, suites: &[&str]) -> Result<(), Error> {
    let _hugepages = reserve_hugepages(512);
    say("lab");
    let selection = "-p linerate-rdma --features native";
    let result = match machine.lab_obstacle(false) {
        Some(reason) => Err(Error::Skipped(reason)),
        None => {
            say("building in release mode");
            process::run(machine.lab(selection, suites))
        }
    };
    if let Err(Error::Skipped(_)) = result {
        note("SKIPPED: THE LAB");
    }
    result
}
