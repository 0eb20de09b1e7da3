//! Schedule of a comparison: its steps and their estimated durations. A comparison announces its end and keeps to it.

use super::plan::{Extent, Planned};
use super::sweep;
use crate::results::{App, Design, Point, Swept};
use std::time::Duration;

/// Default fixed settings.
pub const POINTS: [Point; 3] =
    [Point { connections: 1, depth: 1 }, Point { connections: 64, depth: 1 }, Point { connections: 64, depth: 16 }];

/// Fixed settings of a brief comparison that exceeds the limit with those by default.
const BRIEF_POINTS: [Point; 2] = [POINTS[0], POINTS[2]];

/// Time limits of the short and the full comparison.
pub const LIMITS: [Duration; 2] = [Duration::from_secs(118), Duration::from_secs(1_790)];
/// Fraction of the limit that is planned: machines are sometimes slower than expected.
const PLANNED: f64 = 0.93;

/// Rounds from which a spread is known; fewer are planned only if these exceed the limit.
const SPREAD: u32 = 3;

/// Kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Each fixed setting once; with a separate server for each if `apart`, whose counters then belong to that setting
    /// alone.
    Round {
        /// Number of the round, from 0.
        round: u32,
        /// Set if each setting has its own server.
        apart: bool,
    },
    /// Rates that loads reach against the fastest server.
    Ceiling,
    /// Division of the processor time of the server at the heaviest setting.
    Profile,
    Sweep(Swept),
}

impl Task {
    /// Returns a description, with the total number of `rounds`.
    pub fn name(&self, rounds: u32) -> String {
        match self {
            Task::Round { round, .. } => format!("round {} of {rounds}", round + 1),
            Task::Ceiling => "client ceiling".to_owned(),
            Task::Profile => "profile".to_owned(),
            Task::Sweep(of) => name(*of).to_owned(),
        }
    }
}

/// Returns the name of a sweep.
pub fn name(of: Swept) -> &'static str {
    match of {
        Swept::OfferedRate => "offered rate",
        Swept::Objective => "highest load within the objective",
        Swept::Size => "size",
        Swept::Connections => "connections",
        Swept::Depth => "depth",
        Swept::ServiceTime => "service time",
        Swept::NewConnections => "new connections",
        Swept::Incast => "incast",
        Swept::Batch => "batch program",
        Swept::Bulk => "bulk data",
    }
}

/// A step of the schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Index of the row.
    pub row: usize,
    pub task: Task,
    /// Estimated duration.
    pub takes: Duration,
}

/// Durations of measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    pub rounds: u32,
    /// Duration of a measurement of a round.
    pub round: Duration,
    /// Duration of a measurement of a sweep.
    pub sweep: Duration,
    /// Duration of the uncounted warm-up before each.
    pub warm_up: Duration,
    /// Number of measurements of a client's ceiling.
    pub ceilings: u32,
    /// Duration of a measurement with samples: about 800, 1400 or 4000 of a busy thread.
    pub profile: Duration,
}

/// Schedule of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Extent of the measurements.
    pub extent: Extent,
    /// Durations of measurements.
    pub times: Times,
    /// Steps in order.
    pub steps: Vec<Step>,
    /// The fixed settings.
    pub points: Vec<Point>,
    /// Sweeps omitted for lack of time.
    pub left_out: Vec<Swept>,
    /// Time limit.
    pub limit: Duration,
}

/// Parameters of a schedule.
#[derive(Debug, Clone, Copy)]
pub struct ScheduleRequest<'a> {
    /// Extent of the measurements, which may become [`Extent::Brief`] instead of [`Extent::Short`].
    pub extent: Extent,
    pub rounds: u32,
    /// Least number of rounds, to which further measurements may reduce them.
    pub min_rounds: u32,
    /// Duration of a measurement; without it, as long as the limit permits.
    pub round: Option<Duration>,
    /// Keys of a key-value server.
    pub keys: u64,
    /// The fixed settings.
    pub points: &'a [Point],
    /// Set to include sweeps, as far as the limit permits.
    pub sweeps: bool,
    /// Sweeps that are never omitted.
    pub requested: &'a [Swept],
    /// Set to profile the server of each row.
    pub profile: bool,
    /// Set if all servers simulate work. Clients then have no ceiling, and the service time is not swept.
    pub service_time: bool,
    /// Time limit; without it, the limit in [`LIMITS`].
    pub within: Option<Duration>,
    /// Factor of the time to start and stop programs, relative to this machine.
    pub slower: u32,
}

/// Overhead of a measurement, in seconds.
struct Cost {
    /// To start and stop a server.
    server: f64,
    /// To set all keys.
    fill: f64,
    /// To start and stop a load.
    load: f64,
}

impl Cost {
    fn estimate(row: &Planned, keys: u64, slower: u32) -> Cost {
        // EAL takes a while to start; these times allow for a busy machine.
        let (server, load, per_key) = match row.design {
            Design::Raw => (0.4, 0.3, 0.0),
            Design::Datagrams => (0.4, 0.3, 4e-6),
            Design::Native => (0.4, 0.3, 1e-6),
            Design::Smoltcp => (0.4, 0.3, 2e-6),
            Design::KernelSleeping | Design::KernelSpinning => (0.06, 0.05, 4e-6),
            Design::Verbs(_) => (0.4, 0.3, 4e-6),
        };
        let fill = if row.app.has_keys() { per_key * keys as f64 } else { 0.0 };
        let slower = f64::from(slower);
        Cost { server: server * slower, load: load * slower, fill: fill * slower }
    }
}

impl Schedule {
    /// Creates a schedule of the `rows` that can be measured.
    pub fn plan(rows: &[Planned], mut request: ScheduleRequest<'_>) -> Schedule {
        let limit = request.within.unwrap_or(LIMITS[usize::from(request.extent == Extent::Full)]);
        let mut sweeps: Vec<Swept> = match request {
            ScheduleRequest { sweeps: false, .. } => Vec::new(),
            ScheduleRequest { extent: Extent::Full, .. } => sweep::ALL.to_vec(),
            _ => sweep::SHORT.to_vec(),
        };
        sweeps.retain(|of| *of != Swept::ServiceTime || !request.service_time);
        let mut left_out = Vec::new();
        // Omit sweeps while measurements would be too short to be useful.
        let (least, worth, most) = if request.extent == Extent::Full { (0.25, 1.0, 3.0) } else { (0.06, 0.2, 0.3) };
        let times = loop {
            let fits = match request.round {
                Some(round) => round.as_secs_f64(),
                None => round_that_fits(rows, request, &sweeps, limit.as_secs_f64() * PLANNED),
            };
            let round = if request.round.is_some() { fits } else { fits.clamp(least, most) };
            let times = times(request, round);
            let over = steps(rows, request, times, &sweeps).iter().map(|step| step.takes).sum::<Duration>() > limit;
            let enough = if request.round.is_some() { !over } else { fits >= worth };
            match sweeps.pop() {
                Some(sweep) if !enough => left_out.insert(0, sweep),
                Some(sweep) => {
                    sweeps.push(sweep);
                    break times;
                }
                None if !enough && request.rounds > SPREAD.max(request.min_rounds) => request.rounds -= 1,
                // Fewer values of what was requested, rather than one of them never.
                None if over && request.extent == Extent::Short => request.extent = Extent::Brief,
                None if over && request.rounds > request.min_rounds => request.rounds -= 1,
                None if over && request.extent == Extent::Brief && request.points == POINTS => {
                    request.points = &BRIEF_POINTS;
                }
                None => break times,
            }
        };
        let points = request.points.to_vec();
        Schedule { extent: request.extent, times, steps: steps(rows, request, times, &sweeps), points, left_out, limit }
    }

    /// Returns the largest number of concurrent connections.
    pub fn most_connections(&self) -> u32 {
        let sweeps = self.steps.iter().any(|step| step.task == Task::Sweep(Swept::Connections));
        let points = self.points.iter().map(|point| point.connections);
        points.chain(sweeps.then_some(sweep::MOST_CONNECTIONS)).max().unwrap_or(0)
    }

    /// Returns the estimated duration.
    pub fn takes(&self) -> Duration {
        self.steps.iter().map(|step| step.takes).sum()
    }
}

fn times(request: ScheduleRequest<'_>, round: f64) -> Times {
    let round = Duration::from_millis((round * 1000.0) as u64);
    let is_full = request.extent == Extent::Full;
    let sweep = if !is_full { round } else { (round / 2).max(Duration::from_millis(200)).min(round) };
    let warm_up = (round / 5).clamp(Duration::from_millis(10), Duration::from_millis(300));
    let ceilings = if is_full { request.rounds.min(3) } else { 1 };
    let profile = Duration::from_millis(match request.extent {
        Extent::Brief => 400,
        Extent::Short => 700,
        Extent::Full => 2000,
    });
    Times { rounds: request.rounds, round, sweep, warm_up, ceilings, profile }
}

/// Returns the round duration in seconds for which all steps fit `limit`. The total grows about linearly with it,
/// between the bounds.
fn round_that_fits(rows: &[Planned], request: ScheduleRequest<'_>, sweeps: &[Swept], limit: f64) -> f64 {
    let total = |round| {
        let steps = steps(rows, request, times(request, round), sweeps);
        steps.iter().map(|step| step.takes).sum::<Duration>().as_secs_f64()
    };
    let one = if request.extent == Extent::Full { 0.5 } else { 0.1 };
    let per_second = (total(2.0 * one) - total(one)) / one;
    if per_second <= 0.0 { f64::INFINITY } else { one + (limit - total(one)) / per_second }
}

fn steps(rows: &[Planned], request: ScheduleRequest<'_>, times: Times, sweeps: &[Swept]) -> Vec<Step> {
    let mut steps = Vec::new();
    let is_full = request.extent == Extent::Full;
    let runs = || rows.iter().enumerate().filter(|(_, row)| row.obstacle.is_none());
    let mut add = |row: usize, task, loads: u32, servers: u32, measured: Duration| {
        let cost = Cost::estimate(&rows[row], request.keys, request.slower);
        let each = cost.load + (times.warm_up + measured).as_secs_f64();
        let takes = f64::from(servers) * (cost.server + cost.fill) + f64::from(loads) * each;
        steps.push(Step { row, task, takes: Duration::from_secs_f64(takes) });
    };
    let add_sweep = |of, add: &mut dyn FnMut(usize, Task, u32, u32, Duration)| {
        for (number, row) in runs() {
            let (loads, servers) = sweep::takes(of, row, request.extent);
            if loads > 0 {
                add(number, Task::Sweep(of), loads, servers, sweep::duration(of, times.sweep, request.extent));
            }
        }
    };
    let points = request.points.len() as u32;
    // Each round covers all rows, so that a temporary disturbance of the machine affects all rows alike.
    for round in 0..times.rounds {
        for (number, row) in runs() {
            // A separate server per setting is expensive in the short comparison: use them in the first round only.
            let apart = is_full || round == 0;
            let mut servers = if apart { points } else { 1 };
            // One more server that only sets its keys, to subtract its counters.
            servers += u32::from(round == 0 && row.app.without_tls() == App::Kv);
            add(number, Task::Round { round, apart }, points, servers, times.round);
        }
        // On a machine that is slower than expected, later rounds are skipped in place of what was requested. The full
        // comparison has time for both, and its sweeps refer to the rate of all rounds.
        if round == 0 && request.profile {
            runs().for_each(|(number, _)| add(number, Task::Profile, 1, 1, times.profile));
        }
        if round == 0 && !is_full {
            request.requested.iter().for_each(|of| add_sweep(*of, &mut add));
        }
    }
    for (number, row) in runs() {
        if !request.service_time && row.fastest_server(rows).is_some_and(|least| !row.has_same_load(least)) {
            add(number, Task::Ceiling, points * times.ceilings, 1, times.round);
        }
    }
    let requested = if is_full { request.requested } else { &[] };
    requested.iter().chain(sweeps).for_each(|of| add_sweep(*of, &mut add));
    steps
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::all;
    use super::*;

    const QUICK: ScheduleRequest<'_> = ScheduleRequest {
        extent: Extent::Short,
        rounds: 5,
        min_rounds: 5,
        round: None,
        keys: 100_000,
        points: &POINTS,
        sweeps: true,
        requested: &[],
        profile: false,
        service_time: false,
        within: None,
        slower: 1,
    };
    const FULL: ScheduleRequest<'_> = ScheduleRequest { extent: Extent::Full, keys: 1_000_000, ..QUICK };

    #[test]
    fn comparisons_fit_two_and_thirty_minutes() {
        for specs in [&["virtio-user", "kernel"][..], &["kernel"], &["virtio-user"]] {
            for (request, limit) in [(QUICK, 120), (FULL, 1800)] {
                let schedule = Schedule::plan(&all(specs, request.extent < Extent::Full), request);
                assert!(schedule.takes() < Duration::from_secs(limit), "{specs:?} {limit}: {:?}", schedule.takes());
                assert!(schedule.limit < Duration::from_secs(limit));
                assert_eq!(schedule.times.rounds, 5);
                assert!(schedule.times.round >= Duration::from_millis(60), "{specs:?}: {:?}", schedule.times);
            }
        }
        let full = Schedule::plan(&all(&["virtio-user", "kernel"], false), FULL);
        assert_eq!(full.left_out, []);
        assert!(full.times.round >= Duration::from_secs(1), "{:?}", full.times);
    }

    #[test]
    fn short_comparison_has_sweeps_if_time_permits() {
        let schedule = Schedule::plan(&all(&["kernel"], true), QUICK);
        assert_eq!((schedule.times.round, &*schedule.left_out), (Duration::from_millis(300), &[][..]));
        for of in sweep::SHORT {
            assert!(schedule.steps.iter().any(|step| step.task == Task::Sweep(of)), "{of:?}");
        }
        let many = Schedule::plan(&all(&["virtio-user", "memif", "kernel"], true), QUICK);
        assert_eq!(many.left_out, sweep::SHORT);
    }

    #[test]
    fn each_round_covers_all_rows() {
        let rows = all(&["virtio-user", "kernel"], true);
        let schedule = Schedule::plan(&rows, QUICK);
        let rounds = schedule.steps.iter().filter_map(|step| match step.task {
            Task::Round { round, apart } => Some((round, step.row, apart)),
            _ => None,
        });
        let rounds: Vec<_> = rounds.collect();
        assert_eq!(rounds.len(), 5 * rows.iter().filter(|row| row.obstacle.is_none()).count());
        assert!(rounds.is_sorted_by_key(|(round, row, _)| (*round, *row)));
        assert!(rounds.iter().all(|(round, _, apart)| *apart == (*round == 0)));
    }

    #[test]
    fn rows_with_obstacles_take_no_time() {
        let mut rows = all(&["virtio-user", "kernel"], true);
        let all = Schedule::plan(&rows, QUICK);
        for row in rows.iter_mut().filter(|row| row.spec.has_frames()) {
            row.obstacle = Some(("no".to_owned(), "do".to_owned()));
        }
        let some = Schedule::plan(&rows, QUICK);
        assert!(some.steps.iter().all(|step| rows[step.row].obstacle.is_none()));
        assert!(some.times.round > all.times.round);
    }

    #[test]
    fn given_round_duration_is_kept() {
        let request = ScheduleRequest { rounds: 1, round: Some(Duration::from_millis(50)), ..QUICK };
        let schedule = Schedule::plan(&all(&["kernel"], true), request);
        assert_eq!((schedule.times.round, schedule.times.rounds), (Duration::from_millis(50), 1));
        assert!(schedule.takes() < Duration::from_secs(20), "{:?}", schedule.takes());
    }

    #[test]
    fn fewer_measurements_take_less_time() {
        let rows = all(&["kernel"], true);
        let request = ScheduleRequest { rounds: 1, round: Some(Duration::from_millis(50)), ..QUICK };
        let takes = |request| Schedule::plan(&rows, request).takes();
        let none = Schedule::plan(&rows, ScheduleRequest { sweeps: false, ..request });
        assert!(none.steps.iter().all(|step| !matches!(step.task, Task::Sweep(_))) && none.left_out.is_empty());
        assert_eq!(none.most_connections(), 64);
        assert_eq!(Schedule::plan(&all(&["kernel"], false), FULL).most_connections(), sweep::MOST_CONNECTIONS);
        assert!(takes(ScheduleRequest { points: &POINTS[..1], ..request }) < takes(request));
        assert!(takes(ScheduleRequest { slower: 8, ..request }) > takes(request));
        assert_eq!(Schedule::plan(&rows, ScheduleRequest { points: &POINTS[1..], ..request }).points, POINTS[1..]);
    }

    #[test]
    fn short_comparison_has_requested_sweeps_in_place_of_rounds() {
        let rows = all(&["virtio-user", "kernel"], true);
        for requested in [Swept::Objective, Swept::Incast, Swept::Batch] {
            let request = ScheduleRequest { min_rounds: 1, requested: &[requested], ..QUICK };
            let schedule = Schedule::plan(&rows, request);
            let measured = schedule.steps.iter().filter(|step| step.task == Task::Sweep(requested)).count();
            let expected = rows.iter().filter(|row| sweep::takes(requested, row, Extent::Short).0 > 0).count();
            assert_eq!((measured, schedule.left_out.len()), (expected, sweep::SHORT.len()));
            assert!(schedule.times.rounds >= 3 && schedule.takes() < schedule.limit, "{:?}", schedule.takes());
        }
    }

    #[test]
    fn short_comparison_measures_all_that_is_requested() {
        let rows = all(&["virtio-user", "roce", "kernel"], true);
        let requested = [Swept::Objective, Swept::Incast, Swept::Batch];
        let request =
            ScheduleRequest { min_rounds: 1, requested: &requested, profile: true, service_time: true, ..QUICK };
        let schedule = Schedule::plan(&rows, request);
        assert!(schedule.takes() <= schedule.limit.mul_f64(0.94), "{:?}, {:?}", schedule.takes(), schedule.times);
        assert_eq!((schedule.extent, &*schedule.left_out), (Extent::Brief, &sweep::SHORT[..1]));
        let count = |task| schedule.steps.iter().filter(|step| step.task == task).count();
        assert_eq!(count(Task::Profile), rows.len());
        for of in requested {
            let expected = rows.iter().filter(|row| !sweep::values(of, row, Extent::Brief).is_empty()).count();
            assert_eq!(count(Task::Sweep(of)), expected, "{of:?}");
        }
        // They precede the rounds that a slow machine skips.
        let last = schedule.steps.iter().rposition(|step| matches!(step.task, Task::Sweep(_))).unwrap();
        assert!(!schedule.steps[..last].iter().any(|step| matches!(step.task, Task::Round { round: 1.., .. })));
    }

    #[test]
    fn profile_of_each_row_fits_the_short_comparison() {
        for (specs, rounds) in [(&["virtio-user", "kernel"][..], 3), (&["virtio-user", "roce", "kernel"], 2)] {
            let rows = all(specs, true);
            let schedule = Schedule::plan(&rows, ScheduleRequest { min_rounds: 1, profile: true, ..QUICK });
            // They follow the first round, which is the last that a slow machine may reach.
            let profiles = schedule.steps.iter().skip(rows.len()).take_while(|step| step.task == Task::Profile);
            assert!(profiles.map(|step| step.row).eq(0..rows.len()));
            assert!(schedule.times.rounds == rounds && schedule.takes() < schedule.limit, "{:?}", schedule.takes());
        }
    }

    #[test]
    fn servers_with_simulated_work_have_no_ceilings() {
        let rows = all(&["virtio-user", "kernel"], false);
        let tasks = |service_time| {
            let steps = Schedule::plan(&rows, ScheduleRequest { service_time, ..FULL }).steps;
            [Task::Ceiling, Task::Sweep(Swept::ServiceTime), Task::Sweep(Swept::OfferedRate)]
                .map(|task| steps.iter().any(|step| step.task == task))
        };
        assert_eq!((tasks(false), tasks(true)), ([true; 3], [false, false, true]));
    }

    #[test]
    fn given_limit_is_kept() {
        let rows = all(&["virtio-user", "kernel"], true);
        let within = Duration::from_secs(1_000);
        let schedule = Schedule::plan(&rows, ScheduleRequest { within: Some(within), ..FULL });
        assert!(schedule.takes() < within && schedule.limit == within, "{:?}", schedule.takes());
    }
}
