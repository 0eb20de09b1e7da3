//! What is done in which order, and how long it takes: a comparison says before it begins when it will be over, and
//! keeps to it.

use super::plan::Planned;
use super::sweep;
use crate::results::{App, Design, Point, Swept};
use std::time::Duration;

/// The fixed settings.
pub const POINTS: [Point; 3] =
    [Point { connections: 1, depth: 1 }, Point { connections: 64, depth: 1 }, Point { connections: 64, depth: 16 }];

/// How long a comparison may take, the short one and the other.
pub const LIMITS: [Duration; 2] = [Duration::from_secs(118), Duration::from_secs(1_790)];
/// What of it is planned with: machines are slower than expected at times.
const PLANNED: f64 = 0.93;

/// What is done at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Each fixed setting once; by a server of its own each, which then tells what it did for that one alone, if
    /// `apart`.
    Round {
        /// Which, from 0 on.
        round: u32,
        /// See there.
        apart: bool,
    },
    /// What the load reaches by itself at each fixed setting.
    Ceiling,
    /// A sweep.
    Sweep(Swept),
}

impl Task {
    /// What to call it where there are so many rounds.
    pub fn name(&self, rounds: u32) -> String {
        match self {
            Task::Round { round, .. } => format!("round {} of {rounds}", round + 1),
            Task::Ceiling => "what the load reaches by itself".to_owned(),
            Task::Sweep(of) => name(*of).to_owned(),
        }
    }
}

/// What changes in a sweep, in words.
pub fn name(of: Swept) -> &'static str {
    match of {
        Swept::OfferedRate => "offered rate",
        Swept::Size => "size",
        Swept::Connections => "connections",
        Swept::Depth => "depth",
        Swept::ServiceTime => "service time",
        Swept::NewConnections => "new connections",
        Swept::Bulk => "bytes one way",
    }
}

/// Something to be done for a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The row's number.
    pub row: usize,
    /// What.
    pub task: Task,
    /// How long it is expected to take.
    pub takes: Duration,
}

/// How long is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// Rounds.
    pub rounds: u32,
    /// What a measurement of a round lasts.
    pub round: Duration,
    /// What a measurement of a sweep lasts.
    pub sweep: Duration,
    /// What precedes each and does not count.
    pub warm_up: Duration,
    /// How often it is measured what a load reaches by itself.
    pub ceilings: u32,
}

/// All that is done.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// How long each part is measured.
    pub times: Times,
    /// In this order.
    pub steps: Vec<Step>,
    /// The fixed settings.
    pub points: Vec<Point>,
    /// Sweeps that there is no time for.
    pub left_out: Vec<Swept>,
    /// When it has to be over.
    pub limit: Duration,
}

/// What is asked of a schedule.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Whether it is the short comparison.
    pub quick: bool,
    /// Rounds.
    pub rounds: u32,
    /// What a measurement lasts; without it, as long as there is time for.
    pub round: Option<Duration>,
    /// Keys that a key-value server has.
    pub keys: u64,
    /// The fixed settings.
    pub points: &'a [Point],
    /// Whether there are sweeps, as far as there is time.
    pub sweeps: bool,
    /// When it has to be over; without it, as [`LIMITS`] say.
    pub within: Option<Duration>,
    /// How often as long it takes to start and to stop programs as on this machine.
    pub slower: u32,
}

/// What is spent beside measuring, in seconds.
struct Cost {
    /// To start and to stop a server.
    server: f64,
    /// To set all keys.
    fill: f64,
    /// To start and to stop a load.
    load: f64,
}

impl Cost {
    fn of(row: &Planned, keys: u64, slower: u32) -> Cost {
        // EAL takes its time; a second of a busy machine is longer than one of an idle machine.
        let (server, load, per_key) = match row.design {
            Design::Raw => (0.4, 0.3, 0.0),
            Design::Datagrams => (0.4, 0.3, 4e-6),
            Design::Native => (0.4, 0.3, 1e-6),
            Design::Smoltcp => (0.4, 0.3, 2e-6),
            Design::KernelSleeping | Design::KernelSpinning => (0.06, 0.05, 4e-6),
            Design::Verbs(_) => (0.4, 0.3, 4e-6),
        };
        let fill = if row.app == App::Kv { per_key * keys as f64 } else { 0.0 };
        let slower = f64::from(slower);
        Cost { server: server * slower, load: load * slower, fill: fill * slower }
    }
}

impl Schedule {
    /// Of the `rows` that can be measured.
    pub fn plan(rows: &[Planned], asked: Asked<'_>) -> Schedule {
        let limit = asked.within.unwrap_or(LIMITS[usize::from(!asked.quick)]);
        let mut sweeps: Vec<Swept> = match asked {
            Asked { sweeps: false, .. } => Vec::new(),
            Asked { quick: true, .. } => sweep::SHORT.to_vec(),
            Asked { quick: false, .. } => sweep::ALL.to_vec(),
        };
        let mut left_out = Vec::new();
        // As long as what is measured would be too short to be worth much, there are fewer sweeps.
        let (least, worth, most) = if asked.quick { (0.06, 0.2, 0.3) } else { (0.25, 1.0, 3.0) };
        let times = loop {
            let fits = match asked.round {
                Some(round) => round.as_secs_f64(),
                None => round_that_fits(rows, asked, &sweeps, limit.as_secs_f64() * PLANNED),
            };
            let round = if asked.round.is_some() { fits } else { fits.clamp(least, most) };
            let times = times(asked, round);
            let over = steps(rows, asked, times, &sweeps).iter().map(|step| step.takes).sum::<Duration>() > limit;
            let enough = if asked.round.is_some() { !over } else { fits >= worth };
            match sweeps.pop() {
                Some(sweep) if !enough => left_out.insert(0, sweep),
                Some(sweep) => {
                    sweeps.push(sweep);
                    break times;
                }
                None => break times,
            }
        };
        let points = asked.points.to_vec();
        Schedule { times, steps: steps(rows, asked, times, &sweeps), points, left_out, limit }
    }

    /// Connections that there are at a time, at most.
    pub fn most_connections(&self) -> u32 {
        let sweeps = self.steps.iter().any(|step| step.task == Task::Sweep(Swept::Connections));
        let points = self.points.iter().map(|point| point.connections);
        points.chain(sweeps.then_some(sweep::MOST_CONNECTIONS)).max().unwrap_or(0)
    }

    /// How long it is expected to take.
    pub fn takes(&self) -> Duration {
        self.steps.iter().map(|step| step.takes).sum()
    }
}

fn times(asked: Asked<'_>, round: f64) -> Times {
    let round = Duration::from_millis((round * 1000.0) as u64);
    let sweep = if asked.quick { round } else { (round / 2).max(Duration::from_millis(200)).min(round) };
    let warm_up = (round / 5).clamp(Duration::from_millis(10), Duration::from_millis(300));
    let ceilings = if asked.quick { 1 } else { asked.rounds.min(3) };
    Times { rounds: asked.rounds, round, sweep, warm_up, ceilings }
}

/// The seconds of a round with which all is done in `limit`: what is spent grows with them evenly, as long as no bound
/// is met.
fn round_that_fits(rows: &[Planned], asked: Asked<'_>, sweeps: &[Swept], limit: f64) -> f64 {
    let total = |round| steps(rows, asked, times(asked, round), sweeps).iter().map(|step| step.takes).sum::<Duration>();
    let (one, two) = (total(0.5).as_secs_f64(), total(1.0).as_secs_f64());
    let per_second = 2.0 * (two - one);
    if per_second <= 0.0 { f64::INFINITY } else { 0.5 + (limit - one) / per_second }
}

fn steps(rows: &[Planned], asked: Asked<'_>, times: Times, sweeps: &[Swept]) -> Vec<Step> {
    let mut steps = Vec::new();
    let runs = || rows.iter().enumerate().filter(|(_, row)| row.obstacle.is_none());
    let mut add = |row: usize, task, loads: u32, servers: u32, measured: Duration| {
        let cost = Cost::of(&rows[row], asked.keys, asked.slower);
        let each = cost.load + (times.warm_up + measured).as_secs_f64();
        let takes = f64::from(servers) * (cost.server + cost.fill) + f64::from(loads) * each;
        steps.push(Step { row, task, takes: Duration::from_secs_f64(takes) });
    };
    let points = asked.points.len() as u32;
    // Round by round over all rows, so that what disturbs the machine for a while disturbs all alike.
    for round in 0..times.rounds {
        for (number, row) in runs() {
            // A server of its own for each is dear where there is little time: then in the first round alone.
            let apart = !asked.quick || round == 0;
            let mut servers = if apart { points } else { 1 };
            // One that only has its keys set, to know what the others did before they were measured.
            servers += u32::from(round == 0 && row.app == App::Kv);
            add(number, Task::Round { round, apart }, points, servers, times.round);
        }
    }
    for (number, row) in runs() {
        if row.least(rows).is_some_and(|least| !row.loads_like(least)) {
            add(number, Task::Ceiling, points * times.ceilings, 1, times.round);
        }
    }
    for of in sweeps {
        for (number, row) in runs() {
            let (loads, servers) = sweep::takes(*of, row, asked.quick);
            if loads > 0 {
                add(number, Task::Sweep(*of), loads, servers, times.sweep);
            }
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::all;
    use super::*;

    const QUICK: Asked<'_> = Asked {
        quick: true,
        rounds: 5,
        round: None,
        keys: 100_000,
        points: &POINTS,
        sweeps: true,
        within: None,
        slower: 1,
    };
    const FULL: Asked<'_> = Asked { quick: false, keys: 1_000_000, ..QUICK };

    #[test]
    fn the_short_one_is_over_within_two_minutes_and_the_other_within_thirty() {
        for ways in [&["virtio-user", "kernel"][..], &["kernel"], &["virtio-user"]] {
            for (asked, limit) in [(QUICK, 120), (FULL, 1800)] {
                let schedule = Schedule::plan(&all(ways, asked.quick), asked);
                assert!(schedule.takes() < Duration::from_secs(limit), "{ways:?} {limit}: {:?}", schedule.takes());
                assert!(schedule.limit < Duration::from_secs(limit));
                assert_eq!(schedule.times.rounds, 5);
                assert!(schedule.times.round >= Duration::from_millis(60), "{ways:?}: {:?}", schedule.times);
            }
        }
        let full = Schedule::plan(&all(&["virtio-user", "kernel"], false), FULL);
        assert_eq!(full.left_out, []);
        assert!(full.times.round >= Duration::from_secs(1), "{:?}", full.times);
    }

    #[test]
    fn where_there_is_time_the_short_one_has_its_sweeps() {
        let schedule = Schedule::plan(&all(&["kernel"], true), QUICK);
        assert_eq!((schedule.times.round, &*schedule.left_out), (Duration::from_millis(300), &[][..]));
        for of in sweep::SHORT {
            assert!(schedule.steps.iter().any(|step| step.task == Task::Sweep(of)), "{of:?}");
        }
        let many = Schedule::plan(&all(&["virtio-user", "memif", "kernel"], true), QUICK);
        assert_eq!(many.left_out, sweep::SHORT);
    }

    #[test]
    fn rounds_go_over_all_rows_before_the_next_begins() {
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
    fn what_cannot_be_measured_takes_no_time() {
        let mut rows = all(&["virtio-user", "kernel"], true);
        let all = Schedule::plan(&rows, QUICK);
        for row in rows.iter_mut().filter(|row| row.way.has_frames()) {
            row.obstacle = Some(("no".to_owned(), "do".to_owned()));
        }
        let some = Schedule::plan(&rows, QUICK);
        assert!(some.steps.iter().all(|step| rows[step.row].obstacle.is_none()));
        assert!(some.times.round > all.times.round);
    }

    #[test]
    fn a_time_that_is_given_is_kept() {
        let asked = Asked { rounds: 1, round: Some(Duration::from_millis(50)), ..QUICK };
        let schedule = Schedule::plan(&all(&["kernel"], true), asked);
        assert_eq!((schedule.times.round, schedule.times.rounds), (Duration::from_millis(50), 1));
        assert!(schedule.takes() < Duration::from_secs(20), "{:?}", schedule.takes());
    }

    #[test]
    fn what_is_asked_for_less_takes_less() {
        let rows = all(&["kernel"], true);
        let asked = Asked { rounds: 1, round: Some(Duration::from_millis(50)), ..QUICK };
        let takes = |asked| Schedule::plan(&rows, asked).takes();
        let none = Schedule::plan(&rows, Asked { sweeps: false, ..asked });
        assert!(none.steps.iter().all(|step| !matches!(step.task, Task::Sweep(_))) && none.left_out.is_empty());
        assert_eq!(none.most_connections(), 64);
        assert_eq!(Schedule::plan(&all(&["kernel"], false), FULL).most_connections(), sweep::MOST_CONNECTIONS);
        assert!(takes(Asked { points: &POINTS[..1], ..asked }) < takes(asked));
        assert!(takes(Asked { slower: 8, ..asked }) > takes(asked));
        assert_eq!(Schedule::plan(&rows, Asked { points: &POINTS[1..], ..asked }).points, POINTS[1..]);
    }

    #[test]
    fn a_limit_that_is_given_is_kept() {
        let rows = all(&["virtio-user", "kernel"], true);
        let within = Duration::from_secs(1_000);
        let schedule = Schedule::plan(&rows, Asked { within: Some(within), ..FULL });
        assert!(schedule.takes() < within && schedule.limit == within, "{:?}", schedule.takes());
    }
}
