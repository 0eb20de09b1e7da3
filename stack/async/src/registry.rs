//! Listeners, sockets and connection attempts of one worker, to which events are delivered.

use crate::conn::Conn;
use crate::context;
use crate::tcp::{ListenerState, TcpStream};
use crate::udp::SocketState;
use crate::waiter::Waiter;
use linerate_service::{ConnectError, Stop};
use slotmap::{DefaultKey, SlotMap};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Outcome of a connection attempt.
#[derive(Default)]
pub(crate) struct Connecting {
    outcome: Cell<Option<Result<TcpStream, ConnectError>>>,
    waiter: Waiter,
}

impl Connecting {
    pub fn poll(&self, cx: &Context<'_>) -> Poll<Result<TcpStream, ConnectError>> {
        match self.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                context::executor(|executor| self.waiter.wait(executor, cx));
                Poll::Pending
            }
        }
    }
}

/// Receivers of the events that concern no established connection.
#[derive(Default)]
pub(crate) struct Registry {
    listeners: RefCell<Vec<Rc<ListenerState>>>,
    sockets: RefCell<Vec<Rc<SocketState>>>,
    connecting: RefCell<HashMap<u64, Rc<Connecting>>>,
    next_token: Cell<u64>,
    pub drain: DrainState,
}

impl Registry {
    pub fn add_listener(&self, listener: &Rc<ListenerState>) -> io::Result<()> {
        let mut listeners = self.listeners.borrow_mut();
        if listeners.iter().any(|other| other.address == listener.address) {
            return Err(in_use("TCP", listener.address));
        }
        listeners.push(listener.clone());
        Ok(())
    }

    pub fn remove_listener(&self, listener: &Rc<ListenerState>) {
        self.listeners.borrow_mut().retain(|other| !Rc::ptr_eq(other, listener));
    }

    pub fn add_socket(&self, socket: &Rc<SocketState>) -> io::Result<()> {
        let mut sockets = self.sockets.borrow_mut();
        if sockets.iter().any(|other| other.address == socket.address) {
            return Err(in_use("UDP", socket.address));
        }
        sockets.push(socket.clone());
        Ok(())
    }

    pub fn remove_socket(&self, socket: &Rc<SocketState>) {
        self.sockets.borrow_mut().retain(|other| !Rc::ptr_eq(other, socket));
    }

    /// Returns the socket that receives datagrams to `local`.
    pub fn socket(&self, local: SocketAddr) -> Option<Rc<SocketState>> {
        best(&self.sockets.borrow(), local, |socket| socket.address)
    }

    /// Hands an accepted connection to its listener. Returns `false` if there is no listener, or if its queue is full.
    pub fn accept(&self, conn: &Rc<Conn>) -> bool {
        let listener = best(&self.listeners.borrow(), conn.local, |listener| listener.address);
        listener.is_some_and(|listener| listener.push(conn))
    }

    /// Begins a connection attempt and returns its token.
    pub fn begin_connect(&self) -> (u64, Rc<Connecting>) {
        let token = self.next_token.get();
        self.next_token.set(token.wrapping_add(1));
        let connecting = Rc::new(Connecting::default());
        self.connecting.borrow_mut().insert(token, connecting.clone());
        (token, connecting)
    }

    /// Ends a connection attempt. Returns `false` if its future has been dropped.
    pub fn end_connect(&self, token: u64, outcome: Result<&Rc<Conn>, ConnectError>) -> bool {
        let Some(connecting) = self.connecting.borrow_mut().remove(&token) else { return false };
        if Rc::strong_count(&connecting) == 1 {
            return false;
        }
        connecting.outcome.set(Some(outcome.map(|conn| TcpStream::new(conn.clone()))));
        connecting.waiter.wake();
        true
    }
}

/// Returns the entry with the address `local`, or else the entry with its port and the unspecified address of its
/// family.
fn best<T>(entries: &[Rc<T>], local: SocketAddr, address: impl Fn(&T) -> SocketAddr) -> Option<Rc<T>> {
    let stands_for = |entry: &&Rc<T>| {
        let own = address(entry);
        own.port() == local.port() && own.ip().is_unspecified() && own.is_ipv4() == local.is_ipv4()
    };
    entries.iter().find(|entry| address(entry) == local).or_else(|| entries.iter().find(stands_for)).cloned()
}

fn in_use(protocol: &str, address: SocketAddr) -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, format!("{protocol} {address} is bound already on this worker"))
}

/// Request to drain, and the tasks that wait for it.
#[derive(Default)]
pub(crate) struct DrainState {
    stop: RefCell<Option<Stop>>,
    is_draining: Cell<bool>,
    /// Wakers of the tasks that wait.
    waiting: RefCell<SlotMap<DefaultKey, Waker>>,
}

impl DrainState {
    pub fn follow(&self, stop: Stop) {
        *self.stop.borrow_mut() = Some(stop);
    }

    pub fn is_draining(&self) -> bool {
        self.is_draining.get()
    }

    /// Returns whether draining has been requested since the last turn: the waiting tasks have not been woken.
    #[inline]
    pub fn is_requested(&self) -> bool {
        !self.is_draining.get() && self.stop.borrow().as_ref().is_some_and(Stop::is_draining)
    }

    /// Wakes the waiting tasks once draining has been requested.
    pub fn begin_turn(&self) {
        if self.is_requested() {
            self.is_draining.set(true);
            let waiting: Vec<Waker> = self.waiting.borrow().values().cloned().collect();
            waiting.into_iter().for_each(Waker::wake);
        }
    }

    /// Registers `waker` in place of the waker `key`, or anew. Returns its key.
    pub fn wait(&self, key: Option<DefaultKey>, waker: &Waker) -> DefaultKey {
        let mut waiting = self.waiting.borrow_mut();
        let Some((key, kept)) = key.and_then(|key| Some((key, waiting.get_mut(key)?))) else {
            return waiting.insert(waker.clone());
        };
        let replaced = (!kept.will_wake(waker)).then(|| std::mem::replace(kept, waker.clone()));
        drop(waiting);
        // Dropping a waker may run code of the application.
        drop(replaced);
        key
    }

    /// Removes a waker.
    pub fn leave(&self, key: DefaultKey) {
        let waker = self.waiting.borrow_mut().remove(key);
        // Dropping a waker may run code of the application.
        drop(waker);
    }
}
