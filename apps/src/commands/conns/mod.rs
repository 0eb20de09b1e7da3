//! `linerate conns`.

use crate::error::Error;
use crate::inspect::{self, Connection, Process, QueryResult, TargetArgs};
use crate::top::time as micros;
use clap::ValueEnum;
use linerate_process::output::{eprint_line, print_line};
use linerate_service::inspect::ConnState;
use serde::Serialize;
use std::cmp::{Ordering, Reverse};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// List the connections of a running process
#[derive(Debug, clap::Args)]
pub struct ConnsArgs {
    #[command(flatten)]
    target: TargetArgs,

    #[command(flatten)]
    filter: Filter,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Sort order: numbers descending, everything else ascending
    #[arg(long, value_enum, value_name = "BY", default_value = "remote")]
    sort: SortArg,
}

/// Selection of connections.
#[derive(Debug, Default, Clone, clap::Args)]
struct Filter {
    /// Only connections in this state, such as established or close-wait; repeatable
    #[arg(long, value_name = "STATE", value_parser = parse_state)]
    state: Vec<String>,

    /// Only connections with this local address: 10.0.0.2, 10.0.0.0/8, [::1]:7, 10.0.0.2:7 or :7
    #[arg(long, value_name = "ADDRESS", value_parser = AddressFilter::from_str)]
    local: Option<AddressFilter>,

    /// Only connections with this remote address, written like --local
    #[arg(long, value_name = "ADDRESS", value_parser = AddressFilter::from_str)]
    remote: Option<AddressFilter>,

    /// Only connections of this worker, numbered from 0
    #[arg(long, value_name = "N")]
    worker: Option<usize>,
}

/// Sort order of connections, in the order of the columns of `linerate top`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SortArg {
    /// TCP state
    State,
    /// Worker and slot
    Worker,
    /// Local address
    Local,
    /// Remote address
    Remote,
    /// Bytes received and not consumed
    Unread,
    /// Bytes written by the service and not sent
    Unsent,
    /// Smoothed round-trip time
    Rtt,
    /// Congestion window
    Window,
    /// Retransmitted segments
    Retransmitted,
}

/// Filter by address prefix and port. `None` matches anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AddressFilter {
    prefix: Option<(IpAddr, u8)>,
    port: Option<u16>,
}

impl FromStr for AddressFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid =
            || "give an address, a prefix or a port: 10.0.0.2, 10.0.0.0/8, [::1]:7, 10.0.0.2:7 or :7".to_owned();
        if let Some(port) = text.strip_prefix(':').and_then(|port| port.parse().ok()) {
            return Ok(AddressFilter { prefix: None, port: Some(port) });
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(AddressFilter { prefix: Some(host_prefix(address.ip())), port: Some(address.port()) });
        }
        let bare =
            |text: &str| text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().map_err(|_| invalid());
        let Some((address, length)) = text.split_once('/') else {
            return Ok(AddressFilter { prefix: Some(host_prefix(bare(text)?)), port: None });
        };
        let (address, bits) = host_prefix(bare(address)?);
        let length = length.parse().ok().filter(|length| *length <= bits).ok_or_else(invalid)?;
        Ok(AddressFilter { prefix: Some((address, length)), port: None })
    }
}

/// Returns the prefix that contains only `address`.
fn host_prefix(address: IpAddr) -> (IpAddr, u8) {
    (address, if address.is_ipv4() { 32 } else { 128 })
}

impl AddressFilter {
    fn matches(&self, address: SocketAddr) -> bool {
        let in_prefix = |(prefix, length): (IpAddr, u8)| match (prefix, address.ip().to_canonical()) {
            (IpAddr::V4(prefix), IpAddr::V4(ip)) => {
                (prefix.to_bits() ^ ip.to_bits()).leading_zeros() >= u32::from(length)
            }
            (IpAddr::V6(prefix), IpAddr::V6(ip)) => {
                (prefix.to_bits() ^ ip.to_bits()).leading_zeros() >= u32::from(length)
            }
            _ => false,
        };
        self.prefix.is_none_or(in_prefix) && self.port.is_none_or(|port| port == address.port())
    }
}

impl Filter {
    fn matches(&self, connection: &Connection) -> bool {
        (self.state.is_empty() || self.state.contains(&connection.state))
            && self.local.is_none_or(|filter| connection.local.is_some_and(|local| filter.matches(local)))
            && self.remote.is_none_or(|filter| filter.matches(connection.remote))
    }
}

fn parse_state(text: &str) -> Result<String, String> {
    let names = ConnState::ALL.map(ConnState::name);
    let text = text.to_ascii_lowercase();
    if names.contains(&text.as_str()) { Ok(text) } else { Err(format!("valid states: {}", names.join(", "))) }
}

impl SortArg {
    /// Compares two connections.
    pub fn order(self, a: &Connection, b: &Connection) -> Ordering {
        let slot = |connection: &Connection| (connection.worker, connection.slot);
        let order = match self {
            SortArg::Worker => Ordering::Equal,
            SortArg::Local => a.local.cmp(&b.local),
            SortArg::Remote => a.remote.cmp(&b.remote),
            SortArg::State => a.state.cmp(&b.state),
            SortArg::Unread => Reverse(a.unread_bytes).cmp(&Reverse(b.unread_bytes)),
            SortArg::Unsent => Reverse(a.unsent_bytes).cmp(&Reverse(b.unsent_bytes)),
            SortArg::Rtt => b.rtt_us.unwrap_or(-1.0).total_cmp(&a.rtt_us.unwrap_or(-1.0)),
            SortArg::Window => Reverse(a.congestion_window_bytes).cmp(&Reverse(b.congestion_window_bytes)),
            SortArg::Retransmitted => Reverse(a.retransmitted_segments).cmp(&Reverse(b.retransmitted_segments)),
        };
        order.then_with(|| slot(a).cmp(&slot(b)))
    }
}

/// JSON output.
#[derive(Serialize)]
struct Report<'a> {
    pid: u32,
    program: &'a str,
    command: &'a str,
    /// Workers that did not answer within one second.
    silent_workers: Vec<usize>,
    connections: Vec<Connection>,
}

/// Runs `linerate conns`.
pub fn run(args: &ConnsArgs) -> Result<(), Error> {
    let mut process = inspect::find(&args.target)?;
    let workers = process.about().workers;
    if let Some(worker) = args.filter.worker.filter(|worker| *worker >= workers) {
        return Err(Error::Usage(format!("--worker {worker}: there are {workers} workers, numbered from 0")));
    }
    let (mut connections, silent) = collect(&mut process, &args.filter)?;
    connections.sort_by(|a, b| args.sort.order(a, b));
    let about = process.about();
    if args.json {
        let (program, command) = (about.program.as_str(), about.command.as_str());
        let report = Report { pid: about.pid, program, command, silent_workers: silent, connections };
        let json = serde_json::to_string(&report).expect("the report serializes without error");
        return print_line(json).map_err(Error::Output);
    }
    for worker in silent {
        eprint_line(format_args!("worker {worker} did not answer within one second: its connections are missing"));
    }
    print_line(text(&connections)).map_err(Error::Output)
}

/// Returns the matching connections, and the workers that did not answer.
fn collect(process: &mut Process, filter: &Filter) -> QueryResult<(Vec<Connection>, Vec<usize>)> {
    let (mut all, mut silent) = (Vec::new(), Vec::new());
    for worker in (0..process.about().workers).filter(|worker| filter.worker.is_none_or(|selected| selected == *worker))
    {
        let mut next = Some(0);
        while let Some(from) = next {
            let page = process.connections(worker, from)?;
            if !page.up {
                silent.push(worker);
            }
            all.extend(page.connections.into_iter().filter(|connection| filter.matches(connection)));
            next = page.next;
        }
    }
    Ok((all, silent))
}

/// Formats each connection as one line, and TCP details on a second line like `ss -ti`.
fn text(connections: &[Connection]) -> String {
    let address = |connection: &Connection| connection.local.map_or_else(|| "-".to_owned(), |local| local.to_string());
    let width = |text: fn(&Connection) -> usize| connections.iter().map(text).max().unwrap_or(0).max(15);
    let locals = width(|connection| connection.local.map_or(1, |local| local.to_string().len()));
    let remotes = width(|connection| connection.remote.to_string().len());
    let mut text = format!(
        "{:12}  {:>6}  {:>9}  {:>9}  {:locals$}  {:remotes$}",
        "state", "worker", "unread", "unsent", "local", "remote"
    );
    text.truncate(text.trim_end().len());
    for connection in connections {
        let Connection { state, worker, unread_bytes, unsent_bytes, remote, .. } = connection;
        let local = address(connection);
        let remote = remote.to_string();
        let _ =
            write!(text, "\n{state:12}  {worker:>6}  {unread_bytes:>9}  {unsent_bytes:>9}  {local:locals$}  {remote}");
        let details = details(connection);
        if !details.is_empty() {
            let _ = write!(text, "\n    {}", details.join("  "));
        }
    }
    text
}

/// Returns the available details of TCP and RDMA, each with name and unit.
pub fn details(connection: &Connection) -> Vec<String> {
    let number = |name: &str, value: Option<u64>| value.map(|value| format!("{name}:{value}"));
    let time = |name: &str, value: Option<f64>| value.map(|value| format!("{name}:{}", micros(value)));
    let flag = |name: &str, value: Option<bool>| value.filter(|value| *value).map(|_| name.to_owned());
    let rtt = connection.rtt_us.zip(connection.rtt_variation_us);
    let rtt = rtt.map(|(rtt, variation)| format!("rtt:{}/{}", micros(rtt), micros(variation)));
    [
        number("mss", connection.mss_bytes.map(u64::from)),
        rtt,
        time("minrtt", connection.min_rtt_us),
        time("rto", connection.retransmission_time_out_us),
        number("cwnd", connection.congestion_window_bytes),
        number("ssthresh", connection.slow_start_threshold_bytes),
        number("snd_wnd", connection.send_window_bytes),
        number("rcv_wnd", connection.receive_window_bytes),
        number("in_flight", connection.in_flight_bytes),
        number("retrans", connection.retransmitted_segments),
        number("timeouts", connection.time_outs.filter(|times| *times > 0).map(u64::from)),
        connection.pacing_bytes_per_second.map(|rate| format!("pacing:{rate}B/s")),
        connection.rdma_state.as_ref().map(|state| format!("qp_state:{state}")),
        number("qp", connection.rdma_qp.map(u64::from)),
        number("peer_qp", connection.rdma_peer_qp.map(u64::from)),
        number("credits", connection.rdma_credits),
        number("outstanding", connection.rdma_outstanding),
        number("stalls", connection.rdma_credit_stalls),
        connection.tls_version.as_ref().map(|version| format!("tls:{version}")),
        connection.tls_suite.as_ref().map(|suite| format!("suite:{suite}")),
        flag("resumed", connection.tls_is_resumed),
        flag("recovering", connection.is_recovering),
        flag("reordering", connection.reorders),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests;
