//! Results with their statistics: the input of texts, tables and plots.

use super::names;
use super::stats::{PointStats, Spread};
use crate::results::{App, Design, Measured, Outcome, Point, Results, Row, Sweep, Swept, Threading};

/// Link in the identifiers of verbs rows without a device.
const NO_DEVICE: &str = "rdma";

/// A row and its outcome.
#[derive(Debug)]
pub struct Seen<'a> {
    pub row: &'a Row,
    /// Name within its application.
    pub name: String,
    /// Statistics of the fixed settings.
    pub points: Vec<(Point, PointStats)>,
}

impl<'a> Seen<'a> {
    fn new(row: &'a Row) -> Self {
        let points = match &row.outcome {
            Outcome::Ran(measured) => {
                measured.fixed.iter().map(|fixed| (fixed.point, PointStats::from_rounds(fixed))).collect()
            }
            Outcome::NotRun { .. } => Vec::new(),
        };
        Seen { row, name: names::row(row), points }
    }

    /// Returns the measurements, if the row ran.
    pub fn measured(&self) -> Option<&'a Measured> {
        match &self.row.outcome {
            Outcome::Ran(measured) => Some(measured),
            Outcome::NotRun { .. } => None,
        }
    }

    /// Returns whether others disturbed a measurement of the row.
    pub fn is_disturbed(&self) -> bool {
        self.points.iter().any(|(_, stats)| stats.is_disturbed())
    }

    /// Returns whether the row did not run because the machine has no RDMA device. Its link was not selected.
    pub fn lacks_rdma(&self) -> bool {
        self.measured().is_none() && self.row.id.split('/').nth(1) == Some(NO_DEVICE)
    }

    /// Returns the statistics of a fixed setting.
    pub fn at(&self, point: Point) -> Option<&PointStats> {
        self.points.iter().find(|(at, _)| *at == point).map(|(_, stats)| stats)
    }

    /// Returns the rate at a setting, if any request was answered.
    pub fn rate(&self, point: Point) -> Option<Spread> {
        self.at(point)?.rate.filter(|rate| rate.median > 0.0)
    }

    /// Returns a sweep with at least one value.
    pub fn sweep(&self, of: Swept) -> Option<&'a Sweep> {
        self.measured()?.sweeps.iter().find(|sweep| sweep.of == of && !sweep.points.is_empty())
    }

    /// Returns the search for the highest load within the objective.
    pub fn search(&self) -> Option<&'a Sweep> {
        self.measured()?.sweeps.iter().find(|sweep| sweep.of == Swept::Objective)
    }

    /// Returns the sweeps with a batch program, one for each idle behaviour of the server.
    pub fn batches(&self) -> impl Iterator<Item = &'a Sweep> {
        self.measured().into_iter().flat_map(|measured| &measured.sweeps).filter(|sweep| sweep.of == Swept::Batch)
    }

    /// Returns whether requests and answers arrive in order and exactly once despite loss on the link.
    pub fn is_reliable(&self) -> bool {
        !matches!(self.row.design, Design::Raw | Design::Datagrams)
    }

    /// Returns whether the row uses kernel sockets, the baseline of the other rows.
    pub fn is_kernel(&self) -> bool {
        matches!(self.row.design, Design::KernelSleeping | Design::KernelSpinning)
    }

    /// Returns whether the row has this design with its service on the worker's thread, or without a choice of threads.
    pub fn is_inline(&self, design: &Design) -> bool {
        self.row.design == *design && self.row.threading != Some(Threading::Split)
    }

    /// Returns the largest relative spread of the rates: the uncertainty of a value measured once.
    pub fn noise(&self) -> f64 {
        self.points.iter().filter_map(|(_, stats)| Some(stats.rate?.relative())).fold(0.0, f64::max)
    }

    /// Returns short remarks on the measurements of a setting.
    pub fn marks(&self, point: Point) -> Vec<&'static str> {
        let stats = self.at(point);
        let mut marks = Vec::new();
        if stats.is_some_and(PointStats::is_limited_by_client) {
            marks.push("client-limited");
        }
        if stats.is_some_and(PointStats::is_disturbed) {
            marks.push("busy machine");
        }
        if self.row.co_scheduled {
            marks.push("shared core");
        }
        if self.row.link.emulated_by.is_some() {
            marks.push("emulated");
        }
        if stats.is_some_and(|stats| stats.errors > 0) {
            marks.push("errors");
        }
        marks
    }
}

/// All rows with their statistics.
#[derive(Debug)]
pub struct View<'a> {
    pub results: &'a Results,
    /// Rows in display order.
    pub rows: Vec<Seen<'a>>,
}

impl<'a> View<'a> {
    /// Creates the view of `results`.
    pub fn new(results: &'a Results) -> Self {
        View { results, rows: results.rows.iter().map(Seen::new).collect() }
    }

    /// Returns the applications with rows, in display order.
    pub fn apps(&self) -> Vec<App> {
        distinct(self.rows.iter().map(|seen| seen.row.app))
    }

    /// Returns the rows of an application.
    pub fn rows_of(&self, app: App) -> impl Iterator<Item = &Seen<'a>> + Clone {
        self.rows.iter().filter(move |seen| seen.row.app == app)
    }

    /// Returns the rows that ran.
    pub fn measured(&self) -> impl Iterator<Item = &Seen<'a>> + Clone {
        self.rows.iter().filter(|seen| seen.measured().is_some())
    }

    /// Returns the rows of an application that ran.
    pub fn ran(&self, app: App) -> impl Iterator<Item = &Seen<'a>> + Clone {
        self.measured().filter(move |seen| seen.row.app == app)
    }

    /// Returns the fixed settings of an application, in ascending order of outstanding requests.
    pub fn points(&self, app: App) -> Vec<Point> {
        settings(self.ran(app))
    }

    /// Returns the smallest and the largest number of rounds of a row at a setting.
    pub fn rounds(&self) -> Option<(usize, usize)> {
        let fixed = self.rows.iter().filter_map(Seen::measured).flat_map(|measured| &measured.fixed);
        let rounds = fixed.map(|fixed| fixed.rounds.len());
        Some((rounds.clone().min()?, rounds.max()?))
    }

    /// Returns the rows that did not run, with reason and remedy.
    pub fn not_run(&self) -> impl Iterator<Item = (&Seen<'a>, &'a str, &'a str)> {
        self.rows.iter().filter_map(|seen| match &seen.row.outcome {
            Outcome::NotRun { reason, remedy } => Some((seen, reason.as_str(), remedy.as_str())),
            Outcome::Ran(_) => None,
        })
    }
}

/// Returns the fixed settings of `rows`, in ascending order of outstanding requests.
pub fn settings<'s, 'a: 's>(rows: impl Iterator<Item = &'s Seen<'a>>) -> Vec<Point> {
    let mut points = distinct(rows.flat_map(|seen| seen.points.iter().map(|(point, _)| *point)));
    points.sort_by_key(|point| (u64::from(point.connections) * u64::from(point.depth), point.connections));
    points
}

/// Returns the distinct values in order of first occurrence.
pub fn distinct<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut once = Vec::new();
    for one in all {
        if !once.contains(&one) {
            once.push(one);
        }
    }
    once
}
