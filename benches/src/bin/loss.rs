//! Bytes sent again per byte delivered, by transport and loss.
#![forbid(unsafe_code)]

use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use linerate_benches::loss::{Counts, Transfer, TransferError, Transport, run};
use serde::Serialize;
use std::process::ExitCode;

/// Count the bytes that transports send again on a link that loses frames at random
///
/// A bulk transfer on one connection between two ends in memory, in virtual time. Frames are lost in both directions,
/// by a generator with a seed, so the counts do not depend on the machine. RC is a model of the InfiniBand
/// specification's go-back-N; all others are implementations in use.
#[derive(Parser)]
struct Args {
    /// Percentages of lost frames, from 0 to 50
    #[arg(
        long,
        value_name = "PERCENT,…",
        value_delimiter = ',',
        value_parser = percentage,
        default_value = "0.01,0.03,0.1,0.3,1,2"
    )]
    loss: Vec<f64>,

    /// Transports
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_enum, default_values_t = Transport::ALL)]
    transports: Vec<Transport>,

    /// Payload of a transfer in MB (10⁶ bytes)
    #[arg(long, value_name = "MB", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    megabytes: u64,

    /// Delay of the link in each direction in microseconds
    #[arg(
        long,
        value_name = "MICROSECONDS",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(0..=1_000_000)
    )]
    delay: u64,

    /// Rate of the link in Gbit/s
    #[arg(long, value_name = "GBIT", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=400))]
    rate: u64,

    /// Random seed of the losses
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn percentage(word: &str) -> Result<f64, String> {
    let number: f64 = word.parse().map_err(|error| format!("{error}"))?;
    if (0.0..=50.0).contains(&number) { Ok(number) } else { Err("not from 0 to 50".to_owned()) }
}

#[derive(Serialize)]
struct Row {
    transport: Transport,
    loss_percent: f64,
    #[serde(flatten)]
    counts: Counts,
    resent_per_delivered: f64,
    resent_per_lost_frame: f64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match measure(&args) {
        Ok(rows) if args.json => println!("{}", serde_json::json!({ "rows": rows })),
        Ok(rows) => print(&args, &rows),
        Err(error) => {
            eprintln!("loss: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn measure(args: &Args) -> Result<Vec<Row>, TransferError> {
    let mut rows = Vec::new();
    for &loss_percent in &args.loss {
        for &transport in &args.transports {
            let transfer = Transfer {
                loss: loss_percent / 100.0,
                delay_us: args.delay,
                bits_per_second: args.rate * 1_000_000_000,
                bytes: args.megabytes * 1_000_000,
                seed: args.seed,
            };
            let counts = run(transport, &transfer)?;
            let resent_per_lost_frame = (counts.sent - counts.delivered) as f64 / (counts.lost as f64).max(1.0);
            let resent_per_delivered = counts.resent();
            rows.push(Row { transport, loss_percent, counts, resent_per_delivered, resent_per_lost_frame });
        }
    }
    Ok(rows)
}

fn print(args: &Args, rows: &[Row]) {
    let Args { megabytes, delay, rate, seed, .. } = args;
    println!("{megabytes} MB on one connection, {rate} Gbit/s, {delay} µs in each direction, seed {seed}\n");
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "loss %",
        "transport",
        "resent bytes per byte delivered",
        "frames lost",
        "resent bytes per loss",
    ]);
    for Row { transport, loss_percent, counts, resent_per_delivered, resent_per_lost_frame } in rows {
        table.add_row([
            loss_percent.to_string(),
            transport.name().to_owned(),
            format!("{resent_per_delivered:.5}"),
            counts.lost.to_string(),
            format!("{resent_per_lost_frame:.0}"),
        ]);
    }
    table.column_iter_mut().filter(|column| column.index != 1).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    println!("{table}");
}
