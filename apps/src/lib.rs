//! `linerate` command line.
#![forbid(unsafe_code)]

pub mod cli;
pub mod commands;
mod config;
pub mod doctor;
mod error;
pub mod inspect;
mod local_client;
mod log;
mod top;
mod usage;

pub use commands::shared::signals;
pub use error::Error;
