//! The services and load generators of Linerate, and its command line.
#![forbid(unsafe_code)]

pub mod commands;
pub mod doctor;
pub mod load;
pub mod report;
pub mod services;
#[cfg(test)]
mod testing;
