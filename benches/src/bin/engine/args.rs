//! The command line.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueEnum};
use linerate_benches::client::echo::Acks;
use linerate_benches::client::messages::MAX_MESSAGE;
use linerate_benches::client::{MAX_SEGMENT, TIMESTAMPS};
use serde::Serialize;

/// What the TCP stack costs by itself: on the memory NIC, one thread, the server's side only
#[derive(Parser)]
pub struct Args {
    /// The TCP engine
    #[arg(long, value_enum, default_value_t = EngineName::Native)]
    pub engine: EngineName,

    /// What is done
    #[arg(long, value_enum, default_value_t = Mode::Echo)]
    pub mode: Mode,

    /// Connections, all open; used in turn (echo, stream), left alone (connect), or half of those measured (idle)
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub flows: u32,

    /// Bytes of a request [default: 64] or message [default: 16384]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=MAX_MESSAGE as i64))]
    size: Option<u32>,

    /// Operations to measure: echoes [default: 1000000], connections [default: 200000] or messages [default: 100000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    echoes: Option<u32>,

    /// Whether the client offers TCP timestamps
    #[arg(long, value_name = "on|off", value_enum, default_value_t = Switch::On)]
    timestamps: Switch,

    /// Let the server verify and compute checksums itself; otherwise the port claims to
    #[arg(long)]
    pub software_checksum: bool,

    /// Echo: whether an echo is acknowledged by the next request on its connection or by a segment of its own [default:
    /// with-request, but alone if the engine holds more packets that way than there usually are]
    #[arg(long, value_enum)]
    acks: Option<Acks>,

    /// Echo: the server reads requests and writes its answers, as services do that have answers of their own; otherwise it
    /// sends back the packets that have come
    #[arg(long)]
    pub write: bool,

    /// Stream without TSO and LRO: messages come and go in segments
    #[arg(long)]
    pub no_offload: bool,

    /// Connect: the server closes first, and so keeps its connections in TIME-WAIT; otherwise the client does
    #[arg(long)]
    pub server_closes: bool,

    /// Connect: the request comes on the segment that completes the handshake, not on one after it
    #[arg(long)]
    pub request_with_ack: bool,

    /// Echo: measure several numbers of connections in one run, and fail when more of them cost too much more
    #[arg(long, conflicts_with = "flows")]
    curve: bool,

    /// Let the curve go on to this many connections
    #[arg(long, value_name = "N", requires = "curve", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    up_to: Option<u32>,

    /// Measure in so many parts, and print the median of them
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A TCP engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineName {
    /// Zero-copy TCP of this project's own
    Native,
    /// smoltcp's sockets
    Smoltcp,
}

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Requests of one segment on connections that stay open
    Echo,
    /// Connections opened for one request and closed
    Connect,
    /// Messages of many segments
    Stream,
    /// Memory of connections that are silent
    Idle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// A number of connections, and how much more an operation may cost there than at the first such number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flows {
    /// Connections.
    pub flows: usize,
    /// The largest ratio, if there is one.
    pub limit: Option<f64>,
}

/// Connections that may all hold a packet without the pools being any larger for it.
const HOLDING: usize = 4096;

impl EngineName {
    /// Whether it holds the packet that an echo was received in until the echo is acknowledged.
    fn holds_packets(self) -> bool {
        self == EngineName::Native
    }

    /// The points of the curve, with the limits that the project has set.
    fn curve(self) -> [Flows; 3] {
        let points = match self {
            EngineName::Native => [(1_000, None), (100_000, Some(3.0)), (1_000_000, Some(5.0))],
            EngineName::Smoltcp => [(100, None), (1_000, None), (10_000, Some(5.0))],
        };
        points.map(|(flows, limit)| Flows { flows, limit })
    }
}

impl Args {
    /// The command line. What does not go together ends the program as any other wrong argument does.
    pub fn parse_checked() -> Self {
        let args = Args::parse();
        if let Err(message) = args.check() {
            Args::command().error(ErrorKind::ArgumentConflict, message).exit();
        }
        args
    }

    fn check(&self) -> Result<(), String> {
        let most = MAX_SEGMENT - if self.timestamps() { TIMESTAMPS } else { 0 };
        if self.mode != Mode::Stream && self.size() > most {
            return Err(format!("a request has to fit in one segment: --size is {most} at most"));
        }
        if !self.no_offload && self.software_checksum && self.mode == Mode::Stream {
            return Err(
                "no port cuts segments that computes no checksums: --software-checksum needs --no-offload".into()
            );
        }
        let only = [
            (self.curve, Mode::Echo, "--curve"),
            (self.acks.is_some(), Mode::Echo, "--acks"),
            (self.write, Mode::Echo, "--write"),
            (self.no_offload, Mode::Stream, "--no-offload"),
            (self.server_closes, Mode::Connect, "--server-closes"),
            (self.request_with_ack, Mode::Connect, "--request-with-ack"),
        ];
        match only.iter().find(|(given, mode, _)| *given && *mode != self.mode) {
            Some((_, mode, option)) => Err(format!("{option} is for --mode {}", format!("{mode:?}").to_lowercase())),
            None if self.software_checksum && self.mode == Mode::Idle => {
                Err("--software-checksum makes no difference to --mode idle".into())
            }
            None => Ok(()),
        }
    }

    /// Bytes of a request or message.
    pub fn size(&self) -> usize {
        let usual = if self.mode == Mode::Stream { 16 << 10 } else { 64 };
        self.size.unwrap_or(usual) as usize
    }

    /// Operations to measure.
    pub fn operations(&self) -> usize {
        let usual = match self.mode {
            Mode::Echo | Mode::Idle => 1_000_000,
            Mode::Connect => 200_000,
            Mode::Stream => 100_000,
        };
        self.echoes.unwrap_or(usual) as usize
    }

    /// Whether the client offers time stamps.
    pub fn timestamps(&self) -> bool {
        self.timestamps == Switch::On
    }

    /// How echoes are acknowledged; the same for all numbers of connections.
    pub fn acks(&self) -> Acks {
        let most = self.points().iter().map(|point| point.flows).max();
        let usual = match self.engine.holds_packets() && most > Some(HOLDING) {
            true => Acks::Alone,
            false => Acks::WithRequest,
        };
        self.acks.unwrap_or(usual)
    }

    /// The numbers of connections to measure.
    pub fn points(&self) -> Vec<Flows> {
        if !self.curve {
            return vec![Flows { flows: self.flows as usize, limit: None }];
        }
        let more = self.up_to.map(|flows| Flows { flows: flows as usize, limit: None });
        self.engine.curve().into_iter().chain(more).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str) -> Result<(), String> {
        Args::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?.check()
    }

    #[test]
    fn echoes_that_wait_for_the_next_request_do_not_outnumber_the_packets() {
        let acks = |line: &str| Args::try_parse_from(line.split(' ')).unwrap().acks();
        assert_eq!(acks("engine --engine native"), Acks::WithRequest);
        assert_eq!(acks("engine --engine native --flows 4097"), Acks::Alone);
        assert_eq!(acks("engine --engine native --curve"), Acks::Alone);
        assert_eq!(acks("engine --engine native --curve --acks with-request"), Acks::WithRequest);
        assert_eq!(acks("engine --engine smoltcp --curve"), Acks::WithRequest);
    }

    #[test]
    fn what_makes_no_sense_together_is_refused() {
        check("engine").unwrap();
        check("engine --mode stream --size 65000 --no-offload --software-checksum").unwrap();
        check("engine --size 1460 --timestamps off").unwrap();
        assert!(check("engine --size 1449").unwrap_err().contains("1448 at most"));
        assert!(check("engine --mode stream --software-checksum").unwrap_err().contains("--no-offload"));
        assert!(check("engine --mode connect --curve").unwrap_err().contains("--mode echo"));
        assert!(check("engine --mode idle --acks alone").unwrap_err().contains("--mode echo"));
        assert!(check("engine --server-closes").unwrap_err().contains("--mode connect"));
    }
}
