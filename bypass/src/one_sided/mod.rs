//! Memory that devices of peers read or count in, without participation of this program.

mod counters;
mod published;

pub use counters::RemoteCounters;
pub use published::Published;
