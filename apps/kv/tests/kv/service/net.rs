//! Workers of the service on an in-memory transport, driven turn by turn.

use linerate_bypass::arena::{Arena, ArenaConfig};
use linerate_kv::cluster::ClusterMap;
use linerate_kv::commands::Settings;
use linerate_kv::service::{Config, Hub, Kv, Message};
use linerate_service::mailbox::{Receiver, mailbox};
use linerate_service::time::{Duration, Instant};
use linerate_service::{
    AppMsg, AppSender, Bytes, CloseReason, ConnId, Datagram, Origin, Service, Transport, Unsent, WorkerCtx, WriteError,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of turns after which the service must be idle.
const TURNS: usize = 10_000;
/// Sleep of an idle service.
const IDLE: Duration = Duration::from_millis(10);
/// Ports of Redis and memcached clients.
const REDIS: u16 = 6379;
const MEMCACHED: u16 = 11211;

/// Connection as seen by the transport.
#[derive(Default)]
pub struct End {
    /// Slices sent by the client and not consumed.
    input: VecDeque<Vec<u8>>,
    is_readable: bool,
    /// Bytes received by the client.
    output: Vec<u8>,
    /// Number of these bytes that were sent without a copy.
    pub attached: usize,
    /// Bytes the client can still receive.
    room: usize,
    wants_room: bool,
    has_finished: bool,
    is_close_reported: bool,
    pub is_closed: bool,
    /// Lingering close: the input is discarded.
    pub is_lingering: bool,
    pub is_aborted: bool,
    port: u16,
    /// Number of earlier connections in this slot.
    generation: u32,
    is_gone: bool,
}

struct Net {
    worker: usize,
    now: Instant,
    ends: Vec<End>,
    /// Placeholder for closed connections.
    missing_end: End,
    reserved: Vec<u8>,
    /// Sent datagrams, and the number of further ones that can be sent.
    datagrams: Vec<Datagram>,
    datagram_room: usize,
}

impl Net {
    fn conn(&self, slot: usize) -> ConnId {
        ConnId::new(self.worker, slot, self.ends[slot].generation)
    }

    fn has(&self, conn: ConnId) -> bool {
        self.conn(conn.slot()) == conn && !self.ends[conn.slot()].is_gone
    }

    fn end(&mut self, conn: ConnId) -> &mut End {
        if self.has(conn) { &mut self.ends[conn.slot()] } else { &mut self.missing_end }
    }
}

impl Transport for Net {
    fn now(&self) -> Instant {
        self.now
    }

    fn worker(&self) -> usize {
        self.worker
    }

    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.has(conn).then(|| ([10, 0, 0, 2], self.ends[conn.slot()].port).into())
    }

    fn peer_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.has(conn).then(|| ([10, 0, 0, 1], 40_000 + conn.slot() as u16).into())
    }

    fn received(&self, conn: ConnId) -> usize {
        if self.has(conn) { self.ends[conn.slot()].input.iter().map(Vec::len).sum() } else { 0 }
    }

    fn peek(&mut self, conn: ConnId) -> &[u8] {
        self.end(conn).input.front().map_or(&[], |slice| slice)
    }

    fn consume(&mut self, conn: ConnId, mut n: usize) {
        let input = &mut self.end(conn).input;
        while let Some(slice) = input.front_mut()
            && n > 0
        {
            let taken = n.min(slice.len());
            slice.drain(..taken);
            n -= taken;
            if slice.is_empty() {
                input.pop_front();
            }
        }
    }

    fn take(&mut self, conn: ConnId, _: usize) -> Option<Bytes> {
        self.end(conn).input.pop_front().map(Bytes::from)
    }

    fn send_space(&mut self, conn: ConnId) -> usize {
        let end = self.end(conn);
        end.wants_room |= end.room == 0;
        end.room
    }

    fn send(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Unsent> {
        if self.send_space(conn) < bytes.len() {
            self.end(conn).wants_room = true;
            return Err(Unsent { bytes, error: WriteError::Full });
        }
        let end = self.end(conn);
        end.room -= bytes.len();
        end.attached += bytes.len();
        end.output.extend_from_slice(&bytes);
        Ok(())
    }

    fn reserve(&mut self, conn: ConnId, max: usize) -> Result<&mut [u8], WriteError> {
        let room = self.send_space(conn);
        self.end(conn).wants_room |= room < max;
        if room.min(max) == 0 {
            return Err(WriteError::Full);
        }
        self.reserved.resize(room.min(max), 0);
        Ok(&mut self.reserved)
    }

    fn commit(&mut self, conn: ConnId, n: usize) {
        let bytes = self.reserved[..n].to_vec();
        let end = self.end(conn);
        end.room -= n;
        end.output.extend(bytes);
    }

    fn close(&mut self, conn: ConnId) {
        self.end(conn).is_closed = true;
    }

    fn lingering_close(&mut self, conn: ConnId) {
        self.close(conn);
        let end = self.end(conn);
        (end.is_lingering, end.is_readable) = (true, false);
        end.input.clear();
    }

    fn abort(&mut self, conn: ConnId) {
        self.end(conn).is_aborted = true;
    }

    fn set_timer(&mut self, _: ConnId, _: Option<Duration>) {}

    fn connect(&mut self, _: SocketAddr, _: u64) {}

    fn send_datagram(&mut self, datagram: Datagram) -> Result<(), Datagram> {
        if self.datagram_room == 0 {
            return Err(datagram);
        }
        self.datagram_room -= 1;
        // Sending frees the buffer.
        self.datagrams.push(Datagram { payload: datagram.payload.to_vec().into(), ..datagram });
        Ok(())
    }
}

struct Worker {
    kv: Kv,
    net: Net,
    inbox: Receiver<AppMsg<Message>>,
}

/// Server.
pub struct TestServer {
    workers: Vec<Worker>,
    hub: Arc<Hub>,
}

/// Function that sends bytes of a client and returns the reply of a number of lines.
pub type Call<'a> = dyn FnMut(Client, &[u8], usize) -> String + 'a;

/// Connection of a client.
#[derive(Debug, Clone, Copy)]
pub struct Client(ConnId);

impl TestServer {
    pub fn new(workers: usize) -> Self {
        Self::with(workers, |_| {})
    }

    pub fn with(workers: usize, set: impl FnOnce(&mut Settings)) -> Self {
        Self::create(workers, set, None, |_| {})
    }

    /// Creates the nodes of this process in `map`.
    pub fn in_cluster(map: ClusterMap) -> Self {
        Self::create(map.workers(), |_| {}, Some(map), |_| {})
    }

    /// Creates a server whose workers keep the keys of their memcached clients to themselves.
    pub fn with_sharded_memcached(workers: usize) -> Self {
        Self::create(workers, |_| {}, None, Hub::shard_memcached)
    }

    /// Replaces the map of the cluster. The workers notice it within a millisecond.
    pub fn replace_map(&mut self, map: ClusterMap) {
        self.hub.replace_map(map);
    }

    /// Creates a server that answers datagrams.
    pub fn with_datagrams(workers: usize, set: impl FnOnce(&mut Settings)) -> Self {
        Self::create(workers, set, None, Hub::answer_datagrams)
    }

    fn create(
        workers: usize,
        set: impl FnOnce(&mut Settings),
        map: Option<ClusterMap>,
        prepare: impl FnOnce(&Hub),
    ) -> Self {
        let mut settings = Settings { memory: 64 << 20, ..Settings::default() };
        set(&mut settings);
        let arena = Arena::new(ArenaConfig { bytes: settings.memory as usize, hugepages: false }).unwrap();
        let (export, counters) = (None, None);
        let config =
            Config { settings, workers, memcached: Some(MEMCACHED), memcached_tls: None, arena, export, counters };
        let hub = match map {
            Some(map) => Hub::in_cluster(config, map),
            None => Hub::new(config),
        };
        prepare(&hub);
        let (senders, inboxes): (Vec<_>, Vec<_>) = (0..workers).map(|_| mailbox(64)).unzip();
        let app_sender = AppSender::new(senders);
        let worker = |(worker, inbox)| Worker {
            kv: Kv::new(hub.clone(), WorkerCtx { worker, workers, app_sender: app_sender.clone() }),
            net: Net {
                worker,
                now: Instant::ZERO,
                ends: Vec::new(),
                missing_end: End::default(),
                reserved: Vec::new(),
                datagrams: Vec::new(),
                datagram_room: usize::MAX,
            },
            inbox,
        };
        TestServer { workers: inboxes.into_iter().enumerate().map(worker).collect(), hub: hub.clone() }
    }

    pub fn connect(&mut self, worker: usize) -> Client {
        self.connect_to(worker, REDIS)
    }

    pub fn connect_to_memcached(&mut self, worker: usize) -> Client {
        self.connect_to(worker, MEMCACHED)
    }

    pub fn connect_to(&mut self, worker: usize, port: u16) -> Client {
        let Worker { kv, net, .. } = &mut self.workers[worker];
        let end = End { room: usize::MAX, port, ..End::default() };
        let slot = net.ends.iter().position(|end| end.is_gone).unwrap_or(net.ends.len());
        match net.ends.get_mut(slot) {
            None => net.ends.push(end),
            Some(before) => *before = End { generation: before.generation + 1, ..end },
        }
        let conn = net.conn(slot);
        kv.opened(net, conn, Origin::Accepted);
        Client(conn)
    }

    /// Delivers a datagram to `worker` on the memcached port, from the client's port `from`.
    pub fn datagram(&mut self, worker: usize, from: u16, payload: &[u8]) {
        self.datagram_to(MEMCACHED, worker, from, payload);
    }

    /// Delivers a datagram to any port.
    pub fn datagram_to(&mut self, port: u16, worker: usize, from: u16, payload: &[u8]) {
        let (local, remote) = (([10, 0, 0, 2], port).into(), ([10, 0, 0, 1], from).into());
        let Worker { kv, net, .. } = &mut self.workers[worker];
        kv.datagram(net, Datagram { local, remote, payload: payload.to_vec().into() });
    }

    /// Returns the datagrams that `worker` has sent since the last call.
    pub fn datagrams(&mut self, worker: usize) -> Vec<Datagram> {
        std::mem::take(&mut self.workers[worker].net.datagrams)
    }

    /// Sets the number of datagrams that `worker` can still send.
    pub fn set_datagram_room(&mut self, worker: usize, room: usize) {
        self.workers[worker].net.datagram_room = room;
    }

    pub fn end(&mut self, client: Client) -> &mut End {
        self.workers[client.0.worker()].net.end(client.0)
    }

    /// Delivers `bytes` of the client in one slice.
    pub fn send(&mut self, client: Client, bytes: &[u8]) {
        let end = self.end(client);
        if !end.is_lingering {
            end.input.push_back(bytes.to_vec());
            end.is_readable = true;
        }
    }

    /// Returns the number of bytes that the service has not consumed.
    pub fn unread(&mut self, client: Client) -> usize {
        self.end(client).input.iter().map(Vec::len).sum()
    }

    /// Half-closes the connection from the client's side.
    pub fn finish(&mut self, client: Client) {
        self.end(client).has_finished = true;
    }

    /// Sets the number of bytes that the client can still receive.
    pub fn set_room(&mut self, client: Client, room: usize) {
        self.end(client).room = room;
    }

    /// Returns the bytes received by the client since the last call.
    pub fn received(&mut self, client: Client) -> Vec<u8> {
        std::mem::take(&mut self.end(client).output)
    }

    /// Closes the connection.
    pub fn lose(&mut self, client: Client) {
        let Worker { kv, net, .. } = &mut self.workers[client.0.worker()];
        net.end(client.0).is_gone = true;
        kv.closed(net, client.0, (), CloseReason::Reset);
    }

    /// Advances the clock and lets the workers act.
    pub fn pass(&mut self, time: Duration) {
        self.advance(time);
        self.settle();
    }

    /// Advances the clock.
    pub fn advance(&mut self, time: Duration) {
        self.workers.iter_mut().for_each(|worker| worker.net.now += time);
    }

    /// Runs turns of all workers until nothing happens.
    pub fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..TURNS {
            let worked = self.workers.iter_mut().fold(false, |worked, worker| worker.turn() | worked);
            quiet = if worked { 0 } else { quiet + 1 };
            if quiet > 3 {
                return;
            }
        }
        panic!("the service does not become idle");
    }

    /// Runs a turn of one worker.
    pub fn turn_of(&mut self, worker: usize) {
        self.workers[worker].turn();
    }

    /// Sends a request of `client` on worker 0 that borrows all shards, and makes worker 1 lend its own. Worker 0
    /// receives the shard in its next turn.
    pub fn lend_shard_of_worker_1(&mut self, client: Client, request: &[u8]) {
        self.send(client, request);
        self.turn_of(0);
        // Worker 0 requests the shard at the start of its next turn.
        self.turn_of(0);
        self.turn_of(1);
    }

    /// Returns the number of requests that `worker` counts for its metrics.
    pub fn requests(&self, worker: usize) -> u64 {
        self.workers[worker].kv.metrics().requests.unwrap()
    }

    /// Returns the metric `name` of `worker`.
    pub fn metric(&self, worker: usize, name: &str, part: &str) -> Option<u64> {
        let metrics = self.workers[worker].kv.metrics().others;
        metrics.iter().find(|metric| (metric.name, metric.part) == (name, part)).map(|metric| metric.value)
    }

    /// Runs each worker on its own thread. `run` gets the number of the worker. Workers continue to have turns until
    /// all calls have returned.
    pub fn run_on_threads(&mut self, run: impl Fn(usize, &mut Call<'_>) + Sync) {
        let running = AtomicUsize::new(self.workers.len());
        std::thread::scope(|scope| {
            for (number, worker) in self.workers.iter_mut().enumerate() {
                let (running, run) = (&running, &run);
                scope.spawn(move || {
                    // A failed worker must not block the others.
                    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        run(number, &mut |client, bytes, lines| worker.call(client, bytes, lines));
                    }));
                    running.fetch_sub(1, Ordering::Release);
                    if let Err(panic) = outcome {
                        std::panic::resume_unwind(panic);
                    }
                    while running.load(Ordering::Acquire) > 0 {
                        worker.turn();
                        std::thread::yield_now();
                    }
                });
            }
        });
    }

    /// Runs a turn of all workers.
    pub fn turn(&mut self) {
        self.workers.iter_mut().for_each(|worker| _ = worker.turn());
    }

    /// Returns the reply to `bytes`.
    pub fn call(&mut self, client: Client, bytes: &[u8]) -> String {
        self.send(client, bytes);
        self.settle();
        String::from_utf8_lossy(&self.received(client)).into_owned()
    }
}

impl Worker {
    /// Returns the reply to `bytes` once it has `lines` lines.
    fn call(&mut self, client: Client, bytes: &[u8], lines: usize) -> String {
        let end = self.net.end(client.0);
        end.input.push_back(bytes.to_vec());
        end.is_readable = true;
        loop {
            self.turn();
            let output = &mut self.net.end(client.0).output;
            if output.iter().filter(|byte| **byte == b'\n').count() >= lines {
                return String::from_utf8_lossy(&std::mem::take(output)).into_owned();
            }
            std::thread::yield_now();
        }
    }

    /// Runs a turn. Returns true if anything happened.
    fn turn(&mut self) -> bool {
        let Worker { kv, net, inbox } = self;
        let mut worked = false;
        while let Some(msg) = inbox.receive() {
            worked = true;
            let AppMsg::Message { to: None, message } = msg else { panic!("a message that is not for the service") };
            kv.message(net, message);
        }
        net.now += Duration::from_micros(1);
        // Clients that wait for their share of the time are served after the time that the service asks for.
        if let Some(rest) = kv.turn(net)
            && rest < IDLE
        {
            worked = true;
            net.now += rest;
        }
        let is_readable = |end: &End| end.is_readable && !end.is_aborted && !end.is_gone;
        let slots = (0..net.ends.len()).filter(|slot| is_readable(&net.ends[*slot]));
        let readable: Vec<ConnId> = slots.map(|slot| net.conn(slot)).collect();
        net.ends.iter_mut().for_each(|end| end.is_readable = false);
        if !readable.is_empty() {
            worked = true;
            // Some workers skip the events of connections already served, others deliver them.
            let served = kv.burst(net, &readable);
            let left_out = if net.now.as_micros() % 2 == 0 { served } else { 0 };
            readable.iter().skip(left_out).for_each(|conn| kv.readable(net, *conn, &mut ()));
        }
        for slot in 0..net.ends.len() {
            let conn = net.conn(slot);
            if !net.has(conn) {
                continue;
            }
            let end = net.end(conn);
            if end.wants_room && end.room > 0 {
                end.wants_room = false;
                worked = true;
                kv.writable(net, conn, &mut ());
            }
            let end = net.end(conn);
            if end.has_finished && !end.is_close_reported && !end.is_lingering && end.input.is_empty() {
                end.is_close_reported = true;
                worked = true;
                kv.peer_closed(net, conn, &mut ());
            }
        }
        worked
    }
}
