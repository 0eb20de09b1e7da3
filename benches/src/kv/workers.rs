//! Parallel workers of the key-value service, each with its own clients on an in-memory transport: the cost of a key
//! that belongs to another worker than the client.

use super::memory::{CONNECTIONS, End, Memory, get, hub, mget, set};
use super::service::server_turn;
use crate::client::BenchError;
use crate::engine::Bench;
use crate::transfer::pin;
use linerate_kv::service::{Kv, Message};
use linerate_service::mailbox::{Receiver, mailbox};
use linerate_service::{AppMsg, AppSender, ConnId, Service, WorkerCtx};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::cell::RefCell;
use std::hint::spin_loop;
use std::io;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Capacity of a worker's mailbox, as in the stack.
const MESSAGES: usize = 4096;
/// Maximum time that a worker waits for a reply.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Idle turns between checks of that time.
const IDLE_TURNS: u32 = 4096;

/// Returns the cores that this process may use.
pub fn cores() -> io::Result<Vec<usize>> {
    let usable = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| usable.is_set(*core)).collect())
}

/// Owner of the keys that a worker's clients request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOwner {
    /// All keys, uniformly distributed.
    Any,
    /// The client's worker.
    Own,
    /// The next worker.
    Others,
    /// The client's worker, which the client finds by the slot of the key in a cluster.
    Slots,
}

/// Access pattern of the clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessPattern {
    /// Keys per batch of a client.
    pub at_once: usize,
    /// True if a batch is one MGET instead of GETs.
    pub by_mget: bool,
    /// Owner of the keys.
    pub owner: KeyOwner,
}

/// Workers of a service with all keys set.
pub struct Workers {
    workers: Vec<Worker>,
    keys: u64,
    value: usize,
    /// Keys of each worker.
    owned: Vec<Vec<u64>>,
}

/// Worker, and its clients.
struct Worker {
    core: usize,
    kv: Kv,
    mail: Receiver<AppMsg<Message>>,
    net: Memory,
    conns: Vec<ConnId>,
    /// Connections with requests in this turn.
    readable: Vec<ConnId>,
    random: fastrand::Rng,
}

impl Workers {
    /// Creates workers on `cores` for a service with `keys` keys, as nodes of a cluster if `is_cluster`.
    ///
    /// # Panics
    /// If memory is unavailable.
    pub fn new(cores: &[usize], keys: u64, value: usize, is_cluster: bool) -> Result<Self, BenchError> {
        let workers = cores.len();
        let hub = hub(workers, keys, value, is_cluster);
        let (senders, mails): (Vec<_>, Vec<_>) = (0..workers).map(|_| mailbox(MESSAGES)).unzip();
        let app_sender = AppSender::new(senders);
        let ends = cores.iter().zip(mails).enumerate();
        let worker = |(worker, (core, mail)): (usize, (&usize, _))| {
            let mut kv = Kv::new(hub.clone(), WorkerCtx { worker, workers, app_sender: app_sender.clone() });
            let (net, conns) = Memory::with_clients(&mut kv, worker);
            let random = fastrand::Rng::with_seed(worker as u64 + 1);
            Worker { core: *core, kv, mail, net, conns, readable: Vec::new(), random }
        };
        let workers = ends.map(worker).collect();
        let mut all = Workers { workers, keys, value, owned: vec![Vec::new(); cores.len()] };
        let value = "x".repeat(value);
        for key in 0..keys {
            let owner = all.set_by_owner(key, &value)?;
            all.owned[owner].push(key);
        }
        Ok(all)
    }

    /// Sets a key and returns its owner: the worker that replies without a request to another.
    fn set_by_owner(&mut self, key: u64, value: &str) -> Result<usize, BenchError> {
        for owner in 0..self.workers.len() {
            let Worker { net, conns, readable, .. } = &mut self.workers[owner];
            net.ends[0].clear();
            let due = net.ends[0].answered + net.ends[0].send(|requests| set(requests, key, value));
            readable.push(conns[0]);
            self.workers[owner].turn();
            if self.workers[owner].net.ends[0].answered == due {
                return Ok(owner);
            }
            // Request and reply.
            (0..2).for_each(|_| self.workers.iter_mut().for_each(|worker| _ = worker.turn()));
            if self.workers[owner].net.ends[0].answered != due {
                return Err(BenchError::Missing(1));
            }
        }
        Err(BenchError::Missing(1))
    }

    /// Has each worker's clients request `keys` keys, rounded up to whole turns. Returns the duration.
    pub fn request_keys(&mut self, pattern: AccessPattern, keys: usize) -> Result<Duration, BenchError> {
        let times = keys.div_ceil(CONNECTIONS * pattern.at_once).max(1);
        let Workers { workers, keys, value, owned } = self;
        run(workers, TIMEOUT, times, |number, random, requests| match pattern.owner {
            KeyOwner::Any => append(pattern, requests, *value, || random.u64(..*keys)),
            KeyOwner::Own | KeyOwner::Others | KeyOwner::Slots => {
                let owner = (number + usize::from(pattern.owner == KeyOwner::Others)) % owned.len();
                append(pattern, requests, *value, || owned[owner][random.usize(..owned[owner].len())])
            }
        })
    }
}

/// Has the clients of each worker send the output of `append` a number of times on each connection. All requests have
/// one length, and all replies have the length that `append` returns. Returns the duration of the slowest worker.
fn run(
    workers: &mut [Worker],
    timeout: Duration,
    times: usize,
    append: impl Fn(usize, &mut fastrand::Rng, &mut Vec<u8>) -> u64 + Sync,
) -> Result<Duration, BenchError> {
    let count = workers.len();
    let progress = Progress { begins: Barrier::new(count), done: AtomicUsize::new(0), count, timeout };
    let (progress, append) = (&progress, &append);
    let took: Vec<_> = thread::scope(|scope| {
        let begin = |(number, worker): (usize, &'_ mut Worker)| {
            worker.run(progress, times, |random, requests| append(number, random, requests))
        };
        let threads: Vec<_> = workers.iter_mut().enumerate().map(|each| scope.spawn(move || begin(each))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect()
    });
    took.into_iter().try_fold(Duration::ZERO, |longest, took| Ok(longest.max(took?)))
}

/// Appends one batch of `pattern` and returns the length of its reply.
fn append(pattern: AccessPattern, requests: &mut Vec<u8>, value: usize, mut key: impl FnMut() -> u64) -> u64 {
    let keys = (0..pattern.at_once).map(|_| key());
    if pattern.by_mget { mget(requests, keys, value) } else { keys.map(|key| get(requests, key, value)).sum() }
}

/// State shared by the workers of one measurement.
struct Progress {
    /// Barrier after the requests have been prepared.
    begins: Barrier,
    /// Number of workers that have answered all of their clients, or failed.
    done: AtomicUsize,
    /// Number of workers.
    count: usize,
    timeout: Duration,
}

/// Progress of a worker's clients.
struct Clients {
    /// Length of a batch and of its reply in bytes.
    batch: usize,
    answer: u64,
    /// Expected reply bytes per connection.
    due: [u64; CONNECTIONS],
    /// Bit mask of the slots that wait for replies.
    waiting: u32,
}

impl Clients {
    /// Sends the next batch of the client at `slot`, which has all replies. Returns false if there is none.
    fn advance(&mut self, slot: usize, end: &mut End) -> bool {
        if end.arrived == end.requests.len() {
            self.waiting &= !(1 << slot);
            return false;
        }
        end.arrived += self.batch;
        self.due[slot] += self.answer;
        self.waiting |= 1 << slot;
        true
    }
}

impl Worker {
    /// Answers this worker's clients in a closed loop, and other workers until theirs are done. Returns the duration of
    /// the former.
    fn run(
        &mut self,
        progress: &Progress,
        times: usize,
        append: impl Fn(&mut fastrand::Rng, &mut Vec<u8>) -> u64,
    ) -> Result<Duration, BenchError> {
        if let Err(error) = pin(self.core) {
            eprintln!("a worker is not pinned to core {}: {error}", self.core);
        }
        let mut clients = Clients { batch: 0, answer: 0, due: [0; CONNECTIONS], waiting: 0 };
        for end in &mut self.net.ends {
            end.clear();
            end.answered = 0;
            (0..times).for_each(|_| clients.answer = append(&mut self.random, &mut end.requests));
            clients.batch = end.requests.len() / times;
        }
        progress.begins.wait();
        let begun = Instant::now();
        for (slot, end) in self.net.ends.iter_mut().enumerate() {
            clients.advance(slot, end);
        }
        self.readable.extend(&self.conns);
        let (mut took, mut idle_turns, mut idle_since) = (None, 0, begun);
        while progress.done.load(Ordering::Acquire) < progress.count {
            let has_worked = self.turn();
            self.send_next(&mut clients);
            if clients.waiting == 0 && took.is_none() {
                took = Some(begun.elapsed());
                progress.done.fetch_add(1, Ordering::Release);
            }
            if has_worked {
                idle_turns = 0;
                continue;
            }
            spin_loop();
            idle_turns += 1;
            if idle_turns == IDLE_TURNS {
                idle_since = Instant::now();
            } else if idle_turns % IDLE_TURNS == 0 && idle_since.elapsed() > progress.timeout {
                break;
            }
        }
        let Some(took) = took else {
            progress.done.fetch_add(1, Ordering::Release);
            return Err(BenchError::Missing(clients.waiting.count_ones() as usize));
        };
        let wrong = self.net.ends.iter().zip(clients.due).map(|(end, due)| end.answered.abs_diff(due)).sum();
        if wrong == 0 { Ok(took) } else { Err(BenchError::Answers(wrong)) }
    }

    /// Sends the next batch of each client whose replies are complete.
    fn send_next(&mut self, clients: &mut Clients) {
        let mut replied = std::mem::take(&mut self.net.replied);
        while replied > 0 {
            let slot = replied.trailing_zeros() as usize;
            replied &= replied - 1;
            let end = &mut self.net.ends[slot];
            if end.answered >= clients.due[slot] && clients.advance(slot, end) {
                self.readable.push(self.conns[slot]);
            }
        }
    }

    /// Runs one turn, as the stack's workers do. Returns true if there was any work.
    fn turn(&mut self) -> bool {
        let Worker { kv, mail, net, readable, .. } = self;
        let mut has_worked = !readable.is_empty();
        while let Some(letter) = mail.receive() {
            if let AppMsg::Message { message, .. } = letter {
                kv.message(net, message);
            }
            has_worked = true;
        }
        kv.turn(net);
        server_turn(kv, net, readable);
        readable.clear();
        has_worked
    }
}

/// One access pattern as a bench.
pub struct Measured<'a> {
    pub workers: &'a RefCell<Workers>,
    /// Access pattern.
    pub pattern: AccessPattern,
}

impl Bench for Measured<'_> {
    /// Requests `operations` keys per worker.
    fn run(&mut self, operations: usize) -> Result<Duration, BenchError> {
        self.workers.borrow_mut().request_keys(self.pattern, operations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::memory::answer_to_get;

    /// Creates workers; those that share a core are slower but behave the same.
    fn workers(count: usize, is_cluster: bool) -> Workers {
        let cores: Vec<usize> = cores().unwrap().into_iter().cycle().take(count).collect();
        Workers::new(&cores, 100, 64, is_cluster).unwrap()
    }

    fn messages_sent(workers: &Workers) -> u64 {
        workers.workers.iter().map(|worker| worker.mail.sent()).sum()
    }

    #[test]
    fn requests_are_answered_by_one_and_two_workers() {
        for count in [1, 2] {
            let mut workers = workers(count, false);
            let owned: Vec<usize> = workers.owned.iter().map(Vec::len).collect();
            assert!(owned.iter().sum::<usize>() == 100 && owned.iter().all(|keys| *keys > 20), "{owned:?}");
            for (at_once, by_mget) in [(1, false), (8, false), (8, true)] {
                for owner in [KeyOwner::Any, KeyOwner::Own, KeyOwner::Others] {
                    let pattern = AccessPattern { at_once, by_mget, owner };
                    let before: Vec<u64> = workers.workers.iter().map(|worker| worker.net.written).collect();
                    let sent = messages_sent(&workers);
                    workers.request_keys(pattern, 3 * CONNECTIONS * at_once).unwrap();
                    // A request and reply per remote key, either for all connections together or for those with keys in
                    // a turn.
                    let turns = (2 * count * 3) as u64;
                    let there_and_back = turns..=turns * CONNECTIONS as u64;
                    match (count, owner) {
                        (1, _) | (_, KeyOwner::Own | KeyOwner::Slots) => {
                            assert_eq!(messages_sent(&workers) - sent, 0, "{pattern:?}")
                        }
                        (_, KeyOwner::Others) => {
                            assert!(there_and_back.contains(&(messages_sent(&workers) - sent)), "{pattern:?}")
                        }
                        (_, KeyOwner::Any) => assert!(messages_sent(&workers) > sent, "{pattern:?}"),
                    }
                    for (worker, before) in workers.workers.iter().zip(before) {
                        let around = if by_mget { 3 * CONNECTIONS * "*8\r\n".len() } else { 0 };
                        let answers = 3 * CONNECTIONS * at_once * answer_to_get(64) as usize;
                        assert_eq!(worker.net.written - before, (answers + around) as u64, "{count} {pattern:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn replies_that_are_too_long_are_reported() {
        let pattern = AccessPattern { at_once: 2, by_mget: false, owner: KeyOwner::Any };
        let run =
            run(&mut workers(2, false).workers, TIMEOUT, 3, |_, _, requests| append(pattern, requests, 64, || 1) - 1);
        assert!(matches!(run, Err(BenchError::Answers(96))), "{run:?}");
    }

    #[test]
    fn missing_reply_is_reported_and_ends_all_workers() {
        let pattern = AccessPattern { at_once: 2, by_mget: false, owner: KeyOwner::Any };
        let run = run(&mut workers(2, false).workers, Duration::from_millis(500), 3, |number, _, requests| {
            append(pattern, requests, 64, || 1) + number as u64
        });
        assert!(matches!(run, Err(BenchError::Missing(32))), "{run:?}");
    }

    #[test]
    fn clients_that_know_slots_cause_no_messages() {
        let mut workers = workers(2, true);
        let sent = messages_sent(&workers);
        let pattern = AccessPattern { at_once: 8, by_mget: false, owner: KeyOwner::Slots };
        workers.request_keys(pattern, 1000).unwrap();
        assert_eq!(messages_sent(&workers), sent);
    }

    #[test]
    fn owners_of_keys_are_known() {
        let mut workers = workers(2, false);
        for (number, owned) in workers.owned.clone().into_iter().enumerate() {
            for key in owned {
                assert_eq!(workers.set_by_owner(key, "x").unwrap(), number);
            }
        }
    }
}
