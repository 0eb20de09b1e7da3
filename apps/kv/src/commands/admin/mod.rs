//! Server management commands.

pub mod command_docs;
pub mod config;
pub mod dataset;
pub mod info;
pub mod slowlog;
