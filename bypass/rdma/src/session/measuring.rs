//! Internals for measurements without a device. Not for applications.

use crate::session::{DatagramHeader, Session, WINDOW};
use crate::verbs::Message;
use crate::wire::Malformed;
use linerate_service::Bytes;
use linerate_service::time::Instant;

/// Bytes that precede the message in each datagram.
pub const HEADER: usize = DatagramHeader::LEN;

/// Recovery of lost datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// Selective retransmission, as in `--rdma-mode ud`: the receiver keeps messages that overtake a lost one, and the
    /// sender retransmits only the lost one.
    Selective,
    /// Go-back-N: the receiver drops messages that overtake a lost one, and the sender retransmits all of them after a
    /// time-out.
    GoBackN,
}

/// Datagram that is no valid part of the session.
#[derive(Debug, thiserror::Error)]
#[error("a datagram is malformed")]
pub struct MalformedDatagram;

impl From<Malformed> for MalformedDatagram {
    fn from(_: Malformed) -> Self {
        MalformedDatagram
    }
}

/// One end of a session of `--rdma-mode ud`.
pub struct SessionEnd {
    session: Session,
    recovery: Recovery,
    /// Number of the next message in order.
    expected: u32,
}

impl SessionEnd {
    /// Creates an end of a new session.
    pub fn new(recovery: Recovery) -> Self {
        SessionEnd { session: Session::new(0, WINDOW as u16), recovery, expected: 0 }
    }

    /// Returns the number of messages that can be added.
    pub fn room(&self) -> usize {
        self.session.room()
    }

    /// Returns the number of unacknowledged messages.
    pub fn unacked(&self) -> usize {
        self.session.unacked()
    }

    /// Returns true if a message was sent too often without an acknowledgement.
    pub fn is_given_up(&self) -> bool {
        self.session.is_given_up()
    }

    /// Adds a message, if there is [room](Self::room).
    pub fn push(&mut self, message: Bytes) {
        let mut of_one_chunk = Message::new();
        of_one_chunk.push(message).expect("a message has room for a chunk");
        self.session.push(of_one_chunk);
    }

    /// Returns the time of the next transmission, unless a datagram is received before.
    pub fn due(&self) -> Option<Instant> {
        self.session.due()
    }

    /// Passes the header and the message of each datagram that is due to `send`, until it returns false.
    pub fn send(&mut self, now: Instant, mut send: impl FnMut(&[u8; HEADER], Option<&Bytes>) -> bool) {
        self.session.send(now, |header, message| {
            let mut bytes = [0; HEADER];
            header.write(&mut bytes);
            send(&bytes, message.and_then(|message| message.chunks().next()))
        });
    }

    /// Processes a datagram. Returns the number of messages that were delivered.
    pub fn receive(&mut self, datagram: &Bytes, now: Instant) -> Result<usize, MalformedDatagram> {
        let mut header = DatagramHeader::read(datagram)?;
        if self.recovery == Recovery::GoBackN && header.has_message && header.number != self.expected {
            header.has_message = false;
            self.session.acknowledge();
        }
        self.session.receive(&header, datagram.slice(HEADER..), now)?;
        let delivered = std::iter::from_fn(|| self.session.take()).count();
        self.expected = self.expected.wrapping_add(delivered as u32);
        Ok(delivered)
    }
}
