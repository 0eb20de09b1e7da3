//! Shards are lent to other workers, and borrowed.
//!
//! Whoever needs several shards borrows those of others, one after the other in the order of their numbers, and keeps its own
//! at home when it is its turn: so nobody waits for one that waits for him. A worker borrows for one request at a time.

use crate::commands::Session;
use crate::service::Kv;
use crate::service::udp::Asked;
use crate::service::workers::messages::Message;
use crate::service::workers::remote_batch::Errand;
use crate::shards::{ShardSet, Shards};
use crate::store::Store;
use linerate_bypass::{ConnId, Transport};
use std::collections::VecDeque;

/// What shards are needed for.
pub(in crate::service) enum Job {
    /// The request that the client of this connection waits with.
    Ask(ConnId),
    /// The requests of a datagram.
    Datagram(Box<Asked>),
    /// To tell the shards of the keys watched for a client that it has gone.
    Unwatch(Box<Session>),
}

/// Shards that are needed together.
struct Need {
    shards: ShardSet,
    job: Job,
    /// Ours, which is one of them, is kept at home for it.
    keeps_own: bool,
    /// The one that has been asked for last.
    asked_for: Option<usize>,
}

/// Who needs shards.
#[derive(Default)]
pub(in crate::service) struct Lending {
    /// Workers that want to borrow ours.
    borrowers: VecDeque<usize>,
    /// What is needed here; for the first of them shards are being borrowed.
    needs: VecDeque<Need>,
    /// What has come to be done with our shard while it is away.
    pub errands: VecDeque<Box<Errand>>,
}

impl Lending {
    /// `shards` are needed for `job`.
    pub fn queue(&mut self, shards: ShardSet, job: Job) {
        self.needs.push_back(Need { shards, job, keeps_own: false, asked_for: None });
    }
}

impl Kv {
    /// The keys watched for a client that has gone are not watched any more.
    pub(in crate::service) fn borrow_to_unwatch(&mut self, session: Box<Session>) {
        let shards = session.watched_shards(self.stores.len());
        if !shards.is_empty() {
            self.lending.queue(shards, Job::Unwatch(session));
        }
    }

    /// The worker `borrower` wants to borrow our shard.
    pub(in crate::service) fn lend(&mut self, borrower: usize) {
        self.lending.borrowers.push_back(borrower);
        self.lend_to_next();
    }

    fn lend_to_next(&mut self) {
        let keeps = self.lending.needs.front().is_some_and(|need| need.keeps_own);
        if keeps || self.lending.borrowers.is_empty() {
            return;
        }
        let Some(store) = self.stores[self.worker].take() else { return };
        if let Some(borrower) = self.lending.borrowers.pop_front() {
            self.host.outbox.send(borrower, Message::Lent(self.worker, store));
        }
    }

    /// `shard` has come, which is ours or was asked for.
    pub(in crate::service) fn take_in(&mut self, net: &mut impl Transport, shard: usize, store: Box<Store>) {
        self.stores[shard] = Some(store);
        if shard == self.worker {
            // They may have changed meanwhile.
            self.apply_settings();
            // What has waited for it goes first, or it might be away again before.
            self.run_errands();
        }
        self.borrow(net);
    }

    /// Borrows what is needed next, and does what it is needed for as soon as all of it is there.
    pub(in crate::service) fn borrow(&mut self, net: &mut impl Transport) {
        while let Some(need) = self.lending.needs.front_mut() {
            for shard in need.shards.iter() {
                if shard == self.worker {
                    need.keeps_own = self.stores[shard].is_some();
                } else if self.stores[shard].is_none() && need.asked_for != Some(shard) {
                    need.asked_for = Some(shard);
                    self.host.outbox.send(shard, Message::Borrow(self.worker));
                }
                if self.stores[shard].is_none() {
                    return;
                }
            }
            let Some(need) = self.lending.needs.pop_front() else { return };
            self.do_job(net, need.job);
            for shard in need.shards.iter().filter(|shard| *shard != self.worker) {
                if let Some(store) = self.stores[shard].take() {
                    self.host.outbox.send(shard, Message::Returned(store));
                }
            }
            self.lend_to_next();
        }
        self.lend_to_next();
    }

    fn do_job(&mut self, net: &mut impl Transport, job: Job) {
        match job {
            Job::Ask(conn) => self.with_client(net, conn, |kv, net, client| {
                client.awaits -= 1;
                if let Some(asked) = client.asked.take() {
                    kv.run_asked(client, asked);
                }
                kv.resume(net, client);
            }),
            Job::Datagram(asked) => self.run_waiting(net, &asked),
            Job::Unwatch(mut session) => session.unwatch(&mut Shards::new(&mut self.stores)),
        }
    }
}
