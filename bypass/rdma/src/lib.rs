//! Services over RDMA verbs: the same sources that run over the TCP stack and over kernel sockets.

pub mod calls;
#[cfg(feature = "native")]
pub mod native;
