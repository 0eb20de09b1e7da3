//! memcached over UDP, without connections and without state per client.
//!
//! The requests of a datagram run together: on this worker if the shards of all keys are present; on another worker if
//! all keys are in its shard, with the source in the batch; otherwise on this worker with borrowed shards. Datagrams
//! wait for the end of the worker's turn, or until [`GROUP`] are queued, so that their items are prefetched together.

use crate::memcached::udp::{self, Frame};
use crate::memcached::{Count, Data, Limits, Parsed, Parser, Request};
use crate::service::Kv;
use crate::service::conn::{DatagramSource, PendingDatagram};
use crate::service::workers::routed::GROUP;
use crate::service::workers::shard_borrow::Job;
use crate::shards::ShardSet;
use crate::value::Sink;
use linerate_bypass::BufferPool;
use linerate_service::{Datagram, Transport};

/// Limit of datagrams whose requests run on other workers or wait for shards.
const MAX_WAITING: usize = 4096;
/// Limit of reply datagrams not sent yet, and number of buffers kept for them.
const MAX_REPLIES: usize = 4096;
const KEPT: usize = 256;

const INCOMPLETE: &[u8] = b"CLIENT_ERROR the request does not end in its datagram\r\n";
/// Reply if the replies do not fit into [`udp::MAX_DATAGRAMS`] datagrams.
const TOO_LONG: &[u8] = b"SERVER_ERROR the reply needs more than 8 datagrams: use a connection\r\n";

/// Datagram state of a worker.
pub(super) struct Datagrams {
    /// Port on which datagrams are answered.
    port: Option<u16>,
    /// Datagrams received in this turn.
    waiting: Vec<PendingDatagram>,
    /// Hashes of the datagrams' first keys that belong to this worker's shard.
    hashes: Vec<u64>,
    /// Number of datagrams that run on other workers or wait for shards.
    pending: usize,
    memory: BufferPool,
}

impl Datagrams {
    pub fn new(port: Option<u16>) -> Self {
        Datagrams {
            port,
            waiting: Vec::new(),
            hashes: Vec::new(),
            pending: 0,
            memory: BufferPool::new(udp::DATAGRAM, KEPT, MAX_REPLIES),
        }
    }
}

impl Kv {
    pub(super) fn take_datagram(&mut self, net: &mut impl Transport, datagram: Datagram) {
        let Datagram { local, remote, payload } = datagram;
        if self.datagrams.port != Some(local.port()) {
            return;
        }
        let id = match Frame::read(&payload) {
            // Requests of several datagrams are ignored, as by memcached.
            Some((Frame { id, total: 1, .. }, requests)) if !requests.is_empty() && remote.port() != 0 => id,
            _ => return self.counts.add(Count::UdpIgnored),
        };
        let hash = self.lookahead_datagram(&payload[udp::HEADER..]);
        self.datagrams.hashes.extend(hash);
        self.datagrams
            .waiting
            .push(PendingDatagram { source: DatagramSource { local, remote, id }, datagram: payload });
        if self.datagrams.waiting.len() == GROUP {
            self.now = self.clock.millis(net.now());
            self.serve_datagrams(net);
        }
    }

    #[inline]
    pub(super) fn serve_datagrams(&mut self, net: &mut impl Transport) {
        if !self.datagrams.waiting.is_empty() {
            if let Some(store) = &self.stores[self.worker] {
                self.datagrams.hashes.iter().for_each(|hash| store.prefetch_item(store.location_hint(*hash)));
            }
            self.datagrams.hashes.clear();
            let mut waiting = std::mem::take(&mut self.datagrams.waiting);
            waiting.drain(..).for_each(|pending| self.serve_datagram(net, pending));
            self.datagrams.waiting = waiting;
        }
    }

    fn serve_datagram(&mut self, net: &mut impl Transport, pending: PendingDatagram) {
        self.server.read(pending.datagram.len());
        if self.drops_in_pause(&pending) {
            return;
        }
        let (needs, can_run_remotely) = match self.stores.len() {
            1 => (ShardSet::NONE, false),
            _ => self.datagram_needs(pending.requests()),
        };
        if self.has(&needs) {
            return self.run_and_answer(net, &pending);
        }
        if self.datagrams.pending == MAX_WAITING {
            return self.counts.add(Count::UdpDropped);
        }
        self.datagrams.pending += 1;
        let mut shards = needs.iter();
        match (shards.next(), shards.next()) {
            (Some(worker), None) if can_run_remotely && worker != self.worker => {
                self.send_for(pending.source, worker, pending.requests());
            }
            _ => self.shard_borrow.queue(needs, Job::Datagram(Box::new(pending))),
        }
    }

    /// Drops a datagram with a request that would wait for the end of a pause. Returns false if there is none.
    fn drops_in_pause(&self, pending: &PendingDatagram) -> bool {
        let mut requests = Requests::new(pending.requests(), self.server.memcached_limits()).flatten();
        let waits = self.server.pause.mode.is_some() && requests.any(|(request, _)| self.must_text_wait(&request));
        if waits {
            self.counts.add(Count::UdpDropped);
        }
        waits
    }

    /// Returns the shards that the requests of a datagram need, and whether another worker can run them.
    fn datagram_needs(&self, requests: &[u8]) -> (ShardSet, bool) {
        let (mut needs, mut can_run_remotely) = (ShardSet::NONE, true);
        for (request, _) in Requests::new(requests, self.server.memcached_limits()).flatten() {
            needs.extend(self.memcached_needs(&request).0);
            can_run_remotely &= !request.needs_all();
        }
        (needs, can_run_remotely)
    }

    /// Runs the requests of a datagram, whose shards are present.
    pub(super) fn run_datagram(&mut self, requests: &[u8]) {
        let mut is_known = false;
        for request in Requests::new(requests, self.server.memcached_limits()) {
            match request {
                Ok((request, _)) if !is_known && request.is_unknown() => return self.counts.add(Count::UdpIgnored),
                Err(Incomplete::Line) if !is_known => return self.counts.add(Count::UdpIgnored),
                // There is no connection to close.
                Ok((request, data)) => _ = self.run_text(&request, data),
                Err(Incomplete::Line | Incomplete::Data) => self.replies.put(INCOMPLETE),
            }
            is_known = true;
        }
        self.counts.add(Count::UdpRequests);
    }

    /// Runs the requests of a datagram, whose shards are present, and replies.
    fn run_and_answer(&mut self, net: &mut impl Transport, pending: &PendingDatagram) {
        self.replies.set_limit(udp::MAX_REPLY as u64);
        self.run_datagram(pending.requests());
        self.replies.set_limit(self.server.settings().output);
        self.answer_datagram(net, &pending.source);
    }

    /// Handles a datagram whose shards have arrived.
    pub(super) fn run_pending_datagram(&mut self, net: &mut impl Transport, pending: &PendingDatagram) {
        self.datagrams.pending -= 1;
        // A pause may have begun while the datagram waited.
        if !self.drops_in_pause(pending) {
            self.run_and_answer(net, pending);
        }
    }

    /// Sends the replies to a datagram that another worker has run.
    pub(super) fn answer_from_elsewhere(&mut self, net: &mut impl Transport, source: &DatagramSource) {
        self.datagrams.pending -= 1;
        self.answer_datagram(net, source);
    }

    fn answer_datagram(&mut self, net: &mut impl Transport, source: &DatagramSource) {
        if self.replies.is_discarded() || self.replies.len() > udp::MAX_REPLY {
            self.replies.clear();
            self.replies.put(TOO_LONG);
        }
        let len = self.replies.len();
        let DatagramSource { local, remote, id } = *source;
        let total = len.div_ceil(udp::DATAGRAM - udp::HEADER) as u16;
        let mut parts = self.replies.parts();
        let mut part: &[u8] = &[];
        for sequence in 0..total {
            let sent = self.datagrams.memory.take().and_then(|mut block| {
                block[..udp::HEADER].copy_from_slice(&Frame { id, sequence, total }.bytes());
                let mut at = udp::HEADER;
                while at < udp::DATAGRAM {
                    if part.is_empty() {
                        let Some(next) = parts.next() else { break };
                        part = next;
                    }
                    let (now, later) = part.split_at(part.len().min(udp::DATAGRAM - at));
                    block[at..at + now.len()].copy_from_slice(now);
                    (at, part) = (at + now.len(), later);
                }
                net.send_datagram(Datagram { local, remote, payload: block.freeze(at) }).ok()
            });
            if sent.is_none() {
                // The remaining datagrams would be useless to the client.
                self.counts.add(Count::UdpDropped);
                break;
            }
        }
        drop(parts);
        self.server.wrote(len + usize::from(total) * udp::HEADER);
        self.replies.clear();
    }
}

/// Part of the last request that is missing from its datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Incomplete {
    /// Line end. The line may also be too long.
    Line,
    /// End of the data block.
    Data,
}

/// Iterator over the requests of a datagram.
struct Requests<'a> {
    parser: Parser,
    limits: Limits,
    rest: &'a [u8],
}

impl<'a> Requests<'a> {
    fn new(requests: &'a [u8], limits: Limits) -> Self {
        // No value is received in parts.
        Requests { parser: Parser::default(), limits: Limits { long: usize::MAX, ..limits }, rest: requests }
    }
}

impl<'a> Iterator for Requests<'a> {
    type Item = Result<(Request<'a>, Data<'a>), Incomplete>;

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
                    return Some(Err(Incomplete::Data));
                }
                Ok(Parsed::Partial(_) | Parsed::Long { .. }) | Err(_) => {
                    self.rest = &[];
                    return Some(Err(Incomplete::Line));
                }
            }
        }
        None
    }
}
