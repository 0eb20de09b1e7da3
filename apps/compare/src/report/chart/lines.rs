//! Plots of sweeps.

use super::scale::Scale;
use super::svg::{Anchor, Svg};
use super::{Figure, Styles, under};
use crate::report::names;
use crate::report::view::{Seen, View, distinct};
use crate::results::{App, Sweep, SweepPoint, Swept};

const WIDTH: f64 = 880.0;
const TOP: f64 = 28.0;
const HEIGHT: f64 = 300.0;
/// Left margin of a panel, for its labels.
const LEFT: f64 = 66.0;
const RIGHT: f64 = 10.0;
/// Bottom margin of a panel.
const BELOW: f64 = 46.0;
const LEGEND_LINE: f64 = 20.0;

/// Quantity and position of a panel.
struct Panel {
    title: &'static str,
    unit: String,
    x: fn(&SweepPoint) -> f64,
    y: fn(&SweepPoint) -> Option<f64>,
    scale: f64,
}

/// Plots a sweep of all rows of an application that have it.
pub fn plot(view: &View, app: App, of: Swept, styles: &Styles) -> Option<Figure> {
    let rows: Vec<(&Seen, &Sweep)> = view.of(app).filter_map(|seen| Some((seen, seen.sweep(of)?))).collect();
    let trip = "round trip, µs".to_owned();
    let p50 = |point: &SweepPoint| Some(point.rtt_us?.p50);
    let p99 = |point: &SweepPoint| Some(point.rtt_us?.p99);
    let (unit, scale) = of.rate();
    let panels = match of {
        Swept::OfferedRate => vec![
            Panel { title: "Median round trip (p50)", unit: trip.clone(), x: |point| point.rate, y: p50, scale: 1.0 },
            Panel { title: "99th percentile (p99)", unit: trip, x: |point| point.rate, y: p99, scale: 1.0 },
        ],
        _ => vec![
            Panel {
                title: "Throughput",
                unit: unit.to_owned(),
                x: |point| point.x,
                y: |point| Some(point.rate),
                scale,
            },
            Panel { title: "Median round trip (p50)", unit: trip, x: |point| point.x, y: p50, scale: 1.0 },
        ],
    };
    let panels: Vec<Panel> = panels
        .into_iter()
        .filter(|panel| {
            rows.iter().any(|(_, sweep)| sweep.points.iter().any(|point| (panel.y)(point).is_some_and(|y| y > 0.0)))
        })
        .collect();
    if panels.is_empty() {
        return None;
    }
    let mut svg = Svg::new(WIDTH);
    let wide = WIDTH / panels.len() as f64;
    // Percentiles of the same quantity share an axis, for comparison by eye.
    let shared: Option<Vec<f64>> = (of == Swept::OfferedRate).then(|| {
        rows.iter()
            .flat_map(|(_, sweep)| sweep.points.iter().flat_map(|point| [p50(point), p99(point)]))
            .flatten()
            .collect()
    });
    for (at, panel) in panels.iter().enumerate() {
        draw(&mut svg, panel, of, (wide * at as f64, wide), &rows, shared.as_deref(), styles)?;
    }
    let mut y = TOP + HEIGHT + BELOW + 10.0;
    let columns = 2;
    let lines = rows.len().div_ceil(columns);
    for (at, (seen, _)) in rows.iter().enumerate() {
        let (column, line) = (at / lines, at % lines);
        let x = LEFT + WIDTH / columns as f64 * column as f64;
        let style = styles.style(&seen.name);
        let middle = y + LEGEND_LINE * line as f64;
        svg.path(style.colour, style.dashes, &[(x, middle), (x + 44.0, middle)]);
        svg.marker(style.marker, style.colour, true, (x + 22.0, middle), &seen.name);
        svg.text("label", Anchor::Start, (x + 52.0, middle + 4.0), &seen.name);
    }
    y += LEGEND_LINE * lines as f64;
    Some(Figure {
        title: of.title().to_owned(),
        svg: svg.end(y, &format!("{}: {}", app.title(), of.title())),
        caption: caption(view, app, of, &rows),
    })
}

fn draw(
    svg: &mut Svg,
    panel: &Panel,
    of: Swept,
    (left, wide): (f64, f64),
    rows: &[(&Seen, &Sweep)],
    shared: Option<&[f64]>,
    styles: &Styles,
) -> Option<()> {
    let (x0, x1, y0, y1) = (left + LEFT, left + wide - RIGHT, TOP + HEIGHT, TOP);
    let points = || rows.iter().flat_map(|(_, sweep)| &sweep.points);
    let value = |point: &SweepPoint| (panel.y)(point).map(|y| y * panel.scale).filter(|&y| y > 0.0);
    let xs = Scale::new(points().map(panel.x), x0, x1)?;
    let ys = match shared {
        Some(values) => Scale::new(values.iter().copied().filter(|&y| y > 0.0), y0, y1)?,
        None => Scale::new(points().filter_map(value), y0, y1)?,
    };
    let mut values = distinct(points().map(panel.x));
    values.sort_by(f64::total_cmp);
    let x_ticks =
        if of != Swept::OfferedRate && values.len() <= 12 { xs.ticks_at(&values, 34.0) } else { xs.ticks(44.0) };
    for tick in ys.ticks(18.0) {
        let class = if tick.label.is_some() { "grid" } else { "minor" };
        svg.line(class, (x0, tick.at), (x1, tick.at));
        if let Some(label) = tick.label {
            svg.text("tick", Anchor::End, (x0 - 7.0, tick.at + 4.0), &label);
        }
    }
    for tick in x_ticks {
        let class = if tick.label.is_some() { "grid" } else { "minor" };
        svg.line(class, (tick.at, y0), (tick.at, y1));
        if let Some(label) = tick.label {
            svg.text("tick", Anchor::Middle, (tick.at, y0 + 17.0), &label);
        }
    }
    svg.line("axis", (x0, y0), (x1, y0));
    svg.line("axis", (x0, y0), (x0, y1));
    svg.text("title", Anchor::Start, (x0, TOP - 11.0), panel.title);
    svg.text("name", Anchor::Middle, ((x0 + x1) / 2.0, y0 + 36.0), of.axis());
    svg.upright("name", (left + 15.0, (y0 + y1) / 2.0), &panel.unit);
    for (seen, sweep) in rows {
        let style = styles.style(&seen.name);
        let drawn: Vec<_> = sweep.points.iter().filter_map(|point| Some((point, value(point)?))).collect();
        let at = |point: &SweepPoint, y: f64| (xs.at((panel.x)(point)), ys.at(y));
        svg.path(style.colour, style.dashes, &drawn.iter().map(|(point, y)| at(point, *y)).collect::<Vec<_>>());
        for (point, y) in &drawn {
            let told = format!("{}: {} {} at {}", seen.name, names::si(*y), panel.unit, names::si((panel.x)(point)));
            svg.marker(style.marker, style.colour, true, at(point, *y), &told);
            if point.saturated {
                svg.ring(style.colour, at(point, *y));
            }
        }
    }
    Some(())
}

fn caption(view: &View, app: App, of: Swept, rows: &[(&Seen, &Sweep)]) -> String {
    let settings = distinct(rows.iter().map(|(_, sweep)| sweep.setting.trim()).filter(|setting| !setting.is_empty()));
    let mut what = if settings.is_empty() { String::new() } else { format!("{}.", settings.join("; ")) };
    if of == Swept::OfferedRate {
        what += " Requests come by Poisson arrivals, and times count from when one was due.";
    }
    if rows.iter().any(|(_, sweep)| sweep.points.iter().any(|point| point.saturated)) {
        what += " A ring marks where the server did not keep up with what was asked for.";
    }
    what += " Each value was measured once.";
    for (seen, sweep) in rows {
        if let Some(why) = &sweep.ended {
            what += &format!(" {} ends early: {}.", seen.name, why.trim().trim_end_matches('.'));
        }
    }
    under(view, app, what.trim())
}
