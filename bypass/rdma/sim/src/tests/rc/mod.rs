//! RC queue pairs: states, requests, messages and remote memory.

mod atomics;
mod memory;
mod messages;
mod requests;
mod sharing;
mod states;
