//! Cost of a key that belongs to another worker than the client.

use linerate_benches::engine::{Cost, measure};
use linerate_benches::kv::workers::{AccessPattern, KeyOwner, Measured, Workers, cores};
use linerate_benches::kv::{KEYS, VALUE};
use linerate_benches::priority::raise_priority;
use linerate_benches::report::table;
use linerate_benches::transfer;
use std::cell::RefCell;
use std::io;

/// Number of keys that each worker's clients request per access pattern.
const REQUESTS: usize = 4_000_000;

#[derive(clap::Args)]
pub struct Args {
    /// Keys per request of several keys
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=64))]
    at_once: u16,

    /// Number of rounds, interleaved between the patterns; the medians are printed
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

/// Returns the numbers of workers and access patterns: one worker, which owns all keys, and two. The settings with one
/// worker precede those that are compared with them.
fn settings(at_once: usize) -> impl Iterator<Item = (usize, AccessPattern)> {
    let kinds = [(1, false), (at_once, false), (at_once, true)];
    kinds.into_iter().flat_map(|(at_once, by_mget)| {
        // The keys of an MGET need not be in one slot.
        let by_slot = [(1, KeyOwner::Slots), (2, KeyOwner::Slots)].into_iter().filter(move |_| !by_mget);
        let patterns = [(1, KeyOwner::Any), (2, KeyOwner::Any), (2, KeyOwner::Own), (2, KeyOwner::Others)];
        patterns
            .into_iter()
            .chain(by_slot)
            .map(move |(workers, owner)| (workers, AccessPattern { at_once, by_mget, owner }))
    })
}

pub fn run(args: &Args) -> Result<String, crate::Error> {
    let Args { at_once, rounds } = *args;
    let failed = |error: io::Error| linerate_harness::Error::Start { program: "worker threads".to_owned(), error };
    let _first = raise_priority();
    let mut cores = cores().map_err(failed)?;
    cores.truncate(2);
    if cores.len() < 2 {
        eprintln!("not measured: two workers need two cores");
    }
    let distance = || match cores[..] {
        [one, other] => transfer::nanoseconds(one, other).map(Some),
        _ => Ok(None),
    };
    let before = distance().map_err(failed)?;
    let create = |is_cluster| {
        let workers = |count| Workers::new(&cores[..count], KEYS, VALUE, is_cluster).map(RefCell::new);
        (1..=cores.len()).map(workers).collect::<Result<Vec<_>, _>>()
    };
    let (workers, clusters) = (create(false)?, create(true)?);
    let settings: Vec<(usize, AccessPattern)> =
        settings(at_once.into()).filter(|(count, _)| *count <= cores.len()).collect();
    let measured = |(count, pattern): &(usize, AccessPattern)| {
        let services = if pattern.owner == KeyOwner::Slots { &clusters } else { &workers };
        Measured { workers: &services[count - 1], pattern: *pattern }
    };
    let mut measured: Vec<Measured<'_>> = settings.iter().map(measured).collect();
    let costs = measure(&mut measured, REQUESTS, rounds as usize)?;
    let after = distance().map_err(failed)?;

    let heads = ["request", "#workers", "whose keys", "#keys/s", "#per worker", "#ns per key", "#to one worker's"];
    let mut table = table(heads);
    let mut one = costs[0].ns;
    for ((workers, pattern), Cost { ns, .. }) in settings.into_iter().zip(costs) {
        if workers == 1 {
            one = ns;
        }
        let request = match pattern {
            AccessPattern { at_once: 1, .. } => "a GET".to_owned(),
            AccessPattern { at_once, by_mget: false, .. } => format!("{at_once} GETs"),
            AccessPattern { at_once, by_mget: true, .. } => format!("MGET of {at_once}"),
        };
        let owner = match pattern.owner {
            KeyOwner::Any => "any",
            KeyOwner::Own => "its own",
            KeyOwner::Others => "the other's",
            KeyOwner::Slots => "its own, by slot",
        };
        table.add_row([
            request,
            workers.to_string(),
            owner.to_owned(),
            format!("{:.0}", workers as f64 * 1e9 / ns),
            format!("{:.0}", 1e9 / ns),
            format!("{ns:.0}"),
            format!("{:.2}", ns / one),
        ]);
    }
    let distances = before.zip(after).map(|(before, after)| {
        format!("; between the cores a cache line took {before:.0} ns before and {after:.0} afterwards")
    });
    Ok(format!(
        "{table}\n{KEYS} keys, values of {VALUE} bytes; ns per key: time of a worker for each key that its clients \
         request{}",
        distances.unwrap_or_default()
    ))
}
