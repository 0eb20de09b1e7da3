//! `linerate rdma connections-bench`: memory and time per connection by receive-queue setup.

use super::RdmaError;
use super::connect_bench::address;
use comfy_table::{CellAlignment, Table, presets};
use linerate::Device;
use linerate::{CorePlacement, Network, RdmaConfig, RdmaConnect, RdmaMode};
use linerate_bypass::Via;
use linerate_load::services::Echo;
use linerate_load::{Progress, Rounds, Stage};
use linerate_rdma::provider::{Provider, TransportKind};
use linerate_rdma::rdma_core::RdmaCore;
use linerate_service::Stop;
use linerate_stack::Idle;
use serde::Serialize;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Buffers of a shared receive queue per connection: one more than the minimum.
const SRQ_BUFFERS: u32 = 4;
/// Interval of checking the progress of a run.
const TICK: Duration = Duration::from_millis(2);

/// Arguments of `linerate rdma connections-bench`.
#[derive(Debug, clap::Args)]
pub struct ConnectionsBenchArgs {
    /// Device of both ends, such as mlx5_0
    device: String,

    /// Numbers of connections to measure
    #[arg(
        short,
        long,
        value_name = "N",
        value_delimiter = ',',
        default_values_t = [16, 64, 256, 1024],
        value_parser = clap::value_parser!(u32).range(2..=65_536)
    )]
    connections: Vec<u32>,

    /// Number of round trips on every connection
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000),
    )]
    rounds: u32,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Result.
#[derive(Debug, Serialize)]
struct Report {
    device: Device,
    rows: Vec<Row>,
}

/// Result for one setup and number of connections.
#[derive(Debug, Serialize)]
struct Row {
    way: &'static str,
    connections: u32,
    /// Memory of one end per connection beyond the first: resident memory of the process, and memory of the machine
    /// including the kernel.
    process_kb: f64,
    machine_kb: f64,
    /// Time to open one connection, in sequence.
    open_us: f64,
    /// Round-trip time of a message within a round over all connections.
    echo_us: f64,
}

/// Receive-queue setup.
#[derive(Debug, Clone, Copy)]
enum Setup {
    Own,
    Shared,
    Datagrams,
}

impl Setup {
    const ALL: [Setup; 3] = [Setup::Own, Setup::Shared, Setup::Datagrams];

    fn name(self) -> &'static str {
        match self {
            Setup::Own => "own receive queues",
            Setup::Shared => "shared receive queue",
            Setup::Datagrams => "datagrams",
        }
    }

    fn config(self, connections: u32) -> RdmaConfig {
        let mut config = RdmaConfig::default();
        config.connections = Some(connections);
        config.connect = Some(RdmaConnect::Tcp);
        match self {
            Setup::Own => {}
            Setup::Shared => config.srq = Some(connections * SRQ_BUFFERS),
            Setup::Datagrams => config.mode = Some(RdmaMode::Ud),
        }
        config
    }
}

/// Memory in use, in bytes.
#[derive(Debug, Clone, Copy)]
struct Memory {
    process: f64,
    machine: f64,
}

impl Memory {
    fn now() -> std::io::Result<Self> {
        let read = |path, names: &[&str]| {
            let text = std::fs::read_to_string(path)?;
            let kb = |name: &&str| {
                let line = text.lines().find_map(|line| line.strip_prefix(*name)?.strip_prefix(':'));
                line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<f64>().ok()).unwrap_or(0.0)
            };
            std::io::Result::Ok(names.iter().map(kb).collect::<Vec<_>>())
        };
        let process = read("/proc/self/status", &["VmRSS", "HugetlbPages"])?;
        let machine = read("/proc/meminfo", &["MemTotal", "MemAvailable"])?;
        Ok(Memory { process: process.iter().sum::<f64>() * 1024.0, machine: (machine[0] - machine[1]) * 1024.0 })
    }
}

/// Result of one run.
struct Run {
    memory: Memory,
    opened_in: Duration,
    took: Duration,
}

/// Runs `linerate rdma connections-bench`.
pub fn run(args: &ConnectionsBenchArgs) -> Result<(), RdmaError> {
    let native = RdmaCore::open(&args.device)?;
    let failed = |error| RdmaError::Device { name: args.device.clone(), error };
    if native.limits().map_err(failed)?.transport == TransportKind::Iwarp {
        let message = format!("{}: iWARP supports neither the TCP exchange nor datagrams", args.device);
        return Err(RdmaError::Usage(message));
    }
    let address = address(&native).map_err(failed)?;
    let device = Device { name: native.name().to_owned(), emulated_by: native.emulated_by().map(str::to_owned) };
    drop(native);
    let mut rows = Vec::new();
    for setup in Setup::ALL {
        // The memory of one connection is subtracted, so that a row has the cost of a further one at one end.
        let base = measure(&args.device, address, setup, 1, 1)?;
        for &connections in &args.connections {
            let Run { memory, opened_in, took } = measure(&args.device, address, setup, connections, args.rounds)?;
            let each = |all: f64, base: f64| (all - base) / f64::from(connections - 1) / 2.0 / 1024.0;
            rows.push(Row {
                way: setup.name(),
                connections,
                process_kb: each(memory.process, base.memory.process),
                machine_kb: each(memory.machine, base.memory.machine),
                open_us: opened_in.as_secs_f64() * 1e6 / f64::from(connections),
                echo_us: took.as_secs_f64() * 1e6 / f64::from(connections) / f64::from(args.rounds),
            });
        }
    }
    let report = Report { device, rows };
    super::print_report(&report, args.json)
}

/// Measures connections between two ends on one device.
fn measure(device: &str, address: IpAddr, setup: Setup, connections: u32, rounds: u32) -> Result<Run, RdmaError> {
    let rdma = setup.config(connections);
    // Idle workers sleep, so that the other end gets processor time.
    let via = Via::Rdma { device: device.to_owned() };
    let stop = Stop::default();
    let builder = Network::builder().via(via).rdma(rdma).idle(Idle::Wait).stop(stop.clone());
    let server = builder.clone().listen(SocketAddr::new(address, 0)).build()?;
    let remote = server.listening().first().copied().unwrap_or_else(|| SocketAddr::new(address, 0));
    let serving = server.start(|_| Echo, stop.clone())?;
    let client = builder.core_placement(CorePlacement::Last).build()?;
    let progress = Arc::<Progress>::default();
    let shared = progress.clone();
    let make = move |_| Rounds::new(remote, connections as usize, rounds as usize, shared.clone());
    let running = client.start(make, stop.clone())?;
    let wait = |until: &[Stage]| {
        while !until.contains(&progress.stage()) && !running.is_finished() && !serving.is_finished() {
            thread::sleep(TICK);
        }
    };
    wait(&[Stage::Open, Stage::Over]);
    let memory = Memory::now();
    progress.go();
    wait(&[Stage::Over]);
    stop.stop();
    let result = running.join();
    serving.join()?;
    let service = result?.0.pop().ok_or(RdmaError::NotConnected(None))?;
    let (opened_in, took) = service.times().map_err(RdmaError::NotConnected)?;
    Ok(Run { memory: memory?, opened_in, took })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        let head = ["way", "connections", "process kB each", "machine kB each", "open µs each", "echo µs each"];
        table.load_style(presets::ASCII_MARKDOWN).set_header(head);
        for Row { way, connections, process_kb, machine_kb, open_us, echo_us } in &self.rows {
            let values = [process_kb, machine_kb, open_us, echo_us].map(|value| format!("{value:.1}"));
            table.add_row([&[(*way).to_owned(), connections.to_string()][..], &values].concat());
        }
        table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        writeln!(f, "{table}\n")?;
        write!(f, "{}", self.device)
    }
}
