//! Server management commands.

pub mod absent;
pub mod command_docs;
pub mod config;
pub mod dataset;
pub mod info;
pub mod slowlog;
