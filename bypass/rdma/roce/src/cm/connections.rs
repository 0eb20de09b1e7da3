//! Connections by communication ID, with their timers and their peers' identities.

use super::mad::{Endpoint, Mad};
use linerate_rdma_provider::{CmConnParam, Handle, Mtu};
use linerate_service::time::Instant;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

/// State of a connection (IBA 12.9.5 and 12.9.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    ReqSent,
    RepReceived,
    ReqReceived,
    RepSent,
    Established,
    DreqSent,
    DreqReceived,
    TimeWait,
}

impl State {
    /// Returns true if the local program or the peer has yet to confirm a request of the peer.
    fn is_half_open(self) -> bool {
        matches!(self, State::ReqReceived | State::RepSent)
    }
}

/// Connection, or one that lingers without its identifier.
pub(super) struct Connection {
    /// Identifier. None if the connection lingers: its identifier was destroyed or its request rejected.
    pub id: Option<Handle>,
    pub state: State,
    pub local: IpAddr,
    pub remote: IpAddr,
    pub transaction: u64,
    /// Local queue pair number.
    pub qp: u32,
    pub mtu: Mtu,
    /// Outstanding READ and atomic operations initiated and accepted locally.
    pub initiator_depth: u8,
    pub responder_resources: u8,
    /// Peer. Zeros until its REQ or REP is received.
    pub peer: Endpoint,
    /// Last message sent that expects an answer or answers a message of the peer. It is repeated when the answer is
    /// late, and when the peer repeats its message.
    pub message: Option<Box<Mad>>,
    pub retries: u8,
    /// The peer has deferred the retransmissions by a MRA.
    pub is_deferred: bool,
    deadline: Option<Instant>,
}

impl Connection {
    /// Creates a connection. The state is [`State::ReqSent`] or [`State::ReqReceived`].
    pub fn new(id: Handle, state: State, [local, remote]: [IpAddr; 2], transaction: u64, mtu: Mtu) -> Self {
        Connection {
            id: Some(id),
            state,
            local,
            remote,
            transaction,
            qp: 0,
            mtu,
            initiator_depth: 0,
            responder_resources: 0,
            peer: Endpoint::default(),
            message: None,
            retries: 0,
            is_deferred: false,
            deadline: None,
        }
    }

    /// Sets the parameters of the local program.
    pub fn set_parameters(&mut self, parameters: &CmConnParam) {
        self.qp = parameters.qp;
        self.initiator_depth = parameters.initiator_depth;
        self.responder_resources = parameters.responder_resources;
    }
}

/// Address and GUID of a peer, with a communication ID or a queue pair number of it. The address is compared because
/// GUIDs are claims of the peer.
type PeerKey = (IpAddr, u64, u32);

#[derive(Default)]
pub(super) struct Connections {
    by_comm: HashMap<u32, Connection>,
    by_peer_comm: HashMap<PeerKey, u32>,
    by_peer_qp: HashMap<PeerKey, u32>,
    deadlines: BTreeSet<(Instant, u32)>,
    half_open: usize,
    lingering: usize,
}

impl Connections {
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.by_comm.len()
    }

    /// Returns the number of requests of peers that are not established.
    pub fn half_open(&self) -> usize {
        self.half_open
    }

    /// Returns the number of connections without identifier.
    pub fn lingering(&self) -> usize {
        self.lingering
    }

    pub fn add(&mut self, comm: u32, connection: Connection) {
        self.half_open += usize::from(connection.state.is_half_open());
        self.by_comm.insert(comm, connection);
    }

    pub fn get(&self, comm: u32) -> Option<&Connection> {
        self.by_comm.get(&comm)
    }

    /// State, deadline and identifier are changed by the methods below only.
    pub fn get_mut(&mut self, comm: u32) -> Option<&mut Connection> {
        self.by_comm.get_mut(&comm)
    }

    pub fn remove(&mut self, comm: u32) -> Option<Connection> {
        self.set_deadline(comm, None);
        self.forget_peer(comm);
        let connection = self.by_comm.remove(&comm)?;
        self.half_open -= usize::from(connection.state.is_half_open());
        self.lingering -= usize::from(connection.id.is_none());
        Some(connection)
    }

    pub fn set_state(&mut self, comm: u32, state: State) {
        if let Some(connection) = self.by_comm.get_mut(&comm) {
            self.half_open -= usize::from(connection.state.is_half_open());
            self.half_open += usize::from(state.is_half_open());
            connection.state = state;
        }
    }

    /// Takes the identifier from a connection, which lingers.
    pub fn linger(&mut self, comm: u32) -> Option<Handle> {
        let id = self.by_comm.get_mut(&comm)?.id.take();
        self.lingering += usize::from(id.is_some());
        id
    }

    pub fn set_deadline(&mut self, comm: u32, deadline: Option<Instant>) {
        let Some(connection) = self.by_comm.get_mut(&comm) else { return };
        if let Some(old) = std::mem::replace(&mut connection.deadline, deadline) {
            self.deadlines.remove(&(old, comm));
        }
        if let Some(new) = deadline {
            self.deadlines.insert((new, comm));
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// Clears the deadline of the next connection that is due, and returns the connection.
    pub fn next_expired(&mut self, now: Instant) -> Option<u32> {
        let &(_, comm) = self.deadlines.first().filter(|(deadline, _)| *deadline <= now)?;
        self.set_deadline(comm, None);
        Some(comm)
    }

    /// Returns the connection that the peer names by a communication ID of its own.
    pub fn by_peer_comm(&self, remote: IpAddr, guid: u64, comm: u32) -> Option<u32> {
        self.by_peer_comm.get(&(remote, guid, comm)).copied()
    }

    /// Returns the connection with a queue pair of the peer.
    pub fn by_peer_qp(&self, remote: IpAddr, guid: u64, qp: u32) -> Option<u32> {
        self.by_peer_qp.get(&(remote, guid, qp)).copied()
    }

    /// Sets the peer, and adopts what it proposes: each end initiates what the other one accepts.
    pub fn set_peer(&mut self, comm: u32, peer: Endpoint) {
        self.forget_peer(comm);
        if let Some(connection) = self.by_comm.get_mut(&comm) {
            connection.peer = peer;
            connection.initiator_depth = peer.responder_resources;
            connection.responder_resources = peer.initiator_depth;
            self.by_peer_comm.insert((connection.remote, peer.guid, peer.comm), comm);
            self.by_peer_qp.insert((connection.remote, peer.guid, peer.qp), comm);
        }
    }

    /// Removes the queue pair of the peer, which may use it for another connection.
    pub fn forget_peer_qp(&mut self, comm: u32) {
        let Some(connection) = self.by_comm.get(&comm) else { return };
        let key = (connection.remote, connection.peer.guid, connection.peer.qp);
        if self.by_peer_qp.get(&key) == Some(&comm) {
            self.by_peer_qp.remove(&key);
        }
    }

    /// Removes a connection from the tables of peers. The peer may reuse its queue pair and communication ID.
    pub fn forget_peer(&mut self, comm: u32) {
        self.forget_peer_qp(comm);
        let Some(connection) = self.by_comm.get(&comm) else { return };
        let key = (connection.remote, connection.peer.guid, connection.peer.comm);
        if self.by_peer_comm.get(&key) == Some(&comm) {
            self.by_peer_comm.remove(&key);
        }
    }

    /// Returns true if no table has an entry.
    #[cfg(test)]
    pub fn is_unreferenced(&self) -> bool {
        self.by_peer_comm.is_empty() && self.by_peer_qp.is_empty() && self.deadlines.is_empty()
    }
}
