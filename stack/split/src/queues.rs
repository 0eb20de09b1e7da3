//! Queues between the worker's and the service's thread.

use linerate_service::{AppSender, Bytes, CloseReason, ConnId, ConnectError, Datagram, Origin};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::thread::Thread;

/// Batches in each direction.
pub(crate) const BATCHES: usize = 64;
/// Events or commands of a full batch. A batch exceeds it only while no empty one is available.
pub(crate) const BATCH: usize = 128;
/// Datagrams of a batch; more are dropped.
pub(crate) const DATAGRAMS: usize = 128;

/// Event that the worker reports.
pub(crate) enum Event {
    /// The worker has started, and [`SharedQueues::worker_sender`] is set.
    Start,
    /// A connection is established. Its addresses are the next in the batch.
    Opened(ConnId, Origin),
    Failed(u64, ConnectError),
    /// Data were received.
    Data(ConnId, Bytes),
    /// Number of sent bytes that have left the window.
    Room(ConnId, usize),
    PeerClosed(ConnId),
    /// The connection is gone.
    Closed(ConnId, CloseReason),
    End,
}

/// Batch of events.
#[derive(Default)]
pub(crate) struct Events {
    pub items: Vec<Event>,
    /// Local and remote address of each connection opened in the batch, in order.
    pub addresses: Vec<[SocketAddr; 2]>,
    pub datagrams: Vec<Datagram>,
}

pub(crate) enum Command {
    Send(ConnId, Bytes),
    Consumed {
        conn: ConnId,
        bytes: usize,
        slices: usize,
    },
    /// The service waits for any send space.
    WaitsForRoom(ConnId),
    /// Close the send direction.
    Close(ConnId),
    LingeringClose(ConnId),
    /// Reset the connection.
    Abort(ConnId),
    /// Connect, with this token.
    Connect(SocketAddr, u64),
}

/// Batch of commands: the message of a [`Relay`](crate::Relay).
#[derive(Default)]
pub struct Commands {
    pub(crate) items: Vec<Command>,
    pub(crate) datagrams: Vec<Datagram>,
}

/// State shared by both threads.
#[derive(Default)]
pub(crate) struct SharedQueues {
    /// Sender that reaches the worker.
    pub worker_sender: OnceLock<AppSender<Commands>>,
    /// The service's thread, once it runs.
    pub thread: OnceLock<Thread>,
    /// Slices that the service has consumed, over all connections.
    pub slices_done: AtomicU64,
    /// Payload bytes that either thread has copied.
    pub copied: AtomicU64,
}

impl SharedQueues {
    /// Wakes the service's thread if it sleeps.
    pub fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}
