//! `linerate compare`: the same application over every transport, side by side.
//!
//! Data flows one way: what is to be compared ([`results::Settings`]) is run, which makes [`results::Results`]; those are all that
//! the reports know.
#![forbid(unsafe_code)]

pub mod host_checks;
pub mod hosts;
pub mod place;
pub mod priority;
pub mod process;
pub mod report;
pub mod results;
pub mod run;
pub mod supervised;
pub mod transfer;
pub mod utc;
