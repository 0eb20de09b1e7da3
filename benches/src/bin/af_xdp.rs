//! AF_XDP on an interface of its own and on one that is shared with the kernel, and the kernel beside it.
#![forbid(unsafe_code)]

use clap::Parser;
use linerate_benches::af_xdp::{CONNECTIONS, Comparison, KEYS, Setting, free_hugepages};
use linerate_benches::external::linerate;
use linerate_benches::paired::{self, PairedArgs};
use linerate_benches::priority::raise_priority;
use linerate_benches::report::finish;
use linerate_harness::{Error, interrupt};
use serde::Serialize;
use std::fmt;
use std::process::ExitCode;

/// Compare a shared interface with one that a program has to itself, over a pair of virtual interfaces
///
/// Each measurement has two new hosts, which are network namespaces. The two rates of a comparison are measured after
/// each other in every round. Needs root, ethtool, ip and hugepages; linerate must be beside this program.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    paired: PairedArgs,

    /// Comparisons
    #[arg(long, value_name = "COMPARISON,…", value_delimiter = ',', value_enum, default_values_t = Comparison::ALL)]
    comparisons: Vec<Comparison>,
}

/// Results of all rounds.
#[derive(Serialize)]
struct Report(paired::Report);

fn main() -> ExitCode {
    let args = Args::parse();
    finish("af_xdp", measure(&args), args.paired.json, |Report(report)| report.is_met())
}

fn measure(args: &Args) -> Result<Report, Error> {
    let failed = |error| Error::Start { program: "af_xdp".to_owned(), error };
    interrupt::on_signals().map_err(failed)?;
    let scratch = tempfile::tempdir().map_err(failed)?;
    let setting = Setting {
        linerate: linerate()?,
        scratch: scratch.path().to_owned(),
        cores: args.paired.cores,
        duration: args.paired.duration(),
        hugepages: free_hugepages(),
    };
    let _first = raise_priority();
    let can_bounce = args.paired.bounces();
    let comparisons: Vec<_> =
        args.comparisons.iter().copied().filter(|one| *one != Comparison::Bounces || can_bounce).collect();
    let paired: Vec<_> = comparisons.iter().map(|one| one.paired(&setting)).collect();
    Ok(Report(paired::measure(&paired, &args.paired)?))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report(paired::Report { rounds, seconds, rows }) = self;
        writeln!(f, "{CONNECTIONS} connections, one request of 64 bytes in flight on each; {KEYS} keys, 90 % GETs\n")?;
        writeln!(f, "{}\n", paired::table(rows))?;
        write!(
            f,
            "{rounds} rounds, and loads of {seconds} s; {}; the kernel's server and the one beside it share a core",
            paired::LEGEND
        )
    }
}
