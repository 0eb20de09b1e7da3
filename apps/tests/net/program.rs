//! Runs `linerate`.

use std::process::Command;

/// Returns the command of `linerate` with the words of `args`.
pub fn linerate(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linerate"));
    command.args(args.split_whitespace()).env_remove("RUST_LOG");
    command
}
