//! Price of polling, of waiting and of the kernel's sockets for a server that has little to do.

use crate::pair::{P50, Pair, RATE};
use linerate_benches::rounds::{Bound, Job, Plan, Required, RoundRows, Row};
use linerate_compare::batch::Batch;
use linerate_harness::Error;
use linerate_harness::address::unused_address;
use linerate_harness::cpu_time::process_time;
use linerate_harness::process::{Process, TIMEOUT};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

const POLL: &str = "virtio-user, --idle poll";
const WAIT: &str = "virtio-user, --idle wait";
const KERNEL: &str = "kernel, sleeping";

/// Heads of the values, and their decimals.
const VALUES: &[(&str, usize)] = &[
    ("idle: % of a core", 2),
    ("50/s: RTT p50 µs", 1),
    ("requests/s", 0),
    ("at 10 %: % of a core", 1),
    ("batch: % of its rate alone", 1),
];
/// Positions of the values.
const IDLE: usize = 0;
const SPARSE: usize = 1;
const SATURATED: usize = 2;
const TENTH: usize = 3;
const BATCH: usize = 4;

/// Warm-up of a load, and a little more.
const WARM_UP: Duration = Duration::from_millis(400);
/// Observed part of a load: the observation begins and ends during it.
const OBSERVED: f64 = 0.8;

/// Returns the comparison, with `connections` idle connections.
pub fn plan(pair: &Pair, connections: u32) -> Plan<'_> {
    let jobs = [(POLL, Some("poll")), (WAIT, Some("wait")), (KERNEL, None)];
    let jobs = jobs.map(|(name, idle)| {
        Job::new(name, move |_| {
            let alone = batch(pair)?;
            Ok(vec![Row::new(&[name], &Server::start(pair, idle)?.measure(connections, alone)?)])
        })
    });
    let wait = |value| move |round: &RoundRows| round.value(&[WAIT], value);
    let ratio = |value, to: &'static str| {
        move |round: &RoundRows| Some(round.value(&[WAIT], value)? / round.value(&[to], value)?)
    };
    let required = vec![
        Required::new("wait: % of a core of an idle server", Bound::AtMost(0.3), wait(IDLE)),
        Required::new("wait: RTT p50 µs at 50 requests/s", Bound::AtMost(60.0), wait(SPARSE)),
        Required::new("RTT p50 at 50 requests/s: wait, to the kernel's", Bound::AtMost(1.1), ratio(SPARSE, KERNEL)),
        Required::new("requests/s: wait, to poll", Bound::AtLeast(0.99), ratio(SATURATED, POLL)),
        Required::new("wait: % of a core at 10 % of the requests/s", Bound::AtMost(35.0), wait(TENTH)),
        Required::new("wait: % of the batch program's rate", Bound::AtLeast(90.0), wait(BATCH)),
    ];
    Plan {
        heads: &["server"],
        values: VALUES,
        jobs: jobs.into(),
        required,
        legend: format!(
            "echoes of 64 bytes; idle: {connections} connections with one request/s in all; 50/s: one connection; \
             requests/s: 64 connections; batch: a program on the server's core, at 1000 requests/s; the load polls in \
             all rows"
        ),
    }
}

/// Running server, and the load that fits.
struct Server<'a> {
    pair: &'a Pair,
    process: Process,
    load: String,
}

impl<'a> Server<'a> {
    /// Starts a server of the stack with `--idle`, or on kernel sockets.
    fn start(pair: &'a Pair, idle: Option<&str>) -> Result<Self, Error> {
        let socket = pair.scratch.path().join("link.sock");
        let socket = socket.display();
        let (serve, load) = match idle {
            Some(idle) => (
                format!("--via vhost:{socket} --ip 10.0.0.2/24 --listen 10.0.0.2:7 --idle {idle} --keepalive 0"),
                format!("--via virtio-user:{socket} --ip 10.0.0.1/24 --connect 10.0.0.2:7"),
            ),
            None => {
                let address = unused_address();
                (format!("--via kernel --listen {address}"), format!("--via kernel --spin --connect {address}"))
            }
        };
        let mut process = pair.server(&format!("echo serve {serve}"))?;
        process.wait_for_line("ready")?;
        Ok(Server { pair, process, load: format!("echo load --no-inspect --size 64 {load}") })
    }

    /// Returns the values in the order of [`VALUES`], with `alone` as the rate of a batch program without a server.
    fn measure(self, connections: u32, alone: f64) -> Result<[f64; 5], Error> {
        let (_, idle) = self.used(&format!("--connections {connections} --rate 1"))?;
        let (sparse, _) = self.used("--connections 1 --rate 50 --arrivals even")?;
        let (saturated, _) = self.used("--connections 64")?;
        let (_, tenth) = self.used(&format!("--connections 64 --rate {:.0}", saturated[RATE] / 10.0))?;
        let (_, batch) = self.load("--connections 64 --rate 1000", |server| batch(server.pair))?;
        self.process.stop()?;
        Ok([idle, sparse[P50], saturated[RATE], tenth, 100.0 * batch / alone])
    }

    /// Runs a load, and returns its values and the processor time of the server in percent of a core.
    fn used(&self, words: &str) -> Result<([f64; 4], f64), Error> {
        self.load(words, |server| {
            let used = || process_time(Path::new("/proc"), server.process.id());
            let (begun, before) = (Instant::now(), used());
            sleep(server.pair.duration.mul_f64(OBSERVED));
            Ok(100.0 * (used() - before).as_secs_f64() / begun.elapsed().as_secs_f64())
        })
    }

    /// Runs a load, and `meanwhile` during its measurement.
    fn load<T>(&self, words: &str, meanwhile: impl FnOnce(&Self) -> Result<T, Error>) -> Result<([f64; 4], T), Error> {
        let mut linerate = Command::new(&self.pair.linerate);
        linerate.env("RUST_LOG", "info");
        let (loaded, value) = self.pair.loaded_while(linerate, &format!("{} {words}", self.load), |load| {
            load.wait_for_stderr(&["warming up"], TIMEOUT)?.ok_or_else(|| load.failed("ended before its load"))?;
            sleep(WARM_UP);
            meanwhile(self)
        })?;
        Ok((loaded.values(), value))
    }
}

/// Returns the rate of a batch program on the server's core.
fn batch(pair: &Pair) -> Result<f64, Error> {
    let (core, time) = (pair.cores.server, pair.duration.mul_f64(OBSERVED).as_millis());
    let mut linerate = Command::new(&pair.linerate);
    linerate.args(["compare", "batch", "--core", &core.to_string(), "--time", &format!("{time}ms")]);
    let program = Process::start(linerate)?;
    let command = program.command().to_owned();
    let printed = program.output(pair.duration + TIMEOUT)?;
    let batch = serde_json::from_str::<Batch>(&printed);
    batch.map(|batch| batch.rate()).map_err(|_| Error::Unexpected { command, printed })
}
