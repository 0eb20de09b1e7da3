//! What the project requires of figures that are good for themselves.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// A figure, and the most that it may be.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limit {
    /// Of what.
    pub what: String,
    /// What was measured.
    pub figure: f64,
    /// The most that it may be.
    pub limit: f64,
    /// Whether it is no more.
    pub met: bool,
}

impl Limit {
    /// What `figure` is that of, with the most that it may be.
    pub fn new(what: impl Into<String>, figure: f64, limit: f64) -> Self {
        Limit { what: what.into(), figure, limit, met: figure <= limit }
    }
}

/// The limits for people, all of them of `name`.
pub fn table(name: &str, limits: &[Limit]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([name, "figure", "at most", ""]);
    for Limit { what, figure, limit, met } in limits {
        let number = |n: f64| if n < 100.0 { format!("{n:.2}") } else { format!("{n:.0}") };
        let verdict = if *met { "met" } else { "not met" };
        table.add_row([what.clone(), number(*figure), number(*limit), verdict.to_owned()]);
    }
    table.column_iter_mut().skip(1).take(2).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}
