//! `linerate compare`: measures the same application over every transport.
//!
//! Data flows in one direction: [`results::Settings`] are run and produce [`results::Results`], the only input of
//! reports.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "not published")]

pub mod batch;
pub mod certificate;
pub mod counters;
pub mod host_checks;
pub mod location;
pub mod plot;
pub mod priority;
pub mod profile;
pub mod report;
pub mod results;
pub mod run;
pub mod supervised;
pub mod transfer;
pub mod utc;
