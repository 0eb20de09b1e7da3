//! Keys of a load, their popularity, and their values.

mod keys;
mod values;
mod versions;
mod zipf;

pub use keys::{KEY, MOST as MOST_KEYS, Scatter, key};
pub use values::{HEAD, Value, Values, version_of};
pub use versions::{Issued, Versions};
pub use zipf::Zipf;
