//! HTTP server on the tasks of a worker: HTTP/1.1 and, for clients with prior knowledge, HTTP/2 on the same port.
//!
//! A [`Site`] has all responses in memory, so that no task waits for a disk. A [`Server`] serves it on every worker,
//! within [`Limits`] of a client's memory and time.
#![forbid(unsafe_code)]

mod body;
mod client_stream;
mod connection;
mod content_type;
mod frames;
mod server;
mod site;

pub use body::Body;
pub use server::{Limits, Server};
pub use site::{Site, SiteError};
