//! Rates of `linerate http serve`, and of the same server on tokio, with the load generator `linerate http load`.

use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use linerate_benches::distance::{Cores, median};
use linerate_benches::external::linerate;
use linerate_benches::priority::raise_priority;
use linerate_harness::process::{PATIENCE, Process, pinned};
use linerate_harness::{Error, address, interrupt};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Required rate over virtio-user, relative to that of tokio.
const REQUIRED: f64 = 4.0;

#[derive(Debug, Parser)]
pub struct Args {
    /// Number of rounds; the medians are printed
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Duration of each measurement in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,

    /// Number of connections, with one request in flight each
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,

    #[command(flatten)]
    cores: Cores,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Server, and the network of its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum Row {
    /// `linerate http serve` over vhost, its load over virtio-user.
    Virtio,
    /// `linerate http serve` over kernel sockets.
    Kernel,
    /// The same server on tokio, over kernel sockets.
    Tokio,
}

impl Row {
    const ALL: [Row; 3] = [Row::Virtio, Row::Kernel, Row::Tokio];

    fn name(self) -> &'static str {
        match self {
            Row::Virtio => "`http serve` over virtio-user",
            Row::Kernel => "`http serve` over loopback",
            Row::Tokio => "hyper on tokio over loopback",
        }
    }
}

/// Fields used from the output of `linerate http load --json`.
#[derive(Debug, Clone, Copy, Deserialize, Serialize)]
struct Measured {
    rate: f64,
    errors: u64,
    rtt_us: Rtt,
}

#[derive(Debug, Clone, Copy, Deserialize, Serialize)]
struct Rtt {
    p50: f64,
    p99: f64,
}

/// Medians of all rounds.
#[derive(Debug, Serialize)]
pub struct Report {
    rounds: u32,
    seconds: u32,
    connections: u32,
    rows: Vec<(Row, Measured)>,
    /// Rate over virtio-user, relative to that of tokio.
    ratio: f64,
    required: f64,
}

impl Report {
    /// Returns whether the rate is as required.
    pub fn is_met(&self) -> bool {
        self.ratio >= self.required
    }
}

/// Measures all rows, interleaved by round.
pub fn run(args: &Args) -> Result<Report, Error> {
    let failed = |error| Error::Start { program: "http".to_owned(), error };
    interrupt::on_signals().map_err(failed)?;
    let scratch = tempfile::tempdir().map_err(failed)?;
    let bench = Bench { args, linerate: linerate()?, own: std::env::current_exe().map_err(failed)? };
    let _first = raise_priority();
    let mut measured = Row::ALL.map(|row| (row, Vec::new()));
    for round in 1..=args.rounds {
        for (row, all) in &mut measured {
            eprintln!("round {round} of {}: {}", args.rounds, row.name());
            all.push(bench.measure(*row, &scratch.path().join("http.sock"))?);
        }
    }
    let figure = |all: &[Measured], of: fn(&Measured) -> f64| median(all.iter().map(of)).unwrap_or(f64::NAN);
    let rows: Vec<(Row, Measured)> = measured
        .iter()
        .map(|(row, all)| {
            let rtt_us = Rtt { p50: figure(all, |one| one.rtt_us.p50), p99: figure(all, |one| one.rtt_us.p99) };
            (*row, Measured { rate: figure(all, |one| one.rate), errors: 0, rtt_us })
        })
        .collect();
    let ratio = rows[0].1.rate / rows[2].1.rate;
    let Args { rounds, seconds, connections, .. } = *args;
    Ok(Report { rounds, seconds, connections, rows, ratio, required: REQUIRED })
}

struct Bench<'a> {
    args: &'a Args,
    linerate: PathBuf,
    own: PathBuf,
}

impl Bench<'_> {
    fn command(&self, core: usize, program: &Path, words: &str) -> Command {
        let mut command = pinned(core, &program.to_string_lossy());
        command.args(words.split(' '));
        command
    }

    /// Starts a server, measures it with a load, which must have no errors, and stops it.
    fn measure(&self, row: Row, socket: &Path) -> Result<Measured, Error> {
        let Args { cores, connections, seconds, .. } = *self.args;
        let local = address::unused_address();
        let (program, server, load) = match row {
            Row::Virtio => {
                let (server, load) = ("--ip 10.77.1.2/24 --listen 10.77.1.2:80", "--ip 10.77.1.1/24");
                let socket = socket.display();
                (
                    &self.linerate,
                    format!("http serve --via vhost:{socket} {server}"),
                    format!("--via virtio-user:{socket} {load} --connect 10.77.1.2:80"),
                )
            }
            Row::Kernel => (&self.linerate, format!("http serve --listen {local}"), format!("--connect {local}")),
            Row::Tokio => (&self.own, format!("tokio --listen {local}"), format!("--connect {local}")),
        };
        let mut server = Process::start(self.command(cores.server, program, &server))?;
        server.wait_for_line("ready")?;
        let load = format!("http load {load} --connections {connections} --duration {seconds}s --json");
        let load = Process::start(self.command(cores.load, &self.linerate, &load))?;
        let command = load.command().to_owned();
        let printed = load.output(Duration::from_secs(seconds.into()) + PATIENCE)?;
        // A server of tokio has no orderly end.
        drop(server);
        let unexpected = || Error::Unexpected { command: command.clone(), printed: printed.clone() };
        let measured: Measured = serde_json::from_str(&printed).map_err(|_| unexpected())?;
        if measured.errors > 0 { Err(unexpected()) } else { Ok(measured) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["server", "requests/s", "round trip p50 µs", "p99 µs"]);
        for (row, Measured { rate, rtt_us, .. }) in &self.rows {
            let figures = [format!("{rate:.0}"), format!("{:.1}", rtt_us.p50), format!("{:.1}", rtt_us.p99)];
            table.add_row([vec![row.name().to_owned()], figures.to_vec()].concat());
        }
        table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        let Report { rounds, seconds, connections, ratio, required, .. } = self;
        writeln!(
            f,
            "{connections} connections, one request in flight each; medians of {rounds} rounds of {seconds} s\n"
        )?;
        writeln!(f, "{table}\n")?;
        let verdict = if self.is_met() { "met" } else { "not met" };
        write!(f, "Over virtio-user, relative to tokio: {ratio:.2} (required: {required}; {verdict})")
    }
}
