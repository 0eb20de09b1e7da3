//! Tables of figures.

use super::doc::{Cell, Table};
use super::names::{self, decimals, grouped};
use super::stats::{PointStats, QUANTILES, Spread};
use super::view::{Seen, View};
use crate::results::{App, Point, Swept};

/// Accessor of a column's figure.
type Figure = fn(&PointStats) -> Option<Spread>;

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
fn of(view: &View, app: App, point: Point, title: &str, figures: &[(&str, Figure)]) -> Table {
    let mut heads = vec!["row".to_owned()];
    heads.extend(figures.iter().map(|(head, _)| format!("#{head}")));
    let mut table = Table::new(title, &heads.iter().map(String::as_str).collect::<Vec<_>>());
    let column = |figure: &Figure| {
        let medians = view.of(app).filter_map(|seen| figure(seen.at(point)?)).map(|spread| spread.median);
        decimals(medians)
    };
    let decimals: Vec<usize> = figures.iter().map(|(_, figure)| column(figure)).collect();
    // Rows that did not run are listed in another table, with their remedy.
    for seen in view.of(app).filter(|seen| seen.measured().is_some()) {
        let mut row = vec![name(seen, point)];
        let stats = seen.at(point);
        row.extend(figures.iter().zip(&decimals).map(|((_, figure), &digits)| cell(stats.and_then(figure), digits)));
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

/// Title of tables of rates and round trips.
const RATES: &str = "Rates and round trips: medians, with minimum and maximum below";

/// Creates the table of rates and round trips.
pub fn speeds(view: &View, app: App, point: Point) -> Table {
    of(
        view,
        app,
        point,
        RATES,
        &[
            ("k requests/s", |stats| stats.rate.map(thousands)),
            ("p50 µs", |stats| stats.rtt[0]),
            ("p90 µs", |stats| stats.rtt[1]),
            ("p99 µs", |stats| stats.rtt[2]),
            ("p99.9 µs", |stats| stats.rtt[3]),
            ("max µs", |stats| stats.rtt[4]),
        ],
    )
}

/// Creates a table of rates and round trips with fewer columns.
pub fn brief(view: &View, app: App, point: Point) -> Table {
    let title = format!("{}, {}", app.title(), names::point(point));
    let mut table = of(
        view,
        app,
        point,
        &title,
        &[
            ("k requests/s", |stats| stats.rate.map(thousands)),
            ("p50 µs", |stats| stats.rtt[0]),
            ("p99 µs", |stats| stats.rtt[2]),
            ("p99.9 µs", |stats| stats.rtt[3]),
        ],
    );
    for row in &mut table.rows {
        row.iter_mut().skip(2).for_each(|cell| cell.small = None);
    }
    table
}

/// Creates the table of costs per request.
pub fn costs(view: &View, app: App, point: Point) -> Table {
    of(
        view,
        app,
        point,
        "Server cost per request",
        &[
            ("server CPU µs", |stats| stats.cpu_us),
            ("cycles", |stats| stats.cycles),
            ("instructions", |stats| stats.instructions),
            ("bytes copied by Linerate", |stats| stats.copied),
            ("bytes copied below Linerate", |stats| stats.copied_below),
            ("frames", |stats| stats.frames),
            ("frames per poll", |stats| stats.batch),
        ],
    )
    .without_empty()
}

/// Creates the table of every figure with its spread.
pub fn everything(view: &View, app: App) -> Table {
    let heads = [
        "row",
        "connections × depth",
        "quantity",
        "#median",
        "#minimum",
        "#first quartile",
        "#third quartile",
        "#maximum",
        "#rounds",
    ];
    let mut table = Table::new(String::new(), &heads);
    for seen in view.ran(app) {
        for (point, stats) in &seen.points {
            for (figure, spread) in stats.all() {
                let digits = decimals([spread.median]);
                let show = |value: f64| Cell::from(grouped(value, digits));
                let quartile = |value: Option<f64>| value.map(show).unwrap_or_default();
                table.rows.push(vec![
                    seen.name.clone().into(),
                    names::short_point(*point).into(),
                    figure.into(),
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
    let heads = ["row".to_owned(), format!("#{x}"), format!("#{unit}")].into_iter();
    let heads: Vec<_> =
        heads.chain(QUANTILES.map(|(name, _)| format!("#{name} µs"))).chain(["remarks".to_owned()]).collect();
    let mut table = Table::new(kind.title(), &heads.iter().map(String::as_str).collect::<Vec<_>>());
    for (seen, sweep) in view.of(app).filter_map(|seen| Some((seen, seen.sweep(kind)?))) {
        for point in &sweep.points {
            let rate = point.rate * scale;
            let digits = decimals([rate]);
            let mut row: Vec<Cell> =
                vec![seen.name.clone().into(), grouped(point.x, if point.x.fract() == 0.0 { 0 } else { 1 }).into()];
            row.push(grouped(rate, digits).into());
            row.extend(
                QUANTILES.map(|(_, at)| point.rtt_us.map(|rtt| grouped(at(&rtt), 1).into()).unwrap_or_default()),
            );
            let mut besides = Vec::new();
            if point.saturated {
                besides.push("did not keep up".to_owned());
            }
            if point.errors > 0 {
                besides.push(format!("{} errors", point.errors));
            }
            row.push(besides.join(", ").into());
            table.rows.push(row);
        }
    }
    (!table.rows.is_empty()).then(|| table.without_empty())
}

/// Creates the table of `rows` that did not run, with reason and remedy.
pub fn not_run<'s, 'a: 's>(rows: impl Iterator<Item = (&'s Seen<'a>, &'a str, &'a str)>) -> Option<Table> {
    let mut table = Table::new(String::new(), &["row", "reason", "remedy"]);
    for (seen, reason, remedy) in rows {
        table.rows.push(vec![names::whole(seen.row).into(), reason.into(), remedy.into()]);
    }
    (!table.rows.is_empty()).then_some(table)
}
