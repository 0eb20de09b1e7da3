//! Messages from other threads to workers.

use crate::ConnId;
use crate::inspect::StatsQuery;
use crate::mailbox::Sender;

/// Entry of a worker's mailbox.
pub enum AppMsg<M> {
    /// Message to the service.
    Message {
        /// The connection that the message is for, or `None` for the service itself.
        to: Option<ConnId>,
        /// The message.
        message: M,
    },
    /// Query to the worker.
    Query(Box<StatsQuery>),
}

/// Sender of messages to all workers and their connections, for use on any thread. It holds the sending end of one
/// [mailbox](crate::mailbox) per worker.
pub struct AppSender<M> {
    workers: Vec<Sender<AppMsg<M>>>,
}

impl<M> AppSender<M> {
    /// Creates a sender from the mailbox of each worker, in the order of worker indices.
    pub fn new(workers: Vec<Sender<AppMsg<M>>>) -> Self {
        AppSender { workers }
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Sends `message` to the connection `conn`. Its worker delivers it to
    /// [`Service::conn_message`](crate::Service::conn_message), or drops it if the connection has ended.
    ///
    /// # Errors
    /// Returns `message` if the mailbox of the worker is full.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn send_to_conn(&self, conn: ConnId, message: M) -> Result<(), M> {
        self.send(conn.worker(), Some(conn), message)
    }

    /// Sends `message` to the service of `worker`. The worker delivers it to
    /// [`Service::message`](crate::Service::message) while it runs.
    ///
    /// # Errors
    /// Returns `message` if the mailbox of the worker is full.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn send_to_worker(&self, worker: usize, message: M) -> Result<(), M> {
        self.send(worker, None, message)
    }

    /// Sends `query` to `worker`, which replies in its next turn; a sleeping worker is woken. Returns `false` if the
    /// mailbox of the worker is full.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn query(&self, worker: usize, query: StatsQuery) -> bool {
        self.workers[worker].send(AppMsg::Query(Box::new(query))).is_ok()
    }

    fn send(&self, worker: usize, to: Option<ConnId>, message: M) -> Result<(), M> {
        match self.workers[worker].send(AppMsg::Message { to, message }) {
            Err(AppMsg::Message { message, .. }) => Err(message),
            // A full mailbox returns its argument, which is a message.
            Ok(()) | Err(AppMsg::Query(_)) => Ok(()),
        }
    }
}

impl<M> Clone for AppSender<M> {
    fn clone(&self) -> Self {
        AppSender { workers: self.workers.clone() }
    }
}

/// Context for the construction of a service on its worker's thread.
pub struct WorkerCtx<M> {
    /// Index of this worker, from 0.
    pub worker: usize,
    /// Number of workers.
    pub workers: usize,
    /// Sender to the services and connections of all workers.
    pub app_sender: AppSender<M>,
}
