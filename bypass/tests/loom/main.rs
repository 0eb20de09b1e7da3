//! Loom models of the lock-free protocols: every order of threads, and every value that a load may return.
//!
//! `RUSTFLAGS='--cfg loom' cargo test -p linerate-bypass --test loom --release`. The modules below are the library's
//! own files, with loom's `crate::sync` in place of the standard library's atomics. An `UnsafeCell` represents the
//! memory that a protocol protects: loom fails a model in which an access is not ordered with a conflicting one.
#![cfg(loom)]

mod sync {
    pub(crate) mod atomic {
        pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
    }
}

#[path = "../../src/sync/free_list.rs"]
mod free_list;
#[path = "../../src/dpdk/port/quiesce.rs"]
mod quiesce;
#[path = "../../src/dpdk/mbuf/refcnt.rs"]
mod refcnt;
#[path = "../../src/sync/refcount.rs"]
mod refcount;
#[path = "../../src/arena/buddy/return_list.rs"]
mod return_list;
#[path = "../../../stack/service/src/sync/sleep_flag.rs"]
mod sleep_flag;

mod lists;
mod segments;
mod workers;

/// Runs `body` with every order of its threads with up to three preemptions: enough to detect each weakened ordering
/// and each exchange of steps that was tried.
fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(body);
}
