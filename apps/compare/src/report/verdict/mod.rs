//! Verdict of a comparison: at most four sentences, a plot and a table, the same in every format.

use super::chart::{self, Plot};
use super::doc::{Cell, Table};
use super::names::{self, list, si, three};
use super::ranking::{self, Quantity, Ranked, shown};
use super::stats::PointStats;
use super::view::{Seen, View, distinct};
use super::words::{Finding, NO_DIFFERENCE, Weight};
use crate::results::{App, Point};
use std::cmp::Ordering;

/// Verdict of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Sentences on a busy machine, throughput, latency and reliability. A sentence without data is absent.
    pub sentences: Vec<String>,
    /// Plot of the rows returned by [`shown`], for formats with plots.
    pub plot: Option<Plot>,
    /// Values of the same rows, for formats without plots.
    pub table: Table,
}

/// Returns the verdict on `view` with the caveats of `findings`.
pub fn verdict(view: &View, findings: &[Finding]) -> Verdict {
    let mut sentences: Vec<String> = disturbed(view).into_iter().collect();
    match view.measured().next() {
        Some(_) => sentences.extend(Quantity::ALL.into_iter().filter_map(|quantity| comparison(view, quantity))),
        None => sentences.push("Nothing was measured, so there is no verdict.".to_owned()),
    }
    sentences.push(reliability(view, findings));
    Verdict { sentences, plot: chart::headline(view), table: table(view) }
}

/// Joins clauses of applications to a sentence. A setting precedes the clauses that it applies to.
fn sentence(clauses: Vec<(Point, String)>) -> Option<String> {
    let mut sentence = String::new();
    let mut before = None;
    for (point, clause) in clauses {
        match (before, sentence.is_empty()) {
            (_, true) => sentence = format!("On {}, {clause}", names::point(point)),
            (Some(before), false) if before == point => sentence += &format!("; {clause}"),
            _ => sentence += &format!("; on {}, {clause}", names::point(point)),
        }
        before = Some(point);
    }
    (!sentence.is_empty()).then(|| sentence + ".")
}

/// Row names of a clause. The next clause omits its row names if they are equal.
#[derive(Default)]
struct Rows(Vec<String>);

impl Rows {
    /// Returns a function that appends the name of a row, unless the preceding clause had the same rows.
    fn naming(&mut self, sides: &[Option<Ranked>; 2]) -> impl Fn(&Seen) -> String + use<> {
        let names: Vec<String> = sides.iter().flatten().map(|(seen, _)| seen.name.clone()).collect();
        let is_same = names == self.0;
        self.0 = names;
        move |seen| if is_same { String::new() } else { format!(" over {}", seen.name) }
    }
}

/// States that others used the cores, if they did.
pub fn disturbed(view: &View) -> Option<String> {
    let most = view.rows.iter().flat_map(|seen| &seen.points).filter(|(_, stats)| stats.is_disturbed());
    let most = most.filter_map(|(_, stats)| Some(stats.others?.median)).max_by(f64::total_cmp)?;
    let rows = view.rows.iter().filter(|seen| seen.is_disturbed()).count();
    let ran = view.measured().count();
    Some(format!(
        "The machine was busy: other programs or virtual machines had up to {most:.0} % of the time of the cores in \
         {rows} of {ran} rows (marked busy machine), whose figures and ratios do not hold for an idle machine."
    ))
}

/// Compares the best shown row that bypasses the kernel with the best shown row of kernel sockets.
fn comparison(view: &View, quantity: Quantity) -> Option<String> {
    let (mut clauses, mut rows) = (Vec::new(), Rows::default());
    for app in view.apps() {
        let Some(point) = quantity.setting(view, app) else { continue };
        let sides = [false, true].map(|is_kernel| {
            let rows = shown(view, app).into_iter().filter(|seen| seen.is_kernel() == is_kernel);
            quantity.rank(rows, point).next()
        });
        let over = rows.naming(&sides);
        let value = |(seen, value): &Ranked| match quantity {
            Quantity::Rate => format!("{} requests/s{}", si(value.median), over(seen)),
            Quantity::RoundTrip => {
                let p99 = seen.at(point).and_then(|stats| stats.rtt[2]);
                let p99 = p99.map_or(String::new(), |p99| format!(" (p99 {})", three(p99.median)));
                format!("{} µs{p99}{}", three(value.median), over(seen))
            }
        };
        let sentence = match &sides {
            [None, None] => continue,
            [Some(only), None] | [None, Some(only)] => value(only),
            [Some(own), Some(base)] => {
                let (verdict, ratio, inverse) =
                    (quantity.compare(&own.1, &base.1), own.1.times(&base.1), base.1.times(&own.1));
                match (quantity, verdict, ratio, inverse) {
                    (Quantity::Rate, Some(_), Some((ratio, ..)), _) => {
                        let base = format!("{}{}", si(base.1.median), over(base.0));
                        format!("{}, {} times the {base}", value(own), three(ratio))
                    }
                    (Quantity::RoundTrip, Some(Ordering::Greater), _, Some((shorter, ..))) => {
                        format!("{}, {} times shorter than {}", value(own), three(shorter), value(base))
                    }
                    (Quantity::RoundTrip, Some(_), Some((longer, ..)), _) => {
                        format!("{}, {} times as long as {}", value(own), three(longer), value(base))
                    }
                    _ => format!("{} and {}, {NO_DIFFERENCE}", value(own), value(base)),
                }
            }
        };
        let name = app.name();
        let clause = match quantity {
            Quantity::Rate => format!("{name} reached {sentence}"),
            Quantity::RoundTrip if clauses.is_empty() => format!("the median round trip of {name} was {sentence}"),
            Quantity::RoundTrip => format!("that of {name} was {sentence}"),
        };
        clauses.push((point, clause));
    }
    sentence(clauses)
}

fn reliability(view: &View, findings: &[Finding]) -> String {
    let ran = |is_kernel| view.measured().any(|seen| seen.is_kernel() == is_kernel);
    let basis = match (ran(false), ran(true), view.rounds().unwrap_or_default()) {
        (false, false, _) => "No row ran".to_owned(),
        (false, true, _) => "No transport that bypasses the kernel ran, so its benefit is unknown".to_owned(),
        (true, false, _) => "No row of kernel sockets ran, so there is no baseline".to_owned(),
        (_, _, (0..3, _)) => "With fewer than three rounds, differences below a tenth are not stated".to_owned(),
        (_, _, (least, most)) => {
            let rounds = if least == most { most.to_string() } else { format!("{least} to {most}") };
            format!("Figures are medians of {rounds} rounds, and ratios are stated only where the ranges are apart")
        }
    };
    let caveats = findings.iter().filter(|finding| finding.weight == Weight::Caveat);
    let topics: Vec<_> = caveats.map(|finding| finding.topic.to_lowercase()).collect();
    match topics.is_empty() {
        true => format!("{basis}; no caveat applies."),
        false => format!("{basis}; caveats that could change this: {}.", list(&topics)),
    }
}

/// Returns the table of the shown rows: rates at the heaviest setting, and round trips at the lightest.
fn table(view: &View) -> Table {
    let apps = view.apps();
    let mut heads = vec!["transport".to_owned()];
    for app in &apps {
        let name = app.short();
        heads.extend([format!("#{name} requests/s"), "#p50 µs".to_owned(), "#p99 µs".to_owned()]);
    }
    let mut table = Table::new("", &heads);
    let shown: Vec<(App, Vec<&Seen>)> = apps.iter().map(|&app| (app, ranking::shown(view, app))).collect();
    for name in distinct(shown.iter().flat_map(|(_, rows)| rows.iter().map(|seen| &seen.name))) {
        let mut cells: Vec<Cell> = vec![name.as_str().into()];
        for (app, rows) in &shown {
            let points = view.points(*app);
            let seen = rows.iter().find(|seen| seen.name == *name);
            let at = |point: Option<&Point>| seen.and_then(|seen| seen.at(*point?));
            let (light, heavy): (Option<&PointStats>, _) = (at(points.first()), at(points.last()));
            let cell = |text: Option<String>| text.map(Cell::from).unwrap_or_default();
            cells.push(cell(heavy.and_then(|stats| Some(si(stats.rate?.median)))));
            cells.extend([0, 2].map(|at| cell(light.and_then(|stats| Some(three(stats.rtt[at]?.median))))));
        }
        table.rows.push(cells);
    }
    table
}

#[cfg(test)]
mod tests;
