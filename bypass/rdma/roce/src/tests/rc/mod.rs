//! RC queue pairs: states, requests, messages and remote memory.

pub mod atomics;
mod memory;
mod messages;
pub mod requests;
pub mod sharing;
mod states;
