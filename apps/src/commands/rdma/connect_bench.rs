//! `linerate rdma connect-bench`: connection setup time by every available method.

use super::RdmaError;
use comfy_table::{CellAlignment, Table, presets};
use linerate::Device;
use linerate::{CorePlacement, Network, NetworkBuilder, RdmaConfig, RdmaConnect};
use linerate_bypass::arena::{Arena, ArenaConfig};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_bypass::{MacAddr, Via};
use linerate_load::services::Discard;
use linerate_load::{Barrier, ConnectPlan, Connects, Plan};
use linerate_rdma::provider::{GidKind, Provider, TransportKind};
use linerate_rdma::rdma_core::RdmaCore;
use linerate_rdma::{Config, Step, steps};
use linerate_service::Stop;
use linerate_service::time::Clock;
use linerate_stack::{Config as StackConfig, Idle, Mailboxes, Worker};
use serde::Serialize;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Minimum number of prepared queue pairs at each end, in the cases with prepared ones.
const POOL: u32 = 8;
/// Minimum number of connections that may be closing while others are opened.
const CLOSING: u32 = 64;
/// Interval of checking for the end.
const TICK: Duration = Duration::from_millis(5);
/// Port of the server on the TCP stack.
const PORT: u16 = 7;

/// Arguments of `linerate rdma connect-bench`.
#[derive(Debug, clap::Args)]
pub struct ConnectBenchArgs {
    /// Device of both ends, such as mlx5_0
    device: String,

    /// Number of repetitions of each step and of connections by each method
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value_t = 200,
        value_parser = clap::value_parser!(u32).range(1..=100_000),
    )]
    rounds: u32,

    /// Numbers of connections that are opened at a time
    #[arg(
        short,
        long,
        value_name = "N",
        value_delimiter = ',',
        default_values_t = [1, 16],
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    connections: Vec<u32>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Result. Times are in microseconds.
#[derive(Debug, Serialize)]
struct Report {
    device: Device,
    steps: Vec<Row>,
    /// Sum of the medians of all steps except destroying: the first connection of a process.
    cold_us: f64,
    /// Sum of the medians of the steps that every connection needs.
    warm_us: f64,
    /// Sum of the medians of the steps left with a prepared queue pair.
    pooled_us: f64,
    /// Whole connections, from the request until the connection is usable.
    connections: Vec<Connections>,
}

/// Connections of one method.
#[derive(Debug, Serialize)]
struct Connections {
    #[serde(flatten)]
    times: Row,
    /// Number of connections that are opened at a time.
    at_once: u32,
    /// Connections per second, opened and closed.
    per_second: f64,
}

#[derive(Debug, Serialize)]
struct Row {
    what: String,
    times: usize,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

impl Row {
    fn new(what: &str, mut took: Vec<Duration>) -> Self {
        took.sort_unstable();
        let at = |part: f64| {
            let rank = (took.len() as f64 * part) as usize;
            took.get(rank.min(took.len().saturating_sub(1))).map_or(0.0, |took| took.as_secs_f64() * 1e6)
        };
        Row { what: what.to_owned(), times: took.len(), p50_us: at(0.5), p99_us: at(0.99), max_us: at(1.0) }
    }
}

impl Connections {
    /// Creates a row from the results of a load that opens `at_once` connections at a time, if it opened `rounds`.
    fn new(what: &str, at_once: u32, rounds: usize, load: &Connects) -> Result<Self, RdmaError> {
        let connected = load.connected().map_err(RdmaError::NotConnected)?;
        if connected.connections != rounds as u64 {
            return Err(RdmaError::NotConnected(None));
        }
        let at = |quantile| connected.times.answered().value_at_quantile(quantile) as f64 / 1000.0;
        let (p50_us, p99_us, max_us) = (at(0.5), at(0.99), at(1.0));
        let times = Row { what: what.to_owned(), times: rounds, p50_us, p99_us, max_us };
        Ok(Connections { times, at_once, per_second: rounds as f64 / load.measured().as_secs_f64() })
    }
}

/// Method of opening connections.
#[derive(Debug, Clone, Copy)]
enum Method {
    Rdma(RdmaConnect, bool),
    Kernel,
    Stack,
}

impl Method {
    /// All methods with their names.
    const ALL: [(&str, Method); 6] = [
        ("rdma_cm", Method::Rdma(RdmaConnect::Cm, false)),
        ("rdma_cm, prepared", Method::Rdma(RdmaConnect::Cm, true)),
        ("TCP exchange", Method::Rdma(RdmaConnect::Tcp, false)),
        ("TCP exchange, prepared", Method::Rdma(RdmaConnect::Tcp, true)),
        ("kernel sockets", Method::Kernel),
        ("TCP stack, in memory", Method::Stack),
    ];

    fn is_possible(self, is_iwarp: bool) -> bool {
        !(is_iwarp && matches!(self, Method::Rdma(RdmaConnect::Tcp, _) | Method::Rdma(_, true)))
    }

    /// Opens `rounds` connections, `at_once` at a time, between two ends at `address`.
    fn measure(
        self,
        device: &str,
        address: IpAddr,
        at_once: u32,
        rounds: usize,
        result: impl Fn(&Connects) -> Result<Connections, RdmaError>,
    ) -> Result<Connections, RdmaError> {
        let mut rdma = RdmaConfig::default();
        match self {
            Method::Stack => return result(over_stack(at_once, rounds).service()),
            Method::Kernel => {
                return result(&over_network(Network::builder().via(Via::Kernel), address, at_once, rounds)?);
            }
            Method::Rdma(connect, is_prepared) => {
                rdma.connect = Some(connect);
                rdma.pool = is_prepared.then_some(POOL.max(2 * at_once));
                rdma.connections = Some(CLOSING.max(4 * at_once));
            }
        }
        // Idle workers sleep, as with kernel sockets, so that the other end gets processor time.
        let via = Via::Rdma { device: device.to_owned() };
        result(&over_network(Network::builder().via(via).rdma(rdma).idle(Idle::Wait), address, at_once, rounds)?)
    }
}

/// Runs `linerate rdma connect-bench`.
pub fn run(args: &ConnectBenchArgs) -> Result<(), RdmaError> {
    let rounds = args.rounds as usize;
    let begin = Instant::now();
    let native = Arc::new(RdmaCore::open(&args.device)?);
    let opened = begin.elapsed();
    let failed = |error| RdmaError::Device { name: args.device.clone(), error };
    let limits = native.limits().map_err(failed)?;
    let is_iwarp = limits.transport == TransportKind::Iwarp;
    let address = address(&native).map_err(failed)?;

    let mut all = vec![Step { operation: "open the device", each: false, took: vec![opened] }];
    if is_iwarp {
        tracing::info!("steps not measured: over iWARP, rdma_cm performs them");
    } else {
        let arena = Arena::new(ArenaConfig { bytes: 8 << 20, hugepages: true })?;
        let clock = Instant::now();
        all.extend(steps(&native, &Config::default(), &arena, rounds, || clock.elapsed())?);
    }
    let medians = |counts: fn(&Step) -> bool| {
        all.iter().filter(|step| counts(step)).map(|step| Row::new(step.operation, step.took.clone()).p50_us).sum()
    };
    let is_setup = |step: &Step| step.operation != "destroy";
    let (cold_us, warm_us) = (medians(is_setup), medians(|step| step.each && step.operation != "destroy"));
    let pooled_us = medians(|step| matches!(step.operation, "RTR" | "RTS"));
    let steps = all.iter().map(|step| Row::new(step.operation, step.took.clone())).collect();

    let (name, emulated_by) = (native.name().to_owned(), native.emulated_by().map(str::to_owned));
    drop(native);
    let mut connections = Vec::new();
    for &at_once in &args.connections {
        for (what, method) in Method::ALL.into_iter().filter(|(_, method)| method.is_possible(is_iwarp)) {
            let new = |load: &Connects| Connections::new(what, at_once, rounds, load);
            connections.push(method.measure(&args.device, address, at_once, rounds, new)?);
        }
    }
    let device = Device { name, emulated_by };
    let report = Report { device, steps, cold_us, warm_us, pooled_us, connections };
    super::print_report(&report, args.json)
}

/// Returns an IPv4 address of the device that peers can connect to.
pub(super) fn address(native: &RdmaCore) -> std::io::Result<IpAddr> {
    let gids = native.gids(1)?;
    let ip = gids.iter().filter(|gid| gid.kind != GidKind::RoceV1).map(|gid| gid.ip()).find(IpAddr::is_ipv4);
    ip.ok_or_else(|| std::io::Error::new(std::io::ErrorKind::AddrNotAvailable, "the port has no IPv4 address"))
}

/// Measures connections between two ends of one network.
fn over_network(builder: NetworkBuilder, address: IpAddr, at_once: u32, rounds: usize) -> Result<Connects, RdmaError> {
    let stop = Stop::default();
    let builder = builder.stop(stop.clone());
    let server = builder.clone().listen(SocketAddr::new(address, 0)).build()?;
    let remote = server.listening().first().copied().unwrap_or_else(|| SocketAddr::new(address, 0));
    let serving = server.start(|_| Discard::default(), stop.clone())?;
    let (barrier, connects) = connects(remote, at_once, rounds);
    let client = builder.core_placement(CorePlacement::Last).build()?;
    let connecting = client.start(move |_| connects(), stop.clone())?;
    while !barrier.all_done() && !connecting.is_finished() && !serving.is_finished() {
        thread::sleep(TICK);
    }
    stop.stop();
    let result = connecting.join();
    serving.join()?;
    result?.0.pop().ok_or(RdmaError::NotConnected(None))
}

/// Returns a factory of services that open `rounds` connections to `remote`, `at_once` at a time, and the barrier that
/// reports their completion.
fn connects(
    remote: SocketAddr,
    at_once: u32,
    rounds: usize,
) -> (Arc<Barrier>, impl Fn() -> Connects + Send + Sync + 'static) {
    let barrier = Arc::new(Barrier::new(1, 1));
    // Count from the first connection.
    barrier.begin();
    let shared = barrier.clone();
    let plan = Plan { remote, connections: at_once as usize, duration: Duration::MAX, ..Plan::default() };
    let each = ConnectPlan { request: 0, most: rounds as u64 };
    (barrier, move || Connects::new(&plan, shared.clone(), 0, 1, each))
}

/// Measures connections of the TCP stack over a link in memory. Both ends run alternately on this thread.
fn over_stack(at_once: u32, rounds: usize) -> Worker<MemoryNic, Connects> {
    let [client_config, server_config] = [1, 2].map(|host| StackConfig {
        addresses: vec![format!("10.0.0.{host}/24").parse().expect("an address with a prefix")],
        mac: Some(MacAddr([2, 0, 0, 0, 0, host])),
        listen: vec![SocketAddr::from(([10, 0, 0, host], PORT))],
        ..StackConfig::default()
    });
    let (near, far) = Link::pair(LinkConfig::default());
    let clock = Clock::start();
    let mailboxes = || Mailboxes::for_workers(1).remove(0);
    let (barrier, connects) = connects(SocketAddr::from(([10, 0, 0, 2], PORT)), at_once, rounds);
    let mut client: Worker<_, Connects> = Worker::new(&client_config, mailboxes(), near, |_| connects(), clock.now());
    let mut server: Worker<_, Discard> =
        Worker::new(&server_config, mailboxes(), far, |_| Discard::default(), clock.now());
    while !barrier.all_done() {
        client.turn(clock.now());
        server.turn(clock.now());
    }
    client
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = |heads: &[&'static str], rows: Vec<Vec<String>>| {
            let mut table = Table::new();
            table.load_style(presets::ASCII_MARKDOWN).set_header(heads).add_rows(rows);
            table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
            table
        };
        let cells = |Row { what, times, p50_us, p99_us, max_us }: &Row| {
            let latencies = [*p50_us, *p99_us, *max_us].map(|us| format!("{us:.1}"));
            [&[what.clone(), times.to_string()][..], &latencies].concat()
        };
        let whole = |Connections { times, at_once, per_second }: &Connections| {
            let mut cells = cells(times);
            cells.insert(1, at_once.to_string());
            cells.push(format!("{per_second:.0}"));
            cells
        };
        let Report { device, steps, cold_us, warm_us, pooled_us, connections } = self;
        writeln!(
            f,
            "{}\n",
            table(&["step of one end", "times", "p50 µs", "p99 µs", "max µs"], steps.iter().map(cells).collect())
        )?;
        writeln!(f, "sum of medians: {cold_us:.1} µs cold, {warm_us:.1} per connection, {pooled_us:.1} prepared\n")?;
        let heads = ["connection", "at a time", "times", "p50 µs", "p99 µs", "max µs", "per second"];
        writeln!(f, "{}\n", table(&heads, connections.iter().map(whole).collect()))?;
        write!(f, "{device}")
    }
}
