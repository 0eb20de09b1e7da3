//! What crosses between the two threads.

use linerate_bypass::{AppSender, Bytes, CloseReason, ConnId, ConnectError, Datagram, Origin};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::thread::Thread;

/// Batches each way.
pub(crate) const BATCHES: usize = 64;
/// Events or commands of a full batch. It takes more only while no other is empty.
pub(crate) const BATCH: usize = 128;
/// Datagrams of a batch; more are dropped.
pub(crate) const DATAGRAMS: usize = 128;

/// What the worker tells.
pub(crate) enum Event {
    /// It has an address, and the way to it is known.
    Start,
    /// A connection is there. Its addresses are the next of the batch.
    Opened(ConnId, Origin),
    /// One could not be made.
    Failed(u64, ConnectError),
    /// Bytes were received.
    Data(ConnId, Bytes),
    /// So many bytes that were sent need no room here any more.
    Room(ConnId, usize),
    /// The peer has finished sending.
    PeerClosed(ConnId),
    /// The connection is gone.
    Closed(ConnId, CloseReason),
    /// The worker has ended.
    End,
}

/// A batch of events.
#[derive(Default)]
pub(crate) struct Events {
    pub items: Vec<Event>,
    /// Ours and the peer's of each connection that is opened in it, in their order.
    pub addresses: Vec<[SocketAddr; 2]>,
    pub datagrams: Vec<Datagram>,
}

/// What the service's thread asks for.
pub(crate) enum Command {
    /// Send these bytes.
    Send(ConnId, Bytes),
    /// So many bytes in so many slices have been consumed.
    Consumed { conn: ConnId, bytes: usize, slices: usize },
    /// The service waits for room, however little.
    Starved(ConnId),
    /// Finish sending.
    Close(ConnId),
    /// Finish sending, and discard what is received, within the bounds of a lingering close.
    LingeringClose(ConnId),
    /// Reset it.
    Abort(ConnId),
    /// Connect, with this token.
    Connect(SocketAddr, u64),
}

/// A batch of commands: the message of a [`Relay`](crate::Relay).
#[derive(Default)]
pub struct Commands {
    pub(crate) items: Vec<Command>,
    pub(crate) datagrams: Vec<Datagram>,
}

/// What both threads see.
#[derive(Default)]
pub(crate) struct Shared {
    /// The way to the worker.
    pub way: OnceLock<AppSender<Commands>>,
    /// The service's thread, once it runs.
    pub thread: OnceLock<Thread>,
    /// Slices that the service has consumed, of all connections.
    pub slices_done: AtomicU64,
    /// Bytes of payload that were copied on the way, by either thread.
    pub copied: AtomicU64,
}

impl Shared {
    /// Wakes the service's thread, should it sleep.
    pub fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}
