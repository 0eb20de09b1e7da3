//! Transport and executor of the current turn.
//!
//! A task has no argument through which a worker could pass its transport, so the transport is in a scoped thread-local
//! variable while an event is handled. No reference outlives the event.

use crate::executor::Executor;
use linerate_bypass::Transport;
use scoped_tls_hkt::scoped_thread_local;
use std::cell::{RefCell, RefMut};

scoped_thread_local!(static TURN: for<'a> Turn<'a>);

/// Transport and executor while an event is handled.
#[derive(Clone, Copy)]
pub(crate) struct Turn<'a> {
    net: &'a (dyn SharedTransport + 'a),
    pub executor: &'a Executor,
}

/// Transport of a turn, borrowed for each operation. As a trait object its lifetime can be shortened.
trait SharedTransport {
    fn borrow(&self) -> RefMut<'_, dyn Transport + '_>;
}

impl<T: Transport> SharedTransport for RefCell<&mut T> {
    #[inline]
    fn borrow(&self) -> RefMut<'_, dyn Transport + '_> {
        RefMut::map(self.borrow_mut(), |net| &mut **net as &mut dyn Transport)
    }
}

impl Turn<'_> {
    /// Calls `f` with the transport. `f` runs no code of the application: the transport is borrowed.
    #[inline]
    pub fn net<R>(&self, f: impl FnOnce(&mut dyn Transport) -> R) -> R {
        f(&mut *self.net.borrow())
    }
}

const OUTSIDE: &str = "linerate-async was used outside of a task: connections, sockets, timers and `spawn` belong to \
                       the worker that runs the task; start the code with `AsyncService::new` or `spawn`";

/// Calls `f` with `net` and `executor` as those of the current turn.
#[inline]
pub(crate) fn enter<R>(net: &mut impl Transport, executor: &Executor, f: impl FnOnce() -> R) -> R {
    let net = RefCell::new(net);
    TURN.set(Turn { net: &net, executor }, f)
}

/// Calls `f` with the current turn.
///
/// # Panics
/// Outside of a turn.
#[inline]
pub(crate) fn turn<R>(f: impl FnOnce(&Turn<'_>) -> R) -> R {
    assert!(TURN.is_set(), "{OUTSIDE}");
    TURN.with(|turn| f(&turn))
}

/// Calls `f` with the transport of the current turn, as [`Turn::net`] does.
///
/// # Panics
/// Outside of a turn.
pub(crate) fn net<R>(f: impl FnOnce(&mut dyn Transport) -> R) -> R {
    turn(|turn| turn.net(f))
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
    TURN.is_set().then(|| TURN.with(|turn| f(turn.executor)))
}
