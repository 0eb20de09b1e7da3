//! Output of a bench program.

use comfy_table::{CellAlignment, Table, presets};
use std::fmt::Display;
use std::process::ExitCode;

/// Prints `report`, or the error of `program`. Returns failure on an error or an unmet requirement.
pub fn finish<R: Display, E: Display>(
    program: &str,
    report: Result<R, E>,
    is_met: impl FnOnce(&R) -> bool,
) -> ExitCode {
    match report {
        Ok(report) => {
            println!("{report}");
            if is_met(&report) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Creates a Markdown table. Columns whose head begins with `#` contain numbers, which are aligned to the right.
pub fn table(heads: impl IntoIterator<Item = impl AsRef<str>>) -> Table {
    let heads: Vec<String> = heads.into_iter().map(|head| head.as_ref().to_owned()).collect();
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(heads.iter().map(|head| head.trim_start_matches('#')));
    for (column, head) in table.column_iter_mut().zip(&heads) {
        if head.starts_with('#') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
