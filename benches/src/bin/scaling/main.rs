//! Independence of workers: cost of an echo during work on another core, and distribution of connections.
#![forbid(unsafe_code)]

mod distribution;
mod neighbor;

use clap::Parser;
use linerate_benches::distance::median;
use linerate_benches::priority::raise_priority;
use linerate_benches::report::{finish, table};
use linerate_benches::transfer;
use linerate_harness::{Error, interrupt};
use neighbor::{FLOWS, Neighbor, SIZE, ScalingError, Setting, failed, run_as_neighbor, time_next_to};
use std::fmt;
use std::process::ExitCode;

/// Maximum ratio of the cost next to a worker of the same process to the cost next to one of another process.
const LIMIT: f64 = 1.1;

/// Measure the cost of an echo next to a worker on another core, and the distribution of connections over workers
///
/// Workers of different processes share no memory. If a worker of the same process is no worse a neighbor, an echo
/// writes to no cache line that another worker uses. In the last row it does: the worker counts its echoes in a line
/// that another thread writes to all the time.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    setting: Setting,

    /// Number of rounds; the medians are printed
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Run as the neighbor in another process
    #[arg(long, hide = true)]
    neighbor: bool,
}

struct Report {
    rounds: u32,
    /// Median transfer time of a cache line between the cores in nanoseconds.
    transfer_ns: f64,
    rows: Vec<Row>,
    /// Median ratio of the cost next to a worker of the same process to that next to one of another process.
    sharing: f64,
    distribution: Vec<distribution::Row>,
}

struct Row {
    neighbor: Neighbor,
    /// Median nanoseconds of an echo.
    ns: f64,
    /// Median ratio to the cost of the same round without a neighbor.
    ratio: f64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.neighbor {
        return match run_as_neighbor(&args.setting) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("scaling: {error}");
                ExitCode::FAILURE
            }
        };
    }
    finish("scaling", measure(&args), |report| report.sharing <= LIMIT)
}

fn measure(args: &Args) -> Result<Report, ScalingError> {
    interrupt::on_signals().map_err(failed)?;
    let _first = raise_priority();
    let setting = args.setting;
    let mut rounds = Vec::new();
    let mut distances = Vec::new();
    for _ in 0..args.rounds {
        let transfer = transfer::nanoseconds(setting.core, setting.neighbor_core);
        distances.push(transfer.map_err(|error| setting.not_pinned(error))?);
        transfer::pin(setting.core).map_err(|error| setting.not_pinned(error))?;
        let mut costs = [0.0; Neighbor::ALL.len()];
        for (neighbor, cost) in Neighbor::ALL.into_iter().zip(&mut costs) {
            if interrupt::is_interrupted() {
                return Err(Error::Interrupted.into());
            }
            *cost = time_next_to(neighbor, &setting)?;
        }
        rounds.push(costs);
    }
    let median_of = |value: &dyn Fn(&[f64; 4]) -> f64| median(rounds.iter().map(value)).unwrap_or(f64::NAN);
    let row = |(index, neighbor): (usize, Neighbor)| Row {
        neighbor,
        ns: median_of(&|costs| costs[index]),
        ratio: median_of(&|costs| costs[index] / costs[0]),
    };
    Ok(Report {
        rounds: args.rounds,
        transfer_ns: median(distances.into_iter()).unwrap_or(f64::NAN),
        rows: Neighbor::ALL.into_iter().enumerate().map(row).collect(),
        sharing: median_of(&|costs| costs[2] / costs[1]),
        distribution: distribution::rows(),
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut costs = table(["work on the other core", "#ns per echo", "#ratio to none"]);
        for Row { neighbor, ns, ratio } in &self.rows {
            costs.add_row([neighbor.name().to_owned(), format!("{ns:.0}"), format!("{ratio:.2}")]);
        }
        let Report { rounds, transfer_ns, sharing, .. } = self;
        writeln!(f, "{costs}\n")?;
        writeln!(
            f,
            "{FLOWS} connections of a worker, {SIZE} bytes, medians of {rounds} rounds; a cache line is transferred \
             between the cores in {transfer_ns:.0} ns. Same process to another process: {sharing:.2} (at most \
             {LIMIT})\n"
        )?;
        let workers = distribution::WORKERS.iter().map(|workers| format!("#{workers} workers"));
        let mut table = table(std::iter::once("connections".to_owned()).chain(workers));
        for distribution::Row { connections, busiest } in &self.distribution {
            let busiest = busiest.iter().map(|ratio| format!("{ratio:.2}"));
            table.add_row(std::iter::once(connections.to_string()).chain(busiest));
        }
        writeln!(f, "{table}\n")?;
        write!(f, "Connections of the busiest worker, to the mean, for clients with random addresses and ports")
    }
}
