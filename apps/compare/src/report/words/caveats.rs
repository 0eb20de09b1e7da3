//! Caveats for reading the results.

use super::Weight::{self, Caveat, Remark};
use crate::report::names::{self, list, three};
use crate::report::stats::{NEAR_CEILING, PointStats};
use crate::report::view::{View, distinct};
use crate::results::Design;

/// Caveats of the whole run.
pub fn run(view: &View) -> (Weight, Vec<String>) {
    let results = view.results;
    let mut sentences = Vec::new();
    let ran = view.measured().count();
    let without_rdma = view.rows.iter().filter(|seen| seen.lacks_rdma()).count();
    let all = view.rows.len() - without_rdma;
    if !results.finished {
        sentences.push(
            "The run was interrupted: missing rows were not measured, and there may be fewer rounds than requested."
                .to_owned(),
        );
    }
    match (ran, all) {
        (_, 0) => sentences.push("There are no rows: nothing was compared.".to_owned()),
        (0, _) => sentences.push("Nothing ran, so there is nothing to compare.".to_owned()),
        (ran, all) if ran == all => sentences.push(format!("All {all} rows ran.")),
        (ran, all) => sentences.push(format!("{ran} of {all} rows ran.")),
    }
    if results.machine.emulated || results.load_machine.as_ref().is_some_and(|machine| machine.emulated) {
        sentences.push("The processor is emulated in software: times and rates do not represent hardware.".to_owned());
    }
    if view.rounds().is_some_and(|(least, _)| least < 3) {
        sentences.push(
            "With fewer than three rounds, no spread is known, and differences below a tenth are not stated."
                .to_owned(),
        );
    }
    if results.settings.quick {
        sentences.push("This was the short comparison (--quick).".to_owned());
    }
    let matters = sentences.len() > 1 || ran < all;
    if without_rdma > 0 {
        sentences.push(format!("{without_rdma} further rows need an RDMA device, which this machine does not have."));
    }
    (if matters { Caveat } else { Remark }, sentences)
}

/// Caveats of emulated devices.
pub fn emulated(view: &View) -> (Weight, Vec<String>) {
    let mut sentences = vec!["Emulated devices do not represent hardware.".to_owned()];
    let rows: Vec<_> = view.measured().filter(|seen| seen.row.link.emulated_by.is_some()).collect();
    for by in distinct(rows.iter().filter_map(|seen| seen.row.link.emulated_by.as_ref())) {
        let names: Vec<_> = rows
            .iter()
            .filter(|seen| seen.row.link.emulated_by.as_ref() == Some(by))
            .map(|seen| names::whole(seen.row))
            .collect();
        sentences.push(format!("Emulated by {by}: {}.", list(&names)));
    }
    if rows.is_empty() {
        sentences.push("No measured row used an emulated device.".to_owned());
    }
    let verbs = view.measured().any(|seen| matches!(seen.row.design, Design::Verbs(_)));
    if !verbs {
        sentences.push("No verbs row ran, so the comparison does not cover RDMA.".to_owned());
    }
    (if rows.is_empty() { Remark } else { Caveat }, sentences)
}

/// Kinds of links of the rows.
pub fn links(view: &View) -> (Weight, Vec<String>) {
    let kinds = distinct(view.measured().map(|seen| seen.row.link.kind));
    let (mut sentences, mut weight) = (Vec::new(), Remark);
    if kinds.len() > 1 {
        weight = Caveat;
        sentences.push(
            "Rows over different kinds of links are not comparable: not only the transport differs, but also the link \
             between the two processes."
                .to_owned(),
        );
    }
    for kind in kinds {
        let names = view.measured().filter(|seen| seen.row.link.kind == kind);
        let names = distinct(names.map(|seen| names::design(seen.row)));
        sentences.push(format!("Over {} ({}): {}.", kind.name(), kind.explanation(), names.join("; ")));
    }
    (weight, sentences)
}

/// Rows limited by their clients.
pub fn clients(view: &View) -> (Weight, Vec<String>) {
    let mut known = false;
    let mut near = Vec::new();
    for seen in &view.rows {
        known |= seen.points.iter().any(|(_, stats)| stats.of_ceiling.is_some());
        let at: Vec<_> = seen
            .points
            .iter()
            .filter(|(_, stats)| stats.is_limited_by_client())
            .map(|(at, _)| names::short_point(*at))
            .collect();
        if !at.is_empty() {
            near.push(format!("{} ({})", names::whole(seen.row), at.join(", ")));
        }
    }
    let part = format!("{:.0}", NEAR_CEILING * 100.0);
    match (near.is_empty(), known) {
        (false, _) => (
            Caveat,
            vec![format!(
                "These rows reached at least {part} % of the rate of their client against a minimal server, and may be \
                 faster than shown (connections × requests in flight): {}.",
                list(&near)
            )],
        ),
        (true, true) => (Remark, vec![format!("No row reached {part} % of its client's ceiling.")]),
        (true, false) if view.measured().next().is_some() => {
            (Caveat, vec!["Client ceilings were not measured: any row may be limited by its client.".to_owned()])
        }
        (true, false) => (Remark, Vec::new()),
    }
}

/// Rows whose threads shared a core.
pub fn shared(view: &View) -> (Weight, Vec<String>) {
    let ran = || view.measured();
    let names: Vec<_> = ran().filter(|seen| seen.row.co_scheduled).map(|seen| names::whole(seen.row)).collect();
    match names.is_empty() {
        false => (
            Caveat,
            vec![format!(
                "Polling threads of these rows shared a core, because there were too few cores: {}.",
                list(&names)
            )],
        ),
        true if ran().next().is_some() => (Remark, vec!["Every polling thread had a core of its own.".to_owned()]),
        true => (Remark, Vec::new()),
    }
}

/// Rows that others disturbed.
pub fn disturbed(view: &View) -> (Weight, Vec<String>) {
    let rows = view.rows.iter().filter_map(|seen| {
        let disturbed = seen.points.iter().filter(|(_, stats)| stats.is_disturbed());
        let at: Vec<_> = disturbed
            .filter_map(|(at, stats)| Some(format!("{}: {:.0} %", names::short_point(*at), stats.others?.median)))
            .collect();
        (!at.is_empty()).then(|| format!("{} ({})", names::whole(seen.row), at.join(", ")))
    });
    let rows: Vec<_> = rows.collect();
    let sentence = format!("Other programs or virtual machines had part of the time of the cores: {}.", list(&rows));
    (Caveat, if rows.is_empty() { Vec::new() } else { vec![sentence] })
}

/// Distances between the cores.
pub fn distance(view: &View) -> (Weight, Vec<String>) {
    let all = view.rows.iter().flat_map(|seen| &seen.points).filter_map(|(_, stats)| stats.transfer_ns);
    let (least, most) = all.fold((f64::INFINITY, 0.0_f64), |(least, most), ns| (least.min(ns.min), most.max(ns.max)));
    if most < 2.0 * least || !least.is_finite() {
        return (Remark, Vec::new());
    }
    let sentences = format!(
        "A cache-line transfer between the cores of server and load took between {} and {} ns: the host moved the \
         cores, and rows measured at different distances are not comparable. The table of all figures includes the \
         distance of each row.",
        three(least),
        three(most)
    );
    (Caveat, vec![sentences])
}

pub fn errors(view: &View) -> (Weight, Vec<String>) {
    let wrong: Vec<_> = view
        .rows
        .iter()
        .filter_map(|seen| {
            let sweeps = seen.measured().into_iter().flat_map(|measured| &measured.sweeps);
            let errors = seen.points.iter().map(|(_, PointStats { errors, .. })| errors).sum::<u64>()
                + sweeps.flat_map(|sweep| &sweep.points).map(|point| point.errors).sum::<u64>();
            (errors > 0).then(|| format!("{} ({errors})", names::whole(seen.row)))
        })
        .collect();
    let silent: Vec<_> = view
        .rows
        .iter()
        .filter(|seen| seen.points.iter().any(|(_, stats)| stats.rate.is_none_or(|rate| rate.median == 0.0)))
        .map(|seen| names::whole(seen.row))
        .collect();
    let mut sentences = Vec::new();
    if !wrong.is_empty() {
        sentences.push(format!("Missing or wrong answers, or lost connections: {}.", list(&wrong)));
    }
    if !silent.is_empty() {
        sentences.push(format!("No request was answered in at least one setting: {}.", list(&silent)));
    }
    (Caveat, sentences)
}

/// Rows that did not run, with their remedies.
pub fn not_run(view: &View) -> (Weight, Vec<String>) {
    let all: Vec<_> = view.not_run().filter(|(seen, ..)| !seen.lacks_rdma()).collect();
    let sentences = distinct(all.iter().map(|(_, reason, remedy)| (*reason, *remedy)))
        .into_iter()
        .map(|(reason, remedy)| {
            let names =
                all.iter().filter(|(_, w, r)| (*w, *r) == (reason, remedy)).map(|(seen, ..)| names::whole(seen.row));
            let names = list(&names.collect::<Vec<_>>());
            format!("{names}: {} To run: {}", ended(reason), ended(remedy))
        })
        .collect();
    (Caveat, sentences)
}

/// Appends a full stop, if missing.
fn ended(text: &str) -> String {
    let text = text.trim();
    if text.ends_with(['.', '!', '?']) { text.to_owned() } else { format!("{text}.") }
}
