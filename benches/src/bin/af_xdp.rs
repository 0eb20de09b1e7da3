//! AF_XDP on an interface of its own and on one that is shared with the kernel, and the kernel beside it.
#![forbid(unsafe_code)]

use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use linerate_benches::af_xdp::{CONNECTIONS, Comparison, KEYS, Setting, free_hugepages};
use linerate_benches::distance::{Cores, median};
use linerate_benches::external::{linerate, testpmd};
use linerate_benches::priority::raise_priority;
use linerate_benches::report::finish;
use linerate_harness::{Error, interrupt};
use serde::Serialize;
use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

/// Compare a shared interface with one that a program has to itself, over a pair of virtual interfaces
///
/// Each measurement has two new hosts, which are network namespaces. The two rates of a comparison are measured after
/// each other in every round. Needs root, ethtool, ip and hugepages; linerate must be beside this program.
#[derive(Parser)]
struct Args {
    /// Number of rounds; the medians are printed
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Duration of each load in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,

    /// Comparisons
    #[arg(long, value_name = "COMPARISON,…", value_delimiter = ',', value_enum, default_values_t = Comparison::ALL)]
    comparisons: Vec<Comparison>,

    /// Leave out the frames that dpdk-testpmd bounces
    #[arg(long)]
    no_testpmd: bool,

    #[command(flatten)]
    cores: Cores,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    rounds: u32,
    seconds: u32,
    rows: Vec<Row>,
}

/// Rates of a comparison.
#[derive(Serialize)]
struct Row {
    comparison: Comparison,
    /// Median transfer time of a cache line between the cores in nanoseconds.
    transfer_ns: f64,
    /// Median rates.
    rates: [f64; 2],
    /// Median, lowest and highest ratio of the second rate of a round to the first.
    ratio: [f64; 3],
    is_met: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    finish("af_xdp", measure(&args), args.json, |report| report.rows.iter().all(|row| row.is_met))
}

fn measure(args: &Args) -> Result<Report, Error> {
    let failed = |error| Error::Start { program: "af_xdp".to_owned(), error };
    interrupt::on_signals().map_err(failed)?;
    let scratch = tempfile::tempdir().map_err(failed)?;
    let cores = args.cores;
    let setting = Setting {
        linerate: linerate()?,
        scratch: scratch.path().to_owned(),
        cores,
        duration: Duration::from_secs(args.seconds.into()),
        hugepages: free_hugepages(),
    };
    let _first = raise_priority();
    let can_bounce = !args.no_testpmd && testpmd::is_installed();
    let comparisons: Vec<_> =
        args.comparisons.iter().copied().filter(|one| *one != Comparison::Bounces || can_bounce).collect();
    let mut rounds: Vec<Vec<Measured>> = vec![Vec::new(); comparisons.len()];
    for round in 0..args.rounds {
        for (comparison, measured) in comparisons.iter().zip(&mut rounds) {
            eprintln!("round {}: {}, and {}", round + 1, comparison.names()[0], comparison.names()[1]);
            measured.extend(cores.measure_stable(|| comparison.measure(&setting, round % 2 == 1))?);
        }
    }
    let rows = comparisons.iter().zip(&rounds).filter_map(|(comparison, measured)| row(*comparison, measured));
    Ok(Report { rounds: args.rounds, seconds: args.seconds, rows: rows.collect() })
}

/// Distance of the cores, and both rates of a round.
type Measured = (f64, [f64; 2]);

/// Returns the row of `comparison`, unless the cores moved in every round.
fn row(comparison: Comparison, measured: &[Measured]) -> Option<Row> {
    let of = |figure: fn(&Measured) -> f64| median(measured.iter().map(figure));
    let ratios = || measured.iter().map(|(_, [first, second])| second / first);
    let ratio = median(ratios())?;
    Some(Row {
        comparison,
        transfer_ns: of(|(transfer, _)| *transfer)?,
        rates: [of(|(_, rates)| rates[0])?, of(|(_, rates)| rates[1])?],
        ratio: [ratio, ratios().fold(f64::MAX, f64::min), ratios().fold(0.0, f64::max)],
        is_met: ratio >= comparison.required(),
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { rounds, seconds, rows } = self;
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN).set_header([
            "first",
            "second",
            "unit",
            "line ns",
            "first",
            "second",
            "ratio",
            "its range",
            "required",
            "",
        ]);
        for Row { comparison, transfer_ns, rates, ratio: [ratio, low, high], is_met } in rows {
            let [first, second] = comparison.names();
            table.add_row([
                first.to_owned(),
                second.to_owned(),
                comparison.unit().to_owned(),
                format!("{transfer_ns:.0}"),
                format!("{:.0}", rates[0]),
                format!("{:.0}", rates[1]),
                format!("{ratio:.2}"),
                format!("{low:.2} to {high:.2}"),
                format!("{:.2}", comparison.required()),
                if *is_met { "met" } else { "not met" }.to_owned(),
            ]);
        }
        table.column_iter_mut().skip(3).take(4).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        writeln!(f, "{CONNECTIONS} connections, one request of 64 bytes in flight on each; {KEYS} keys, 90 % GETs\n")?;
        writeln!(f, "{table}\n")?;
        write!(
            f,
            "medians of {rounds} rounds of {seconds} s; line: what a cache line took from one core to the other; the \
             kernel's server and the one beside it share a core"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_the_median_of_the_rounds() {
        let measured = [(30.0, [100.0, 97.0]), (31.0, [50.0, 40.0]), (32.0, [10.0, 10.0])];
        let found = row(Comparison::Echo, &measured).unwrap();
        assert_eq!((found.rates, found.ratio, found.is_met), ([50.0, 40.0], [0.97, 0.8, 1.0], true));
        assert!(row(Comparison::Echo, &[]).is_none());
        let report = Report { rounds: 3, seconds: 1, rows: vec![found] };
        assert!(report.to_string().contains("|  0.97 | 0.80 to 1.00 | 0.95     | met |"), "{report}");
    }
}
