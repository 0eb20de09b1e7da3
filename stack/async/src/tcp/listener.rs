//! Listener.

use super::stream::TcpStream;
use crate::conn::Conn;
use crate::context;
use crate::waiter::Waiter;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, ready};

/// Maximum connections that wait for [`TcpListener::accept`]. Further ones are reset.
const BACKLOG: usize = 1024;

/// Listener of one address: the connections that this worker accepts there.
///
/// The addresses at which the network listens are configured with the network. Each worker has its own share of the
/// connections, so each binds a listener of its own. A connection to an address without a listener is reset.
#[derive(Debug)]
#[must_use = "dropping a listener resets the connections that wait in it"]
pub struct TcpListener {
    state: Rc<ListenerState>,
}

/// Listener as the worker sees it.
pub(crate) struct ListenerState {
    pub address: SocketAddr,
    accepted: RefCell<VecDeque<Rc<Conn>>>,
    acceptor: Waiter,
}

impl std::fmt::Debug for ListenerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ListenerState").field(&self.address).finish()
    }
}

impl ListenerState {
    /// Adds a connection. Returns `false` if the queue is full.
    pub fn push(&self, conn: &Rc<Conn>) -> bool {
        let mut accepted = self.accepted.borrow_mut();
        if accepted.len() >= BACKLOG {
            accepted.retain(|conn| conn.ended.get().is_none());
        }
        if accepted.len() >= BACKLOG {
            return false;
        }
        accepted.push_back(conn.clone());
        drop(accepted);
        self.acceptor.wake();
        true
    }

    fn pop(&self) -> Option<Rc<Conn>> {
        let mut accepted = self.accepted.borrow_mut();
        std::iter::from_fn(|| accepted.pop_front()).find(|conn| conn.ended.get().is_none())
    }
}

impl TcpListener {
    /// Creates the listener for connections to `address`. An unspecified IP address stands for every address of its
    /// family that has no listener of its own.
    ///
    /// # Errors
    /// The worker has a listener for `address`.
    ///
    /// # Panics
    /// Outside of a task.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let state = Rc::new(ListenerState { address, accepted: RefCell::default(), acceptor: Waiter::default() });
        context::executor(|executor| executor.registry.add_listener(&state))?;
        Ok(TcpListener { state })
    }

    /// Returns the address of [`bind`](Self::bind).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.state.address)
    }

    /// Waits for a connection, and returns it with the peer's address. Connections that have ended meanwhile are
    /// skipped. No connection is lost if the future is dropped.
    ///
    /// # Errors
    /// None at present.
    pub async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|cx| {
            context::executor(|executor| {
                ready!(executor.poll_operation(cx));
                match self.state.pop() {
                    Some(conn) => {
                        let peer = conn.peer;
                        Poll::Ready(Ok((TcpStream::new(conn), peer)))
                    }
                    None => {
                        self.state.acceptor.wait(executor, cx);
                        Poll::Pending
                    }
                }
            })
        })
        .await
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        context::try_executor(|executor| executor.registry.remove_listener(&self.state));
        while let Some(conn) = self.state.pop() {
            conn.drop_with(|net, id| net.abort(id));
        }
    }
}
