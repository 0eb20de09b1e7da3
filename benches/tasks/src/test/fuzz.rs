//! Fuzz targets, as many at a time as there are processors.

use super::instrumented::{require_nightly, required};
use crate::cargo::{cargo, target};
use crate::error::Error;
use crate::machine::Machine;
use crate::output::note;
use crate::process::{self, Background, succeeds};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Crates with fuzz targets.
const CRATES: [&str; 2] = ["stack", "apps/kv"];

/// Fuzz target that runs.
struct Running {
    target: String,
    log: PathBuf,
    program: Background,
}

/// Runs each fuzz target for ten minutes, or `FUZZ_SECONDS`, beginning with the inputs in `fuzz/corpus`. Inputs that
/// fail are stored where cargo-fuzz stores them.
pub fn run(_: &Machine) -> Result<(), Error> {
    require_nightly()?;
    if !succeeds(cargo("fuzz --version")) {
        let install = process::run(cargo("install --locked cargo-fuzz"));
        required(install, "it needs cargo-fuzz, which cargo could not install")?;
    }
    fs::create_dir_all(target())?;
    let built = fs::canonicalize(target())?.join("fuzz");
    for directory in CRATES {
        let mut build = cargo("+nightly fuzz build --target-dir");
        build.arg(&built).current_dir(directory);
        process::run(build)?;
    }
    let scratch = tempfile::Builder::new().prefix("linerate-fuzz.").tempdir()?;
    let processors = thread::available_parallelism()?.get();
    let (mut running, mut failed) = (Vec::new(), Vec::new());
    for (directory, corpus) in corpora()? {
        if running.len() == processors {
            failed.extend(wait_for_one(&mut running)?);
        }
        running.push(start(directory, &corpus, &built, scratch.path())?);
    }
    while !running.is_empty() {
        failed.extend(wait_for_one(&mut running)?);
    }
    if failed.is_empty() { Ok(()) } else { Err(Error::failed(format!("fuzz targets: {}", failed.join(", ")))) }
}

/// Returns the corpora, one for each target, with their crates.
fn corpora() -> Result<Vec<(&'static str, PathBuf)>, Error> {
    let mut corpora = Vec::new();
    for directory in CRATES {
        for entry in fs::read_dir(format!("{directory}/fuzz/corpus"))? {
            corpora.push((directory, entry?.path()));
        }
    }
    corpora.sort();
    Ok(corpora)
}

fn start(directory: &str, corpus: &Path, built: &Path, scratch: &Path) -> Result<Running, Error> {
    let target = corpus.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let inputs = scratch.join(&target);
    fs::create_dir(&inputs)?;
    for (number, input) in parse_corpus(&fs::read_to_string(corpus)?)?.into_iter().enumerate() {
        fs::write(inputs.join(number.to_string()), input)?;
    }
    note(&target);
    let artifacts = format!("{directory}/fuzz/artifacts/{target}/");
    fs::create_dir_all(&artifacts)?;
    let log = inputs.with_extension("log");
    let seconds = std::env::var("FUZZ_SECONDS").unwrap_or_else(|_| "600".to_owned());
    let mut command = Command::new(program(built, &target)?);
    command.arg(inputs).arg(format!("-max_total_time={seconds}")).arg(format!("-artifact_prefix={artifacts}"));
    // An input must not cause a single allocation of more than 128 MB.
    command.arg("-malloc_limit_mb=128").stderr(File::create(&log)?);
    Ok(Running { target, log, program: Background::start(command)? })
}

/// Returns the program of a target, in the directory of the platform for which cargo-fuzz has built it.
fn program(built: &Path, target: &str) -> Result<PathBuf, Error> {
    let platforms = fs::read_dir(built)?.flatten().map(|entry| entry.path().join("release").join(target));
    platforms.into_iter().find(|path| path.is_file()).ok_or_else(|| Error::failed(format!("{target} was not built")))
}

/// Waits for the end of one target and prints its result. Returns its name if it failed.
fn wait_for_one(running: &mut Vec<Running>) -> Result<Option<String>, Error> {
    loop {
        for index in 0..running.len() {
            let Some(status) = running[index].program.poll()? else { continue };
            let Running { target, log, .. } = running.swap_remove(index);
            let log = String::from_utf8_lossy(&fs::read(log)?).into_owned();
            let lines: Vec<&str> = log.lines().collect();
            let shown = if status.success() { 1 } else { 40 };
            lines[lines.len().saturating_sub(shown)..].iter().for_each(|line| note(&format!("{target}: {line}")));
            return Ok(Some(target).filter(|_| !status.success()));
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Parses inputs in hexadecimal, one per line, with comments.
fn parse_corpus(text: &str) -> Result<Vec<Vec<u8>>, Error> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| parse_hex(line).ok_or_else(|| Error::failed(format!("not hexadecimal: {line}")))).collect()
}

fn parse_hex(line: &str) -> Option<Vec<u8>> {
    if !line.is_ascii() || !line.len().is_multiple_of(2) {
        return None;
    }
    (0..line.len()).step_by(2).map(|at| u8::from_str_radix(&line[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpus_has_one_input_per_line() {
        assert_eq!(parse_corpus("# comment\n\n00ff7A\n01\n").unwrap(), [vec![0, 255, 122], vec![1]]);
        assert!(parse_corpus("0\n").is_err());
        assert!(parse_corpus("zz\n").is_err());
    }
}
