//! Requests that are run by another worker.

use crate::commands::{Request, Session};
use crate::memcached::{Data, udp};
use crate::resp::{self, Protocol};
use crate::service::Kv;
use crate::service::conn::output::{Mark, Replies};
use crate::service::conn::{Asked, Client, Speech};
use crate::service::fast_path::FEW;
use crate::service::udp::Asker;
use crate::service::workers::messages::Message;
use crate::shards::ShardSet;
use crate::store::LONG_THRESHOLD;
use linerate_bypass::{ConnId, Transport};
use std::ops::Range;

/// Bytes of requests that travel together, about.
const MOST: usize = 16 << 10;
/// Errands that are kept to be used again.
const IDLE: usize = 8;

/// Requests for the shard of another worker, of all connections that have some in a turn, on their way there or back.
#[derive(Default)]
pub struct Errand {
    /// Who sent it.
    home: usize,
    parts: Vec<Part>,
    /// Requests as they came.
    pub(in crate::service) text: Vec<u8>,
    /// One behind them, of the last part, that was kept because parts of it were received apart.
    pub(in crate::service) last: Option<Asked>,
    replies: Replies,
    /// Who is to be answered, of those who sent datagrams.
    askers: Vec<Asker>,
}

/// Whom requests come from.
#[derive(Debug, Clone, Copy)]
enum Of {
    Client(ConnId),
    /// Who sent a datagram, by the place among the errand's askers.
    Asker(usize),
}

/// What an errand has of one connection, or of one datagram.
struct Part {
    of: Of,
    /// The keyspace of a client of Redis, and its protocol; nothing for a memcached client.
    redis: Option<(u8, Protocol)>,
    /// Where its requests begin.
    text: usize,
    /// Where its replies end; nothing if they were too many.
    replied: Option<Mark>,
    /// Those of its requests that were recognised.
    ahead: Range<usize>,
}

impl Kv {
    /// Where a request of the client of `conn` goes that needs `needed_shards`, if that is what another worker can run, and if it can travel
    /// with those of the client's that are under way to `open` already.
    #[inline]
    pub(in crate::service) fn errand_for(
        &mut self,
        open: &mut Option<usize>,
        conn: ConnId,
        redis: Option<(u8, Protocol)>,
        needs: &ShardSet,
    ) -> Option<&mut Errand> {
        let mut shards = needs.iter();
        let (Some(worker), None) = (shards.next(), shards.next()) else { return None };
        self.errand_to(worker, open, conn, redis)
    }

    /// As [`errand_for`](Self::errand_for), for a request that needs the shard of `worker`.
    #[inline]
    pub(in crate::service) fn errand_to(
        &mut self,
        worker: usize,
        open: &mut Option<usize>,
        conn: ConnId,
        redis: Option<(u8, Protocol)>,
    ) -> Option<&mut Errand> {
        if worker == self.worker || open.is_some_and(|open| open != worker) {
            return None;
        }
        if open.is_none() {
            self.errand_with_room(worker).begin(Of::Client(conn), redis);
            *open = Some(worker);
        }
        // That of an open part is not sent.
        let errand = self.errands[worker].as_deref_mut()?;
        let begun = errand.parts.last()?.text;
        errand.has_room(begun).then_some(errand)
    }

    /// Has `worker` run the requests in `text`, for whoever sent them in a datagram.
    pub(in crate::service) fn send_for(&mut self, asker: Asker, worker: usize, text: &[u8]) {
        let errand = self.errand_with_room(worker);
        errand.begin(Of::Asker(errand.askers.len()), None);
        errand.askers.push(asker);
        errand.text.extend_from_slice(text);
    }

    /// The errand to `worker`, to which requests of somebody else can be added.
    #[inline]
    fn errand_with_room(&mut self, worker: usize) -> &mut Errand {
        if self.errands[worker].as_ref().is_some_and(|errand| !errand.has_room(0)) {
            self.send_errand(worker);
        }
        let errand = self.errands[worker].get_or_insert_with(|| self.idle_errands.pop().unwrap_or_default());
        errand.home = self.worker;
        errand
    }

    /// Sends what goes to other workers.
    pub(in crate::service) fn send_errands(&mut self) {
        for worker in 0..self.errands.len() {
            self.send_errand(worker);
        }
    }

    fn send_errand(&mut self, worker: usize) {
        if let Some(errand) = self.errands[worker].take() {
            self.host.outbox.send(worker, Message::Errand(errand));
        }
    }

    /// Runs the errands that have come here, if the shard is here.
    pub(in crate::service) fn run_errands(&mut self) {
        while self.stores[self.worker].is_some()
            && let Some(errand) = self.lending.errands.pop_front()
        {
            self.run_errand(errand);
        }
    }

    fn run_errand(&mut self, mut errand: Box<Errand>) {
        let Some(mut guest) = self.guest.take() else { return };
        let Errand { home, parts, text, last, replies, .. } = &mut *errand;
        // Whatever was being replied here goes on behind it.
        std::mem::swap(&mut self.replies, replies);
        let most = self.settings().output;
        let mut looked_at = 0;
        for at in 0..parts.len() {
            if at == looked_at {
                looked_at += self.look_ahead_in(&mut parts[at..], text);
            }
            let (until, last) = match parts.get(at + 1) {
                Some(next) => (next.text, None),
                None => (text.len(), last.take()),
            };
            let part = &mut parts[at];
            let text = &text[part.text..until];
            let before = self.replies.mark();
            self.replies
                .set_most_behind(before, if matches!(part.of, Of::Asker(_)) { udp::ANSWER as u64 } else { most });
            match (part.redis, part.of) {
                (Some((space, protocol)), _) => {
                    guest.act_for(space, protocol);
                    self.run_as_guest(&mut guest, text, part.ahead.clone(), last);
                }
                (None, Of::Client(_)) => self.run_for_memcached(text, last),
                (None, Of::Asker(_)) => self.run_datagram(text),
            }
            part.replied = self.replies.mark_unless_cut(before);
        }
        self.forget_ahead();
        self.guest = Some(guest);
        text.clear();
        text.shrink_to(2 * MOST);
        std::mem::swap(&mut self.replies, replies);
        let home = *home;
        self.host.outbox.send(home, Message::Back(errand));
    }

    /// Recognises the requests that the first of the `parts` of `text` begin with, and fetches what they will touch. Returns how
    /// many parts were looked at.
    fn look_ahead_in(&mut self, parts: &mut [Part], text: &[u8]) -> usize {
        self.forget_ahead();
        let mut looked_at = 0;
        while looked_at < parts.len() && self.ahead.len() < FEW {
            let until = parts.get(looked_at + 1).map_or(text.len(), |next| next.text);
            let part = &mut parts[looked_at];
            if let Some((space, _)) = part.redis {
                (part.ahead, _) = self.recognise(space, &text[part.text..until]);
            }
            looked_at += 1;
        }
        self.fetch(0);
        looked_at
    }

    /// Runs the requests of a client of Redis: those in `text`, the first of which were recognised as `ahead`, and the `last`.
    fn run_as_guest(&mut self, guest: &mut Session, text: &[u8], mut ahead: Range<usize>, last: Option<Asked>) {
        let mut parser = resp::Parser::default();
        let limits = guest.limits(self.settings().bulk as usize, LONG_THRESHOLD);
        let (space, mut rest) = (guest.space(), text);
        while !rest.is_empty() {
            let mut done = self.answer(guest, rest, ahead).map_or(0, |(done, _)| done);
            if done == 0 {
                // It was read before.
                let Ok(resp::Parsed::Request(len)) = parser.parse(rest, limits) else { break };
                self.run(&Request::new(parser.args(rest), space, &self.hasher), guest);
                done = len;
            }
            rest = &rest[done..];
            let first = self.ahead.len();
            (ahead, _) = self.recognise(space, rest);
            self.fetch(first);
        }
        if let Some(Asked::Resp(args)) = last {
            self.run(&Request::new(args.args(), space, &self.hasher), guest);
        }
    }

    /// Runs the requests of a memcached client: those in `text`, and the `last`.
    fn run_for_memcached(&mut self, text: &[u8], last: Option<Asked>) {
        let mut rest = text;
        while let Some((len, _)) = self.run_bytes(rest, Data::Short(b"")) {
            rest = &rest[len..];
        }
        if let Some(Asked::Memcached(bytes, value)) = last {
            self.run_bytes(&bytes, value);
        }
    }

    /// An errand has come back.
    pub(in crate::service) fn finish_errand(&mut self, net: &mut impl Transport, mut errand: Box<Errand>) {
        let mut from = Mark::default();
        for part in errand.parts.drain(..) {
            match part.of {
                Of::Client(conn) => self.with_client(net, conn, |kv, net, client| {
                    client.awaits -= 1;
                    kv.replies.append(&mut errand.replies, from, part.replied);
                    kv.reply(net, client);
                    kv.resume(net, client);
                }),
                Of::Asker(at) => {
                    self.replies.append(&mut errand.replies, from, part.replied);
                    self.answer_from_elsewhere(net, &errand.askers[at]);
                }
            }
            from = part.replied.unwrap_or(from);
        }
        errand.replies.clear();
        errand.askers.clear();
        if self.idle_errands.len() < IDLE {
            self.idle_errands.push(errand);
        }
    }
}

impl Errand {
    /// What is added from here on is of somebody else.
    #[inline]
    fn begin(&mut self, of: Of, redis: Option<(u8, Protocol)>) {
        self.parts.push(Part { of, redis, text: self.text.len(), replied: None, ahead: 0..0 });
    }

    /// Whether there is room for more behind the requests from `begun` on.
    #[inline]
    fn has_room(&self, begun: usize) -> bool {
        self.text.len() - begun < MOST && self.last.is_none()
    }
}

impl Client {
    /// What whoever runs its requests elsewhere has to know of it.
    pub(in crate::service) fn redis(&self) -> Option<(u8, Protocol)> {
        match &self.speech {
            Speech::Resp { session, .. } => Some((session.space(), session.protocol())),
            Speech::Memcached { .. } => None,
        }
    }
}
