//! `linerate-pages DIRECTORY`: generates the manual page of each command (`man1/`) and the completions for bash, zsh
//! and fish (`bash/`, `zsh/`, `fish/`) from the command-line definition of `linerate`.
#![forbid(unsafe_code)]

use clap::Command;
use clap_complete::Shell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: linerate-pages DIRECTORY");
        return ExitCode::from(2);
    };
    match write(&linerate_apps::cli::definition(), &directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("linerate-pages: {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}

fn write(program: &Command, directory: &Path) -> io::Result<()> {
    let folder = |name: &str| {
        let folder = directory.join(name);
        fs::create_dir_all(&folder).map(|()| folder)
    };
    clap_mangen::generate_to(program.clone(), folder("man1")?)?;
    for (shell, name) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")] {
        clap_complete::generate_to(shell, &mut program.clone(), program.get_name(), folder(name)?)?;
    }
    Ok(())
}
