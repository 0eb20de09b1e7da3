//! Steps of connection manager identifiers.

use super::{Action, CONSUMER, CmId, CmState, INVALID_SERVICE};
use crate::device::Health;
use crate::qp::{Receiving, Sending};
use crate::world::World;
use linerate_rdma_provider::{CmEvent, CmEventKind, Handle, PrivateData, QpState};
use std::net::SocketAddr;

const TIME_WAIT_STEPS: u64 = 200;

impl World {
    /// Returns the device that owns the address.
    pub(super) fn device_at(&self, address: SocketAddr) -> Option<usize> {
        self.devices
            .iter()
            .rposition(|device| device.health != Health::Vanished && device.port_of(address.ip()).is_some())
    }

    fn deliver_event(&mut self, id: Handle, kind: CmEventKind, status: i32, private_data: PrivateData) {
        let object = &self.cm_ids[id];
        let (channel, peer_params) = (object.channel, object.peer_params);
        let event = CmEvent {
            id,
            kind,
            status,
            initiator_depth: peer_params.map_or(0, |peer_params| peer_params.initiator_depth),
            responder_resources: peer_params.map_or(0, |peer_params| peer_params.responder_resources),
            qp: peer_params.map_or(0, |peer_params| peer_params.qp),
            private_data,
        };
        self.cm_channels[channel].events.push(event);
    }

    /// Returns private data as it arrives: padded with zeros, except over iWARP.
    fn padded(&self, id: Handle, private_data: PrivateData) -> PrivateData {
        if self.devices[self.cm_ids.device(id)].is_iwarp() {
            return private_data;
        }
        let mut bytes = [0; PrivateData::LEN];
        bytes[..private_data.bytes().len()].copy_from_slice(private_data.bytes());
        PrivateData::new(&bytes)
    }

    /// Performs the next action of an identifier.
    pub fn connect_step(&mut self, id: Handle) {
        let carries = self.devices[self.cm_ids.device(id)].carries(self.port_of(id));
        let object = &mut self.cm_ids[id];
        let next = object.next(carries).and_then(|(index, _)| object.actions.remove(index));
        let Some((_, action)) = next else { return };
        let none = PrivateData::default();
        let state = self.cm_ids[id].state;
        match action {
            Action::Address => self.resolve(id),
            Action::Route => {
                self.cm_ids[id].state = CmState::RouteResolved;
                self.deliver_event(id, CmEventKind::RouteResolved, 0, none);
            }
            Action::Request => self.deliver_request(id),
            Action::Response if state == CmState::Requesting => {
                let private_data = self.cm_ids[id].peer_params.map_or(none, |peer_params| peer_params.private_data);
                let private_data = self.padded(id, private_data);
                if self.devices[self.cm_ids.device(id)].is_iwarp() {
                    self.connect_iwarp(id);
                    self.cm_ids[id].state = CmState::Connected;
                    self.deliver_event(id, CmEventKind::Established, 0, private_data);
                } else {
                    self.cm_ids[id].state = CmState::Responded;
                    self.deliver_event(id, CmEventKind::Response, 0, private_data);
                }
            }
            Action::Established if state == CmState::Accepted => {
                self.cm_ids[id].state = CmState::Connected;
                self.deliver_event(id, CmEventKind::Established, 0, none);
            }
            Action::Rejected { status, private_data } => self.rejected(id, status, private_data),
            Action::Torn => self.torn(id, state),
            Action::Silent if matches!(state, CmState::Requesting | CmState::Accepted) => {
                self.cm_ids[id].state = CmState::Failed;
                self.cm_ids[id].peer = None;
                self.deliver_event(id, CmEventKind::Unreachable, -libc::ETIMEDOUT, none);
            }
            Action::Disconnected { by_peer } => {
                // If both ends disconnected at once, the second event is omitted.
                if !by_peer || state != CmState::Over {
                    self.disconnected(id);
                }
            }
            Action::Event { kind, status } => self.deliver_event(id, kind, status, none),
            Action::Response | Action::Established | Action::Silent => {}
        }
    }

    fn disconnected(&mut self, id: Handle) {
        self.cm_ids[id].state = CmState::Over;
        self.cm_ids[id].peer = None;
        self.close_pair(id);
        self.deliver_event(id, CmEventKind::Disconnected, 0, PrivateData::default());
        let due = self.now + TIME_WAIT_STEPS;
        self.act_at(id, due, Action::Event { kind: CmEventKind::TimeWaitExit, status: 0 });
    }

    /// Handles the loss of the peer's identifier, which rejects a request or ends a connection.
    fn torn(&mut self, id: Handle, state: CmState) {
        match state {
            CmState::Requesting | CmState::Requested => self.rejected(id, CONSUMER, PrivateData::default()),
            CmState::Responded | CmState::Accepted | CmState::Connected => self.disconnected(id),
            _ => {}
        }
    }

    fn resolve(&mut self, id: Handle) {
        let device = self.cm_ids.device(id);
        let found = self.cm_ids[id].remote.filter(|&remote| self.device_at(remote).is_some());
        let port = found.map(|remote| self.devices[device].port_to(remote.ip()));
        let Some(port) = port.filter(|&port| self.devices[device].carries(port)) else {
            // Same result as for a missing ARP reply.
            self.cm_ids[id].state = CmState::Failed;
            return self.deliver_event(id, CmEventKind::AddressFailed, -libc::ETIMEDOUT, PrivateData::default());
        };
        let local = SocketAddr::new(self.devices[device].address(port), self.free_port());
        let is_elsewhere = self.devices[device].is_elsewhere;
        let object = &mut self.cm_ids[id];
        object.local = Some(local);
        object.is_on_device = !is_elsewhere;
        object.state = CmState::AddressResolved;
        self.deliver_event(id, CmEventKind::AddressResolved, 0, PrivateData::default());
    }

    /// Delivers a request to the peer's machine.
    fn deliver_request(&mut self, id: Handle) {
        let device = self.cm_ids.device(id);
        let none = PrivateData::default();
        let Some(remote) = self.cm_ids[id].remote else { return };
        let carries = |there: usize| {
            self.devices[there].port_of(remote.ip()).is_some_and(|port| self.devices[there].carries(port))
        };
        let there = self.device_at(remote).filter(|&there| carries(there));
        let Some(there) = there.filter(|_| self.devices[device].carries(self.port_of(id))) else {
            self.cm_ids[id].state = CmState::Failed;
            return self.deliver_event(id, CmEventKind::Unreachable, -libc::ETIMEDOUT, none);
        };
        let is_iwarp = self.devices[device].is_iwarp();
        let listens = |object: &CmId| {
            object.state == CmState::Listening && object.local.is_some_and(|local| local.port() == remote.port())
        };
        let listener = self.cm_ids.of(there).into_iter().find(|&id| listens(&self.cm_ids[id]));
        let refused = |status: i32| if is_iwarp { -libc::ECONNREFUSED } else { status };
        let Some(listener) = listener.filter(|_| self.devices[there].is_iwarp() == is_iwarp) else {
            return self.rejected(id, refused(INVALID_SERVICE), none);
        };
        let untaken = self.cm_ids.values().filter(|object| object.listener == Some(listener)).count();
        if untaken >= self.cm_ids[listener].backlog as usize {
            return self.rejected(id, refused(CONSUMER), none);
        }
        let channel = self.cm_ids[listener].channel;
        let child = self.new_id(there, channel);
        let requester = &self.cm_ids[id];
        let (own_params, local, psn) = (requester.own_params, requester.local, requester.psn);
        let is_elsewhere = self.devices[there].is_elsewhere;
        let object = &mut self.cm_ids[child];
        object.state = CmState::Requested;
        object.listener = Some(listener);
        object.peer = Some(id);
        object.peer_params = own_params;
        object.their_first_packet = psn;
        (object.local, object.remote) = (Some(remote), local);
        object.is_on_device = !is_elsewhere;
        let their_first_packet = object.psn;
        let requester = &mut self.cm_ids[id];
        requester.peer = Some(child);
        requester.their_first_packet = their_first_packet;
        let private_data = self.padded(child, own_params.map_or(none, |own_params| own_params.private_data));
        self.deliver_event(child, CmEventKind::Request { listener }, 0, private_data);
    }

    fn rejected(&mut self, id: Handle, status: i32, private_data: PrivateData) {
        self.cm_ids[id].state = CmState::Failed;
        self.cm_ids[id].peer = None;
        let private_data = self.padded(id, private_data);
        self.deliver_event(id, CmEventKind::Rejected, status, private_data);
    }

    /// Moves the queue pair of an iWARP identifier to RTS, as the kernel does when the connection is established.
    pub(super) fn connect_iwarp(&mut self, id: Handle) {
        let object = &self.cm_ids[id];
        let (Some(own_params), Some(peer_params), Some(remote)) =
            (object.own_params, object.peer_params, object.remote)
        else {
            return;
        };
        let (initiator_depth, responder_resources) = object.reads();
        let (psn, their_first_packet) = (object.psn, object.their_first_packet);
        let (is_active, mtu) = (object.is_active, self.path_mtu(self.cm_ids.device(id), remote));
        let (gid, port) = (self.gid_at(remote), self.port_of(id));
        let Some(&qp) = self.numbers.get(&own_params.qp) else { return };
        let qp = &mut self.qps[qp];
        if qp.state != QpState::Init {
            return;
        }
        qp.receiving = Some(Receiving { mtu, qp: peer_params.qp, psn: their_first_packet, responder_resources, gid });
        // TCP, too, retries for a limited time only.
        qp.sending = Some(Sending { psn, timeout: 18, retries: 7, rnr_retries: 7, initiator_depth });
        (qp.state, qp.port) = (QpState::Rts, port);
        qp.awaits_first_message = !is_active;
    }

    /// Ends the queue pair with its iWARP connection.
    pub(super) fn close_pair(&mut self, id: Handle) {
        let object = &self.cm_ids[id];
        if !self.devices[self.cm_ids.device(id)].is_iwarp() {
            return;
        }
        let qp = object.own_params.and_then(|own_params| self.numbers.get(&own_params.qp).copied());
        if let Some(qp) = qp {
            self.break_pair(qp, None);
        }
    }

    /// Ends the iWARP connection of a queue pair that is gone or broken.
    pub fn sever(&mut self, qp: Handle) {
        let device = self.qps.device(qp);
        if !self.devices[device].is_iwarp() {
            return;
        }
        let number = self.qps[qp].number;
        let is_its = |id: &&CmId| id.own_params.is_some_and(|own_params| own_params.qp == number);
        let ids = self.cm_ids.of(device).into_iter();
        let open: Vec<_> = ids
            .filter(|&id| matches!(self.cm_ids[id].state, CmState::Accepted | CmState::Connected))
            .filter(|&id| is_its(&&self.cm_ids[id]))
            .collect();
        for id in open {
            self.hang_up(id);
        }
    }
}
