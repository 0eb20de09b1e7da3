//! `linerate http` and `linerate kv` with common clients, over kernel sockets and links, and with their own loads.
//!
//! Clients that are not installed are skipped with a message, as are links without root.

#[path = "../common/mod.rs"]
mod common;
mod http;
mod kv;
mod soak;
mod tls;
