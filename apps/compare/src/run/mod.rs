//! Execution of a comparison: a server process and a load process for each row in turn, each on its own core.

pub mod cores;
mod link;
pub mod link_spec;
mod load;
pub mod network;
mod objective;
pub mod obstacles;
pub mod plan;
mod redis;
mod rounds;
pub mod schedule;
mod server;
mod sweep;
mod sweeps;

use super::certificate;
use super::profile::Profiler;
use super::results::{FORMAT, LinkKind, Machine, Measured, Objective, Outcome, Results, Row, Settings};
use super::utc::Utc;
use cores::Cores;
use linerate_load::services::ServiceTime;
use linerate_process::Error;
use linerate_process::interrupt::is_interrupted;
use link::Link;
use link_spec::LinkSpec;
use network::Network;
use plan::Planned;
use schedule::{Schedule, Step, Task};
use server::Values;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of an echo request and of a value.
pub const SIZE: u32 = 64;
/// Fraction of GETs among the requests of a key-value service.
pub const GETS: f64 = 0.9;
/// Zipf exponent of the keys' popularity.
pub const ZIPF: f64 = 0.99;
/// Concurrent clients above which a key-value server needs `--max-clients`; its default is twice as many.
const MANY_CLIENTS: u32 = 5_000;
/// Failures after which a row is abandoned.
const MAX_FAILURES: u32 = 2;

/// Settings common to all measurements.
#[derive(Debug, Clone)]
pub struct Setting {
    pub linerate: PathBuf,
    pub cores: Cores,
    /// See [`Settings::get_ratio`].
    pub get_ratio: f64,
    /// See [`Settings::zipf`].
    pub zipf: f64,
    /// Simulated processing time of servers, except in the sweep over it.
    pub service_time: ServiceTime,
    /// Certificate and key of servers with TLS.
    pub certificate: [PathBuf; 2],
    /// Set if there will be more concurrent clients than a server's default: reserving room for them takes time.
    pub many_clients: bool,
}

/// Progress of a comparison.
pub struct Status<'a> {
    /// Description of the current step.
    pub now: String,
    /// Number of completed steps, and number of all steps that were not skipped.
    pub steps: (usize, usize),
    /// Estimated remaining time.
    pub left: Duration,
    pub task: &'a Task,
}

/// A running comparison.
pub struct Comparison {
    setting: Setting,
    rows: Vec<Planned>,
    schedule: Schedule,
    values: Values,
    profiler: Option<Profiler>,
    results: Results,
    links: HashMap<LinkSpec, Link>,
    /// Failures of each row.
    failed: Vec<u32>,
    began: Instant,
    /// Steps skipped for lack of time.
    skipped: usize,
}

/// Configuration of a comparison.
pub struct ComparisonConfig {
    pub linerate: PathBuf,
    pub rows: Vec<Planned>,
    pub cores: Cores,
    pub schedule: Schedule,
    /// Set if this is the short comparison.
    pub quick: bool,
    /// Keys of a key-value server.
    pub keys: u64,
    /// Simulated processing time of servers, except in the sweep over it.
    pub service_time: ServiceTime,
    /// Objective of the search for the highest load, if any.
    pub objective: Option<Objective>,
    /// Profiler, if the schedule has profiles.
    pub profiler: Option<Profiler>,
    /// Set to tune the kernel for kernel sockets.
    pub kernel_tuning: bool,
    /// Machine of the server, and of the load unless separate.
    pub machine: Machine,
    /// Machine of the load, if separate, and the network between the machines.
    pub other: Option<(Machine, Network)>,
}

impl Comparison {
    /// Sets up the links of all rows, with sockets in `scratch`. Rows whose link cannot be set up are not run.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    pub fn new(config: ComparisonConfig, scratch: &Path) -> Result<Comparison, Error> {
        let ComparisonConfig { linerate, mut rows, cores, schedule, .. } = config;
        let ComparisonConfig { quick, keys, service_time, objective, profiler, kernel_tuning, machine, other, .. } =
            config;
        let (load_machine, network) = other.unzip();
        if rows.iter().any(|row| row.app.has_tls())
            && let Err(error) = certificate::write(scratch)
        {
            let obstacle = (format!("no certificate: {error}"), "set TMPDIR to a directory with space".to_owned());
            rows.iter_mut().filter(|row| row.app.has_tls()).for_each(|row| row.obstacle = Some(obstacle.clone()));
        }
        let (mut links, mut tuning) = (HashMap::new(), Vec::new());
        for row in &mut rows {
            if row.obstacle.is_some() || links.contains_key(&row.spec) {
                continue;
            }
            let made = match &network {
                Some(network) => Ok(Link::over(network, &row.spec)),
                None => Link::make(&row.spec, scratch, kernel_tuning),
            };
            match made {
                Ok((link, done)) => {
                    let new: Vec<String> = done.into_iter().filter(|done| !tuning.contains(done)).collect();
                    tuning.extend(new);
                    links.insert(row.spec.clone(), link);
                }
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(error) => {
                    let remedy = "run it as root, with iproute2 and ethtool installed".to_owned();
                    row.obstacle = Some((one_line(&error), remedy));
                }
            }
        }
        if !kernel_tuning && network.is_none() {
            tuning.push("No sysctl was set (--no-kernel-tuning).".to_owned());
        }
        let settings = Settings {
            quick,
            rounds: schedule.times.rounds,
            round_seconds: schedule.times.round.as_secs_f64(),
            warm_up_seconds: schedule.times.warm_up.as_secs_f64(),
            size: SIZE,
            points: schedule.points.clone(),
            keys,
            get_ratio: GETS,
            zipf: ZIPF,
            objective,
            service_time: (service_time != ServiceTime::NONE).then(|| service_time.to_string()),
            server_cores: cores.servers(),
            load_cores: vec![cores.load],
            kernel_tuning: if rows.iter().any(|row| row.spec.is_kernel()) { tuning } else { Vec::new() },
        };
        let results = Results {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            began: Utc::now().rfc_3339(),
            seconds: 0.0,
            finished: false,
            machine,
            load_machine,
            settings,
            rows: rows.iter().map(|row| shown(row, network.as_ref())).collect(),
            notes: Vec::new(),
        };
        let many_clients = schedule.most_connections() > MANY_CLIENTS;
        let certificate = certificate::paths(scratch);
        let setting = Setting { linerate, cores, get_ratio: GETS, zipf: ZIPF, service_time, certificate, many_clients };
        let (failed, values) = (vec![0; rows.len()], Values { keys, size: SIZE });
        let began = Instant::now();
        let skipped = 0;
        Ok(Comparison { setting, rows, schedule, values, profiler, results, links, failed, began, skipped })
    }

    /// Runs the schedule until it ends or is interrupted, and returns the results in either case. `show` receives the
    /// progress.
    pub fn run(mut self, mut show: impl FnMut(&Status<'_>)) -> Results {
        let steps = self.schedule.steps.clone();
        let mut left: Duration = self.schedule.takes();
        self.results.finished = true;
        let (mut done, mut all) = (0, steps.len());
        for step in &steps {
            left = left.saturating_sub(step.takes);
            let row = &self.rows[step.row];
            if row.obstacle.is_some() || self.failed[step.row] >= MAX_FAILURES {
                all -= 1;
                continue;
            }
            if self.began.elapsed() + step.takes > self.schedule.limit {
                self.skipped += 1;
                all -= 1;
                continue;
            }
            let now = format!("{}: {}", row.id, step.task.name(self.schedule.times.rounds));
            show(&Status { now, steps: (done, all), left: left + step.takes, task: &step.task });
            let from = Instant::now();
            let result = self.step(step);
            done += 1;
            tracing::info!(
                "{}, {:?}: {:.1?}, not {:.1?}",
                self.rows[step.row].id,
                step.task,
                from.elapsed(),
                step.takes
            );
            match result {
                Ok(()) => {}
                Err(_) if is_interrupted() => {
                    self.results.finished = false;
                    break;
                }
                Err(error) => self.has_failed(step, &error),
            }
        }
        self.end()
    }

    fn step(&mut self, step: &Step) -> Result<(), Error> {
        match step.task {
            Task::Round { round, apart } => self.round(step.row, round, apart),
            Task::Ceiling => self.ceiling(step.row),
            Task::Profile => self.profile(step.row),
            Task::Sweep(of) => self.sweep(step.row, of),
        }
    }

    fn has_failed(&mut self, step: &Step, error: &Error) {
        self.failed[step.row] += 1;
        let (id, output) = (self.rows[step.row].id.clone(), one_line(error));
        tracing::warn!("{id}: {output}");
        let Row { outcome, .. } = &mut self.results.rows[step.row];
        let nothing = matches!(outcome, Outcome::Ran(measured) if measured.fixed.is_empty());
        if nothing && self.failed[step.row] >= MAX_FAILURES {
            let remedy = "run the two commands by hand, the server's first: linerate compare -v shows them".to_owned();
            *outcome = Outcome::NotRun { reason: output, remedy };
        } else {
            self.results.notes.push(format!("{id}, {}: {output}", step.task.name(self.schedule.times.rounds)));
        }
    }

    /// Returns the measurements of a row.
    fn measured(&mut self, row: usize) -> &mut Measured {
        let Row { outcome, .. } = &mut self.results.rows[row];
        if let Outcome::NotRun { .. } = outcome {
            *outcome = Outcome::Ran(Box::default());
        }
        match outcome {
            Outcome::Ran(measured) => measured,
            Outcome::NotRun { .. } => unreachable!("the outcome was set to `Ran`"),
        }
    }

    fn end(mut self) -> Results {
        self.set_ceilings();
        // A row that failed once or was not reached has no measurements.
        for row in &mut self.results.rows {
            if matches!(&row.outcome, Outcome::Ran(measured) if measured.fixed.is_empty() && measured.sweeps.is_empty())
            {
                let (reason, remedy) = match self.results.finished {
                    true => ("nothing was measured in the available time", "allow more time: leave --quick out"),
                    false => ("the comparison was interrupted before", "let it run to its end"),
                };
                row.outcome = Outcome::NotRun { reason: reason.to_owned(), remedy: remedy.to_owned() };
            }
        }
        let notes = &mut self.results.notes;
        if self.skipped > 0 {
            let of = self.schedule.steps.len();
            notes.push(format!("{} of {of} steps were skipped for lack of time.", self.skipped));
        }
        if !self.schedule.left_out.is_empty() {
            let names: Vec<&str> = self.schedule.left_out.iter().map(|of| schedule::name(*of)).collect();
            notes.push(format!("Sweeps omitted for lack of time: {}.", names.join(", ")));
        }
        self.results.seconds = self.began.elapsed().as_secs_f64();
        self.results
    }
}

/// Creates a row of the results. Between two machines every link is a network.
fn shown(row: &Planned, network: Option<&Network>) -> Row {
    let mut row = row.row();
    if let Some(network) = network {
        (row.link.kind, row.link.emulated_by) = (LinkKind::Network, network.emulated_by(None));
    }
    row
}

/// Formats an error as one line of limited length.
fn one_line(error: &Error) -> String {
    let output = match error {
        // The last line of standard error states the reason.
        Error::Failed { failure, output, .. } => match output.lines().rev().find(|line| !line.trim().is_empty()) {
            Some(line) => format!("{failure}: {}", line.trim()),
            None => failure.clone(),
        },
        error => error.to_string(),
    };
    let words: Vec<&str> = output.split_whitespace().collect();
    let line = words.join(" ");
    match line.char_indices().nth(300) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns settings for two cores.
    pub(in super::super) fn setting() -> Setting {
        let cores = Cores::choose([&[0, 1]; 2], false, None, None).unwrap();
        let service_time = ServiceTime::NONE;
        let certificate = certificate::paths(Path::new(""));
        let linerate = "linerate".into();
        Setting { linerate, cores, get_ratio: GETS, zipf: ZIPF, service_time, certificate, many_clients: true }
    }

    #[test]
    fn progress_counts_no_skipped_step_as_done() {
        let rows = vec![plan::tests::row("echo/kernel/sleeping"), plan::tests::row("echo/kernel/spinning")];
        let request = schedule::ScheduleRequest {
            extent: plan::Extent::Short,
            rounds: 3,
            min_rounds: 3,
            round: Some(Duration::from_millis(1)),
            keys: 1,
            points: &schedule::POINTS,
            sweeps: false,
            requested: &[],
            profile: false,
            service_time: false,
            within: None,
            slower: 1000,
        };
        let mut schedule = Schedule::plan(&rows, request);
        assert_eq!(schedule.steps.len(), 7);
        // The two steps of the first round, with a server for each setting, take too long.
        schedule.limit = (schedule.steps[0].takes + schedule.steps[2].takes) / 2;
        let config = ComparisonConfig {
            // Each step fails, and a row is abandoned after two failures.
            linerate: "/nonexistent".into(),
            rows,
            cores: setting().cores,
            schedule,
            quick: true,
            keys: 1,
            service_time: ServiceTime::NONE,
            objective: None,
            profiler: None,
            kernel_tuning: false,
            machine: Machine::default(),
            other: None,
        };
        let mut shown = Vec::new();
        Comparison::new(config, Path::new("/nonexistent")).unwrap().run(|status| shown.push(status.steps));
        assert_eq!(shown, [(0, 5), (1, 5), (2, 5), (3, 5)]);
    }

    #[test]
    fn links_between_machines_are_networks_with_their_emulator() {
        let row = plan::tests::row("echo/kernel/sleeping");
        let link = |network: Option<&Network>| shown(&row, network).link;
        assert_eq!(link(None).kind, LinkKind::Loopback);
        let mut network = network::tests::network();
        assert_eq!((link(Some(&network)).kind, link(Some(&network)).emulated_by), (LinkKind::Network, None));
        network.emulated_by = Some("QEMU".to_owned());
        assert_eq!(link(Some(&network)).emulated_by.as_deref(), Some("QEMU"));
    }

    #[test]
    fn error_line_ends_with_the_last_line_of_standard_error() {
        let failed = |output: &str| Error::Failed {
            command: "linerate echo serve".into(),
            failure: "failed (exit status: 1)".into(),
            output: output.into(),
        };
        assert_eq!(one_line(&failed("INFO x\nlinerate: no such\n\n")), "failed (exit status: 1): linerate: no such");
        assert_eq!(one_line(&failed("")), "failed (exit status: 1)");
        assert!(one_line(&failed(&"é".repeat(1000))).chars().count() <= 301);
    }
}
