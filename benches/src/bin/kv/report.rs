//! Printed report of the measurements over links.

use comfy_table::{CellAlignment, Table, presets};
use linerate_benches::distance::median;
use linerate_benches::kv::interleaved::{Interleaved, Rates, TURN};
use linerate_benches::kv::{Contender, RequestKind, Row};
use linerate_benches::requirements::limit::{self, Limit};
use linerate_benches::requirements::ratios::{self, AtDistance, Ratio};
use serde::Serialize;
use std::fmt;

/// Results of one run.
#[derive(Serialize)]
pub struct Report {
    pub connections: u32,
    pub rounds: u32,
    pub seconds: u32,
    pub keys: u64,
    pub size: u32,
    /// Results by distance, nearest first.
    pub distances: Vec<Distance>,
    /// Interleaved results of the service and echo over virtio, nearest first.
    pub by_turns: Vec<Interleaved>,
    pub ratios: Vec<Ratio>,
    pub limits: Vec<Limit>,
}

/// Results with the cores at one distance.
#[derive(Serialize)]
pub struct Distance {
    /// Median transfer time of a cache line between the two cores, before and after, in nanoseconds.
    pub transfer_ns: f64,
    pub results: Vec<Row>,
}

impl AtDistance for Distance {
    fn transfer_ns(&self) -> f64 {
        self.transfer_ns
    }
}

impl Distance {
    /// Returns the medians of comparable rows, figure by figure.
    pub fn new<'a>(transfer_ns: f64, all: impl Iterator<Item = &'a Row>) -> Self {
        let is_comparable = |a: &Row, b: &Row| (a.contender, a.requests, a.depth) == (b.contender, b.requests, b.depth);
        let all: Vec<&Row> = all.collect();
        let mut results: Vec<Row> = Vec::new();
        for row in &all {
            if results.iter().any(|other| is_comparable(row, other)) {
                continue;
            }
            let alike = || all.iter().copied().filter(|other| is_comparable(row, other));
            let middle = |figure: fn(&Row) -> f64| median(alike().map(figure)).unwrap_or_default();
            results.push(Row {
                rate: middle(|row| row.rate),
                p50_us: middle(|row| row.p50_us),
                p99_us: middle(|row| row.p99_us),
                errors: alike().map(|row| row.errors).sum(),
                ..**row
            });
        }
        Distance { transfer_ns, results }
    }

    /// Returns the requests per second.
    pub fn rate(&self, contender: Contender, requests: RequestKind, depth: u32) -> Option<f64> {
        let row =
            self.results.iter().find(|row| (row.contender, row.requests, row.depth) == (contender, requests, depth));
        row.map(|row| row.rate)
    }
}

impl Report {
    /// Returns true if all requirements are met.
    pub fn is_met(&self) -> bool {
        self.ratios.iter().all(|ratio| ratio.met) && self.limits.iter().all(|limit| limit.met)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header([
            "server and client",
            "requests",
            "depth",
            "line ns",
            "requests/s",
            "RTT p50 µs",
            "p99 µs",
            "errors",
        ]);
        for Distance { transfer_ns, results } in &self.distances {
            for Row { contender, requests, depth, rate, errors, p50_us, p99_us } in results {
                table.add_row([
                    contender.name().to_owned(),
                    requests.name().to_owned(),
                    depth.to_string(),
                    format!("{transfer_ns:.0}"),
                    format!("{rate:.0}"),
                    format!("{p50_us:.1}"),
                    format!("{p99_us:.1}"),
                    errors.to_string(),
                ]);
            }
        }
        table.column_iter_mut().skip(2).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        let Report { connections, keys, size, .. } = self;
        writeln!(f, "{connections} connections, {keys} keys, values of {size} bytes\n\n{table}\n")?;
        if !self.by_turns.is_empty() {
            writeln!(f, "{}\n", by_turns(&self.by_turns))?;
        }
        writeln!(f, "{}\n", ratios::table(&self.ratios))?;
        writeln!(f, "{}\n", limit::table("in the same run", &self.limits))?;
        write!(
            f,
            "line: transfer time of a cache line between the cores, before and after; only figures of the same \
             distance are compared. By turns: kv and echo run alternately, and each is stopped while the other runs"
        )
    }
}

/// Formats the interleaved results.
fn by_turns(all: &[Interleaved]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let turns = format!("turns of {} s", TURN.as_secs());
    table.set_header(["line ns", &turns, "kv over virtio, requests/s", "echo", "ratio", "its quartiles"]);
    for Interleaved { transfer_ns, turns, rates: Rates { kv, echo }, ratio: [low, middle, high] } in all {
        table.add_row([
            format!("{transfer_ns:.0}"),
            turns.to_string(),
            format!("{kv:.0}"),
            format!("{echo:.0}"),
            format!("{middle:.2}"),
            format!("{low:.2} to {high:.2}"),
        ]);
    }
    table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_reduced_to_medians_with_summed_errors() {
        let row = |requests, rate| Row {
            contender: Contender::Virtio,
            requests,
            depth: 1,
            rate,
            errors: 1,
            p50_us: rate,
            p99_us: 9.0,
        };
        let rows =
            [(RequestKind::Gets, 3.0), (RequestKind::Sets, 7.0), (RequestKind::Gets, 1.0), (RequestKind::Gets, 2.0)];
        let distance = Distance::new(30.0, rows.map(|(requests, rate)| row(requests, rate)).iter());
        assert_eq!(distance.results.len(), 2);
        assert_eq!((distance.results[0].rate, distance.results[0].errors), (2.0, 3));
        assert_eq!(distance.rate(Contender::Virtio, RequestKind::Sets, 1), Some(7.0));
        assert_eq!(distance.rate(Contender::Virtio, RequestKind::Sets, 16), None);
    }
}
