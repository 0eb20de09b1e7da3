//! Connection manager.

use crate::rig::{Pair, Rig, await_that, is_readable};
use linerate_rdma::provider::{
    CmConnParam, CmEvent, CmEventKind, Handle, Operation, PathOptions, PrivateData, Provider, QpOptions, QpState,
    Retry, Transition, WcStatus,
};
use std::net::SocketAddr;

const OPTIONS: QpOptions =
    QpOptions { retry: Retry::DEFAULT, path: PathOptions { traffic_class: 0, service_level: 0, pkey_index: 0 } };

struct Manager<'a> {
    rig: &'a Rig,
    channel: (Handle, i32),
    listener: Handle,
    address: SocketAddr,
}

impl<'a> Manager<'a> {
    fn new(rig: &'a Rig) -> Self {
        let channel = rig.native.cm_create_event_channel().unwrap();
        // SAFETY: the channel is live, and the identifier new.
        unsafe {
            assert_eq!(rig.native.cm_get_event(channel.0).unwrap(), None);
            let listener = rig.native.cm_create_id(channel.0).unwrap();
            let address = rig.native.cm_listen(listener, SocketAddr::new(rig.gid.ip(), 0), 8).unwrap();
            assert_ne!(address.port(), 0);
            assert_eq!(address.ip(), rig.gid.ip());
            Manager { rig, channel, listener, address }
        }
    }

    fn event(&self) -> CmEvent {
        await_that("an event of a connection", || {
            // SAFETY: the channel is live.
            let event = unsafe { self.rig.native.cm_get_event(self.channel.0) }.unwrap();
            assert!(event.is_none_or(|event| event.status == 0 || event.kind == CmEventKind::Rejected), "{event:?}");
            event
        })
    }

    /// Returns the next events of the given types, in any order.
    fn events<const N: usize>(&self, wanted: [(Handle, CmEventKind); N]) -> [CmEvent; N] {
        let mut found = [None; N];
        while found.iter().any(Option::is_none) {
            let event = self.event();
            let index = wanted.iter().position(|one| *one == (event.id, event.kind));
            found[index.unwrap_or_else(|| panic!("{event:?}, not one of {wanted:?}"))] = Some(event);
        }
        found.map(Option::unwrap)
    }

    /// Returns an identifier with a resolved route to the listener.
    fn dial(&self) -> Handle {
        // SAFETY: the channel is live; the identifier is new, then its address is resolved, then its route.
        unsafe {
            let id = self.rig.native.cm_create_id(self.channel.0).unwrap();
            assert!(!self.rig.native.cm_is_on_device(id));
            self.rig.native.cm_resolve_addr(id, self.address, 2000).unwrap();
            self.events([(id, CmEventKind::AddressResolved)]);
            assert!(self.rig.native.cm_is_on_device(id), "the identifier is of another context");
            self.rig.native.cm_resolve_route(id, 2000).unwrap();
            self.events([(id, CmEventKind::RouteResolved)]);
            id
        }
    }

    fn by(&self, qp: Pair, id: Handle, states: &[QpState]) {
        for &state in states {
            // SAFETY: the queue pair and the identifier are live.
            unsafe { self.rig.native.modify_qp_by_cm(qp.handle, id, state, &OPTIONS) }
                .unwrap_or_else(|error| panic!("{state:?}: {error}"));
        }
    }
}

impl Drop for Manager<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: both are live and not used again; other identifiers are destroyed.
            unsafe {
                self.rig.native.cm_destroy_id(self.listener).unwrap();
                self.rig.native.cm_destroy_event_channel(self.channel.0).unwrap();
            }
        }
    }
}

fn parameters(qp: Pair, private_data: &[u8]) -> CmConnParam {
    CmConnParam {
        qp: qp.number,
        responder_resources: 4,
        initiator_depth: 3,
        retries: 7,
        rnr_retries: 7,
        is_shared: false,
        private_data: PrivateData::new(private_data),
    }
}

#[test]
fn connection_is_established_used_and_ended() {
    use QpState::{Init, Rtr, Rts};
    let Some(rig) = Rig::open() else { return };
    let manager = Manager::new(&rig);
    let [client, server] = [rig.qp(None), rig.qp(None)];
    let dialled = manager.dial();
    manager.by(client, dialled, &[Init]);
    rig.receive(client, 10, 4096..4160);
    // SAFETY: the route is resolved.
    unsafe { rig.native.cm_connect(dialled, &parameters(client, b"from the client")) }.unwrap();

    let request = manager.event();
    assert_eq!(request.kind, CmEventKind::Request { listener: manager.listener });
    assert_eq!((request.qp, request.initiator_depth, request.responder_resources), (client.number, 3, 4));
    assert_eq!(request.private_data.bytes()[..15], *b"from the client");
    let accepted = request.id;
    // SAFETY: the identifier is live.
    assert!(unsafe { rig.native.cm_is_on_device(accepted) });
    manager.by(server, accepted, &[Init, Rtr, Rts]);
    rig.receive(server, 11, 8192..8256);
    // SAFETY: the identifier is that of the request.
    unsafe { rig.native.cm_accept(accepted, &parameters(server, b"from the server")) }.unwrap();

    let [response] = manager.events([(dialled, CmEventKind::Response)]);
    assert_eq!(response.qp, server.number);
    assert_eq!(response.private_data.bytes()[..15], *b"from the server");
    manager.by(client, dialled, &[Rtr, Rts]);
    // SAFETY: the response was received.
    unsafe { rig.native.cm_establish(dialled) }.unwrap();
    manager.events([(accepted, CmEventKind::Established)]);
    // SAFETY: the identifiers are live.
    let (own, peer) = unsafe { (rig.native.cm_addresses(dialled), rig.native.cm_addresses(accepted)) };
    let ((own, to), (peer, from)) = (own.unwrap(), peer.unwrap());
    assert_eq!((to, peer, from), (manager.address, manager.address, own));

    // Messages in both directions, and a READ, which need the rights set by the connection.
    rig.fill(0..64, 1);
    rig.send(client, 1, &[rig.sge(0..64)], Operation::Send);
    rig.send(server, 2, &[rig.sge(0..64)], Operation::Send);
    let found = rig.completions(4);
    assert!(found.iter().all(|completion| completion.status == WcStatus::Success), "{found:?}");
    assert_eq!((rig.bytes(4096..4160), rig.bytes(8192..8256)), (vec![1; 64], vec![1; 64]));
    let read = Operation::Read { address: rig.address(0), rkey: rig.keys.remote };
    rig.send(client, 3, &[rig.sge(128..192)], read);
    rig.send(server, 4, &[rig.sge(192..256)], read);
    assert!(rig.completions(2).iter().all(|completion| completion.status == WcStatus::Success));

    // SAFETY: the identifiers are live, and destroyed once.
    unsafe {
        rig.native.cm_disconnect(dialled).unwrap();
        manager.events([(accepted, CmEventKind::Disconnected)]);
        // Replies to the disconnect request.
        rig.native.cm_disconnect(accepted).unwrap();
        manager.events([(dialled, CmEventKind::Disconnected)]);
        rig.modify_qp(client, &Transition::Error);
        rig.modify_qp(server, &Transition::Error);
        rig.native.cm_destroy_id(dialled).unwrap();
        rig.native.cm_destroy_id(accepted).unwrap();
    }
    assert!(!is_readable(manager.channel.1));
}

#[test]
fn rejection_carries_private_data() {
    let Some(rig) = Rig::open() else { return };
    let manager = Manager::new(&rig);
    let client = rig.qp(None);
    let dialled = manager.dial();
    manager.by(client, dialled, &[QpState::Init]);
    // SAFETY: the identifiers are live, and destroyed once.
    unsafe {
        rig.native.cm_connect(dialled, &parameters(client, b"")).unwrap();
        let request = manager.event();
        assert_eq!(request.kind, CmEventKind::Request { listener: manager.listener });
        rig.native.cm_reject(request.id, b"full").unwrap();
        let [rejected] = manager.events([(dialled, CmEventKind::Rejected)]);
        assert_eq!(rejected.private_data.bytes()[..4], *b"full");
        rig.native.cm_destroy_id(dialled).unwrap();
        rig.native.cm_destroy_id(request.id).unwrap();
    }
}

#[test]
fn connect_without_listener_is_rejected() {
    let Some(rig) = Rig::open() else { return };
    let mut manager = Manager::new(&rig);
    let client = rig.qp(None);
    // A port other than the listener's.
    manager.address.set_port(if manager.address.port() == 9 { 10 } else { 9 });
    let dialled = manager.dial();
    manager.by(client, dialled, &[QpState::Init]);
    // SAFETY: the identifier is live, and destroyed once.
    unsafe {
        rig.native.cm_connect(dialled, &parameters(client, b"")).unwrap();
        let [rejected] = manager.events([(dialled, CmEventKind::Rejected)]);
        assert_ne!(rejected.status, 0);
        rig.native.cm_destroy_id(dialled).unwrap();
    }
}

/// Opens and closes two hundred connections.
#[test]
fn destroyed_objects_leave_no_descriptor() {
    let Some(rig) = Rig::open() else { return };
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    for _ in 0..200 {
        let manager = Manager::new(&rig);
        let dialled = manager.dial();
        // SAFETY: the identifier is live, and destroyed once.
        unsafe { rig.native.cm_destroy_id(dialled) }.unwrap();
    }
    assert_eq!(descriptors(), before);
}
