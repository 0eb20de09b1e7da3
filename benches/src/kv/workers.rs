//! Workers of the key-value service beside each other, each with clients of its own on a transport that is nothing but memory:
//! what it costs that a key belongs to another worker than the client.

use super::memory::{CONNECTIONS, End, Memory, get, hub, mget, set};
use super::turns::server_turn;
use crate::client::Wrong;
use crate::engine::Bench;
use crate::transfer::pin;
use linerate_bypass::mailbox::{Receiver, mailbox};
use linerate_bypass::{AppMsg, AppSender, ConnId, Service, WorkerCtx};
use linerate_kv::service::{Kv, Message};
use rustix::thread::{CpuSet, sched_getaffinity};
use serde::Serialize;
use std::cell::RefCell;
use std::hint::spin_loop;
use std::io;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Messages that wait for a worker at most, as with the stack's workers.
const MESSAGES: usize = 4096;
/// How long a worker waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Turns without work after which it looks at the time again.
const IDLE_TURNS: u32 = 4096;

/// The cores that this process may use.
pub fn cores() -> io::Result<Vec<usize>> {
    let usable = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| usable.is_set(*core)).collect())
}

/// Whose keys a worker's clients ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Whose {
    /// All keys, each as likely as the others.
    Any,
    /// The worker's own.
    Own,
    /// Those of the next worker.
    Others,
}

/// How clients ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asking {
    /// Keys that a client asks for before it waits for the answer.
    pub at_once: usize,
    /// By one MGET, not by so many GETs.
    pub by_mget: bool,
    /// Out of which keys.
    pub whose: Whose,
}

/// The workers of a service whose keys are all set.
pub struct Workers {
    workers: Vec<Worker>,
    keys: u64,
    value: usize,
    /// The keys of each.
    owned: Vec<Vec<u64>>,
}

/// A worker, and its clients.
struct Worker {
    core: usize,
    kv: Kv,
    mail: Receiver<AppMsg<Message>>,
    net: Memory,
    conns: Vec<ConnId>,
    /// Those that have requests in this turn.
    readable: Vec<ConnId>,
    random: fastrand::Rng,
}

impl Workers {
    /// Workers on `cores`, with `keys` keys.
    ///
    /// # Panics
    /// If the system does not give the memory.
    pub fn new(cores: &[usize], keys: u64, value: usize) -> Result<Self, Wrong> {
        let workers = cores.len();
        let hub = hub(workers, keys, value, 0);
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

    /// Sets a key, and returns whose it is: who answers without having asked another.
    fn set_by_owner(&mut self, key: u64, value: &str) -> Result<usize, Wrong> {
        for asked in 0..self.workers.len() {
            let Worker { net, conns, readable, .. } = &mut self.workers[asked];
            net.ends[0].clear();
            let due = net.ends[0].answered + net.ends[0].send(|requests| set(requests, key, value));
            readable.push(conns[0]);
            self.workers[asked].turn();
            if self.workers[asked].net.ends[0].answered == due {
                return Ok(asked);
            }
            // There and back.
            (0..2).for_each(|_| self.workers.iter_mut().for_each(|worker| _ = worker.turn()));
            if self.workers[asked].net.ends[0].answered != due {
                return Err(Wrong::Missing(1));
            }
        }
        Err(Wrong::Missing(1))
    }

    /// Each worker's clients ask for `keys` keys together, or as many as there must be for whole turns. Returns how long that took.
    pub fn ask(&mut self, asking: Asking, keys: usize) -> Result<Duration, Wrong> {
        let times = keys.div_ceil(CONNECTIONS * asking.at_once).max(1);
        let Workers { workers, keys, value, owned } = self;
        run(workers, PATIENCE, times, |number, random, requests| match asking.whose {
            Whose::Any => append(asking, requests, *value, || random.u64(..*keys)),
            Whose::Own | Whose::Others => {
                let whose = (number + usize::from(asking.whose == Whose::Others)) % owned.len();
                append(asking, requests, *value, || owned[whose][random.usize(..owned[whose].len())])
            }
        })
    }
}

/// The clients of each of `workers` ask for what `append` appends for the worker of that number, so many times on each connection.
/// All of these are of one length, and so are the answers, whose length it returns. Returns how long the slowest worker took.
fn run(
    workers: &mut [Worker],
    patience: Duration,
    times: usize,
    append: impl Fn(usize, &mut fastrand::Rng, &mut Vec<u8>) -> u64 + Sync,
) -> Result<Duration, Wrong> {
    let count = workers.len();
    let round = Round { begins: Barrier::new(count), done: AtomicUsize::new(0), count, patience };
    let (round, append) = (&round, &append);
    let took: Vec<_> = thread::scope(|scope| {
        let begin = |(number, worker): (usize, &'_ mut Worker)| {
            worker.run(round, times, |random, requests| append(number, random, requests))
        };
        let threads: Vec<_> = workers.iter_mut().enumerate().map(|each| scope.spawn(move || begin(each))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect()
    });
    took.into_iter().try_fold(Duration::ZERO, |longest, took| Ok(longest.max(took?)))
}

/// Appends what `asking` asks for at once. Returns how many bytes the answer has.
fn append(asking: Asking, requests: &mut Vec<u8>, value: usize, mut key: impl FnMut() -> u64) -> u64 {
    let keys = (0..asking.at_once).map(|_| key());
    if asking.by_mget { mget(requests, keys, value) } else { keys.map(|key| get(requests, key, value)).sum() }
}

/// What the workers of one measurement have in common.
struct Round {
    /// When all have put together what their clients will send.
    begins: Barrier,
    /// How many have answered all of their own clients, or given up.
    done: AtomicUsize,
    /// Of so many.
    count: usize,
    patience: Duration,
}

/// What a worker's clients have asked for.
struct Clients {
    /// Bytes of what is asked at once, and of its answer.
    asked: usize,
    answer: u64,
    /// Bytes that each should have been answered by now.
    due: [u64; CONNECTIONS],
    /// The slots of those that wait for answers, a bit for each.
    waiting: u32,
}

impl Clients {
    /// The client at `slot`, which has all answers, asks for what is next. Returns whether there is anything.
    fn go_on(&mut self, slot: usize, end: &mut End) -> bool {
        if end.come == end.requests.len() {
            self.waiting &= !(1 << slot);
            return false;
        }
        end.come += self.asked;
        self.due[slot] += self.answer;
        self.waiting |= 1 << slot;
        true
    }
}

impl Worker {
    /// Answers this worker's clients, in closed loop, and others until these are answered, too. Returns how long the former took.
    fn run(
        &mut self,
        round: &Round,
        times: usize,
        append: impl Fn(&mut fastrand::Rng, &mut Vec<u8>) -> u64,
    ) -> Result<Duration, Wrong> {
        if let Err(error) = pin(self.core) {
            eprintln!("a worker is not pinned to core {}: {error}", self.core);
        }
        let mut clients = Clients { asked: 0, answer: 0, due: [0; CONNECTIONS], waiting: 0 };
        for end in &mut self.net.ends {
            end.clear();
            end.answered = 0;
            (0..times).for_each(|_| clients.answer = append(&mut self.random, &mut end.requests));
            clients.asked = end.requests.len() / times;
        }
        round.begins.wait();
        let begun = Instant::now();
        for (slot, end) in self.net.ends.iter_mut().enumerate() {
            clients.go_on(slot, end);
        }
        self.readable.extend(&self.conns);
        let (mut took, mut idle_turns, mut idle_since) = (None, 0, begun);
        while round.done.load(Ordering::Acquire) < round.count {
            let has_worked = self.turn();
            self.hear(&mut clients);
            if clients.waiting == 0 && took.is_none() {
                took = Some(begun.elapsed());
                round.done.fetch_add(1, Ordering::Release);
            }
            if has_worked {
                idle_turns = 0;
                continue;
            }
            spin_loop();
            idle_turns += 1;
            if idle_turns == IDLE_TURNS {
                idle_since = Instant::now();
            } else if idle_turns % IDLE_TURNS == 0 && idle_since.elapsed() > round.patience {
                break;
            }
        }
        let Some(took) = took else {
            round.done.fetch_add(1, Ordering::Release);
            return Err(Wrong::Missing(clients.waiting.count_ones() as usize));
        };
        let wrong = self.net.ends.iter().zip(clients.due).map(|(end, due)| end.answered.abs_diff(due)).sum();
        if wrong == 0 { Ok(took) } else { Err(Wrong::Answers(wrong)) }
    }

    /// Clients whose requests have all been answered ask for what is next.
    fn hear(&mut self, clients: &mut Clients) {
        let mut news = std::mem::take(&mut self.net.news);
        while news > 0 {
            let slot = news.trailing_zeros() as usize;
            news &= news - 1;
            let end = &mut self.net.ends[slot];
            if end.answered >= clients.due[slot] && clients.go_on(slot, end) {
                self.readable.push(self.conns[slot]);
            }
        }
    }

    /// A turn, as the stack's workers have them. Returns whether there was anything to do.
    fn turn(&mut self) -> bool {
        let Worker { kv, mail, net, readable, .. } = self;
        let mut has_worked = !readable.is_empty();
        while let Some(letter) = mail.receive() {
            if let AppMsg::Message { message, .. } = letter {
                kv.on_message(net, message);
            }
            has_worked = true;
        }
        kv.poll(net);
        server_turn(kv, net, readable);
        readable.clear();
        has_worked
    }
}

/// One way to ask, of workers that are measured in several ways.
pub struct Measured<'a> {
    /// These.
    pub workers: &'a RefCell<Workers>,
    /// That way.
    pub asking: Asking,
}

impl Bench for Measured<'_> {
    /// For so many keys of each worker's clients.
    fn run(&mut self, operations: usize) -> Result<Duration, Wrong> {
        self.workers.borrow_mut().ask(self.asking, operations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::answer_to_get;

    /// Workers that have to share a core go on more slowly, and in the same way.
    fn workers(count: usize) -> Workers {
        let cores: Vec<usize> = cores().unwrap().into_iter().cycle().take(count).collect();
        Workers::new(&cores, 100, 64).unwrap()
    }

    fn letters(workers: &Workers) -> u64 {
        workers.workers.iter().map(|worker| worker.mail.sent()).sum()
    }

    #[test]
    fn all_is_answered_by_one_worker_and_by_two() {
        for count in [1, 2] {
            let mut workers = workers(count);
            let owned: Vec<usize> = workers.owned.iter().map(Vec::len).collect();
            assert!(owned.iter().sum::<usize>() == 100 && owned.iter().all(|keys| *keys > 20), "{owned:?}");
            for (at_once, by_mget) in [(1, false), (8, false), (8, true)] {
                for whose in [Whose::Any, Whose::Own, Whose::Others] {
                    let asking = Asking { at_once, by_mget, whose };
                    let before: Vec<u64> = workers.workers.iter().map(|worker| worker.net.written).collect();
                    let sent = letters(&workers);
                    workers.ask(asking, 3 * CONNECTIONS * at_once).unwrap();
                    // For another's keys there and back, for all connections together or for as many as have some in a turn.
                    let turns = (2 * count * 3) as u64;
                    let there_and_back = turns..=turns * CONNECTIONS as u64;
                    match (count, whose) {
                        (1, _) | (_, Whose::Own) => assert_eq!(letters(&workers) - sent, 0, "{asking:?}"),
                        (_, Whose::Others) => {
                            assert!(there_and_back.contains(&(letters(&workers) - sent)), "{asking:?}")
                        }
                        (_, Whose::Any) => assert!(letters(&workers) > sent, "{asking:?}"),
                    }
                    for (worker, before) in workers.workers.iter().zip(before) {
                        let around = if by_mget { 3 * CONNECTIONS * "*8\r\n".len() } else { 0 };
                        let answers = 3 * CONNECTIONS * at_once * answer_to_get(64) as usize;
                        assert_eq!(worker.net.written - before, (answers + around) as u64, "{count} {asking:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn answers_that_are_too_long_are_told() {
        let asking = Asking { at_once: 2, by_mget: false, whose: Whose::Any };
        let run = run(&mut workers(2).workers, PATIENCE, 3, |_, _, requests| append(asking, requests, 64, || 1) - 1);
        assert!(matches!(run, Err(Wrong::Answers(96))), "{run:?}");
    }

    #[test]
    fn an_answer_that_is_missing_is_told_and_everybody_ends() {
        let asking = Asking { at_once: 2, by_mget: false, whose: Whose::Any };
        let run = run(&mut workers(2).workers, Duration::from_millis(500), 3, |number, _, requests| {
            append(asking, requests, 64, || 1) + number as u64
        });
        assert!(matches!(run, Err(Wrong::Missing(32))), "{run:?}");
    }

    #[test]
    fn keys_are_known_by_their_owners() {
        let mut workers = workers(2);
        for (number, owned) in workers.owned.clone().into_iter().enumerate() {
            for key in owned {
                assert_eq!(workers.set_by_owner(key, "x").unwrap(), number);
            }
        }
    }
}
