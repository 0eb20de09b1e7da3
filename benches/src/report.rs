//! Output of a bench program.

use serde::Serialize;
use std::fmt::Display;
use std::process::ExitCode;

/// Prints `report` as JSON or text, or the error of `program`. Returns failure on an error or an unmet requirement.
pub fn finish<R: Display + Serialize, E: Display>(
    program: &str,
    report: Result<R, E>,
    json: bool,
    is_met: impl FnOnce(&R) -> bool,
) -> ExitCode {
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            eprintln!("{program}: {error}");
            return ExitCode::FAILURE;
        }
    };
    if json {
        println!("{}", serde_json::to_string(&report).expect("a report is made of plain values"));
    } else {
        println!("{report}");
    }
    if is_met(&report) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
