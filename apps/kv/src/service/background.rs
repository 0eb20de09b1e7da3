//! What is done in the background, a little in each turn of the worker.

use crate::memcached;
use crate::service::Kv;
use crate::service::workers::hub::wall_millis;
use crate::service::workers::messages::Message;
use crate::store::Store;
use linerate_bypass::Transport;
use linerate_bypass::time::{Duration, Instant};

/// How long the worker may rest when nothing is to be done: what expires is noticed so much later at most.
const REST: Duration = Duration::from_millis(10);
/// How often what does not concern the shard is looked at.
const PERIOD: Duration = Duration::from_millis(1);
/// Clients of which it is looked at then whether they are idle.
const SWEPT: usize = 256;
/// How often the system is asked for the time.
const SET: Duration = Duration::from_secs(1);

/// Tells the time in milliseconds since 1970, without asking the system for it each time.
pub(super) struct Clock {
    /// What the transport's time is behind that, and when that was found.
    ahead: u64,
    set_at: Option<Instant>,
    next: Instant,
    started: u64,
}

impl Clock {
    pub fn new() -> Self {
        Clock { ahead: 0, set_at: None, next: Instant::ZERO, started: wall_millis() }
    }

    pub fn started(&self) -> u64 {
        self.started
    }

    #[inline]
    pub fn millis(&mut self, now: Instant) -> u64 {
        if self.set_at.is_none_or(|at| now.since(at) >= SET) {
            self.set(now);
        }
        self.ahead + millis_of(now)
    }

    #[cold]
    fn set(&mut self, now: Instant) {
        self.set_at = Some(now);
        // It never goes back.
        self.ahead = self.ahead.max(wall_millis().saturating_sub(millis_of(now)));
    }
}

fn millis_of(time: Instant) -> u64 {
    time.as_nanos() / 1_000_000
}

impl Kv {
    pub(super) fn work_in_background(&mut self, net: &mut impl Transport) -> Option<Duration> {
        let now = net.now();
        self.now = self.clock.millis(now);
        let is_full = self.host.outbox.go_on();
        self.borrow(net);
        let is_due = now >= self.clock.next;
        if is_due {
            self.clock.next = now + PERIOD;
            self.host.tally.stats = self.stats;
            self.host.tally.counts = self.counts;
            if self.host.refresh() {
                self.apply_settings();
            }
            self.replies.set_most(self.host.settings().output);
            self.disconnect_idle(net);
        }
        for id in std::mem::take(&mut self.host.killed) {
            self.disconnect(net, id);
            for worker in self.host.outbox.others(self.stores.len()) {
                self.host.outbox.send(worker, Message::Kill(id));
            }
        }
        let has_more = is_due && self.tend_shard();
        if has_more {
            self.clock.next = now;
        }
        self.serve_datagrams(net);
        for conn in std::mem::take(&mut self.unfinished) {
            self.with_client(net, conn, |kv, net, client| kv.take_turn(net, client));
        }
        self.send_errands();
        Some(if is_full || has_more || !self.unfinished.is_empty() { Duration::ZERO } else { REST })
    }

    /// A piece of what is done in the background in our shard. Returns whether there is more.
    pub(super) fn tend_shard(&mut self) -> bool {
        let now = self.now;
        let Some(store) = &mut self.stores[self.worker] else { return false };
        if self.host.flush.1.is_some_and(|at| at <= now) {
            self.host.flush.1 = None;
            store.flush(memcached::SPACE);
        }
        let has_more = store.tick(now, Store::TICK);
        store.publish_used();
        has_more
    }

    /// Applies the memory limit and the eviction policy to our shard, if it is here.
    pub(super) fn apply_settings(&mut self) {
        let settings = self.host.settings();
        let memory = (settings.memory / self.stores.len() as u64) as usize;
        if let Some(store) = &mut self.stores[self.worker] {
            store.set_memory(memory);
            store.set_evict(settings.evict);
        }
    }

    /// Lets the figures of this worker count from 0, as another worker has been told to.
    pub(super) fn reset_stats(&mut self) {
        self.host.tally.stats = self.stats;
        self.host.tally.counts = self.counts;
        self.host.reset_own_tally();
    }

    /// Disconnects some of those who have been silent for too long.
    fn disconnect_idle(&mut self, net: &mut impl Transport) {
        let timeout = u64::from(self.settings().timeout) * 1000;
        if timeout == 0 {
            return;
        }
        for _ in 0..SWEPT.min(self.clients.len()) {
            self.swept = (self.swept + 1) % self.clients.len();
            if let Some(client) = &self.clients[self.swept]
                && client.awaits == 0
                && self.now.saturating_sub(client.heard.max(self.lanes[self.swept].heard())) > timeout
            {
                net.abort(client.conn);
            }
        }
    }
}
