//! Process-level parts of the programs: logs, standard output, signals, service-manager notification, and reports.
#![forbid(unsafe_code)]

pub mod log;
pub mod notify;
pub mod output;
pub mod signals;
mod summary;
mod with_context;

pub use summary::SummaryReport;
pub use with_context::WithContext;
