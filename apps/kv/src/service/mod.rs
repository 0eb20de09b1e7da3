//! Service for Redis and memcached clients on any transport, with one shard of the data per worker.
//!
//! | module | contents |
//! |--------|----------|
//! | `conn` | state of connections: stored requests, replies of several workers, output |
//! | `input` | received data: requests in the receive buffer, incomplete requests, long values |
//! | `dispatch` | parsing of requests, and their dispatch to the workers of their keys |
//! | `scatter` | requests split into their keys |
//! | `fast_path` | plain GET and short SET: parser, prefetching, execution, per-connection state |
//! | `workers` | state shared by all workers, messages, and access to the shards of other workers |
//! | `udp` | memcached requests in datagrams |
//! | `client_memory` | memory of clients and its limit |
//! | `long_work` | fairness between clients by the work of their requests |
//! | `pause` | `CLIENT PAUSE` |
//! | `background` | periodic work |
//! | `clock` | clock of the server |
//! | `monitoring` | metrics, histogram of latencies, and log of slow requests |
//!
//! A request whose keys are in the worker's own shard runs at once. A request whose keys are in one shard of another
//! worker is sent there, in one batch for each worker and turn. Each worker runs its requests in order, so the requests
//! of a connection for one key keep their order, and the replies are written in request order. `MGET` and the commands
//! that count keys are split into their keys. Any other request waits for those before it. If it needs several shards,
//! it borrows them in index order, which prevents deadlock, and runs atomically.

mod background;
mod client_memory;
mod clock;
mod conn;
mod dispatch;
mod fast_path;
mod input;
mod long_work;
mod monitoring;
mod pause;
mod scatter;
mod udp;
mod workers;

pub use workers::access::PasswordConflict;
pub use workers::hub::{Config, Hub};
pub use workers::messages::Message;

use crate::commands::{Session, Settings, Stats};
use crate::memcached;
use crate::resp;
use crate::shards::Placement;
use crate::store::{HashBatch, KeyHasher, Store};
use client_memory::ClientMemory;
use clock::ServerClock;
use conn::gather::ReplyRound;
use conn::output::Replies;
use conn::{Client, ProtocolState};
use fast_path::{ConnFastState, ParsedAhead};
use linerate_service::inspect::ServiceMetrics;
use linerate_service::time::{Clock, Duration, Instant};
use linerate_service::{CloseReason, ConnId, Datagram, Origin, Service, Transport, WorkerCtx};
use long_work::LongWork;
use monitoring::latency::{self, Latency};
use pause::PauseProgress;
use scatter::ScatteredKey;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use udp::Datagrams;
use workers::map_change::MapChange;
use workers::messages::Outbox;
use workers::remote_batch::RemoteBatch;
use workers::server::ServerView;
use workers::shard_borrow::ShardBorrow;

/// Part of the service on one worker.
pub struct Kv {
    worker: usize,
    /// Shards present on this worker, by shard number: its own unless lent, and borrowed ones.
    stores: Vec<Option<Box<Store>>>,
    hasher: KeyHasher,
    placement: Placement,
    /// A key may belong to another worker or, in a cluster, to another machine.
    is_routed: bool,
    /// The keys of memcached clients are in this worker's shard, regardless of their hash.
    keeps_memcached: bool,
    map_change: MapChange,
    /// Writes are copied to an RDMA-readable export.
    exports: bool,
    clients: Vec<Option<Box<Client>>>,
    fast_states: Vec<ConnFastState>,
    server: ServerView,
    shard_borrow: ShardBorrow,
    /// Batches being filled in this turn, by target worker.
    batches: Vec<Option<Box<RemoteBatch>>>,
    /// Finished batches for reuse.
    #[expect(clippy::vec_box, reason = "they go from worker to worker in their boxes")]
    idle_batches: Vec<Box<RemoteBatch>>,
    /// Finished rounds for reuse.
    #[expect(clippy::vec_box, reason = "they go to clients in their boxes")]
    idle_rounds: Vec<Box<ReplyRound>>,
    /// Number of batches that other workers run.
    batches_elsewhere: u64,
    /// Session and parser for requests of other workers.
    remote_session: Option<Session>,
    remote_parser: resp::Parser,
    replies: Replies,
    /// Reply bytes queued in this service for all clients, because the transport has no room.
    queued_output: usize,
    client_memory: ClientMemory,
    /// Requests parsed ahead, and how many of them have their index lines prefetched.
    ahead: Vec<ParsedAhead>,
    prefetched: usize,
    /// Keys parsed ahead that are not hashed yet.
    unhashed: HashBatch,
    /// Clients with exactly one request parsed ahead and nothing else, and the index of that request.
    single: Vec<(ConnId, u32)>,
    /// Other clients, with their requests parsed ahead.
    others: Vec<(ConnId, Range<usize>)>,
    /// Keys of the request that is split.
    scattered: Vec<ScatteredKey>,
    /// Key hashes of requests of other forms, for prefetching.
    lookahead_hashes: Vec<u64>,
    datagrams: Datagrams,
    burst: u64,
    long_work: LongWork,
    stats: Stats,
    counts: Arc<memcached::WorkerCounts>,
    clock: ServerClock,
    /// Time of the next periodic work.
    next_work: Instant,
    /// Clock for requests that may take long.
    stopwatch: Clock,
    /// Time of `clock`.
    now: u64,
    /// Slot of the client whose idle time was checked last.
    idle_cursor: usize,
    pauses: PauseProgress,
    latency: Latency,
}

/// Locks `mutex`. A panic of another thread is ignored, because the data is consistent between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kv {
    /// Creates the part of the service `hub` for the worker of `ctx`.
    ///
    /// # Panics
    /// Panics if the hub was created for another number of workers.
    pub fn new(hub: Arc<Hub>, ctx: WorkerCtx<Message>) -> Self {
        let WorkerCtx { worker, workers, app_sender } = ctx;
        assert_eq!(hub.workers(), workers, "the hub has another number of workers");
        let start = hub.start_time();
        let now = start.elapsed().as_millis() as u64;
        let mut stores: Vec<_> = (0..workers).map(|_| None).collect();
        stores[worker] = Some(Box::new(hub.store(worker, now)));
        let counts = hub.counts(worker);
        Kv {
            worker,
            stores,
            hasher: hub.hasher(),
            placement: hub.placement(worker),
            keeps_memcached: hub.shards_memcached(),
            map_change: MapChange::default(),
            is_routed: workers > 1 || hub.is_cluster(),
            datagrams: Datagrams::new(hub.datagrams()),
            exports: hub.exports(),
            clients: Vec::new(),
            fast_states: Vec::new(),
            server: ServerView::new(hub, worker, Outbox::new(app_sender, worker)),
            shard_borrow: ShardBorrow::default(),
            batches: (0..workers).map(|_| None).collect(),
            idle_batches: Vec::new(),
            idle_rounds: Vec::new(),
            batches_elsewhere: 0,
            remote_parser: resp::Parser::default(),
            remote_session: Some(Kv::remote_session(now)),
            replies: Replies::default(),
            queued_output: 0,
            client_memory: ClientMemory::default(),
            ahead: Vec::new(),
            prefetched: 0,
            unhashed: HashBatch::default(),
            single: Vec::new(),
            others: Vec::new(),
            scattered: Vec::new(),
            lookahead_hashes: Vec::new(),
            burst: 1,
            long_work: LongWork::new(workers),
            stats: Stats::default(),
            counts,
            clock: ServerClock::new(start),
            next_work: Instant::ZERO,
            stopwatch: Clock::start(),
            now,
            idle_cursor: 0,
            pauses: PauseProgress::default(),
            latency: Latency::default(),
        }
    }

    /// Returns a session for requests of other workers.
    fn remote_session(now: u64) -> Session {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut session = Session::new(u64::MAX, nowhere, nowhere, true, now);
        session.allow_pausing();
        session
    }

    fn settings(&self) -> &Settings {
        self.server.settings()
    }

    /// Returns the client of `conn`, if it is open.
    fn client(&mut self, conn: ConnId) -> Option<&mut Client> {
        self.clients.get_mut(conn.slot())?.as_deref_mut().filter(|client| client.conn == conn)
    }

    /// Calls `act` with the client of `conn`, if it is open and not borrowed already.
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
        self.fast_states[conn.slot()].sync_to(&mut client);
        let before = client.output.bytes();
        self.begin_turn();
        act(self, net, &mut client);
        self.queued_output = self.queued_output - before + client.output.bytes();
        let fast_state = &mut self.fast_states[conn.slot()];
        fast_state.sync_from(&client);
        self.client_memory.update(&mut fast_state.memory, client.memory());
        self.clients[conn.slot()] = Some(client);
    }

    /// Serves the connections `readable`. Returns the number of connections that need no further event.
    #[inline(always)]
    fn serve_burst(&mut self, net: &mut impl Transport, readable: &[ConnId]) -> usize {
        let mut rest = readable;
        let mut are_all = true;
        while !rest.is_empty() {
            let (examined, are_fast) = self.parse_group(net, rest);
            rest = &rest[examined..];
            are_all &= are_fast;
            self.serve_group(net);
            self.limit_client_memory(net);
        }
        self.send_batches();
        if are_all { readable.len() } else { 0 }
    }
}

impl Service for Kv {
    /// Clients are stored by slot here.
    type Conn = ();
    type Message = Message;

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        self.now = self.clock.millis(net.now());
        let (Some(peer), Some(local)) = (net.peer_addr(conn), net.local_addr(conn)) else { return };
        let hub = self.server.hub();
        let protocol_state = match hub.is_memcached(local.port()) {
            true => ProtocolState::memcached(),
            false => {
                let may_do_all = self.settings().password.is_none();
                let mut session = Session::new(hub.next_client(), peer, local, may_do_all, self.now);
                session.set_tls(net.tls_info(conn).is_some());
                session.set_under_pause(self.server.pause.mode.is_some());
                ProtocolState::resp(session)
            }
        };
        let mut client = Box::new(Client::new(conn, protocol_state, self.now));
        if !self.server.admit() {
            client.reject(net, b"-ERR max number of clients reached\r\n");
        }
        if self.clients.len() <= conn.slot() {
            self.clients.resize_with(conn.slot() + 1, || None);
            self.fast_states.resize(conn.slot() + 1, ConnFastState::default());
        }
        self.fast_states[conn.slot()] = ConnFastState::new(&client);
        self.clients[conn.slot()] = Some(client);
    }

    fn burst(&mut self, net: &mut impl Transport, readable: &[ConnId]) -> usize {
        self.now = self.clock.millis(net.now());
        self.burst += 1;
        if self.burst.is_multiple_of(latency::SAMPLED) {
            self.timed_burst(net, readable)
        } else {
            self.serve_burst(net, readable)
        }
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        // A connection opened during the burst has not been served in it.
        if self
            .fast_states
            .get(conn.slot())
            .is_none_or(|fast_state| fast_state.belongs_to(conn) && fast_state.served_in == self.burst)
        {
            return;
        }
        self.with_client(net, conn, |kv, net, client| kv.serve(net, client));
        self.limit_client_memory(net);
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        self.with_client(net, conn, |kv, net, client| {
            client.output.flush(net, client.conn);
            kv.resume(net, client);
        });
        self.limit_client_memory(net);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        self.with_client(net, conn, |_, net, client| {
            client.peer_closed = true;
            client.close_if_done(net);
        });
    }

    fn message(&mut self, net: &mut impl Transport, message: Message) {
        self.now = self.clock.millis(net.now());
        self.handle_message(net, message);
        self.limit_client_memory(net);
    }

    fn datagram(&mut self, net: &mut impl Transport, datagram: Datagram) {
        self.take_datagram(net, datagram);
    }

    fn turn(&mut self, net: &mut impl Transport) -> Option<Duration> {
        self.work_in_background(net)
    }

    /// Counts the commands of Redis clients and the keys of memcached requests.
    fn metrics(&self) -> ServiceMetrics {
        ServiceMetrics {
            requests: Some(self.stats.commands + self.counts.keys()),
            slow_requests: Some(self.stats.slow),
            others: self.all_metrics(),
        }
    }

    fn closed(&mut self, _: &mut impl Transport, conn: ConnId, (): (), _: CloseReason) {
        self.remove_client(conn);
    }
}
