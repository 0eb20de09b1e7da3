//! Fast paths for segments on established connections, SYNs, and the end of handshakes and connections.

pub(crate) mod established;
mod lifecycle;
mod syn;
