//! Workers of the service on a transport in memory, a turn at a time.

use linerate_bypass::arena::{Arena, ArenaConfig};
use linerate_bypass::mailbox::{Receiver, mailbox};
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{AppMsg, AppSender, Bytes, CloseReason, ConnId, Datagram, Origin, Service, Transport, WorkerCtx};
use linerate_kv::commands::Settings;
use linerate_kv::service::{Config, Hub, Kv, Message};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Turns after which everything has come to rest, or never will.
const TURNS: usize = 10_000;
/// Where clients of Redis and of memcached come.
const REDIS: u16 = 6379;
const MEMCACHED: u16 = 11211;

/// One end of a connection.
#[derive(Default)]
pub struct End {
    /// What has been sent and not read, in slices.
    input: VecDeque<Vec<u8>>,
    has_news: bool,
    /// What has been received.
    output: Vec<u8>,
    /// Of that, bytes sent from where they lay.
    pub attached: usize,
    /// Bytes that may be received still.
    room: usize,
    wants_room: bool,
    has_finished: bool,
    is_told: bool,
    pub is_closed: bool,
    /// It is closed, and its input discarded.
    pub is_lingering: bool,
    pub is_aborted: bool,
    port: u16,
    /// Connections that have had this slot before.
    generation: u32,
    is_gone: bool,
}

struct Net {
    worker: usize,
    now: Instant,
    ends: Vec<End>,
    /// Of connections that are gone.
    nobody: End,
    place: Vec<u8>,
    /// What has been sent, and how many datagrams more may be.
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
        if self.has(conn) { &mut self.ends[conn.slot()] } else { &mut self.nobody }
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

    fn send(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Bytes> {
        if self.send_space(conn) < bytes.len() {
            self.end(conn).wants_room = true;
            return Err(bytes);
        }
        let end = self.end(conn);
        end.room -= bytes.len();
        end.attached += bytes.len();
        end.output.extend_from_slice(&bytes);
        Ok(())
    }

    fn reserve(&mut self, conn: ConnId, max: usize) -> Option<&mut [u8]> {
        let room = self.send_space(conn);
        self.end(conn).wants_room |= room < max;
        if room.min(max) == 0 {
            return None;
        }
        self.place.resize(room.min(max), 0);
        Some(&mut self.place)
    }

    fn commit(&mut self, conn: ConnId, n: usize) {
        let bytes = self.place[..n].to_vec();
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
        (end.is_lingering, end.has_news) = (true, false);
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
        // Once it is on its way, its memory is free.
        self.datagrams.push(Datagram { payload: datagram.payload.to_vec().into(), ..datagram });
        Ok(())
    }
}

struct Worker {
    kv: Kv,
    net: Net,
    mail: Receiver<AppMsg<Message>>,
}

/// A server.
pub struct Host {
    workers: Vec<Worker>,
}

/// What is replied to a client's bytes, as soon as that is so many lines.
pub type Ask<'a> = dyn FnMut(Client, &[u8], usize) -> String + 'a;

/// A client's connection.
#[derive(Debug, Clone, Copy)]
pub struct Client(ConnId);

impl Host {
    pub fn new(workers: usize) -> Self {
        Self::with(workers, |_| {})
    }

    pub fn with(workers: usize, set: impl FnOnce(&mut Settings)) -> Self {
        Self::that(workers, set, |_| {})
    }

    /// One that answers datagrams.
    pub fn with_datagrams(workers: usize, set: impl FnOnce(&mut Settings)) -> Self {
        Self::that(workers, set, Hub::answer_datagrams)
    }

    fn that(workers: usize, set: impl FnOnce(&mut Settings), prepare: impl FnOnce(&Hub)) -> Self {
        let mut settings = Settings { memory: 64 << 20, ..Settings::default() };
        set(&mut settings);
        let arena = Arena::new(ArenaConfig { bytes: settings.memory as usize, hugepages: false }).unwrap();
        let config = Config { settings, workers, memcached: Some(MEMCACHED), arena, export: None, counters: None };
        let hub = Hub::new(config);
        prepare(&hub);
        let (senders, mails): (Vec<_>, Vec<_>) = (0..workers).map(|_| mailbox(64)).unzip();
        let app_sender = AppSender::new(senders);
        let worker = |(worker, mail)| Worker {
            kv: Kv::new(hub.clone(), WorkerCtx { worker, workers, app_sender: app_sender.clone() }),
            net: Net {
                worker,
                now: Instant::ZERO,
                ends: Vec::new(),
                nobody: End::default(),
                place: Vec::new(),
                datagrams: Vec::new(),
                datagram_room: usize::MAX,
            },
            mail,
        };
        Host { workers: mails.into_iter().enumerate().map(worker).collect() }
    }

    pub fn connect(&mut self, worker: usize) -> Client {
        self.connect_to(worker, REDIS)
    }

    pub fn connect_to_memcached(&mut self, worker: usize) -> Client {
        self.connect_to(worker, MEMCACHED)
    }

    fn connect_to(&mut self, worker: usize, port: u16) -> Client {
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

    /// A datagram comes to the worker `worker` on memcached's port, from the port `from` of the client.
    pub fn datagram(&mut self, worker: usize, from: u16, payload: &[u8]) {
        self.datagram_to(MEMCACHED, worker, from, payload);
    }

    /// The same on any port of the server.
    pub fn datagram_to(&mut self, port: u16, worker: usize, from: u16, payload: &[u8]) {
        let (local, remote) = (([10, 0, 0, 2], port).into(), ([10, 0, 0, 1], from).into());
        let Worker { kv, net, .. } = &mut self.workers[worker];
        kv.datagram(net, Datagram { local, remote, payload: payload.to_vec().into() });
    }

    /// The datagrams that `worker` has sent since it was last asked.
    pub fn datagrams(&mut self, worker: usize) -> Vec<Datagram> {
        std::mem::take(&mut self.workers[worker].net.datagrams)
    }

    /// `worker` can send so many datagrams more.
    pub fn set_datagram_room(&mut self, worker: usize, room: usize) {
        self.workers[worker].net.datagram_room = room;
    }

    pub fn end(&mut self, client: Client) -> &mut End {
        self.workers[client.0.worker()].net.end(client.0)
    }

    /// `bytes` come from the client, in one slice.
    pub fn send(&mut self, client: Client, bytes: &[u8]) {
        let end = self.end(client);
        if !end.is_lingering {
            end.input.push_back(bytes.to_vec());
            end.has_news = true;
        }
    }

    /// Bytes of the client that the service has not consumed.
    pub fn unread(&mut self, client: Client) -> usize {
        self.end(client).input.iter().map(Vec::len).sum()
    }

    /// The client sends nothing more.
    pub fn finish(&mut self, client: Client) {
        self.end(client).has_finished = true;
    }

    /// The client can receive so many bytes.
    pub fn set_room(&mut self, client: Client, room: usize) {
        self.end(client).room = room;
    }

    /// What the client has received since it was last asked.
    pub fn received(&mut self, client: Client) -> Vec<u8> {
        std::mem::take(&mut self.end(client).output)
    }

    /// The connection is gone.
    pub fn lose(&mut self, client: Client) {
        let Worker { kv, net, .. } = &mut self.workers[client.0.worker()];
        net.end(client.0).is_gone = true;
        kv.closed(net, client.0, (), CloseReason::Reset);
    }

    /// Time passes.
    pub fn pass(&mut self, time: Duration) {
        self.workers.iter_mut().for_each(|worker| worker.net.now += time);
        self.settle();
    }

    /// All workers have turns until nothing happens any more.
    pub fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..TURNS {
            let worked = self.workers.iter_mut().fold(false, |worked, worker| worker.turn() | worked);
            quiet = if worked { 0 } else { quiet + 1 };
            if quiet > 3 {
                return;
            }
        }
        panic!("the service does not come to rest");
    }

    /// Only the worker `worker` has a turn.
    pub fn turn_of(&mut self, worker: usize) {
        self.workers[worker].turn();
    }

    /// Sends a request of `client`, which is one of worker 0, that borrows all shards, and has worker 1 lend its own. Worker 0 does not
    /// take it in before its next turn.
    pub fn lend_shard_of_worker_1(&mut self, client: Client, request: &[u8]) {
        self.send(client, request);
        self.turn_of(0);
        // It asks for the shard at the beginning of its next turn.
        self.turn_of(0);
        self.turn_of(1);
    }

    /// Requests that `worker` counts for its metrics.
    pub fn requests(&self, worker: usize) -> u64 {
        self.workers[worker].kv.requests().unwrap()
    }

    /// Runs each worker on a thread of its own. `run` asks the worker of this number; workers go on having turns until all have
    /// returned from it.
    pub fn run_on_threads(&mut self, run: impl Fn(usize, &mut Ask<'_>) + Sync) {
        let running = AtomicUsize::new(self.workers.len());
        std::thread::scope(|scope| {
            for (number, worker) in self.workers.iter_mut().enumerate() {
                let (running, run) = (&running, &run);
                scope.spawn(move || {
                    // One that fails does not keep the others waiting.
                    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        run(number, &mut |client, bytes, lines| worker.ask(client, bytes, lines));
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

    /// All workers have a turn.
    pub fn turn(&mut self) {
        self.workers.iter_mut().for_each(|worker| _ = worker.turn());
    }

    /// What is replied to `bytes`.
    pub fn ask(&mut self, client: Client, bytes: &[u8]) -> String {
        self.send(client, bytes);
        self.settle();
        String::from_utf8_lossy(&self.received(client)).into_owned()
    }
}

impl Worker {
    /// What is replied to `bytes`, as soon as that is so many lines.
    fn ask(&mut self, client: Client, bytes: &[u8], lines: usize) -> String {
        let end = self.net.end(client.0);
        end.input.push_back(bytes.to_vec());
        end.has_news = true;
        loop {
            self.turn();
            let output = &mut self.net.end(client.0).output;
            if output.iter().filter(|byte| **byte == b'\n').count() >= lines {
                return String::from_utf8_lossy(&std::mem::take(output)).into_owned();
            }
            std::thread::yield_now();
        }
    }

    /// One turn. Returns whether anything happened.
    fn turn(&mut self) -> bool {
        let Worker { kv, net, mail } = self;
        let mut worked = false;
        while let Some(letter) = mail.receive() {
            worked = true;
            let AppMsg::Message { to: None, message } = letter else { panic!("a letter that is not for the service") };
            kv.on_message(net, message);
        }
        net.now += Duration::from_micros(1);
        worked |= kv.poll(net) == Some(Duration::ZERO);
        let has_news = |end: &End| end.has_news && !end.is_aborted && !end.is_gone;
        let slots = (0..net.ends.len()).filter(|slot| has_news(&net.ends[*slot]));
        let readable: Vec<ConnId> = slots.map(|slot| net.conn(slot)).collect();
        net.ends.iter_mut().for_each(|end| end.has_news = false);
        if !readable.is_empty() {
            worked = true;
            // Of some workers' events of those that have been served are left out, others deliver them.
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
            if end.has_finished && !end.is_told && !end.is_lingering && end.input.is_empty() {
                end.is_told = true;
                worked = true;
                kv.peer_closed(net, conn, &mut ());
            }
        }
        worked
    }
}
