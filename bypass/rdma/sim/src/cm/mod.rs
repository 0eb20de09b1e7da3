//! Connection manager (IBA 12, as in librdmacm).

mod steps;

use super::completion::Waker;
use super::device::{Health, raw_gid};
use super::fabric::RETRY_STEPS;
use super::faults::Call;
use super::world::{World, errno, require};
use linerate_rdma_provider::{
    Access, AhAttr, CmConnParam, CmEvent, CmEventKind, Handle, PrivateData, QpOptions, QpState, Retry, Transition,
};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// Reject reasons (IBA 12.6.7.2): no listener, and rejection by the program.
const INVALID_SERVICE: i32 = 8;
const CONSUMER: i32 = 28;

pub(super) struct CmChannel {
    pub events: Waker<CmEvent>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CmState {
    New,
    Listening,
    /// Resolving an address or a route.
    Resolving,
    AddressResolved,
    RouteResolved,
    /// Connect request sent.
    Requesting,
    /// Connect request received.
    Requested,
    /// Request accepted by the peer, not yet confirmed.
    Responded,
    /// Accepted, waiting for the confirmation.
    Accepted,
    Connected,
    /// Connection ended.
    Over,
    Failed,
}

/// Pending action of an identifier.
#[derive(Debug, Clone, Copy)]
pub(super) enum Action {
    Address,
    Route,
    Request,
    Response,
    Established,
    Rejected {
        status: i32,
        private_data: PrivateData,
    },
    /// The peer's identifier is gone.
    Torn,
    /// The peer's machine is gone and never replies.
    Silent,
    Disconnected {
        by_peer: bool,
    },
    Event {
        kind: CmEventKind,
        status: i32,
    },
}

pub(super) struct CmId {
    pub channel: Handle,
    pub state: CmState,
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    is_on_device: bool,
    backlog: u32,
    /// Listener of a request, until the event is taken.
    listener: Option<Handle>,
    peer: Option<Handle>,
    is_active: bool,
    own_params: Option<CmConnParam>,
    peer_params: Option<CmConnParam>,
    psn: u32,
    their_first_packet: u32,
    actions: VecDeque<(u64, Action)>,
}

impl CmId {
    /// Returns the next action and its time. Messages of the peer need an active port.
    pub fn next(&self, carries: bool) -> Option<(usize, u64)> {
        let is_ours = |action: Action| {
            matches!(
                action,
                Action::Event { .. } | Action::Disconnected { by_peer: false } | Action::Request | Action::Address
            )
        };
        let index = self.actions.iter().position(|&(_, action)| carries || is_ours(action))?;
        Some((index, self.actions[index].0))
    }

    pub fn is_idle(&self) -> bool {
        self.actions.is_empty()
    }

    /// Returns true if the identifier is bound to its device.
    pub fn is_on_device(&self) -> bool {
        self.is_on_device
    }
}

impl World {
    pub fn cm_create_event_channel(&mut self, device: usize) -> io::Result<(Handle, RawFd)> {
        self.enter(device, Call::CmCreateChannel)?;
        let events = Waker::new();
        let fd = events.fd();
        Ok((self.handles.add(&mut self.cm_channels, device, CmChannel { events }), fd))
    }

    pub fn cm_destroy_event_channel(&mut self, device: usize, channel: Handle) -> io::Result<()> {
        self.handles.check(&self.cm_channels, device, channel)?;
        require(!self.cm_ids.values().any(|id| id.channel == channel && id.listener.is_none()), libc::EBUSY)?;
        self.handles.remove(&mut self.cm_channels, channel);
        Ok(())
    }

    pub fn cm_get_event(&mut self, device: usize, channel: Handle) -> io::Result<Option<CmEvent>> {
        self.handles.check(&self.cm_channels, device, channel)?;
        let event = self.cm_channels[channel].events.pop();
        if let Some(CmEvent { id, kind: CmEventKind::Request { .. }, .. }) = event {
            self.cm_ids[id].listener = None;
        }
        Ok(event)
    }

    fn new_id(&mut self, device: usize, channel: Handle) -> Handle {
        let id = CmId {
            channel,
            state: CmState::New,
            local: None,
            remote: None,
            is_on_device: false,
            backlog: 0,
            listener: None,
            peer: None,
            is_active: false,
            own_params: None,
            peer_params: None,
            psn: self.random.u32(0..1 << 24),
            their_first_packet: 0,
            actions: VecDeque::new(),
        };
        self.handles.add(&mut self.cm_ids, device, id)
    }

    pub fn cm_create_id(&mut self, device: usize, channel: Handle) -> io::Result<Handle> {
        self.enter(device, Call::CmCreate)?;
        self.handles.check(&self.cm_channels, device, channel)?;
        Ok(self.new_id(device, channel))
    }

    /// Destroys an identifier and notifies its peer. Requests that a listener received but did not take are rejected.
    pub fn cm_destroy_id(&mut self, device: usize, id: Handle) -> io::Result<()> {
        self.handles.check(&self.cm_ids, device, id)?;
        let untaken: Vec<_> =
            self.cm_ids.iter().filter(|(_, other)| other.listener == Some(id)).map(|(handle, _)| handle).collect();
        for request in untaken {
            self.cm_destroy_id(device, request)?;
        }
        self.tear(id);
        self.active.remove(&id.0);
        let object = self.handles.remove(&mut self.cm_ids, id);
        self.cm_channels[object.channel].events.retain(|event| event.id != id);
        Ok(())
    }

    /// Notifies the peer of an identifier that the identifier is gone.
    pub fn tear(&mut self, id: Handle) {
        let object = &mut self.cm_ids[id];
        if let Some(peer) = object.peer.take().filter(|_| !matches!(object.state, CmState::Over | CmState::Failed)) {
            self.close_pair(id);
            self.act(peer, Action::Torn);
        }
    }

    /// Lets the peer of an identifier time out.
    pub fn silence(&mut self, id: Handle) {
        let due = self.now + RETRY_STEPS * 8;
        if let Some(peer) = self.cm_ids[id].peer {
            self.act_at(peer, due, Action::Silent);
        }
    }

    pub fn act(&mut self, id: Handle, action: Action) {
        let now = self.now;
        self.act_at(id, now, action);
    }

    fn act_at(&mut self, id: Handle, due: u64, action: Action) {
        if let Some(object) = self.cm_ids.get_mut(id) {
            let at = object.actions.partition_point(|&(other, _)| other <= due);
            object.actions.insert(at, (due, action));
            self.wake(id);
        }
    }

    fn enter_id(&mut self, device: usize, call: Call, id: Handle) -> io::Result<()> {
        self.enter(device, call)?;
        self.handles.check(&self.cm_ids, device, id)
    }

    pub fn cm_listen(
        &mut self,
        device: usize,
        id: Handle,
        mut address: SocketAddr,
        backlog: u32,
    ) -> io::Result<SocketAddr> {
        self.enter_id(device, Call::CmListen, id)?;
        require(self.cm_ids[id].state == CmState::New, libc::EINVAL)?;
        let is_ours = self.devices[device].port_of(address.ip()).is_some();
        require(address.ip().is_unspecified() || is_ours, libc::EADDRNOTAVAIL)?;
        if address.port() == 0 {
            address.set_port(self.free_port());
        }
        let is_taken = self.cm_ids.of(device).into_iter().map(|id| &self.cm_ids[id]).any(|other| {
            other.state == CmState::Listening && other.local.is_some_and(|local| local.port() == address.port())
        });
        require(!is_taken, libc::EADDRINUSE)?;
        let is_elsewhere = self.devices[device].is_elsewhere;
        let object = &mut self.cm_ids[id];
        object.state = CmState::Listening;
        object.local = Some(address);
        object.backlog = backlog.max(1);
        object.is_on_device = !address.ip().is_unspecified() && !is_elsewhere;
        Ok(address)
    }

    fn free_port(&mut self) -> u16 {
        self.next_port = self.next_port.checked_add(1).unwrap_or(49_152);
        self.next_port
    }

    pub fn cm_resolve_addr(
        &mut self,
        device: usize,
        id: Handle,
        remote: SocketAddr,
        _timeout_ms: u32,
    ) -> io::Result<()> {
        self.enter_id(device, Call::CmResolveAddress, id)?;
        self.change(id, CmState::New, CmState::Resolving)?;
        self.cm_ids[id].remote = Some(remote);
        self.act(id, Action::Address);
        Ok(())
    }

    pub fn cm_resolve_route(&mut self, device: usize, id: Handle, _timeout_ms: u32) -> io::Result<()> {
        self.enter_id(device, Call::CmResolveRoute, id)?;
        self.change(id, CmState::AddressResolved, CmState::Resolving)?;
        self.act(id, Action::Route);
        Ok(())
    }

    fn change(&mut self, id: Handle, from: CmState, to: CmState) -> io::Result<()> {
        require(self.cm_ids[id].state == from, libc::EINVAL)?;
        self.cm_ids[id].state = to;
        Ok(())
    }

    pub fn cm_is_on_device(&self, device: usize, id: Handle) -> bool {
        !self.is_vanished(device)
            && self.handles.check(&self.cm_ids, device, id).is_ok()
            && self.cm_ids[id].is_on_device
    }

    pub fn cm_addresses(&self, device: usize, id: Handle) -> Option<(SocketAddr, SocketAddr)> {
        if self.is_vanished(device) {
            return None;
        }
        self.handles.check(&self.cm_ids, device, id).ok()?;
        self.cm_ids[id].local.zip(self.cm_ids[id].remote)
    }

    pub fn cm_connect(&mut self, device: usize, id: Handle, parameters: &CmConnParam) -> io::Result<()> {
        self.enter_id(device, Call::CmConnect, id)?;
        self.check_iwarp_pair(device, parameters.qp)?;
        self.change(id, CmState::RouteResolved, CmState::Requesting)?;
        let object = &mut self.cm_ids[id];
        object.own_params = Some(*parameters);
        object.is_active = true;
        self.act(id, Action::Request);
        Ok(())
    }

    /// Checks that the queue pair of an iWARP connection is in INIT: the device takes it over when connecting.
    fn check_iwarp_pair(&self, device: usize, number: u32) -> io::Result<()> {
        let is_init = || {
            let qp = self.numbers.get(&number).filter(|&&qp| self.qps.device(qp) == device);
            qp.is_some_and(|&qp| self.qps[qp].state == QpState::Init)
        };
        require(!self.devices[device].is_iwarp() || is_init(), libc::EINVAL)
    }

    pub fn cm_accept(&mut self, device: usize, id: Handle, parameters: &CmConnParam) -> io::Result<()> {
        self.enter_id(device, Call::CmAccept, id)?;
        self.check_iwarp_pair(device, parameters.qp)?;
        self.change(id, CmState::Requested, CmState::Accepted)?;
        self.cm_ids[id].own_params = Some(*parameters);
        let Some(peer) = self.cm_ids[id].peer else { return Ok(()) };
        if let Some(other) = self.cm_ids.get_mut(peer) {
            other.peer_params = Some(*parameters);
            self.act(peer, Action::Response);
        }
        if self.devices[device].is_iwarp() {
            self.connect_iwarp(id);
            self.act(id, Action::Established);
        }
        Ok(())
    }

    pub fn cm_reject(&mut self, device: usize, id: Handle, private_data: &[u8]) -> io::Result<()> {
        self.enter_id(device, Call::CmReject, id)?;
        self.change(id, CmState::Requested, CmState::Failed)?;
        let status = if self.devices[device].is_iwarp() { -libc::ECONNREFUSED } else { CONSUMER };
        if let Some(peer) = self.cm_ids[id].peer {
            self.act(peer, Action::Rejected { status, private_data: PrivateData::new(private_data) });
        }
        Ok(())
    }

    pub fn cm_establish(&mut self, device: usize, id: Handle) -> io::Result<()> {
        self.enter_id(device, Call::CmEstablish, id)?;
        self.change(id, CmState::Responded, CmState::Connected)?;
        if let Some(peer) = self.cm_ids[id].peer {
            self.act(peer, Action::Established);
        }
        Ok(())
    }

    /// Ends a connection. Its queue pairs keep their state, except over iWARP, where they end with the connection.
    pub fn cm_disconnect(&mut self, device: usize, id: Handle) -> io::Result<()> {
        self.enter_id(device, Call::CmDisconnect, id)?;
        match self.cm_ids[id].state {
            CmState::Over => Ok(()),
            CmState::Responded | CmState::Accepted | CmState::Connected => {
                self.hang_up(id);
                Ok(())
            }
            _ => Err(errno(libc::EINVAL)),
        }
    }

    fn hang_up(&mut self, id: Handle) {
        let object = &mut self.cm_ids[id];
        object.state = CmState::Over;
        if let Some(peer) = object.peer.take() {
            self.act(peer, Action::Disconnected { by_peer: true });
        }
        self.act(id, Action::Disconnected { by_peer: false });
        self.close_pair(id);
    }

    /// Moves a queue pair with the attributes of its connection (`rdma_init_qp_attr`, with the kernel's
    /// `cma_ib_init_qp_attr` and `cm_init_qp_*_attr`). Before a connect request, `Init` grants the peer nothing; `Init`
    /// again afterwards grants writes, and reads if the peer may initiate READs.
    pub fn modify_qp_by_cm(
        &mut self,
        device: usize,
        qp: Handle,
        id: Handle,
        state: QpState,
        options: &QpOptions,
    ) -> io::Result<()> {
        require(self.devices[device].health == Health::Well, libc::EIO)?;
        self.handles.check(&self.qps, device, qp)?;
        self.handles.check(&self.cm_ids, device, id)?;
        let object = &self.cm_ids[id];
        require(object.is_on_device, libc::EINVAL)?;
        let QpOptions { retry, path } = options;
        let is_iwarp = self.devices[device].is_iwarp();
        let port = self.port_of(id);
        let (initiator_depth, responder_resources) = object.reads();
        let transition = match state {
            QpState::Init => {
                let is_remote = matches!(
                    object.state,
                    CmState::Requesting
                        | CmState::Requested
                        | CmState::Responded
                        | CmState::Accepted
                        | CmState::Connected
                );
                let remote_read = is_remote && responder_resources > 0;
                let access =
                    Access { remote_write: is_remote, remote_read, remote_atomic: remote_read, ..Access::default() };
                Transition::Init { port, partition: path.pkey_index, access }
            }
            // The kernel does this when connecting.
            QpState::Rts if is_iwarp => {
                return require(self.qps[qp].state == QpState::Rts, libc::EINVAL);
            }
            QpState::Rtr if !is_iwarp && object.is_answerable() => {
                let peer_params = object.peer_params.ok_or_else(|| errno(libc::EINVAL))?;
                let remote = object.remote.ok_or_else(|| errno(libc::EINVAL))?;
                let source = self.source_of(device, port);
                Transition::Rtr {
                    mtu: self.path_mtu(device, remote),
                    qp: peer_params.qp,
                    psn: object.their_first_packet,
                    responder_resources,
                    min_rnr_timer: retry.min_rnr_timer,
                    path: AhAttr {
                        gid: self.gid_at(remote),
                        lid: 0,
                        source,
                        port,
                        hop_limit: 64,
                        traffic_class: path.traffic_class,
                        service_level: path.service_level,
                    },
                }
            }
            QpState::Rts if object.is_answerable() => {
                let Retry { timeout, retries, rnr_retries, .. } = *retry;
                Transition::Rts { psn: object.psn, timeout, retries, rnr_retries, initiator_depth }
            }
            _ => return Err(errno(libc::EINVAL)),
        };
        self.modify_qp(device, qp, &transition)
    }

    pub fn port_of(&self, id: Handle) -> u8 {
        let device = &self.devices[self.cm_ids.device(id)];
        self.cm_ids[id].local.and_then(|local| device.port_of(local.ip())).unwrap_or(1)
    }

    /// Returns port and GID of an identifier that is bound to its device.
    pub fn cm_source(&self, device: usize, id: Handle) -> io::Result<(u8, [u8; 16])> {
        self.handles.check(&self.cm_ids, device, id)?;
        require(self.cm_ids[id].is_on_device, libc::EINVAL)?;
        let port = self.port_of(id);
        Ok((port, self.devices[device].gid(port)))
    }

    fn gid_at(&self, remote: SocketAddr) -> [u8; 16] {
        let there = self.device_at(remote).map(|there| &self.devices[there]);
        let gid = there.and_then(|there| there.port_of(remote.ip()).map(|port| there.gid(port)));
        gid.unwrap_or_else(|| raw_gid(remote.ip()))
    }

    /// Returns the smaller MTU of both ends.
    fn path_mtu(&self, device: usize, remote: SocketAddr) -> linerate_rdma_provider::Mtu {
        let own_mtu = self.devices[device].config.mtu;
        self.device_at(remote).map_or(own_mtu, |there| own_mtu.min(self.devices[there].config.mtu))
    }
}

impl CmId {
    /// Returns initiator depth and responder resources, as agreed by both ends.
    fn reads(&self) -> (u8, u8) {
        match (self.own_params, self.peer_params) {
            (Some(own_params), None) => (own_params.initiator_depth, own_params.responder_resources),
            (Some(own_params), Some(_)) if !self.is_active => {
                (own_params.initiator_depth, own_params.responder_resources)
            }
            (_, Some(peer_params)) => (peer_params.responder_resources, peer_params.initiator_depth),
            (None, None) => (0, 0),
        }
    }

    fn is_answerable(&self) -> bool {
        matches!(self.state, CmState::Requested | CmState::Responded | CmState::Accepted | CmState::Connected)
    }
}
