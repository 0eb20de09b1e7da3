//! Reports of loads as text and JSON.

mod percentiles;

pub use percentiles::{Buckets, Percentile, Percentiles};

use crate::{Arrivals, CountStats, OneSidedStats, OpenLoop, Pace, PortWaits, SWAP_EVERY, Times};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// Closed-loop load: requests and round trips. JSON is one object,
/// `{"requests":…,"seconds":…,"rate":…,"bytes":…,"errors":…,"rtt_us":{"samples":…,"p50":…,"p90":…,"p99":…,"p999":…,
/// "p9999":…,"max":…}}`, with `"histogram":[[…,…],…]` if requested.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Answered requests.
    pub requests: u64,
    /// Measured duration in seconds.
    pub seconds: f64,
    /// Requests per second.
    pub rate: f64,
    /// Payload bytes of the answers.
    pub bytes: u64,
    /// Errors of all kinds.
    pub errors: u64,
    /// Round-trip times ([`Times::all`]).
    pub rtt_us: Percentiles,
    /// Histogram of these times, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub histogram: Option<Buckets>,
}

impl Report {
    /// Creates a report of `requests` in `measured`, with `bytes` of payload and these round-trip times, and their
    /// `histogram` if requested.
    pub fn new(requests: u64, measured: Duration, bytes: u64, errors: u64, times: &Times, histogram: bool) -> Self {
        let rtt_nanos = times.all();
        Report {
            requests,
            seconds: measured.as_secs_f64(),
            rate: per_second(requests, measured),
            bytes,
            errors,
            rtt_us: Percentiles::of_nanos(&rtt_nanos),
            histogram: histogram.then(|| Buckets::of_nanos(&rtt_nanos)),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "requests/s {:>12.0}   ({} in {:.2} s)", self.rate, self.requests, self.seconds)?;
        writeln!(f, "errors     {:>12}", self.errors)?;
        writeln!(f, "RTT in µs  {}", Percentiles::HEAD)?;
        write!(f, "           {}", self.rtt_us)
    }
}

/// Load of an echo server. JSON is the object of [`Report`], with [`OpenReport`] as `open` for an open loop, and
/// [`DatagramsReport`] as `datagrams` for a load over UDP.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EchoReport {
    /// All requests.
    #[serde(flatten)]
    pub all: Report,
    /// Pace of an open loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<OpenReport>,
    /// Invalid answers and losses of a load over UDP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datagrams: Option<DatagramsReport>,
}

/// Datagrams lost, late or corrupt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DatagramsReport {
    /// Requests without an answer within the timeout.
    pub lost: u64,
    /// Answers after the timeout, and duplicates.
    pub late: u64,
    /// Answers with wrong bytes.
    pub corrupt: u64,
}

impl fmt::Display for DatagramsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DatagramsReport { lost, late, corrupt } = self;
        write!(f, "datagrams  {lost:>12}   lost ({late} answers came late, {corrupt} with wrong bytes)")
    }
}

/// Load that opens a connection for each request. JSON is the object of [`Report`] with `"connections":…` per second;
/// and, if connections waited for a local port, `"port_waits":{"connections":…,"seconds":…}`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConnectsReport {
    /// All requests. The time of a request includes opening its connection.
    #[serde(flatten)]
    pub all: Report,
    /// Connections per second: opened, used and closed.
    pub connections: f64,
    /// Waits for a local port, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port_waits: Option<PortWaitsReport>,
}

/// Waits for a local port while measuring.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PortWaitsReport {
    /// Connections that waited.
    pub connections: u64,
    /// Time in seconds during which no port was free, at the worker with the longest time.
    pub seconds: f64,
}

impl PortWaitsReport {
    /// Adds up the waits of all workers; `None` if there were none.
    pub fn new(workers: impl Iterator<Item = PortWaits>) -> Option<Self> {
        let all = workers.fold(PortWaits::default(), |all, one| PortWaits {
            connections: all.connections + one.connections,
            time: all.time.max(one.time),
        });
        let PortWaits { connections, time } = all;
        (all != PortWaits::default()).then_some(PortWaitsReport { connections, seconds: time.as_secs_f64() })
    }
}

impl fmt::Display for ConnectsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "connections/s {:>9.0}   (one for each request, whose RTT begins with it)", self.connections)?;
        if let Some(PortWaitsReport { connections, seconds }) = self.port_waits {
            writeln!(f, "port waits {connections:>12}   (connections; no local port was free for {seconds:.2} s)")?;
        }
        self.all.fmt(f)
    }
}

/// Load of requests on all connections at once. JSON is the object of [`Report`], whose times are those of rounds until
/// the last answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IncastReport {
    /// All requests, with the times of the rounds.
    #[serde(flatten)]
    pub all: Report,
}

impl fmt::Display for IncastReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "rounds     {:>12}   (RTT: until the last answer)", self.all.rtt_us.samples)?;
        self.all.fmt(f)
    }
}

/// Load of a key-value server. JSON is the object of [`Report`] for all requests, with
/// `"get":{"requests":…,"rate":…,"bytes":…,"rtt_us":{…}},"set":{…},"misses":…,"filled":…`, and for an open loop
/// `"open":{"rate":…,"arrivals":"poisson","due":…,"unanswered":…,"late_us":{…}}`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KvReport {
    /// All requests.
    #[serde(flatten)]
    pub all: Report,
    /// GETs.
    pub get: OpReport,
    /// SETs.
    pub set: OpReport,
    /// GETs of keys that did not exist.
    pub misses: u64,
    /// Keys set before measuring.
    pub filled: u64,
    /// One-sided GETs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_sided: Option<OneSidedReport>,
    /// Pace of an open loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<OpenReport>,
}

/// Requests of one kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpReport {
    /// Answered requests.
    pub requests: u64,
    /// Requests per second.
    pub rate: f64,
    /// Bytes of received or sent values.
    pub bytes: u64,
    /// Times of the requests.
    pub rtt_us: Percentiles,
}

/// GETs served by one-sided READs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OneSidedReport {
    pub reads: u64,
    /// GETs whose value was found by READs.
    pub found: u64,
    /// READs per GET of this kind.
    pub reads_per_get: f64,
    /// READs that found a record being changed and were repeated.
    pub torn: u64,
    /// READs of the known place of a record that was superseded, each followed by a READ of the row.
    pub superseded: u64,
    /// GETs sent to the server to refresh its order of eviction.
    pub touches: u64,
    /// GETs sent to the server because their value could not be read.
    pub asked: u64,
    /// Processor time of the server in seconds, including connecting and filling, if the server reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu_seconds: Option<f64>,
}

/// Load of atomic operations. JSON is the object of [`Report`] with the following fields.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CountReport {
    /// All requests.
    #[serde(flatten)]
    pub all: Report,
    pub counters: u64,
    /// FETCH_AND_ADDs completed, in all phases.
    pub adds: u64,
    /// COMPARE_AND_SWAPs that found the expected value.
    pub swaps: u64,
    /// COMPARE_AND_SWAPs that found another value, each followed by another operation.
    pub swap_misses: u64,
    /// Operations whose connections were lost before completion.
    pub unknown: u64,
    /// Growth of all counters together.
    pub grew: u64,
    /// Set if the growth equals the completed operations.
    pub exact: bool,
}

impl CountReport {
    /// Creates a report of the operations `counted` on `counters` counters, which grew by `grew`.
    pub fn new(all: Report, counted: &CountStats, counters: u64, grew: u64) -> Self {
        let CountStats { adds, swaps, misses, unknown } = *counted;
        CountReport { all, counters, adds, swaps, swap_misses: misses, unknown, grew, exact: counted.added() == grew }
    }
}

impl fmt::Display for CountReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CountReport { all, counters, adds, swaps, swap_misses, unknown, grew, .. } = self;
        writeln!(f, "{all}")?;
        writeln!(f, "adds       {adds:>12}")?;
        writeln!(f, "swaps      {swaps:>12}   (one request of {SWAP_EVERY}; {swap_misses} found another number)")?;
        write!(f, "counted    {grew:>12}   (by {counters} counters; {} were added", adds + swaps)?;
        if *unknown > 0 {
            write!(f, ", and {unknown} operations were not answered")?;
        }
        f.write_str(")")
    }
}

/// Open loop.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpenReport {
    /// Offered requests per second.
    pub rate: f64,
    /// Distribution of the gaps.
    pub arrivals: Arrivals,
    /// Requests due while measuring.
    pub due: u64,
    /// Due requests that were not answered.
    pub unanswered: u64,
    /// Delays from due time to sending ([`Pace::late_nanos`]).
    pub late_us: Percentiles,
}

impl OneSidedReport {
    /// Creates a report of `reads`, with the processor time of the `server`.
    pub fn new(reads: &OneSidedStats, server: Option<Duration>) -> Self {
        let OneSidedStats { reads, found, torn, superseded, touches, fallbacks } = *reads;
        let server_cpu_seconds = server.map(|server| server.as_secs_f64());
        let reads_per_get = reads as f64 / (found.max(1) as f64);
        let asked = fallbacks;
        OneSidedReport { reads, found, reads_per_get, torn, superseded, touches, asked, server_cpu_seconds }
    }
}

impl OpReport {
    /// Creates a report of `requests` in `measured`, with `bytes` of payload and these times.
    pub fn new(requests: u64, measured: Duration, bytes: u64, times: &Times) -> Self {
        OpReport { requests, rate: per_second(requests, measured), bytes, rtt_us: Percentiles::of_nanos(&times.all()) }
    }
}

impl OpenReport {
    /// Creates a report of `requests` answered requests and the `paces` of all workers that followed `plan`.
    pub fn new<'a>(plan: OpenLoop, requests: u64, paces: impl Iterator<Item = &'a Pace>) -> Self {
        let mut late_nanos = Histogram::new(3).expect("3 digits are valid");
        let due = paces.fold(0, |due, pace| {
            late_nanos += pace.late_nanos();
            due + pace.due()
        });
        let OpenLoop { rate, arrivals } = plan;
        let late_us = Percentiles::of_nanos(&late_nanos);
        OpenReport { rate, arrivals, due, unanswered: due.saturating_sub(requests), late_us }
    }
}

impl fmt::Display for OpenReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OpenReport { rate, due, unanswered, .. } = self;
        write!(f, "offered/s  {rate:>12.0}   ({due} were due, {unanswered} of them not answered)")
    }
}

impl fmt::Display for EchoReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(open) = &self.open {
            writeln!(f, "{open}")?;
        }
        if let Some(datagrams) = &self.datagrams {
            writeln!(f, "{datagrams}")?;
        }
        self.all.fmt(f)?;
        match &self.open {
            Some(open) => write!(f, "\nsent late  {}", open.late_us),
            None => Ok(()),
        }
    }
}

impl fmt::Display for KvReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KvReport { all, get, set, misses, .. } = self;
        writeln!(f, "requests/s {:>12.0}   ({} in {:.2} s)", all.rate, all.requests, all.seconds)?;
        writeln!(
            f,
            "GETs/s     {:>12.0}   ({}, {misses} of them missed, {} bytes)",
            get.rate, get.requests, get.bytes
        )?;
        writeln!(f, "SETs/s     {:>12.0}   ({}, {} bytes)", set.rate, set.requests, set.bytes)?;
        if let Some(one_sided) = &self.one_sided {
            let OneSidedReport { reads, found, reads_per_get, torn, superseded, touches, asked, server_cpu_seconds } =
                one_sided;
            writeln!(
                f,
                "READs/GET  {reads_per_get:>12.2}   ({reads} for {found} GETs, {torn} of them torn and {superseded} of \
                 superseded records; {asked} GETs were sent as requests, and {touches} to keep keys from eviction)"
            )?;
            if let Some(seconds) = server_cpu_seconds {
                writeln!(f, "server CPU {seconds:>12.3} s (including connecting and filling)")?;
            }
        }
        writeln!(f, "errors     {:>12}", all.errors)?;
        if let Some(open) = &self.open {
            writeln!(f, "{open}")?;
        }
        writeln!(f, "RTT in µs  {}", Percentiles::HEAD)?;
        if let Some(open) = &self.open {
            writeln!(f, "sent late  {}", open.late_us)?;
        }
        writeln!(f, "GET        {}", get.rtt_us)?;
        write!(f, "SET        {}", set.rtt_us)
    }
}

/// Bulk load: payload bytes in each direction. JSON is
/// `{"seconds":…,"bytes_up":…,"bytes_down":…,"gbit_per_s_up":…,"gbit_per_s_down":…,"errors":…}`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BulkReport {
    /// Measured duration in seconds.
    pub seconds: f64,
    /// Payload bytes sent.
    pub bytes_up: u64,
    /// Payload bytes received.
    pub bytes_down: u64,
    /// 10⁹ bits of payload sent per second.
    pub gbit_per_s_up: f64,
    /// 10⁹ bits of payload received per second.
    pub gbit_per_s_down: f64,
    /// Errors of all kinds.
    pub errors: u64,
}

impl BulkReport {
    /// Creates a report of the bytes sent and received in `measured`.
    pub fn new(bytes_up: u64, bytes_down: u64, measured: Duration, errors: u64) -> Self {
        let gbit_per_s = |bytes| per_second(bytes, measured) * 8.0 / 1e9;
        BulkReport {
            seconds: measured.as_secs_f64(),
            bytes_up,
            bytes_down,
            gbit_per_s_up: gbit_per_s(bytes_up),
            gbit_per_s_down: gbit_per_s(bytes_down),
            errors,
        }
    }
}

impl fmt::Display for BulkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = |bytes, gbit| format!("{gbit:>10.3}   ({bytes} bytes in {:.2} s)", self.seconds);
        writeln!(f, "Gbit/s up   {}", direction(self.bytes_up, self.gbit_per_s_up))?;
        writeln!(f, "Gbit/s down {}", direction(self.bytes_down, self.gbit_per_s_down))?;
        write!(f, "errors      {:>10}", self.errors)
    }
}

/// Returns the rate, or zero if no time passed.
fn per_second(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_the_documented_object() {
        let report = Report::new(10, Duration::from_secs(2), 640, 1, &Times::default(), false);
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"requests":10,"seconds":2.0,"rate":5.0,"bytes":640,"errors":1,"rtt_us":{"samples":0,"max":0.0}}"#
        );
    }

    #[test]
    fn zero_duration_is_a_rate_of_zero() {
        assert_eq!(Report::new(0, Duration::ZERO, 0, 1, &Times::default(), false).rate, 0.0);
        assert_eq!(BulkReport::new(0, 0, Duration::ZERO, 1).gbit_per_s_up, 0.0);
    }

    #[test]
    fn kv_report_extends_the_base_report() {
        let (time, none) = (Duration::from_secs(2), Times::default());
        let side = |requests| OpReport::new(requests, time, 64 * requests, &none);
        let report = |open| KvReport {
            all: Report::new(10, time, 640, 1, &none, false),
            get: side(8),
            set: side(2),
            misses: 3,
            filled: 7,
            one_sided: None,
            open,
        };
        let closed = serde_json::to_value(report(None)).unwrap();
        assert_eq!(
            (&closed["requests"], &closed["get"]["rate"], &closed["set"]["bytes"]),
            (&10.into(), &4.0.into(), &128.into())
        );
        assert_eq!((&closed["misses"], &closed["filled"], closed.get("open")), (&3.into(), &7.into(), None));
        let from = linerate_service::time::Instant::ZERO;
        let plan = OpenLoop { rate: 6.0, arrivals: Arrivals::Even };
        let paces = [1, 2].map(|part| {
            let mut pace = Pace::new(plan, from, part, 3, fastrand::Rng::with_seed(1));
            pace.measure(from);
            let due = pace.take();
            pace.sent(due, due + Duration::from_millis(part as u64));
            // The second request of the part with four per second is due after 250 ms and never sent.
            pace.end(from + Duration::from_secs(2), |_, _| ());
            pace
        });
        let open = serde_json::to_value(report(Some(OpenReport::new(plan, 10, paces.iter())))).unwrap();
        let open = &open["open"];
        assert_eq!((&open["due"], &open["unanswered"], &open["arrivals"]), (&12.into(), &2.into(), &"even".into()));
        assert!((open["late_us"]["max"].as_f64().unwrap() / 1_750_000.0 - 1.0).abs() < 0.001, "{open}");
    }

    #[test]
    fn port_waits_are_reported_if_any() {
        let report = |waits: [PortWaits; 2]| {
            let all = Report::new(10, Duration::from_secs(2), 640, 0, &Times::default(), false);
            let port_waits = PortWaitsReport::new(waits.into_iter());
            ConnectsReport { connections: all.rate, all, port_waits }
        };
        let without = report([PortWaits::default(); 2]);
        assert_eq!(serde_json::to_value(&without).unwrap().get("port_waits"), None);
        assert!(!without.to_string().contains("port waits"), "{without}");
        let wait = |connections, millis| PortWaits { connections, time: Duration::from_millis(millis) };
        let with = report([wait(3, 500), wait(4, 1500)]);
        let json = serde_json::to_value(&with).unwrap();
        assert_eq!(json["port_waits"], serde_json::json!({"connections": 7, "seconds": 1.5}));
        assert!(
            with.to_string().contains("port waits            7   (connections; no local port was free for 1.50 s)")
        );
    }

    #[test]
    fn bulk_rates_are_in_bits() {
        let report = BulkReport::new(1_250_000_000, 125_000_000, Duration::from_secs(10), 0);
        assert_eq!((report.gbit_per_s_up, report.gbit_per_s_down), (1.0, 0.1));
    }
}
