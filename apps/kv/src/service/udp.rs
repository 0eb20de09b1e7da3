//! Requests of memcached's clients that come in datagrams: without a connection, and without anything that is kept of a client.
//!
//! A datagram is run as a whole, where the shards of its keys are: here; or, if all of them are in one shard of another worker,
//! there, and what is to be known to answer it travels along and comes back; or here, with the shards borrowed. What is taken in
//! waits for the end of the worker's turn, so that what all of a turn will touch is fetched at the same time.

use crate::memcached::udp::{self, Frame};
use crate::memcached::{Count, Data, Limits, LongLine, Parsed, Parser, Request};
use crate::service::Kv;
use crate::service::fast_path::FEW;
use crate::service::workers::shard_borrow::Job;
use crate::shards::ShardSet;
use crate::sink::Sink;
use linerate_bypass::{BufferPool, Bytes, Datagram, Transport};
use std::net::SocketAddr;

/// Datagrams whose requests are run by other workers, or wait for shards, at most.
const AWAY: usize = 4096;
/// Datagrams of answers that are not sent at most, and blocks that are kept for them.
const ANSWERS: usize = 4096;
const KEPT: usize = 256;

/// What is answered to a request that does not end in its datagram.
const CUT: &[u8] = b"CLIENT_ERROR the request does not end in its datagram\r\n";
/// What is answered where the answer is too long: [`udp::MOST`] datagrams.
const TOO_LONG: &[u8] = b"SERVER_ERROR the answer takes more than 8 datagrams: ask over a connection\r\n";

/// Who is to be answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asker {
    local: SocketAddr,
    remote: SocketAddr,
    /// What the client calls its request.
    id: u16,
}

/// Requests that somebody has sent in a datagram.
#[derive(Debug)]
pub(super) struct Asked {
    asker: Asker,
    /// The datagram, its header included.
    datagram: Bytes,
}

impl Asked {
    fn requests(&self) -> &[u8] {
        &self.datagram[udp::HEADER..]
    }
}

/// The datagrams of a worker.
pub(super) struct Datagrams {
    /// The port that they are answered on, if they are.
    port: Option<u16>,
    /// Those that have come in this turn.
    waiting: Vec<Asked>,
    /// The hashes of their first keys, as far as they are in our shard.
    hashes: Vec<u64>,
    /// Those that are run elsewhere, or wait for shards.
    away: usize,
    memory: BufferPool,
}

impl Datagrams {
    pub fn new(port: Option<u16>) -> Self {
        Datagrams {
            port,
            waiting: Vec::new(),
            hashes: Vec::new(),
            away: 0,
            memory: BufferPool::new(udp::DATAGRAM, KEPT, ANSWERS),
        }
    }
}

impl Kv {
    /// A datagram has come.
    pub(super) fn take_datagram(&mut self, net: &mut impl Transport, datagram: Datagram) {
        let Datagram { local, remote, payload } = datagram;
        if self.datagrams.port != Some(local.port()) {
            return;
        }
        let id = match Frame::read(&payload) {
            // As memcached does, which takes no requests in parts either.
            Some((Frame { id, total: 1, .. }, requests)) if !requests.is_empty() && remote.port() != 0 => id,
            _ => return self.counts.add(Count::UdpIgnored),
        };
        let hash = self.glimpse_datagram(&payload[udp::HEADER..]);
        self.datagrams.hashes.extend(hash);
        self.datagrams.waiting.push(Asked { asker: Asker { local, remote, id }, datagram: payload });
        if self.datagrams.waiting.len() == FEW {
            self.now = self.clock.millis(net.now());
            self.serve_datagrams(net);
        }
    }

    /// Sees to all that have come.
    #[inline]
    pub(super) fn serve_datagrams(&mut self, net: &mut impl Transport) {
        if !self.datagrams.waiting.is_empty() {
            if let Some(store) = &self.stores[self.worker] {
                self.datagrams.hashes.iter().for_each(|hash| store.prefetch_item(store.location_hint(*hash)));
            }
            self.datagrams.hashes.clear();
            let mut waiting = std::mem::take(&mut self.datagrams.waiting);
            waiting.drain(..).for_each(|asked| self.serve_datagram(net, asked));
            self.datagrams.waiting = waiting;
        }
    }

    fn serve_datagram(&mut self, net: &mut impl Transport, asked: Asked) {
        self.host.read(asked.datagram.len());
        let (needs, is_portable) = match self.stores.len() {
            1 => (ShardSet::NONE, false),
            _ => self.datagram_needs(asked.requests()),
        };
        if self.has(&needs) {
            return self.run_and_answer(net, &asked);
        }
        if self.datagrams.away == AWAY {
            return self.counts.add(Count::UdpDropped);
        }
        self.datagrams.away += 1;
        let mut shards = needs.iter();
        match (shards.next(), shards.next()) {
            (Some(worker), None) if is_portable && worker != self.worker => {
                self.send_for(asked.asker, worker, asked.requests());
            }
            _ => self.lending.queue(needs, Job::Datagram(Box::new(asked))),
        }
    }

    /// The shards that all `requests` of a datagram need, and whether another worker can run them.
    fn datagram_needs(&self, requests: &[u8]) -> (ShardSet, bool) {
        let (mut needs, mut is_portable) = (ShardSet::NONE, true);
        for (request, _) in Requests::new(requests, self.host.memcached_limits()).flatten() {
            needs.extend(self.memcached_needs(&request));
            is_portable &= !request.needs_all();
        }
        (needs, is_portable)
    }

    /// Runs the `requests` of a datagram, whose shards are there.
    pub(super) fn run_datagram(&mut self, requests: &[u8]) {
        let mut is_known = false;
        for request in Requests::new(requests, self.host.memcached_limits()) {
            match request {
                Ok((request, _)) if !is_known && request.is_unknown() => return self.counts.add(Count::UdpIgnored),
                Err(Cut::Line) if !is_known => return self.counts.add(Count::UdpIgnored),
                // Nobody is to be disconnected.
                Ok((request, data)) => _ = self.run_text(&request, data),
                Err(Cut::Line | Cut::Data) => self.replies.put(CUT),
            }
            is_known = true;
        }
        self.counts.add(Count::UdpRequests);
    }

    /// Runs what was `asked`, whose shards are there, and answers.
    fn run_and_answer(&mut self, net: &mut impl Transport, asked: &Asked) {
        self.replies.set_most(udp::ANSWER as u64);
        self.run_datagram(asked.requests());
        self.replies.set_most(self.host.settings().output);
        self.answer_datagram(net, &asked.asker);
    }

    /// The shards are there that `asked` has waited for.
    pub(super) fn run_waiting(&mut self, net: &mut impl Transport, asked: &Asked) {
        self.datagrams.away -= 1;
        self.run_and_answer(net, asked);
    }

    /// Another worker has run what `asker` sent; its replies are there.
    pub(super) fn answer_from_elsewhere(&mut self, net: &mut impl Transport, asker: &Asker) {
        self.datagrams.away -= 1;
        self.answer_datagram(net, asker);
    }

    /// Sends `asker` what has been replied.
    fn answer_datagram(&mut self, net: &mut impl Transport, asker: &Asker) {
        if self.replies.is_cut() || self.replies.len() > udp::ANSWER {
            self.replies.clear();
            self.replies.put(TOO_LONG);
        }
        let len = self.replies.len();
        let Asker { local, remote, id } = *asker;
        let total = len.div_ceil(udp::DATAGRAM - udp::HEADER) as u16;
        let mut pieces = self.replies.pieces();
        let mut piece: &[u8] = &[];
        for sequence in 0..total {
            let sent = self.datagrams.memory.take().and_then(|mut block| {
                block[..udp::HEADER].copy_from_slice(&Frame { id, sequence, total }.bytes());
                let mut at = udp::HEADER;
                while at < udp::DATAGRAM {
                    if piece.is_empty() {
                        let Some(next) = pieces.next() else { break };
                        piece = next;
                    }
                    let (now, later) = piece.split_at(piece.len().min(udp::DATAGRAM - at));
                    block[at..at + now.len()].copy_from_slice(now);
                    (at, piece) = (at + now.len(), later);
                }
                net.send_datagram(Datagram { local, remote, payload: block.freeze(at) }).ok()
            });
            if sent.is_none() {
                // Nobody can make anything of the others.
                self.counts.add(Count::UdpDropped);
                break;
            }
        }
        drop(pieces);
        self.host.wrote(len + usize::from(total) * udp::HEADER);
        self.replies.clear();
    }
}

/// What of a datagram's last request is not in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// The end of its line, or it is longer than a line may be.
    Line,
    /// The end of its data.
    Data,
}

/// The requests of a datagram, one after the other.
struct Requests<'a> {
    parser: Parser,
    limits: Limits,
    rest: &'a [u8],
}

impl<'a> Requests<'a> {
    fn new(requests: &'a [u8], limits: Limits) -> Self {
        // None is received in parts.
        Requests { parser: Parser::default(), limits: Limits { long: usize::MAX, ..limits }, rest: requests }
    }
}

impl<'a> Iterator for Requests<'a> {
    type Item = Result<(Request<'a>, Data<'a>), Cut>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let rest = self.rest;
            match self.parser.parse(rest, &self.limits) {
                Ok(Parsed::Request { request, data, len }) => {
                    self.rest = &rest[len..];
                    return Some(Ok((request, data)));
                }
                Ok(Parsed::Skip(len)) => self.rest = &rest[len..],
                Ok(Parsed::Partial(_) | Parsed::Long { .. }) if memchr::memchr(b'\n', rest).is_some() => {
                    self.rest = &[];
                    return Some(Err(Cut::Data));
                }
                Ok(Parsed::Partial(_) | Parsed::Long { .. }) | Err(LongLine) => {
                    self.rest = &[];
                    return Some(Err(Cut::Line));
                }
            }
        }
        None
    }
}
