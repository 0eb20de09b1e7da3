//! Bytes sent again per byte delivered, by transport and loss.
#![forbid(unsafe_code)]

use clap::Parser;
use linerate_benches::loss::{Transfer, TransferError, Transport, run};
use linerate_benches::report::{finish, table};
use std::process::ExitCode;

/// Payload of a transfer in MB (10⁶ bytes).
const MEGABYTES: u64 = 200;
/// Random seed of the losses.
const SEED: u64 = 1;

/// Count the bytes that transports send again on a link that loses frames at random
///
/// A bulk transfer on one connection between two ends in memory, in virtual time. Frames are lost in both directions,
/// by a generator with a seed, so the counts do not depend on the machine.
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
}

fn percentage(word: &str) -> Result<f64, String> {
    let number: f64 = word.parse().map_err(|error| format!("{error}"))?;
    if (0.0..=50.0).contains(&number) { Ok(number) } else { Err("not from 0 to 50".to_owned()) }
}

fn main() -> ExitCode {
    finish("loss", measure(&Args::parse()), |_| true)
}

/// Returns the table of all transfers.
fn measure(Args { loss, delay, rate }: &Args) -> Result<String, TransferError> {
    let heads = ["#loss %", "transport", "#resent bytes per byte delivered", "#frames lost", "#resent bytes per loss"];
    let mut table = table(heads);
    for percent in loss {
        for transport in Transport::ALL {
            let transfer = Transfer {
                loss: percent / 100.0,
                delay_us: *delay,
                bits_per_second: rate * 1_000_000_000,
                bytes: MEGABYTES * 1_000_000,
                seed: SEED,
            };
            let counts = run(transport, &transfer)?;
            table.add_row([
                percent.to_string(),
                transport.name().to_owned(),
                format!("{:.5}", counts.resent()),
                counts.lost.to_string(),
                format!("{:.0}", (counts.sent - counts.delivered) as f64 / (counts.lost as f64).max(1.0)),
            ]);
        }
    }
    Ok(format!("{MEGABYTES} MB on one connection, {rate} Gbit/s, {delay} µs in each direction, seed {SEED}\n\n{table}"))
}
