//! Connections by the connection manager.

use crate::rig::{Pair, Rig, await_that, is_readable};
use linerate_rdma::calls::{
    Calls, CmEvent, CmEventKind, CmParameters, Handle, Operation, Private, QueuePairState, Status, Transition,
};
use std::net::SocketAddr;

struct Manager<'a> {
    rig: &'a Rig,
    channel: (Handle, i32),
    listener: Handle,
    address: SocketAddr,
}

impl<'a> Manager<'a> {
    fn new(rig: &'a Rig) -> Self {
        let channel = rig.native.cm_create_channel().unwrap();
        // SAFETY: the channel is live, and the identifier new.
        unsafe {
            assert_eq!(rig.native.cm_event(channel.0).unwrap(), None);
            let listener = rig.native.cm_create(channel.0).unwrap();
            let address = rig.native.cm_listen(listener, SocketAddr::new(rig.gid.ip(), 0), 8).unwrap();
            assert_ne!(address.port(), 0);
            assert_eq!(address.ip(), rig.gid.ip());
            Manager { rig, channel, listener, address }
        }
    }

    fn event(&self) -> CmEvent {
        await_that("an event of a connection", || {
            // SAFETY: the channel is live.
            let event = unsafe { self.rig.native.cm_event(self.channel.0) }.unwrap();
            assert!(event.is_none_or(|event| event.status == 0 || event.kind == CmEventKind::Rejected), "{event:?}");
            event
        })
    }

    /// The next events of a kind: others of the list may come before.
    fn events<const N: usize>(&self, wanted: [(Handle, CmEventKind); N]) -> [CmEvent; N] {
        let mut found = [None; N];
        while found.iter().any(Option::is_none) {
            let event = self.event();
            let place = wanted.iter().position(|one| *one == (event.id, event.kind));
            found[place.unwrap_or_else(|| panic!("{event:?}, not one of {wanted:?}"))] = Some(event);
        }
        found.map(Option::unwrap)
    }

    /// An identifier that knows the way to the listener.
    fn dial(&self) -> Handle {
        // SAFETY: the channel is live; the identifier is new, then its address is resolved, then its route.
        unsafe {
            let id = self.rig.native.cm_create(self.channel.0).unwrap();
            assert!(!self.rig.native.cm_is_here(id));
            self.rig.native.cm_resolve_address(id, self.address, 2000).unwrap();
            self.events([(id, CmEventKind::AddressResolved)]);
            assert!(self.rig.native.cm_is_here(id), "the identifier is of another context");
            self.rig.native.cm_resolve_route(id, 2000).unwrap();
            self.events([(id, CmEventKind::RouteResolved)]);
            id
        }
    }

    fn by(&self, pair: Pair, id: Handle, states: &[QueuePairState]) {
        for &state in states {
            // SAFETY: both are live.
            unsafe { self.rig.native.modify_by(pair.handle, id, state) }
                .unwrap_or_else(|error| panic!("{state:?}: {error}"));
        }
    }
}

impl Drop for Manager<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: both are live, and not used again; other identifiers are destroyed.
            unsafe {
                self.rig.native.cm_destroy(self.listener).unwrap();
                self.rig.native.cm_destroy_channel(self.channel.0).unwrap();
            }
        }
    }
}

fn parameters(pair: Pair, private: &[u8]) -> CmParameters {
    CmParameters {
        pair: pair.number,
        reads_answered: 4,
        reads_asked: 3,
        retries: 7,
        not_ready_retries: 7,
        is_shared: false,
        private: Private::new(private),
    }
}

#[test]
fn a_connection_is_made_used_and_ended() {
    use QueuePairState::{Init, ReadyToReceive, ReadyToSend};
    let Some(rig) = Rig::open() else { return };
    let manager = Manager::new(&rig);
    let [client, server] = [rig.pair(None), rig.pair(None)];
    let dialled = manager.dial();
    manager.by(client, dialled, &[Init]);
    rig.receive(client, 10, 4096..4160);
    // SAFETY: the route is resolved.
    unsafe { rig.native.cm_connect(dialled, &parameters(client, b"from the client")) }.unwrap();

    let request = manager.event();
    assert_eq!(request.kind, CmEventKind::Request { listener: manager.listener });
    assert_eq!((request.pair, request.reads_asked, request.reads_answered), (client.number, 3, 4));
    assert_eq!(request.private.bytes()[..15], *b"from the client");
    let accepted = request.id;
    // SAFETY: the identifier is live.
    assert!(unsafe { rig.native.cm_is_here(accepted) });
    manager.by(server, accepted, &[Init, ReadyToReceive, ReadyToSend]);
    rig.receive(server, 11, 8192..8256);
    // SAFETY: the identifier is the request's.
    unsafe { rig.native.cm_accept(accepted, &parameters(server, b"from the server")) }.unwrap();

    let [response] = manager.events([(dialled, CmEventKind::Response)]);
    assert_eq!(response.pair, server.number);
    assert_eq!(response.private.bytes()[..15], *b"from the server");
    manager.by(client, dialled, &[ReadyToReceive, ReadyToSend]);
    // SAFETY: the response has come.
    unsafe { rig.native.cm_establish(dialled) }.unwrap();
    manager.events([(accepted, CmEventKind::Established)]);
    // SAFETY: the identifiers are live.
    let (ours, theirs) = unsafe { (rig.native.cm_addresses(dialled), rig.native.cm_addresses(accepted)) };
    let ((ours, to), (theirs, from)) = (ours.unwrap(), theirs.unwrap());
    assert_eq!((to, theirs, from), (manager.address, manager.address, ours));

    // Messages both ways, and a READ, for which the states were brought about with the peers' rights.
    rig.fill(0..64, 1);
    rig.send(client, 1, &[rig.segment(0..64)], Operation::Send);
    rig.send(server, 2, &[rig.segment(0..64)], Operation::Send);
    let found = rig.completions(4);
    assert!(found.iter().all(|completion| completion.status == Status::Success), "{found:?}");
    assert_eq!((rig.bytes(4096..4160), rig.bytes(8192..8256)), (vec![1; 64], vec![1; 64]));
    let read = Operation::Read { address: rig.address(0), remote_key: rig.keys.remote };
    rig.send(client, 3, &[rig.segment(128..192)], read);
    rig.send(server, 4, &[rig.segment(192..256)], read);
    assert!(rig.completions(2).iter().all(|completion| completion.status == Status::Success));

    // SAFETY: the identifiers are live, and destroyed once.
    unsafe {
        rig.native.cm_disconnect(dialled).unwrap();
        manager.events([(accepted, CmEventKind::Disconnected)]);
        // Which answers.
        rig.native.cm_disconnect(accepted).unwrap();
        manager.events([(dialled, CmEventKind::Disconnected)]);
        rig.modify(client, &Transition::Error);
        rig.modify(server, &Transition::Error);
        rig.native.cm_destroy(dialled).unwrap();
        rig.native.cm_destroy(accepted).unwrap();
    }
    assert!(!is_readable(manager.channel.1));
}

#[test]
fn a_request_is_refused_with_a_reason() {
    let Some(rig) = Rig::open() else { return };
    let manager = Manager::new(&rig);
    let client = rig.pair(None);
    let dialled = manager.dial();
    manager.by(client, dialled, &[QueuePairState::Init]);
    // SAFETY: the identifiers are live, and destroyed once.
    unsafe {
        rig.native.cm_connect(dialled, &parameters(client, b"")).unwrap();
        let request = manager.event();
        assert_eq!(request.kind, CmEventKind::Request { listener: manager.listener });
        rig.native.cm_reject(request.id, b"full").unwrap();
        let [rejected] = manager.events([(dialled, CmEventKind::Rejected)]);
        assert_eq!(rejected.private.bytes()[..4], *b"full");
        rig.native.cm_destroy(dialled).unwrap();
        rig.native.cm_destroy(request.id).unwrap();
    }
}

#[test]
fn nobody_at_the_port_is_a_refusal_too() {
    let Some(rig) = Rig::open() else { return };
    let mut manager = Manager::new(&rig);
    let client = rig.pair(None);
    // Where nobody listens: a port that is not the listener's.
    manager.address.set_port(if manager.address.port() == 9 { 10 } else { 9 });
    let dialled = manager.dial();
    manager.by(client, dialled, &[QueuePairState::Init]);
    // SAFETY: the identifier is live, and destroyed once.
    unsafe {
        rig.native.cm_connect(dialled, &parameters(client, b"")).unwrap();
        let [rejected] = manager.events([(dialled, CmEventKind::Rejected)]);
        assert_ne!(rejected.status, 0);
        rig.native.cm_destroy(dialled).unwrap();
    }
}

/// Two hundred connections come and go, and none leaves a descriptor.
#[test]
fn destroyed_objects_leave_no_descriptor() {
    let Some(rig) = Rig::open() else { return };
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    for _ in 0..200 {
        let manager = Manager::new(&rig);
        let dialled = manager.dial();
        // SAFETY: it is live, and destroyed once.
        unsafe { rig.native.cm_destroy(dialled) }.unwrap();
    }
    assert_eq!(descriptors(), before);
}
