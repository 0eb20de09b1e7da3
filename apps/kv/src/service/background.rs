//! Periodic work, a little in each turn of the worker.

use crate::memcached;
use crate::service::Kv;
use crate::service::workers::messages::Message;
use crate::store::Store;
use linerate_service::Transport;
use linerate_service::time::Duration;

/// Longest sleep of an idle worker, and so the longest delay of an expiry.
const REST: Duration = Duration::from_millis(10);
/// Longest sleep while clients are queued for long work.
const LONG_WORK_REST: Duration = Duration::from_millis(5);
/// Interval of periodic work.
const PERIOD: Duration = Duration::from_millis(1);
/// Clients checked for idleness per period.
const IDLE_CHECKS: usize = 256;

impl Kv {
    pub(super) fn work_in_background(&mut self, net: &mut impl Transport) -> Option<Duration> {
        let now = net.now();
        self.now = self.clock.millis(now);
        let is_full = self.server.outbox.flush();
        self.borrow(net);
        let is_due = now >= self.next_work;
        if is_due {
            self.next_work = now + PERIOD;
            self.server.tally.stats = self.stats;
            if self.server.refresh() {
                self.apply_settings();
            }
            self.follow_map();
            self.replies.set_limit(self.server.settings().output);
            self.refresh_client_allowance();
            self.disconnect_idle(net);
        }
        // `CLIENT PAUSE` remains in the queue of long work until this worker and all others obey it.
        if is_due || !self.long_work.is_empty() {
            self.refresh_pause(net);
        }
        if !self.server.killed.is_empty() {
            let mut ids = std::mem::take(&mut self.server.killed);
            ids.sort_unstable();
            for worker in self.server.outbox.others(self.stores.len()) {
                self.server.outbox.send(worker, Message::Kill(ids.clone()));
            }
            self.disconnect(net, &ids);
        }
        let has_more = is_due && self.shard_tick();
        if has_more {
            self.next_work = now;
        }
        self.serve_datagrams(net);
        self.do_long_work(net);
        self.send_batches();
        self.publish_client_memory();
        Some(match self.long_work.rest() {
            _ if is_full || has_more || self.has_batches() => Duration::ZERO,
            Some(rest) => rest.min(LONG_WORK_REST),
            None => REST,
        })
    }

    /// Does background work in this worker's shard. Returns true if more is due.
    pub(super) fn shard_tick(&mut self) -> bool {
        let now = self.now;
        let Some(store) = &mut self.stores[self.worker] else { return false };
        if self.server.flush.1.is_some_and(|at| at <= now) {
            self.server.flush.1 = None;
            store.flush(memcached::SPACE);
        }
        let has_more = store.tick(now, Store::TICK);
        store.publish_used();
        has_more
    }

    /// Applies the memory limit and the eviction policy to this worker's shard, if it is present.
    pub(super) fn apply_settings(&mut self) {
        let settings = self.server.settings();
        let memory = (settings.memory / self.stores.len() as u64) as usize;
        if let Some(store) = &mut self.stores[self.worker] {
            store.set_memory(memory);
            store.set_evict(settings.evict);
        }
    }

    /// Resets the counters of this worker on behalf of another worker.
    pub(super) fn reset_stats(&mut self) {
        self.server.tally.stats = self.stats;
        self.server.reset_own_tally();
    }

    /// Disconnects some of the clients that were idle for too long.
    fn disconnect_idle(&mut self, net: &mut impl Transport) {
        let timeout = u64::from(self.settings().timeout) * 1000;
        if timeout == 0 {
            return;
        }
        for _ in 0..IDLE_CHECKS.min(self.clients.len()) {
            self.idle_cursor = (self.idle_cursor + 1) % self.clients.len();
            if let Some(client) = &self.clients[self.idle_cursor]
                && client.pending_replies == 0
                && !client.is_held
                && !self.fast_states[self.idle_cursor].is_waiting()
                && self.now.saturating_sub(client.last_input.max(self.fast_states[self.idle_cursor].last_input()))
                    > timeout
            {
                net.abort(client.conn);
            }
        }
    }
}
