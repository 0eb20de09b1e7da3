//! Process-level parts of every command: standard output, signals, and service-manager notification.

pub mod log;
pub mod notify;
pub mod output;
pub mod signals;
