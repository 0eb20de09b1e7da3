//! Transport of one connection: an RC queue pair, or a session over the worker's UD queue pair.

use crate::provider::{AhAttr, Handle, Provider};
use crate::session::Session;
use crate::verbs::{Ah, MAX_SGES, Message, PostRefused, Qp, Rts};
use linerate_service::Timer;
use linerate_service::inspect::TcpInfo;

pub(crate) enum ConnTransport<C: Provider> {
    /// Reliable connection: the device retransmits.
    Rc(Qp<C, Rts>),
    /// Unreliable datagrams: the session retransmits.
    Ud(Box<UdPeer<C>>),
}

/// Session over UD, with the address of its peer.
pub(crate) struct UdPeer<C: Provider> {
    pub session: Session,
    /// Local session number, which the peer sends. No third party knows it.
    pub local_number: u64,
    /// Address handle of the peer's port, and the path it was created from.
    pub ah: Ah<C>,
    pub path: AhAttr,
    pub qp: u32,
    pub q_key: u32,
    /// Handle of the local UD queue pair.
    pub handle: Handle,
    /// Retransmission and acknowledgement timer.
    pub timer: Timer,
}

/// First session number. Queue pair numbers are smaller.
pub(crate) const FIRST_SESSION: u64 = 1 << 24;

impl<C: Provider> ConnTransport<C> {
    /// Returns the queue pair number or the session number, which is unique on the device.
    pub fn number(&self) -> u64 {
        match self {
            ConnTransport::Rc(qp) => qp.number().into(),
            ConnTransport::Ud(peer) => peer.local_number,
        }
    }

    /// Returns the handle of the queue pair.
    pub fn handle(&self) -> Handle {
        match self {
            ConnTransport::Rc(qp) => qp.handle(),
            ConnTransport::Ud(peer) => peer.handle,
        }
    }

    /// Returns the connection's own queue pair, if it has one.
    #[inline]
    pub fn qp(&mut self) -> Option<&mut Qp<C, Rts>> {
        match self {
            ConnTransport::Rc(qp) => Some(qp),
            ConnTransport::Ud(_) => None,
        }
    }

    /// Returns the number of messages that can be sent now.
    #[inline]
    pub fn room(&self) -> usize {
        match self {
            ConnTransport::Rc(qp) => qp.room(),
            ConnTransport::Ud(peer) => peer.session.room(),
        }
    }

    #[inline]
    pub fn max_chunks(&self) -> usize {
        match self {
            ConnTransport::Rc(_) => MAX_SGES,
            // The session header is one chunk.
            ConnTransport::Ud(_) => MAX_SGES - 1,
        }
    }

    /// Returns the number of incomplete requests, or of unacknowledged messages.
    pub fn outstanding(&self) -> usize {
        match self {
            ConnTransport::Rc(qp) => qp.outstanding(),
            ConnTransport::Ud(peer) => peer.session.unacked(),
        }
    }

    /// Returns the queue pair numbers of this end, and of the peer if it is known.
    pub fn qp_numbers(&self) -> (Option<u32>, Option<u32>) {
        match self {
            ConnTransport::Rc(qp) => (Some(qp.number()), None),
            ConnTransport::Ud(peer) => (None, Some(peer.qp)),
        }
    }

    /// Returns the details that a session has in common with TCP.
    pub fn tcp_info(&self, bytes: usize) -> TcpInfo {
        match self {
            ConnTransport::Rc(_) => TcpInfo::default(),
            ConnTransport::Ud(peer) => peer.session.tcp_info(bytes),
        }
    }

    /// Returns true if outstanding requests may generate no completion.
    pub fn is_silent(&self) -> bool {
        match self {
            ConnTransport::Rc(qp) => qp.is_silent(),
            ConnTransport::Ud(_) => false,
        }
    }

    /// Checks that the peer is alive.
    pub fn probe(&mut self) {
        match self {
            ConnTransport::Rc(qp) => qp.probe(),
            // The TCP connection of the exchange detects a dead peer.
            ConnTransport::Ud(_) => {}
        }
    }

    /// Sends a message. The caller has checked [`room`](Self::room).
    #[inline]
    pub fn send(&mut self, message: &mut Message, signalled: bool) -> Result<(), PostRefused> {
        match self {
            ConnTransport::Rc(qp) => qp.send(message, signalled),
            ConnTransport::Ud(peer) => {
                peer.session.push(std::mem::take(message));
                Ok(())
            }
        }
    }
}
