//! Absolute requirements on figures.

use crate::report;
use comfy_table::Table;

/// Figure with its upper limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    /// Name.
    pub requirement: String,
    /// Measured figure.
    pub figure: f64,
    /// Maximum.
    pub limit: f64,
    /// True if the figure is within the limit.
    pub met: bool,
}

impl Limit {
    /// Creates a limit for the measured `figure`.
    pub fn new(requirement: impl Into<String>, figure: f64, limit: f64) -> Self {
        Limit { requirement: requirement.into(), figure, limit, met: figure <= limit }
    }
}

/// Formats the limits of `name`.
pub fn table(name: &str, limits: &[Limit]) -> Table {
    let mut table = report::table([name, "#figure", "#at most", ""]);
    for Limit { requirement, figure, limit, met } in limits {
        let number = |n: f64| if n < 100.0 { format!("{n:.2}") } else { format!("{n:.0}") };
        let verdict = if *met { "met" } else { "not met" };
        table.add_row([requirement.clone(), number(*figure), number(*limit), verdict.to_owned()]);
    }
    table
}
