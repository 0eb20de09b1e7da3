//! Plots of fixed settings: each row's median and spread.

use super::scale::Scale;
use super::svg::{Anchor, Marker, Svg};
use super::{Figure, Styles, under};
use crate::report::names;
use crate::report::stats::{PointStats, Spread};
use crate::report::view::View;
use crate::results::{App, Point};

const WIDTH: f64 = 880.0;
/// Width of the names.
const NAMES: f64 = 250.0;
const GAP: f64 = 26.0;
const TOP: f64 = 34.0;
const ROW: f64 = 24.0;

/// Plots an application's rows at a fixed setting; `None` if no request was answered.
pub fn plot(view: &View, app: App, point: Point, styles: &Styles) -> Option<Figure> {
    let rows: Vec<_> = view.of(app).collect();
    let wide = (WIDTH - NAMES - GAP) / 2.0 - 8.0;
    let (left, right) = (NAMES, NAMES + wide + GAP);
    let all = || rows.iter().filter_map(|seen| seen.at(point));
    let ends = |spread: Option<Spread>| spread.into_iter().flat_map(|spread| [spread.min, spread.max]);
    let above = |value: &f64| *value > 0.0;
    let rates = Scale::new(all().flat_map(|stats| ends(stats.rate)).filter(above), left, left + wide)?;
    let trips = Scale::new(
        all().flat_map(|stats| ends(stats.rtt[0]).chain(ends(stats.rtt[2]))).filter(above),
        right,
        right + wide,
    )?;
    let bottom = TOP + ROW * rows.len() as f64;

    let mut svg = Svg::new(WIDTH);
    for (scale, from, title, unit) in
        [(&rates, left, "Throughput", "requests/s"), (&trips, right, "Round trip: p50 filled, p99 open", "µs")]
    {
        for tick in scale.ticks(40.0) {
            svg.line(if tick.label.is_some() { "grid" } else { "minor" }, (tick.at, TOP), (tick.at, bottom));
            if let Some(label) = tick.label {
                svg.text("tick", Anchor::Middle, (tick.at, bottom + 16.0), &label);
            }
        }
        svg.line("axis", (from, bottom), (from + wide, bottom));
        svg.text("title", Anchor::Start, (from, TOP - 13.0), title);
        svg.text("name", Anchor::Middle, (from + wide / 2.0, bottom + 35.0), unit);
    }
    for (at, seen) in rows.iter().enumerate() {
        let y = TOP + ROW * (at as f64 + 0.5);
        svg.line("minor", (left, y), (left + wide, y));
        svg.line("minor", (right, y), (right + wide, y));
        let stats = seen.at(point);
        let dagger = if stats.is_some_and(PointStats::is_limited_by_client) { " †" } else { "" };
        svg.text("label", Anchor::End, (NAMES - 10.0, y + 4.0), &format!("{}{dagger}", seen.name));
        let Some(stats) = stats else {
            let why = if seen.measured().is_some() { "not measured here" } else { "did not run" };
            svg.text("gone", Anchor::Start, (left + 6.0, y + 4.0), why);
            continue;
        };
        let style = styles.style(&seen.name);
        let mut draw = |scale: &Scale, spread: Option<Spread>, filled, what: &str| {
            if let Some(spread) = spread.filter(|spread| spread.min > 0.0) {
                let told = format!(
                    "{}: {what} {}, {} to {}",
                    seen.name,
                    names::si(spread.median),
                    names::si(spread.min),
                    names::si(spread.max)
                );
                whisker(&mut svg, scale, y, &spread, style.colour);
                let marker = if filled { style.marker } else { Marker::Circle };
                svg.marker(marker, style.colour, filled, (scale.at(spread.median), y), &told);
            }
        };
        draw(&rates, stats.rate, true, "requests/s");
        draw(&trips, stats.rtt[2], false, "p99 in µs");
        draw(&trips, stats.rtt[0], true, "p50 in µs");
    }
    let rounds = all().filter_map(|stats| Some(stats.rate?.rounds)).max().unwrap_or(0);
    let spread = match rounds {
        0..=1 => "It was measured once, so no spread is known.".to_owned(),
        2..=3 => format!("Medians of {rounds} rounds; thin lines go from the least to the most."),
        _ => format!(
            "Medians of {rounds} rounds; thin lines go from the least to the most, thick ones have the middle half."
        ),
    };
    let dagger = if all().any(PointStats::is_limited_by_client) { " † limited by its client." } else { "" };
    let what = format!("{}, {} bytes. {spread}{dagger}", names::point(point), view.results.settings.size);
    let label = format!("{}: {}", app.title(), names::point(point));
    Some(Figure { title: String::new(), svg: svg.end(bottom + 44.0, &label), caption: under(view, app, &what) })
}

fn whisker(svg: &mut Svg, scale: &Scale, y: f64, spread: &Spread, colour: &str) {
    let (low, high) = (scale.at(spread.min), scale.at(spread.max));
    svg.stroke(colour, 1.4, (low, y), (high, y));
    for end in [low, high] {
        svg.stroke(colour, 1.4, (end, y - 4.0), (end, y + 4.0));
    }
    if let Some((first, third)) = spread.quartiles {
        svg.stroke(colour, 4.0, (scale.at(first), y), (scale.at(third), y));
    }
}
