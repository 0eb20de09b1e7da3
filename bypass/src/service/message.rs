//! Messages from other threads to workers.

use super::conn_id::ConnId;
use crate::inspect::Look;
use crate::mailbox::Sender;

/// What other threads leave at a worker.
pub enum Letter<M> {
    /// A message, and to whom it goes.
    Message {
        /// The connection, or `None` for the worker's service.
        to: Option<ConnId>,
        /// What it says.
        message: M,
    },
    /// A question to the worker itself.
    Look(Box<Look>),
}

/// The way for other threads to wake a connection or a service, and to ask a worker how it is: one [`Mailbox`](crate::mailbox) per
/// worker.
pub struct Postbox<M> {
    workers: Vec<Sender<Letter<M>>>,
}

impl<M> Postbox<M> {
    /// A postbox that reaches the workers behind `workers`, in the order of their numbers.
    pub fn new(workers: Vec<Sender<Letter<M>>>) -> Self {
        Postbox { workers }
    }

    /// How many workers it reaches.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Sends `message` to the worker that owns `conn`, where [`Service::on_conn_message`] delivers it; if the connection
    /// is gone by then, the message is dropped. It comes back when that worker's mailbox is full.
    ///
    /// # Panics
    /// If `conn` is of a worker that this postbox does not reach.
    pub fn post(&self, conn: ConnId, message: M) -> Result<(), M> {
        self.send(conn.worker(), Some(conn), message)
    }

    /// Sends `message` to the service of `worker`, where [`Service::on_message`] delivers it for as long as the worker runs. It comes
    /// back when that worker's mailbox is full.
    ///
    /// # Panics
    /// If this postbox does not reach such a worker.
    pub fn tell(&self, worker: usize, message: M) -> Result<(), M> {
        self.send(worker, None, message)
    }

    /// Asks `worker`, which answers in its next turn; one that sleeps is woken. Returns whether there was room in its mailbox.
    ///
    /// # Panics
    /// If this postbox does not reach such a worker.
    pub fn look(&self, worker: usize, look: Look) -> bool {
        self.workers[worker].send(Letter::Look(Box::new(look))).is_ok()
    }

    fn send(&self, worker: usize, to: Option<ConnId>, message: M) -> Result<(), M> {
        match self.workers[worker].send(Letter::Message { to, message }) {
            Err(Letter::Message { message, .. }) => Err(message),
            // A mailbox gives back what it was given.
            Ok(()) | Err(Letter::Look(_)) => Ok(()),
        }
    }
}

impl<M> Clone for Postbox<M> {
    fn clone(&self) -> Self {
        Postbox { workers: self.workers.clone() }
    }
}

/// What a service is told when it is made, on its worker's thread.
pub struct Seat<M> {
    /// The number of this worker, counted from 0.
    pub worker: usize,
    /// How many workers there are.
    pub workers: usize,
    /// The way to every worker's connections.
    pub postbox: Postbox<M>,
}
