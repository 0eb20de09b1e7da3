//! Comparison of two runs.

use super::doc::{Block, Cell, Table};
use super::names::{self, decimals, grouped};
use super::stats::{PointStats, Spread};
use super::view::{Seen, View};
use super::words::NO_DIFFERENCE;
use crate::results::{Point, Results};

/// Returns the differences of the runs' settings, then each common row.
pub fn blocks(a: &Results, b: &Results) -> Vec<Block> {
    let (first, second) = (View::new(a), View::new(b));
    let mut blocks = vec![
        Block::Heading(1, "Two comparisons side by side".to_owned()),
        Block::Facts(vec![("A".to_owned(), run(a)), ("B".to_owned(), run(b))]),
    ];
    let differ = differences(a, b);
    match differ.is_empty() {
        true => blocks.push(Block::Text("Settings and machine are the same.".to_owned())),
        false => {
            blocks.push(Block::Text("These settings differ, and may cause the differences below:".to_owned()));
            let mut table = Table::new(String::new(), &["", "A", "B"]);
            table.rows = differ.into_iter().map(|(name, a, b)| vec![name.into(), a.into(), b.into()]).collect();
            blocks.push(Block::Table(table));
        }
    }
    let both: Vec<_> = first
        .rows
        .iter()
        .filter_map(|one| Some((one, second.rows.iter().find(|other| other.row.id == one.row.id)?)))
        .collect();
    blocks.push(Block::Text(format!(
        "Medians of the rounds, with minimum and maximum in brackets. Where ranges overlap, there is {NO_DIFFERENCE}."
    )));
    blocks.extend(tables(&both).into_iter().map(Block::Table));
    let mut besides = Vec::new();
    for (one, other) in &both {
        match (one.measured().is_some(), other.measured().is_some()) {
            (true, false) => besides.push(format!("{} ran in A only.", named(one))),
            (false, true) => besides.push(format!("{} ran in B only.", named(other))),
            (false, false) => besides.push(format!("{} ran in neither.", named(one))),
            (true, true) => {}
        }
    }
    for (of, other, is) in [(&first, &second, "A"), (&second, &first, "B")] {
        let alone = of.rows.iter().filter(|seen| !other.rows.iter().any(|one| one.row.id == seen.row.id));
        besides.extend(alone.map(|seen| format!("{} is in {is} only.", named(seen))));
    }
    if !besides.is_empty() {
        blocks.push(Block::List(besides));
    }
    blocks
}

fn named(seen: &Seen) -> String {
    names::whole(seen.row)
}

fn run(results: &Results) -> String {
    let ended = if results.finished { "" } else { ", interrupted" };
    format!("linerate {}, {}, {}{ended}", results.version, results.began, results.machine.cpu)
}

/// Returns the differing settings: name, and value in each run.
fn differences(a: &Results, b: &Results) -> Vec<(String, String, String)> {
    let json = |results: &Results| {
        let mut all = serde_json::Map::new();
        for (figure, value) in
            [("machine", serde_json::to_value(&results.machine)), ("settings", serde_json::to_value(&results.settings))]
        {
            if let Ok(serde_json::Value::Object(fields)) = value {
                all.extend(
                    fields.into_iter().map(|(name, value)| (format!("{figure}: {}", name.replace('_', " ")), value)),
                );
            }
        }
        all.insert("version".to_owned(), results.version.clone().into());
        all
    };
    let shown = |value: Option<&serde_json::Value>| match value {
        None | Some(serde_json::Value::Null) => "–".to_owned(),
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let (a, b) = (json(a), json(b));
    a.keys()
        .filter(|name| a.get(*name) != b.get(*name))
        .map(|name| (name.clone(), shown(a.get(name)), shown(b.get(name))))
        .collect()
}

fn tables(both: &[(&Seen, &Seen)]) -> Vec<Table> {
    let mut points: Vec<Point> = Vec::new();
    for (one, _) in both {
        points.extend(
            one.points.iter().map(|(point, _)| *point).filter(|point| !points.contains(point)).collect::<Vec<_>>(),
        );
    }
    points.sort_by_key(|point| (u64::from(point.connections) * u64::from(point.depth), point.connections));
    let of = |point: Point| {
        let heads = ["row", "quantity", "#A", "#B", "#B to A", ""];
        let mut table = Table::new(names::point(point), &heads);
        for (one, other) in both {
            if let (Some(a), Some(b)) = (one.at(point), other.at(point)) {
                let first = table.rows.len();
                table.rows.extend(rows(a, b));
                if let Some(row) = table.rows.get_mut(first) {
                    row[0] = named(one).into();
                }
            }
        }
        table
    };
    points.into_iter().map(of).filter(|table| !table.rows.is_empty()).collect()
}

/// Returns the compared quantities of two rows.
fn rows(a: &PointStats, b: &PointStats) -> Vec<Vec<Cell>> {
    type Of = fn(&PointStats) -> Option<Spread>;
    let all: [(&str, Of); 6] = [
        ("requests/s", |stats| stats.rate),
        ("p50 µs", |stats| stats.rtt[0]),
        ("p99 µs", |stats| stats.rtt[2]),
        ("p99.9 µs", |stats| stats.rtt[3]),
        ("CPU µs", |stats| stats.cpu_us),
        ("instructions", |stats| stats.instructions),
    ];
    let compared = all.into_iter().filter_map(|(figure, of)| Some((figure, of(a)?, of(b)?)));
    compared
        .map(|(figure, a, b)| {
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
            vec![Cell::default(), figure.into(), cell(a), cell(b), ratio.into(), verdict.into()]
        })
        .collect()
}
