//! What the counters of a process come to over an interval: a row for each worker.

use super::sample::Sample;
use super::units::{short, time};
use crate::inspect::Value;
use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;
use std::fmt::Write;

/// What a worker has told, by the names of metrics.
type Told = BTreeMap<String, Value>;

/// What one worker did, or all of them. `None` is what cannot be told.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// Its number; `None` of all together.
    pub worker: Option<usize>,
    /// Whether it answered.
    pub is_up: bool,
    /// The part of its turns in which there was something to do.
    pub busy: Option<f64>,
    /// Frames received in a second, and the following likewise.
    pub rx_frames: Option<f64>,
    pub rx_bytes: Option<f64>,
    pub tx_frames: Option<f64>,
    pub tx_bytes: Option<f64>,
    pub requests: Option<f64>,
    pub drops: Option<f64>,
    /// Connections at the moment.
    pub connections: Option<u64>,
    /// The part of the packets that the worker may hold which it holds.
    pub held: Option<f64>,
    /// Packets free in the pool.
    pub pool_free: Option<u64>,
    /// Frames that wait for the port.
    pub queued: Option<u64>,
    /// The median of the round-trip times of its connections that were looked at, in microseconds.
    pub rtt: Option<f64>,
}

/// The number of a metric: the sum, if it has several.
fn value(told: &Told, name: &str) -> Option<u64> {
    match told.get(name)? {
        Value::One(value) => Some(*value),
        Value::Each(each) => Some(each.values().sum()),
    }
}

/// The counters of an interval: those at its end, those at its beginning, and its length in seconds.
struct Interval<'a> {
    after: &'a Told,
    before: Option<&'a Told>,
    seconds: f64,
}

impl Interval<'_> {
    fn grown(&self, name: &str) -> Option<f64> {
        Some(value(self.after, name)?.saturating_sub(value(self.before?, name)?) as f64)
    }

    fn rate(&self, name: &str) -> Option<f64> {
        self.grown(name).map(|grown| grown / self.seconds).filter(|_| self.seconds > 0.0)
    }

    fn figures(&self) -> Figures {
        let level = |name| value(self.after, name);
        let part = |some: Option<f64>, all: Option<f64>| Some(some? / all.filter(|all| *all > 0.0)?);
        let share = level("linerate_pool_share_packets").map(|share| share as f64);
        Figures {
            worker: None,
            is_up: true,
            busy: part(self.grown("linerate_busy_turns_total"), self.grown("linerate_turns_total")),
            rx_frames: self.rate("linerate_rx_frames_total"),
            rx_bytes: self.rate("linerate_rx_bytes_total"),
            tx_frames: self.rate("linerate_tx_frames_total"),
            tx_bytes: self.rate("linerate_tx_bytes_total"),
            requests: self.rate("linerate_requests_total"),
            drops: self.rate("linerate_drops_total"),
            connections: level("linerate_connections"),
            held: part(level("linerate_packets_held").map(|held| held as f64), share),
            pool_free: level("linerate_pool_free_packets"),
            queued: level("linerate_tx_queued_frames"),
            rtt: None,
        }
    }
}

/// The middle of `times`.
fn median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

/// How long it was from one sample to the next, in seconds, by the clock of the process.
fn seconds(after: &Sample, before: &Sample) -> f64 {
    after.counters.at_us.saturating_sub(before.counters.at_us) as f64 / 1e6
}

/// A row for each worker, in the order of their numbers.
pub fn rows(after: &Sample, before: Option<&Sample>) -> Vec<Figures> {
    let seconds = before.map_or(0.0, |before| seconds(after, before));
    let row = |(worker, told): (usize, &Option<Told>)| {
        let Some(told) = told else { return Figures { worker: Some(worker), ..Figures::default() } };
        let before = before.and_then(|before| before.counters.workers.get(worker)?.as_ref());
        let rtts = after.connections.iter().filter(|connection| connection.worker == worker);
        let rtt = median(rtts.filter_map(|connection| connection.rtt_us).collect());
        Figures { worker: Some(worker), rtt, ..Interval { after: told, before, seconds }.figures() }
    };
    after.counters.workers.iter().enumerate().map(row).collect()
}

/// All workers together. Pools may be shared, so that nobody knows how much is free in all of them.
pub fn total(rows: &[Figures], after: &Sample, before: Option<&Sample>) -> Figures {
    let sum = |of: fn(&Figures) -> Option<f64>| rows.iter().filter_map(of).reduce(|a, b| a + b);
    let count = |of: fn(&Figures) -> Option<u64>| rows.iter().filter_map(of).reduce(|a, b| a + b);
    let grown = |name: &str| -> Option<u64> {
        let workers = after.counters.workers.iter().zip(&before?.counters.workers);
        Some(
            workers
                .filter_map(|(a, b)| Some(value(a.as_ref()?, name)?.saturating_sub(value(b.as_ref()?, name)?)))
                .sum(),
        )
    };
    let turns = grown("linerate_turns_total").filter(|turns| *turns > 0);
    Figures {
        worker: None,
        is_up: true,
        busy: grown("linerate_busy_turns_total").zip(turns).map(|(busy, turns)| busy as f64 / turns as f64),
        rx_frames: sum(|row| row.rx_frames),
        rx_bytes: sum(|row| row.rx_bytes),
        tx_frames: sum(|row| row.tx_frames),
        tx_bytes: sum(|row| row.tx_bytes),
        requests: sum(|row| row.requests),
        drops: sum(|row| row.drops),
        connections: count(|row| row.connections),
        held: None,
        pool_free: None,
        queued: count(|row| row.queued),
        rtt: median(after.connections.iter().filter_map(|connection| connection.rtt_us).collect()),
    }
}

/// What a worker has dropped, by cause.
fn by_cause(told: &Told) -> Option<&BTreeMap<String, u64>> {
    match told.get("linerate_drops_total")? {
        Value::Each(each) => Some(each),
        Value::One(_) => None,
    }
}

/// What was dropped of all workers: the cause, how often in a second, and how often ever, the latest first. A worker that did not answer
/// before has no rate, as in its row.
pub fn drops(after: &Sample, before: Option<&Sample>) -> Vec<(String, Option<f64>, u64)> {
    let seconds = before.map(|before| seconds(after, before)).filter(|seconds| *seconds > 0.0);
    // Of each cause how many there were ever, and in the interval.
    let mut causes = BTreeMap::<&String, (u64, u64)>::new();
    for (worker, told) in after.counters.workers.iter().enumerate() {
        let earlier = before.and_then(|before| before.counters.workers.get(worker)?.as_ref());
        for (cause, n) in told.iter().flat_map(by_cause).flatten() {
            let had = earlier.map(|told| by_cause(told).and_then(|each| each.get(cause)).copied().unwrap_or(0));
            let (ever, grown) = causes.entry(cause).or_default();
            *ever += n;
            *grown += had.map_or(0, |had| n.saturating_sub(had));
        }
    }
    let mut all: Vec<_> = causes.into_iter().collect();
    all.sort_by_key(|(_, (ever, grown))| Reverse((*grown, *ever)));
    let rate = |grown| seconds.map(|seconds| grown as f64 / seconds);
    all.into_iter().map(|(cause, (ever, grown))| (cause.clone(), rate(grown), ever)).collect()
}

/// A column of the table of workers.
pub struct Column {
    /// Its head.
    pub head: &'static str,
    /// Characters.
    pub width: usize,
    /// What it says of a worker.
    pub text: fn(&Figures) -> String,
    /// By what workers are sorted by it, the greatest first.
    key: fn(&Figures) -> Option<f64>,
}

fn shortened(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), short)
}

fn percent(part: Option<f64>) -> String {
    part.map_or_else(|| "-".to_owned(), |part| format!("{:.0}", part * 100.0))
}

macro_rules! column {
    ($head:literal, $width:literal, $text:ident, $field:ident) => {
        Column { head: $head, width: $width, text: |row| $text(row.$field), key: |row| row.$field }
    };
    ($head:literal, $width:literal, $field:ident) => {
        Column {
            head: $head,
            width: $width,
            text: |row| shortened(row.$field.map(|n| n as f64)),
            key: |row| row.$field.map(|n| n as f64),
        }
    };
}

/// All of them, which fit into 80 characters.
pub static COLUMNS: [Column; 13] = [
    Column {
        head: "wk",
        width: 3,
        text: |row| row.worker.map_or_else(|| "all".to_owned(), |worker| worker.to_string()),
        key: |row| row.worker.map(|worker| -(worker as f64)),
    },
    column!("busy%", 5, percent, busy),
    column!("rx/s", 5, shortened, rx_frames),
    column!("rxB/s", 5, shortened, rx_bytes),
    column!("tx/s", 5, shortened, tx_frames),
    column!("txB/s", 5, shortened, tx_bytes),
    column!("req/s", 5, shortened, requests),
    column!("conns", 5, connections),
    column!("drop/s", 6, shortened, drops),
    column!("held%", 5, percent, held),
    column!("free", 5, pool_free),
    column!("txq", 5, queued),
    Column { head: "rtt", width: 6, text: |row| row.rtt.map_or_else(|| "-".to_owned(), time), key: |row| row.rtt },
];

/// Which of two workers comes first by a column: what cannot be told is last.
pub fn order(column: &Column, a: &Figures, b: &Figures) -> Ordering {
    let key = |row| (column.key)(row).unwrap_or(f64::NEG_INFINITY);
    key(b).total_cmp(&key(a)).then(a.worker.cmp(&b.worker))
}

/// The heads of the columns, as a line.
pub fn heads() -> String {
    COLUMNS.iter().map(|column| format!("{:>1$}", column.head, column.width)).collect::<Vec<_>>().join(" ")
}

/// A row, as a line.
pub fn line(row: &Figures) -> String {
    if !row.is_up {
        return format!("{:>3} does not answer", row.worker.unwrap_or_default());
    }
    COLUMNS.iter().map(|column| format!("{:>1$}", (column.text)(row), column.width)).collect::<Vec<_>>().join(" ")
}

/// What was sent again, where that is counted, and what was dropped, as one line.
pub fn losses(after: &Sample, before: Option<&Sample>) -> String {
    let each = |what: &str, rate, all| format!("{what} {}/s ({all})", shortened(rate));
    let drops = drops(after, before).iter().map(|(cause, rate, all)| each(cause, *rate, *all)).collect::<Vec<_>>();
    let drops = if drops.is_empty() { "none".to_owned() } else { drops.join(", ") };
    match sent_again(after, before) {
        Some((rate, all)) => format!("{}; drops: {drops}", each("sent again", rate, all)),
        None => format!("drops: {drops}"),
    }
}

/// Segments that all workers sent again: how many in a second, and how many ever.
fn sent_again(after: &Sample, before: Option<&Sample>) -> Option<(Option<f64>, u64)> {
    let all = |sample: &Sample| {
        let workers = sample.counters.workers.iter().flatten();
        workers.filter_map(|told| value(told, "linerate_retransmitted_segments_total")).reduce(|a, b| a + b)
    };
    let now = all(after)?;
    let rate = before.and_then(|before| {
        let seconds = seconds(after, before);
        Some(now.saturating_sub(all(before)?) as f64 / seconds).filter(|_| seconds > 0.0)
    });
    Some((rate, now))
}

/// All of it without a screen: the workers, all together if there are several, and what was dropped.
pub fn plain(after: &Sample, before: Option<&Sample>) -> String {
    let rows = rows(after, before);
    let mut text = heads();
    rows.iter().for_each(|row| {
        let _ = write!(text, "\n{}", line(row));
    });
    if rows.len() > 1 {
        let _ = write!(text, "\n{}", line(&total(&rows, after, before)));
    }
    let _ = write!(text, "\n{}", losses(after, before));
    text
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::inspect::Counters;

    /// A worker's values.
    pub fn told(values: &[(&str, u64)], drops: &[(&str, u64)]) -> Option<Told> {
        let mut told: Told =
            values.iter().map(|(name, value)| (format!("linerate_{name}"), Value::One(*value))).collect();
        let drops = drops.iter().map(|(cause, n)| ((*cause).to_owned(), *n)).collect();
        told.insert("linerate_drops_total".to_owned(), Value::Each(drops));
        Some(told)
    }

    pub fn sample(at_us: u64, workers: Vec<Option<Told>>) -> Sample {
        Sample { counters: Counters { at_us, workers }, connections: Vec::new(), is_all: true }
    }

    fn two() -> (Sample, Sample) {
        let worker = |n: u64| {
            let values = [
                ("turns_total", 1000 * n),
                ("busy_turns_total", 250 * n),
                ("rx_frames_total", 4000 * n),
                ("rx_bytes_total", 6_000_000 * n),
                ("connections", 7),
                ("pool_share_packets", 100),
                ("packets_held", 30),
                ("pool_free_packets", 512),
            ];
            told(&values, &[("checksum", n), ("no listener", 10)])
        };
        (sample(1_000_000, vec![worker(1), None]), sample(3_000_000, vec![worker(3), worker(1)]))
    }

    #[test]
    fn rates_are_differences_over_the_interval_and_levels_are_as_they_are() {
        let (before, after) = two();
        let rows = rows(&after, Some(&before));
        let row = &rows[0];
        assert_eq!((row.worker, row.is_up, row.busy), (Some(0), true, Some(0.25)));
        assert_eq!((row.rx_frames, row.rx_bytes, row.drops), (Some(4000.0), Some(6e6), Some(1.0)));
        assert_eq!((row.connections, row.held, row.pool_free), (Some(7), Some(0.3), Some(512)));
        // There is no service that counts requests, and no round trip was measured.
        assert_eq!((row.requests, row.rtt, row.queued), (None, None, None));
        // It did not answer before: there is nothing to hold it against.
        assert_eq!((rows[1].is_up, rows[1].rx_frames, rows[1].busy), (true, None, None));
        assert_eq!(rows[1].connections, Some(7));
    }

    #[test]
    fn without_a_sample_before_or_an_interval_there_are_no_rates() {
        let (_, after) = two();
        for before in [None, Some(&after)] {
            let row = &rows(&after, before)[0];
            assert_eq!((row.rx_frames, row.busy, row.connections), (None, None, Some(7)));
        }
    }

    #[test]
    fn counters_that_begin_anew_are_no_great_rates() {
        let (before, after) = two();
        let row =
            &rows(&Sample { counters: Counters { at_us: 5_000_000, ..before.counters }, ..before }, Some(&after))[0];
        assert_eq!(row.rx_frames, Some(0.0));
    }

    #[test]
    fn drops_are_told_by_cause_the_latest_first() {
        let (before, after) = two();
        let latest = drops(&after, Some(&before));
        // The second worker did not answer before: what it has dropped until now is no rate.
        assert_eq!(latest, [("checksum".to_owned(), Some(1.0), 4), ("no listener".to_owned(), Some(0.0), 20)]);
        assert_eq!(losses(&after, None), "drops: no listener -/s (20), checksum -/s (4)");
        assert_eq!(losses(&sample(0, vec![]), None), "drops: none");
        let again = |at, n| sample(at, vec![told(&[("retransmitted_segments_total", n)], &[])]);
        let said = losses(&again(3_000_000, 12), Some(&again(1_000_000, 6)));
        assert_eq!(said, "sent again 3/s (12); drops: none");
    }

    #[test]
    fn a_line_is_no_longer_than_a_screen_is_wide_and_all_are_aligned() {
        let (before, after) = two();
        let text = plain(&after, Some(&before));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines[..4].iter().all(|line| line.len() == lines[0].len() && line.len() <= 80), "{text}");
        assert!(lines[3].starts_with("all"), "{text}");
        let silent = sample(4_000_000, vec![None]);
        assert!(plain(&silent, Some(&before)).contains("  0 does not answer\n"));
    }

    #[test]
    fn workers_are_sorted_by_a_column_and_what_cannot_be_told_is_last() {
        let with = |worker, busy| Figures { worker: Some(worker), busy, ..Figures::default() };
        let mut rows = [with(0, None), with(1, Some(0.1)), with(2, Some(0.9)), with(3, Some(0.1))];
        rows.sort_by(|a, b| order(&COLUMNS[1], a, b));
        assert_eq!(rows.map(|row| row.worker.unwrap()), [2, 1, 3, 0]);
        let mut rows = [with(2, None), with(0, None), with(1, None)];
        rows.sort_by(|a, b| order(&COLUMNS[0], a, b));
        assert_eq!(rows.map(|row| row.worker.unwrap()), [0, 1, 2]);
    }
}
