//! Rates and round trips of loads over virtio-user and memif, each relative to another one.
#![forbid(unsafe_code)]

use clap::Parser;
use linerate_benches::distance::Cores;
use linerate_benches::external::{linerate, testpmd};
use linerate_benches::paired::{self, Bound, Figures, Measure, Paired, PairedArgs};
use linerate_benches::priority::raise_priority;
use linerate_benches::report::finish;
use linerate_harness::process::{Ended, PATIENCE, Process};
use linerate_harness::{Error, interrupt};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Compare loads over virtio-user and memif with each other, and with the capacity of the link
///
/// The server has one core and the load another. The two figures of a comparison are measured after each other in every
/// round, at one distance of the cores. Needs 1200 hugepages; linerate must be beside this program.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    paired: PairedArgs,
}

/// Results of all rounds.
#[derive(Serialize)]
struct Report(paired::Report);

fn main() -> ExitCode {
    let args = Args::parse();
    finish("links", measure(&args), args.paired.json, |Report(report)| report.is_met())
}

fn measure(args: &Args) -> Result<Report, Error> {
    let failed = |error| Error::Start { program: "links".to_owned(), error };
    interrupt::on_signals().map_err(failed)?;
    let scratch = tempfile::tempdir().map_err(failed)?;
    let pair = Pair {
        linerate: linerate()?,
        scratch: scratch.path(),
        cores: args.paired.cores,
        duration: args.paired.duration(),
    };
    let _first = raise_priority();
    Ok(Report(paired::measure(&comparisons(&pair, args.paired.bounces()), &args.paired)?))
}

/// Link between the two processes.
#[derive(Debug, Clone, Copy)]
enum Link {
    Virtio,
    Memif,
}

/// Maximum ratio of lost datagrams to replies.
const MAX_LOSS: f64 = 1e-3;

/// Server and load that are measured.
#[derive(Debug, Clone, Copy)]
struct Work {
    link: Link,
    service: &'static str,
    serve: &'static str,
    load: &'static str,
}

/// Echo of 64 bytes on 64 connections over virtio-user.
const MANY: Work = Work { link: Link::Virtio, service: "echo", serve: "", load: "--connections 64" };

const fn echo(load: &'static str) -> Work {
    Work { load, ..MANY }
}

/// Service without a protocol stack.
const RAW: &str = "raw";

const ONE: Work = echo("--connections 1");

const fn memif(work: Work) -> Work {
    Work { link: Link::Memif, ..work }
}

/// Returns all comparisons.
fn comparisons<'a>(pair: &'a Pair<'a>, can_bounce: bool) -> Vec<Paired<'a>> {
    let rates = |names, least, works| pair.compare(names, "requests/s", Bound::AtLeast(least), works, |load| load.rate);
    let many_to = |name, least, packets, load| {
        let work = Work { serve: packets, ..echo(load) };
        rates(["echo, 64 connections", name], least, [MANY, work])
    };
    let mut all = Vec::new();
    if can_bounce {
        all.push(Paired {
            names: ["frames that testpmd bounces", "echo, 64 connections"],
            unit: "frames/s, requests/s",
            required: Some(Bound::AtLeast(0.5)),
            figures: Figures::Apart([Box::new(|| pair.bounces()), Box::new(|| Ok(pair.run(MANY, "")?.rate))]),
        });
    }
    all.extend([
        many_to("1 000 connections", 1.0, "", "--connections 1000"),
        many_to("4 000 connections", 0.9, "", "--connections 4000"),
        many_to("10 000 connections", 0.8, "--max-packets 20000", "--connections 10000"),
        many_to("100 000 connections", 0.5, "--max-packets 200000", "--connections 100000 --ports 2"),
        pair.within(["4 000 connections, RTT p50", "p99"], 2.0, echo("--connections 4000"), "", |load| {
            [load.rtt_us.p50, load.rtt_us.p99]
        }),
        pair.at_half_rate(),
        pair.compare(
            ["frames of an echo's size, one in flight, RTT p50", "echo, one connection"],
            "µs",
            Bound::AtMost(1.3),
            [Work { service: RAW, load: "--size 116", ..MANY }, ONE],
            |load| load.rtt_us.p50,
        ),
        rates(["virtio-user, 64 connections", "memif"], 1.2, [MANY, memif(MANY)]),
        pair.compare(
            ["virtio-user, one connection, RTT p50", "memif"],
            "µs",
            Bound::AtMost(1.2),
            [ONE, memif(ONE)],
            |load| load.rtt_us.p50,
        ),
        rates(["echo by TCP, one in flight", "by UDP"], 1.3, [ONE, echo("--connections 1 --udp")]),
        rates(["echo by TCP, 64 in flight", "by UDP"], 1.3, [MANY, echo("--connections 64 --udp")]),
        rates(
            ["echo, 64 connections", "key-value service, 90 % GETs of 64 bytes"],
            0.9,
            [
                MANY,
                Work {
                    service: "kv",
                    serve: "--memory 96m",
                    load: "--connections 64 --keys 100000 --value-size 64 --get-ratio 0.9",
                    ..MANY
                },
            ],
        ),
        pair.compare(
            ["messages of 16 KB, 16 connections, 4 in flight", "of 64 KB"],
            "bytes/s each way",
            Bound::AtLeast(1.0),
            [echo("--connections 16 --depth 4 --size 16384"), echo("--connections 16 --depth 4 --size 65536")],
            |load| load.bytes / load.seconds,
        ),
    ]);
    all
}

/// Fields used from the reports of loads.
#[derive(Deserialize)]
struct Loaded {
    rate: f64,
    seconds: f64,
    #[serde(default)]
    bytes: f64,
    errors: u64,
    rtt_us: Rtt,
}

#[derive(Deserialize)]
struct Rtt {
    p50: f64,
    p99: f64,
    p999: f64,
}

/// Server and load, each on its core.
struct Pair<'a> {
    linerate: PathBuf,
    scratch: &'a Path,
    cores: Cores,
    duration: Duration,
}

impl Pair<'_> {
    fn compare(
        &self,
        names: [&'static str; 2],
        unit: &'static str,
        required: Bound,
        works: [Work; 2],
        figure: fn(&Loaded) -> f64,
    ) -> Paired<'_> {
        let of = |work| -> Measure<'_, f64> { Box::new(move || Ok(figure(&self.run(work, "")?))) };
        Paired { names, unit, required: Some(required), figures: Figures::Apart(works.map(of)) }
    }

    /// Compares two times of one load.
    fn within(
        &self,
        names: [&'static str; 2],
        most: f64,
        work: Work,
        more: &'static str,
        figures: fn(&Loaded) -> [f64; 2],
    ) -> Paired<'_> {
        let figures = Figures::Together(Box::new(move || Ok(figures(&self.run(work, more)?))));
        Paired { names, unit: "µs", required: Some(Bound::AtMost(most)), figures }
    }

    /// Compares times at half of the rate of 64 connections.
    fn at_half_rate(&self) -> Paired<'_> {
        let measure = || {
            let half = self.run(MANY, "")?.rate / 2.0;
            let Rtt { p50, p999, .. } = self.run(MANY, &format!("--rate {half:.0}"))?.rtt_us;
            Ok([p50, p999])
        };
        let names = ["64 connections at half of their rate, RTT p50", "p99.9"];
        Paired { names, unit: "µs", required: Some(Bound::AtMost(5.0)), figures: Figures::Together(Box::new(measure)) }
    }

    fn bounces(&self) -> Result<f64, Error> {
        testpmd::bounces(self.scratch, self.cores.server, self.cores.load, self.duration)
    }

    /// Returns the report of a load with the options `more`.
    fn run(&self, work: Work, more: &str) -> Result<Loaded, Error> {
        let directory = tempfile::tempdir_in(self.scratch);
        let directory = directory.map_err(|error| Error::Start { program: "links".to_owned(), error })?;
        let socket = directory.path().join("link.sock");
        let socket = socket.display();
        let [serve_via, load_via] = match work.link {
            Link::Virtio => [format!("vhost:{socket}"), format!("virtio-user:{socket}")],
            Link::Memif => [format!("memif:{socket},server"), format!("memif:{socket}")],
        };
        let command = |arguments: &str, core: usize| {
            let mut command = Command::new(&self.linerate);
            command.args(arguments.split_whitespace()).args(["--cores", &core.to_string()]);
            Process::start(command)
        };
        let Work { service, serve, load, .. } = work;
        let [server, client] = if service == RAW {
            ["raw reflect".to_owned(), "raw load".to_owned()]
        } else {
            [
                format!("{service} serve --no-inspect --ip 10.0.0.2/24 --listen 10.0.0.2:7 --listen 10.0.0.2:8"),
                format!("{service} load --no-inspect --ip 10.0.0.1/24 --connect 10.0.0.2:7"),
            ]
        };
        let server = command(&format!("{server} --via {serve_via} {serve}"), self.cores.server)?;
        let milliseconds = self.duration.as_millis();
        let load =
            format!("{client} --via {load_via} --warm-up 300ms --json --duration {milliseconds}ms {load} {more}");
        let load = command(&load, self.cores.load)?;
        let line = load.command().to_owned();
        let Ended { status, stdout: printed, stderr } = load.end(self.duration + 2 * PATIENCE)?;
        server.stop()?;
        // A host that stops a virtual machine for longer than the load waits for replies makes it lose datagrams.
        let most = if work.load.contains("--udp") { MAX_LOSS } else { 0.0 };
        let loaded = serde_json::from_str::<Loaded>(&printed).ok();
        let loaded = loaded.filter(|loaded| loaded.errors as f64 <= loaded.rate * loaded.seconds * most);
        loaded.ok_or_else(|| Error::Failed {
            command: line,
            failure: format!("failed, or had errors ({status})"),
            output: printed + &stderr,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report(paired::Report { rounds, seconds, rows }) = self;
        writeln!(f, "{}\n", paired::table(rows))?;
        write!(
            f,
            "one request of 64 bytes in flight on each connection over virtio-user, unless stated otherwise; \
             {rounds} rounds, and loads of {seconds} s; {}",
            paired::LEGEND
        )
    }
}
