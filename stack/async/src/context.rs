//! Transport and executor of the current turn.
//!
//! A task has no argument through which a worker could pass its transport, so the transport is in a scoped thread-local
//! variable while an event is handled. No reference outlives the event.

use crate::executor::Executor;
use linerate_bypass::Transport;
use scoped_tls_hkt::scoped_thread_local;

scoped_thread_local!(static mut NET: for<'a> &'a mut (dyn Transport + 'a));
scoped_thread_local!(static EXECUTOR: Executor);

const OUTSIDE: &str = "linerate-async was used outside of a task: connections, sockets, timers and `spawn` belong to \
                       the worker that runs the task; start the code with `AsyncService::new` or `spawn`";

/// Calls `f` with `net` and `executor` as those of the current turn.
pub(crate) fn enter<R>(net: &mut impl Transport, executor: &Executor, f: impl FnOnce() -> R) -> R {
    NET.set(net, || EXECUTOR.set(executor, f))
}

/// Calls `f` with the transport of the current turn. `f` runs no code of the application: the transport is borrowed.
///
/// # Panics
/// Outside of a turn.
#[inline]
pub(crate) fn net<R>(f: impl FnOnce(&mut dyn Transport) -> R) -> R {
    NET.with(|net| f(net))
}

/// Calls `f` with the executor of the current turn.
///
/// # Panics
/// Outside of a turn.
#[inline]
pub(crate) fn executor<R>(f: impl FnOnce(&Executor) -> R) -> R {
    try_executor(f).expect(OUTSIDE)
}

/// Calls `f` with the executor of the current turn. Returns `None` outside of a turn.
#[inline]
pub(crate) fn try_executor<R>(f: impl FnOnce(&Executor) -> R) -> Option<R> {
    EXECUTOR.is_set().then(|| EXECUTOR.with(f))
}
