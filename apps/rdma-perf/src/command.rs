//! `linerate rdma perf`: verbs benchmark with the options of perftest.
//!
//! With `--json`, an end prints one object: the fields of [`Measured`] and the device.

use super::RdmaError;
use hdrhistogram::Histogram;
use linerate_bypass::time::Clock;
use linerate_load::report::Percentiles;
use linerate_net::process::output::{eprint_line, print_line};
use linerate_net::process::signals;
use linerate_net::units::{parse_size, parse_size_or_none};
use linerate_net::{Device, WithContext};
use linerate_rdma::calls::Calls;
use linerate_rdma::native::{Error as Absent, Native};
use linerate_rdma::perf::{self, AtomicKind, End, Kind, Outcome, Parameters, PerfError, Test, Verb};
use serde::Serialize;
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Initial upper bound of the histogram in nanoseconds. It grows if exceeded.
const INITIAL_MAX_NANOS: u64 = 10_000_000_000;

/// Arguments of `linerate rdma perf`.
#[derive(Debug, clap::Args)]
pub struct PerfArgs {
    /// Operation
    #[arg(value_enum)]
    verb: VerbArg,

    /// Measure latency (lat) or bandwidth (bw)
    #[arg(value_enum)]
    test: KindArg,

    /// Server to connect to. Without it, this end is the server for one client, which sets the parameters
    host: Option<String>,

    /// Device [default: the first one]
    #[arg(short = 'd', long = "ib-dev", value_name = "DEV")]
    device: Option<String>,

    /// TCP port for the exchange of parameters
    #[arg(short, long, default_value_t = perf::LISTEN.port())]
    port: u16,

    /// Listening address of a server [default: all addresses]
    #[arg(long = "source_ip", value_name = "IP", conflicts_with = "host")]
    source: Option<IpAddr>,

    /// Atomic operation, set by the client (atomic) [default: FETCH_AND_ADD]
    #[arg(short = 'A', long = "atomic_type", value_name = "TYPE", value_enum, ignore_case = true)]
    atomic: Option<AtomicArg>,

    #[command(flatten)]
    parameters: ParameterArgs,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Parameters that the client sets for both ends.
#[derive(Debug, Default, PartialEq, clap::Args)]
struct ParameterArgs {
    /// Message size in bytes, at most 8m [default: lat: 2, bw: 65536]
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size)]
    size: Option<usize>,

    /// Number of messages, at least 5 [default: 1000; write bw: 5000]
    #[arg(short = 'n', long = "iters", value_name = "N")]
    messages: Option<u64>,

    /// Requests in flight (bw) [default: 128]
    #[arg(short, long, value_name = "N")]
    tx_depth: Option<u16>,

    /// Posted receive buffers (send) [default: 512]
    #[arg(short, long, value_name = "N")]
    rx_depth: Option<u16>,

    /// Requests per post call, at most 32 (bw) [default: 1]
    #[arg(short = 'l', long = "post_list", value_name = "N")]
    list: Option<u16>,

    /// Signal a completion every N requests (bw) [default: 100, at most -t; with -l the list length]
    #[arg(short = 'Q', long = "cq-mod", value_name = "N")]
    signal_every: Option<u16>,

    /// Send messages of up to this size inline, as far as both ends can (send, write) [default: 0]
    #[arg(short = 'I', long = "inline_size", value_name = "BYTES", value_parser = parse_size_or_none)]
    inline: Option<usize>,

    /// Outstanding READs or atomic operations at the responder (read, atomic) [default: the maximum of both ends]
    #[arg(short, long = "outs", value_name = "N")]
    outs: Option<u8>,

    /// Measure both directions at once (bw)
    #[arg(short, long)]
    bidirectional: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum VerbArg {
    Send,
    Write,
    Read,
    Atomic,
}

#[derive(Debug, Clone, Copy, PartialEq, clap::ValueEnum)]
enum AtomicArg {
    #[value(name = "FETCH_AND_ADD")]
    FetchAdd,
    #[value(name = "CMP_AND_SWP")]
    CompareSwap,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum KindArg {
    Lat,
    Bw,
}

impl PerfArgs {
    fn test(&self) -> Test {
        let verb = match self.verb {
            VerbArg::Send => Verb::Send,
            VerbArg::Write => Verb::Write,
            VerbArg::Read => Verb::Read,
            VerbArg::Atomic => Verb::Atomic(match self.atomic {
                Some(AtomicArg::CompareSwap) => AtomicKind::CompareSwap,
                Some(AtomicArg::FetchAdd) | None => AtomicKind::FetchAdd,
            }),
        };
        let kind = match self.test {
            KindArg::Lat => Kind::Latency,
            KindArg::Bw => Kind::Bandwidth,
        };
        Test { verb, kind }
    }
}

impl PerfArgs {
    /// Returns the parameters for `test`, or an error for an option that does not apply to it.
    fn parameters(&self, test: Test) -> Result<Parameters, String> {
        if self.atomic.is_some() && !matches!(test.verb, Verb::Atomic(_)) {
            return Err(format!("-A applies to atomic only: leave it out of {test}"));
        }
        self.parameters.parameters(test)
    }
}

impl ParameterArgs {
    /// Returns the parameters for `test`, with the defaults of perftest, or an error for an option that does not apply
    /// to it.
    fn parameters(&self, test: Test) -> Result<Parameters, String> {
        let is_bandwidth = test.kind == Kind::Bandwidth;
        let is_atomic = matches!(test.verb, Verb::Atomic(_));
        for (is_given, applies, option, tests) in [
            (self.tx_depth.is_some(), is_bandwidth, "-t", "bw"),
            (self.list.is_some(), is_bandwidth, "-l", "bw"),
            (self.signal_every.is_some(), is_bandwidth, "-Q", "bw"),
            (self.bidirectional, is_bandwidth, "-b", "bw"),
            (self.rx_depth.is_some(), test.verb == Verb::Send, "-r", "send"),
            (self.inline.is_some(), matches!(test.verb, Verb::Send | Verb::Write), "-I", "send and write"),
            (self.outs.is_some(), test.verb == Verb::Read || is_atomic, "-o", "read and atomic"),
            (self.size.is_some(), !is_atomic, "-s", "send, write and read"),
        ] {
            if is_given && !applies {
                return Err(format!("{option} applies to {tests} only: leave it out of {test}"));
            }
        }
        let defaults = Parameters::new(test);
        let tx_depth = self.tx_depth.unwrap_or(defaults.tx_depth);
        let list = self.list.unwrap_or(defaults.list);
        let default_signal = if list > 1 { list } else { defaults.signal_every.min(tx_depth) };
        Ok(Parameters {
            test,
            size: self.size.map_or(defaults.size, |size| u32::try_from(size).unwrap_or(u32::MAX)),
            messages: self.messages.unwrap_or(defaults.messages),
            tx_depth,
            rx_depth: self.rx_depth.unwrap_or(defaults.rx_depth),
            list,
            signal_every: self.signal_every.unwrap_or(default_signal),
            inline: self.inline.map_or(defaults.inline, |bytes| u16::try_from(bytes).unwrap_or(u16::MAX)),
            reads: self.outs.unwrap_or(defaults.reads),
            bidirectional: self.bidirectional,
        })
    }
}

/// Runs `linerate rdma perf`.
pub fn run(args: &PerfArgs) -> Result<(), RdmaError> {
    let test = args.test();
    let parameters = args.parameters(test).map_err(RdmaError::Usage)?;
    let remote = args.host.as_deref().map(|host| resolve(host, args.port)).transpose()?;
    let stop = signals::stop_flag().map_err(RdmaError::Signals)?;
    let name = match &args.device {
        Some(name) => name.clone(),
        None => Native::devices()?.into_iter().next().ok_or(Absent::NoDevices)?,
    };
    let native = Arc::new(Native::open(&name)?);
    let device = Device { name: name.clone(), emulated_by: native.emulated_by().map(str::to_owned) };
    let failed = |error| RdmaError::Perf { device: name.clone(), test, error };
    let end = match remote {
        Some(remote) => End::client(&native, parameters, remote).map_err(failed)?,
        None => {
            if args.parameters != ParameterArgs::default() || args.atomic.is_some() {
                tracing::warn!("parameters ignored: the client sets them");
            }
            let listen = SocketAddr::new(args.source.unwrap_or(perf::LISTEN.ip()), args.port);
            let end = End::server(&native, test, listen).map_err(failed)?;
            eprint_line(format_args!("ready rdma perf {test} on {listen} via {name}"));
            end
        }
    };
    let mut nanos = Histogram::new_with_max(INITIAL_MAX_NANOS, 3).expect("the bounds are valid");
    nanos.auto(true);
    let is_over = || stop.load(Ordering::Relaxed);
    let trip = |time: linerate_bypass::time::Duration| {
        nanos.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    };
    let outcome = match end.run(&Clock::start(), is_over, trip) {
        // A server without a client has nothing to report.
        Err(PerfError::Interrupted(0)) if remote.is_none() => return Ok(()),
        result => result.map_err(failed)?,
    };
    let measured = WithContext { result: Measured::of(&outcome, &nanos), context: device.into() };
    let printed = if args.json { print_line(measured.json()) } else { print_line(measured) };
    Ok(printed?)
}

/// Resolves a host name to its first address.
fn resolve(host: &str, port: u16) -> Result<SocketAddr, RdmaError> {
    let found = (host, port).to_socket_addrs().map(|mut found| found.next());
    match found {
        Ok(Some(address)) => Ok(address),
        Ok(None) => Err(RdmaError::Usage(format!("{host} has no address"))),
        Err(error) => Err(RdmaError::Usage(format!("{host}: {error}"))),
    }
}

/// Result of one end. As JSON: `{"verb":…,"test":…,"role":…,"size":…,"messages":…,"seconds":…}` with
/// `"rtt_us":{…},"half_us":{…}` for latency or `"bytes":…,"mb_per_s":…,"messages_per_s":…` for bandwidth. Values that
/// this end did not measure are absent.
#[derive(Debug, Serialize)]
struct Measured {
    /// `send`, `write`, `read` or `atomic`.
    verb: String,
    /// `lat` or `bw`.
    test: String,
    /// `client` or `server`.
    role: &'static str,
    /// Message size in bytes.
    size: u32,
    /// Messages sent by this end, or received by a server that sent none.
    messages: u64,
    bidirectional: bool,
    /// Duration of the test.
    seconds: f64,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Figures {
    /// Round trip of a message and its reply.
    PingPong { rtt_us: Percentiles, half_us: Percentiles },
    /// Time until completion.
    Trip { rtt_us: Percentiles },
    Bandwidth {
        bytes: u64,
        /// 10⁶ bytes per second.
        mb_per_s: f64,
        messages_per_s: f64,
    },
    /// Measured by the other end.
    None {},
}

impl Measured {
    fn of(outcome: &Outcome, nanos: &Histogram<u64>) -> Measured {
        let Outcome { parameters, is_client, messages, elapsed } = *outcome;
        let (test, seconds) = (parameters.test, elapsed.as_secs_f64());
        let rtt_us = Percentiles::of_nanos(nanos);
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let bytes = messages.saturating_mul(parameters.size.into());
        let figures = match test.kind {
            _ if messages == 0 => Figures::None {},
            Kind::Latency if matches!(test.verb, Verb::Read | Verb::Atomic(_)) => Figures::Trip { rtt_us },
            Kind::Latency => Figures::PingPong { rtt_us, half_us: rtt_us.half() },
            Kind::Bandwidth => {
                let (mb_per_s, messages_per_s) = (per_second(bytes) / 1e6, per_second(messages));
                Figures::Bandwidth { bytes, mb_per_s, messages_per_s }
            }
        };
        let name = test.to_string();
        let (verb, kind) = name.split_once(' ').unwrap_or((&name, ""));
        Measured {
            verb: verb.to_owned(),
            test: kind.to_owned(),
            role: if is_client { "client" } else { "server" },
            size: parameters.size,
            messages,
            bidirectional: parameters.bidirectional,
            seconds,
            figures,
        }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured { verb, test, role, size, messages, bidirectional, seconds, figures } = self;
        let what = format!("{verb} {test}");
        if let Figures::None {} = figures {
            return write!(f, "{what:<11} {role}: see the client for results");
        }
        let both = if *bidirectional { ", both directions" } else { "" };
        writeln!(f, "{what:<11} {role}: {messages} messages of {size} bytes in {seconds:.3} s{both}")?;
        match figures {
            Figures::PingPong { rtt_us, half_us } => {
                writeln!(f, "RTT in µs  {}", Percentiles::HEAD)?;
                write!(f, "           {rtt_us}\nhalf       {half_us}")
            }
            Figures::Trip { rtt_us } => write!(f, "RTT in µs  {}\n           {rtt_us}", Percentiles::HEAD),
            Figures::Bandwidth { mb_per_s, messages_per_s, .. } => {
                write!(f, "MB/s        {mb_per_s:>12.2}\nmessages/s  {messages_per_s:>12.0}")
            }
            Figures::None {} => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use linerate_bypass::time::Duration;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        perf: PerfArgs,
    }

    fn parse(text: &str) -> PerfArgs {
        Cli::try_parse_from(std::iter::once("perf").chain(text.split_whitespace())).unwrap().perf
    }

    fn parameters(text: &str) -> Result<Parameters, String> {
        let args = parse(text);
        args.parameters(args.test())
    }

    #[test]
    fn options_match_perftest() {
        let parsed = parameters("write bw -d mlx5_0 -p 7 -s 4k -n 77 -t 64 -l 16 -Q 32 -I 60 -b 10.0.0.1").unwrap();
        let test = Test { verb: Verb::Write, kind: Kind::Bandwidth };
        let expected = Parameters {
            size: 4096,
            messages: 77,
            tx_depth: 64,
            list: 16,
            signal_every: 32,
            inline: 60,
            bidirectional: true,
            ..Parameters::new(test)
        };
        assert_eq!(parsed, expected);
        let long = "write bw --ib-dev mlx5_0 --port 7 --size 4k --iters 77 --tx-depth 64 --post_list 16 --cq-mod 32 \
                    --inline_size 60 --bidirectional 10.0.0.1";
        assert_eq!(parameters(long).unwrap(), expected);
        let read = parameters("read lat --outs 4 host").unwrap();
        assert_eq!((read.reads, read.size, read.signal_every), (4, 2, 1));
        let send = parameters("send lat -r 64").unwrap();
        assert_eq!((send.rx_depth, send.messages, send.tx_depth), (64, 1000, 50));
        let atomic = parameters("atomic bw -A cmp_and_swp -o 3 host").unwrap();
        assert_eq!((atomic.reads, atomic.size), (3, 8));
        assert_eq!(atomic.test.verb, Verb::Atomic(AtomicKind::CompareSwap));
        assert_eq!(parse("atomic lat").test().verb, Verb::Atomic(AtomicKind::FetchAdd));
        // A list is signalled once.
        assert_eq!(parameters("send bw -l 8").unwrap().signal_every, 8);
        assert_eq!(parameters("send bw -t 16").unwrap().signal_every, 16);
        assert_eq!(parameters("send bw").unwrap(), Parameters::new(Test { verb: Verb::Send, kind: Kind::Bandwidth }));
    }

    #[test]
    fn inapplicable_option_is_refused() {
        for (text, option) in [
            ("send lat -t 4", "-t applies to bw only"),
            ("write lat -Q 4", "-Q applies to bw only"),
            ("read lat -l 4", "-l applies to bw only"),
            ("send lat -b", "-b applies to bw only"),
            ("write bw -r 4", "-r applies to send only"),
            ("read bw -I 4", "-I applies to send and write only"),
            ("send bw -o 4", "-o applies to read and atomic only"),
            ("atomic lat -s 8", "-s applies to send, write and read only"),
            ("atomic bw -I 8", "-I applies to send and write only"),
            ("write lat -A CMP_AND_SWP", "-A applies to atomic only"),
        ] {
            let error = parameters(text).unwrap_err();
            assert!(error.contains(option), "{text}: {error}");
        }
    }

    fn measured(text: &str, is_client: bool, messages: u64) -> WithContext<Measured> {
        let mut nanos = Histogram::new(3).unwrap();
        nanos.record_n(8_000, messages.max(1)).unwrap();
        let outcome =
            Outcome { parameters: parameters(text).unwrap(), is_client, messages, elapsed: Duration::from_secs(2) };
        let device = Device { name: "rxe0".into(), emulated_by: Some("rxe".into()) };
        WithContext { result: Measured::of(&outcome, &nanos), context: device.into() }
    }

    #[test]
    fn ping_pong_latency_includes_half_of_the_rtt() {
        let send = measured("send lat -s 64", true, 1000);
        let json: serde_json::Value = serde_json::from_str(&send.json()).unwrap();
        assert_eq!((&json["verb"], &json["test"], &json["role"]), (&"send".into(), &"lat".into(), &"client".into()));
        let (rtt, half) = (json["rtt_us"]["p99"].as_f64().unwrap(), json["half_us"]["p99"].as_f64().unwrap());
        assert!((rtt - 8.0).abs() < 0.01 && half == rtt / 2.0, "{json}");
        assert_eq!((&json["device"]["emulated_by"], &json["size"]), (&"rxe".into(), &64.into()));
        let text = send.to_string();
        assert!(text.starts_with("send lat    client: 1000 messages of 64 bytes in 2.000 s\nRTT in µs"), "{text}");
        assert!(
            text.ends_with("\ndevice      rxe0, emulated in software by rxe") && text.contains("\nhalf "),
            "{text}"
        );
        let read = measured("read lat", true, 1000);
        assert!(read.json().contains("rtt_us") && !read.json().contains("half"), "{}", read.json());
    }

    #[test]
    fn bandwidth_is_in_bytes_and_messages_per_second() {
        let both = measured("write bw -b -s 1000", false, 4_000_000);
        let json: serde_json::Value = serde_json::from_str(&both.json()).unwrap();
        assert_eq!(
            (&json["mb_per_s"], &json["messages_per_s"], &json["bytes"]),
            (&2000.0.into(), &2_000_000.0.into(), &4_000_000_000_u64.into())
        );
        assert!(
            both.to_string().contains("in 2.000 s, both directions\nMB/s             2000.00\nmessages/s"),
            "{both}"
        );
        let passive = measured("write bw", false, 0);
        assert!(passive.to_string().starts_with("write bw    server: see the client"), "{passive}");
        assert!(!passive.json().contains("_per_s"), "{}", passive.json());
    }
}
