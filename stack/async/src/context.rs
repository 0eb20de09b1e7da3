//! Transport and executor of the current turn.
//!
//! A task has no argument through which a worker could pass its transport, so the transport is in a scoped thread-local
//! variable while an event is handled. No reference outlives the event.

use crate::conn::Conn;
use crate::executor::Executor;
use linerate_service::{Bytes, ConnId, Transport};
use scoped_tls_hkt::scoped_thread_local;
use std::cell::{Cell, RefCell, RefMut};

scoped_thread_local!(static TURN: for<'a> &'a Turn<'a>);

/// Transport and executor while an event is handled.
pub(crate) struct Turn<'a> {
    net: &'a (dyn SharedTransport + 'a),
    pub executor: &'a Executor,
}

/// Received bytes that a task has copied, and that the transport has yet to consume. A response that the task writes in
/// the same poll consumes them and is sent in one operation ([`Transport::respond`]). Any other operation, and the end
/// of the poll, consumes them first.
#[derive(Default)]
pub(crate) struct Unconsumed(Cell<Option<(ConnId, usize)>>);

impl Unconsumed {
    #[inline]
    pub fn is_some(&self) -> bool {
        self.0.get().is_some()
    }

    /// Defers the consumption of `n` bytes, which are all received bytes of `conn`.
    #[inline]
    pub fn set(&self, conn: ConnId, n: usize) {
        self.0.set(Some((conn, n)));
    }

    /// Returns the number of bytes if they belong to `conn`, and forgets them. The caller consumes them.
    #[inline]
    pub fn take_of(&self, conn: ConnId) -> Option<usize> {
        let (_, n) = self.0.get().filter(|(of, _)| *of == conn)?;
        self.0.set(None);
        Some(n)
    }

    #[inline]
    pub fn consume(&self, net: &mut (impl Transport + ?Sized)) {
        if let Some((conn, n)) = self.0.get() {
            self.0.set(None);
            net.consume(conn, n);
        }
    }
}

/// Transport of a turn, borrowed for each operation. As a trait object its lifetime can be shortened. Frequent
/// operations are methods, which call the methods of the transport without dynamic dispatch.
trait SharedTransport {
    fn borrow(&self) -> RefMut<'_, dyn Transport + '_>;

    /// As [`Conn::copy_from`].
    fn copy(&self, executor: &Executor, conn: &Conn, room: usize, copy: &mut dyn FnMut(&[u8])) -> usize;

    /// As [`Conn::take_from`].
    fn take(&self, executor: &Executor, conn: &Conn) -> Option<Bytes>;

    /// As [`Conn::write_to`].
    fn write(&self, executor: &Executor, conn: &Conn, bytes: &[u8]) -> usize;
}

impl<T: Transport> SharedTransport for RefCell<&mut T> {
    #[inline]
    fn borrow(&self) -> RefMut<'_, dyn Transport + '_> {
        RefMut::map(self.borrow_mut(), |net| &mut **net as &mut dyn Transport)
    }

    fn copy(&self, executor: &Executor, conn: &Conn, room: usize, copy: &mut dyn FnMut(&[u8])) -> usize {
        conn.copy_from(&mut **self.borrow_mut(), executor, room, copy)
    }

    fn take(&self, executor: &Executor, conn: &Conn) -> Option<Bytes> {
        conn.take_from(&mut **self.borrow_mut(), executor)
    }

    fn write(&self, executor: &Executor, conn: &Conn, bytes: &[u8]) -> usize {
        conn.write_to(&mut **self.borrow_mut(), executor, bytes)
    }
}

impl Turn<'_> {
    /// Calls `f` with the transport. `f` runs no code of the application: the transport is borrowed.
    #[inline]
    pub fn net<R>(&self, f: impl FnOnce(&mut dyn Transport) -> R) -> R {
        let net = &mut *self.net.borrow();
        self.executor.unconsumed.consume(net);
        f(net)
    }

    /// As [`Conn::copy_from`].
    #[inline]
    pub fn copy(&self, conn: &Conn, room: usize, copy: &mut dyn FnMut(&[u8])) -> usize {
        self.net.copy(self.executor, conn, room, copy)
    }

    /// As [`Conn::take_from`].
    #[inline]
    pub fn take(&self, conn: &Conn) -> Option<Bytes> {
        self.net.take(self.executor, conn)
    }

    /// As [`Conn::write_to`].
    #[inline]
    pub fn write(&self, conn: &Conn, bytes: &[u8]) -> usize {
        self.net.write(self.executor, conn, bytes)
    }

    /// Consumes the received bytes that were copied.
    pub fn consume(&self) {
        self.executor.unconsumed.consume(&mut *self.net.borrow());
    }
}

const OUTSIDE: &str = "linerate-async was used outside of a task: connections, sockets, timers and `spawn` belong to \
                       the worker that runs the task; start the code with `AsyncService::new` or `spawn`";

#[inline]
pub(crate) fn enter<R>(net: &mut impl Transport, executor: &Executor, f: impl FnOnce() -> R) -> R {
    let net = RefCell::new(net);
    TURN.set(&Turn { net: &net, executor }, f)
}

/// Calls `f` with the current turn.
///
/// # Panics
/// Outside of a turn.
#[inline]
pub(crate) fn turn<R>(f: impl FnOnce(&Turn<'_>) -> R) -> R {
    assert!(TURN.is_set(), "{OUTSIDE}");
    TURN.with(f)
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
