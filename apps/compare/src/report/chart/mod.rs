//! Plots of a comparison.

use super::names;
use super::ranking;
use super::stats::PointStats;
use super::view::{Seen, View, distinct};
use crate::plot::{Bar, Bars, Dot, Lines, Panel, Series, si, three};
use crate::results::{App, Objective, Point, Sweep, SweepPoint, Swept};

/// A plot of panels and its caption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plot {
    /// Title; empty if a heading states it.
    pub title: String,
    pub panels: Vec<Panel>,
    /// Caption: contents and settings.
    pub caption: String,
}

/// Returns the bars of rates, and of round trips at the settings `rates_at` and `trips_at`.
fn bars<'v, 'a: 'v>(
    groups: &[(String, Vec<&'v Seen<'a>>)],
    rates_at: impl Fn(&Seen) -> Option<Point>,
    trips_at: impl Fn(&Seen) -> Option<Point>,
) -> [Vec<(String, Vec<Bar>)>; 2] {
    let rate = |seen: &Seen| {
        let stats = seen.at(rates_at(seen)?)?;
        let rate = stats.rate.filter(|rate| rate.median > 0.0)?;
        let dagger = if stats.is_limited_by_client() { " †" } else { "" };
        Some(Bar {
            text: format!("{}{dagger}", si(rate.median)),
            value: rate.median,
            range: Some((rate.min, rate.max)),
            ..Bar::default()
        })
    };
    let trip = |seen: &Seen| {
        let [p50, _, p99, ..] = seen.at(trips_at(seen)?)?.rtt;
        let (p50, p99) = (p50?, p99.map(|p99| p99.median));
        let tail = p99.map_or(String::new(), |p99| format!(", p99 {}", three(p99)));
        Some(Bar { text: format!("{}{tail}", three(p50.median)), value: p50.median, tail: p99, ..Bar::default() })
    };
    let all = |measured: &dyn Fn(&Seen) -> Option<Bar>| {
        let bar = |seen: &&Seen| {
            let missing = if seen.measured().is_some() { "not measured here" } else { "did not run" };
            let bar = measured(seen).unwrap_or_else(|| Bar { text: missing.to_owned(), ..Bar::default() });
            Bar { name: seen.name.clone(), is_baseline: seen.is_kernel(), ..bar }
        };
        groups.iter().map(|(group, rows)| (group.clone(), rows.iter().map(bar).collect())).collect()
    };
    [all(&rate), all(&trip)]
}

/// Returns panels of rates and of round trips.
fn panels([rates, trips]: [Vec<(String, Vec<Bar>)>; 2], rates_at: String, trips_at: String) -> Vec<Panel> {
    let rates = Bars { title: "Requests/s: more is better".to_owned(), subtitle: rates_at, groups: rates };
    let trips = Bars { title: "Round trip, µs: less is better".to_owned(), subtitle: trips_at, groups: trips };
    [rates, trips].iter().filter_map(Bars::draw).collect()
}

/// Returns the plot of the verdict: the rows of [`ranking::shown`], with their rates at the heaviest setting and their
/// round trips at the lightest.
pub fn headline(view: &View) -> Option<Plot> {
    let apps = view.apps();
    let groups: Vec<_> = apps.iter().map(|&app| (app.title().to_owned(), ranking::shown(view, app))).collect();
    let point = |seen: &Seen, heaviest: bool| {
        let points = view.points(seen.row.app);
        if heaviest { points.last().copied() } else { points.first().copied() }
    };
    let all = distinct(apps.iter().flat_map(|&app| view.points(app)));
    let (most, least) = (view.points(*apps.first()?).last().copied()?, view.points(*apps.first()?).first().copied()?);
    let bars = bars(&groups, |seen| point(seen, true), |seen| point(seen, false));
    let panels = panels(bars, names::point(most), names::point(least));
    let best =
        "The fastest row of each kind of transport, and the row with the shortest round trip if it is different.";
    let rest = if all.len() > 2 { " The details include the other settings." } else { "" };
    let shown = groups.iter().flat_map(|(_, rows)| rows).filter_map(|seen| seen.at(point(seen, true)?));
    let caption = format!("{best}{rest} {}", spread_of(view, shown));
    (!panels.is_empty()).then(|| Plot { title: String::new(), panels, caption: with_machine(view, &caption) })
}

/// Returns the plot of an application's rows at a fixed setting; `None` if no request was answered.
pub fn fixed(view: &View, app: App, point: Point) -> Option<Plot> {
    let groups = [(String::new(), view.rows_of(app).collect::<Vec<_>>())];
    let at = |_: &Seen| Some(point);
    let panels = panels(bars(&groups, at, at), names::point(point), names::point(point));
    let text = spread_of(view, view.rows_of(app).filter_map(|seen| seen.at(point)));
    let caption = with_machine(view, &format!("{}. {text}", app.title()));
    (!panels.is_empty()).then(|| Plot { title: String::new(), panels, caption })
}

/// Describes sizes, spreads and marks.
fn spread_of<'s>(view: &View, stats: impl Iterator<Item = &'s PointStats> + Clone) -> String {
    let rounds = stats.clone().filter_map(|stats| Some(stats.rate?.rounds)).max().unwrap_or(0);
    let spread = match rounds {
        0..=1 => "Each value was measured once, so no spread is known.".to_owned(),
        _ => format!("Medians of {rounds} rounds; thin lines show the minimum and maximum rate."),
    };
    let is_limited = stats.into_iter().any(PointStats::is_limited_by_client);
    let dagger = if is_limited { " † limited by its client." } else { "" };
    let trips = "Bars of round trips show p50, and their lines end at p99.";
    format!("{} bytes. {trips} {spread}{dagger}", view.results.settings.size)
}

/// Plots of an application's sweeps.
pub fn sweeps(view: &View, app: App) -> Vec<Plot> {
    Swept::ALL.into_iter().filter_map(|of| sweep(view, app, of)).collect()
}

/// Returns the plot of the work of a batch program on the server's core, by the load of the server.
pub fn batch(view: &View, app: App) -> Option<Plot> {
    let rows: Vec<_> = view.ran(app).flat_map(|seen| seen.batches().map(move |sweep| (seen, sweep))).collect();
    let loads = distinct(rows.iter().flat_map(|(_, sweep)| sweep.points.iter().map(|point| point.x)));
    let group = |load: &f64| {
        let bars = rows.iter().filter_map(|(seen, sweep)| {
            let value = 100.0 * sweep.points.iter().find(|point| point.x == *load)?.batch?;
            let (name, is_baseline) = (format!("{}, {}", seen.name, sweep.setting), seen.is_kernel());
            Some(Bar { name, text: format!("{value:.1} %"), value, is_baseline, ..Bar::default() })
        });
        (format!("Server at {load:.0} % of its highest offered rate"), bars.collect())
    };
    let title = "Work of a batch program, % of an idle core: more is better".to_owned();
    let bars =
        Bars { title, subtitle: "on the core of the server".to_owned(), groups: loads.iter().map(group).collect() };
    let caption = format!("{}. Each value was measured once.", app.title());
    Some(Plot { title: String::new(), panels: vec![bars.draw()?], caption: with_machine(view, &caption) })
}

/// Accessor of a value of a sweep.
type Value<'f> = &'f dyn Fn(&SweepPoint) -> Option<f64>;

fn sweep(view: &View, app: App, of: Swept) -> Option<Plot> {
    let sweeps: Vec<(&Seen, Sweep)> = view.rows_of(app).filter_map(|seen| Some((seen, plotted(seen, of)?))).collect();
    let rows: Vec<(&Seen, &Sweep)> = sweeps.iter().map(|(seen, sweep)| (*seen, sweep)).collect();
    let (unit, scale) = of.rate();
    let draw = |title: &str, y: &str, value: Value, scale| lines(title, y, of, &rows, value, scale, view);
    let median = || draw("Median round trip (p50)", "round trip, µs", &|point| point.rtt_us?.p50, 1.0);
    let panels = match of {
        Swept::OfferedRate => {
            let p99 = draw("99th percentile (p99)", "round trip, µs", &|point| point.rtt_us?.p99, 1.0);
            let mut panels = vec![median(), p99];
            // Percentiles of the same quantity share an axis, for comparison by eye.
            let all = panels.iter().flat_map(|panel| &panel.series).flat_map(|series| &series.points);
            let shared: Vec<f64> = all.map(|dot| dot.y).collect();
            panels.iter_mut().for_each(|panel| panel.shared.clone_from(&shared));
            panels
        }
        Swept::Objective => {
            let Objective { percentile, limit_us } = view.results.settings.objective?;
            let title = format!("Round trip ({})", percentile.name());
            let panel = draw(&title, "round trip, µs", &|point| point.rtt_us?.get(percentile), 1.0);
            vec![Lines { level: Some((limit_us, "objective".to_owned())), ..panel }]
        }
        Swept::Incast => {
            let worst = draw("Longest time until the last answer", "µs", &|point| Some(point.rtt_us?.max), 1.0);
            vec![draw("Median time until the last answer", "µs", &|point| point.rtt_us?.p50, 1.0), worst]
        }
        _ => vec![draw("Throughput", unit, &|point| Some(point.rate), scale), median()],
    };
    let panels: Vec<Panel> = panels.iter().filter_map(Lines::draw).collect();
    let caption = caption(view, app, of, &rows);
    (!panels.is_empty()).then(|| Plot { title: of.title().to_owned(), panels, caption })
}

/// Returns the sweep of a row as it is plotted: a search together with the sweep over the same variable.
fn plotted(seen: &Seen, of: Swept) -> Option<Sweep> {
    let mut sweep = seen.sweep(of)?.clone();
    if of == Swept::Objective {
        let others = seen.sweep(Swept::OfferedRate).map(|sweep| sweep.points.clone());
        sweep.points.extend(others.into_iter().flatten());
        sweep.points.sort_by(|one, other| one.x.total_cmp(&other.x));
    }
    Some(sweep)
}

fn lines(title: &str, y: &str, of: Swept, rows: &[(&Seen, &Sweep)], value: Value, scale: f64, view: &View) -> Lines {
    let is_rate = of == Swept::OfferedRate;
    let x = |point: &SweepPoint| if is_rate { point.rate } else { point.x };
    let names = distinct(view.rows.iter().map(|seen| seen.name.clone()));
    let series = rows.iter().map(|(seen, sweep)| {
        let is_alike = |other: &Seen| {
            other.name != seen.name && other.row.design == seen.row.design && other.row.threading == seen.row.threading
        };
        let is_unique = !rows.iter().any(|(other, _)| is_alike(other));
        let dot = |point: &SweepPoint| {
            let y = value(point).unwrap_or_default() * scale;
            Dot { x: x(point), y, is_ringed: point.saturated }
        };
        Series {
            name: seen.name.clone(),
            label: names::label(seen.row, is_unique),
            // The style of a row name is the same in all plots and for all applications.
            style: names.iter().position(|name| *name == seen.name).unwrap_or(0),
            points: sweep.points.iter().map(dot).collect(),
        }
    });
    let mut ticks = distinct(rows.iter().flat_map(|(_, sweep)| sweep.points.iter().map(x)));
    ticks.sort_by(f64::total_cmp);
    if is_rate || of == Swept::Objective || ticks.len() > 12 {
        ticks.clear();
    }
    let (title, x, y) = (title.to_owned(), of.axis().to_owned(), y.to_owned());
    Lines { title, x, y, ticks, series: series.collect(), ..Lines::default() }
}

fn caption(view: &View, app: App, of: Swept, rows: &[(&Seen, &Sweep)]) -> String {
    let settings = distinct(rows.iter().map(|(_, sweep)| sweep.setting.trim()).filter(|setting| !setting.is_empty()));
    let mut text = if settings.is_empty() { String::new() } else { format!("{}.", settings.join("; ")) };
    if matches!(of, Swept::OfferedRate | Swept::Objective) {
        text += " Requests follow Poisson arrivals, and times are measured from the due time.";
    }
    if rows.iter().any(|(_, sweep)| sweep.points.iter().any(|point| point.saturated)) {
        text += " A ring marks offered rates that the server did not reach.";
    }
    text += match of {
        Swept::Objective => " Each value of the search is the middle one of up to three rounds.",
        _ => " Each value was measured once.",
    };
    for (seen, sweep) in rows {
        if let Some(reason) = &sweep.ended {
            text += &format!(" {} ends early: {}.", seen.name, reason.trim().trim_end_matches('.'));
        }
    }
    with_machine(view, &format!("{}. {}", app.title(), text.trim()))
}

/// Returns the caption of a plot, with the origin of its data.
fn with_machine(view: &View, text: &str) -> String {
    let machine = &view.results.machine;
    format!("{text} {}, {}.", machine.cpu, names::cores(machine.cores))
}

#[cfg(test)]
mod tests;
