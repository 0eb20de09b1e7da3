//! Cost of requests in the service alone.

use linerate_benches::engine::{Cost, measure};
use linerate_benches::kv::service::{ServiceBench, Workload};
use linerate_benches::priority::raise_priority;
use serde::Serialize;
use std::fmt;

#[derive(clap::Args)]
pub struct Args {
    /// Requests per burst of a connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    depth: u16,

    /// Number of keys
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    keys: u64,

    /// Size of a value in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    size: u32,

    /// Percentage of GETs; the others are SETs
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=100))]
    gets: u32,

    /// Request the keys of a burst with one MGET; each key counts as a request
    #[arg(long, conflicts_with = "gets")]
    mget: bool,

    /// Export short strings in this many megabytes that peers may read
    #[arg(long, value_name = "MB", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    export: u32,

    /// Number of requests to measure
    #[arg(long, value_name = "N", default_value_t = 4_000_000)]
    requests: u32,

    /// Number of rounds; the median is printed
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
pub struct Report {
    depth: u16,
    keys: u64,
    size: u32,
    gets: u32,
    mget: bool,
    export: u32,
    #[serde(flatten)]
    cost: Cost,
}

pub fn run(args: &Args) -> Result<Report, crate::Error> {
    let Args { depth, keys, size, gets, mget, export, requests, rounds, .. } = *args;
    let _first = raise_priority();
    let export_bytes = (export as usize) << 20;
    let plan = Workload { depth: depth.into(), keys, value: size as usize, gets, together: mget, export: export_bytes };
    let bench = ServiceBench::new(plan);
    let cost = measure(&mut [bench], (requests as usize).max(1), rounds as usize)?[0];
    Ok(Report { depth, keys, size, gets, mget, export, cost })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { depth, keys, size, gets, mget, export, cost: Cost { ns, best_ns, .. } } = self;
        let requests = if *mget { "MGET".to_owned() } else { format!("{gets} % GET") };
        write!(
            f,
            "{ns:.0} ns per request, {best_ns:.0} in the fastest round: {requests}, depth {depth}, {keys} keys, values of \
             {size} bytes"
        )?;
        if *export > 0 { write!(f, ", {export} MB exported") } else { Ok(()) }
    }
}
