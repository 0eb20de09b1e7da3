//! State machine of connections: messages, retransmission and time-wait (IBA 12.9).

use super::connections::{Connection, State};
use super::mad::{About, Endpoint, MAX_CM_RETRIES, Mad, Rej, Rep, Req, attribute, mtu_of, reason};
use super::{Cm, MAX_HALF_OPEN, MAX_LINGERING, Outgoing, Phase};
use linerate_rdma_provider::{CmEvent, CmEventKind, Handle, PrivateData};
use linerate_service::time::{Duration, Instant};
use std::net::{IpAddr, SocketAddr};

/// Time to the first retransmission. It doubles up to [`MAX_INTERVAL`], so that [`MAX_CM_RETRIES`] take 25 s.
const FIRST_INTERVAL: Duration = Duration::from_millis(100);
const MAX_INTERVAL: Duration = Duration::from_secs(2);
/// Time in which packets of an old connection arrive: twice a packet lifetime of 268 ms (IBA 12.9.8.4).
pub(super) const TIME_WAIT: Duration = Duration::from_millis(537);
/// Service timeout in a MRA, 69 s, as Linux: time that the program may take to accept. A longer one of a peer counts
/// as this one.
const SERVICE_TIMEOUT: u8 = 24;
/// Maximum pending replies to messages of no connection, and maximum pending messages in all.
const MAX_REPLIES: usize = 1024;
const MAX_OUTGOING: usize = 8192;

impl Cm {
    /// Processes a received MAD of any length and content.
    pub fn receive(&mut self, now: Instant, local: IpAddr, remote: IpAddr, mad: &[u8]) {
        let Some(mad) = Mad::parse(mad) else {
            self.counters.malformed += 1;
            return;
        };
        let ends = [local.to_canonical(), remote.to_canonical()];
        let effect = match mad.attribute() {
            attribute::REQ => self.receive_req(now, ends, &mad),
            attribute::MRA => self.receive_mra(now, ends, &mad),
            attribute::REJ => self.receive_rej(now, ends, &mad),
            attribute::REP => self.receive_rep(now, ends, &mad),
            attribute::RTU => self.receive_rtu(ends, &mad),
            attribute::DREQ => self.receive_dreq(now, ends, &mad),
            attribute::DREP => self.receive_drep(now, ends, &mad),
            _ => {
                self.counters.unsupported += 1;
                return;
            }
        };
        self.counters.ignored += u64::from(effect.is_none());
    }

    /// Handles a request. Duplicates are answered as the request was.
    fn receive_req(&mut self, now: Instant, ends: [IpAddr; 2], mad: &Mad) -> Option<()> {
        let [local, remote] = ends;
        let req = Req::read(mad);
        if let Some(comm) = self.connections.by_peer_comm(remote, req.sender.guid, req.sender.comm) {
            let &Connection { state, transaction, .. } = self.connections.get(comm)?;
            return match state {
                State::ReqReceived => {
                    self.reply(ends, Mad::mra(transaction, comm, req.sender.comm, About::Req, SERVICE_TIMEOUT));
                    Some(())
                }
                // In time-wait, only a rejected request is found. Its REJ may have crossed the duplicate, or be lost.
                State::RepSent | State::TimeWait => self.repeat(comm),
                _ => None,
            };
        }
        if let Some(stale) = self.connections.by_peer_qp(remote, req.sender.guid, req.sender.qp) {
            self.reject_message(ends, mad, About::Req, reason::STALE_CONNECTION);
            self.end_stale(now, stale);
            return Some(());
        }
        let (listener, port, peer_port) = match self.check_request(local, &req) {
            Ok(found) => found,
            Err(reason) => {
                self.reject_message(ends, mad, About::Req, reason);
                return Some(());
            }
        };
        let Phase::Listening { backlog, untaken } = &mut self.ids.get_mut(listener).ok()?.phase else { return None };
        if *untaken >= *backlog || self.connections.half_open() >= MAX_HALF_OPEN {
            self.counters.over_limit += 1;
            return Some(());
        }
        *untaken += 1;
        let channel = self.ids.get(listener).ok()?.channel;
        let comm = self.new_comm();
        let id = self.add_id(channel, Phase::Connecting(comm));
        let object = self.ids.get_mut(id).ok()?;
        object.local = Some(SocketAddr::new(local, port));
        object.remote = Some(SocketAddr::new(remote, peer_port));
        object.listener = Some(listener);
        let mtu = mtu_of(req.mtu).map_or(self.mtu, |mtu| mtu.min(self.mtu));
        let connection = Connection::new(id, State::ReqReceived, ends, req.transaction, mtu);
        self.connections.add(comm, connection);
        self.connections.set_peer(comm, req.sender);
        self.notify_id(id, CmEventKind::Request { listener }, 0, req.private_data);
        Some(())
    }

    /// Returns listener, port and port of the peer of a request, or the reason to reject it.
    fn check_request(&self, local: IpAddr, req: &Req) -> Result<(Handle, u16, u16), u16> {
        let port = req.service_port().ok_or(reason::INVALID_SERVICE_ID)?;
        let listener = self.listener(local, port).ok_or(reason::INVALID_SERVICE_ID)?;
        if req.transport != 0 {
            return Err(reason::INVALID_TRANSPORT);
        }
        if req.sender.qp == 0 {
            return Err(reason::NO_QP);
        }
        mtu_of(req.mtu).ok_or(reason::INVALID_MTU)?;
        let peer_port = req.port.ok_or(reason::UNSUPPORTED)?;
        Ok((listener, port, peer_port))
    }

    /// Handles an acceptance. If it was handled before, the peer lacks the RTU.
    fn receive_rep(&mut self, now: Instant, ends: [IpAddr; 2], mad: &Mad) -> Option<()> {
        let [_, remote] = ends;
        let rep = Rep::read(mad);
        let comm = rep.receiver;
        if self.find_requesting(comm, remote).is_none() {
            return match self.find(remote, mad) {
                Some(comm) if self.connections.get(comm)?.state == State::Established => self.repeat(comm),
                Some(_) => None,
                None => {
                    self.reject_message(ends, mad, About::Rep, reason::INVALID_COMM_ID);
                    Some(())
                }
            };
        }
        if let Some(stale) = self.connections.by_peer_qp(remote, rep.sender.guid, rep.sender.qp) {
            self.reject_message(ends, mad, About::Rep, reason::STALE_CONNECTION);
            self.end_stale(now, stale);
            return Some(());
        }
        self.connections.set_peer(comm, rep.sender);
        self.stop(comm, State::RepReceived);
        self.notify(comm, CmEventKind::Response, 0, rep.private_data);
        Some(())
    }

    fn receive_rtu(&mut self, [_, remote]: [IpAddr; 2], mad: &Mad) -> Option<()> {
        let comm = self.find(remote, mad)?;
        (self.connections.get(comm)?.state == State::RepSent).then_some(())?;
        self.stop(comm, State::Established);
        self.notify(comm, CmEventKind::Established, 0, PrivateData::default());
        Some(())
    }

    /// Handles the end of a connection by the peer. The program confirms it by disconnecting or destroying its
    /// identifier, unless it has disconnected before.
    fn receive_dreq(&mut self, now: Instant, ends: [IpAddr; 2], mad: &Mad) -> Option<()> {
        use State::*;
        let [_, remote] = ends;
        let Some(comm) = self.find(remote, mad) else {
            // The connection is forgotten. The peer repeats the message until it is confirmed.
            self.reply(ends, Mad::new(attribute::DREP, mad.transaction(), mad.receiver(), mad.sender()));
            return Some(());
        };
        let connection = self.connections.get_mut(comm).filter(|connection| connection.qp == mad.dreq_qp())?;
        let state = connection.state;
        if matches!(state, ReqSent | ReqReceived | DreqReceived) {
            return None;
        }
        connection.transaction = mad.transaction();
        match state {
            RepSent | RepReceived | Established => {
                self.stop(comm, DreqReceived);
                // The peer may reuse its queue pair, whatever the local program does.
                self.connections.forget_peer(comm);
                self.notify(comm, CmEventKind::Disconnected, 0, PrivateData::default());
            }
            _ => {
                self.send_drep(comm);
                if state == DreqSent {
                    self.disconnected(now, comm, 0);
                }
            }
        }
        Some(())
    }

    fn receive_drep(&mut self, now: Instant, [_, remote]: [IpAddr; 2], mad: &Mad) -> Option<()> {
        let comm = self.find(remote, mad)?;
        match self.connections.get(comm)?.state {
            State::DreqSent => self.disconnected(now, comm, 0),
            State::DreqReceived => self.enter_time_wait(now, comm),
            _ => return None,
        }
        Some(())
    }

    fn receive_rej(&mut self, now: Instant, [_, remote]: [IpAddr; 2], mad: &Mad) -> Option<()> {
        use State::*;
        let (reason, guid, private_data) = mad.rej_fields();
        let comm = match mad.about() {
            _ if reason == reason::TIMEOUT => self.connections.by_peer_comm(remote, guid, mad.sender()),
            About::Req => self.find_requesting(mad.receiver(), remote),
            About::Rep | About::Other => self.find(remote, mad),
        }?;
        match self.connections.get(comm)?.state {
            ReqSent | RepReceived | ReqReceived | RepSent => {
                self.notify(comm, CmEventKind::Rejected, reason.into(), private_data);
                self.end(comm);
            }
            Established => self.disconnected(now, comm, reason.into()),
            DreqSent => self.disconnected(now, comm, 0),
            DreqReceived | TimeWait => return None,
        }
        Some(())
    }

    /// Defers the next retransmission. The peer has received the message; its program takes time to answer.
    fn receive_mra(&mut self, now: Instant, [_, remote]: [IpAddr; 2], mad: &Mad) -> Option<()> {
        let (comm, state) = match mad.about() {
            About::Req => (self.find_requesting(mad.receiver(), remote)?, State::ReqSent),
            About::Rep => (self.find(remote, mad)?, State::RepSent),
            About::Other => return None,
        };
        let connection = self.connections.get_mut(comm).filter(|connection| connection.state == state)?;
        if std::mem::replace(&mut connection.is_deferred, true) {
            return None;
        }
        let timeout = Duration::from_nanos(4096 << mad.service_timeout().min(SERVICE_TIMEOUT));
        self.connections.set_deadline(comm, Some(now + timeout.max(FIRST_INTERVAL)));
        Some(())
    }

    /// Returns the connection that sender and receiver of a message name alike.
    fn find(&self, remote: IpAddr, mad: &Mad) -> Option<u32> {
        let connection = self.connections.get(mad.receiver())?;
        let is_known = connection.state != State::ReqSent && connection.peer.comm == mad.sender();
        (is_known && connection.remote == remote).then_some(mad.receiver())
    }

    /// Returns the connection, if its request is not answered.
    fn find_requesting(&self, comm: u32, remote: IpAddr) -> Option<u32> {
        let connection = self.connections.get(comm)?;
        (connection.state == State::ReqSent && connection.remote == remote).then_some(comm)
    }

    /// Ends a connection whose peer has begun another one with the same queue pair.
    fn end_stale(&mut self, now: Instant, comm: u32) {
        match self.connections.get(comm).map(|connection| connection.state) {
            Some(State::Established) => self.send_dreq(now, comm),
            Some(State::ReqReceived | State::RepSent) => {
                self.notify(comm, CmEventKind::Rejected, reason::STALE_CONNECTION.into(), PrivateData::default());
                self.end(comm);
            }
            _ => {}
        }
    }

    /// Ends the connection of an identifier that is being destroyed.
    pub(super) fn abandon(&mut self, comm: u32, now: Instant) {
        use State::*;
        let Some(connection) = self.connections.get(comm) else { return };
        match connection.state {
            ReqSent => self.send_rej(comm, About::Other, reason::TIMEOUT),
            ReqReceived | RepSent => return self.reject_request(now, comm, &[]),
            RepReceived => self.send_rej(comm, About::Rep, reason::CONSUMER),
            Established => self.send_dreq(now, comm),
            DreqReceived => self.send_drep(comm),
            DreqSent | TimeWait => {}
        }
        let is_sent = self.connections.get(comm).is_some_and(|connection| connection.state == DreqSent);
        if is_sent && self.connections.lingering() < MAX_LINGERING {
            self.connections.linger(comm);
        } else {
            self.connections.remove(comm);
        }
    }

    /// Rejects a request of the peer. The connection lingers while duplicates of the request may arrive, which are no
    /// new requests.
    pub(super) fn reject_request(&mut self, now: Instant, comm: u32, private_data: &[u8]) {
        let Some(&Connection { state, transaction, peer, .. }) = self.connections.get(comm) else { return };
        let rej = |about, guid| {
            Mad::rej(transaction, comm, peer.comm, &Rej { about, reason: reason::CONSUMER, guid, private_data })
        };
        self.send(comm, rej(if state == State::RepSent { About::Other } else { About::Req }, self.guid));
        if let Some(connection) = self.connections.get_mut(comm) {
            // A peer that repeats its request does not have the REP.
            connection.message = Some(Box::new(rej(About::Req, self.guid)));
        }
        if self.connections.lingering() >= MAX_LINGERING {
            return self.end(comm);
        }
        if let Some(id) = self.connections.linger(comm).and_then(|id| self.ids.get_mut(id).ok()) {
            id.phase = Phase::Over;
        }
        self.connections.set_state(comm, State::TimeWait);
        self.connections.forget_peer_qp(comm);
        self.connections.set_deadline(comm, Some(now + TIME_WAIT));
    }

    /// Repeats messages that were not answered, and ends connections whose time is over.
    pub fn expire(&mut self, now: Instant) {
        while let Some(comm) = self.connections.next_expired(now) {
            let Some(connection) = self.connections.get_mut(comm) else { continue };
            if connection.state == State::TimeWait {
                self.notify(comm, CmEventKind::TimeWaitExit, 0, PrivateData::default());
                self.end(comm);
            } else if connection.retries < MAX_CM_RETRIES {
                connection.retries += 1;
                let interval = (FIRST_INTERVAL * (1 << connection.retries)).min(MAX_INTERVAL);
                self.connections.set_deadline(comm, Some(now + interval));
                self.repeat(comm);
            } else {
                self.give_up(now, comm);
            }
        }
    }

    /// Ends a connection whose peer does not answer.
    fn give_up(&mut self, now: Instant, comm: u32) {
        let Some(connection) = self.connections.get(comm) else { return };
        match connection.state {
            State::DreqSent => return self.disconnected(now, comm, -libc::ETIMEDOUT),
            State::ReqSent => self.send_rej(comm, About::Other, reason::TIMEOUT),
            _ => {}
        }
        self.notify(comm, CmEventKind::Unreachable, -libc::ETIMEDOUT, PrivateData::default());
        self.end(comm);
    }

    fn disconnected(&mut self, now: Instant, comm: u32, status: i32) {
        self.notify(comm, CmEventKind::Disconnected, status, PrivateData::default());
        self.enter_time_wait(now, comm);
    }

    pub(super) fn enter_time_wait(&mut self, now: Instant, comm: u32) {
        if self.connections.get(comm).is_some_and(|connection| connection.id.is_none()) {
            self.connections.remove(comm);
            return;
        }
        self.stop(comm, State::TimeWait);
        self.connections.forget_peer(comm);
        self.connections.set_deadline(comm, Some(now + TIME_WAIT));
    }

    /// Ends a connection without time-wait.
    pub(super) fn end(&mut self, comm: u32) {
        let id = self.connections.remove(comm).and_then(|connection| connection.id);
        if let Some(id) = id.and_then(|id| self.ids.get_mut(id).ok()) {
            id.phase = Phase::Over;
        }
    }

    /// Changes the state, and stops the retransmission of a message.
    fn stop(&mut self, comm: u32, state: State) {
        self.connections.set_state(comm, state);
        self.connections.set_deadline(comm, None);
        if let Some(connection) = self.connections.get_mut(comm) {
            connection.message = None;
        }
    }

    /// Returns a communication ID that no connection has.
    pub(super) fn new_comm(&mut self) -> u32 {
        loop {
            let comm = self.random.u32(1..);
            if self.connections.get(comm).is_none() {
                return comm;
            }
        }
    }

    /// Returns the transaction ID of the messages that begin a transaction of a connection.
    pub(super) fn transaction_of(&self, comm: u32) -> u64 {
        u64::from(self.transaction) << 32 | u64::from(comm)
    }

    pub(super) fn send_dreq(&mut self, now: Instant, comm: u32) {
        let Some(&Connection { peer, .. }) = self.connections.get(comm) else { return };
        self.connections.set_state(comm, State::DreqSent);
        self.send_until_answered(now, comm, Mad::dreq(self.transaction_of(comm), comm, peer.comm, peer.qp));
    }

    pub(super) fn send_drep(&mut self, comm: u32) {
        let Some(&Connection { transaction, peer, .. }) = self.connections.get(comm) else { return };
        self.send(comm, Mad::new(attribute::DREP, transaction, comm, peer.comm));
    }

    fn send_rej(&mut self, comm: u32, about: About, reason: u16) {
        let Some(&Connection { transaction, peer, .. }) = self.connections.get(comm) else { return };
        let rej = Rej { about, reason, guid: self.guid, private_data: &[] };
        self.send(comm, Mad::rej(transaction, comm, peer.comm, &rej));
    }

    /// Sends a message of a connection, and repeats it at growing intervals.
    pub(super) fn send_until_answered(&mut self, now: Instant, comm: u32, mad: Mad) {
        self.send(comm, mad);
        self.connections.set_deadline(comm, Some(now + FIRST_INTERVAL));
    }

    /// Sends a message of a connection. It is kept to be repeated.
    pub(super) fn send(&mut self, comm: u32, mad: Mad) {
        if let Some(connection) = self.connections.get_mut(comm) {
            connection.message = Some(Box::new(mad));
            connection.retries = 0;
            connection.is_deferred = false;
            self.repeat(comm);
        }
    }

    /// Sends the last message of a connection again, if it is kept.
    fn repeat(&mut self, comm: u32) -> Option<()> {
        let connection = self.connections.get(comm)?;
        let mad = connection.message.clone()?;
        if self.outgoing.len() < MAX_OUTGOING {
            self.outgoing.push_back(Outgoing { local: connection.local, remote: connection.remote, mad });
        } else {
            self.counters.unsent += 1;
        }
        Some(())
    }

    /// Rejects a received message.
    fn reject_message(&mut self, ends: [IpAddr; 2], mad: &Mad, about: About, reason: u16) {
        let rej = Rej { about, reason, guid: self.guid, private_data: &[] };
        self.reply(ends, Mad::rej(mad.transaction(), mad.receiver(), mad.sender(), &rej));
    }

    /// Sends a message of no connection. Peers that flood the port leave room for messages of connections.
    fn reply(&mut self, [local, remote]: [IpAddr; 2], mad: Mad) {
        if self.outgoing.len() < MAX_REPLIES {
            self.outgoing.push_back(Outgoing { local, remote, mad: Box::new(mad) });
        } else {
            self.counters.unsent += 1;
        }
    }

    /// Delivers an event of a connection, unless its identifier is destroyed.
    pub(super) fn notify(&mut self, comm: u32, kind: CmEventKind, status: i32, private_data: PrivateData) {
        if let Some(id) = self.connections.get(comm).and_then(|connection| connection.id) {
            self.notify_id(id, kind, status, private_data);
        }
    }

    pub(super) fn notify_id(&mut self, id: Handle, kind: CmEventKind, status: i32, private_data: PrivateData) {
        let Ok(object) = self.ids.get(id) else { return };
        let connection = match object.phase {
            Phase::Connecting(comm) => self.connections.get(comm),
            _ => None,
        };
        let Endpoint { initiator_depth, responder_resources, qp, .. } =
            connection.map(|connection| connection.peer).unwrap_or_default();
        if let Ok(channel) = self.channels.get_mut(object.channel) {
            channel.push(CmEvent { id, kind, status, initiator_depth, responder_resources, qp, private_data });
        }
    }
}
