//! The services and load generators of Linerate, and its command line.
//!
//! The [`services`] and the generators of [`load`] are written once against `linerate_bypass::Service`; [`net`] runs them
//! over whichever network the command line names.
#![forbid(unsafe_code)]

mod capture;
pub mod cli;
pub mod commands;
pub mod compare;
mod config;
pub mod doctor;
mod error;
pub mod inspect;
pub mod load;
pub mod net;
mod notify;
mod output;
mod over;
pub mod raw;
mod reach;
pub mod report;
pub mod services;
mod signals;
mod summary;
mod supervised;
#[cfg(test)]
mod testing;
mod top;
mod units;

pub use error::Error;
