//! Messages between workers.

use crate::commands::ClientInfo;
use crate::service::Kv;
use crate::service::workers::remote_batch::RemoteBatch;
use crate::store::Store;
use linerate_service::time::Duration;
use linerate_service::{AppSender, ConnId, Transport};
use std::collections::VecDeque;

/// Message to another worker.
pub enum Message {
    /// Batch of requests to run.
    RunBatch(Box<RemoteBatch>),
    /// Batch that this worker has run.
    BatchDone(usize, Box<RemoteBatch>),
    /// Request of this worker to borrow the receiver's shard.
    BorrowShard(usize),
    /// Borrowed shard and its number.
    ShardLent(usize, Box<Store>),
    /// Return of the receiver's shard, with the duration of long work in it.
    ShardReturned(Box<Store>, Duration),
    /// Request of this worker for the receiver's clients, for one of its connections.
    ListClients(usize, ConnId),
    /// Clients of one worker, for this connection.
    ClientList(ConnId, Vec<ClientInfo>),
    /// Disconnects the clients with these ids, which are sorted.
    Kill(Vec<u64>),
    /// The settings changed. The message precedes everything that its sender sends after the change.
    SettingsChanged,
    /// A pause of the clients began or ended.
    PauseChanged,
    /// The counters were reset.
    StatsReset,
}

/// Queue of messages to other workers.
pub(in crate::service) struct Outbox {
    app_sender: AppSender<Message>,
    worker: usize,
    /// Messages for which a mailbox had no room, with their receivers: at most a few per connection.
    waiting: VecDeque<(usize, Message)>,
}

impl Outbox {
    pub fn new(app_sender: AppSender<Message>, worker: usize) -> Self {
        Outbox { app_sender, worker, waiting: VecDeque::new() }
    }

    /// Sends `message` to `worker`, at once or when its mailbox has room.
    pub fn send(&mut self, worker: usize, message: Message) {
        // Messages between two workers keep their order.
        if !self.waiting.is_empty() {
            return self.waiting.push_back((worker, message));
        }
        if let Err(message) = self.app_sender.send_to_worker(worker, message) {
            self.waiting.push_back((worker, message));
        }
    }

    /// Sends queued messages. Returns true if some remain.
    pub fn flush(&mut self) -> bool {
        while let Some((worker, message)) = self.waiting.pop_front() {
            if let Err(message) = self.app_sender.send_to_worker(worker, message) {
                self.waiting.push_front((worker, message));
                return true;
            }
        }
        false
    }

    /// Returns all workers except this one.
    pub fn others(&self, workers: usize) -> impl Iterator<Item = usize> + use<> {
        let own = self.worker;
        (0..workers).filter(move |worker| *worker != own)
    }
}

impl Kv {
    /// Handles a message of another worker.
    pub(in crate::service) fn handle_message(&mut self, net: &mut impl Transport, message: Message) {
        match message {
            Message::RunBatch(batch) => {
                self.shard_borrow.batches.push_back(batch);
                // After long work, connections are served before the next batch.
                if !self.long_work.has_worked() {
                    self.run_batches();
                }
            }
            Message::BatchDone(owner, batch) => self.finish_batch(net, owner, batch),
            Message::BorrowShard(worker) => self.lend(worker),
            Message::ShardLent(shard, store) => self.shard_arrived(net, shard, store),
            Message::ShardReturned(store, long) => {
                self.long_work.add(long);
                self.shard_arrived(net, self.worker, store);
            }
            Message::ListClients(worker, conn) => {
                let clients = self.listed();
                self.server.outbox.send(worker, Message::ClientList(conn, clients));
            }
            Message::ClientList(conn, clients) => self.list(net, conn, clients),
            Message::Kill(ids) => self.disconnect(net, &ids),
            Message::SettingsChanged => {
                self.server.refresh();
                self.apply_settings();
            }
            Message::PauseChanged => self.refresh_pause(net),
            Message::StatsReset => self.reset_stats(),
        }
    }
}
