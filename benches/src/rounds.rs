//! Rounds of measurements: each job once in every round, with the distance of the cores, and required ratios of the
//! values of one round.

use crate::distance::{Cores, group_by_distance, median};
use crate::report::table;
use linerate_harness::Error;
use std::fmt;
use std::time::Duration;

/// Options of programs that measure in rounds.
#[derive(Debug, Clone, clap::Args)]
pub struct RoundsArgs {
    /// Number of rounds; the medians are printed
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Duration of each load in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,

    /// Measure only jobs whose names contain one of these; a comparison with another one then counts as not met
    #[arg(long, value_name = "TEXT,…", value_delimiter = ',')]
    only: Vec<String>,

    /// Cores of servers and loads
    #[command(flatten)]
    pub cores: Cores,
}

impl RoundsArgs {
    /// Returns the duration of each load.
    pub fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }
}

/// Measurements of a program and the requirements on them.
pub struct Plan<'a> {
    /// Heads of the columns that name a row.
    pub heads: &'static [&'static str],
    /// Heads of the columns with values, and decimals.
    pub values: &'static [(&'static str, usize)],
    /// Measurements.
    pub jobs: Vec<Job<'a>>,
    /// Required ratios.
    pub required: Vec<Required<'a>>,
    /// Explanation of the tables.
    pub legend: String,
}

/// Measurement that results in one or more rows.
pub struct Job<'a> {
    name: String,
    measure: Box<dyn Fn(u32) -> Result<Vec<Row>, Error> + 'a>,
}

impl<'a> Job<'a> {
    /// Creates a job. `measure` receives the number of the round.
    pub fn new(name: impl Into<String>, measure: impl Fn(u32) -> Result<Vec<Row>, Error> + 'a) -> Self {
        Job { name: name.into(), measure: Box::new(measure) }
    }
}

/// Result of a measurement: cells of the first columns, and values. A value that was not measured is NaN.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    names: Vec<String>,
    values: Vec<f64>,
}

impl Row {
    /// Creates a row.
    pub fn new(names: &[&str], values: &[f64]) -> Self {
        Row { names: names.iter().map(|name| (*name).to_owned()).collect(), values: values.to_vec() }
    }
}

/// Limit of a ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// Minimum.
    AtLeast(f64),
    /// Maximum.
    AtMost(f64),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::AtLeast(least) => write!(f, "≥ {least:.2}"),
            Bound::AtMost(most) => write!(f, "≤ {most:.2}"),
        }
    }
}

/// Required ratio of values of one round.
pub struct Required<'a> {
    name: String,
    bound: Bound,
    ratio: Box<RatioOf<'a>>,
}

/// Returns the ratio of a round; `None` if the round lacks a value.
type RatioOf<'a> = dyn Fn(&RoundRows) -> Option<f64> + 'a;

impl<'a> Required<'a> {
    /// Creates a requirement on the result of `ratio`, which is `None` if the round lacks a value.
    pub fn new(name: impl Into<String>, bound: Bound, ratio: impl Fn(&RoundRows) -> Option<f64> + 'a) -> Self {
        Required { name: name.into(), bound, ratio: Box::new(ratio) }
    }
}

/// Rows of one round that were measured at one distance of the cores.
pub struct RoundRows<'a>(Vec<&'a Row>);

impl RoundRows<'_> {
    /// Returns a value of the row with these names, if it was measured.
    pub fn value(&self, names: &[&str], value: usize) -> Option<f64> {
        let row = self.0.iter().find(|row| row.names == names)?;
        row.values.get(value).copied().filter(|value| value.is_finite())
    }
}

/// Rows of a job in a round.
struct Sample {
    round: u32,
    transfer_ns: f64,
    rows: Vec<Row>,
}

/// Median of a row at one distance.
struct Median {
    row: Row,
    /// Median transfer time of a cache line between the two cores in nanoseconds.
    transfer_ns: f64,
}

/// Ratio with its requirement, at the smallest distance with all of its values.
struct Ratio {
    name: String,
    bound: Bound,
    /// Transfer time, and median, lowest and highest ratio of the rounds; `None` if no round has all values.
    measured: Option<(f64, [f64; 3])>,
    is_met: bool,
}

/// Results of all rounds.
pub struct Report {
    heads: Vec<String>,
    decimals: Vec<usize>,
    rows: Vec<Median>,
    ratios: Vec<Ratio>,
    legend: String,
}

impl Report {
    /// Returns whether all requirements are met.
    pub fn is_met(&self) -> bool {
        self.ratios.iter().all(|ratio| ratio.is_met)
    }
}

/// Measures each job once per round, so that a temporary disturbance affects all alike. The order alternates, so that a
/// steady drift favours none. A job is left out of a round if the cores keep moving.
pub fn measure(plan: &Plan<'_>, args: &RoundsArgs) -> Result<Report, Error> {
    let is_wanted = |job: &&Job| args.only.is_empty() || args.only.iter().any(|only| job.name.contains(only));
    let mut jobs: Vec<&Job> = plan.jobs.iter().filter(is_wanted).collect();
    let mut samples = Vec::new();
    for round in 0..args.rounds {
        for job in &jobs {
            eprintln!("round {} of {}: {}", round + 1, args.rounds, job.name);
            let measured = args.cores.measure_stable(|| (job.measure)(round))?;
            samples.extend(measured.map(|(transfer_ns, rows)| Sample { round, transfer_ns, rows }));
        }
        jobs.reverse();
    }
    Ok(report(plan, &samples, format!("{} rounds, and loads of {} s", args.rounds, args.seconds)))
}

fn report(plan: &Plan<'_>, samples: &[Sample], rounds: String) -> Report {
    let groups = group_by_distance(samples.iter().map(|sample| sample.transfer_ns).collect());
    let mut rows: Vec<Median> = Vec::new();
    let mut ratios = Vec::new();
    for group in &groups {
        let rows_of = |names: &[String]| -> Vec<&Row> {
            let near = samples.iter().filter(|sample| group.contains(&sample.transfer_ns));
            near.flat_map(|sample| &sample.rows).filter(|row| row.names == names).collect()
        };
        for Row { names, .. } in samples.iter().flat_map(|sample| &sample.rows) {
            let alike = rows_of(names);
            let Some(transfer_ns) = median(group.iter().copied()) else { continue };
            // The nearest distance counts.
            if alike.is_empty() || rows.iter().any(|other| other.row.names == *names) {
                continue;
            }
            let value = |at| median(alike.iter().map(|row: &&Row| row.values[at])).unwrap_or(f64::NAN);
            let values = (0..plan.values.len()).map(value).collect();
            rows.push(Median { row: Row { names: names.clone(), values }, transfer_ns });
        }
    }
    let position = |names: &[String]| samples.iter().flat_map(|one| &one.rows).position(|row| row.names == names);
    rows.sort_by_key(|median| position(&median.row.names));
    for Required { name, bound, ratio } in &plan.required {
        let measured = groups.iter().find_map(|group| {
            let of = |round| {
                let near = samples.iter().filter(|one| one.round == round && group.contains(&one.transfer_ns));
                ratio(&RoundRows(near.flat_map(|sample| &sample.rows).collect()))
            };
            let last = samples.iter().map(|sample| sample.round).max()?;
            let ratios: Vec<f64> = (0..=last).filter_map(of).collect();
            let range = (ratios.iter().copied().fold(f64::MAX, f64::min), ratios.iter().copied().fold(0.0, f64::max));
            Some((median(group.iter().copied())?, [median(ratios.into_iter())?, range.0, range.1]))
        });
        let is_met = measured.is_some_and(|(_, [ratio, ..])| match *bound {
            Bound::AtLeast(least) => ratio >= least,
            Bound::AtMost(most) => ratio <= most,
        });
        ratios.push(Ratio { name: name.clone(), bound: *bound, measured, is_met });
    }
    let numbers = ["line ns"].into_iter().chain(plan.values.iter().map(|(head, _)| *head));
    let numbers = numbers.map(|head| format!("#{head}"));
    Report {
        heads: plan.heads.iter().map(|head| (*head).to_owned()).chain(numbers).collect(),
        decimals: plan.values.iter().map(|(_, decimals)| *decimals).collect(),
        rows,
        ratios,
        legend: format!("{}; {rounds}", plan.legend),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut measured = table(&self.heads);
        for Median { row: Row { names, values }, transfer_ns } in &self.rows {
            let value = |(value, decimals): (&f64, &usize)| {
                if value.is_finite() { format!("{value:.decimals$}") } else { String::new() }
            };
            let line = [format!("{transfer_ns:.0}")];
            measured.add_row(names.iter().cloned().chain(line).chain(values.iter().zip(&self.decimals).map(value)));
        }
        writeln!(f, "{measured}\n")?;
        let mut compared = table(["comparison", "line ns", "ratio", "its range", "required", ""]);
        for Ratio { name, bound, measured, is_met } in &self.ratios {
            let verdict = match (measured, is_met) {
                (None, _) => "not measured at one distance",
                (Some(_), true) => "met",
                (Some(_), false) => "not met",
            };
            let values = measured.map(|(line, [ratio, low, high])| {
                [format!("{line:.0}"), format!("{ratio:.2}"), format!("{low:.2} to {high:.2}")]
            });
            let values = values.unwrap_or_default();
            compared.add_row([name.clone()].into_iter().chain(values).chain([bound.to_string(), verdict.to_owned()]));
        }
        if !self.ratios.is_empty() {
            writeln!(f, "{compared}\n")?;
        }
        write!(
            f,
            "{}; line: transfer time of a cache line between the cores: only figures of one distance are compared, and \
             the nearest is printed",
            self.legend
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios_are_those_of_the_nearest_distance() {
        let sample = |round, transfer_ns, name: &str, rate| Sample {
            round,
            transfer_ns,
            rows: vec![Row::new(&[name], &[rate, f64::NAN])],
        };
        let samples = [
            sample(0, 30.0, "echo", 10_000.0),
            sample(0, 31.0, "kv", 9_700.0),
            sample(1, 32.0, "kv", 4_000.0),
            sample(1, 33.0, "echo", 5_000.0),
            sample(2, 150.0, "echo", 1_000.0),
            sample(2, 160.0, "kv", 500.0),
            sample(2, 160.0, "far", 7.0),
        ];
        let of = |name| move |round: &RoundRows| Some(round.value(&[name], 0)? / round.value(&["echo"], 0)?);
        let required = vec![
            Required::new("kv to echo", Bound::AtLeast(0.8), of("kv")),
            Required::new("far to echo", Bound::AtMost(0.001), of("far")),
            Required::new("none to echo", Bound::AtLeast(0.0), of("none")),
        ];
        let plan = Plan {
            heads: &["load"],
            values: &[("requests/s", 0), ("µs", 1)],
            jobs: Vec::new(),
            required,
            legend: "64 bytes".to_owned(),
        };
        let report = report(&plan, &samples, "3 rounds".to_owned());
        let printed = report.to_string();
        for line in [
            "| echo |      32 |      10000 |    |",
            "| far  |     160 |          7 |    |",
            "| kv to echo   | 32      | 0.97  | 0.80 to 0.97 | ≥ 0.80   | met                          |",
            "| far to echo  | 160     | 0.01  | 0.01 to 0.01 | ≤ 0.00   | not met                      |",
            "| none to echo |         |       |              | ≥ 0.00   | not measured at one distance |",
            "64 bytes; 3 rounds; line",
        ] {
            assert!(printed.contains(line), "{line}\n{printed}");
        }
        assert!(!report.is_met());
    }
}
