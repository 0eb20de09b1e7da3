//! Requests that are run by another worker.

use super::Kv;
use super::client::{Asked, Client};
use super::messages::Message;
use super::output::Replies;
use crate::commands::Request;
use crate::resp::Protocol;
use linerate_bypass::{ConnId, Transport};

/// Requests that travel together at most.
const MOST: usize = 64;

/// Requests of one connection for the shard of another worker, on their way there or back.
pub struct Errand {
    conn: Option<ConnId>,
    /// Who sent it, and to whom.
    home: usize,
    pub(super) worker: usize,
    space: u8,
    protocol: Protocol,
    pub(super) requests: Vec<Asked>,
    replies: Replies,
}

impl Default for Errand {
    fn default() -> Self {
        Errand {
            conn: None,
            home: 0,
            worker: 0,
            space: 0,
            protocol: Protocol::default(),
            requests: Vec::new(),
            replies: Replies::default(),
        }
    }
}

impl Errand {
    /// It is `client`'s, from the worker `home` to `worker`.
    pub(super) fn begin(&mut self, client: &Client, home: usize, worker: usize) {
        (self.conn, self.home, self.worker) = (Some(client.conn), home, worker);
        if let Some(session) = client.session() {
            (self.space, self.protocol) = (session.space(), session.protocol());
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.requests.len() < MOST
    }
}

impl Kv {
    /// Runs the errands that have come here, if the shard is here.
    pub(super) fn run_errands(&mut self) {
        while self.stores[self.worker].is_some()
            && let Some(errand) = self.lending.errands.pop_front()
        {
            self.run_errand(errand);
        }
    }

    fn run_errand(&mut self, mut errand: Box<Errand>) {
        // Whatever was being replied here goes on behind it.
        std::mem::swap(&mut self.replies, &mut errand.replies);
        let mut guest = self.guest.take();
        if let Some(guest) = &mut guest {
            guest.visit(errand.space, errand.protocol);
        }
        let mut requests = std::mem::take(&mut errand.requests);
        for asked in requests.drain(..) {
            match asked {
                Asked::Resp(args) => {
                    if let Some(guest) = &mut guest {
                        self.run(&Request::new(args.args(), errand.space, &self.keys), guest);
                    }
                }
                Asked::Memcached(bytes, value) => {
                    self.run_bytes(&bytes, value);
                }
                // What is said to it is said at home.
                Asked::Refused(..) => {}
            }
        }
        self.guest = guest;
        errand.requests = requests;
        std::mem::swap(&mut self.replies, &mut errand.replies);
        self.outbox.send(errand.home, Message::Back(errand));
    }

    /// An errand has come back.
    pub(super) fn finish_errand(&mut self, net: &mut impl Transport, mut errand: Box<Errand>) {
        if let Some(conn) = errand.conn.take() {
            self.with_client(net, conn, |kv, net, client| {
                client.waits = false;
                kv.replies.append(&mut errand.replies);
                kv.reply(net, client);
                kv.resume(net, client);
            });
        }
        errand.replies.clear();
        self.idle_errands.push(errand);
    }
}
