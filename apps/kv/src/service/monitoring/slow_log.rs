//! Slow requests: counted, logged (`SLOWLOG`), and reported in the server's log.
//!
//! The clock is read only for requests whose time depends on the size of the data, or which have many arguments
//! ([`Request::may_take_long`]).

use crate::commands::{Request, Session, SlowRequest};
use crate::memcached::{self, Data, Flow};
use crate::service::Kv;
use crate::service::lock;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Microseconds from which a request counts as slow.
const SLOW: u64 = 10_000;
/// Milliseconds between two entries in the server's log.
const WARNED: u64 = 60_000;

/// Slow requests of all workers. Each worker has its own list. The lists are merged when they are read.
#[derive(Default)]
pub(in crate::service) struct SlowLog {
    next: AtomicU64,
    workers: Vec<Mutex<VecDeque<SlowRequest>>>,
    warnings: Warnings,
}

/// Limit of the entries of one kind in the server's log. Holds the time of the last one, in milliseconds since 1970.
#[derive(Default)]
pub(in crate::service) struct Warnings(AtomicU64);

impl Warnings {
    /// Returns true and records the time if the server's log had no entry in the minute before `now`.
    pub fn may_warn(&self, now: u64) -> bool {
        let due = |last: u64| (now.saturating_sub(last) >= WARNED).then_some(now);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok()
    }
}

impl SlowLog {
    pub fn new(workers: usize) -> Self {
        SlowLog { workers: (0..workers).map(|_| Mutex::default()).collect(), ..SlowLog::default() }
    }

    /// Adds a request that `worker` ran. Each worker keeps its last `most` requests.
    fn add(&self, worker: usize, mut request: SlowRequest, most: usize) {
        let mut requests = lock(&self.workers[worker]);
        request.id = self.next.fetch_add(1, Ordering::Relaxed);
        requests.push_front(request);
        requests.truncate(most);
    }

    /// Returns the last `most` requests of all workers, the newest first.
    pub fn list(&self, most: usize) -> Vec<SlowRequest> {
        let mut requests: Vec<SlowRequest> = self.workers.iter().flat_map(|list| lock(list).clone()).collect();
        requests.sort_by_key(|request| std::cmp::Reverse(request.id));
        requests.truncate(most);
        requests
    }

    pub fn clear(&self) {
        self.workers.iter().for_each(|list| lock(list).clear());
    }
}

impl Kv {
    /// Runs `request`, whose shards are present, and measures it if it may take long.
    pub(in crate::service) fn run(&mut self, request: &Request<'_>, session: &mut Session) {
        if !request.may_take_long() {
            return self.run_untimed(request, session);
        }
        let before = self.stopwatch.now();
        self.run_untimed(request, session);
        let duration = self.stopwatch.now().since(before);
        self.long_work.add(duration);
        let micros = duration.as_micros() as u64;
        if micros >= SLOW || u64::try_from(self.settings().slow_micros).is_ok_and(|limit| micros >= limit) {
            self.note_slow(request, session, micros);
        }
    }

    /// Runs a memcached `request`, whose shards are present. It is counted if it is slow. The slow log is for Redis
    /// commands only.
    pub(in crate::service) fn run_text(&mut self, request: &memcached::Request<'_>, value: Data<'_>) -> Flow {
        self.long_work.parsed += 1;
        if !request.may_take_long() {
            return self.run_text_untimed(request, value);
        }
        let before = self.stopwatch.now();
        let flow = self.run_text_untimed(request, value);
        let duration = self.stopwatch.now().since(before);
        self.long_work.add(duration);
        let micros = duration.as_micros() as u64;
        if micros >= SLOW {
            self.count_slow("get", micros);
        }
        flow
    }

    /// Records a request that occupied the worker for `micros`.
    #[cold]
    pub(in crate::service) fn note_slow(&mut self, request: &Request<'_>, session: &Session, micros: u64) {
        let slow = request.slow(session, micros, self.now.saturating_add_signed(self.clock.wall_ahead()));
        let settings = self.settings();
        let is_logged = u64::try_from(settings.slow_micros).is_ok_and(|limit| micros >= limit);
        let most = usize::try_from(settings.slow_entries).unwrap_or(usize::MAX);
        if micros >= SLOW {
            self.count_slow(&slow.args[0].escape_ascii().to_string(), micros);
        }
        if is_logged {
            self.server.hub().slow_log().add(self.worker, slow, most);
        }
    }

    /// Counts a request that occupied the worker for `micros`, and reports one per minute.
    #[cold]
    pub(in crate::service) fn count_slow(&mut self, command: &str, micros: u64) {
        self.stats.slow += 1;
        if self.server.hub().slow_log().warnings.may_warn(self.now) {
            let (worker, millis) = (self.worker, micros / 1000);
            tracing::warn!(
                "a request ({command}) occupied worker {worker} for {millis} ms and delayed its other clients; SLOWLOG GET lists \
                 such requests"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::Settings;
    use crate::resp::OwnedArgs;
    use crate::service::{Config, Hub};
    use linerate_bypass::arena::{Arena, ArenaConfig};
    use linerate_service::mailbox::mailbox;
    use linerate_service::{AppSender, Service, WorkerCtx};

    fn request(micros: u64) -> SlowRequest {
        SlowRequest { id: 0, time: 0, micros, args: vec![b"keys".to_vec()], peer: String::new(), name: Vec::new() }
    }

    #[test]
    fn list_merges_workers_and_keeps_last_requests() {
        let log = SlowLog::new(3);
        for n in 0..10 {
            log.add(n as usize % 3, request(n), 4);
        }
        let micros = |most| log.list(most).iter().map(|request| request.micros).collect::<Vec<_>>();
        assert_eq!(micros(4), [9, 8, 7, 6]);
        assert_eq!(micros(2), [9, 8]);
        assert_eq!(log.list(1)[0].id, 9);
        log.clear();
        assert!(log.list(4).is_empty());
        log.add(1, request(1), 4);
        assert_eq!(log.list(4)[0].id, 10, "numbers go on");
        log.add(1, request(2), 0);
        assert!(log.list(4).is_empty());
    }

    #[test]
    fn request_of_10_ms_is_counted_and_logged() {
        let arena = Arena::new(ArenaConfig { bytes: 4 << 20, hugepages: false }).unwrap();
        let settings = Settings { memory: 8 << 20, ..Settings::default() };
        let (export, counters) = (None, None);
        let config = Config { settings, workers: 1, memcached: None, memcached_tls: None, arena, export, counters };
        let hub = Hub::new(config);
        let (sender, _mail) = mailbox(4);
        let mut kv =
            Kv::new(hub.clone(), WorkerCtx { worker: 0, workers: 1, app_sender: AppSender::new(vec![sender]) });
        let session = kv.remote_session.take().unwrap();
        let args: OwnedArgs = [&b"keys"[..], b"*"].into_iter().collect();
        let keys = kv.hasher.clone();
        let request = Request::new(args.args(), 0, &keys);
        assert!(request.may_take_long());
        for micros in [9_999, 10_000, 70_000] {
            kv.note_slow(&request, &session, micros);
        }
        assert_eq!(kv.metrics().slow_requests, Some(2));
        assert_eq!(hub.slow_log().list(9).iter().map(|slow| slow.micros).collect::<Vec<_>>(), [70_000, 10_000]);
        let get: OwnedArgs = [&b"get"[..], b"k"].into_iter().collect();
        assert!(!Request::new(get.args(), 0, &keys).may_take_long());
    }

    #[test]
    fn warnings_are_a_minute_apart() {
        let warnings = Warnings::default();
        let now = 1_700_000_000_000;
        assert_eq!(
            [0, 1, 59_999, 60_000, 60_001].map(|more| warnings.may_warn(now + more)),
            [true, false, false, true, false]
        );
    }
}
