//! `linerate conns`.

use crate::error::Error;
use crate::inspect::{self, Asked, Connection, Process, WatchArgs};
use clap::ValueEnum;
use linerate_bypass::inspect::ConnState;
use linerate_net::process::output::{print_line, tell};
use serde::Serialize;
use std::cmp::{Ordering, Reverse};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// `linerate conns`.
#[derive(Debug, clap::Args)]
pub struct ConnsArgs {
    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    filter: Filter,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// What comes first: numbers with the greatest, the rest from the smallest
    #[arg(long, value_enum, value_name = "BY", default_value = "remote")]
    sort: SortArg,
}

/// Which connections are meant.
#[derive(Debug, Default, Clone, clap::Args)]
struct Filter {
    /// Only connections in this state, such as established or close-wait; may be given several times
    #[arg(long, value_name = "STATE", value_parser = parse_state)]
    state: Vec<String>,

    /// Only those whose local address is 10.0.0.2, 10.0.0.0/8, [::1]:7, 10.0.0.2:7 or :7
    #[arg(long, value_name = "ADDRESS", value_parser = Place::from_str)]
    local: Option<Place>,

    /// Only those whose remote address is such a one
    #[arg(long, value_name = "ADDRESS", value_parser = Place::from_str)]
    remote: Option<Place>,

    /// Only those of this worker
    #[arg(long, value_name = "N")]
    worker: Option<usize>,
}

/// By what connections are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SortArg {
    /// The worker, and the place there
    Worker,
    /// The local address
    Local,
    /// The remote address
    Remote,
    /// The state
    State,
    /// Bytes received and not consumed
    Unread,
    /// Bytes sent and not gone
    Unsent,
    /// The round-trip time
    Rtt,
    /// The congestion window
    Window,
    /// Segments sent again
    Retransmitted,
}

/// Addresses: one, those with a prefix, or any; and a port, or any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    prefix: Option<(IpAddr, u8)>,
    port: Option<u16>,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || "write an address, a prefix or a port: 10.0.0.2, 10.0.0.0/8, [::1]:7, 10.0.0.2:7 or :7".to_owned();
        if let Some(port) = text.strip_prefix(':').and_then(|port| port.parse().ok()) {
            return Ok(Place { prefix: None, port: Some(port) });
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Place { prefix: Some(whole(address.ip())), port: Some(address.port()) });
        }
        let bare =
            |text: &str| text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().map_err(|_| wrong());
        let Some((address, length)) = text.split_once('/') else {
            return Ok(Place { prefix: Some(whole(bare(text)?)), port: None });
        };
        let (address, most) = whole(bare(address)?);
        let length = length.parse().ok().filter(|length| *length <= most).ok_or_else(wrong)?;
        Ok(Place { prefix: Some((address, length)), port: None })
    }
}

/// The prefix that is all of an address.
fn whole(address: IpAddr) -> (IpAddr, u8) {
    (address, if address.is_ipv4() { 32 } else { 128 })
}

impl Place {
    fn has(&self, address: SocketAddr) -> bool {
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
    fn passes(&self, connection: &Connection) -> bool {
        (self.state.is_empty() || self.state.contains(&connection.state))
            && self.local.is_none_or(|place| connection.local.is_some_and(|local| place.has(local)))
            && self.remote.is_none_or(|place| place.has(connection.remote))
    }
}

fn parse_state(text: &str) -> Result<String, String> {
    let names = ConnState::ALL.map(ConnState::name);
    let text = text.to_ascii_lowercase();
    if names.contains(&text.as_str()) { Ok(text) } else { Err(format!("the states are {}", names.join(", "))) }
}

impl SortArg {
    /// Which of two comes first.
    pub fn order(self, a: &Connection, b: &Connection) -> Ordering {
        let place = |of: &Connection| (of.worker, of.slot);
        let first = match self {
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
        first.then_with(|| place(a).cmp(&place(b)))
    }
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Report<'a> {
    pid: u32,
    program: &'a str,
    command: &'a str,
    /// Workers that did not answer.
    silent_workers: Vec<usize>,
    connections: Vec<Connection>,
}

/// Runs the command.
pub fn run(args: &ConnsArgs) -> Result<(), Error> {
    let mut process = inspect::find(&args.watch)?;
    let workers = process.about().workers;
    if let Some(worker) = args.filter.worker.filter(|worker| *worker >= workers) {
        return Err(Error::Usage(format!("--worker {worker}: there are {workers}, counted from 0")));
    }
    let (mut connections, silent) = collect(&mut process, &args.filter)?;
    connections.sort_by(|a, b| args.sort.order(a, b));
    let about = process.about();
    if args.json {
        let (program, command) = (about.program.as_str(), about.command.as_str());
        let report = Report { pid: about.pid, program, command, silent_workers: silent, connections };
        let json = serde_json::to_string(&report).expect("it is made of plain numbers and text");
        return print_line(json).map_err(Error::Output);
    }
    for worker in silent {
        tell(format_args!("worker {worker} did not answer within a second: its connections are not here"));
    }
    print_line(text(&connections)).map_err(Error::Output)
}

/// The connections that are meant, page by page, and the workers that did not answer.
fn collect(process: &mut Process, filter: &Filter) -> Asked<(Vec<Connection>, Vec<usize>)> {
    let (mut all, mut silent) = (Vec::new(), Vec::new());
    for worker in (0..process.about().workers).filter(|worker| filter.worker.is_none_or(|meant| meant == *worker)) {
        let mut next = Some(0);
        while let Some(from) = next {
            let page = process.connections(worker, from)?;
            if !page.up {
                silent.push(worker);
            }
            all.extend(page.connections.into_iter().filter(|connection| filter.passes(connection)));
            next = page.next;
        }
    }
    Ok((all, silent))
}

/// A line for each, and a second one with what TCP knows, as `ss -ti` has it.
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
        let known = known(connection);
        if !known.is_empty() {
            let _ = write!(text, "\n    {}", known.join("  "));
        }
    }
    text
}

/// What is known beside, each with its name and unit.
pub fn known(of: &Connection) -> Vec<String> {
    let number = |name: &str, value: Option<u64>| value.map(|value| format!("{name}:{value}"));
    let time = |name: &str, value: Option<f64>| value.map(|value| format!("{name}:{value}us"));
    let is = |name: &str, value: Option<bool>| value.filter(|value| *value).map(|_| name.to_owned());
    let rtt = of.rtt_us.zip(of.rtt_variation_us).map(|(rtt, variation)| format!("rtt:{rtt}/{variation}us"));
    [
        number("mss", of.mss_bytes.map(u64::from)),
        rtt,
        time("minrtt", of.min_rtt_us),
        time("rto", of.retransmission_time_out_us),
        number("cwnd", of.congestion_window_bytes),
        number("ssthresh", of.slow_start_threshold_bytes),
        number("snd_wnd", of.send_window_bytes),
        number("rcv_wnd", of.receive_window_bytes),
        number("in_flight", of.in_flight_bytes),
        number("retrans", of.retransmitted_segments),
        number("timeouts", of.time_outs.filter(|times| *times > 0).map(u64::from)),
        of.pacing_bytes_per_second.map(|rate| format!("pacing:{rate}B/s")),
        is("recovering", of.is_recovering),
        is("reordering", of.reorders),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests;
