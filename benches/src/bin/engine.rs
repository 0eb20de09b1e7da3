//! What one echo costs the server, from receive ring to transmit ring: on the memory NIC, on one thread.
#![forbid(unsafe_code)]

use clap::{Parser, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use linerate_benches::echo_bench::{EchoBench, EchoBenchConfig};
use linerate_benches::process::come_first;
use linerate_benches::synthetic_client::{MAX_REQUEST, Wrong};
use linerate_stack::SmoltcpEngine;
use serde::Serialize;
use std::process::ExitCode;

/// The flows of the curve; the first is what the others are compared with.
const CURVE: [usize; 3] = [100, 1_000, 10_000];
/// What 10 000 connections may cost per request of what 100 cost.
const LIMIT: f64 = 5.0;

/// Nanoseconds per echo of the stack on the memory NIC
#[derive(Parser)]
struct Args {
    /// The TCP engine
    #[arg(long, value_enum, default_value_t = EngineName::Smoltcp)]
    engine: EngineName,

    /// Connections, all open, used in turn
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=131_072))]
    flows: u32,

    /// Bytes of a request
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=MAX_REQUEST as i64))]
    size: u16,

    /// Echoes to measure
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    echoes: u32,

    /// Let the server verify and compute checksums itself; otherwise the port claims to
    #[arg(long)]
    software_checksum: bool,

    /// Measure 100, 1 000 and 10 000 connections in one run, and fail when 10 000 cost more than 5 times what 100 do
    #[arg(long, conflicts_with = "flows")]
    curve: bool,

    /// Let the curve go on to this many connections
    #[arg(long, value_name = "N", requires = "curve", value_parser = clap::value_parser!(u32).range(10_001..=131_072))]
    up_to: Option<u32>,

    /// Measure in so many parts, and print the median of them
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum EngineName {
    /// smoltcp's sockets
    Smoltcp,
}

#[derive(Serialize)]
struct Report {
    engine: EngineName,
    size: u16,
    software_checksum: bool,
    rounds: u32,
    points: Vec<Point>,
}

/// What one number of flows costs.
#[derive(Serialize)]
struct Point {
    flows: usize,
    echoes: usize,
    /// The median of the rounds.
    ns_per_echo: f64,
    /// The fastest round.
    best_ns_per_echo: f64,
    /// `ns_per_echo` by that of the first point.
    ratio: f64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    come_first();
    let flows = match (args.curve, args.up_to) {
        (false, _) => vec![args.flows as usize],
        (true, more) => CURVE.into_iter().chain(more.map(|n| n as usize)).collect(),
    };
    let points = match args.engine {
        EngineName::Smoltcp => measure(&args, &flows),
    };
    let points = match points {
        Ok(points) => points,
        Err(wrong) => {
            eprintln!("engine: {wrong}");
            return ExitCode::FAILURE;
        }
    };
    let over = points.iter().find(|point| point.flows == 10_000 && point.ratio > LIMIT).map(|point| point.ratio);
    let Args { engine, size, software_checksum, rounds, .. } = args;
    let report = Report { engine, size, software_checksum, rounds, points };
    if args.json {
        println!("{}", serde_json::to_string(&report).expect("a report is made of plain values"));
    } else {
        println!("{}", table(&report));
    }
    match over {
        Some(ratio) => {
            eprintln!("engine: 10000 connections cost {ratio:.2} times what 100 cost per echo: more than {LIMIT}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

/// Measures all numbers of flows, a part of each in every round: what disturbs the machine for a while disturbs them
/// alike.
fn measure(args: &Args, flows: &[usize]) -> Result<Vec<Point>, Wrong> {
    let bench = |flows: &usize| {
        let software_checksum = args.software_checksum;
        EchoBench::<SmoltcpEngine>::new(&EchoBenchConfig { flows: *flows, size: args.size.into(), software_checksum })
    };
    let mut benches = flows.iter().map(bench).collect::<Result<Vec<_>, _>>()?;
    let rounds = args.rounds.min(args.echoes) as usize;
    let echoes = args.echoes as usize / rounds;
    let mut costs = vec![Vec::with_capacity(rounds); flows.len()];
    for _ in 0..rounds {
        for (bench, costs) in benches.iter_mut().zip(&mut costs) {
            costs.push(bench.run(echoes)?.as_nanos() as f64 / echoes as f64);
        }
    }
    costs.iter_mut().for_each(|costs| costs.sort_by(f64::total_cmp));
    let median = |costs: &[f64]| costs[costs.len() / 2];
    let first = median(&costs[0]);
    let point = |(flows, costs): (&usize, &Vec<f64>)| Point {
        flows: *flows,
        echoes: echoes * rounds,
        ns_per_echo: median(costs),
        best_ns_per_echo: costs[0],
        ratio: median(costs) / first,
    };
    Ok(flows.iter().zip(&costs).map(point).collect())
}

fn table(report: &Report) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["connections", "ns per echo", "fastest round", "ratio to the first"]);
    for point in &report.points {
        table.add_row([
            point.flows.to_string(),
            format!("{:.0}", point.ns_per_echo),
            format!("{:.0}", point.best_ns_per_echo),
            format!("{:.2}", point.ratio),
        ]);
    }
    table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}
