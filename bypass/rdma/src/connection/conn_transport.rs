//! What carries a connection's messages: a queue pair of its own, or a session over the worker's queue pair of datagrams.

use crate::calls::{Calls, Handle};
use crate::session::Session;
use crate::verbs::{AddressHandle, MAX_PIECES, Message, QueuePair, ReadyToSend, Refused};
use linerate_bypass::Timer;

/// See the file's head.
pub(crate) enum Carrier<C: Calls> {
    /// Reliable by the device.
    Pair(QueuePair<C, ReadyToSend>),
    /// Reliable by what both ends say in their datagrams.
    Session(Box<Peer<C>>),
}

/// The other end of a session, and how far it has come.
pub(crate) struct Peer<C: Calls> {
    pub session: Session,
    /// What the peer calls it: nobody else knows.
    pub ours: u64,
    /// The way to the peer's port, and its queue pair there.
    pub to: AddressHandle<C>,
    pub pair: u32,
    pub q_key: u32,
    /// The device's name for our own.
    pub handle: Handle,
    /// When something is to be sent again, or acknowledged.
    pub timer: Timer,
}

/// The first number that is a session's: those of queue pairs are smaller.
pub(crate) const FIRST_SESSION: u64 = 1 << 24;

impl<C: Calls> Carrier<C> {
    /// What tells it from all others of its device: its queue pair's number, or its session's.
    pub fn number(&self) -> u64 {
        match self {
            Carrier::Pair(pair) => pair.number().into(),
            Carrier::Session(peer) => peer.ours,
        }
    }

    /// The device's name for the queue pair that it goes by.
    pub fn handle(&self) -> Handle {
        match self {
            Carrier::Pair(pair) => pair.handle(),
            Carrier::Session(peer) => peer.handle,
        }
    }

    /// The queue pair that is the connection's own.
    #[inline]
    pub fn pair(&mut self) -> Option<&mut QueuePair<C, ReadyToSend>> {
        match self {
            Carrier::Pair(pair) => Some(pair),
            Carrier::Session(_) => None,
        }
    }

    /// Requests, or messages, that it takes now.
    #[inline]
    pub fn room(&self) -> usize {
        match self {
            Carrier::Pair(pair) => pair.room(),
            Carrier::Session(peer) => peer.session.room(),
        }
    }

    /// Pieces that a message of its may have.
    #[inline]
    pub fn pieces(&self) -> usize {
        match self {
            Carrier::Pair(_) => MAX_PIECES,
            // One is what is said of the session.
            Carrier::Session(_) => MAX_PIECES - 1,
        }
    }

    /// Requests that are not known to be done, or messages that the peer is not known to have.
    pub fn under_way(&self) -> usize {
        match self {
            Carrier::Pair(pair) => pair.requests_under_way(),
            Carrier::Session(peer) => peer.session.under_way(),
        }
    }

    /// Whether there are some that nothing will be heard of by itself.
    pub fn is_silent(&self) -> bool {
        match self {
            Carrier::Pair(pair) => pair.is_silent(),
            Carrier::Session(_) => false,
        }
    }

    /// Asks whether the peer is there.
    pub fn probe(&mut self) {
        match self {
            Carrier::Pair(pair) => pair.probe(),
            // The TCP connection by which it was made says when it is not.
            Carrier::Session(_) => {}
        }
    }

    /// Sends a message, for which there is room.
    #[inline]
    pub fn send(&mut self, message: &mut Message, signalled: bool) -> Result<(), Refused> {
        match self {
            Carrier::Pair(pair) => pair.send(message, signalled),
            Carrier::Session(peer) => {
                peer.session.push(std::mem::take(message));
                Ok(())
            }
        }
    }
}
