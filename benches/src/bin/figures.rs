//! Measures the figures of the documentation: runs the benches, and writes the output of each with its command and this
//! machine to docs/src/figures.
#![forbid(unsafe_code)]

use clap::Parser;
use linerate_benches::figures::{machine, redraw, root, write};
use std::process::{Command, ExitCode, Stdio};

/// Measure the figures of the documentation
#[derive(Parser)]
struct Args {
    /// Figures, named as in docs/src/figures [default: all]
    names: Vec<String>,

    /// Also measure with 8 GB of memory
    #[arg(long)]
    all: bool,

    /// Draw the plots of all figures again, instead of measuring
    #[arg(long, conflicts_with_all = ["names", "all"])]
    redraw: bool,
}

/// Packages that ports need.
const DPDK: &str = "libdpdk-dev libpcap-dev libclang-dev pkg-config";
/// Figures: name, command, and required packages, and `root` where network namespaces are needed. A program without a
/// directory is in the directory of this one.
const FIGURES: [(&str, &str, &str); 20] = [
    ("limits", "limits", "valgrind"),
    ("instructions", "baseline --all", "valgrind"),
    ("fast-paths", "benches/fast-paths.sh", "valgrind"),
    ("profile-echo", "PROFILE=1 benches/instructions.sh --engine native", "valgrind"),
    ("profile-connection", "PROFILE=1 benches/instructions.sh --engine native --mode connect", "valgrind"),
    ("curve", "engine --curve", ""),
    ("curve-smoltcp", "engine --engine smoltcp --curve", ""),
    ("scaling", "scaling", ""),
    ("loss", "loss", ""),
    ("kv-store", "kv store", ""),
    ("kv-workers", "kv workers", ""),
    ("side-by-side", "loads side-by-side", DPDK),
    ("links", "loads links", DPDK),
    ("kv-links", "loads kv-links", DPDK),
    ("http-rates", "loads http-rates", DPDK),
    ("programs", "loads programs", DPDK),
    ("idle", "loads idle", DPDK),
    ("tls", "loads tls", DPDK),
    ("sweeps", "sweeps", DPDK),
    ("goodput", "goodput --seconds 10 --rounds 5", "libdpdk-dev libpcap-dev libclang-dev pkg-config ethtool root"),
];

fn main() -> ExitCode {
    let args = Args::parse();
    let failed = if args.redraw {
        redraw(&root()).err().map(|error| error.to_string()).into_iter().collect()
    } else {
        measure(&args)
    };
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("\n== failed, or missed a requirement:");
    failed.iter().for_each(|reason| println!("   {reason}"));
    ExitCode::FAILURE
}

/// Measures the figures and returns those that failed or missed a requirement.
fn measure(args: &Args) -> Vec<String> {
    let missing = std::env::var("LINERATE_MISSING_PACKAGES").unwrap_or_default();
    let is_missing = |word: &&str| match *word {
        "root" => !rustix::process::geteuid().is_root(),
        package => missing.split_whitespace().any(|missing| missing == package),
    };
    let mut failed = Vec::new();
    for (name, by, needed) in FIGURES {
        if !args.names.is_empty() && !args.names.iter().any(|wanted| wanted == name) {
            continue;
        }
        if let Some(needed) = needed.split_whitespace().find(is_missing) {
            println!("   left out: {name}, which needs {needed}");
            continue;
        }
        let by = format!("{by}{}", if args.all && name == "kv-store" { " --all" } else { "" });
        println!("\n== {by}");
        match run(name, &by) {
            Ok(true) => {}
            Ok(false) => failed.push(by),
            Err(error) => failed.push(format!("{by}: {error}")),
        }
    }
    failed
}

/// Runs the command `by` and writes its output as the figure `name`. Returns whether it succeeded.
fn run(name: &str, by: &str) -> Result<bool, Box<dyn std::error::Error>> {
    let (environment, words): (Vec<&str>, Vec<&str>) = by.split_whitespace().partition(|word| word.contains('='));
    let program = match words[0].contains('/') {
        true => root().join(words[0]),
        false => std::env::current_exe()?.with_file_name(words[0]),
    };
    let mut command = Command::new(program);
    command.args(&words[1..]).envs(environment.iter().filter_map(|word| word.split_once('=')));
    let output = command.stderr(Stdio::inherit()).output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    print!("{printed}");
    if !printed.is_empty() {
        write(&root(), name, by, &printed, &machine(&printed))?;
    }
    Ok(output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn figures_are_those_of_the_documentation() {
        let files = std::fs::read_dir(root().join("docs/src/figures")).unwrap().map(|entry| entry.unwrap().path());
        let published: BTreeSet<String> =
            files.map(|path| path.file_stem().unwrap().to_string_lossy().into()).collect();
        assert_eq!(FIGURES.map(|(name, ..)| name.to_owned()).into_iter().collect::<BTreeSet<_>>(), published);
    }
}
