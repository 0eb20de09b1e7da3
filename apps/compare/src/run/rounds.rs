//! The fixed settings: each measured once in each round.

use super::load::{self, Done, Measure};
use super::server::{Served, Server, Summary};
use super::{Comparison, SIZE};
use crate::process::Error;
use crate::results::{App, Fixed, Outcome, Point, Round};
use crate::transfer;
use std::time::Duration;

/// What a server is asked whose keys alone are to be set.
const FILL: Point = Point { connections: 1, depth: 1 };
/// From this part of a row's rate on a ceiling below it may be the same by chance.
const DISTURBED: f64 = 0.9;
const FILL_TIME: Duration = Duration::from_millis(1);

impl Comparison {
    /// Measures each fixed setting of a row once.
    pub(super) fn round(&mut self, row: usize, round: u32, apart: bool) -> Result<(), Error> {
        if !apart {
            let mut server = self.server(row, Served::PLAIN)?;
            for (number, point) in self.schedule.points.clone().into_iter().enumerate() {
                let measured = self.point(row, &mut server, point, number == 0)?;
                self.keep(row, point, measured);
            }
            return server.stop().map(drop);
        }
        let filled = if round == 0 && self.rows[row].app == App::Kv { Some(self.filled(row)?) } else { None };
        for point in self.schedule.points.clone() {
            let mut server = self.server(row, Served::PLAIN)?;
            let mut measured = self.point(row, &mut server, point, true)?;
            let counted = server.stop()?;
            // What it did for the keys to be there is not what it did for the load; known only where it was measured.
            if self.rows[row].app == App::Echo || filled.is_some() {
                self.tell(row, counted.since(filled.unwrap_or_default()), &mut measured);
            }
            self.keep(row, point, measured);
        }
        Ok(())
    }

    fn server(&mut self, row: usize, served: Served) -> Result<Server, Error> {
        let planned = &self.rows[row];
        let joint = &self.joints[&planned.way];
        let server = Server::start(&self.setting, joint, planned, (served, self.values), 1, &self.interrupted)?;
        let line = server.command.clone();
        let measured = self.measured(row);
        if measured.server.is_empty() {
            measured.server = line;
        }
        Ok(server)
    }

    /// What a server counts whose keys are set, and that serves nothing else.
    fn filled(&mut self, row: usize) -> Result<Summary, Error> {
        let mut server = self.server(row, Served::PLAIN)?;
        let measure = Measure { time: FILL_TIME, warm_up: Duration::ZERO, ..self.plain(FILL, true) };
        let planned = &self.rows[row];
        load::run(&self.setting, &self.joints[&planned.way], planned, &mut server, measure, &self.interrupted)?;
        server.stop()
    }

    fn plain(&self, point: Point, fill: bool) -> Measure {
        let times = self.schedule.times;
        Measure {
            point,
            size: SIZE,
            served: Served::PLAIN,
            time: times.round,
            warm_up: times.warm_up,
            rate: None,
            reconnect: false,
            values: self.values,
            fill,
        }
    }

    fn point(&mut self, row: usize, server: &mut Server, point: Point, fill: bool) -> Result<Round, Error> {
        let cores = &self.setting.cores;
        // Two threads that wait for each other on one core take for ever; and two machines share no cache.
        let apart = cores.worker != cores.load && !cores.two_machines;
        let transfer_ns = if apart { transfer::nanoseconds(cores.worker, cores.load).ok() } else { None };
        let planned = &self.rows[row];
        let joint = &self.joints[&planned.way];
        let measure = self.plain(point, fill);
        let done = load::run(&self.setting, joint, planned, server, measure, &self.interrupted)?;
        let copies = joint.copies();
        self.know(row, &done);
        let mut round = done.round(transfer_ns, measure.warm_up);
        round.server.copied_below = copies.then(|| self.payload(row) * round.server.requests);
        Ok(round)
    }

    /// Bytes of payload that a server receives and sends for a request of this row.
    fn payload(&self, row: usize) -> u64 {
        match self.rows[row].app {
            App::Echo => 2 * u64::from(SIZE),
            // A value goes one way.
            App::Kv => u64::from(SIZE),
        }
    }

    /// Keeps the command line of a row's first load, and what emulates the device that it came over.
    fn know(&mut self, row: usize, done: &Done) {
        if let Some(device) = &done.loaded.device {
            let network = self.joints[&self.rows[row].way].network();
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

    fn tell(&self, row: usize, counted: Summary, round: &mut Round) {
        let Summary { copied_bytes, rx_frames, tx_frames, bursts } = counted;
        let server = &mut round.server;
        (server.copied, server.bursts) = (copied_bytes, bursts);
        // A kernel socket has none.
        if !self.rows[row].way.is_kernel() || rx_frames != Some(0) {
            (server.rx_frames, server.tx_frames) = (rx_frames, tx_frames);
        }
    }

    fn keep(&mut self, row: usize, point: Point, round: Round) {
        let fixed = &mut self.measured(row).fixed;
        match fixed.iter_mut().find(|fixed| fixed.point == point) {
            Some(fixed) => fixed.rounds.push(round),
            None => fixed.push(Fixed { point, rounds: vec![round], client_ceiling: None }),
        }
    }

    /// Measures what the load of a row reaches against the least server that speaks its protocol, and keeps the best of
    /// some times.
    pub(super) fn ceiling(&mut self, row: usize) -> Result<(), Error> {
        let planned = self.rows[row].clone();
        let Some(least) = planned.least(&self.rows).cloned() else { return Ok(()) };
        let joint = &self.joints[&planned.way];
        let mut server =
            Server::start(&self.setting, joint, &least, (Served::PLAIN, self.values), 1, &self.interrupted)?;
        let mut fill = true;
        let points = self.schedule.points.clone();
        for point in points.iter().copied().cycle().take(points.len() * self.schedule.times.ceilings as usize) {
            let measure = self.plain(point, fill);
            let joint = &self.joints[&planned.way];
            let done = load::run(&self.setting, joint, &planned, &mut server, measure, &self.interrupted)?;
            fill = false;
            let fixed = self.measured(row).fixed.iter_mut().find(|fixed| fixed.point == point);
            if let Some(fixed) = fixed {
                fixed.client_ceiling = Some(fixed.client_ceiling.unwrap_or(0.0).max(done.loaded.rate));
            }
        }
        server.stop().map(drop)
    }

    /// A load that is told exactly the same as that of the least server has reached what that row did.
    pub(super) fn set_ceilings(&mut self) {
        for row in 0..self.rows.len() {
            let planned = &self.rows[row];
            let Some(least) = planned.least(&self.rows).filter(|least| planned.loads_like(least)) else { continue };
            let Some(number) = self.rows.iter().position(|other| other.id == least.id) else { continue };
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
                fixed.client_ceiling = fixed.client_ceiling.and_then(|ceiling| believed(ceiling, rate));
            }
        }
    }
}

/// A ceiling as far as it can be believed of a row with this `rate`: what a load has reached there it can reach; and
/// one that is far below that was disturbed, and says nothing.
fn believed(ceiling: f64, rate: f64) -> Option<f64> {
    (ceiling >= DISTURBED * rate).then_some(ceiling.max(rate))
}

/// The median rate of all rounds.
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
    fn a_ceiling_is_no_lower_than_what_was_reached_unless_it_was_disturbed() {
        assert_eq!(believed(200.0, 100.0), Some(200.0));
        assert_eq!(believed(95.0, 100.0), Some(100.0));
        assert_eq!(believed(60.0, 100.0), None);
    }
}
