//! Parts shared by several subcommands.

pub mod load;
pub mod serve;
pub mod udp_ports;

pub use load::{LoadArgs, OpenArgs, TimesArgs};
pub use serve::{ServeArgs, WorkArgs};
