//! Cost of a key that belongs to another worker than the client.

use comfy_table::{CellAlignment, Table, presets};
use linerate_benches::engine::{Cost, measure};
use linerate_benches::kv::Beside;
use linerate_benches::kv::workers::{AccessPattern, KeyOwner, Measured, Workers, cores};
use linerate_benches::priority::raise_priority;
use linerate_benches::transfer;
use serde::Serialize;
use std::cell::RefCell;
use std::{fmt, io};

#[derive(clap::Args)]
pub struct Args {
    /// Keys per request of several keys
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=64))]
    at_once: u16,

    /// Number of keys
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    keys: u64,

    /// Size of a value in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    size: u32,

    /// Number of keys that each worker's clients request per access pattern
    #[arg(long, value_name = "N", default_value_t = 4_000_000)]
    requests: u32,

    /// Number of rounds, interleaved between the patterns; the medians are printed
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
pub struct Report {
    at_once: u16,
    keys: u64,
    size: u32,
    rows: Vec<Row>,
    /// Transfer time of a cache line between the two cores, before and after. If they differ, the cores moved.
    apart_ns: Option<[f64; 2]>,
}

#[derive(Serialize)]
struct Row {
    way: String,
    workers: usize,
    whose: KeyOwner,
    keys_per_second: f64,
    keys_per_second_and_worker: f64,
    /// Time of a worker per key that its clients request.
    #[serde(flatten)]
    cost: Cost,
    /// Ratio to the time of the same pattern with one worker.
    to_one: f64,
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

pub fn run(args: &Args) -> Result<Report, crate::Error> {
    let Args { at_once, keys, size, requests, rounds, .. } = *args;
    let failed = |error: io::Error| linerate_harness::Error::Start { program: "worker threads".to_owned(), error };
    let _first = raise_priority();
    let mut cores = cores().map_err(failed)?;
    cores.truncate(2);
    if cores.len() < 2 {
        eprintln!("not measured: two workers need two cores");
    }
    let group_by_distance = || match cores[..] {
        [one, other] => transfer::nanoseconds(one, other).map(Some),
        _ => Ok(None),
    };
    let before = group_by_distance().map_err(failed)?;
    let create = |cores: &[usize], is_cluster| {
        let beside = Beside { is_cluster, ..Beside::default() };
        Workers::new(cores, keys, size as usize, beside).map(RefCell::new)
    };
    let create =
        |is_cluster| (1..=cores.len()).map(|count| create(&cores[..count], is_cluster)).collect::<Result<Vec<_>, _>>();
    let (workers, clusters) = (create(false)?, create(true)?);
    let settings: Vec<(usize, AccessPattern)> =
        settings(at_once.into()).filter(|(count, _)| *count <= cores.len()).collect();
    let measured = |(count, pattern): &(usize, AccessPattern)| {
        let services = if pattern.owner == KeyOwner::Slots { &clusters } else { &workers };
        Measured { workers: &services[count - 1], pattern: *pattern }
    };
    let mut measured: Vec<Measured<'_>> = settings.iter().map(measured).collect();
    let costs = measure(&mut measured, (requests as usize).max(1), rounds as usize)?;
    let after = group_by_distance().map_err(failed)?;

    let mut rows: Vec<Row> = Vec::new();
    let mut one = costs[0].ns;
    for ((workers, pattern), cost) in settings.into_iter().zip(costs) {
        if workers == 1 {
            one = cost.ns;
        }
        let way = match pattern {
            AccessPattern { at_once: 1, .. } => "a GET".to_owned(),
            AccessPattern { at_once, by_mget: false, .. } => format!("{at_once} GETs"),
            AccessPattern { at_once, by_mget: true, .. } => format!("MGET of {at_once}"),
        };
        let each = 1e9 / cost.ns;
        rows.push(Row {
            way,
            workers,
            whose: pattern.owner,
            keys_per_second: each * workers as f64,
            keys_per_second_and_worker: each,
            cost,
            to_one: cost.ns / one,
        });
    }
    Ok(Report { at_once, keys, size, rows, apart_ns: before.zip(after).map(|(before, after)| [before, after]) })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["request", "workers", "whose keys", "keys/s", "per worker", "ns per key", "to one worker's"]);
        for Row { way, workers, whose, keys_per_second, keys_per_second_and_worker, cost, to_one } in &self.rows {
            let whose = match whose {
                KeyOwner::Any => "any",
                KeyOwner::Own => "its own",
                KeyOwner::Others => "the other's",
                KeyOwner::Slots => "its own, by slot",
            };
            table.add_row([
                way.clone(),
                workers.to_string(),
                whose.to_owned(),
                format!("{keys_per_second:.0}"),
                format!("{keys_per_second_and_worker:.0}"),
                format!("{:.0}", cost.ns),
                format!("{to_one:.2}"),
            ]);
        }
        for column in [1, 3, 4, 5, 6] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        writeln!(f, "{table}")?;
        let Report { keys, size, .. } = self;
        write!(
            f,
            "{keys} keys, values of {size} bytes; ns per key: time of a worker for each key that its clients request"
        )?;
        if let Some([before, after]) = self.apart_ns {
            write!(f, "; between the cores a cache line took {before:.0} ns before and {after:.0} afterwards")?;
        }
        Ok(())
    }
}
