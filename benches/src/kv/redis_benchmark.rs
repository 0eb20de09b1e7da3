//! `redis-benchmark` with its usual options.

use super::{CONNECTIONS, RequestKind};
use linerate_harness::Error;
use linerate_harness::namespace::Host;
use linerate_harness::process::{Process, pinned};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Program name.
pub(super) const PROGRAM: &str = "redis-benchmark";
/// Maximum time in addition to the measurement, in case the server slows down.
const AROUND: Duration = Duration::from_secs(30);
/// Requests per pipeline slot in the trial run, which determines the number of requests of the measurement.
const TRIAL: u32 = 20_000;

/// One run.
pub(super) struct Benchmark<'a> {
    /// Host of the client; `None` is this host.
    pub client: Option<&'a Host>,
    pub core: usize,
    pub address: SocketAddr,
    pub depth: u32,
}

/// Parsed output for one kind of request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Measured {
    pub rate: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

impl Benchmark<'_> {
    /// Measures GETs and SETs, each for about `duration`.
    pub fn measure(&self, sizes: (u64, u32), duration: Duration) -> Result<Vec<(RequestKind, Measured)>, Error> {
        // redis-benchmark takes a number of requests instead of a duration.
        let trial = self.run(sizes, "get", u64::from(TRIAL * self.depth), AROUND)?;
        let rate = trial.first().map_or(0.0, |(_, measured)| measured.rate);
        let requests = (rate * duration.as_secs_f64()).max(f64::from(TRIAL)) as u64;
        self.run(sizes, "set,get", requests, 4 * duration + AROUND)
    }

    fn run(
        &self,
        (keys, size): (u64, u32),
        commands: &str,
        requests: u64,
        limit: Duration,
    ) -> Result<Vec<(RequestKind, Measured)>, Error> {
        let mut command = match self.client {
            None => pinned(self.core, PROGRAM),
            Some(host) => {
                let mut command = host.command(Path::new("taskset"));
                command.args(["-c", &self.core.to_string(), PROGRAM]);
                command
            }
        };
        self.arguments(&mut command);
        command.args(["-r", &keys.to_string(), "-d", &size.to_string()]);
        command.args(["-t", commands, "-n", &requests.to_string(), "--csv"]);
        let running = Process::start(command)?;
        let command = running.command().to_owned();
        let printed = running.output(limit)?;
        let measured = parse(&printed).filter(|measured| measured.len() == commands.split(',').count());
        measured.ok_or(Error::Unexpected { command, printed })
    }

    fn arguments(&self, command: &mut Command) {
        command.args(["-h", &self.address.ip().to_string(), "-p", &self.address.port().to_string()]);
        command.args(["-c", &CONNECTIONS.to_string(), "-P", &self.depth.to_string()]);
    }
}

/// Parses the lines of its CSV table by the header.
fn parse(printed: &str) -> Option<Vec<(RequestKind, Measured)>> {
    let words =
        |line: &'_ str| -> Vec<String> { line.split(',').map(|word| word.trim_matches('"').to_owned()).collect() };
    let mut lines = printed.lines().skip_while(|line| !line.starts_with("\"test\"")).map(words);
    let names = lines.next()?;
    let at = |name: &str| names.iter().position(|other| other == name);
    let (rps, p50, p99) = (at("rps")?, at("p50_latency_ms")?, at("p99_latency_ms")?);
    let row = |words: Vec<String>| {
        let number = |at: usize| words.get(at)?.parse::<f64>().ok();
        let kind = match words.first()?.as_str() {
            "GET" => RequestKind::Gets,
            "SET" => RequestKind::Sets,
            _ => return None,
        };
        Some((kind, Measured { rate: number(rps)?, p50_us: number(p50)? * 1e3, p99_us: number(p99)? * 1e3 }))
    };
    lines.map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_table_is_parsed_by_header() {
        let printed = "WARNING: some\n\"test\",\"rps\",\"avg_latency_ms\",\"p50_latency_ms\",\"p99_latency_ms\"\n\
                       \"SET\",\"100.50\",\"9\",\"0.250\",\"0.500\"\n\"GET\",\"200.00\",\"9\",\"0.125\",\"0.375\"\n";
        let sets = Measured { rate: 100.5, p50_us: 250.0, p99_us: 500.0 };
        let gets = Measured { rate: 200.0, p50_us: 125.0, p99_us: 375.0 };
        assert_eq!(parse(printed), Some(vec![(RequestKind::Sets, sets), (RequestKind::Gets, gets)]));
        assert_eq!(parse("Error: Connection refused\n"), None);
        assert_eq!(parse("\"test\",\"rps\",\"p50_latency_ms\",\"p99_latency_ms\"\n\"GET\",\"x\",\"1\",\"1\"\n"), None);
    }
}
