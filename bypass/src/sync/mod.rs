//! Atomics of the lock-free protocols.
//!
//! The modules that import this one are also compiled into `tests/loom`, where `crate::sync` is that of the loom model checker. They
//! import nothing else of the crate, so that the models run the code of the library and not a copy.

pub(crate) mod free_list;
pub mod mailbox;
pub(crate) mod refcount;
pub(crate) mod sleep_flag;

pub(crate) mod atomic {
    #[cfg(feature = "dpdk")]
    pub(crate) use std::sync::atomic::AtomicU16;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
}
