//! Counts the instructions of the hot paths and compares them with the accepted counts.
#![forbid(unsafe_code)]

use clap::Parser;
use comfy_table::Table;
use linerate_benches::figures::root;
use linerate_benches::report;
use linerate_benches::requirements::baseline::{Baseline, Compiler, deviations};
use linerate_benches::requirements::instructions::{OPERATIONS, count};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{fs, io};

/// Fail if a hot path takes over 5 % more instructions than accepted in benches/baseline.json (needs valgrind; counts
/// of different compilers are not compared)
#[derive(Parser)]
struct Args {
    /// Count all paths instead of a few representative ones
    #[arg(long)]
    all: bool,

    /// Accept the current counts of all paths: write them to benches/baseline.json
    #[arg(long)]
    accept: bool,
}

/// Error that prevents a comparison.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("{}: {error}", path.display())]
    Content { path: PathBuf, error: serde_json::Error },
    #[error(transparent)]
    Count(#[from] linerate_benches::requirements::instructions::CommandError),
    #[error("rustc -V does not print a version: check that it works")]
    Compiler,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("baseline: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<ExitCode, Error> {
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("SKIPPED: counting instructions needs valgrind: apt-get install valgrind");
        return Ok(ExitCode::SUCCESS);
    }
    let path = root().join("benches/baseline.json");
    let compiler = Compiler::here().ok_or(Error::Compiler)?;
    if args.accept {
        let counts = counts(true)?;
        println!("{}", table(&BTreeMap::new(), &counts));
        return write(&path, &Baseline { compiler, counts }).map(|()| ExitCode::SUCCESS);
    }
    let text = fs::read_to_string(&path).map_err(|error| Error::File { path: path.clone(), error })?;
    let baseline: Baseline = serde_json::from_str(&text).map_err(|error| Error::Content { path, error })?;
    // The counts are printed even if they are not compared.
    if compiler != baseline.compiler {
        let text = |Compiler { rustc, target_cpu }: &Compiler| format!("{rustc} for {target_cpu}");
        let (here, there) = (text(&compiler), text(&baseline.compiler));
        eprintln!("SKIPPED: instructions by {here} are not compared with those by {there}");
        if args.all {
            println!("{}", table(&BTreeMap::new(), &counts(true)?));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let counts = counts(args.all)?;
    println!("{}", table(&baseline.counts, &counts));
    let deviations = deviations(&baseline.counts, &counts);
    deviations.iter().for_each(|deviation| eprintln!("baseline: {deviation}"));
    Ok(if deviations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn counts(all: bool) -> Result<BTreeMap<String, u64>, Error> {
    let operations = OPERATIONS.iter().filter(|operation| all || operation.quick);
    operations.map(|operation| Ok((operation.name.to_owned(), count(operation.args)?[0] as u64))).collect()
}

fn write(path: &Path, baseline: &Baseline) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(baseline).expect("a baseline is made of plain values");
    fs::write(path, text + "\n").map_err(|error| Error::File { path: path.to_owned(), error })
}

/// Formats the counts in the order of counting.
fn table(accepted: &BTreeMap<String, u64>, counts: &BTreeMap<String, u64>) -> Table {
    let mut table = report::table(["operation", "#instructions", "#accepted"]);
    for (name, count) in OPERATIONS.iter().filter_map(|operation| counts.get_key_value(operation.name)) {
        table.add_row([name.clone(), count.to_string(), accepted.get(name).map(u64::to_string).unwrap_or_default()]);
    }
    table
}
