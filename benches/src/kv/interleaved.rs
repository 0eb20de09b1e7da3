//! Interleaved measurement of the service and echo: both pairs of processes exist, and while one pair runs, the other
//! is stopped. Disturbances of a shared machine then affect both alike, so their ratio is more precise than that of two
//! successive loads.

use super::servers::Server;
use super::{ALONE, CONNECTIONS, PER_MILLION, Setting};
use crate::distance::{Cores, at_distance, group_by_distance, is_comparable};
use crate::echo_pair::{self, Network, StackEngine};
use crate::requirements::ratios::AtDistance;
use linerate_apps::inspect::{self, Counters, Value};
use linerate_harness::Error;
use linerate_harness::interrupt::is_interrupted;
use linerate_harness::process::Process;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Duration of one measured slot.
pub const TURN: Duration = Duration::from_secs(1);
/// Time between resuming a pair and its measurement, until its caches are warm.
const SETTLING: Duration = Duration::from_millis(250);
/// Maximum time until a load begins, in addition to setting its keys.
const PATIENCE: Duration = Duration::from_secs(30);
/// Metric that a load counts.
const REQUESTS: &str = "linerate_requests_total";

/// Requests per second in two successive slots.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rates {
    /// Rate of the service.
    pub kv: f64,
    /// Rate of echo.
    pub echo: f64,
}

/// Results of all slots with the cores at one distance.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interleaved {
    /// Median transfer time of a cache line between the two cores, before and after, in nanoseconds.
    pub transfer_ns: f64,
    /// Number of slots of each.
    pub turns: usize,
    /// Median rates.
    pub rates: Rates,
    /// Quartiles of the ratios of each slot of the service to its neighbour of echo.
    pub ratio: [f64; 3],
}

/// Slots after which all processes are restarted, because their speed depends on their memory placement.
const TOGETHER: usize = 4;
/// Minimum number of slots per distance.
const FEWEST: usize = 3;

impl Interleaved {
    /// Returns the results of `turns`, each with its distance, for each distance with enough slots, nearest first.
    pub fn of(turns: &[(f64, Rates)]) -> Vec<Interleaved> {
        let alike = group_by_distance(turns.iter().map(|(distance, _)| *distance).collect());
        let enough = alike.iter().filter(|alike| alike.len() >= FEWEST);
        let at_one = |alike: &Vec<f64>| {
            let quartiles = |figure: fn(&Rates) -> f64| {
                let mut figures: Vec<f64> = at_distance(alike, turns).map(figure).collect();
                figures.sort_by(f64::total_cmp);
                [1, 2, 3].map(|quarter| figures[(figures.len() - 1) * quarter / 4])
            };
            Interleaved {
                transfer_ns: alike[alike.len() / 2],
                turns: alike.len(),
                rates: Rates { kv: quartiles(|rates| rates.kv)[1], echo: quartiles(|rates| rates.echo)[1] },
                ratio: quartiles(|rates| rates.kv / rates.echo),
            }
        };
        enough.map(at_one).collect()
    }
}

impl AtDistance for Interleaved {
    fn transfer_ns(&self) -> f64 {
        self.transfer_ns
    }
}

/// Measures about `turns` slots of the service and of echo, over a separate link each, with one request in flight per
/// connection. Returns them with the distance of the cores, except slots during which it changed.
pub fn measure(setting: &Setting, cores: Cores, turns: usize) -> Result<Vec<(f64, Rates)>, Error> {
    let mut rates = Vec::with_capacity(turns);
    for _ in 0..turns.div_ceil(TOGETHER) {
        rates.extend(measure_together(setting, cores, TOGETHER)?);
    }
    Ok(rates)
}

/// Measures as [`measure`] does, with the same processes.
fn measure_together(setting: &Setting, cores: Cores, turns: usize) -> Result<Vec<(f64, Rates)>, Error> {
    let mut setting = setting.clone();
    let filling = PATIENCE + PER_MILLION.mul_f64(setting.keys as f64 / 1e6);
    // The loads end after twice the expected time, in case this process dies.
    setting.pair.duration = 2 * (filling + PATIENCE + 2 * (SETTLING + TURN) * turns.try_into().unwrap_or(u32::MAX));
    let mut kv = Pair::kv(&setting, filling)?;
    let mut echo = Pair::echo(&setting.pair)?;
    let mut rates = Vec::with_capacity(turns);
    let mut before = cores.distance()?;
    for turn in 0..turns {
        if is_interrupted() {
            return Err(Error::Interrupted);
        }
        // Alternate the order, so that a steady drift favours neither.
        let both = if turn % 2 == 0 {
            Rates { kv: kv.rate()?, echo: echo.rate()? }
        } else {
            Rates { echo: echo.rate()?, kv: kv.rate()? }
        };
        let after = cores.distance()?;
        if is_comparable(before, after) {
            rates.push((before.max(after), both));
        }
        before = after;
    }
    kv.end()?;
    echo.end()?;
    Ok(rates)
}

/// Server and its load, stopped except in their slots.
struct Pair {
    load: Process,
    server: Process,
    counters: inspect::Process,
}

impl Pair {
    fn kv(setting: &Setting, filling: Duration) -> Result<Pair, Error> {
        let link = setting.link();
        let server = Server::linerate(setting.serve(&link.server))?;
        let mut load = setting.load_both(&link.load, server.address, ALONE);
        load.arg("--verbose").env_remove("RUST_LOG");
        Pair::begun(load, server.process, filling)
    }

    fn echo(setting: &echo_pair::Setting) -> Result<Pair, Error> {
        // A separate link.
        let setting = echo_pair::Setting { scratch: setting.scratch.join("echo"), ..setting.clone() };
        let failed = |error| Error::Start { program: setting.scratch.display().to_string(), error };
        fs::create_dir_all(&setting.scratch).map_err(failed)?;
        let network = Network::Virtio(StackEngine::Native);
        let pair = echo_pair::Pair::new(&setting, network);
        let server = pair.start_server()?;
        Pair::begun(pair.load(&server, CONNECTIONS), server.process, PATIENCE)
    }

    /// Starts `load`, which logs its progress, waits until it measures, and stops both processes.
    fn begun(load: Command, server: Process, limit: Duration) -> Result<Pair, Error> {
        let mut load = Process::start(load)?;
        if load.wait_for_stderr(&["measuring"], limit)?.is_none() {
            return Err(load.failed("ended before it measured"));
        }
        let counters = inspect::with_pid(load.id());
        let counters = counters.map_err(|error| load.failed(&format!("cannot be inspected ({error})")))?;
        let pair = Pair { load, server, counters };
        pair.pause();
        Ok(pair)
    }

    /// Runs one slot. Returns requests per second.
    fn rate(&mut self) -> Result<f64, Error> {
        self.server.resume();
        self.load.resume();
        thread::sleep(SETTLING);
        let (from, before) = self.requests()?;
        thread::sleep(TURN);
        let (until, after) = self.requests()?;
        self.pause();
        Ok((after - before) as f64 / (until - from).max(1) as f64 * 1e6)
    }

    fn pause(&self) {
        self.load.pause();
        self.server.pause();
    }

    /// Returns the load's clock in microseconds and its number of answered requests.
    fn requests(&mut self) -> Result<(u64, u64), Error> {
        let counters = self.counters.counters();
        let counters = counters.map_err(|error| self.load.failed(&format!("cannot be inspected ({error})")))?;
        let requests =
            requests(&counters).ok_or_else(|| self.load.failed("did not report its requests within a second"))?;
        Ok((counters.at_us, requests))
    }

    /// Ends both processes; a load with errors is an error.
    fn end(self) -> Result<(), Error> {
        self.server.resume();
        self.load.stop()?;
        self.server.stop().map(|_| ())
    }
}

/// Returns the requests of all workers, if all have reported them.
fn requests(counters: &Counters) -> Option<u64> {
    let of_one = |worker: &Option<BTreeMap<String, Value>>| match worker.as_ref()?.get(REQUESTS)? {
        Value::One(requests) => Some(*requests),
        Value::Each(_) => None,
    };
    counters.workers.iter().map(of_one).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_that_of_neighbouring_slots_at_one_distance() {
        // A slow period affects both.
        let near = [(30.0, 40.0), (3.0, 4.0), (30.0, 60.0), (30.0, 30.0), (15.0, 20.0)];
        let mut turns: Vec<_> = near.into_iter().map(|(kv, echo)| (35.0, Rates { kv, echo })).collect();
        turns.extend([(160.0, Rates { kv: 9.0, echo: 10.0 }); FEWEST]);
        turns.extend([(900.0, Rates { kv: 1.0, echo: 10.0 }); FEWEST - 1]);
        let [near, far] = Interleaved::of(&turns)[..] else { panic!("too few at 900 ns") };
        assert_eq!((near.transfer_ns, near.turns, near.ratio), (35.0, 5, [0.75, 0.75, 0.75]));
        assert_eq!(near.rates, Rates { kv: 30.0, echo: 30.0 });
        assert_eq!((far.transfer_ns, far.turns, far.ratio), (160.0, 3, [0.9, 0.9, 0.9]));
        assert_eq!(Interleaved::of(&turns[2..5])[0].ratio, [0.5, 0.75, 0.75]);
        assert_eq!(Interleaved::of(&[]), []);
    }

    #[test]
    fn requests_are_known_once_all_workers_have_reported() {
        let counter = |requests| Some(BTreeMap::from([(REQUESTS.to_owned(), Value::One(requests))]));
        let counters = |workers| requests(&Counters { at_us: 1, workers });
        assert_eq!(counters(vec![counter(2), counter(3)]), Some(5));
        assert_eq!(counters(vec![counter(2), None]), None);
        assert_eq!(counters(vec![Some(BTreeMap::new())]), None);
    }
}
