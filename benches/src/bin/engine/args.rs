//! Command line.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueEnum};
use linerate_benches::client::echo::Acks;
use linerate_benches::client::messages::MAX_MESSAGE;
use linerate_benches::client::{MAX_DATAGRAM, MAX_SEGMENT, TIMESTAMPS};
use linerate_benches::engine::PairOptions;
#[cfg(feature = "fast-path-switches")]
use linerate_stack::{FastPath, FastPaths};
use serde::Serialize;

/// Measure the server side of the TCP stack alone: on the memory NIC, with one thread
#[derive(Parser)]
pub struct Args {
    /// TCP engine
    #[arg(long, value_enum, default_value_t = EngineName::Native)]
    pub engine: EngineName,

    /// Kind of work
    #[arg(long, value_enum, default_value_t = Mode::Echo)]
    pub mode: Mode,

    /// Open connections: used in turn (echo, load, tls, roce, stream), idle (connect), or half of those measured
    /// (idle); ports of the client, used in turn (datagram)
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub flows: u32,

    /// Size of a request [default: 64] or message [default: 16384]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=MAX_MESSAGE as i64))]
    size: Option<u32>,

    /// Operations to measure: echoes and datagrams [default: 1000000], connections [default: 200000] or messages
    /// [default: 100000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    echoes: Option<u32>,

    /// Offer TCP timestamps
    #[arg(long, value_name = "on|off", value_enum, default_value_t = Switch::On)]
    timestamps: Switch,

    /// Compute and verify checksums in the server; by default the port does
    #[arg(long)]
    pub software_checksum: bool,

    /// Echo: acknowledge an echo with the next request on its connection, or with a separate segment [default:
    /// with-request, but alone if the engine would hold more packets than usual]
    #[arg(long, value_enum)]
    acks: Option<Acks>,

    /// Echo: way in which the server sends requests back
    #[arg(long, value_enum, default_value_t = EchoBy::Forward)]
    pub service: EchoBy,

    /// Stream without TSO and LRO: messages consist of separate segments
    #[arg(long)]
    pub no_offload: bool,

    /// Disable one fast path of the native engine
    #[cfg(feature = "fast-path-switches")]
    #[arg(long, value_name = "NAME", value_parser = parse_fast_path)]
    without_fast_path: Option<FastPath>,

    /// Echo: measure several numbers of connections in one run, and fail if the cost grows too much
    #[arg(long, conflicts_with = "flows")]
    curve: bool,

    /// Tls: measure with and without a flood of ClientHellos in one run, and fail if the cost grows too much
    #[arg(long)]
    pub flood: bool,

    /// Number of rounds; the median is printed
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// TCP engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineName {
    /// Zero-copy TCP of this project
    Native,
    /// Sockets of smoltcp
    Smoltcp,
}

/// Kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Requests of one segment on open connections
    Echo,
    /// Connections opened for one request and closed
    Connect,
    /// Messages of many segments
    Stream,
    /// Requests of one datagram of UDP
    Datagram,
    /// Requests of one segment, measured at the load
    Load,
    /// Requests of one segment with TLS
    Tls,
    /// Messages on queue pairs of RoCEv2 in software
    Roce,
    /// Memory of idle connections
    Idle,
}

/// Way of the server to send requests back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EchoBy {
    /// Callbacks that forward the received packets
    Forward,
    /// Callbacks that read requests and write answers
    Write,
    /// Tasks that forward the received packets
    AsyncForward,
    /// Tasks that copy requests through a buffer, by the traits of tokio
    AsyncCopy,
}

/// Parses the name of a fast path, as in its definition.
#[cfg(feature = "fast-path-switches")]
fn parse_fast_path(name: &str) -> Result<FastPath, String> {
    let paths = || FastPath::EACH.iter().copied();
    let names = || paths().map(|path| format!("{path:?}")).collect::<Vec<_>>().join(", ");
    paths().find(|path| format!("{path:?}") == name).ok_or_else(|| format!("the fast paths are {}", names()))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// Number of connections, and the permitted cost ratio to the first such number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flows {
    /// Connections.
    pub flows: usize,
    /// Maximum ratio, if limited.
    pub limit: Option<f64>,
}

/// Connections that may each hold a packet with pools of the usual size.
const HOLDING: usize = 4096;

impl EngineName {
    /// Returns true if the engine holds the packet of an echo until it is acknowledged.
    fn holds_packets(self) -> bool {
        self == EngineName::Native
    }

    /// Returns the points of the curve with the project's limits.
    fn curve(self) -> [Flows; 3] {
        let points = match self {
            EngineName::Native => [(1_000, None), (100_000, Some(3.0)), (1_000_000, Some(5.0))],
            EngineName::Smoltcp => [(100, None), (1_000, None), (10_000, Some(5.0))],
        };
        points.map(|(flows, limit)| Flows { flows, limit })
    }
}

impl Args {
    /// Parses the command line. Invalid combinations exit as other invalid arguments do.
    pub fn parse_checked() -> Self {
        let args = Args::parse();
        if let Err(message) = args.check() {
            Args::command().error(ErrorKind::ArgumentConflict, message).exit();
        }
        args
    }

    fn check(&self) -> Result<(), String> {
        let most = match self.mode {
            Mode::Datagram => MAX_DATAGRAM,
            // A record has 22 bytes of its own.
            Mode::Tls => MAX_SEGMENT - TIMESTAMPS - 22,
            _ => MAX_SEGMENT - if self.options().timestamps { TIMESTAMPS } else { 0 },
        };
        if self.mode != Mode::Stream && self.size() > most {
            return Err(format!("a request must fit into one segment or datagram: --size is {most} at most"));
        }
        if !self.no_offload && self.software_checksum && self.mode == Mode::Stream {
            return Err("TSO requires checksum offload: --software-checksum needs --no-offload".into());
        }
        let only = [
            (self.curve, Mode::Echo, "--curve"),
            (self.acks.is_some(), Mode::Echo, "--acks"),
            (self.service != EchoBy::Forward, Mode::Echo, "--service"),
            (self.no_offload, Mode::Stream, "--no-offload"),
            (self.flood, Mode::Tls, "--flood"),
        ];
        match only.iter().find(|(given, mode, _)| *given && *mode != self.mode) {
            Some((_, mode, option)) => Err(format!("{option} is for --mode {}", format!("{mode:?}").to_lowercase())),
            None if self.software_checksum && self.mode == Mode::Idle => {
                Err("--software-checksum has no effect with --mode idle".into())
            }
            None => Ok(()),
        }
    }

    /// Returns the size of a request or message in bytes.
    pub fn size(&self) -> usize {
        let usual = if self.mode == Mode::Stream { 16 << 10 } else { 64 };
        self.size.unwrap_or(usual) as usize
    }

    /// Returns the number of operations to measure.
    pub fn operations(&self) -> usize {
        let usual = match self.mode {
            Mode::Echo | Mode::Datagram | Mode::Load | Mode::Tls | Mode::Roce | Mode::Idle => 1_000_000,
            Mode::Connect => 200_000,
            Mode::Stream => 100_000,
        };
        self.echoes.unwrap_or(usual) as usize
    }

    /// Returns the options of the two ends.
    pub fn options(&self) -> PairOptions {
        PairOptions {
            timestamps: self.timestamps == Switch::On,
            software_checksum: self.software_checksum,
            #[cfg(feature = "fast-path-switches")]
            fast_paths: self.without_fast_path.map_or(FastPaths::ALL, |path| FastPaths::ALL.without(path)),
        }
    }

    /// Returns the acknowledgement mode of echoes, the same for all numbers of connections.
    pub fn acks(&self) -> Acks {
        let most = self.points().iter().map(|point| point.flows).max();
        let usual = match self.engine.holds_packets() && most > Some(HOLDING) {
            true => Acks::Alone,
            false => Acks::WithRequest,
        };
        self.acks.unwrap_or(usual)
    }

    /// Returns the numbers of connections to measure.
    pub fn points(&self) -> Vec<Flows> {
        if !self.curve {
            let first = Flows { flows: self.flows as usize, limit: None };
            // During a flood, other clients keep 80 % of their rate.
            return [first, Flows { limit: Some(1.25), ..first }][..if self.flood { 2 } else { 1 }].to_vec();
        }
        self.engine.curve().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str) -> Result<(), String> {
        Args::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?.check()
    }

    #[test]
    fn default_acks_do_not_exceed_the_packets() {
        let acks = |line: &str| Args::try_parse_from(line.split(' ')).unwrap().acks();
        assert_eq!(acks("engine --engine native"), Acks::WithRequest);
        assert_eq!(acks("engine --engine native --flows 4097"), Acks::Alone);
        assert_eq!(acks("engine --engine native --curve"), Acks::Alone);
        assert_eq!(acks("engine --engine native --curve --acks with-request"), Acks::WithRequest);
        assert_eq!(acks("engine --engine smoltcp --curve"), Acks::WithRequest);
    }

    #[test]
    fn contradictory_options_are_refused() {
        check("engine").unwrap();
        check("engine --mode stream --size 65000 --no-offload --software-checksum").unwrap();
        check("engine --size 1460 --timestamps off").unwrap();
        check("engine --mode datagram --size 1472").unwrap();
        assert!(check("engine --mode datagram --size 1473").unwrap_err().contains("1472 at most"));
        assert!(check("engine --size 1449").unwrap_err().contains("1448 at most"));
        assert!(check("engine --mode stream --software-checksum").unwrap_err().contains("--no-offload"));
        assert!(check("engine --mode connect --curve").unwrap_err().contains("--mode echo"));
        assert!(check("engine --mode idle --acks alone").unwrap_err().contains("--mode echo"));
        assert!(check("engine --no-offload").unwrap_err().contains("--mode stream"));
    }
}
