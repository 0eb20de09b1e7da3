//! Connection manager.

use super::*;
use linerate_rdma_provider::{CmConnParam, CmEvent, CmEventKind, PrivateData};
use std::net::SocketAddr;

const RETRY: Retry = Retry { timeout: 14, retries: 3, rnr_retries: 2, min_rnr_timer: 1 };

/// End with a connection manager channel.
pub struct Party {
    pub end: End,
    pub channel: Handle,
    pub fd: RawFd,
}

impl Party {
    pub fn new(end: End) -> Self {
        let (channel, fd) = end.sim.cm_create_event_channel().unwrap();
        Party { end, channel, fd }
    }

    pub fn id(&self) -> Handle {
        call!(self.end.sim.cm_create_id(self.channel)).unwrap()
    }

    pub fn event(&self) -> Option<CmEvent> {
        call!(self.end.sim.cm_get_event(self.channel)).unwrap()
    }

    pub fn only(&self) -> CmEvent {
        let event = self.event().expect("an event");
        assert_eq!(self.event(), None);
        event
    }

    pub fn kinds(&self) -> Vec<CmEventKind> {
        std::iter::from_fn(|| self.event()).map(|event| event.kind).collect()
    }

    pub fn parameters(&self, private_data: &[u8]) -> CmConnParam {
        CmConnParam {
            qp: self.end.number,
            responder_resources: 3,
            initiator_depth: 2,
            retries: 4,
            rnr_retries: 7,
            is_shared: false,
            private_data: PrivateData::new(private_data),
        }
    }

    pub fn modify_qp_by_cm(&self, id: Handle, state: QpState) -> io::Result<()> {
        self.modify_qp_with(id, state, RETRY)
    }

    fn modify_qp_with(&self, id: Handle, state: QpState, retry: Retry) -> io::Result<()> {
        let options = QpOptions { retry, path: PathOptions::default() };
        call!(self.end.sim.modify_qp_by_cm(self.end.qp, id, state, &options))
    }

    pub fn listen(&self, port: u16) -> (Handle, SocketAddr) {
        let id = self.id();
        let address = SocketAddr::from(([0, 0, 0, 0], port));
        (id, call!(self.end.sim.cm_listen(id, address, 4)).unwrap())
    }

    /// Returns an identifier whose route to `remote` is resolved.
    pub fn resolved(&self, fabric: &Fabric, remote: SocketAddr) -> Handle {
        let id = self.id();
        call!(self.end.sim.cm_resolve_addr(id, remote, 1000)).unwrap();
        fabric.run();
        assert_eq!(self.only().kind, CmEventKind::AddressResolved);
        call!(self.end.sim.cm_resolve_route(id, 1000)).unwrap();
        fabric.run();
        assert_eq!(self.only().kind, CmEventKind::RouteResolved);
        id
    }
}

pub fn parties(setup: &Setup) -> (Fabric, Party, Party) {
    let (fabric, a, b) = apart(setup);
    (fabric, Party::new(a), Party::new(b))
}

pub fn server() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], 7471))
}

/// Sends a request from `a` to `b`; the second identifier belongs to `b`.
fn requested(fabric: &Fabric, a: &Party, b: &Party) -> (Handle, Handle) {
    b.listen(7471);
    let id = a.resolved(fabric, server());
    call!(a.end.sim.cm_connect(id, &a.parameters(b"please"))).unwrap();
    fabric.run();
    (id, b.only().id)
}

/// Connects both and moves their queue pairs to RTS.
pub fn both_connected(fabric: &Fabric, a: &Party, b: &Party) -> (Handle, Handle) {
    let (own, peer) = requested(fabric, a, b);
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        b.modify_qp_by_cm(peer, state).unwrap();
    }
    call!(b.end.sim.cm_accept(peer, &b.parameters(b"welcome"))).unwrap();
    fabric.run();
    assert_eq!(a.only().kind, CmEventKind::Response);
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        a.modify_qp_by_cm(own, state).unwrap();
    }
    call!(a.end.sim.cm_establish(own)).unwrap();
    fabric.run();
    assert_eq!(b.only().kind, CmEventKind::Established);
    assert_eq!(a.event(), None);
    (own, peer)
}

#[test]
fn connection_is_requested_accepted_and_established() {
    let (fabric, a, b) = parties(&Setup::default());
    let (listener, address) = b.listen(7471);
    assert_eq!(address.port(), 7471);
    let id = a.id();
    assert!(!call!(a.end.sim.cm_is_on_device(id)));
    assert_eq!(call!(a.end.sim.cm_addresses(id)), None);
    call!(a.end.sim.cm_destroy_id(id)).unwrap();
    let id = a.resolved(&fabric, server());
    assert!(call!(a.end.sim.cm_is_on_device(id)));
    call!(a.end.sim.cm_connect(id, &a.parameters(b"please"))).unwrap();
    assert!(!readable(b.fd));
    fabric.run();
    assert!(readable(b.fd));
    let request = b.only();
    assert!(!readable(b.fd));
    assert_eq!(request.kind, CmEventKind::Request { listener });
    assert_eq!((request.qp, request.initiator_depth, request.responder_resources), (a.end.number, 2, 3));
    assert_eq!(request.private_data.bytes().len(), PrivateData::LEN, "padded with zeros");
    assert_eq!(&request.private_data.bytes()[..7], b"please\0");
    let (local, remote) = call!(b.end.sim.cm_addresses(request.id)).unwrap();
    assert_eq!(local, server());
    assert_eq!(call!(a.end.sim.cm_addresses(id)), Some((remote, local)));
    call!(b.end.sim.cm_accept(request.id, &b.parameters(b"welcome"))).unwrap();
    fabric.run();
    let response = a.only();
    assert_eq!((response.kind, response.id, response.qp), (CmEventKind::Response, id, b.end.number));
    assert_eq!(&response.private_data.bytes()[..8], b"welcome\0");
    call!(a.end.sim.cm_establish(id)).unwrap();
    fabric.run();
    let established = b.only();
    assert_eq!((established.kind, established.id), (CmEventKind::Established, request.id));
}

#[test]
fn qps_get_attributes_from_connection() {
    let (fabric, a, b) = parties(&Setup::default());
    both_connected(&fabric, &a, &b);
    b.end.receive(1, 0, 8);
    a.end.receive(2, 0, 8);
    a.end.send(3, b"there");
    b.end.send(4, b"back");
    fabric.run();
    assert_eq!((a.end.poll().len(), b.end.poll().len()), (2, 2));
    // Peers may now write and read.
    let (address, rkey) = (b.end.address(64), b.end.keys.remote);
    a.end.request(5, Operation::Write { address, rkey }, &[a.end.sge(0, 4)], SIGNALLED);
    a.end.request(6, Operation::Read { address, rkey }, &[a.end.sge(0, 4)], SIGNALLED);
    fabric.run();
    assert_eq!(a.end.ends(), [(5, WcStatus::Success), (6, WcStatus::Success)]);
}

#[test]
fn qp_before_request_grants_nothing() {
    let (fabric, a, b) = parties(&Setup::default());
    let early = a.resolved(&fabric, server());
    a.modify_qp_by_cm(early, QpState::Init).unwrap();
    assert_eq!(number(a.modify_qp_by_cm(early, QpState::Rtr)), libc::EINVAL);
    assert_eq!(number(a.modify_qp_by_cm(a.id(), QpState::Init)), libc::EINVAL, "address not resolved");
    b.listen(7471);
    call!(a.end.sim.cm_connect(early, &a.parameters(b""))).unwrap();
    fabric.run();
    let peer = b.only().id;
    call!(b.end.sim.cm_accept(peer, &b.parameters(b""))).unwrap();
    fabric.run();
    a.modify_qp_by_cm(early, QpState::Rtr).unwrap();
    a.modify_qp_by_cm(early, QpState::Rts).unwrap();
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        b.modify_qp_by_cm(peer, state).unwrap();
    }
    let operation = Operation::Write { address: a.end.address(64), rkey: a.end.keys.remote };
    b.end.request(1, operation, &[b.end.sge(0, 4)], SIGNALLED);
    fabric.run();
    assert_eq!(b.end.ends(), [(1, WcStatus::RemoteInvalidRequest)], "INIT was not repeated");
}

#[test]
fn retries_follow_the_transition() {
    let (fabric, a, b) = parties(&Setup::default());
    b.listen(7471);
    let id = a.resolved(&fabric, server());
    call!(a.end.sim.cm_connect(id, &a.parameters(b""))).unwrap();
    fabric.run();
    let peer = b.only().id;
    // The values in the messages of the connection manager have no effect.
    let parameters = CmConnParam { rnr_retries: 1, ..b.parameters(b"") };
    call!(b.end.sim.cm_accept(peer, &parameters)).unwrap();
    fabric.run();
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        a.modify_qp_by_cm(id, state).unwrap();
        b.modify_qp_with(peer, state, Retry { rnr_retries: 7, ..RETRY }).unwrap();
    }
    b.end.send(2, b"x");
    fabric.run();
    assert_eq!((b.end.ends(), b.end.state()), (vec![], QpState::Rts), "unlimited retries");
    a.end.send(1, b"x");
    fabric.run();
    assert_eq!(a.end.ends(), [(1, WcStatus::RnrRetryExceeded)]);
}

#[test]
fn request_without_listener_is_rejected() {
    let (fabric, a, _b) = parties(&Setup::default());
    let id = a.resolved(&fabric, server());
    call!(a.end.sim.cm_connect(id, &a.parameters(b""))).unwrap();
    fabric.run();
    let event = a.only();
    assert_eq!((event.kind, event.status, event.id), (CmEventKind::Rejected, 8, id));
}

#[test]
fn rejection_carries_private_data() {
    let (fabric, a, b) = parties(&Setup::default());
    let (own, peer) = requested(&fabric, &a, &b);
    call!(b.end.sim.cm_reject(peer, b"no")).unwrap();
    fabric.run();
    let event = a.only();
    assert_eq!((event.kind, event.id, event.status), (CmEventKind::Rejected, own, 28));
    assert_eq!(&event.private_data.bytes()[..3], b"no\0");
    call!(b.end.sim.cm_destroy_id(peer)).unwrap();
    fabric.run();
    assert_eq!((a.event(), b.event()), (None, None));
}

#[test]
fn disconnect_is_reported_at_both_ends_and_keeps_qps() {
    for by_server in [false, true] {
        let (fabric, a, b) = parties(&Setup::default());
        let (own, peer) = both_connected(&fabric, &a, &b);
        let [first, second] = if by_server { [(&b, peer), (&a, own)] } else { [(&a, own), (&b, peer)] };
        // Some devices confirm the end once the program has disconnected, too.
        for (party, id) in [first, second] {
            call!(party.end.sim.cm_disconnect(id)).unwrap();
            fabric.run();
        }
        assert_eq!(a.kinds(), [CmEventKind::Disconnected, CmEventKind::TimeWaitExit]);
        assert_eq!(b.kinds(), [CmEventKind::Disconnected, CmEventKind::TimeWaitExit]);
        assert_eq!(a.end.state(), QpState::Rts);
        call!(a.end.sim.cm_disconnect(own)).unwrap();
        fabric.run();
        assert_eq!((a.event(), b.event()), (None, None), "already disconnected");
    }
}

#[test]
fn both_ends_may_disconnect_at_once() {
    let (fabric, a, b) = parties(&Setup::default());
    let (own, peer) = both_connected(&fabric, &a, &b);
    call!(a.end.sim.cm_disconnect(own)).unwrap();
    call!(b.end.sim.cm_disconnect(peer)).unwrap();
    fabric.run();
    assert_eq!(a.kinds(), [CmEventKind::Disconnected, CmEventKind::TimeWaitExit]);
    assert_eq!(b.kinds(), [CmEventKind::Disconnected, CmEventKind::TimeWaitExit]);
}

#[test]
fn destroyed_identifier_is_reported_to_peer() {
    let (fabric, a, b) = parties(&Setup::default());
    let (own, peer) = both_connected(&fabric, &a, &b);
    call!(a.end.sim.cm_destroy_id(own)).unwrap();
    fabric.run();
    call!(b.end.sim.cm_disconnect(peer)).unwrap();
    fabric.run();
    assert_eq!(b.kinds(), [CmEventKind::Disconnected, CmEventKind::TimeWaitExit]);

    let (fabric, a, b) = parties(&Setup::default());
    let (_, peer) = requested(&fabric, &a, &b);
    call!(b.end.sim.cm_destroy_id(peer)).unwrap();
    fabric.run();
    assert_eq!(a.kinds(), [CmEventKind::Rejected]);

    let (fabric, a, b) = parties(&Setup::default());
    let (own, _) = requested(&fabric, &a, &b);
    call!(a.end.sim.cm_destroy_id(own)).unwrap();
    fabric.run();
    assert_eq!(b.kinds(), [CmEventKind::Rejected]);
}

#[test]
fn premature_calls_are_refused() {
    let (_fabric, a, _b) = parties(&Setup::default());
    let id = a.id();
    let sim = &a.end.sim;
    assert_eq!(number(call!(sim.cm_resolve_route(id, 1))), libc::EINVAL);
    assert_eq!(number(call!(sim.cm_connect(id, &a.parameters(b"")))), libc::EINVAL);
    assert_eq!(number(call!(sim.cm_accept(id, &a.parameters(b"")))), libc::EINVAL);
    assert_eq!(number(call!(sim.cm_reject(id, b""))), libc::EINVAL);
    assert_eq!(number(call!(sim.cm_establish(id))), libc::EINVAL);
    assert_eq!(number(call!(sim.cm_disconnect(id))), libc::EINVAL);
}
