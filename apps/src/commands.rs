//! The subcommands of `linerate`: their arguments, and what they print.

pub mod doctor;
pub mod hugepages;
