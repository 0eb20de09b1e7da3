//! Processes, network namespaces and hugepages of tests, benches, `linerate compare` and the lab.
//!
//! - [`process::Process`]: supervised program with its output by lines and a time limit on every wait.
//! - [`namespace::Namespace`]: network namespace, and [`namespace::Host`]: namespace with one interface.
//! - [`interrupt`]: SIGINT and SIGTERM end every wait with [`Error::Interrupted`]. Values are then dropped, which stops
//!   programs and removes namespaces. After SIGKILL, [`remover::Remover`] does so.
//! - [`cpu_time`]: processor time of processes, and of other programs on the same cores.
//! - [`program`], [`terminal`], [`rerun`] and [`wait_for`]: for tests; they panic instead of returning errors.
#![forbid(unsafe_code)]

pub mod address;
pub mod child;
pub mod cpu_time;
mod error;
pub mod hugepages;
pub mod interrupt;
pub mod metrics;
pub mod namespace;
pub mod process;
pub mod program;
pub mod remover;
pub mod rerun;
pub mod terminal;
mod wait;

pub use error::Error;
pub use wait::{PATIENCE, until, wait_for};
