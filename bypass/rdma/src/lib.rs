//! Services over RDMA verbs: the same sources that run over the TCP stack and over kernel sockets.

pub mod calls;
mod credit;
pub mod model;
pub mod verbs;
mod wire;
