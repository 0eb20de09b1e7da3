//! Load processes of rows: their arguments and their output.

use super::Setting;
use super::link::Link;
use super::network::End;
use super::plan::Planned;
use super::server::{Server, ServiceKind, Values};
use crate::batch::Batch;
use crate::counters::CpuUsage;
use crate::profile::Profiler;
use crate::results::{App, Design, Part, Point, Round, ServerSide, SweepPoint, Swept};
use linerate_load::report::Percentiles;
use linerate_process::Error;
use linerate_process::child::words;
use linerate_process::cpu_time::CoreWatch;
use linerate_process::process::{Ended, Process};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

/// Timeouts beyond the measured time: to open and close the port and connections; and to set a million keys.
const AROUND: Duration = Duration::from_secs(30);
const PER_MILLION: Duration = Duration::from_secs(60);
/// Duration of a batch program relative to a measurement: it starts and ends during it.
const BATCH_PART: f64 = 0.8;
/// Maximum ratio of a merged bucket's upper end to the upper end of the first bucket in it.
const WIDTH: f64 = 1.03;

/// Parameters of one measurement.
#[derive(Debug, Clone, Copy)]
pub struct Measure {
    /// Connections, and outstanding requests on each.
    pub point: Point,
    /// Bytes of a request or a value.
    pub size: u32,
    /// Service of the server.
    pub served: ServiceKind,
    /// Measured duration.
    pub time: Duration,
    /// Duration of the warm-up before the measurement.
    pub warm_up: Duration,
    /// Offered requests per second; without it, a closed loop.
    pub rate: Option<f64>,
    /// Set if each request has its own connection.
    pub reconnect: bool,
    /// Set if requests are sent on all connections at once.
    pub incast: bool,
    /// Contents of a key-value server.
    pub values: Values,
    /// Set if the load sets all keys first.
    pub fill: bool,
}

/// Output of a request load, as far as it is used.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct LoadReport {
    /// Answered requests.
    pub requests: u64,
    /// Measured duration in seconds.
    pub seconds: f64,
    /// Requests per second.
    pub rate: f64,
    pub errors: u64,
    /// GETs of missing keys.
    #[serde(default)]
    pub misses: u64,
    /// Round-trip times.
    pub rtt_us: Percentiles,
    /// Histogram of round-trip times.
    #[serde(default)]
    pub histogram: Vec<(f64, u64)>,
    /// Result of an open loop.
    pub open: Option<Open>,
    /// RDMA device.
    pub device: Option<Device>,
}

/// Result of an open loop.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Open {
    /// Due requests without an answer.
    pub unanswered: u64,
}

/// RDMA device of a load.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Device {
    /// Software that emulates it.
    pub emulated_by: Option<String>,
}

/// Output of a bulk load.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
struct Bulk {
    seconds: f64,
    bytes_up: u64,
    bytes_down: u64,
    errors: u64,
}

#[derive(Debug)]
pub struct LoadResult {
    /// Its measurements.
    pub loaded: LoadReport,
    /// Usage of the server during warm-up and measurement, if known.
    pub used: Option<CpuUsage>,
    /// Part of the time of both ends' cores that other programs had, if known.
    pub others: Option<f64>,
    /// Work of the batch program, if there is one.
    pub batch: Option<Batch>,
    /// Samples in each part of the server, if it was profiled.
    pub parts: Option<BTreeMap<Part, u64>>,
    /// Its command line.
    pub command: Vec<String>,
}

/// Companion of a load.
#[derive(Clone, Copy)]
pub enum Companion<'a> {
    None,
    /// A batch program on the server's core.
    Batch,
    /// A profiler of the server.
    Profiler(&'a Profiler),
}

/// Runs the load of `row` against `server`, and measures the server's usage, and others' usage of the cores, from the
/// beginning of the warm-up to the end of the measurement.
///
/// # Errors
/// The load fails without measurements; [`Error::Interrupted`].
pub fn run(
    setting: &Setting,
    link: &Link,
    row: &Planned,
    server: &mut Server,
    measure: Measure,
) -> Result<LoadResult, Error> {
    run_with(setting, link, row, server, measure, Companion::None)
}

/// Runs the load as [`run`] does, with a companion.
///
/// # Errors
/// As of [`run`]; the companion fails.
pub fn run_with(
    setting: &Setting,
    link: &Link,
    row: &Planned,
    server: &mut Server,
    measure: Measure,
    companion: Companion<'_>,
) -> Result<LoadResult, Error> {
    let command = command(setting, link, row, (&server.address, server.ports), measure);
    let line = words(&command);
    server.watch();
    let filling = if measure.fill { PER_MILLION.mul_f64(measure.values.keys as f64 / 1e6) } else { Duration::ZERO };
    let (limit, around) = (link.timeout(AROUND + filling), link.timeout(AROUND));
    let mut load = link.start(command)?;
    let (mut usage, mut batch, mut parts) = ((None, None), None, None);
    if load.wait_for_stderr(&["warming up", "measuring"], limit)?.is_some() {
        let before = server.used();
        if let Companion::Batch = companion {
            batch = Some(start_batch(setting, link, measure.time)?);
        }
        // The processes of another machine are not visible here.
        let cores = if setting.cores.two_machines { Vec::new() } else { setting.cores.all() };
        let mut watch = CoreWatch::begin(cores, &[server.process.id(), load.id()]);
        let time = measure.warm_up + measure.time;
        let samples = match companion {
            Companion::Profiler(profiler) => Some((profiler, profiler.sample(server.process.id(), time))),
            Companion::None | Companion::Batch => {
                watch.watch(time);
                None
            }
        };
        usage = (server.used().zip(before).map(|(after, before)| after.since(before)), watch.others());
        if let Some((profiler, samples)) = samples {
            let failed = |error| Error::Failed {
                command: server.process.command().to_owned(),
                failure: format!("cannot be sampled: {error}"),
                output: String::new(),
            };
            parts = Some(profiler.divide(&samples.map_err(failed)?));
        }
    }
    let (used, others) = usage;
    let batch = batch.map(|batch| end_batch(batch, around)).transpose()?;
    Ok(LoadResult { used, others, batch, parts, ..LoadResult::new(load.end(around)?, line, measure)? })
}

/// Starts a batch program on the server's core, which ends before a measurement of duration `time`.
fn start_batch(setting: &Setting, link: &Link, time: Duration) -> Result<Process, Error> {
    let mut command = link.command(End::Server, &setting.linerate);
    command.args(["compare", "batch", "--core", &setting.cores.worker.to_string()]);
    command.args(["--time", &format!("{}ms", time.mul_f64(BATCH_PART).as_millis())]);
    link.start(command)
}

fn end_batch(batch: Process, limit: Duration) -> Result<Batch, Error> {
    let command = batch.command().to_owned();
    let printed = batch.output(limit)?;
    serde_json::from_str(&printed).map_err(|_| Error::Unexpected { command, printed })
}

/// Runs a batch program for `time` on the server's core without a server.
///
/// # Errors
/// The batch program fails; [`Error::Interrupted`].
pub fn batch_alone(setting: &Setting, link: &Link, time: Duration) -> Result<Batch, Error> {
    end_batch(start_batch(setting, link, time)?, link.timeout(AROUND))
}

/// Returns the load of `row` against the server at `address` and the ports after it.
pub fn command(
    setting: &Setting,
    link: &Link,
    row: &Planned,
    (address, ports): (&str, u16),
    measure: Measure,
) -> Command {
    let Measure { point, size, served, time, warm_up, rate, reconnect, incast, values, fill } = measure;
    let mut command = link.command(End::Load, &setting.linerate);
    // The log shows the beginning of the measurement.
    command.arg("-v");
    let requests = matches!(served, ServiceKind::App { .. });
    let app = row.app.without_tls();
    command.args(match (served, app, &row.design) {
        (_, _, Design::Raw) => ["raw", "load"],
        (ServiceKind::Discard, ..) => ["discard", "load"],
        (ServiceKind::Chargen, ..) => ["chargen", "load"],
        (_, App::Kv | App::Redis, _) => ["kv", "load"],
        (_, App::Http, _) => ["http", "load"],
        _ => ["echo", "load"],
    });
    command.args(["--json", "--cores", &setting.cores.load.to_string()]);
    let millis = |time: Duration| format!("{}ms", time.as_millis());
    command.args(["--duration", &millis(time)]);
    if !warm_up.is_zero() {
        command.args(["--warm-up", &millis(warm_up)]);
    }
    let args = link.args(End::Load);
    if row.design == Design::Raw {
        let depth = point.connections * point.depth;
        command.args(&args[..2]).args(["--depth", &depth.to_string(), "--size", &size.to_string(), "--histogram"]);
        return command;
    }
    command.args(args).args(&row.load);
    command.args(row.app.has_tls().then_some(["--tls", "--tls-insecure"]).into_iter().flatten());
    command.args(["--connect", address]);
    if ports > 1 {
        command.args(["--ports", &ports.to_string()]);
    }
    command.args(["--connections", &point.connections.to_string()]);
    if !requests {
        return command;
    }
    command.arg("--histogram");
    // With a connection per request or requests in rounds the depth is one.
    if !reconnect && !incast {
        command.args(["--depth", &point.depth.to_string()]);
    }
    if let Some(rate) = rate {
        command.args(["--rate", &format!("{rate:.0}")]);
    }
    match app {
        App::Echo => {
            command.args(["--size", &size.to_string()]);
            command.args(reconnect.then_some("--reconnect")).args(incast.then_some("--incast"));
        }
        App::Kv | App::Redis => {
            command.args(["--keys", &values.keys.to_string(), "--value-size", &size.to_string()]);
            command.args(["--get-ratio", &setting.get_ratio.to_string(), "--zipf", &setting.zipf.to_string()]);
            command.args((!fill).then_some("--no-fill"));
        }
        _ => {}
    }
    command
}

impl From<Bulk> for LoadReport {
    fn from(Bulk { seconds, bytes_up, bytes_down, errors }: Bulk) -> LoadReport {
        let requests = bytes_up + bytes_down;
        let rate = if seconds > 0.0 { requests as f64 / seconds } else { 0.0 };
        let (rtt_us, histogram) = (Percentiles::default(), Vec::new());
        LoadReport { requests, seconds, rate, errors, misses: 0, rtt_us, histogram, open: None, device: None }
    }
}

/// Merges buckets that a plot could not distinguish.
fn coarse(histogram: &[(f64, u64)]) -> Vec<(f64, u64)> {
    let mut wide: Vec<(f64, u64)> = Vec::new();
    let mut from = 0.0;
    for (end, count) in histogram {
        match wide.last_mut() {
            Some((last, sum)) if *end <= from * WIDTH => (*last, *sum) = (*end, *sum + count),
            _ => {
                wide.push((*end, *count));
                from = *end;
            }
        }
    }
    wide
}

impl LoadResult {
    fn new(ended: Ended, command: Vec<String>, measure: Measure) -> Result<LoadResult, Error> {
        let loaded = match measure.served {
            ServiceKind::App { .. } => serde_json::from_str::<LoadReport>(&ended.stdout).ok(),
            ServiceKind::Discard | ServiceKind::Chargen => {
                serde_json::from_str::<Bulk>(&ended.stdout).ok().map(LoadReport::from)
            }
        };
        // A load with errors still prints its measurements.
        match loaded {
            Some(loaded) => Ok(LoadResult { loaded, used: None, others: None, batch: None, parts: None, command }),
            None => {
                let failure = format!("failed ({})", ended.status);
                Err(Error::Failed { command: command.join(" "), failure, output: ended.stderr })
            }
        }
    }

    /// Converts the result to a round of a fixed setting. The load does not count the requests of the warm-up, so the
    /// requests of the server are extrapolated from the measured rate.
    pub fn round(self, transfer_ns: Option<f64>, warm_up: Duration) -> Round {
        let LoadResult { loaded, used, others, .. } = self;
        let whole = if loaded.seconds > 0.0 { 1.0 + warm_up.as_secs_f64() / loaded.seconds } else { 1.0 };
        let server = ServerSide {
            requests: (loaded.requests as f64 * whole) as u64,
            cpu_seconds: used.map(|used| used.cpu.as_secs_f64()),
            cycles: used.and_then(|used| used.cycles),
            instructions: used.and_then(|used| used.instructions),
            ..ServerSide::default()
        };
        Round {
            transfer_ns,
            others,
            requests: loaded.requests,
            seconds: loaded.seconds,
            errors: loaded.errors + loaded.misses,
            rtt_us: loaded.rtt_us,
            histogram: coarse(&loaded.histogram),
            server,
        }
    }

    /// Checks that all connections existed, if their number is the variable of the sweep.
    ///
    /// # Errors
    /// [`Error::Failed`], if connections were not opened or were lost.
    pub fn check(&self, of: Swept) -> Result<(), Error> {
        if !matches!(of, Swept::Connections | Swept::Incast) || self.loaded.errors == 0 {
            return Ok(());
        }
        let failure = format!("{} connections were not opened or were lost", self.loaded.errors);
        Err(Error::Failed { command: self.command.join(" "), failure, output: String::new() })
    }

    /// Converts the result to a point of a sweep.
    pub fn point(&self, x: f64, measure: &Measure) -> SweepPoint {
        let LoadReport { requests, seconds, rate, errors, misses, rtt_us, open, .. } = &self.loaded;
        let unanswered = open.map_or(0, |open| open.unanswered);
        let saturated =
            measure.rate.is_some_and(|offered| super::sweep::is_saturated(offered, *seconds, *requests, unanswered));
        let rtt_us = matches!(measure.served, ServiceKind::App { .. }).then_some(*rtt_us);
        SweepPoint { x, rate: *rate, rtt_us, saturated, errors: errors + misses, within: None, batch: None }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::row;
    use super::super::tests::setting;
    use super::*;

    #[test]
    fn load_reports_are_parsed() {
        let rtt = r#""rtt_us":{"samples":10,"p50":1.5,"p90":2.0,"p99":3.0,"p999":4.0,"max":5.0}"#;
        let echo = format!(
            r#"{{"requests":10,"seconds":2.0,"rate":5.0,"bytes":640,"errors":1,{rtt},"histogram":[[1.5,7],[5.0,3]]}}"#
        );
        let loaded: LoadReport = serde_json::from_str(&echo).unwrap();
        assert_eq!((loaded.requests, loaded.errors, &*loaded.histogram), (10, 1, &[(1.5, 7), (5.0, 3)][..]));
        let kv = format!(
            r#"{{"requests":10,"seconds":2.0,"rate":5.0,"bytes":640,"errors":1,{rtt},"get":{{}},"misses":3,
            "open":{{"rate":9.0,"unanswered":2,"late_us":{{}}}},"device":{{"name":"rxe0","emulated_by":"rxe"}}}}"#
        );
        let loaded: LoadReport = serde_json::from_str(&kv).unwrap();
        assert_eq!((loaded.misses, loaded.open), (3, Some(Open { unanswered: 2 })));
        assert_eq!(loaded.device.unwrap().emulated_by.as_deref(), Some("rxe"));
        let bulk =
            r#"{"seconds":2.0,"bytes_up":10,"bytes_down":0,"gbit_per_s_up":1.0,"gbit_per_s_down":0.0,"errors":1}"#;
        let loaded = LoadReport::from(serde_json::from_str::<Bulk>(bulk).unwrap());
        assert_eq!((loaded.rate, loaded.errors), (5.0, 1));
    }

    #[test]
    fn each_row_has_its_load() {
        let measure = Measure {
            point: Point { connections: 64, depth: 16 },
            size: 64,
            served: ServiceKind::PLAIN,
            time: Duration::from_millis(300),
            warm_up: Duration::from_millis(60),
            rate: None,
            reconnect: false,
            incast: false,
            values: Values { keys: 1000, size: 64 },
            fill: false,
        };
        let line = |id: &str, measure: Measure| {
            let link = if id.contains("virtio") { Link::VirtioUser("/s".into()) } else { Link::Loopback(None) };
            let command = command(&setting(), &link, &row(id), ("10.0.0.2:7", 1), measure);
            words(&command).join(" ")
        };
        let common = "--json --cores 1 --duration 300ms --warm-up 60ms";
        let via = "--via virtio-user:/s --ip 10.0.0.1/24";
        let to = "--connect 10.0.0.2:7 --connections 64";
        for (id, measure, expected) in [
            (
                "echo/virtio-user/raw",
                measure,
                format!("linerate -v raw load {common} --via virtio-user:/s --depth 1024 --size 64 --histogram"),
            ),
            (
                "echo/virtio-user/datagrams",
                Measure { rate: Some(5e4), ..measure },
                format!(
                    "linerate -v echo load {common} {via} --udp {to} --histogram --depth 16 --rate 50000 --size 64"
                ),
            ),
            (
                "kv/virtio-user/datagrams",
                Measure { rate: Some(5e4), ..measure },
                format!(
                    "linerate -v kv load {common} {via} --udp --protocol memcached {to} --histogram --depth 16 --rate 50000 \
                     --keys 1000 --value-size 64 --get-ratio 0.9 --zipf 0.99 --no-fill"
                ),
            ),
            (
                "echo/kernel/spinning",
                Measure { reconnect: true, ..measure },
                format!("linerate -v echo load {common} --via kernel --spin {to} --histogram --size 64 --reconnect"),
            ),
            (
                "kv-tls/kernel/sleeping",
                measure,
                format!(
                    "linerate -v kv load {common} --via kernel --tls --tls-insecure {to} --histogram --depth 16 \
                     --keys 1000 --value-size 64 --get-ratio 0.9 --zipf 0.99 --no-fill"
                ),
            ),
            (
                "echo/kernel/sleeping",
                Measure { incast: true, ..measure },
                format!("linerate -v echo load {common} --via kernel {to} --histogram --size 64 --incast"),
            ),
            (
                "kv/virtio-user/smoltcp",
                measure,
                format!(
                    "linerate -v kv load {common} {via} --engine smoltcp {to} --histogram --depth 16 --keys 1000 --value-size 64 \
                     --get-ratio 0.9 --zipf 0.99 --no-fill"
                ),
            ),
            (
                "http/virtio-user/native/inline",
                measure,
                format!("linerate -v http load {common} {via} --engine native {to} --histogram --depth 16"),
            ),
            (
                "redis/kernel/sleeping",
                measure,
                format!(
                    "linerate -v kv load {common} --via kernel {to} --histogram --depth 16 --keys 1000 --value-size 64 \
                     --get-ratio 0.9 --zipf 0.99 --no-fill"
                ),
            ),
            (
                "echo/virtio-user/native/split",
                Measure { served: ServiceKind::Discard, ..measure },
                format!("linerate -v discard load {common} {via} --engine native {to}"),
            ),
        ] {
            assert_eq!(line(id, measure), expected);
        }
    }

    #[test]
    fn coarse_histogram_keeps_all_counts() {
        let fine: Vec<(f64, u64)> = (1000..100_000).map(|end| (f64::from(end) / 1000.0, 1)).collect();
        let wide = coarse(&fine);
        assert!(wide.len() < 200 && wide.is_sorted_by(|one, other| one.0 < other.0), "{}", wide.len());
        assert_eq!(wide.iter().map(|(_, count)| count).sum::<u64>(), fine.len() as u64);
        assert_eq!(wide.last().unwrap().0, fine.last().unwrap().0);
        let half = wide.iter().take_while(|(end, _)| *end <= 10.0).map(|(_, count)| count).sum::<u64>();
        assert!((8700..=9001).contains(&half), "{half}");
        assert_eq!(coarse(&[(1.0, 2), (5.0, 3)]), [(1.0, 2), (5.0, 3)]);
    }

    #[test]
    fn round_includes_the_servers_warm_up() {
        let loaded: LoadReport = serde_json::from_str(
            r#"{"requests":100,"seconds":2.0,"rate":50.0,"errors":1,"misses":2,
            "rtt_us":{"p50":1.5,"p90":2.0,"p99":3.0,"p999":4.0,"max":5.0}}"#,
        )
        .unwrap();
        let used = CpuUsage { cpu: Duration::from_millis(2500), cycles: Some(7), instructions: None };
        let round =
            LoadResult { loaded, used: Some(used), others: None, batch: None, parts: None, command: Vec::new() }
                .round(Some(30.0), Duration::from_millis(500));
        assert_eq!((round.requests, round.errors, round.server.requests), (100, 3, 125));
        assert_eq!((round.server.cpu_seconds, round.server.cycles, round.server.copied), (Some(2.5), Some(7), None));
    }
}
