//! Options and reports.
//!
//! With `--json` an end prints one object: the fields of [`Measured`] and the device.

use crate::perf::{self, AtomicKind, Kind, Outcome, Parameters, Test, Verb};
use hdrhistogram::Histogram;
use linerate::units::{parse_size, parse_size_or_none};
use linerate_load::report::Percentiles;
use serde::Serialize;
use std::fmt;
use std::net::IpAddr;

#[cfg(feature = "native")]
pub mod run;

/// Options of one end.
#[derive(Debug, clap::Args)]
pub struct PerfArgs {
    /// Operation that carries the messages
    #[arg(value_enum)]
    verb: VerbArg,

    /// Quantity to measure: round-trip latency or bandwidth
    #[arg(value_enum)]
    test: KindArg,

    /// Server to connect to. Without it this end is the server, serves one client, and takes the test parameters from
    /// the client
    host: Option<String>,

    /// RDMA device [default: the first]
    #[arg(short = 'd', long = "ib-dev", value_name = "DEV")]
    device: Option<String>,

    /// Port to listen on or to connect to
    #[arg(short, long, default_value_t = perf::LISTEN.port())]
    port: u16,

    /// Address that a server listens on [default: all]
    #[arg(long = "source_ip", value_name = "IP", conflicts_with = "host")]
    source: Option<IpAddr>,

    /// Atomic operation, chosen by the client (atomic) [default: FETCH_AND_ADD]
    #[arg(short = 'A', long = "atomic_type", value_name = "TYPE", value_enum, ignore_case = true)]
    atomic: Option<AtomicArg>,

    #[command(flatten)]
    client: ClientArgs,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Test parameters, which the client sends to the server.
#[derive(Debug, Default, PartialEq, clap::Args)]
struct ClientArgs {
    /// Message size in bytes, at most 8m [default: lat: 2, bw: 65536]
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size)]
    size: Option<usize>,

    /// Number of messages, at least 5 [default: 1000, write bw: 5000]
    #[arg(short = 'n', long = "iters", value_name = "N")]
    messages: Option<u64>,

    /// Outstanding work requests (bw) [default: 128]
    #[arg(short, long, value_name = "N")]
    tx_depth: Option<u16>,

    /// Posted receive buffers (send) [default: 512]
    #[arg(short, long, value_name = "N")]
    rx_depth: Option<u16>,

    /// Work requests per ibv_post_send call, at most 32 (bw) [default: 1]
    #[arg(short = 'l', long = "post_list", value_name = "N")]
    list: Option<u16>,

    /// Signal every Nth work request (bw) [default: 100 but at most -t; with -l: its value]
    #[arg(short = 'Q', long = "cq-mod", value_name = "N")]
    signal_every: Option<u16>,

    /// Send messages up to this size inline, within the limit of each device (send, write) [default: 0]
    #[arg(short = 'I', long = "inline_size", value_name = "BYTES", value_parser = parse_size_or_none)]
    inline: Option<usize>,

    /// Outstanding READ or atomic operations, within the limits of both devices (read, atomic) [default: as many as
    /// possible]
    #[arg(short, long = "outs", value_name = "N")]
    outs: Option<u8>,

    /// Send from both ends at the same time (bw)
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
    /// Returns the parameters of `test`, or an error that names an option of another test.
    fn parameters(&self, test: Test) -> Result<Parameters, String> {
        if self.atomic.is_some() && !matches!(test.verb, Verb::Atomic(_)) {
            return Err(format!("-A is for atomic: remove it from {test}"));
        }
        self.client.parameters(test)
    }
}

impl ClientArgs {
    /// Returns the parameters of `test`, with perftest's defaults for options not given.
    fn parameters(&self, test: Test) -> Result<Parameters, String> {
        let is_bandwidth = test.kind == Kind::Bandwidth;
        let is_atomic = matches!(test.verb, Verb::Atomic(_));
        for (is_given, applies, option, to) in [
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
                return Err(format!("{option} is for {to}: remove it from {test}"));
            }
        }
        let defaults = Parameters::new(test);
        let tx_depth = self.tx_depth.unwrap_or(defaults.tx_depth);
        let list = self.list.unwrap_or(defaults.list);
        let default_interval = if list > 1 { list } else { defaults.signal_every.min(tx_depth) };
        Ok(Parameters {
            test,
            size: self.size.map_or(defaults.size, |size| u32::try_from(size).unwrap_or(u32::MAX)),
            messages: self.messages.unwrap_or(defaults.messages),
            tx_depth,
            rx_depth: self.rx_depth.unwrap_or(defaults.rx_depth),
            list,
            signal_every: self.signal_every.unwrap_or(default_interval),
            inline: self.inline.map_or(defaults.inline, |bytes| u16::try_from(bytes).unwrap_or(u16::MAX)),
            reads: self.outs.unwrap_or(defaults.reads),
            bidirectional: self.bidirectional,
        })
    }
}

/// Results of one end. JSON: `{"verb":…,"test":…,"role":…,"size":…,"messages":…,"seconds":…}`, plus
/// `"rtt_us":{…},"half_us":{…}` for latency and `"bytes":…,"mb_per_s":…,"messages_per_s":…` for bandwidth. Fields that
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
    /// Messages sent by this end; messages received, for a server that only receives.
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
    /// Latency of SEND and WRITE: the peer returns a message.
    PingPong { rtt_us: Percentiles, half_us: Percentiles },
    /// Latency of READ and atomic operations: from request to completion.
    Trip { rtt_us: Percentiles },
    Bandwidth {
        bytes: u64,
        /// 10⁶ bytes per second.
        mb_per_s: f64,
        messages_per_s: f64,
    },
    /// The other end has the results.
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
        let label = format!("{verb} {test}");
        if let Figures::None {} = figures {
            return write!(f, "{label:<11} {role}: the client has the results");
        }
        let both = if *bidirectional { ", both directions" } else { "" };
        writeln!(f, "{label:<11} {role}: {messages} messages of {size} bytes in {seconds:.3} s{both}")?;
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
    use linerate::Device;
    use linerate_bypass::time::Duration;
    use linerate_process::WithContext;

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
        // One completion per posted list.
        assert_eq!(parameters("send bw -l 8").unwrap().signal_every, 8);
        assert_eq!(parameters("send bw -t 16").unwrap().signal_every, 16);
        assert_eq!(parameters("send bw").unwrap(), Parameters::new(Test { verb: Verb::Send, kind: Kind::Bandwidth }));
    }

    #[test]
    fn options_of_another_test_are_rejected() {
        for (text, option) in [
            ("send lat -t 4", "-t is for bw"),
            ("write lat -Q 4", "-Q is for bw"),
            ("read lat -l 4", "-l is for bw"),
            ("send lat -b", "-b is for bw"),
            ("write bw -r 4", "-r is for send"),
            ("read bw -I 4", "-I is for send and write"),
            ("send bw -o 4", "-o is for read and atomic"),
            ("atomic lat -s 8", "-s is for send, write and read"),
            ("atomic bw -I 8", "-I is for send and write"),
            ("write lat -A CMP_AND_SWP", "-A is for atomic"),
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
    fn latency_report_contains_half_rtt_where_perftest_does() {
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
    fn bandwidth_report_contains_bytes_and_messages() {
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
        assert!(passive.to_string().starts_with("write bw    server: the client has"), "{passive}");
        assert!(!passive.json().contains("_per_s"), "{}", passive.json());
    }
}
