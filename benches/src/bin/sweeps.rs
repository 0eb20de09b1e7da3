//! Key-value service over the native engine and over kernel sockets by offered rate, connections and size of values:
//! sweeps of `linerate compare` as tables.
#![forbid(unsafe_code)]

use clap::Parser;
use linerate_benches::linerate;
use linerate_benches::report::{finish, table};
use linerate_compare::report::{ReportError, read};
use linerate_compare::results::{App, Design, Outcome, Results, Row, SweepPoint, Swept};
use linerate_harness::process::Process;
use linerate_harness::{Error, interrupt};
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Measure the key-value service by the sweeps of linerate compare, which must be in the directory of this program
///
/// The load changes its offered rate, its connections, or the size of the values, over virtio-user with the native
/// engine and over kernel sockets. Takes about five minutes.
#[derive(Parser)]
struct Args {}

/// Options of the comparison. The only fixed setting is the one that the offered rates depend on.
const OPTIONS: &str = "--apps kv --via virtio-user,kernel --engines native --threading inline --points 64x16 \
                       --rounds 1 --round-time 1s --keys 100000";
/// Time limit of the comparison.
const LIMIT: Duration = Duration::from_secs(900);
/// Swept variables with the heads of their columns.
const SWEPT: [(Swept, &str); 3] = [
    (Swept::OfferedRate, "offered requests/s"),
    (Swept::Connections, "connections"),
    (Swept::Size, "bytes of a value"),
];

/// Error that prevents the output of tables.
#[derive(Debug, thiserror::Error)]
enum SweepsError {
    /// The comparison failed.
    #[error(transparent)]
    Compare(#[from] Error),
    /// The directory of the comparison cannot be created.
    #[error("temporary directory: {0}")]
    Directory(std::io::Error),
    /// The results cannot be read.
    #[error(transparent)]
    Results(#[from] ReportError),
    /// A transport has no values of a sweep.
    #[error("{transport} has no values by {by}: linerate compare states the reason")]
    Missing { transport: &'static str, by: &'static str },
}

fn main() -> ExitCode {
    let Args {} = Args::parse();
    finish("sweeps", measure().and_then(|results| tables(&results)), |_| true)
}

fn measure() -> Result<Results, SweepsError> {
    interrupt::on_signals().map_err(SweepsError::Directory)?;
    let directory = tempfile::tempdir().map_err(SweepsError::Directory)?;
    let mut command = Command::new(linerate()?);
    command.arg("compare").args(OPTIONS.split_whitespace()).arg("--out").arg(directory.path());
    Process::start(command)?.succeed(LIMIT)?;
    Ok(read(&directory.path().join("results.json"))?)
}

/// Returns the name of a row in the tables; `None` for rows that they leave out.
fn transport(row: &Row) -> Option<&'static str> {
    match row.design {
        _ if row.app != App::Kv => None,
        Design::Native => Some("virtio-user to vhost"),
        Design::KernelSleeping => Some("kernel, sleeping"),
        Design::KernelSpinning => Some("kernel, spinning"),
        _ => None,
    }
}

/// Returns a table for each variable, with its settings.
fn tables(results: &Results) -> Result<String, SweepsError> {
    let mut parts = Vec::new();
    for (of, head) in SWEPT {
        let heads =
            ["key-value service over", &format!("#{head}"), "#requests/s", "#RTT p50 µs", "#p99 µs", "saturated"];
        let mut table = table(heads);
        let (mut setting, mut notes) = ("", String::new());
        for (row, transport) in results.rows.iter().filter_map(|row| Some((row, transport(row)?))) {
            let missing = SweepsError::Missing { transport, by: head };
            let Outcome::Ran(measured) = &row.outcome else { return Err(missing) };
            let Some(sweep) = measured.sweeps.iter().find(|sweep| sweep.of == of) else { return Err(missing) };
            setting = &sweep.setting;
            if let Some(reason) = &sweep.ended {
                notes += &format!("\n\n{transport}, ends early: {reason}");
            }
            for point in &sweep.points {
                table.add_row(cells(transport, point));
            }
        }
        parts.push(format!("By {head}: {setting}\n\n{table}{notes}"));
    }
    let settings = &results.settings;
    parts.push(format!(
        "{} keys by Zipf's law, {:.0} % GETs; each value measured once, for {:.1} s",
        settings.keys,
        settings.get_ratio * 100.0,
        settings.round_seconds / 2.0
    ));
    Ok(parts.join("\n\n"))
}

fn cells(transport: &str, point: &SweepPoint) -> Vec<String> {
    let time = |of: fn(&SweepPoint) -> Option<f64>| of(point).map_or_else(|| "–".to_owned(), |us| format!("{us:.1}"));
    vec![
        transport.to_owned(),
        format!("{:.0}", point.x),
        format!("{:.0}", point.rate),
        time(|point| point.rtt_us?.p50),
        time(|point| point.rtt_us?.p99),
        if point.saturated { "yes" } else { "" }.to_owned(),
    ]
}
