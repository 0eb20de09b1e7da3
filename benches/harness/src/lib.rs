//! Processes, network namespaces and hugepages of tests and benches.
//!
//! - [`process`], [`namespace`], [`interrupt`] and others are those of `linerate-process`.
//! - [`program`], [`terminal`], [`rerun`] and [`wait_for`]: for tests; they panic instead of returning errors.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "not published")]

pub mod address;
pub mod hugepages;
pub mod metrics;
pub mod program;
pub mod rerun;
pub mod terminal;
mod wait;

pub use linerate_process::{Error, child, cpu_time, interrupt, namespace, process, remover, until};
pub use wait::{TIMEOUT, wait_for};
