//! Absolute requirements on measurements.

use crate::report;
use comfy_table::Table;

/// Measured value with its upper limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    /// Name.
    pub requirement: String,
    /// Measured value.
    pub value: f64,
    /// Maximum.
    pub limit: f64,
    /// True if the value is within the limit.
    pub met: bool,
}

impl Limit {
    /// Creates a limit for the measured `value`.
    pub fn new(requirement: impl Into<String>, value: f64, limit: f64) -> Self {
        Limit { requirement: requirement.into(), value, limit, met: value <= limit }
    }
}

/// Formats the limits of `name`.
pub fn table(name: &str, limits: &[Limit]) -> Table {
    let mut table = report::table([name, "#figure", "#at most", ""]);
    for Limit { requirement, value, limit, met } in limits {
        let number = |n: f64| if n < 100.0 { format!("{n:.2}") } else { format!("{n:.0}") };
        let verdict = if *met { "met" } else { "not met" };
        table.add_row([requirement.clone(), number(*value), number(*limit), verdict.to_owned()]);
    }
    table
}
