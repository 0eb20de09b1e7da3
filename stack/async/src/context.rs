//! Transport and executor of the current turn.
//!
//! A task has no argument through which a worker could pass its transport, so the transport is in a scoped thread-local
//! variable while an event is handled. No reference outlives the event.

use crate::executor::Executor;
use crate::short_reads::{SHORT, ShortReads};
use linerate_bypass::{Bytes, ConnId, Transport};
use scoped_tls_hkt::scoped_thread_local;
use std::cell::{Cell, RefCell, RefMut};

scoped_thread_local!(static TURN: for<'a> Turn<'a>);

/// Transport and executor while an event is handled.
#[derive(Clone, Copy)]
pub(crate) struct Turn<'a> {
    net: &'a (dyn SharedTransport + 'a),
    pub executor: &'a Executor,
}

/// Received bytes that a task has copied, and that the transport has yet to consume. A response that the task writes
/// in the same poll then takes the place of the request, by one operation ([`Transport::respond`]). Any other
/// operation, and the end of the poll, consumes them first.
#[derive(Default)]
pub(crate) struct Unconsumed {
    len: Cell<usize>,
    conn: Cell<Option<ConnId>>,
}

impl Unconsumed {
    #[inline]
    pub fn is_some(&self) -> bool {
        self.len.get() > 0
    }

    /// Returns whether all that was received on `conn`, and only that, is to be consumed.
    #[inline]
    pub fn is_of(&self, conn: ConnId) -> bool {
        self.is_some() && self.conn.get() == Some(conn)
    }

    #[inline]
    fn set(&self, conn: ConnId, len: usize) {
        self.len.set(len);
        self.conn.set(Some(conn));
    }
}

/// Result of a copy of received bytes.
pub(crate) struct Copied {
    /// Bytes copied.
    pub len: usize,
    /// Bytes among them that are to be consumed: all that was received, or none.
    unconsumed: usize,
    /// True if there are more bytes.
    pub has_more: bool,
}

/// Transport of a turn, borrowed for each operation. As a trait object its lifetime can be shortened. Frequent
/// operations are methods, which call those of the transport directly.
trait SharedTransport {
    fn borrow(&self) -> RefMut<'_, dyn Transport + '_>;

    /// Passes up to `room` received bytes to `copy`, slice by slice.
    fn copy_received(&self, conn: ConnId, room: usize, copy: &mut dyn FnMut(&[u8])) -> Copied;

    /// Takes a received slice, by copy if it is short.
    fn take(&self, conn: ConnId, short_reads: &ShortReads) -> Option<(Bytes, Copied)>;

    /// Consumes the first `request` received bytes and sends `response`. Returns whether it was sent.
    fn respond(&self, conn: ConnId, request: usize, response: &[u8]) -> bool;
}

impl<T: Transport> SharedTransport for RefCell<&mut T> {
    #[inline]
    fn borrow(&self) -> RefMut<'_, dyn Transport + '_> {
        RefMut::map(self.borrow_mut(), |net| &mut **net as &mut dyn Transport)
    }

    fn copy_received(&self, conn: ConnId, room: usize, copy: &mut dyn FnMut(&[u8])) -> Copied {
        let net = &mut **self.borrow_mut();
        let received = net.received(conn);
        let mut len = 0;
        loop {
            let slice = net.peek(conn);
            let n = slice.len().min(room - len);
            if n == 0 {
                return Copied { len, unconsumed: 0, has_more: len < received };
            }
            copy(&slice[..n]);
            if n == received {
                return Copied { len: n, unconsumed: n, has_more: false };
            }
            net.consume(conn, n);
            len += n;
        }
    }

    fn take(&self, conn: ConnId, short_reads: &ShortReads) -> Option<(Bytes, Copied)> {
        let net = &mut **self.borrow_mut();
        let received = net.received(conn);
        let slice = net.peek(conn);
        let len = slice.len();
        let has_more = len < received;
        if len <= SHORT
            && len > 0
            && let Some(bytes) = short_reads.copy(slice)
        {
            if has_more {
                net.consume(conn, len);
            }
            return Some((bytes, Copied { len, unconsumed: if has_more { 0 } else { len }, has_more }));
        }
        let bytes = net.take(conn, usize::MAX)?;
        Some((bytes, Copied { len, unconsumed: 0, has_more }))
    }

    fn respond(&self, conn: ConnId, request: usize, response: &[u8]) -> bool {
        self.borrow_mut().respond(conn, request, response.len(), |out| out.copy_from_slice(response))
    }
}

impl Turn<'_> {
    /// Calls `f` with the transport. `f` runs no code of the application: the transport is borrowed.
    #[inline]
    pub fn net<R>(&self, f: impl FnOnce(&mut dyn Transport) -> R) -> R {
        self.consume();
        f(&mut *self.net.borrow())
    }

    /// Passes up to `room` received bytes to `copy`, slice by slice. `copy` runs no code of the application.
    #[inline]
    pub fn copy_received(&self, conn: ConnId, room: usize, copy: &mut dyn FnMut(&[u8])) -> Copied {
        self.consume();
        let copied = self.net.copy_received(conn, room, copy);
        self.executor.unconsumed.set(conn, copied.unconsumed);
        copied
    }

    /// Takes a received slice, by copy if it is short. Returns whether there are more bytes, too.
    #[inline]
    pub fn take(&self, conn: ConnId) -> Option<(Bytes, bool)> {
        self.consume();
        let (bytes, copied) = self.net.take(conn, &self.executor.short_reads)?;
        self.executor.unconsumed.set(conn, copied.unconsumed);
        Some((bytes, copied.has_more))
    }

    /// Sends `response` in place of the received bytes that are to be consumed, which are those of `conn`. Returns
    /// whether it was sent.
    #[inline]
    pub fn respond(&self, conn: ConnId, response: &[u8]) -> bool {
        let request = self.executor.unconsumed.len.take();
        self.net.respond(conn, request, response)
    }

    /// Consumes the received bytes that were copied.
    #[inline]
    pub fn consume(&self) {
        if self.executor.unconsumed.is_some() {
            self.consume_copied();
        }
    }

    #[inline(never)]
    fn consume_copied(&self) {
        let unconsumed = &self.executor.unconsumed;
        if let Some(conn) = unconsumed.conn.get() {
            self.net.borrow().consume(conn, unconsumed.len.take());
        }
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
