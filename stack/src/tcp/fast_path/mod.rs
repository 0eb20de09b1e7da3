//! Fast paths for SYNs, for data on established connections, and for connection setup and close.

pub(crate) mod established;
mod lifecycle;
mod rr;
mod syn;
