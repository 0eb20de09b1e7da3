//! What workers tell each other.

use crate::commands::ClientInfo;
use crate::service::Kv;
use crate::service::workers::remote_batch::Errand;
use crate::store::Store;
use linerate_bypass::{AppSender, ConnId, Transport};
use std::collections::VecDeque;

/// What one worker tells another.
pub enum Message {
    /// Run these.
    Errand(Box<Errand>),
    /// They have been run.
    Back(Box<Errand>),
    /// This worker wants to borrow the receiver's shard.
    Borrow(usize),
    /// A shard that was asked for, and its number.
    Lent(usize, Box<Store>),
    /// The receiver's shard, which was lent.
    Returned(Box<Store>),
    /// This worker wants to know the receiver's clients, for a connection of its own.
    WhoIsThere(usize, ConnId),
    /// The clients of one worker, for this connection.
    There(ConnId, Vec<ClientInfo>),
    /// The client with this number is to be disconnected.
    Kill(u64),
    /// The settings have changed. It comes before all that its sender sends after the change.
    SettingsChanged,
    /// The figures count from 0 again.
    StatsReset,
}

/// What is on its way to other workers.
pub(in crate::service) struct Outbox {
    app_sender: AppSender<Message>,
    worker: usize,
    /// For what a mailbox had no room, and to whom it goes: at most a few things for each connection.
    waiting: VecDeque<(usize, Message)>,
}

impl Outbox {
    pub fn new(app_sender: AppSender<Message>, worker: usize) -> Self {
        Outbox { app_sender, worker, waiting: VecDeque::new() }
    }

    /// Sends `message` to `worker`, now or as soon as there is room.
    pub fn send(&mut self, worker: usize, message: Message) {
        // What one worker tells another keeps its order.
        if !self.waiting.is_empty() {
            return self.waiting.push_back((worker, message));
        }
        if let Err(message) = self.app_sender.send_to_worker(worker, message) {
            self.waiting.push_back((worker, message));
        }
    }

    /// Sends what waits. Returns whether something still does.
    pub fn go_on(&mut self) -> bool {
        while let Some((worker, message)) = self.waiting.pop_front() {
            if let Err(message) = self.app_sender.send_to_worker(worker, message) {
                self.waiting.push_front((worker, message));
                return true;
            }
        }
        false
    }

    /// All workers but ours.
    pub fn others(&self, workers: usize) -> impl Iterator<Item = usize> + use<> {
        let own = self.worker;
        (0..workers).filter(move |worker| *worker != own)
    }
}

impl Kv {
    /// Another worker has said something.
    pub(in crate::service) fn hear(&mut self, net: &mut impl Transport, message: Message) {
        match message {
            Message::Errand(errand) => {
                self.lending.errands.push_back(errand);
                self.run_errands();
            }
            Message::Back(errand) => self.finish_errand(net, errand),
            Message::Borrow(worker) => self.lend(worker),
            Message::Lent(shard, store) => self.take_in(net, shard, store),
            Message::Returned(store) => self.take_in(net, self.worker, store),
            Message::WhoIsThere(worker, conn) => {
                let clients = self.listed();
                self.host.outbox.send(worker, Message::There(conn, clients));
            }
            Message::There(conn, clients) => self.list(net, conn, clients),
            Message::Kill(id) => self.disconnect(net, id),
            Message::SettingsChanged => {
                self.host.refresh();
                self.apply_settings();
            }
            Message::StatsReset => self.reset_stats(),
        }
    }
}
