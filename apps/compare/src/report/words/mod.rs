//! Findings of a comparison as text, computed from the results.

mod against;
mod caveats;

use super::names::{self, list, si};
use super::stats::Spread;
use super::view::{Seen, View};
use crate::results::{App, Design, Point};
use std::cmp::Ordering;

/// Text for overlapping ranges.
pub const NO_DIFFERENCE: &str = "no difference that this run can show";

/// Topic of rows that did not run.
pub const NOT_RUN: &str = "Missing rows";

/// Relation of a finding to the verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// Comparison of an application's rows.
    Comparison(App),
    /// Circumstance that could change the verdict.
    Caveat,
    /// Circumstance that does not change the verdict.
    Remark,
}

/// Finding on a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub topic: String,
    /// Text, a sentence or two each.
    pub sentences: Vec<String>,
    /// Relation to the verdict.
    pub weight: Weight,
}

/// Returns all findings: comparisons, then circumstances, the most important first.
pub fn findings(view: &View) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut push_finding = |topic: String, (weight, sentences): (Weight, Vec<String>)| {
        if !sentences.is_empty() {
            findings.push(Finding { topic, sentences, weight });
        }
    };
    for app in view.apps() {
        for (topic, sentences) in [
            ("throughput", throughput(view, app)),
            ("latency", latency(view, app)),
            ("native and kernel", against::kernel(view, app)),
            ("inline and split", against::split(view, app)),
            ("verbs", against::verbs(view, app)),
        ] {
            push_finding(format!("{}: {topic}", app.title()), (Weight::Comparison(app), sentences));
        }
    }
    for (topic, sentences) in [
        ("Extent of the run", caveats::run(view)),
        ("Links", caveats::links(view)),
        ("Emulated devices", caveats::emulated(view)),
        ("Limits of clients", caveats::clients(view)),
        ("Shared cores", caveats::shared(view)),
        ("Busy machine", caveats::disturbed(view)),
        ("Core to core", caveats::distance(view)),
        ("Errors", caveats::errors(view)),
        (NOT_RUN, caveats::not_run(view)),
    ] {
        push_finding(topic.to_owned(), sentences);
    }
    findings
}

/// A row and one of its figures.
pub type Figure<'v, 'a> = (&'v Seen<'a>, Spread);

/// Returns the rows that cannot be distinguished from the row with the best median, which is first, and the best of the
/// remaining rows.
pub fn best<'v, 'a>(rows: &[Figure<'v, 'a>], better: Ordering) -> (Vec<Figure<'v, 'a>>, Option<Figure<'v, 'a>>) {
    let mut sorted = rows.to_vec();
    sorted.sort_by(|(_, a), (_, b)| match better {
        Ordering::Greater => b.median.total_cmp(&a.median),
        _ => a.median.total_cmp(&b.median),
    });
    let Some((_, first)) = sorted.first().copied() else { return (Vec::new(), None) };
    let (equal, rest): (Vec<_>, Vec<_>) = sorted.into_iter().partition(|(_, other)| first.against(other).is_none());
    (equal, rest.first().copied())
}

fn names(rows: &[(&Seen, Spread)]) -> String {
    list(&rows.iter().map(|(seen, _)| seen.name.clone()).collect::<Vec<_>>())
}

/// Formats a range as `a to b`.
fn range(spread: &Spread, show: impl Fn(f64) -> String) -> String {
    let (low, high) = (show(spread.min), show(spread.max));
    if low == high { String::new() } else { format!(" ({low} to {high})") }
}

/// Formats a ratio as `3.14 times (2.90 to 3.40)`.
fn times((median, low, high): (f64, f64, f64)) -> String {
    format!("{} times ({} to {})", names::three(median), names::three(low), names::three(high))
}

fn micros(us: f64) -> String {
    format!("{} µs", names::three(us))
}

fn throughput(view: &View, app: App) -> Vec<String> {
    let mut sentences = Vec::new();
    let Some(&most) = view.points(app).last() else { return sentences };
    let rows: Vec<_> =
        view.ran(app).filter(|seen| seen.is_reliable()).filter_map(|seen| Some((seen, seen.rate(most)?))).collect();
    let (equal, next) = best(&rows, Ordering::Greater);
    let Some(&(first, rate)) = equal.first() else { return sentences };
    let with = names::point(most);
    match &equal[..] {
        [_] => sentences.push(format!(
            "On {with}, {} had the highest rate: {} requests/s{}.",
            first.name,
            si(rate.median),
            range(&rate, si)
        )),
        several => sentences.push(format!(
            "On {with}, {} had the highest rates, {} to {} requests/s; between them there is {NO_DIFFERENCE}.",
            names(several),
            si(several.iter().map(|(_, rate)| rate.min).fold(f64::INFINITY, f64::min)),
            si(several.iter().map(|(_, rate)| rate.max).fold(0.0, f64::max)),
        )),
    }
    if let ([_], Some((next, second))) = (&equal[..], next)
        && let Some(more) = rate.times(&second)
    {
        sentences.push(format!("That is {} the rate of the next row, {}.", times(more), next.name));
    }
    if first.at(most).is_some_and(|stats| stats.is_limited_by_client()) {
        sentences.push(format!("The rate of {} was limited by its client; the row may be faster.", first.name));
    }
    sentences.extend(unprotected(view, app, most));
    sentences
}

/// Returns the rates of links without TCP, and the fraction that the engines reach.
fn unprotected(view: &View, app: App, point: Point) -> Vec<String> {
    let mut sentences = Vec::new();
    for bare in view.ran(app).filter(|seen| !seen.is_reliable()) {
        let Some(rate) = bare.rate(point) else { continue };
        let sentence =
            if bare.row.design == Design::Raw { "frames/s without a protocol" } else { "datagrams/s without TCP" };
        let parts: Vec<String> = view
            .ran(app)
            .filter(|seen| seen.is_inline(&Design::Native) && seen.row.link == bare.row.link)
            .filter_map(|seen| {
                let own = seen.rate(point)?;
                Some(match own.against(&rate) {
                    // Possible because queued requests of one connection share a segment.
                    Some(_) if own.median > rate.median && point.depth > 1 => format!(
                        "{} answered {:.2} times as many requests, because several requests share a segment",
                        seen.name,
                        own.median / rate.median
                    ),
                    Some(_) => format!("{} reached {:.0} % of this rate", seen.name, 100.0 * own.median / rate.median),
                    None => format!("with {} there is {NO_DIFFERENCE}", seen.name),
                })
            })
            .collect();
        let parts = if parts.is_empty() { String::new() } else { format!("; {}", list(&parts)) };
        sentences.push(format!(
            "Over {}, {} {sentence} were returned{parts}.",
            bare.row.link.kind.name(),
            si(rate.median)
        ));
    }
    sentences
}

fn latency(view: &View, app: App) -> Vec<String> {
    let mut sentences = Vec::new();
    let Some(&least) = view.points(app).first() else { return sentences };
    let rows: Vec<_> =
        view.ran(app).filter(|seen| seen.is_reliable()).filter_map(|seen| Some((seen, seen.p50(least)?))).collect();
    let (equal, next) = best(&rows, Ordering::Less);
    let Some(&(first, p50)) = equal.first() else { return sentences };
    let with = names::point(least);
    match &equal[..] {
        [_] => {
            let p99 = first.at(least).and_then(|stats| stats.rtt[2]);
            let p99 = p99.map_or(String::new(), |p99| format!(", p99 {}{}", micros(p99.median), range(&p99, micros)));
            sentences.push(format!(
                "On {with}, {} had the shortest round trips: p50 {}{}{p99}.",
                first.name,
                micros(p50.median),
                range(&p50, micros)
            ));
        }
        several => sentences.push(format!(
            "On {with}, {} had the shortest round trips, p50 {} to {}; between them there is {NO_DIFFERENCE}.",
            names(several),
            micros(several.iter().map(|(_, p50)| p50.min).fold(f64::INFINITY, f64::min)),
            micros(several.iter().map(|(_, p50)| p50.max).fold(0.0, f64::max)),
        )),
    }
    if let ([_], Some((next, second))) = (&equal[..], next)
        && let Some(longer) = second.times(&p50)
    {
        sentences.push(format!("The next row, {}, took {} as long.", next.name, times(longer)));
    }
    sentences
}

#[cfg(test)]
mod tests;
