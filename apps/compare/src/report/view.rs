//! Results with their statistics: what words, tables and plots are made from.

use super::names;
use super::stats::{PointStats, Spread};
use crate::results::{App, Design, Measured, Outcome, Point, Results, Row, Sweep, Swept, Threading};

/// A row, and what came of it.
#[derive(Debug)]
pub struct Seen<'a> {
    /// The row.
    pub row: &'a Row,
    /// What it is called within its application.
    pub name: String,
    /// The fixed settings.
    pub points: Vec<(Point, PointStats)>,
}

impl<'a> Seen<'a> {
    fn new(row: &'a Row) -> Self {
        let points = match &row.outcome {
            Outcome::Ran(measured) => measured.fixed.iter().map(|fixed| (fixed.point, PointStats::of(fixed))).collect(),
            Outcome::NotRun { .. } => Vec::new(),
        };
        Seen { row, name: names::row(row), points }
    }

    /// What was measured, if it ran.
    pub fn measured(&self) -> Option<&'a Measured> {
        match &self.row.outcome {
            Outcome::Ran(measured) => Some(measured),
            Outcome::NotRun { .. } => None,
        }
    }

    /// A fixed setting.
    pub fn at(&self, point: Point) -> Option<&PointStats> {
        self.points.iter().find(|(at, _)| *at == point).map(|(_, stats)| stats)
    }

    /// Its rate at a setting, if anything was answered.
    pub fn rate(&self, point: Point) -> Option<Spread> {
        self.at(point)?.rate.filter(|rate| rate.median > 0.0)
    }

    /// Its median round trip at a setting.
    pub fn p50(&self, point: Point) -> Option<Spread> {
        self.at(point)?.p50()
    }

    /// A sweep that has a value at least.
    pub fn sweep(&self, of: Swept) -> Option<&'a Sweep> {
        self.measured()?.sweeps.iter().find(|sweep| sweep.of == of && !sweep.points.is_empty())
    }

    /// Whether requests and answers come over it in order and once, whatever the link loses.
    pub fn is_reliable(&self) -> bool {
        !matches!(self.row.design, Design::Raw | Design::Datagrams)
    }

    /// Whether it is this design with its service on the worker's thread, or where there is no choice.
    pub fn is_inline(&self, design: &Design) -> bool {
        self.row.design == *design && self.row.threading != Some(Threading::Split)
    }

    /// How much its rates differed from round to round, at worst: what a value that was measured once may be off by.
    pub fn noise(&self) -> f64 {
        self.points.iter().filter_map(|(_, stats)| Some(stats.rate?.relative())).fold(0.0, f64::max)
    }

    /// What has to be said of its figures, in a word each.
    pub fn marks(&self, point: Point) -> Vec<&'static str> {
        let stats = self.at(point);
        let mut marks = Vec::new();
        if stats.is_some_and(PointStats::is_limited_by_client) {
            marks.push("client-limited");
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

/// All rows.
#[derive(Debug)]
pub struct View<'a> {
    /// What it is of.
    pub results: &'a Results,
    /// In their order.
    pub rows: Vec<Seen<'a>>,
}

impl<'a> View<'a> {
    /// Of results.
    pub fn new(results: &'a Results) -> Self {
        View { results, rows: results.rows.iter().map(Seen::new).collect() }
    }

    /// The applications that there are rows of, in their order.
    pub fn apps(&self) -> Vec<App> {
        distinct(self.rows.iter().map(|seen| seen.row.app))
    }

    /// Rows of an application.
    pub fn of(&self, app: App) -> impl Iterator<Item = &Seen<'a>> + Clone {
        self.rows.iter().filter(move |seen| seen.row.app == app)
    }

    /// Those that ran.
    pub fn ran(&self, app: App) -> impl Iterator<Item = &Seen<'a>> + Clone {
        self.of(app).filter(|seen| seen.measured().is_some())
    }

    /// The fixed settings that an application was measured at, those with the fewest requests on the way first.
    pub fn points(&self, app: App) -> Vec<Point> {
        let mut points = distinct(self.ran(app).flat_map(|seen| seen.points.iter().map(|(point, _)| *point)));
        points.sort_by_key(|point| (u64::from(point.connections) * u64::from(point.depth), point.connections));
        points
    }

    /// The rows that did not run, with why and what would make them.
    pub fn not_run(&self) -> impl Iterator<Item = (&Seen<'a>, &'a str, &'a str)> {
        self.rows.iter().filter_map(|seen| match &seen.row.outcome {
            Outcome::NotRun { why, remedy } => Some((seen, why.as_str(), remedy.as_str())),
            Outcome::Ran(_) => None,
        })
    }
}

/// Each once, in the order of the first.
pub fn distinct<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut once = Vec::new();
    for one in all {
        if !once.contains(&one) {
            once.push(one);
        }
    }
    once
}
