//! Comparisons of groups of rows.

use super::{NO_DIFFERENCE, micros, names, times};
use crate::report::names as called;
use crate::report::ranking::{Quantity, indistinct};
use crate::report::stats::{Spread, UNKNOWN};
use crate::report::view::{Seen, View};
use crate::results::{App, Design, Point, Swept, Threading};
use std::cmp::Ordering;

/// Returns the rows of the native engine with inline service.
fn natives<'v, 'a>(view: &'v View<'a>, app: App) -> impl Iterator<Item = &'v Seen<'a>> {
    view.ran(app).filter(|seen| seen.is_inline(&Design::Native))
}

/// Compares the native engine with inline service to kernel sockets.
pub fn kernel(view: &View, app: App) -> Vec<String> {
    let [Some(most), Some(least)] = Quantity::ALL.map(|quantity| quantity.setting(view, app)) else {
        return Vec::new();
    };
    // Only the fastest link is compared here: the tables include all links.
    let Some((native, _)) = Quantity::Rate.rank(natives(view, app), most).next() else {
        return vec!["There is no row of the native engine with its service inline to compare.".to_owned()];
    };
    let mut kinds = Vec::new();
    let [rates, trips] = [(Quantity::Rate, most), (Quantity::RoundTrip, least)].map(|(quantity, point)| {
        let mut clauses = Vec::new();
        for mode in [Design::KernelSleeping, Design::KernelSpinning] {
            let rows = view.ran(app).filter(|seen| seen.row.design == mode);
            let (Some(own), Some((kernel, other))) = (quantity.value(native, point), quantity.rank(rows, point).next())
            else {
                continue;
            };
            kinds.push(kernel.row.link.kind);
            let name = &kernel.name;
            let (verdict, ratio, inverse) = (quantity.compare(&own, &other), own.times(&other), other.times(&own));
            clauses.push(match (quantity, verdict, ratio, inverse) {
                (Quantity::Rate, Some(_), Some(more), _) => format!("{} the requests/s of {name}", times(more)),
                (Quantity::RoundTrip, Some(Ordering::Greater), _, Some(shorter)) => {
                    format!("{} shorter than over {name}", times(shorter))
                }
                (Quantity::RoundTrip, Some(_), Some(longer), _) => format!("{} as long as over {name}", times(longer)),
                (Quantity::Rate, ..) => format!("{NO_DIFFERENCE} from {name}"),
                (Quantity::RoundTrip, ..) => format!("with {NO_DIFFERENCE} from {name}"),
            });
        }
        clauses
    });
    let mut sentences = Vec::new();
    if !rates.is_empty() {
        sentences.push(format!("On {}, {} had {}.", called::point(most), native.name, called::list(&rates)));
    }
    if !trips.is_empty() {
        sentences.push(format!("On {}, its median round trips were {}.", called::point(least), called::list(&trips)));
    }
    if kinds.iter().any(|kind| *kind != native.row.link.kind) {
        sentences.push("These rows use different kinds of links, so the stack is not the only difference.".to_owned());
    }
    if sentences.is_empty() {
        sentences.push("No row of kernel sockets ran, so the native engine has no baseline.".to_owned());
    }
    sentences
}

/// Compares rows with TLS to the same rows without it.
pub fn tls(view: &View, app: App) -> Vec<String> {
    let mut sentences = Vec::new();
    for secure in view.ran(app).filter(|_| app.has_tls()) {
        let is_same = |seen: &&Seen| {
            (&seen.row.design, &seen.row.link, seen.row.threading)
                == (&secure.row.design, &secure.row.link, secure.row.threading)
        };
        let Some(plain) = view.ran(app.without_tls()).find(is_same) else { continue };
        let shown = view.points(app).into_iter().filter_map(|point| {
            let (own, other) = (secure.rate(point)?, plain.rate(point)?);
            let part = own.against(&other).and_then(|_| own.times(&other)).map(times);
            Some(format!("on {}, {}", called::point(point), part.unwrap_or_else(|| NO_DIFFERENCE.to_owned())))
        });
        let shown: Vec<String> = shown.collect();
        if !shown.is_empty() {
            sentences.push(format!("Requests/s of {}, to those without TLS: {}.", secure.name, shown.join("; ")));
        }
    }
    sentences
}

/// Compares services on their own threads to services on the workers' threads.
pub fn split(view: &View, app: App) -> Vec<String> {
    let mut sentences = Vec::new();
    for split in view.ran(app).filter(|seen| seen.row.threading == Some(Threading::Split)) {
        let inline = view.ran(app).find(|seen| {
            seen.row.threading == Some(Threading::Inline)
                && seen.row.design == split.row.design
                && seen.row.link == split.row.link
        });
        let Some(inline) = inline else { continue };
        let shown: Vec<String> = view.points(app).into_iter().filter_map(|point| at(inline, split, point)).collect();
        if !shown.is_empty() {
            sentences.push(format!("Of {} and {}: {}.", inline.name, split.name, shown.join("; ")));
        }
        sentences.extend(overtakes(inline, split));
    }
    sentences
}

fn at(inline: &Seen, split: &Seen, point: Point) -> Option<String> {
    let (own, other) = (inline.rate(point)?, split.rate(point)?);
    let with = called::point(point);
    Some(match own.against(&other) {
        None => format!("on {with}, {NO_DIFFERENCE}"),
        Some(Ordering::Less) => format!("on {with}, split had {} the requests/s", times(other.times(&own)?)),
        Some(_) => format!("on {with}, inline had {} the requests/s", times(own.times(&other)?)),
    })
}

/// Returns the service time from which a separate thread is worthwhile. Each value was measured once, with the
/// uncertainty of the rows' rounds at the fixed settings.
fn overtakes(inline: &Seen, split: &Seen) -> Option<String> {
    let (inline_sweep, split_sweep) = (inline.sweep(Swept::ServiceTime)?, split.sweep(Swept::ServiceTime)?);
    let off = inline.noise().max(split.noise()).max(UNKNOWN);
    let shown: Vec<(f64, Option<Ordering>)> = inline_sweep
        .points
        .iter()
        .filter_map(|own| {
            let other = split_sweep.points.iter().find(|other| other.x == own.x)?;
            let [own_rate, other_rate] = [own.rate, other.rate].map(Spread::once);
            Some((own.x, other_rate?.widened(off).against(&own_rate?.widened(off))))
        })
        .collect();
    let (first, last) = (shown.first()?.0, shown.last()?.0);
    let us = |x: f64| format!("{x} µs");
    let is_ahead = |at: usize| shown[at].1 == Some(Ordering::Greater);
    let ahead: Vec<usize> = (0..shown.len()).filter(|&at| is_ahead(at)).collect();
    let how = |at: usize| match shown[at].1 {
        None => format!("at {} there is {NO_DIFFERENCE}", us(shown[at].0)),
        Some(_) => format!("at {} inline is ahead", us(shown[at].0)),
    };
    let (Some(&from), Some(&until)) = (ahead.first(), ahead.last()) else {
        return Some(match shown.iter().all(|(_, ahead)| ahead.is_none()) {
            true => {
                let (first, last) = (us(first), us(last));
                format!("From {first} to {last} of service time there is {NO_DIFFERENCE} between inline and split.")
            }
            false => format!("Up to {} of service time, split did not overtake inline.", us(last)),
        });
    };
    if until - from + 1 > ahead.len() {
        let at: Vec<_> = ahead.iter().map(|&at| us(shown[at].0)).collect();
        return Some(format!("Split was ahead at service times of {}, but not between them.", called::list(&at)));
    }
    let mut sentences = match from {
        0 => format!("Split was ahead from the shortest service time that was measured, {},", us(first)),
        _ => format!(
            "Split overtakes inline once the service takes {} for a request ({}),",
            us(shown[from].0),
            how(from - 1)
        ),
    };
    sentences += &match until + 1 < shown.len() {
        true => format!(" up to {}; {}.", us(shown[until].0), how(until + 1)),
        false => format!(" up to the longest, {}.", us(last)),
    };
    Some(sentences + " Split uses one more thread.")
}

/// Compares verbs to the native engine.
pub fn verbs(view: &View, app: App) -> Vec<String> {
    let mut sentences = Vec::new();
    let verbs = || view.ran(app).filter(|seen| matches!(seen.row.design, Design::Verbs(_)));
    for quantity in Quantity::ALL {
        let Some(point) = quantity.setting(view, app) else { continue };
        let (equal, _) = indistinct(quantity.rank(verbs(), point));
        let Some((_, value)) = equal.first() else { continue };
        let among = if equal.len() > 1 { format!(" (between them, {NO_DIFFERENCE})") } else { String::new() };
        let (had, value_text, unit) = match quantity {
            Quantity::Rate => ("the most requests/s", called::si(value.median), "requests/s"),
            Quantity::RoundTrip => ("the shortest median round trip", micros(value.median), "round trip"),
        };
        let to = quantity.rank(natives(view, app), point).next().map(|(native, own)| {
            match (value.against(&own), value.times(&own)) {
                (Some(_), Some(part)) => format!(", {} the {unit} of {}", times(part), native.name),
                _ => format!(", {NO_DIFFERENCE} from {}", native.name),
            }
        });
        sentences.push(format!(
            "On {}, {} had {had} of the verbs rows{among}: {value_text}{}.",
            called::point(point),
            names(&equal),
            to.unwrap_or_default()
        ));
    }
    if let Some(by) = verbs().find_map(|seen| seen.row.link.emulated_by.as_ref()) {
        sentences
            .push(format!("The device is emulated in software by {by}: the row does not represent RDMA hardware."));
    }
    sentences
}
