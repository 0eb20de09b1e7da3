//! Execution of sweeps: one variable changes, and the server is kept where possible.

use super::load::{self, Companion, Measure};
use super::plan::Planned;
use super::server::{Server, ServiceKind, Values};
use super::sweep::{self, CONNECTIONS, OPEN_DEPTH, SIZE_CONNECTIONS};
use super::{Comparison, SIZE, objective, one_line};
use crate::results::{Objective, Outcome, Point, Sweep, SweepPoint, Swept};
use linerate_load::report::Percentile;
use linerate_process::Error;
use std::time::Duration;

/// Total bytes of values of a key-value server in the sweep over sizes.
const VALUES: u64 = 64 << 20;
/// Smallest number of keys.
const FEWEST: u64 = 16;
/// Limits of the duration of a round of a search, relative to the round trips that the percentile needs, and to other
/// measurements.
const ENOUGH: f64 = 1.2;
const LONGEST: u32 = 10;

/// Name and arguments of an idle behaviour.
type Idle = (&'static str, &'static [&'static str]);

/// A sweep in progress.
struct SweepRun<'a> {
    comparison: &'a mut Comparison,
    row: Planned,
    of: Swept,
    /// Rate to which the variable is relative, if known.
    peak: Option<f64>,
    /// Iterations per second of a batch program alone, if one accompanies the load.
    alone: Option<f64>,
    served: ServiceKind,
    /// The most recent server.
    server: Option<Server>,
    /// Set if each value needs its own server.
    own: bool,
    /// Number of server ports.
    ports: u16,
    failure: Option<Error>,
}

impl Comparison {
    /// Runs a sweep of a row.
    pub(super) fn sweep(&mut self, row: usize, of: Swept) -> Result<(), Error> {
        match of {
            Swept::Bulk => {
                self.sweep_serving(row, of, ServiceKind::Discard, None)?;
                self.sweep_serving(row, of, ServiceKind::Chargen, None)
            }
            Swept::Batch => {
                let Some(most) = self.highest_offered_rate(row)? else { return Ok(()) };
                sweep::idle_variants(&self.rows[row])
                    .into_iter()
                    .try_for_each(|idle| self.sweep_serving(row, of, ServiceKind::PLAIN, Some((most, idle))))
            }
            _ => self.sweep_serving(row, of, ServiceKind::PLAIN, None),
        }
    }

    /// Returns the highest offered rate with which a row's server keeps up. An open loop fills fewer segments with
    /// several requests than a closed loop, so this rate may be far below that of the rounds.
    fn highest_offered_rate(&mut self, row: usize) -> Result<Option<f64>, Error> {
        let Some(peak) = self.peak(row) else { return Ok(None) };
        let extent = self.schedule.extent;
        let mut run = SweepRun {
            row: self.rows[row].clone(),
            comparison: self,
            of: Swept::OfferedRate,
            peak: None,
            alone: None,
            served: ServiceKind::PLAIN,
            server: None,
            own: false,
            ports: 1,
            failure: None,
        };
        let any = Objective { percentile: Percentile::P50, limit_us: f64::INFINITY };
        let (points, _) = objective::search(any, peak, extent, |rate| run.measure(rate));
        if let Some(error) = run.failure {
            return Err(error);
        }
        run.server.map(Server::stop).transpose()?;
        Ok(points.iter().rev().find(|point| point.is_within_objective()).map(|point| point.x))
    }

    /// Runs a sweep with one service. With a batch program, `idle` has the highest offered rate and the idle behaviour
    /// of the server.
    fn sweep_serving(
        &mut self,
        row: usize,
        of: Swept,
        served: ServiceKind,
        idle: Option<(f64, Idle)>,
    ) -> Result<(), Error> {
        let (mut planned, extent) = (self.rows[row].clone(), self.schedule.extent);
        let own = of == Swept::ServiceTime || of == Swept::Size && planned.app.has_keys();
        let values = sweep::values(of, &planned, extent);
        let ports = sweep::ports(of, &values);
        let (mut setting, mut peak) = (self.setting_of(row, of, served), self.peak(row));
        let mut alone = None;
        if let Some((most, (name, args))) = idle {
            (setting, peak) = (name.to_owned(), Some(most));
            planned.server.extend(args);
            let time = sweep::duration(of, self.schedule.times.sweep, extent);
            alone = Some(load::batch_alone(&self.setting, &self.links[&planned.spec], time)?.rate());
        }
        let sought = self.results.settings.objective;
        let comparison = &mut *self;
        let mut sweeping =
            SweepRun { comparison, row: planned, of, peak, alone, served, server: None, own, ports, failure: None };
        let mut resolution = None;
        let (points, ended) = match (of, peak, sought) {
            (Swept::OfferedRate, Some(peak), _) => sweep::offered_rate(peak, extent, |rate| sweeping.measure(rate)),
            (Swept::Objective, Some(peak), Some(sought)) => {
                resolution = Some(objective::resolution(peak, extent));
                objective::search(sought, peak, extent, |rate| sweeping.measure(rate))
            }
            (Swept::OfferedRate | Swept::Objective, ..) | (Swept::Batch, None, _) => return Ok(()),
            _ => sweeping.all(&values),
        };
        let SweepRun { server, failure, .. } = sweeping;
        if let Some(Error::Interrupted) = failure {
            return Err(Error::Interrupted);
        }
        self.measured(row).sweeps.push(Sweep { of, setting, points, ended, resolution });
        // A server of a failed sweep is stopped by dropping it.
        match server.filter(|_| failure.is_none()) {
            Some(server) => server.stop().map(drop),
            None => Ok(()),
        }
    }

    /// Returns the rate of a row with the most outstanding requests: the median of the rounds.
    fn peak(&self, row: usize) -> Option<f64> {
        let Outcome::Ran(measured) = &self.results.rows[row].outcome else { return None };
        let most = measured.fixed.iter().find(|fixed| Some(&fixed.point) == self.schedule.points.last())?;
        super::rounds::median(most).filter(|peak| *peak > 0.0)
    }

    fn setting_of(&self, row: usize, of: Swept, served: ServiceKind) -> String {
        let connections = self.rows[row].has_connections();
        let many = if connections { format!("{CONNECTIONS} connections") } else { format!("{CONNECTIONS} at a time") };
        match of {
            Swept::OfferedRate | Swept::Objective => {
                format!("{many}, up to {OPEN_DEPTH} requests on each, {SIZE} bytes")
            }
            Swept::Size if connections => format!("{SIZE_CONNECTIONS} connections, depth 1"),
            Swept::Size => format!("{SIZE_CONNECTIONS} at a time"),
            Swept::Connections => format!("depth 1, {SIZE} bytes"),
            Swept::Depth if connections => format!("1 connection, {SIZE} bytes"),
            Swept::Depth => format!("{SIZE} bytes"),
            Swept::ServiceTime => format!("{many}, depth 1, {SIZE} bytes"),
            Swept::NewConnections | Swept::Incast => format!("one request of {SIZE} bytes on each"),
            Swept::Batch => String::new(),
            Swept::Bulk if served == ServiceKind::Discard => "data to the server (discard)".to_owned(),
            Swept::Bulk => "data from the server (chargen)".to_owned(),
        }
    }

    /// Returns the parameters of a measurement at `x`.
    fn measure_at(&self, of: Swept, served: ServiceKind, peak: Option<f64>, x: f64) -> Measure {
        let times = self.schedule.times;
        let point = |connections: u32, depth: u32| Point { connections, depth };
        let whole = x as u32;
        let mut measure = Measure {
            point: point(CONNECTIONS, 1),
            size: SIZE,
            served,
            time: sweep::duration(of, times.sweep, self.schedule.extent),
            warm_up: times.warm_up,
            rate: None,
            reconnect: false,
            incast: false,
            values: self.values,
            fill: false,
        };
        match of {
            Swept::OfferedRate => {
                measure.rate = Some(x);
                measure.point.depth = OPEN_DEPTH;
            }
            Swept::Objective => {
                measure.rate = Some(x);
                measure.point.depth = OPEN_DEPTH;
                let needed = self.results.settings.objective.map_or(0, |sought| sought.percentile.min_samples());
                let enough = Duration::try_from_secs_f64(ENOUGH * needed as f64 / x).unwrap_or(Duration::MAX);
                measure.time = enough.clamp(times.sweep, LONGEST * times.sweep);
            }
            Swept::Size => {
                (measure.size, measure.point) = (whole, point(SIZE_CONNECTIONS, 1));
                let keys = (VALUES / u64::from(whole.max(1))).max(FEWEST).min(self.values.keys);
                measure.values = Values { keys, size: whole };
            }
            Swept::Batch => {
                measure.rate = peak.map(|peak| peak * x / 100.0);
                measure.point.depth = OPEN_DEPTH;
            }
            Swept::Connections | Swept::Bulk => measure.point = point(whole, 1),
            Swept::Depth => measure.point = point(1, whole),
            Swept::ServiceTime => measure.served = ServiceKind::App { service_us: x },
            Swept::NewConnections => (measure.point, measure.reconnect) = (point(whole, 1), true),
            Swept::Incast => (measure.point, measure.incast) = (point(whole, 1), true),
        }
        measure
    }
}

impl SweepRun<'_> {
    /// Measures at each value, until one fails.
    fn all(&mut self, values: &[f64]) -> (Vec<SweepPoint>, Option<String>) {
        let mut points = Vec::new();
        for x in values {
            match self.measure(*x) {
                Ok(point) => points.push(point),
                Err(reason) => return (points, Some(format!("at {x}: {reason}"))),
            }
        }
        (points, None)
    }

    fn measure(&mut self, x: f64) -> Result<SweepPoint, String> {
        let measured = self.try_measure(x);
        measured.map_err(|error| {
            let reason = one_line(&error);
            self.failure = Some(error);
            reason
        })
    }

    fn try_measure(&mut self, x: f64) -> Result<SweepPoint, Error> {
        let mut measure = self.comparison.measure_at(self.of, self.served, self.peak, x);
        if self.own
            && let Some(server) = self.server.take()
        {
            server.stop()?;
        }
        let Comparison { setting, links, .. } = &*self.comparison;
        let planned = &self.row;
        let link = &links[&planned.spec];
        let server = match &mut self.server {
            Some(server) => server,
            none => {
                measure.fill = true;
                let served = (measure.served, measure.values);
                none.insert(Server::start(setting, link, planned, served, self.ports)?)
            }
        };
        let companion = if self.alone.is_some() { Companion::Batch } else { Companion::None };
        let done = load::run_with(setting, link, planned, server, measure, companion)?;
        done.check(self.of)?;
        let batch = done.batch.zip(self.alone.filter(|alone| *alone > 0.0)).map(|(batch, alone)| batch.rate() / alone);
        Ok(SweepPoint { batch, ..done.point(x, &measure) })
    }
}
