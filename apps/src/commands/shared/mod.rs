//! Parts shared by several subcommands.

pub mod load;
mod notify;
pub mod partial;
pub mod serve;
pub mod signals;
mod summary;
pub mod tls;
pub mod udp_ports;
mod with_context;

/// Default address of `linerate echo`: port 7 needs privileges.
pub const ECHO_ADDRESS: &str = "127.0.0.1:7007";
/// Default address of `linerate discard`: port 9 needs privileges.
pub const DISCARD_ADDRESS: &str = "127.0.0.1:7009";
/// Default address of `linerate chargen`: port 19 needs privileges.
pub const CHARGEN_ADDRESS: &str = "127.0.0.1:7019";
/// Default address of `linerate http`: port 80 needs privileges.
pub const HTTP_ADDRESS: &str = "127.0.0.1:8080";
/// Default address of Redis clients.
pub const REDIS_ADDRESS: &str = "127.0.0.1:6379";
/// Default address of loads that use memcached's protocol.
pub const MEMCACHED_ADDRESS: &str = "127.0.0.1:11211";

pub use load::{LoadArgs, OpenArgs, TimesArgs};
pub use serve::{ServeArgs, WorkArgs};
pub use summary::SummaryReport;
pub use with_context::WithContext;
