//! Printing of a load's report, which states whether a signal ended the measurement early.

use super::WithContext;
use crate::error::Error;
use linerate::RunContext;
use linerate_process::output::print_line;
use serde::Serialize;
use std::fmt::{self, Display};
use std::time::Duration;

/// Time of a measurement that a signal ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interruption {
    measured: Duration,
    planned: Duration,
}

impl Interruption {
    /// Returns the interruption of a measurement, if a signal arrived and `measured` is less than `planned`.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if nothing was measured.
    pub fn check(signalled: bool, measured: Duration, planned: Duration) -> Result<Option<Interruption>, Error> {
        match signalled && measured < planned {
            true if measured.is_zero() => Err(Error::Interrupted { measured, planned }),
            early => Ok(early.then_some(Interruption { measured, planned })),
        }
    }
}

/// A report. JSON is its object, with `"interrupted":true` after an interruption.
#[derive(Debug, Serialize)]
struct Partial<T> {
    #[serde(flatten)]
    report: T,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    interrupted: bool,
}

impl<T: Display> Display for Partial<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.report.fmt(f)?;
        if self.interrupted {
            f.write_str("\ninterrupted by a signal: the figures cover part of the time")
        } else {
            Ok(())
        }
    }
}

/// Prints a report as JSON or text.
///
/// # Errors
/// [`Error::Interrupted`] after the output of a report with an interruption.
pub fn print_report(
    as_json: bool,
    report: impl Display + Serialize,
    context: RunContext,
    interruption: Option<Interruption>,
) -> Result<(), Error> {
    let result = Partial { report, interrupted: interruption.is_some() };
    let report = WithContext { result, context };
    print_line(if as_json { report.json() } else { report.to_string() }).map_err(Error::Output)?;
    match interruption {
        None => Ok(()),
        Some(Interruption { measured, planned }) => Err(Error::Interrupted { measured, planned }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn signal_during_the_measurement_is_an_interruption() {
        let of = |signalled, measured| Interruption::check(signalled, measured, SECOND);
        assert!(of(true, SECOND / 2).unwrap().is_some());
        // The measurement was complete when the signal came.
        assert_eq!(of(true, SECOND).unwrap(), None);
        // All connections were lost.
        assert_eq!(of(false, SECOND / 2).unwrap(), None);
        let error = of(true, Duration::ZERO).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.status()), ("interrupted before the measurement", 1));
    }

    #[test]
    fn interrupted_report_is_marked() {
        #[derive(Serialize)]
        struct Count {
            requests: u64,
        }
        impl Display for Count {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "requests {}", self.requests)
            }
        }
        let partial = |interrupted| Partial { report: Count { requests: 3 }, interrupted };
        let json = |interrupted| serde_json::to_string(&partial(interrupted)).unwrap();
        assert_eq!(json(false), r#"{"requests":3}"#);
        assert_eq!(json(true), r#"{"requests":3,"interrupted":true}"#);
        assert_eq!(partial(false).to_string(), "requests 3");
        assert!(partial(true).to_string().starts_with("requests 3\ninterrupted"));
    }
}
