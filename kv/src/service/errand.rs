//! Requests that are run by another worker.

use super::Kv;
use super::client::{Asked, Client, Speech};
use super::messages::Message;
use super::output::Replies;
use crate::commands::Request;
use crate::memcached::Data;
use crate::resp::{self, Protocol};
use crate::shards::ShardSet;
use crate::store::LONG;
use linerate_bypass::{ConnId, Transport};

/// Bytes of requests that travel together, about.
const MOST: usize = 16 << 10;
/// Errands that are kept to be used again.
const IDLE: usize = 64;

/// Requests of one connection for the shard of another worker, on their way there or back.
#[derive(Default)]
pub struct Errand {
    conn: Option<ConnId>,
    /// Who sent it, and to whom.
    home: usize,
    pub(super) worker: usize,
    /// The keyspace of a client of Redis, and its protocol; nothing for a memcached client.
    redis: Option<(u8, Protocol)>,
    /// Requests as they came.
    pub(super) text: Vec<u8>,
    /// One behind them that was kept, because parts of it were received apart.
    pub(super) last: Option<Asked>,
    replies: Replies,
}

impl Kv {
    /// Where a request goes that needs `needs`, if that is what another worker can run, and if it can travel with those that are
    /// in `errand` already, which are of `conn` and `speech`.
    #[inline]
    pub(super) fn errand_for<'e>(
        &mut self,
        errand: &'e mut Option<Box<Errand>>,
        conn: ConnId,
        redis: Option<(u8, Protocol)>,
        needs: &ShardSet,
    ) -> Option<&'e mut Errand> {
        let mut shards = needs.iter();
        let (Some(worker), None) = (shards.next(), shards.next()) else { return None };
        if worker == self.worker {
            return None;
        }
        let errand = errand.get_or_insert_with(|| {
            let mut new = self.idle_errands.pop().unwrap_or_default();
            (new.conn, new.home, new.worker, new.redis) = (Some(conn), self.worker, worker, redis);
            new
        });
        let has_room = errand.text.len() < MOST && errand.last.is_none();
        (errand.worker == worker && has_room).then_some(errand)
    }

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
        self.replies.set_most(self.host.settings().output);
        match errand.redis {
            Some((space, protocol)) => self.run_as_guest(&mut errand, space, protocol),
            None => {
                let mut rest = &errand.text[..];
                while let Some((len, _)) = self.run_bytes(rest, Data::Short(b"")) {
                    rest = &rest[len..];
                }
                if let Some(Asked::Memcached(bytes, value)) = errand.last.take() {
                    self.run_bytes(&bytes, value);
                }
            }
        }
        errand.text.clear();
        errand.text.shrink_to(2 * MOST);
        std::mem::swap(&mut self.replies, &mut errand.replies);
        self.outbox.send(errand.home, Message::Back(errand));
    }

    /// Runs the requests of a client of Redis.
    fn run_as_guest(&mut self, errand: &mut Errand, space: u8, protocol: Protocol) {
        let Some(mut guest) = self.guest.take() else { return };
        guest.visit(space, protocol);
        let mut parser = resp::Parser::default();
        let limits = guest.limits(self.settings().bulk as usize, LONG);
        let mut rest = &errand.text[..];
        while !rest.is_empty() {
            let first = self.ahead.len();
            let (ahead, _) = self.recognise(&guest, rest);
            self.fetch(first);
            if let Some((done, _)) = self.answer(&mut guest, rest, ahead)
                && done > 0
            {
                rest = &rest[done..];
                continue;
            }
            // It was read before.
            let Ok(resp::Parsed::Request(len)) = parser.parse(rest, limits) else { break };
            self.run(&Request::new(parser.args(rest), space, &self.keys), &mut guest);
            rest = &rest[len..];
        }
        if let Some(Asked::Resp(args)) = errand.last.take() {
            self.run(&Request::new(args.args(), space, &self.keys), &mut guest);
        }
        self.ahead.clear();
        self.guest = Some(guest);
    }

    /// An errand has come back.
    pub(super) fn finish_errand(&mut self, net: &mut impl Transport, mut errand: Box<Errand>) {
        if let Some(conn) = errand.conn.take() {
            self.with_client(net, conn, |kv, net, client| {
                client.awaits -= 1;
                kv.replies.append(&mut errand.replies);
                kv.reply(net, client);
                kv.resume(net, client);
            });
        }
        errand.replies.clear();
        if self.idle_errands.len() < IDLE {
            self.idle_errands.push(errand);
        }
    }
}

impl Client {
    /// What whoever runs its requests elsewhere has to know of it.
    pub(super) fn redis(&self) -> Option<(u8, Protocol)> {
        match &self.speech {
            Speech::Resp { session, .. } => Some((session.space(), session.protocol())),
            Speech::Memcached { .. } => None,
        }
    }
}
