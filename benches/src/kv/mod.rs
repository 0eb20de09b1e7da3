//! The key-value service with requests from memory.

mod memory;
pub mod service;
pub mod workers;

pub use memory::Beside;
