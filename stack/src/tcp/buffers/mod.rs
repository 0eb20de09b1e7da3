//! Queues of packets and data.

pub(crate) mod mbufs_held;
pub(crate) mod queue;
pub(crate) mod reassembly;
pub(crate) mod send_queue;
pub(crate) mod slots;
