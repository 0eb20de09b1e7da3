//! `linerate` command line.
#![forbid(unsafe_code)]

pub mod cli;
pub mod commands;
mod config;
pub mod doctor;
mod error;
pub mod inspect;
mod local_client;
mod top;
mod usage;

pub use error::Error;
