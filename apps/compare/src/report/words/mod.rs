//! Findings of a comparison as text, computed from the results.

mod against;
mod caveats;

use super::names::{self, list, si};
use super::ranking::{Quantity, Ranked, indistinct};
use super::stats::{PointStats, Spread};
use super::view::View;
use crate::results::{App, Design, Point};

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
            ("throughput", best(view, app, Quantity::Rate)),
            ("latency", best(view, app, Quantity::RoundTrip)),
            ("native and kernel", against::kernel(view, app)),
            ("inline and split", against::split(view, app)),
            ("verbs", against::verbs(view, app)),
            ("cost", against::tls(view, app)),
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

fn names(rows: &[Ranked]) -> String {
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

/// Names the best row, or the rows that cannot be distinguished from it, and compares the best with the next row.
fn best(view: &View, app: App, quantity: Quantity) -> Vec<String> {
    let mut sentences = Vec::new();
    let Some(point) = quantity.setting(view, app) else { return sentences };
    let (equal, others) = indistinct(quantity.rank(view.ran(app).filter(|seen| seen.is_reliable()), point));
    let Some(&(first, value)) = equal.first() else { return sentences };
    let with = names::point(point);
    if equal.len() > 1 {
        let least = equal.iter().map(|(_, value)| value.min).fold(f64::INFINITY, f64::min);
        let most = equal.iter().map(|(_, value)| value.max).fold(0.0, f64::max);
        let had = match quantity {
            Quantity::Rate => format!("the highest rates, {} to {} requests/s", si(least), si(most)),
            Quantity::RoundTrip => format!("the shortest round trips, p50 {} to {}", micros(least), micros(most)),
        };
        sentences.push(format!("On {with}, {} had {had}; between them there is {NO_DIFFERENCE}.", names(&equal)));
    } else {
        let had = match quantity {
            Quantity::Rate => format!("the highest rate: {} requests/s{}", si(value.median), range(&value, si)),
            Quantity::RoundTrip => {
                let p50 = format!("p50 {}{}", micros(value.median), range(&value, micros));
                let p99 = first.at(point).and_then(|stats| stats.rtt[2]);
                let p99 = p99.map(|p99| format!(", p99 {}{}", micros(p99.median), range(&p99, micros)));
                format!("the shortest round trips: {p50}{}", p99.unwrap_or_default())
            }
        };
        sentences.push(format!("On {with}, {} had {had}.", first.name));
        sentences.extend(others.first().and_then(|(next, other)| match quantity {
            Quantity::Rate => {
                Some(format!("That is {} the rate of the next row, {}.", times(value.times(other)?), next.name))
            }
            Quantity::RoundTrip => {
                Some(format!("The next row, {}, took {} as long.", next.name, times(other.times(&value)?)))
            }
        }));
    }
    if quantity == Quantity::Rate {
        if first.at(point).is_some_and(PointStats::is_limited_by_client) {
            sentences.push(format!("The rate of {} was limited by its client; the row may be faster.", first.name));
        }
        sentences.extend(unprotected(view, app, point));
    }
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

#[cfg(test)]
mod tests;
