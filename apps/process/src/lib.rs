//! Supervised processes, network namespaces, and lines on standard output.
//!
//! - [`process::Process`]: supervised program with its output by lines and a time limit on every wait.
//! - [`namespace::Namespace`]: network namespace, and [`namespace::Host`]: namespace with one interface.
//! - [`interrupt`]: SIGINT and SIGTERM end every wait with [`Error::Interrupted`]. Values are then dropped, which stops
//!   programs and removes namespaces. After SIGKILL, [`remover::Remover`] does so.
//! - [`cpu_time`]: processor time of processes, and of other programs on the same cores.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "not published")]

pub mod child;
pub mod cpu_time;
mod error;
pub mod interrupt;
pub mod namespace;
pub mod output;
pub mod process;
pub mod remover;
mod wait;

pub use error::Error;
pub use wait::until;
