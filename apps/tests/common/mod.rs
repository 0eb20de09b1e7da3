//! Runs the program.

use linerate_harness::process::Ended;
use linerate_harness::program::{self, Program};
use std::process::Command;

/// Returns the command of the program with the words of `args`.
pub fn linerate(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linerate"));
    command.args(args.split_whitespace()).env_remove("RUST_LOG");
    // Directory of the introspection socket.
    command.env("RUNTIME_DIRECTORY", env!("CARGO_TARGET_TMPDIR"));
    command
}

#[track_caller]
pub fn start(args: &str) -> Program {
    Program::start(linerate(args))
}

/// Starts `linerate SERVICE serve ARGS` and waits until it is ready.
#[track_caller]
pub fn serve(service: &str, args: &str) -> Program {
    Program::serve(linerate(&format!("{service} serve {args}")))
}

/// Runs the program to its end.
#[track_caller]
pub fn run(args: &str) -> Ended {
    program::run(linerate(args))
}
