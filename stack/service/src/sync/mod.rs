//! Queue between threads, and the atomics that it uses.
//!
//! `bypass/tests/loom` compiles the files of this directory that import [`atomic`] with the atomics of the loom model
//! checker in its place. Those files import nothing else of the crate, so that the models check the code of the
//! library.

pub mod mailbox;
pub(crate) mod sleep_flag;

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, Ordering, fence};
}
