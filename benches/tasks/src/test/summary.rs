//! Table of the steps with their outcomes.

use crate::error::Error;
use std::fmt;
use std::time::Duration;

/// Outcome of a step.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Success.
    Passed,
    /// Failure, with its description.
    Failed(String),
    /// Not run, or not completely, with the reason.
    Skipped(String),
    /// Ended by a signal.
    Interrupted,
}

impl From<Result<(), Error>> for Outcome {
    fn from(result: Result<(), Error>) -> Outcome {
        match result {
            Ok(()) => Outcome::Passed,
            Err(Error::Usage(why) | Error::Failed(why)) => Outcome::Failed(why),
            Err(Error::Skipped(why)) => Outcome::Skipped(why),
            Err(Error::Interrupted) => Outcome::Interrupted,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Outcome::Passed => "passed",
            Outcome::Failed(_) | Outcome::Interrupted => "failed",
            Outcome::Skipped(_) => "skipped",
        })
    }
}

/// Step in the table.
#[derive(Debug)]
pub struct Row {
    /// Name of the step.
    pub name: String,
    /// True if a failure ends the run.
    pub required: bool,
    /// Outcome of the step.
    pub outcome: Outcome,
    /// Duration of the step.
    pub time: Duration,
}

/// Steps so far.
#[derive(Debug, Default)]
pub struct Summary {
    rows: Vec<Row>,
}

impl Summary {
    /// Adds a step.
    pub fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Returns the reason to skip the remaining steps, if there is one.
    pub fn end(&self) -> Option<String> {
        self.rows.iter().find_map(|row| match &row.outcome {
            Outcome::Interrupted => Some("interrupted".to_owned()),
            Outcome::Failed(_) if row.required => Some(format!("{} failed", row.name)),
            _ => None,
        })
    }

    /// Returns the table, with `total` as the duration of the run.
    pub fn table(&self, total: Duration) -> String {
        let width = self.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max("total".len());
        let mut table = format!("{:width$}  outcome  {:>10}\n", "step", "time");
        for Row { name, outcome, time, .. } in &self.rows {
            let why = match outcome {
                Outcome::Passed => String::new(),
                Outcome::Failed(why) | Outcome::Skipped(why) => format!("  {}", why.lines().next().unwrap_or_default()),
                Outcome::Interrupted => "  interrupted".to_owned(),
            };
            table += &format!("{name:width$}  {outcome:7}  {:>10}{why}\n", duration(*time));
        }
        let outcome = if self.result().is_ok() { "passed" } else { "failed" };
        table + &format!("{:width$}  {outcome:7}  {:>10}\n", "total", duration(total))
    }

    /// Returns the result of the run. Skipped steps are no failure.
    pub fn result(&self) -> Result<(), Error> {
        if self.rows.iter().any(|row| row.outcome == Outcome::Interrupted) {
            return Err(Error::Interrupted);
        }
        let failed = self.rows.iter().filter(|row| matches!(row.outcome, Outcome::Failed(_)));
        let failed: Vec<&str> = failed.map(|row| row.name.as_str()).collect();
        if failed.is_empty() { Ok(()) } else { Err(Error::failed(format!("failed: {}", failed.join(", ")))) }
    }
}

/// Formats a duration: `0.4 s`, `59 s`, `3 min 07 s`.
fn duration(time: Duration) -> String {
    match time.as_secs() {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        seconds @ 10..60 => format!("{seconds} s"),
        seconds => format!("{} min {:02} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(rows: Vec<(&str, bool, Outcome, u64)>) -> Summary {
        let rows = rows.into_iter().map(|(name, required, outcome, seconds)| Row {
            name: name.to_owned(),
            required,
            outcome,
            time: Duration::from_secs(seconds),
        });
        Summary { rows: rows.collect() }
    }

    #[test]
    fn table_has_outcomes_reasons_and_durations() {
        let summary = summary(vec![
            ("clippy", true, Outcome::Passed, 95),
            ("tests", false, Outcome::Failed("cargo test: exit status: 101\nmore".into()), 12),
            ("lab", false, Outcome::Skipped("it needs root".into()), 0),
        ]);
        let expected = "\
step    outcome        time
clippy  passed   1 min 35 s
tests   failed         12 s  cargo test: exit status: 101
lab     skipped       0.0 s  it needs root
total   failed   1 min 47 s
";
        assert_eq!(summary.table(Duration::from_secs(107)), expected);
        assert_eq!(summary.result().unwrap_err().to_string(), "failed: tests");
    }

    #[test]
    fn only_a_required_failure_or_an_interruption_ends_the_run() {
        let failed = || Outcome::Failed("why".into());
        assert_eq!(summary(vec![("tests", false, failed(), 1)]).end(), None);
        assert_eq!(summary(vec![("clippy", true, failed(), 1)]).end(), Some("clippy failed".into()));
        assert_eq!(summary(vec![("tests", false, Outcome::Interrupted, 1)]).end(), Some("interrupted".into()));
    }

    #[test]
    fn skipped_steps_are_no_failure() {
        let summary =
            summary(vec![("tests", false, Outcome::Passed, 1), ("lab", false, Outcome::Skipped("why".into()), 0)]);
        assert!(summary.result().is_ok());
        assert!(summary.table(Duration::from_secs(1)).ends_with("total  passed        1.0 s\n"));
    }

    #[test]
    fn interruption_is_reported_before_failures() {
        let rows = vec![("tests", false, Outcome::Failed("why".into()), 1), ("lab", false, Outcome::Interrupted, 1)];
        assert!(matches!(summary(rows).result(), Err(Error::Interrupted)));
    }
}
