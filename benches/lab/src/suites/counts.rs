//! Verbs calls per message of an echo, compared with perftest. The same preloaded library counts both.

use super::Suite;
use super::pair::{DEVICE, Pair, Provider};
use super::perftest::{self, Counts, counted};
use super::service::{ECHO, End, Service};
use crate::error::{Error, Result, failed};
use crate::host::Lab;
use crate::report::Report;
use linerate_harness::process::Ended;
use std::fmt;
use std::path::Path;

/// Part that can be run alone.
pub const SUITE: Suite = Suite { name: "rxe-counts", about: "verbs calls of an echo, beside perftest", run: alone };

/// One request at a time, like `ib_send_lat`.
const ONE: Service = Service { load: "--size 64 --depth 1", connections: 1, seconds: 3, ..ECHO };
/// Maximum number of outstanding requests of both programs in both directions, like `ib_send_bw`.
const MANY: Service = Service { load: "--size 64 --depth 128", ..ONE };

/// Compared tests.
const CASES: [(&str, Service); 2] = [("ib_send_lat", ONE), ("ib_send_bw --bidirectional", MANY)];

/// Send queue of perftest. A server for many connections would have a shorter one, with more completions.
const SENDS: &str = "--rdma-sends 128";

/// Size of a request and of its reply in bytes.
const SIZE: u64 = 64;
/// Header of each message in bytes.
const HEADER: u64 = 8;
/// Buffers of an end for its connection before and after all messages.
const BUFFERS: u64 = 32;
/// Messages that close an end.
const FINISH: u64 = 1;

fn alone(lab: &Lab, report: &mut Report) {
    let Some(pair) = report.case("two guests", || Pair::boot(lab, Provider::Rxe)) else { return };
    run(lab, report, &pair);
}

/// Runs all comparisons.
pub fn run(lab: &Lab, report: &mut Report, pair: &Pair) {
    let Some(perftest) = report.case("perftest", || lab.image.perftest(&lab.log)) else { return };
    for (test, service) in CASES {
        let counts = report.case(&format!("echo needs no more than {test}"), || {
            let ours = ours(lab, pair, service)?;
            let theirs = theirs(lab, pair, &perftest, test, ours.messages.div_ceil(2))?;
            ours.is_within(&theirs)?;
            Ok(format!("echo:     {}\n    perftest: {}", ours.less_besides(), theirs))
        });
        if let Some(counts) = counts {
            println!("    {counts}");
        }
    }
}

impl Counts {
    /// Checks that the server's own statistics match, once its connection is established.
    fn check_counts(&self, server: &serde_json::Value) -> Result<()> {
        let verbs = &server["verbs"];
        let is_same = verbs["requests"] == self.requests
            && verbs["buffers"] == self.buffers.saturating_sub(BUFFERS)
            && verbs["requests_completed"] == self.requests_completed
            && verbs["buffers_completed"] == self.buffers_completed;
        if is_same { Ok(()) } else { failed(format!("counted {self:?}, but the server reports {verbs}")) }
    }
}

/// Counts of both ends.
#[derive(Debug, Clone, Copy)]
struct VerbCounts {
    /// Messages with data, sent by both ends.
    messages: u64,
    /// Requests and replies of the application, which may share messages.
    carried: u64,
    counts: Counts,
}

impl VerbCounts {
    /// Subtracts the buffers and messages of opening and closing a connection.
    fn less_besides(mut self) -> VerbCounts {
        self.counts.requests = self.counts.requests.saturating_sub(2 * FINISH);
        self.counts.buffers = self.counts.buffers.saturating_sub(2 * (BUFFERS + FINISH));
        self.counts.requests_completed = self.counts.requests_completed.saturating_sub(2 * FINISH);
        self.counts.buffers_completed = self.counts.buffers_completed.saturating_sub(2 * FINISH);
        self
    }

    /// Returns the compared counts.
    fn all(&self) -> [(&'static str, u64); 3] {
        let Counts { requests, buffers, .. } = self.counts;
        [("requests", requests), ("buffers", buffers), ("completions", self.counts.completions())]
    }

    /// Checks that the counts per message, and per request or reply, do not exceed the others'.
    fn is_within(&self, others: &VerbCounts) -> Result<()> {
        if self.counts.unseen + others.counts.unseen > 0 {
            return failed(format!("incomplete counts: {self:?}, {others:?}"));
        }
        let less = self.less_besides();
        for ((verb, count), (_, others_count)) in less.all().into_iter().zip(others.all()) {
            for (per, of, others_of) in
                [("message", self.messages, others.messages), ("request and answer", self.carried, others.carried)]
            {
                if count * others_of > others_count * of {
                    return failed(format!("more {verb} for each {per}: echo: {less}; perftest: {others}"));
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for VerbCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VerbCounts { messages, carried, .. } = self;
        write!(f, "{messages} messages that carry {carried}, and for each message")?;
        for (verb, count) in self.all() {
            write!(f, " {:.3} {verb}", count as f64 / *messages as f64)?;
        }
        Ok(())
    }
}

/// Counts an echo server and its load.
fn ours(lab: &Lab, pair: &Pair, service: Service) -> Result<VerbCounts> {
    let via = format!("rdma:{DEVICE}");
    let script = |arguments: &str| Ok::<_, Error>(format!("{}{}", counted(lab)?, lab.in_guest(arguments)));
    let serve = script(&format!("{} {SENDS}", service.serve(&End::new(&via, Pair::SERVER))))?;
    let mut server = pair.server.start_script(service.name, &serve)?;
    server.wait_for_line("ready ")?;
    let load = script(&service.load(&End::new(&via, Pair::CLIENT), Pair::SERVER))?;
    let load = pair.client.run(service.name, &load)?;
    let server = server.stop()?;
    service.check(&load, &server)?;
    let counts = server.last_json()?;
    let number = |name: &str| {
        let number = counts[name].as_u64();
        number.map_or_else(|| failed(format!("the server does not report {name}: {counts}")), Ok)
    };
    let here = Counts::read(&server)?;
    here.check_counts(&counts)?;
    let payload = number("rx_bytes")? + number("tx_bytes")? - HEADER * (number("rx_frames")? + number("tx_frames")?);
    let (messages, counts) = (number("tx_frames")? + sent(&load)?, here + Counts::read(&load)?);
    Ok(VerbCounts { messages, carried: payload / SIZE, counts })
}

/// Counts perftest, whose ends send `count` messages each.
fn theirs(lab: &Lab, pair: &Pair, perftest: &Path, test: &str, count: u64) -> Result<VerbCounts> {
    let [client, server] = perftest::run(lab, pair, perftest, test, &format!("--size {SIZE} --iters {count}"))?;
    Ok(VerbCounts { messages: 2 * count, carried: 2 * count, counts: client + server })
}

/// Returns the number of messages that a load reports as sent.
fn sent(load: &Ended) -> Result<u64> {
    let mut words =
        load.stderr.lines().filter_map(|line| line.strip_prefix("sent ")?.split_whitespace().next()?.parse().ok());
    words.next().map_or_else(|| failed(format!("the load does not report its messages: {load:?}")), Ok)
}
