//! Cost of requests in the service alone.

use linerate_benches::engine::{Cost, measure};
use linerate_benches::kv::service::{ServiceBench, Workload};
use linerate_benches::kv::{KEYS, VALUE};
use linerate_benches::priority::raise_priority;

#[derive(clap::Args)]
pub struct Args {
    /// Requests per burst of a connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    depth: u16,

    /// Percentage of GETs; the others are SETs
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=100))]
    gets: u32,

    /// Request the keys of a burst with one MGET; each key counts as a request
    #[arg(long, conflicts_with = "gets")]
    mget: bool,

    /// Number of requests to measure
    #[arg(long, value_name = "N", default_value_t = 4_000_000)]
    requests: u32,

    /// Number of rounds; the median is printed
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

pub fn run(args: &Args) -> Result<String, crate::Error> {
    let Args { depth, gets, mget, requests, rounds } = *args;
    let _first = raise_priority();
    let bench = ServiceBench::new(Workload { depth: depth.into(), keys: KEYS, value: VALUE, gets, together: mget });
    let Cost { ns, best_ns, .. } = measure(&mut [bench], (requests as usize).max(1), rounds as usize)?[0];
    let requests = if mget { "MGET".to_owned() } else { format!("{gets} % GET") };
    Ok(format!(
        "{ns:.0} ns per request, {best_ns:.0} in the fastest round: {requests}, depth {depth}, {KEYS} keys, values of \
         {VALUE} bytes"
    ))
}
