//! Lock-free structures, and the atomics that they use.
//!
//! `tests/loom` compiles the files of this directory that import [`atomic`] with the atomics of the loom model checker
//! in its place. Those files import nothing else of the crate, so that the models check the code of the library.

pub(crate) mod free_list;
pub(crate) mod refcount;
pub(crate) mod sleeper;
pub(crate) mod waker;

pub(crate) mod atomic {
    #[cfg(feature = "dpdk")]
    pub(crate) use std::sync::atomic::AtomicU16;
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
