//! Lending and borrowing of shards between workers.
//!
//! A request that needs several shards borrows them in index order, and its worker does not lend its own shard once
//! that shard's turn has come. Borrowing in index order prevents deadlock. A worker borrows for one request at a time.

use crate::commands::Session;
use crate::service::Kv;
use crate::service::conn::PendingDatagram;
use crate::service::workers::messages::Message;
use crate::service::workers::remote_batch::RemoteBatch;
use crate::shards::{ShardSet, Shards};
use crate::store::Store;
use linerate_service::{ConnId, Transport};
use std::collections::VecDeque;

/// Work that needs shards.
pub(in crate::service) enum Job {
    Request(ConnId),
    Datagram(Box<PendingDatagram>),
    /// End of the watches of a closed connection.
    Unwatch(Box<Session>),
}

/// Work and the shards it needs.
struct BorrowRequest {
    shards: ShardSet,
    job: Job,
    /// This worker's shard is needed and must not be lent.
    keeps_own: bool,
    requested: Option<usize>,
}

/// Queues of lending and borrowing.
#[derive(Default)]
pub(in crate::service) struct ShardBorrow {
    /// Workers that wait for this worker's shard.
    borrowers: VecDeque<usize>,
    /// Work of this worker that waits for shards. The shards of the first one are being borrowed.
    requests: VecDeque<BorrowRequest>,
    /// Batches that wait for the return of this worker's shard.
    pub batches: VecDeque<Box<RemoteBatch>>,
}

impl ShardBorrow {
    pub fn queue(&mut self, shards: ShardSet, job: Job) {
        self.requests.push_back(BorrowRequest { shards, job, keeps_own: false, requested: None });
    }
}

impl Kv {
    /// Queues the end of the watches of a closed connection.
    pub(in crate::service) fn borrow_to_unwatch(&mut self, session: Box<Session>) {
        let shards = session.watched_shards(&self.placement);
        if !shards.is_empty() {
            self.shard_borrow.queue(shards, Job::Unwatch(session));
        }
    }

    /// Queues `borrower` for this worker's shard.
    pub(in crate::service) fn lend(&mut self, borrower: usize) {
        self.shard_borrow.borrowers.push_back(borrower);
        self.lend_to_next();
    }

    fn lend_to_next(&mut self) {
        let keeps = self.shard_borrow.requests.front().is_some_and(|need| need.keeps_own);
        if keeps || self.shard_borrow.borrowers.is_empty() {
            return;
        }
        let Some(store) = self.stores[self.worker].take() else { return };
        if let Some(borrower) = self.shard_borrow.borrowers.pop_front() {
            self.server.outbox.send(borrower, Message::ShardLent(self.worker, store));
        }
    }

    /// Stores a shard that arrived: the own one, or a requested one.
    pub(in crate::service) fn shard_arrived(&mut self, net: &mut impl Transport, shard: usize, store: Box<Store>) {
        self.stores[shard] = Some(store);
        if shard == self.worker {
            // The settings may have changed in the meantime.
            self.apply_settings();
            // Batches go first, because the shard may be lent again.
            self.run_batches();
        }
        self.borrow(net);
    }

    /// Borrows the shards of the first queued work, and does the work once all are present.
    pub(in crate::service) fn borrow(&mut self, net: &mut impl Transport) {
        while let Some(need) = self.shard_borrow.requests.front_mut() {
            let mut is_waiting = false;
            for shard in need.shards.iter() {
                if shard == self.worker {
                    need.keeps_own = self.stores[shard].is_some();
                } else if self.stores[shard].is_none() && need.requested != Some(shard) {
                    need.requested = Some(shard);
                    self.server.outbox.send(shard, Message::BorrowShard(self.worker));
                }
                if self.stores[shard].is_none() {
                    is_waiting = true;
                    break;
                }
            }
            if is_waiting {
                // Until its turn has come, the own shard is lent to the workers that wait for it.
                break;
            }
            let Some(need) = self.shard_borrow.requests.pop_front() else { return };
            let long = self.account(|kv| kv.do_job(net, need.job));
            self.limit_client_memory(net);
            for shard in need.shards.iter().filter(|shard| *shard != self.worker) {
                if let Some(store) = self.stores[shard].take() {
                    self.server.outbox.send(shard, Message::ShardReturned(store, long));
                }
            }
            self.lend_to_next();
        }
        self.lend_to_next();
    }

    fn do_job(&mut self, net: &mut impl Transport, job: Job) {
        match job {
            Job::Request(conn) => self.with_client(net, conn, |kv, net, client| {
                client.pending_replies -= 1;
                match client.pending.take() {
                    // A pause began while the request waited for shards.
                    Some(pending) if kv.must_pending_wait(client, &pending) => kv.hold(client, pending),
                    Some(pending) if kv.redirect_pending(client, &pending) => {}
                    Some(pending) => kv.run_pending(client, pending),
                    None => {}
                }
                kv.resume(net, client);
            }),
            Job::Datagram(pending) => self.run_pending_datagram(net, &pending),
            Job::Unwatch(mut session) => session.unwatch(&mut Shards::new(&mut self.stores, &self.placement)),
        }
    }
}
