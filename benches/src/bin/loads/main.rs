//! Loads of servers, as two processes pinned to a core each, relative to each other.
#![forbid(unsafe_code)]

mod echo;
mod http;
mod idle;
mod kv;
mod pair;
mod programs;
mod testpmd;
mod tls;

use clap::Parser;
use linerate_benches::priority::raise_priority;
use linerate_benches::report::finish;
use linerate_benches::rounds::{self, Report, RoundsArgs};
use linerate_harness::{Error, interrupt};
use pair::Pair;
use std::process::ExitCode;

/// Measure servers of linerate and others with loads, in rounds, and compare them
///
/// The server has one core and the load another. A measurement during which the cores moved is repeated. Needs 1200
/// hugepages; linerate and http must be in the directory of this program.
#[derive(Parser)]
struct Args {
    #[arg(value_enum)]
    table: Table,

    #[command(flatten)]
    rounds: RoundsArgs,

    /// Number of keys of key-value servers
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..=4_000_000))]
    keys: u64,

    /// Idle connections of servers with little to do
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Table {
    /// Echo over virtio-user by each TCP engine, and over kernel sockets
    SideBySide,
    /// Echo by number of connections, link, protocol and size of messages
    Links,
    /// `linerate kv` over virtio-user and AF_XDP, redis-server and memcached
    KvLinks,
    /// `linerate http`, and the same server on tokio
    HttpRates,
    /// Servers with little to do: processor time, round trips, and the work of a batch program on the same core
    Idle,
    /// redis-server, memcached and nginx under `linerate run`, and on the kernel
    Programs,
    /// Servers with and without TLS, and redis-server and nginx with it
    Tls,
}

fn main() -> ExitCode {
    let args = Args::parse();
    finish("loads", measure(&args), Report::is_met)
}

fn measure(args: &Args) -> Result<Report, Error> {
    interrupt::on_signals().map_err(|error| Error::Start { program: "loads".to_owned(), error })?;
    let pair = Pair::new(args.rounds.cores, args.rounds.duration())?;
    let plan = match args.table {
        Table::SideBySide => echo::side_by_side(&pair),
        Table::Links => echo::links(&pair),
        Table::KvLinks => kv::plan(&pair, args.keys),
        Table::HttpRates => http::plan(&pair)?,
        Table::Idle => idle::plan(&pair, args.connections),
        Table::Programs => programs::plan(&pair)?,
        Table::Tls => tls::plan(&pair)?,
    };
    let _first = raise_priority();
    rounds::measure(&plan, &args.rounds)
}
