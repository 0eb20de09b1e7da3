//! What happens to identifiers, one thing at a time.

use super::{Action, CONSUMER, CmId, CmState, INVALID_SERVICE};
use crate::calls::{CmEvent, CmEventKind, Handle, Private, QueuePairState};
use crate::model::device::{Health, raw_gid};
use crate::model::pair::{Receiving, Sending};
use crate::model::world::World;
use std::net::SocketAddr;

impl World {
    /// The device that has the address.
    pub(super) fn device_at(&self, address: SocketAddr) -> Option<usize> {
        self.devices
            .iter()
            .rposition(|device| device.health != Health::Vanished && device.config.address == address.ip())
    }

    fn tell(&mut self, id: Handle, kind: CmEventKind, status: i32, private: Private) {
        let object = &self.cm_ids[id];
        let (channel, theirs) = (object.channel, object.theirs);
        let event = CmEvent {
            id,
            kind,
            status,
            reads_asked: theirs.map_or(0, |theirs| theirs.reads_asked),
            reads_answered: theirs.map_or(0, |theirs| theirs.reads_answered),
            pair: theirs.map_or(0, |theirs| theirs.pair),
            private,
        };
        self.cm_channels[channel].events.push(event);
    }

    /// What the peer's program said, as it arrives: with zeros to the message's length, unless it is iWARP's.
    fn padded(&self, id: Handle, private: Private) -> Private {
        if self.devices[self.cm_ids.device(id)].is_iwarp() {
            return private;
        }
        let mut bytes = [0; Private::LEN];
        bytes[..private.bytes().len()].copy_from_slice(private.bytes());
        Private::new(&bytes)
    }

    /// Lets the next thing happen to an identifier.
    pub fn connect_step(&mut self, id: Handle) {
        let carries = self.devices[self.cm_ids.device(id)].carries();
        let object = &mut self.cm_ids[id];
        let next = object.next(carries).and_then(|(index, _)| object.actions.remove(index));
        let Some((_, action)) = next else { return };
        let none = Private::default();
        let state = self.cm_ids[id].state;
        match action {
            Action::Address => self.resolve(id),
            Action::Route => {
                self.cm_ids[id].state = CmState::RouteResolved;
                self.tell(id, CmEventKind::RouteResolved, 0, none);
            }
            Action::Ask => self.ask(id),
            Action::Response if state == CmState::Asking => {
                let private = self.cm_ids[id].theirs.map_or(none, |theirs| theirs.private);
                let private = self.padded(id, private);
                if self.devices[self.cm_ids.device(id)].is_iwarp() {
                    self.connect_iwarp(id);
                    self.cm_ids[id].state = CmState::Connected;
                    self.tell(id, CmEventKind::Established, 0, private);
                } else {
                    self.cm_ids[id].state = CmState::Responded;
                    self.tell(id, CmEventKind::Response, 0, private);
                }
            }
            Action::Established if state == CmState::Accepted => {
                self.cm_ids[id].state = CmState::Connected;
                self.tell(id, CmEventKind::Established, 0, none);
            }
            Action::Rejected { status, private } => {
                self.cm_ids[id].state = CmState::Failed;
                self.cm_ids[id].peer = None;
                let private = self.padded(id, private);
                self.tell(id, CmEventKind::Rejected, status, private);
            }
            Action::Torn => self.torn(id, state),
            Action::Silent if matches!(state, CmState::Asking | CmState::Accepted) => {
                self.cm_ids[id].state = CmState::Failed;
                self.cm_ids[id].peer = None;
                self.tell(id, CmEventKind::Unreachable, -libc::ETIMEDOUT, none);
            }
            Action::Disconnected { by_peer } => {
                // Both may have hung up at once: the second event is none.
                if !by_peer || state != CmState::Over {
                    self.disconnected(id);
                }
            }
            Action::Event { kind, status } => self.tell(id, kind, status, none),
            Action::Response | Action::Established | Action::Silent => {}
        }
    }

    fn disconnected(&mut self, id: Handle) {
        self.cm_ids[id].state = CmState::Over;
        self.cm_ids[id].peer = None;
        self.close_pair(id);
        self.tell(id, CmEventKind::Disconnected, 0, Private::default());
        let due = self.now + self.config.time_wait_steps;
        self.act_at(id, due, Action::Event { kind: CmEventKind::TimeWaitExit, status: 0 });
    }

    /// The peer's identifier is gone: that refuses a request or ends a connection, whichever there is.
    fn torn(&mut self, id: Handle, state: CmState) {
        match state {
            CmState::Asking | CmState::Asked => {
                self.cm_ids[id].state = CmState::Failed;
                self.cm_ids[id].peer = None;
                let private = self.padded(id, Private::default());
                self.tell(id, CmEventKind::Rejected, CONSUMER, private);
            }
            CmState::Responded | CmState::Accepted | CmState::Connected => self.disconnected(id),
            _ => {}
        }
    }

    fn resolve(&mut self, id: Handle) {
        let device = self.cm_ids.device(id);
        let address = self.devices[device].config.address;
        let found = self.cm_ids[id].remote.and_then(|remote| self.device_at(remote));
        if found.is_none() || !self.devices[device].carries() {
            // As when nobody answers the question for the address (ARP).
            self.cm_ids[id].state = CmState::Failed;
            return self.tell(id, CmEventKind::AddressFailed, -libc::ETIMEDOUT, Private::default());
        }
        let local = SocketAddr::new(address, self.free_port());
        let is_elsewhere = self.devices[device].is_elsewhere;
        let object = &mut self.cm_ids[id];
        object.local = Some(local);
        object.is_here = !is_elsewhere;
        object.state = CmState::AddressResolved;
        self.tell(id, CmEventKind::AddressResolved, 0, Private::default());
    }

    /// A request gets to the peer's machine.
    fn ask(&mut self, id: Handle) {
        let device = self.cm_ids.device(id);
        let none = Private::default();
        let Some(remote) = self.cm_ids[id].remote else { return };
        let there = self.device_at(remote).filter(|&there| self.devices[there].carries());
        let Some(there) = there.filter(|_| self.devices[device].carries()) else {
            self.cm_ids[id].state = CmState::Failed;
            return self.tell(id, CmEventKind::Unreachable, -libc::ETIMEDOUT, none);
        };
        let is_iwarp = self.devices[device].is_iwarp();
        let listens = |object: &CmId| {
            object.state == CmState::Listening && object.local.is_some_and(|local| local.port() == remote.port())
        };
        let listener = self.cm_ids.of(there).into_iter().find(|&id| listens(&self.cm_ids[id]));
        let refused = |status: i32| if is_iwarp { -libc::ECONNREFUSED } else { status };
        let Some(listener) = listener.filter(|_| self.devices[there].is_iwarp() == is_iwarp) else {
            return self.refused(id, refused(INVALID_SERVICE));
        };
        let untaken = self.cm_ids.values().filter(|object| object.listener == Some(listener)).count();
        if untaken >= self.cm_ids[listener].backlog as usize {
            return self.refused(id, refused(CONSUMER));
        }
        let channel = self.cm_ids[listener].channel;
        let child = self.new_id(there, channel);
        let (asking, port) = (&self.cm_ids[id], remote.port());
        let (ours, local, first_packet) = (asking.ours, asking.local, asking.first_packet);
        let address = SocketAddr::new(self.devices[there].config.address, port);
        let is_elsewhere = self.devices[there].is_elsewhere;
        let object = &mut self.cm_ids[child];
        object.state = CmState::Asked;
        object.listener = Some(listener);
        object.peer = Some(id);
        object.theirs = ours;
        object.their_first_packet = first_packet;
        (object.local, object.remote) = (Some(address), local);
        object.is_here = !is_elsewhere;
        let their_first_packet = object.first_packet;
        let asking = &mut self.cm_ids[id];
        asking.peer = Some(child);
        asking.their_first_packet = their_first_packet;
        let private = self.padded(child, ours.map_or(none, |ours| ours.private));
        self.tell(child, CmEventKind::Request { listener }, 0, private);
    }

    fn refused(&mut self, id: Handle, status: i32) {
        self.cm_ids[id].state = CmState::Failed;
        let private = self.padded(id, Private::default());
        self.tell(id, CmEventKind::Rejected, status, private);
    }

    /// Makes the queue pair of an iWARP identifier ready, as the kernel does when the connection is there.
    pub(super) fn connect_iwarp(&mut self, id: Handle) {
        let object = &self.cm_ids[id];
        let (Some(ours), Some(theirs), Some(remote)) = (object.ours, object.theirs, object.remote) else { return };
        let (reads_asked, reads_answered) = object.reads();
        let (first_packet, their_first_packet) = (object.first_packet, object.their_first_packet);
        let (is_active, mtu) = (object.is_active, self.path_mtu(self.cm_ids.device(id), remote));
        let Some(&pair) = self.numbers.get(&ours.pair) else { return };
        let pair = &mut self.pairs[pair];
        if pair.state != QueuePairState::Init {
            return;
        }
        let gid = raw_gid(remote.ip());
        pair.receiving =
            Some(Receiving { mtu, pair: theirs.pair, first_packet: their_first_packet, reads_answered, gid });
        // TCP tries for a time as well.
        pair.sending = Some(Sending { first_packet, timeout: 18, retries: 7, not_ready_retries: 7, reads_asked });
        pair.state = QueuePairState::ReadyToSend;
        pair.hears_first = !is_active;
    }

    /// Over iWARP a connection and its queue pair end together.
    pub(super) fn close_pair(&mut self, id: Handle) {
        let object = &self.cm_ids[id];
        if !self.devices[self.cm_ids.device(id)].is_iwarp() {
            return;
        }
        let pair = object.ours.and_then(|ours| self.numbers.get(&ours.pair).copied());
        if let Some(pair) = pair {
            self.break_pair(pair, None);
        }
    }

    /// The queue pair is gone or broken: over iWARP its connection ends.
    pub fn sever(&mut self, pair: Handle) {
        let device = self.pairs.device(pair);
        if !self.devices[device].is_iwarp() {
            return;
        }
        let number = self.pairs[pair].number;
        let is_its = |id: &&CmId| id.ours.is_some_and(|ours| ours.pair == number);
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
