//! The service: connections of Redis and memcached clients on any transport, and a shard of the data for each worker.
//!
//! | file | what is in it |
//! |------|---------------|
//! | `hub.rs` | what all workers know: settings, counters, the data's secret |
//! | `access.rs` | ways to the data that no password protects |
//! | `client.rs`, `output.rs` | a connection: what it says, what has come of it, what waits to be sent |
//! | `known.rs`, `quick.rs` | nearly every request: told by a few comparisons; fetched ahead and answered |
//! | `glimpse.rs` | the keys of the others, to be fetched ahead |
//! | `intake.rs` | what clients send, in whatever pieces it comes |
//! | `requests.rs` | the other requests are read, and run where their shards are |
//! | `datagrams.rs` | requests of memcached's clients that come in datagrams, without a connection |
//! | `errand.rs`, `lending.rs`, `messages.rs` | requests for other workers' shards: sent there, or the shards fetched |
//! | `host.rs` | what commands ask of the server as a whole |
//! | `slow.rs` | requests that hold a worker for long: counted and logged |
//! | `tending.rs` | what is done in the background |
//!
//! A connection's requests are done one after the other. One whose keys are in the worker's own shard is done at once. One whose
//! keys are in one shard of another worker goes there by mail, together with those behind it that go there, too. One that
//! needs several shards borrows them whole, in the order of their numbers, so that it is done at one go and nobody waits for
//! each other in a circle.

mod background;
mod conn;
mod fast_path;
mod slow_log;
mod udp;
mod workers;

pub use workers::access::PasswordConflict;
pub use workers::hub::{Config, Hub};
pub use workers::messages::Message;

use crate::commands::{Session, Settings, Stats};
use crate::memcached;
use crate::store::{HashBatch, KeyHasher, Store};
use conn::output::Replies;
use conn::{Client, Speech};
use fast_path::Ahead;
use fast_path::conn_fast_state::Lane;
use linerate_bypass::time::{Clock, Duration};
use linerate_bypass::{CloseReason, ConnId, Datagram, Origin, Service, Transport, WorkerCtx};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use udp::Datagrams;
use workers::messages::Outbox;
use workers::remote_batch::Errand;
use workers::server::Host;
use workers::shard_borrow::Lending;

/// A worker's part of the service.
pub struct Kv {
    worker: usize,
    /// All shards' places, one for each worker: its own, unless it is lent, and those that it has borrowed.
    stores: Vec<Option<Box<Store>>>,
    hasher: KeyHasher,
    /// Whether what is set is written to an export.
    exports: bool,
    /// By slot.
    clients: Vec<Option<Box<Client>>>,
    /// By slot.
    lanes: Vec<Lane>,
    host: Host,
    lending: Lending,
    /// What is put together for each worker, until the turn is over.
    errands: Vec<Option<Box<Errand>>>,
    /// Errands that have come back, to be used again.
    #[expect(clippy::vec_box, reason = "they go from worker to worker in their boxes")]
    idle_errands: Vec<Box<Errand>>,
    /// Who runs what others have sent here.
    guest: Option<Session>,
    replies: Replies,
    /// Requests that were recognised ahead, and for how many of them the index has been asked for.
    ahead: Vec<Ahead>,
    asked: usize,
    /// The keys of those others whose hashes are not known yet.
    unhashed: HashBatch,
    /// Clients that ask for one of these and nothing else, and which that is.
    lone: Vec<(ConnId, u32)>,
    /// Clients that ask for more than one of these, or for something else, and which of these they ask for first.
    others: Vec<(ConnId, Range<usize>)>,
    /// The hashes of keys of other requests, while they are looked at.
    glimpsed: Vec<u64>,
    datagrams: Datagrams,
    /// Bursts so far.
    burst: u64,
    /// Connections of which there is more to be read.
    unfinished: Vec<ConnId>,
    stats: Stats,
    counts: memcached::Counts,
    clock: background::Clock,
    /// Measures requests that may take long.
    stopwatch: Clock,
    /// Milliseconds since 1970.
    now: u64,
    /// The slot of the client that is looked at next, whether it is idle.
    swept: usize,
}

impl Kv {
    /// The worker's part of the service that `hub` is of, for the worker of `ctx`.
    ///
    /// # Panics
    /// If the hub was made for another number of workers.
    pub fn new(hub: Arc<Hub>, ctx: WorkerCtx<Message>) -> Self {
        let WorkerCtx { worker, workers, app_sender } = ctx;
        assert_eq!(hub.workers(), workers, "workers, and what the hub was made for");
        let clock = background::Clock::new();
        let now = clock.started();
        let mut stores: Vec<_> = (0..workers).map(|_| None).collect();
        stores[worker] = Some(Box::new(hub.store(worker, now)));
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        Kv {
            worker,
            stores,
            hasher: hub.hasher(),
            datagrams: Datagrams::new(hub.datagrams()),
            exports: hub.exports(),
            clients: Vec::new(),
            lanes: Vec::new(),
            host: Host::new(hub, worker, Outbox::new(app_sender, worker)),
            lending: Lending::default(),
            errands: (0..workers).map(|_| None).collect(),
            idle_errands: Vec::new(),
            guest: Some(Session::new(u64::MAX, nowhere, nowhere, true, now)),
            replies: Replies::default(),
            ahead: Vec::new(),
            asked: 0,
            unhashed: HashBatch::default(),
            lone: Vec::new(),
            others: Vec::new(),
            glimpsed: Vec::new(),
            burst: 1,
            unfinished: Vec::new(),
            stats: Stats::default(),
            counts: memcached::Counts::default(),
            clock,
            stopwatch: Clock::start(),
            now,
            swept: 0,
        }
    }

    fn settings(&self) -> &Settings {
        self.host.settings()
    }

    /// The client of the connection `conn`, if it is still there.
    fn client(&mut self, conn: ConnId) -> Option<&mut Client> {
        self.clients.get_mut(conn.slot())?.as_deref_mut().filter(|client| client.conn == conn)
    }

    /// Lets `act` work with the client of `conn`, if it is still there and not being worked with.
    fn with_client<T: Transport>(
        &mut self,
        net: &mut T,
        conn: ConnId,
        act: impl FnOnce(&mut Self, &mut T, &mut Client),
    ) {
        if self.client(conn).is_none() {
            return;
        }
        let Some(mut client) = self.clients[conn.slot()].take() else { return };
        self.lanes[conn.slot()].tell(&mut client);
        act(self, net, &mut client);
        self.lanes[conn.slot()].follow(&client);
        self.clients[conn.slot()] = Some(client);
    }
}

impl Service for Kv {
    /// Clients are kept by slot, as they are also found by it.
    type Conn = ();
    type Message = Message;

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        self.now = self.clock.millis(net.now());
        let (Some(peer), Some(local)) = (net.peer_addr(conn), net.local_addr(conn)) else { return };
        let hub = self.host.hub();
        let speech = match hub.is_memcached(local.port()) {
            true => Speech::memcached(),
            false => {
                let may_do_all = self.settings().password.is_none();
                Speech::resp(Session::new(hub.next_client(), peer, local, may_do_all, self.now))
            }
        };
        let mut client = Box::new(Client::new(conn, speech, self.now));
        if !self.host.admit() {
            client.refuse(net, b"-ERR max number of clients reached\r\n");
        }
        if self.clients.len() <= conn.slot() {
            self.clients.resize_with(conn.slot() + 1, || None);
            self.lanes.resize(conn.slot() + 1, Lane::IDLE);
        }
        self.lanes[conn.slot()] = Lane::of(&client);
        self.clients[conn.slot()] = Some(client);
    }

    fn burst(&mut self, net: &mut impl Transport, readable: &[ConnId]) -> usize {
        self.now = self.clock.millis(net.now());
        self.burst += 1;
        let mut rest = readable;
        let mut are_all = true;
        while !rest.is_empty() {
            let (looked_at, are_known) = self.look_ahead(net, rest);
            rest = &rest[looked_at..];
            are_all &= are_known;
            self.serve_group(net);
        }
        self.send_errands();
        if are_all { readable.len() } else { 0 }
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        // What had not been opened before the burst has not been served in it.
        if self.lanes.get(conn.slot()).is_none_or(|lane| lane.is_of(conn) && lane.served_in == self.burst) {
            return;
        }
        self.with_client(net, conn, |kv, net, client| kv.serve(net, client));
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        self.with_client(net, conn, |kv, net, client| {
            client.output.go_on(net, client.conn);
            kv.resume(net, client);
        });
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        self.with_client(net, conn, |_, net, client| {
            client.has_peer_finished = true;
            client.close_if_done(net);
        });
    }

    fn on_message(&mut self, net: &mut impl Transport, message: Message) {
        self.now = self.clock.millis(net.now());
        self.hear(net, message);
    }

    fn datagram(&mut self, net: &mut impl Transport, datagram: Datagram) {
        self.take_datagram(net, datagram);
    }

    fn poll(&mut self, net: &mut impl Transport) -> Option<Duration> {
        self.work_in_background(net)
    }

    /// Commands of Redis' clients, and keys of memcached's, of which one command may have several.
    fn requests(&self) -> Option<u64> {
        Some(self.stats.commands + self.counts.keys())
    }

    fn slow_requests(&self) -> Option<u64> {
        Some(self.stats.slow)
    }

    fn closed(&mut self, _: &mut impl Transport, conn: ConnId, (): (), _: CloseReason) {
        if self.client(conn).is_none() {
            return;
        }
        let Some(client) = self.clients[conn.slot()].take() else { return };
        self.host.dismiss(client.is_admitted());
        if let Some(session) = (*client).into_session() {
            self.borrow_to_unwatch(session);
        }
    }
}
