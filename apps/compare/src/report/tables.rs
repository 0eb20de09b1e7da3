//! Tables of measurements.

use super::doc::{Cell, Table};
use super::names::{self, decimals, grouped};
use super::stats::{PointStats, QUANTILES, Spread};
use super::view::{Seen, View, distinct};
use crate::results::{App, Part, Point, Profile, Swept};

/// Accessor of a column's value.
type Value = fn(&PointStats) -> Option<Spread>;

fn cell(spread: Option<Spread>, decimals: usize) -> Cell {
    let Some(spread) = spread else { return Cell::default() };
    let show = |value| grouped(value, decimals);
    let (low, high) = (show(spread.min), show(spread.max));
    let small = (low != high).then(|| format!("{low} – {high}"));
    Cell { text: show(spread.median), small }
}

fn name(seen: &Seen, point: Point) -> Cell {
    let marks = seen.marks(point);
    Cell { text: seen.name.clone(), small: (!marks.is_empty()).then(|| marks.join(", ")) }
}

/// Creates a table with a row for each row of the application, and these columns.
fn measurements(view: &View, app: App, point: Point, title: &str, columns: &[(&str, Value)]) -> Table {
    let heads = columns.iter().map(|(head, _)| format!("#{head}"));
    let mut table = Table::new(title, std::iter::once("row".to_owned()).chain(heads));
    let digits = columns.iter().map(|(_, value)| {
        let spreads = view.rows_of(app).filter_map(|seen| value(seen.at(point)?));
        decimals(spreads.map(|spread| spread.median))
    });
    let digits: Vec<usize> = digits.collect();
    // Rows that did not run are listed in another table, with their remedy.
    for seen in view.ran(app) {
        let stats = seen.at(point);
        let mut row = vec![name(seen, point)];
        row.extend(columns.iter().zip(&digits).map(|((_, value), &digits)| cell(stats.and_then(value), digits)));
        if stats.is_none() {
            row[0].small = Some("not measured here".to_owned());
        }
        table.rows.push(row);
    }
    table
}

/// Converts a spread to thousands.
fn thousands(rate: Spread) -> Spread {
    let quartiles = rate.quartiles.map(|(first, third)| (first / 1e3, third / 1e3));
    Spread { median: rate.median / 1e3, min: rate.min / 1e3, max: rate.max / 1e3, quartiles, ..rate }
}

/// Columns of rates and round trips.
const SPEEDS: [(&str, Value); 8] = [
    ("k requests/s", |stats| stats.rate.map(thousands)),
    ("p50 µs", |stats| stats.rtt[0]),
    ("p90 µs", |stats| stats.rtt[1]),
    ("p99 µs", |stats| stats.rtt[2]),
    ("p99.9 µs", |stats| stats.rtt[3]),
    ("p99.99 µs", |stats| stats.rtt[4]),
    ("max µs", |stats| stats.rtt[5]),
    ("round trips", |stats| stats.samples),
];

/// Creates the table of rates and round trips.
pub fn speeds(view: &View, app: App, point: Point) -> Table {
    let title = "Rates and round trips: medians, with minimum and maximum below";
    dashed(measurements(view, app, point, title, &SPEEDS))
}

/// Creates a table of rates and round trips with fewer columns.
pub fn brief(view: &View, app: App, point: Point) -> Table {
    let title = format!("{}, {}", app.title(), names::point(point));
    let mut table = measurements(view, app, point, &title, &[0, 1, 3, 4, 5].map(|column| SPEEDS[column]));
    for row in &mut table.rows {
        row.iter_mut().skip(2).for_each(|cell| cell.small = None);
    }
    dashed(table)
}

/// Marks absent values. Percentiles with too few samples are absent.
fn dashed(mut table: Table) -> Table {
    let absent = |cell: &&mut Cell| cell.text.is_empty();
    table.rows.iter_mut().flatten().filter(absent).for_each(|cell| "-".clone_into(&mut cell.text));
    table
}

/// Creates the table of costs per request.
pub fn costs(view: &View, app: App, point: Point) -> Table {
    let columns: [(&str, Value); 7] = [
        ("server CPU µs", |stats| stats.cpu_us),
        ("cycles", |stats| stats.cycles),
        ("instructions", |stats| stats.instructions),
        ("bytes copied by Linerate", |stats| stats.copied),
        ("bytes copied below Linerate", |stats| stats.copied_below),
        ("frames", |stats| stats.frames),
        ("frames per poll", |stats| stats.batch),
    ];
    measurements(view, app, point, "Server cost per request", &columns).without_empty()
}

/// Creates the table of every quantity with its spread.
pub fn everything(view: &View, app: App) -> Table {
    let quantiles = ["#median", "#minimum", "#first quartile", "#third quartile", "#maximum", "#rounds"];
    let mut table = Table::new("", ["row", "connections × depth", "quantity"].into_iter().chain(quantiles));
    for seen in view.ran(app) {
        for (point, stats) in &seen.points {
            for (quantity, spread) in stats.all() {
                let digits = decimals([spread.median]);
                let show = |value: f64| Cell::from(grouped(value, digits));
                let quartile = |value: Option<f64>| value.map(show).unwrap_or_default();
                table.rows.push(vec![
                    seen.name.clone().into(),
                    names::short_point(*point).into(),
                    quantity.into(),
                    show(spread.median),
                    show(spread.min),
                    quartile(spread.quartiles.map(|(first, _)| first)),
                    quartile(spread.quartiles.map(|(_, third)| third)),
                    show(spread.max),
                    spread.rounds.to_string().into(),
                ]);
            }
        }
    }
    table.without_empty()
}

/// Creates the table of every value of one kind of sweep.
pub fn sweep(view: &View, app: App, kind: Swept) -> Option<Table> {
    let (unit, scale) = kind.rate();
    let x = if kind == Swept::OfferedRate { "offered, requests/s" } else { kind.axis() };
    let mut heads = vec!["row".to_owned(), format!("#{x}"), format!("#{unit}")];
    heads.extend(QUANTILES.map(|(name, _)| format!("#{name} µs")));
    heads.extend(["#round trips".to_owned(), "remarks".to_owned()]);
    let mut table = Table::new(kind.title(), &heads);
    for (seen, sweep) in view.rows_of(app).filter_map(|seen| Some((seen, seen.sweep(kind)?))) {
        for point in &sweep.points {
            let rate = point.rate * scale;
            let mut row: Vec<Cell> = vec![
                seen.name.as_str().into(),
                grouped(point.x, usize::from(point.x.fract() != 0.0)).into(),
                grouped(rate, decimals([rate])).into(),
            ];
            let shown = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), |us| grouped(us, 1));
            row.extend(QUANTILES.map(|(_, at)| point.rtt_us.map_or(Cell::default(), |rtt| shown(at(&rtt)).into())));
            row.push(point.rtt_us.map_or(Cell::default(), |rtt| grouped(rtt.samples as f64, 0).into()));
            let mut remarks = Vec::from_iter(point.saturated.then(|| "did not keep up".to_owned()));
            remarks
                .extend(point.within.map(|[within, all]| format!("within the objective in {within} of {all} rounds")));
            remarks.extend((point.errors > 0).then(|| format!("{} errors", point.errors)));
            row.push(remarks.join(", ").into());
            table.rows.push(row);
        }
    }
    (!table.rows.is_empty()).then(|| table.without_empty())
}

/// Creates the table of the highest loads within the objective.
pub fn objective(view: &View, app: App) -> Option<Table> {
    let objective = view.results.settings.objective?;
    let title = format!("{}: highest load with a {}", app.title(), names::objective(objective));
    let percentile = format!("#{} µs", objective.percentile.name());
    let mut table = Table::new(title, ["row", "#requests/s", "#% of the highest rate", &percentile, "remarks"]);
    for (seen, sweep) in view.ran(app).filter_map(|seen| Some((seen, seen.search()?))) {
        let highest = sweep.points.iter().rev().find(|point| point.is_within_objective());
        let resolution = sweep.resolution.unwrap_or(0.0);
        let number = |value: f64| grouped(value, 0);
        let rate = highest.map_or_else(|| "-".to_owned(), |point| number(point.x));
        let next = highest.map_or(0.0, |point| point.x) + resolution;
        let most = view.points(app).last().and_then(|point| seen.rate(*point));
        let part = highest.zip(most).map(|(point, most)| number(100.0 * point.x / most.median));
        let us = highest.and_then(|point| point.rtt_us?.get(objective.percentile)).map(|us| grouped(us, 1));
        let mut remarks = Vec::from_iter(sweep.ended.clone());
        if highest.is_none() && sweep.ended.is_none() {
            remarks.push(format!("not met at {} requests/s or more", number(next)));
        }
        table.rows.push(vec![
            seen.name.as_str().into(),
            Cell { text: rate, small: highest.map(|_| format!("less than {}", number(next))) },
            part.unwrap_or_default().into(),
            us.unwrap_or_default().into(),
            remarks.join(", ").into(),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Creates the table of the times until the last answer to requests on many connections.
pub fn incast(view: &View, app: App) -> Option<Table> {
    let rows: Vec<_> = view.ran(app).filter_map(|seen| Some((seen, seen.sweep(Swept::Incast)?))).collect();
    let mut counts: Vec<f64> = distinct(rows.iter().flat_map(|(_, sweep)| sweep.points.iter().map(|point| point.x)));
    counts.sort_by(f64::total_cmp);
    let mut heads = vec!["row".to_owned()];
    for count in &counts {
        heads.extend([format!("#{count:.0} connections: median µs"), "#worst µs".to_owned(), "#rounds".to_owned()]);
    }
    let title = format!("{}: time until the last answer to one request on each connection at once", app.title());
    let mut table = Table::new(title, &heads);
    for (seen, sweep) in rows {
        let mut row: Vec<Cell> = vec![seen.name.as_str().into()];
        for count in &counts {
            let rtt = sweep.points.iter().find(|point| point.x == *count).and_then(|point| point.rtt_us);
            let worst = rtt.map(|rtt| rtt.max).filter(|worst| *worst > 0.0);
            let micros = |us: Option<f64>| us.map_or_else(String::new, |us| grouped(us, 1));
            let rounds = rtt.map_or_else(String::new, |rtt| rtt.samples.to_string());
            row.extend([micros(rtt.and_then(|rtt| rtt.p50)), micros(worst), rounds].map(Cell::from));
        }
        table.rows.push(row);
    }
    (!table.rows.is_empty()).then(|| dashed(table))
}

/// Creates the table of the work of a batch program on the server's core.
pub fn batch(view: &View, app: App) -> Option<Table> {
    let rows: Vec<_> = view.ran(app).flat_map(|seen| seen.batches().map(move |sweep| (seen, sweep))).collect();
    let loads = distinct(rows.iter().flat_map(|(_, sweep)| sweep.points.iter().map(|point| point.x)));
    let mut heads = vec!["row".to_owned(), "idle server".to_owned()];
    for load in &loads {
        heads.extend([format!("#work at {load:.0} % load, %"), "#p99 µs".to_owned()]);
    }
    let title = format!("{}: work of a batch program on the server's core, relative to an idle core", app.title());
    let mut table = Table::new(title, &heads);
    for (seen, sweep) in rows {
        let mut row: Vec<Cell> = vec![seen.name.as_str().into(), sweep.setting.as_str().into()];
        for load in &loads {
            let point = sweep.points.iter().find(|point| point.x == *load);
            let work = point.and_then(|point| point.batch).map(|part| grouped(100.0 * part, 1)).unwrap_or_default();
            let late = point.is_some_and(|point| point.saturated).then(|| "did not keep up".to_owned());
            let p99 = point.and_then(|point| point.rtt_us?.p99).map(|us| grouped(us, 1)).unwrap_or_default();
            row.extend([work.into(), Cell { text: p99, small: late }]);
        }
        table.rows.push(row);
    }
    (!table.rows.is_empty()).then(|| dashed(table))
}

/// Creates the table of the processor time of a request, by part of the server.
pub fn profile(view: &View, app: App) -> Option<Table> {
    let rows: Vec<_> = view.ran(app).filter_map(|seen| Some((seen, seen.measured()?.profile.as_ref()?))).collect();
    let (_, Profile { point, event, .. }) = rows.first()?;
    let at = names::point(*point);
    let title = format!("{}: processor time of a request in ns, {at}, by samples of {}", app.title(), event.name());
    let mut heads = vec!["row".to_owned(), "#all".to_owned()];
    heads.extend(Part::ALL.map(|part| format!("#{}", part.name())));
    heads.push("#samples".to_owned());
    let mut table = Table::new(title, &heads);
    for (seen, Profile { point, requests, cpu_seconds, samples, .. }) in rows {
        let (ns, all) = (cpu_seconds * 1e9 / (*requests).max(1) as f64, samples.values().sum::<u64>());
        let part = |part: Part| {
            let share = samples.get(&part).map_or(0.0, |n| *n as f64) / all.max(1) as f64;
            Cell { text: grouped(ns * share, 0), small: Some(format!("{:.0} %", 100.0 * share)) }
        };
        let mut row = vec![name(seen, *point), grouped(ns, 0).into()];
        row.extend(Part::ALL.map(part));
        row.push(grouped(all as f64, 0).into());
        table.rows.push(row);
    }
    Some(table)
}

/// Creates the table of `rows` that did not run, with reason and remedy.
pub fn not_run<'s, 'a: 's>(rows: impl Iterator<Item = (&'s Seen<'a>, &'a str, &'a str)>) -> Option<Table> {
    let mut table = Table::new("", ["row", "reason", "remedy"]);
    for (seen, reason, remedy) in rows {
        table.rows.push(vec![names::whole(seen.row).into(), reason.into(), remedy.into()]);
    }
    (!table.rows.is_empty()).then_some(table)
}
