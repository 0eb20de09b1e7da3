//! Comparison of two runs.

use super::doc::{Block, Cell, Table};
use super::names::{self, decimals, grouped};
use super::stats::{PointStats, Spread};
use super::view::{Seen, View, settings};
use super::words::NO_DIFFERENCE;
use crate::results::Results;
use serde_json::{Map, Value, json};

/// Returns the differences of the runs' settings, then each common row.
pub fn blocks(a: &Results, b: &Results) -> Vec<Block> {
    let (first, second) = (View::new(a), View::new(b));
    let mut blocks = vec![
        Block::Heading(1, "Two comparisons side by side".to_owned()),
        Block::Facts(vec![("A".to_owned(), run(a)), ("B".to_owned(), run(b))]),
    ];
    let mut differ = Table::new("", ["", "A", "B"]);
    differ.rows = differences(a, b);
    if differ.rows.is_empty() {
        blocks.push(Block::Text("Settings and machine are the same.".to_owned()));
    } else {
        blocks.push(Block::Text("These settings differ, and may cause the differences below:".to_owned()));
        blocks.push(Block::Table(differ));
    }
    blocks.push(Block::Text(format!(
        "Medians of the rounds, with minimum and maximum in brackets. Where ranges overlap, there is {NO_DIFFERENCE}."
    )));
    let find = |view: &View, id: &str| view.rows.iter().position(|seen| seen.row.id == id);
    let both = first.rows.iter().filter_map(|one| Some((one, &second.rows[find(&second, &one.row.id)?])));
    let both: Vec<(&Seen, &Seen)> = both.collect();
    blocks.extend(tables(&both).into_iter().map(Block::Table));
    let mut remarks = Vec::new();
    for (one, other) in &both {
        let where_it_ran = match (one.measured().is_some(), other.measured().is_some()) {
            (true, false) => "in A only",
            (false, true) => "in B only",
            (false, false) => "in neither",
            (true, true) => continue,
        };
        remarks.push(format!("{} ran {where_it_ran}.", names::whole(one.row)));
    }
    for (view, other, name) in [(&first, &second, "A"), (&second, &first, "B")] {
        let alone = view.rows.iter().filter(|seen| find(other, &seen.row.id).is_none());
        remarks.extend(alone.map(|seen| format!("{} is in {name} only.", names::whole(seen.row))));
    }
    if !remarks.is_empty() {
        blocks.push(Block::List(remarks));
    }
    blocks
}

fn run(results: &Results) -> String {
    let ended = if results.finished { "" } else { ", interrupted" };
    format!("linerate {}, {}, {}{ended}", results.version, results.began, results.machine.cpu)
}

/// Returns the differing settings: name, and value in each run.
fn differences(a: &Results, b: &Results) -> Vec<Vec<Cell>> {
    let flat = |results: &Results| {
        let mut all = Map::new();
        for (part, value) in [("machine", json!(results.machine)), ("settings", json!(results.settings))] {
            let fields = value.as_object().into_iter().flatten();
            all.extend(fields.map(|(name, value)| (format!("{part}: {}", name.replace('_', " ")), value.clone())));
        }
        all.insert("version".to_owned(), results.version.clone().into());
        all
    };
    let shown = |value: Option<&Value>| match value {
        None | Some(Value::Null) => "–".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let (a, b) = (flat(a), flat(b));
    let differ = a.keys().filter(|name| a.get(*name) != b.get(*name));
    differ.map(|name| vec![name.as_str().into(), shown(a.get(name)).into(), shown(b.get(name)).into()]).collect()
}

/// Returns a table for each fixed setting at which both runs measured a row.
fn tables(both: &[(&Seen, &Seen)]) -> Vec<Table> {
    let table = |point| {
        let mut table = Table::new(names::point(point), ["row", "quantity", "#A", "#B", "#B to A", ""]);
        for (one, other) in both {
            if let (Some(a), Some(b)) = (one.at(point), other.at(point)) {
                let mut rows = rows(a, b);
                if let Some(first) = rows.first_mut() {
                    first[0] = names::whole(one.row).into();
                }
                table.rows.extend(rows);
            }
        }
        table
    };
    let points = settings(both.iter().map(|(one, _)| *one));
    points.into_iter().map(table).filter(|table| !table.rows.is_empty()).collect()
}

/// Returns the compared quantities of two rows.
fn rows(a: &PointStats, b: &PointStats) -> Vec<Vec<Cell>> {
    let all = |stats: &PointStats| {
        [
            ("requests/s", stats.rate),
            ("p50 µs", stats.rtt[0]),
            ("p99 µs", stats.rtt[2]),
            ("p99.9 µs", stats.rtt[3]),
            ("p99.99 µs", stats.rtt[4]),
            ("CPU µs", stats.cpu_us),
            ("instructions", stats.instructions),
        ]
    };
    let compared = all(a).into_iter().zip(all(b)).filter_map(|((quantity, a), (_, b))| {
        let (a, b) = (a?, b?);
        let digits = decimals([a.median, b.median]);
        let cell = |spread: Spread| {
            let range = format!("{} – {}", grouped(spread.min, digits), grouped(spread.max, digits));
            Cell { text: grouped(spread.median, digits), small: (spread.rounds > 1).then_some(range) }
        };
        let ratio = if a.median > 0.0 { format!("{:.2}", b.median / a.median) } else { String::new() };
        let verdict = match b.against(&a) {
            None => "overlap",
            Some(std::cmp::Ordering::Greater) => "more",
            Some(_) => "less",
        };
        Some(vec![Cell::default(), quantity.into(), cell(a), cell(b), ratio.into(), verdict.into()])
    });
    compared.collect()
}
