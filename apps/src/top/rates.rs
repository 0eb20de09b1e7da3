//! Rates and levels of the workers of a process over an interval, one row per worker.

use super::sample::Sample;
use super::units::{short, time};
use crate::inspect::Value;
use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Counters of a worker by metric name.
type Metrics = BTreeMap<String, Value>;

/// Row of the table: rates and levels of one worker or of all. `None` means not available.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkerRates {
    /// Worker number. `None` for the total.
    pub worker: Option<usize>,
    /// Set if the worker answered.
    pub is_up: bool,
    /// Fraction of iterations with work.
    pub busy: Option<f64>,
    /// Frames received per second. The following rates are also per second.
    pub rx_frames: Option<f64>,
    pub rx_bytes: Option<f64>,
    pub tx_frames: Option<f64>,
    pub tx_bytes: Option<f64>,
    pub requests: Option<f64>,
    pub drops: Option<f64>,
    /// Current connections.
    pub connections: Option<u64>,
    /// Packets held by the worker, as a fraction of its share.
    pub held: Option<f64>,
    /// Free packets in the pool.
    pub pool_free: Option<u64>,
    /// Frames queued for transmission.
    pub queued: Option<u64>,
    /// Median round-trip time of the sampled connections, in microseconds.
    pub rtt: Option<f64>,
}

/// Returns the value of a metric, summed over its labels.
fn value(metrics: &Metrics, name: &str) -> Option<u64> {
    match metrics.get(name)? {
        Value::One(value) => Some(*value),
        Value::Each(each) => Some(each.values().sum()),
    }
}

/// Counters at both ends of an interval, and its length in seconds.
struct Interval<'a> {
    after: &'a Metrics,
    before: Option<&'a Metrics>,
    seconds: f64,
}

impl Interval<'_> {
    fn increase(&self, name: &str) -> Option<f64> {
        Some(value(self.after, name)?.saturating_sub(value(self.before?, name)?) as f64)
    }

    fn rate(&self, name: &str) -> Option<f64> {
        self.increase(name).map(|increase| increase / self.seconds).filter(|_| self.seconds > 0.0)
    }

    fn rates(&self) -> WorkerRates {
        let level = |name| value(self.after, name);
        let fraction = |part: Option<f64>, whole: Option<f64>| Some(part? / whole.filter(|whole| *whole > 0.0)?);
        let share = level("linerate_pool_share_packets").map(|share| share as f64);
        WorkerRates {
            worker: None,
            is_up: true,
            busy: fraction(self.increase("linerate_busy_turns_total"), self.increase("linerate_turns_total")),
            rx_frames: self.rate("linerate_rx_frames_total"),
            rx_bytes: self.rate("linerate_rx_bytes_total"),
            tx_frames: self.rate("linerate_tx_frames_total"),
            tx_bytes: self.rate("linerate_tx_bytes_total"),
            requests: self.rate("linerate_requests_total"),
            drops: self.rate("linerate_drops_total"),
            connections: level("linerate_connections"),
            held: fraction(level("linerate_packets_held").map(|held| held as f64), share),
            pool_free: level("linerate_pool_free_packets"),
            queued: level("linerate_tx_queued_frames"),
            rtt: None,
        }
    }
}

fn median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

/// Returns the seconds between two samples, by the clock of the process.
fn seconds(after: &Sample, before: &Sample) -> f64 {
    after.counters.at_us.saturating_sub(before.counters.at_us) as f64 / 1e6
}

/// Returns one row per worker, in order of worker number.
pub fn rows(after: &Sample, before: Option<&Sample>) -> Vec<WorkerRates> {
    let seconds = before.map_or(0.0, |before| seconds(after, before));
    let row = |(worker, metrics): (usize, &Option<Metrics>)| {
        let Some(metrics) = metrics else { return WorkerRates { worker: Some(worker), ..WorkerRates::default() } };
        let before = before.and_then(|before| before.counters.workers.get(worker)?.as_ref());
        let rtts = after.connections.iter().filter(|connection| connection.worker == worker);
        let rtt = median(rtts.filter_map(|connection| connection.rtt_us).collect());
        WorkerRates { worker: Some(worker), rtt, ..Interval { after: metrics, before, seconds }.rates() }
    };
    after.counters.workers.iter().enumerate().map(row).collect()
}

/// Returns the sums of the metrics of all workers of `sample` that `other`, if given, has metrics of as well.
fn merged(sample: &Sample, other: Option<&Sample>) -> Metrics {
    let mut sums = Metrics::new();
    for (worker, metrics) in sample.counters.workers.iter().enumerate() {
        let Some(metrics) = metrics else { continue };
        if other.is_some_and(|other| !matches!(other.counters.workers.get(worker), Some(Some(_)))) {
            continue;
        }
        for (name, value) in metrics {
            match (sums.entry(name.clone()).or_insert_with(|| value.zero()), value) {
                (Value::One(sum), Value::One(value)) => *sum += value,
                (Value::Each(sums), Value::Each(each)) => {
                    each.iter().for_each(|(label, value)| *sums.entry(label.clone()).or_default() += value);
                }
                _ => {}
            }
        }
    }
    sums
}

/// Returns the total of all workers. Pools may be shared, so the total of free packets is unknown.
pub fn total(after: &Sample, before: Option<&Sample>) -> WorkerRates {
    let all = merged(after, None);
    let (both, earlier) = (merged(after, before), before.map(|before| merged(before, Some(after))));
    let seconds = before.map_or(0.0, |before| seconds(after, before));
    WorkerRates {
        connections: value(&all, "linerate_connections"),
        held: None,
        pool_free: None,
        queued: value(&all, "linerate_tx_queued_frames"),
        rtt: median(after.connections.iter().filter_map(|connection| connection.rtt_us).collect()),
        ..Interval { after: &both, before: earlier.as_ref(), seconds }.rates()
    }
}

/// Returns the drops by cause.
fn by_cause(metrics: &Metrics) -> BTreeMap<String, u64> {
    match metrics.get("linerate_drops_total") {
        Some(Value::Each(each)) => each.clone(),
        _ => BTreeMap::new(),
    }
}

/// Returns the drops of all workers: cause, rate per second and total, sorted by increase and then by total. A worker
/// without an earlier sample has no rate.
pub fn drops(after: &Sample, before: Option<&Sample>) -> Vec<(String, Option<f64>, u64)> {
    let seconds = before.map(|before| seconds(after, before)).filter(|seconds| *seconds > 0.0);
    let now = before.map(|before| by_cause(&merged(after, Some(before)))).unwrap_or_default();
    let earlier = before.map(|before| by_cause(&merged(before, Some(after)))).unwrap_or_default();
    let count = |counts: &BTreeMap<String, u64>, cause: &str| counts.get(cause).copied().unwrap_or(0);
    let increase = |cause: &str| count(&now, cause).saturating_sub(count(&earlier, cause));
    let mut all: Vec<_> = by_cause(&merged(after, None)).into_iter().collect();
    all.sort_by_key(|(cause, total)| Reverse((increase(cause), *total)));
    let rate = |cause: &str| seconds.map(|seconds| increase(cause) as f64 / seconds);
    all.into_iter().map(|(cause, total)| (cause.clone(), rate(&cause), total)).collect()
}

/// Column of the table of workers.
pub struct Column {
    pub head: &'static str,
    /// Width in characters.
    pub width: usize,
    /// Formats the cell of a row.
    pub text: fn(&WorkerRates) -> String,
    /// Returns the sort key of a row. Rows are sorted in descending order.
    key: fn(&WorkerRates) -> Option<f64>,
}

fn format_number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), short)
}

fn percent(fraction: Option<f64>) -> String {
    fraction.map_or_else(|| "-".to_owned(), |fraction| format!("{:.0}", fraction * 100.0))
}

macro_rules! column {
    ($head:literal, $width:literal, $text:ident, $field:ident) => {
        Column { head: $head, width: $width, text: |row| $text(row.$field), key: |row| row.$field }
    };
    ($head:literal, $width:literal, $field:ident) => {
        Column {
            head: $head,
            width: $width,
            text: |row| format_number(row.$field.map(|n| n as f64)),
            key: |row| row.$field.map(|n| n as f64),
        }
    };
}

/// All columns. A line fits into 80 characters.
pub static COLUMNS: [Column; 13] = [
    Column {
        head: "wk",
        width: 3,
        text: |row| row.worker.map_or_else(|| "all".to_owned(), |worker| worker.to_string()),
        key: |row| row.worker.map(|worker| -(worker as f64)),
    },
    column!("busy%", 5, percent, busy),
    column!("rx/s", 5, format_number, rx_frames),
    column!("rxB/s", 5, format_number, rx_bytes),
    column!("tx/s", 5, format_number, tx_frames),
    column!("txB/s", 5, format_number, tx_bytes),
    column!("req/s", 5, format_number, requests),
    column!("conns", 5, connections),
    column!("drop/s", 6, format_number, drops),
    column!("held%", 5, percent, held),
    column!("free", 5, pool_free),
    column!("txq", 5, queued),
    Column { head: "rtt", width: 6, text: |row| row.rtt.map_or_else(|| "-".to_owned(), time), key: |row| row.rtt },
];

/// Compares two workers by a column. Workers without a value come last.
pub fn order(column: &Column, a: &WorkerRates, b: &WorkerRates) -> Ordering {
    let key = |row| (column.key)(row).unwrap_or(f64::NEG_INFINITY);
    key(b).total_cmp(&key(a)).then(a.worker.cmp(&b.worker))
}

/// Returns the line of headings.
pub fn headings() -> String {
    COLUMNS.iter().map(|column| format!("{:>1$}", column.head, column.width)).collect::<Vec<_>>().join(" ")
}

/// Formats a row as a line.
pub fn line(row: &WorkerRates) -> String {
    if !row.is_up {
        return format!("{:>3} no reply", row.worker.unwrap_or_default());
    }
    COLUMNS.iter().map(|column| format!("{:>1$}", (column.text)(row), column.width)).collect::<Vec<_>>().join(" ")
}

/// Formats processor time, sleeps, frames passed to the kernel and retransmissions, where they are counted, and drops
/// as one line.
pub fn losses(after: &Sample, before: Option<&Sample>) -> String {
    let each = |label: &str, rate, total| format!("{label} {}/s ({total})", format_number(rate));
    let drops = drops(after, before).iter().map(|(cause, rate, total)| each(cause, *rate, *total)).collect::<Vec<_>>();
    let drops = if drops.is_empty() { "none".to_owned() } else { drops.join(", ") };
    let counted = |label, name| sum(name, after, before).map(|(rate, total)| each(label, rate, total));
    let passed = counted("shared interface: passed to the kernel", "linerate_passed_frames_total");
    let retransmitted = counted("retransmitted", "linerate_retransmitted_segments_total");
    let cpu = sum("linerate_cpu_microseconds_total", after, before).and_then(|(rate, _)| rate);
    let cpu = cpu.map(|micros| format!("cpu {}%", percent(Some(micros / 1e6))));
    // A worker that polls does not sleep.
    let slept = sum("linerate_sleeps_total", after, before).filter(|(_, total)| *total > 0);
    let slept = slept.map(|(rate, total)| each("slept", rate, total));
    [cpu, slept, passed, retransmitted, Some(format!("drops: {drops}"))]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join("; ")
}

/// Returns a metric of all workers: rate per second and total.
fn sum(name: &str, after: &Sample, before: Option<&Sample>) -> Option<(Option<f64>, u64)> {
    let total = |sample: &Sample| value(&merged(sample, None), name);
    let now = total(after)?;
    let rate = before.and_then(|before| {
        let seconds = seconds(after, before);
        Some(now.saturating_sub(total(before)?) as f64 / seconds).filter(|_| seconds > 0.0)
    });
    Some((rate, now))
}

/// Formats the table without a screen: workers, total if there are several workers, and drops.
pub fn plain(after: &Sample, before: Option<&Sample>) -> String {
    let rows = rows(after, before);
    let mut text = headings();
    rows.iter().for_each(|row| {
        let _ = write!(text, "\n{}", line(row));
    });
    if rows.len() > 1 {
        let _ = write!(text, "\n{}", line(&total(after, before)));
    }
    let _ = write!(text, "\n{}", losses(after, before));
    text
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::inspect::Counters;

    /// Returns the metrics of a worker.
    pub fn metrics(values: &[(&str, u64)], drops: &[(&str, u64)]) -> Option<Metrics> {
        let mut metrics: Metrics =
            values.iter().map(|(name, value)| (format!("linerate_{name}"), Value::One(*value))).collect();
        let drops = drops.iter().map(|(cause, n)| ((*cause).to_owned(), *n)).collect();
        metrics.insert("linerate_drops_total".to_owned(), Value::Each(drops));
        Some(metrics)
    }

    pub fn sample(at_us: u64, workers: Vec<Option<Metrics>>) -> Sample {
        Sample { counters: Counters { at_us, workers }, connections: Vec::new(), is_complete: true }
    }

    fn two_samples() -> (Sample, Sample) {
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
            metrics(&values, &[("checksum", n), ("no listener", 10)])
        };
        (sample(1_000_000, vec![worker(1), None]), sample(3_000_000, vec![worker(3), worker(1)]))
    }

    #[test]
    fn rates_are_differences_over_the_interval_and_levels_are_current() {
        let (before, after) = two_samples();
        let rows = rows(&after, Some(&before));
        let row = &rows[0];
        assert_eq!((row.worker, row.is_up, row.busy), (Some(0), true, Some(0.25)));
        assert_eq!((row.rx_frames, row.rx_bytes, row.drops), (Some(4000.0), Some(6e6), Some(1.0)));
        assert_eq!((row.connections, row.held, row.pool_free), (Some(7), Some(0.3), Some(512)));
        // The service does not count requests, and no round-trip time was measured.
        assert_eq!((row.requests, row.rtt, row.queued), (None, None, None));
        // The worker did not answer before, so there is no earlier value.
        assert_eq!((rows[1].is_up, rows[1].rx_frames, rows[1].busy), (true, None, None));
        assert_eq!(rows[1].connections, Some(7));
    }

    #[test]
    fn rates_need_an_earlier_sample_and_a_nonzero_interval() {
        let (_, after) = two_samples();
        for before in [None, Some(&after)] {
            let row = &rows(&after, before)[0];
            assert_eq!((row.rx_frames, row.busy, row.connections), (None, None, Some(7)));
        }
    }

    #[test]
    fn reset_counter_has_rate_zero() {
        let (before, after) = two_samples();
        let row =
            &rows(&Sample { counters: Counters { at_us: 5_000_000, ..before.counters }, ..before }, Some(&after))[0];
        assert_eq!(row.rx_frames, Some(0.0));
    }

    #[test]
    fn drops_are_listed_by_cause_latest_first() {
        let (before, after) = two_samples();
        let latest = drops(&after, Some(&before));
        // The second worker has no earlier sample: its drops count in the total only.
        assert_eq!(latest, [("checksum".to_owned(), Some(1.0), 4), ("no listener".to_owned(), Some(0.0), 20)]);
        assert_eq!(losses(&after, None), "drops: no listener -/s (20), checksum -/s (4)");
        assert_eq!(losses(&sample(0, vec![]), None), "drops: none");
        let again = |at, n| sample(at, vec![metrics(&[("retransmitted_segments_total", n)], &[])]);
        let line = losses(&again(3_000_000, 12), Some(&again(1_000_000, 6)));
        assert_eq!(line, "retransmitted 3/s (12); drops: none");
        let passed = |at, n| sample(at, vec![metrics(&[("passed_frames_total", n)], &[])]);
        let line = losses(&passed(3_000_000, 50), Some(&passed(1_000_000, 10)));
        assert_eq!(line, "shared interface: passed to the kernel 20/s (50); drops: none");
        let slept =
            |at, n| sample(at, vec![metrics(&[("cpu_microseconds_total", 10_000 * n), ("sleeps_total", n)], &[])]);
        let line = losses(&slept(3_000_000, 50), Some(&slept(1_000_000, 10)));
        assert_eq!(line, "cpu 20%; slept 20/s (50); drops: none");
    }

    #[test]
    fn lines_are_aligned_and_fit_80_columns() {
        let (before, after) = two_samples();
        let text = plain(&after, Some(&before));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines[..4].iter().all(|line| line.len() == lines[0].len() && line.len() <= 80), "{text}");
        assert!(lines[3].starts_with("all"), "{text}");
        let silent = sample(4_000_000, vec![None]);
        assert!(plain(&silent, Some(&before)).contains("  0 no reply\n"));
    }

    #[test]
    fn workers_without_a_value_sort_last() {
        let with = |worker, busy| WorkerRates { worker: Some(worker), busy, ..WorkerRates::default() };
        let mut rows = [with(0, None), with(1, Some(0.1)), with(2, Some(0.9)), with(3, Some(0.1))];
        rows.sort_by(|a, b| order(&COLUMNS[1], a, b));
        assert_eq!(rows.map(|row| row.worker.unwrap()), [2, 1, 3, 0]);
        let mut rows = [with(2, None), with(0, None), with(1, None)];
        rows.sort_by(|a, b| order(&COLUMNS[0], a, b));
        assert_eq!(rows.map(|row| row.worker.unwrap()), [0, 1, 2]);
    }
}
