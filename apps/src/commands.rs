//! Subcommands: arguments and output of each, and shared parts.

pub mod chargen;
pub mod compare;
pub mod conns;
pub mod discard;
pub mod doctor;
pub mod echo;
mod echo_udp;
pub mod hugepages;
pub mod kv;
mod kv_serve;
mod kv_udp;
mod load;
pub mod raw;
#[cfg(feature = "rdma")]
pub mod rdma;
mod serve;
pub mod top;
mod udp;

pub use load::{LoadArgs, OpenArgs, TimesArgs};
pub use serve::{ServeArgs, WorkArgs};
