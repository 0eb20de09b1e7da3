//! Events of a transport that its service has not received yet.

use crate::{CloseReason, ConnId, ConnectError, Origin};

/// Events of connections, in one list for each step of [`ServiceHost::deliver`](crate::ServiceHost::deliver).
///
/// The steps are: `opened`, `readable`, `others` without [`Event::Closed`], `timers`, and [`Event::Closed`].
#[derive(Debug, Default)]
pub struct EventBatch {
    /// Established connections.
    pub opened: Vec<(ConnId, Origin)>,
    /// Connections with new received data, each once.
    pub readable: Vec<ConnId>,
    /// All other events.
    pub others: Vec<Event>,
    /// Connections whose timer has expired.
    pub timers: Vec<ConnId>,
}

impl EventBatch {
    /// Returns the number of events.
    #[inline]
    pub fn len(&self) -> usize {
        self.opened.len() + self.timers.len() + self.readable.len() + self.others.len()
    }

    /// Returns whether there are no events.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all events.
    #[inline]
    pub fn clear(&mut self) {
        self.opened.clear();
        self.timers.clear();
        self.readable.clear();
        self.others.clear();
    }
}

/// Event of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The connection attempt with this token failed.
    Failed(u64, ConnectError),
    /// One-sided operations have completed.
    OneSidedDone(ConnId),
    /// There is send space again.
    Writable(ConnId),
    /// The peer has closed, and all its data have been consumed.
    PeerClosed(ConnId),
    /// The connection has ended. The host releases it.
    Closed(ConnId, CloseReason),
}
