//! Rounds: one measurement of each fixed setting.

use super::load::{self, Companion, LoadResult, Measure};
use super::server::{Server, ServiceKind, Summary};
use super::{Comparison, SIZE};
use crate::results::{App, Fixed, Outcome, Point, Profile, Round};
use crate::transfer;
use linerate_load::services::ServiceTime;
use linerate_process::Error;
use std::time::Duration;

/// Load that only sets keys.
const FILL: Point = Point { connections: 1, depth: 1 };
/// Fraction of a row's rate below which a lower ceiling is attributed to a disturbance.
const PLAUSIBLE: f64 = 0.9;
const FILL_TIME: Duration = Duration::from_millis(1);

impl Comparison {
    /// Measures each fixed setting of a row once.
    pub(super) fn round(&mut self, row: usize, round: u32, apart: bool) -> Result<(), Error> {
        if !apart {
            let mut server = self.server(row, ServiceKind::PLAIN)?;
            for (number, point) in self.schedule.points.clone().into_iter().enumerate() {
                let measured = self.point(row, &mut server, point, number == 0)?;
                self.record_round(row, point, measured);
            }
            return server.stop().map(drop);
        }
        let filled =
            if round == 0 && self.rows[row].app.without_tls() == App::Kv { Some(self.filled(row)?) } else { None };
        for point in self.schedule.points.clone() {
            let mut server = self.server(row, ServiceKind::PLAIN)?;
            let mut measured = self.point(row, &mut server, point, true)?;
            let counted = server.stop()?;
            // Subtract the counters of filling, where they were measured.
            if self.rows[row].app.without_tls() != App::Kv || filled.is_some() {
                self.add_counters(row, counted.since(filled.unwrap_or_default()), &mut measured);
            }
            self.record_round(row, point, measured);
        }
        Ok(())
    }

    fn server(&mut self, row: usize, served: ServiceKind) -> Result<Server, Error> {
        let planned = &self.rows[row];
        let link = &self.links[&planned.spec];
        let server = Server::start(&self.setting, link, planned, (served, self.values), 1)?;
        let line = server.command.clone();
        let measured = self.measured(row);
        if measured.server.is_empty() {
            measured.server = line;
        }
        Ok(server)
    }

    /// Returns the counters of a server that only had its keys set.
    fn filled(&mut self, row: usize) -> Result<Summary, Error> {
        let mut server = self.server(row, ServiceKind::PLAIN)?;
        let measure = Measure { time: FILL_TIME, warm_up: Duration::ZERO, ..self.plain(FILL, true) };
        let planned = &self.rows[row];
        load::run(&self.setting, &self.links[&planned.spec], planned, &mut server, measure)?;
        server.stop()
    }

    fn plain(&self, point: Point, fill: bool) -> Measure {
        let times = self.schedule.times;
        Measure {
            point,
            size: SIZE,
            served: ServiceKind::PLAIN,
            time: times.round,
            warm_up: times.warm_up,
            rate: None,
            reconnect: false,
            incast: false,
            values: self.values,
            fill,
        }
    }

    fn point(&mut self, row: usize, server: &mut Server, point: Point, fill: bool) -> Result<Round, Error> {
        let cores = &self.setting.cores;
        // Two spinning threads on one core would take forever, and two machines share no cache.
        let apart = cores.worker != cores.load && !cores.two_machines;
        let transfer_ns = if apart { transfer::nanoseconds(cores.worker, cores.load).ok() } else { None };
        let planned = &self.rows[row];
        let link = &self.links[&planned.spec];
        let measure = self.plain(point, fill);
        let done = load::run(&self.setting, link, planned, server, measure)?;
        let copies = link.copies();
        self.record_device(row, &done);
        let mut round = done.round(transfer_ns, measure.warm_up);
        let payload = self.payload(row).filter(|_| copies);
        round.server.copied_below = payload.map(|payload| payload * round.server.requests);
        Ok(round)
    }

    /// Returns the payload bytes that a server receives and sends per request of this row, if they are known.
    fn payload(&self, row: usize) -> Option<u64> {
        match self.rows[row].app {
            App::Echo => Some(2 * u64::from(SIZE)),
            // Only one of request and answer carries a value.
            App::Kv => Some(u64::from(SIZE)),
            // The heads are longer than the page, redis-server counts no copies, and a record is longer than its data.
            App::Http | App::Redis | App::EchoTls | App::KvTls => None,
        }
    }

    /// Records the command line of a row's first load, and the emulation of its device.
    fn record_device(&mut self, row: usize, done: &LoadResult) {
        if let Some(device) = &done.loaded.device {
            let network = self.links[&self.rows[row].spec].network();
            let emulated_by = device.emulated_by.as_deref();
            self.results.rows[row].link.emulated_by = match network {
                Some(network) => network.emulated_by(emulated_by),
                None => emulated_by.map(str::to_owned),
            };
        }
        let measured = self.measured(row);
        if measured.load.is_empty() {
            measured.load.clone_from(&done.command);
        }
    }

    fn add_counters(&self, row: usize, counted: Summary, round: &mut Round) {
        let Summary { copied_bytes, rx_frames, tx_frames, bursts } = counted;
        let server = &mut round.server;
        (server.copied, server.bursts) = (copied_bytes, bursts);
        // Kernel sockets have no frames.
        if !self.rows[row].spec.is_kernel() || rx_frames != Some(0) {
            (server.rx_frames, server.tx_frames) = (rx_frames, tx_frames);
        }
    }

    fn record_round(&mut self, row: usize, point: Point, round: Round) {
        let fixed = &mut self.measured(row).fixed;
        match fixed.iter_mut().find(|fixed| fixed.point == point) {
            Some(fixed) => fixed.rounds.push(round),
            None => fixed.push(Fixed { point, rounds: vec![round], client_ceiling: None }),
        }
    }

    /// Divides the processor time of a row's server at the heaviest setting, where it has the fewest polls without a
    /// request.
    pub(super) fn profile(&mut self, row: usize) -> Result<(), Error> {
        let Some(point) = self.schedule.points.last().copied() else { return Ok(()) };
        let mut server = self.server(row, ServiceKind::PLAIN)?;
        let Some(profiler) = &self.profiler else { return Ok(()) };
        let measure = Measure { time: self.schedule.times.profile, ..self.plain(point, true) };
        let planned = &self.rows[row];
        let (link, companion) = (&self.links[&planned.spec], Companion::Profiler(profiler));
        let done = load::run_with(&self.setting, link, planned, &mut server, measure, companion)?;
        server.stop()?;
        let (event, parts) = (profiler.event, done.parts.clone());
        let used = done.round(None, measure.warm_up).server;
        self.measured(row).profile = parts.zip(used.cpu_seconds).map(|(samples, cpu_seconds)| Profile {
            point,
            requests: used.requests,
            cpu_seconds,
            event,
            samples,
        });
        Ok(())
    }

    /// Measures the rate that the row's load reaches against the fastest server of its protocol, and records the best
    /// of several runs.
    pub(super) fn ceiling(&mut self, row: usize) -> Result<(), Error> {
        let planned = self.rows[row].clone();
        let Some(fastest) = planned.fastest_server(&self.rows).cloned() else { return Ok(()) };
        let link = &self.links[&planned.spec];
        let mut server = Server::start(&self.setting, link, &fastest, (ServiceKind::PLAIN, self.values), 1)?;
        let mut fill = true;
        let points = self.schedule.points.clone();
        for point in points.iter().copied().cycle().take(points.len() * self.schedule.times.ceilings as usize) {
            let measure = self.plain(point, fill);
            let link = &self.links[&planned.spec];
            let done = load::run(&self.setting, link, &planned, &mut server, measure)?;
            fill = false;
            let fixed = self.measured(row).fixed.iter_mut().find(|fixed| fixed.point == point);
            if let Some(fixed) = fixed {
                fixed.client_ceiling = Some(fixed.client_ceiling.unwrap_or(0.0).max(done.loaded.rate));
            }
        }
        server.stop().map(drop)
    }

    /// Sets the ceilings of rows whose load has the same arguments as the load of the fastest server: the rates of the
    /// fastest server.
    pub(super) fn set_ceilings(&mut self) {
        // The fastest server is limited by its work, not by the load.
        if self.setting.service_time != ServiceTime::NONE {
            return;
        }
        for row in 0..self.rows.len() {
            let planned = &self.rows[row];
            let Some(fastest) = planned.fastest_server(&self.rows).filter(|fastest| planned.has_same_load(fastest))
            else {
                continue;
            };
            let Some(number) = self.rows.iter().position(|other| other.id == fastest.id) else { continue };
            let reached: Vec<(Point, f64)> = match &self.results.rows[number].outcome {
                Outcome::Ran(measured) => {
                    measured.fixed.iter().filter_map(|fixed| Some((fixed.point, median(fixed)?))).collect()
                }
                Outcome::NotRun { .. } => Vec::new(),
            };
            let Outcome::Ran(measured) = &mut self.results.rows[row].outcome else { continue };
            for fixed in &mut measured.fixed {
                fixed.client_ceiling = reached.iter().find(|(point, _)| *point == fixed.point).map(|(_, rate)| *rate);
            }
        }
        for row in &mut self.results.rows {
            let Outcome::Ran(measured) = &mut row.outcome else { continue };
            for fixed in &mut measured.fixed {
                let rate = median(fixed).unwrap_or(0.0);
                fixed.client_ceiling = fixed.client_ceiling.and_then(|ceiling| plausible_ceiling(ceiling, rate));
            }
        }
    }
}

/// Returns the ceiling of a row with this `rate`, at least the rate itself; `None` for a measurement far below the
/// rate, which was disturbed.
fn plausible_ceiling(ceiling: f64, rate: f64) -> Option<f64> {
    (ceiling >= PLAUSIBLE * rate).then_some(ceiling.max(rate))
}

/// Returns the median rate of all rounds.
pub(super) fn median(fixed: &Fixed) -> Option<f64> {
    let mut rates: Vec<f64> = fixed
        .rounds
        .iter()
        .filter(|round| round.seconds > 0.0)
        .map(|round| round.requests as f64 / round.seconds)
        .collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceiling_is_at_least_the_rate_unless_disturbed() {
        assert_eq!(plausible_ceiling(200.0, 100.0), Some(200.0));
        assert_eq!(plausible_ceiling(95.0, 100.0), Some(100.0));
        assert_eq!(plausible_ceiling(60.0, 100.0), None);
    }
}
