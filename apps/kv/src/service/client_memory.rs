//! Memory of clients and its limit (`maxmemory-clients`).
//!
//! Clients hold incomplete and waiting requests, queued commands, watched keys, replies, and the state of commands that
//! run in steps. Long values do not count: they are in the arena. Each worker adds up the memory of its clients and
//! publishes the sum once per turn. While the sum over all workers exceeds the limit, the workers whose clients have
//! more than an equal part of it disconnect the largest of them.

use crate::commands::ClientInfo;
use crate::service::Kv;
use crate::service::conn::{Client, PendingRequest, ProtocolState};
use linerate_service::{ConnId, Transport};
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory of the clients of each worker, as published.
pub(in crate::service) struct ClientMemoryBoard(Vec<WorkerSum>);

/// Sum of one worker, on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct WorkerSum(AtomicUsize);

impl ClientMemoryBoard {
    pub fn new(workers: usize) -> Self {
        ClientMemoryBoard((0..workers).map(|_| WorkerSum::default()).collect())
    }

    fn publish(&self, worker: usize, sum: usize) {
        self.0[worker].0.store(sum, Ordering::Relaxed);
    }

    /// Returns the memory that the clients of `worker` may have within the `limit` of all workers. 0 is no limit.
    fn allowance(&self, worker: usize, limit: usize) -> usize {
        if limit == 0 {
            return usize::MAX;
        }
        let others = self.0.iter().enumerate().filter(|(other, _)| *other != worker);
        let others: usize = others.map(|(_, sum)| sum.0.load(Ordering::Relaxed)).sum();
        limit.saturating_sub(others).max(limit / self.0.len())
    }
}

/// Memory of the clients of a worker.
#[derive(Debug)]
pub(in crate::service) struct ClientMemory {
    sum: usize,
    published: usize,
    allowance: usize,
}

impl Default for ClientMemory {
    fn default() -> Self {
        ClientMemory { sum: 0, published: 0, allowance: usize::MAX }
    }
}

impl ClientMemory {
    pub fn sum(&self) -> usize {
        self.sum
    }

    #[inline]
    pub fn update(&mut self, of: &mut usize, now: usize) {
        self.sum = self.sum - *of + now;
        *of = now;
    }
}

impl PendingRequest {
    /// Returns the memory of the request without long values.
    pub fn memory(&self) -> usize {
        match self {
            PendingRequest::Resp(args) => args.memory(),
            PendingRequest::Memcached(bytes, _) | PendingRequest::CommandError(bytes, _) => bytes.capacity(),
        }
    }
}

impl Client {
    /// Returns the memory of the client in bytes, beyond a few kilobytes that each client has.
    pub fn memory(&self) -> usize {
        // A little capacity remains while there is no input.
        let input = if self.input.is_empty() { 0 } else { self.input.capacity() };
        let session = match &self.protocol_state {
            ProtocolState::Resp { session, parser, .. } => session.memory() + parser.memory(),
            ProtocolState::Memcached { .. } => 0,
        };
        let stored = self.pending.iter().chain(&self.paused).map(PendingRequest::memory);
        let round = self.round.as_ref().map_or(0, |round| round.memory());
        let list = self.list.as_ref().map_or(0, |list| list.iter().map(ClientInfo::memory).sum());
        input + session + stored.sum::<usize>() + list + round + self.output.memory()
    }
}

impl Kv {
    /// Publishes the memory of this worker's clients if it has changed.
    pub(in crate::service) fn publish_client_memory(&mut self) {
        if self.client_memory.published != self.client_memory.sum {
            self.client_memory.published = self.client_memory.sum;
            self.server.hub().client_memory().publish(self.worker, self.client_memory.sum);
        }
    }

    /// Refreshes the memory that this worker's clients may have.
    pub(in crate::service) fn refresh_client_allowance(&mut self) {
        let limit = usize::try_from(self.settings().client_memory).unwrap_or(usize::MAX);
        self.client_memory.allowance = self.server.hub().client_memory().allowance(self.worker, limit);
    }

    /// Disconnects clients if their memory exceeds the limit. No request that has been parsed ahead may remain.
    #[inline]
    pub(in crate::service) fn limit_client_memory(&mut self, net: &mut impl Transport) {
        if self.client_memory.sum > self.client_memory.allowance {
            self.evict_clients(net);
        }
    }

    /// Disconnects the clients with the most memory until the others are within the limit.
    #[cold]
    fn evict_clients(&mut self, net: &mut impl Transport) {
        let clients = self.clients.iter().zip(&self.fast_states).enumerate();
        let clients = clients.filter_map(|(slot, (client, state))| client.as_ref().map(|_| (state.memory, slot)));
        let mut largest: BinaryHeap<(usize, usize)> = clients.filter(|(memory, _)| *memory > 0).collect();
        while self.client_memory.sum > self.client_memory.allowance
            && let Some((memory, slot)) = largest.pop()
            && let Some(conn) = self.clients[slot].as_ref().map(|client| client.conn)
        {
            self.server.warn_of_client_memory(net.peer_addr(conn), memory, self.now);
            self.server.tally.evicted += 1;
            self.remove_client(conn);
            net.abort(conn);
        }
    }

    /// Releases the state of the client of `conn`, if there is one.
    pub(in crate::service) fn remove_client(&mut self, conn: ConnId) {
        if self.client(conn).is_none() {
            return;
        }
        let Some(mut client) = self.clients[conn.slot()].take() else { return };
        self.client_memory.update(&mut self.fast_states[conn.slot()].memory, 0);
        self.fast_states[conn.slot()] = Default::default();
        self.release(&mut client);
        self.queued_output -= client.output.bytes();
        self.server.dismiss(client.is_admitted());
        if let Some(session) = (*client).into_session() {
            self.borrow_to_unwatch(session);
        }
    }
}
