//! Messages of a test over an established connection.

use super::parameters::{AtomicKind, Kind, RemoteMemory, Verb};
use super::prepared::Prepared;
use super::{Parameters, PerfError, Turn};
use linerate_bypass::time::{Duration, Instant};
use linerate_rdma::provider::{Provider, WcStatus};
use linerate_rdma::verbs::{Atomic, Message, Qp, Rts};

/// Completions polled at a time, as in perftest.
const BATCH: usize = 16;

/// End with an established connection.
pub(super) struct Run<C: Provider> {
    parameters: Parameters,
    is_client: bool,
    /// This end has measured requests.
    sends: bool,
    /// This end may start.
    is_begun: bool,
    prepared: Prepared<C>,
    qp: Qp<C, Rts>,
    /// Memory of the peer.
    memory: (u64, u32),
    /// Measured requests posted.
    posted: u64,
    /// Messages received.
    received: u64,
    /// WRITEs of the peer observed.
    seen: u64,
    /// Buffers posted.
    buffers: u64,
    /// Time of the last post.
    last: Instant,
    first: Option<Instant>,
    /// Time when this end completed its messages.
    through: Option<Instant>,
    /// The peer's final message was received.
    is_complete: bool,
    /// The connection has ended: only remaining completions are processed.
    is_gone: bool,
}

impl<C: Provider> Run<C> {
    pub fn new(
        parameters: Parameters,
        is_client: bool,
        prepared: Prepared<C>,
        qp: Qp<C, Rts>,
        memory: RemoteMemory,
    ) -> Self {
        Run {
            parameters,
            is_client,
            sends: is_client || parameters.is_mutual(),
            is_begun: is_client,
            prepared,
            qp,
            memory: (memory.address, memory.rkey),
            posted: 0,
            received: 0,
            seen: 0,
            buffers: parameters.buffers(is_client).into(),
            last: Instant::ZERO,
            first: None,
            through: None,
            is_complete: false,
            is_gone: false,
        }
    }

    /// Returns the test parameters.
    pub fn parameters(&self) -> Parameters {
        self.parameters
    }

    /// Records that the connection is established at the other end.
    pub fn established(&mut self) {
        self.is_begun = true;
    }

    /// Records the end of the connection.
    pub fn gone(&mut self) {
        self.is_gone = true;
    }

    /// Returns the number of messages completed: sent ones, or received ones if this end sends none.
    pub fn messages(&self) -> u64 {
        let unacked = match self.parameters.test.kind {
            _ if self.through.is_some() => 0,
            // Completion is known from the peer's reply.
            Kind::Latency => 1,
            Kind::Bandwidth => self.qp.outstanding() as u64,
        };
        if self.sends { self.posted.saturating_sub(unacked) } else { self.received }
    }

    /// Returns the time from the first to the last message.
    pub fn elapsed(&self) -> Duration {
        match (self.first, self.through) {
            (Some(first), Some(through)) => through.since(first),
            _ => Duration::ZERO,
        }
    }

    /// Returns true if the connection is known to be established at the other end.
    pub fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// Probes the peer, unless outstanding requests do so.
    pub fn probe(&mut self) -> Result<(), PerfError> {
        if self.qp.outstanding() == 0 || self.qp.is_silent() {
            self.qp.probe();
            self.qp.flush()?;
        }
        Ok(())
    }

    /// Performs one turn.
    pub fn turn(&mut self, now: &impl Fn() -> Instant) -> Result<Turn, PerfError> {
        let mut turn = if self.poll(now)? { Turn::Worked } else { Turn::Idle };
        if self.through.is_none() {
            let did = match self.parameters.test.kind {
                Kind::Latency => self.one(now)?,
                Kind::Bandwidth => self.many(now)?,
            };
            if did != Turn::Idle {
                turn = did;
            }
            if self.is_through() {
                self.through = Some(now());
                self.qp.send(&mut Message::new(), true).map_err(|_| PerfError::Broken("send queue overflow"))?;
                self.qp.flush()?;
                return Ok(if turn == Turn::Idle { Turn::Worked } else { turn });
            }
        } else if self.is_complete && self.qp.outstanding() == 0 {
            return Ok(Turn::Over);
        }
        match turn {
            Turn::Idle if self.is_gone && self.is_done() => Ok(Turn::Over),
            Turn::Idle if self.is_gone => Err(PerfError::Lost(self.messages())),
            turn => Ok(turn),
        }
    }

    /// Returns true if the end of the connection no longer matters.
    fn is_done(&self) -> bool {
        self.through.is_some() && self.is_complete
    }

    /// Returns true if this end has completed its messages.
    fn is_through(&self) -> bool {
        let Parameters { test, messages, .. } = self.parameters;
        let has_all = self.received == self.expected();
        if self.sends {
            let has_seen = self.seen == messages || test.verb != Verb::Write || test.kind != Kind::Latency;
            self.posted == messages && self.qp.outstanding() == 0 && has_all && has_seen
        } else if self.expected() > 0 {
            has_all
        } else {
            self.is_complete
        }
    }

    /// Returns the number of messages to receive.
    fn expected(&self) -> u64 {
        self.parameters.expected(self.is_client)
    }

    /// Processes completions. Returns true if there were any.
    fn poll(&mut self, now: &impl Fn() -> Instant) -> Result<bool, PerfError> {
        let before = self.received;
        let expected = self.expected();
        let Run { prepared, qp, parameters, received, is_complete, .. } = self;
        let completions = prepared.queue.poll(BATCH)?;
        let any = completions.len() > 0;
        let mut failed: Option<WcStatus> = None;
        // Keeps the first error rather than later flushes.
        let fail = |failed: &mut Option<WcStatus>, status| {
            if failed.is_none_or(|before| before == WcStatus::Flushed) {
                *failed = Some(status);
            }
        };
        for completion in completions {
            if !completion.is_buffer() {
                if let Err(status) = qp.sent(completion) {
                    fail(&mut failed, status);
                }
                continue;
            }
            match qp.arrived(completion) {
                Err(status) => fail(&mut failed, status),
                Ok(_) if *is_complete => return Err(PerfError::Broken("message after the final one")),
                Ok(0) if *received < expected => return Err(PerfError::Broken("final message too early")),
                Ok(0) => *is_complete = true,
                Ok(len) if *received < expected && len == parameters.size as usize => *received += 1,
                Ok(_) => return Err(PerfError::Broken("unexpected message")),
            }
        }
        if let Some(status) = failed.filter(|_| !self.is_done()) {
            return Err(PerfError::Request { status, messages: self.messages() });
        }
        if self.received > before {
            self.is_begun = true;
            if self.first.is_none() {
                self.first = Some(now());
            }
            self.post_again()?;
        }
        Ok(any)
    }

    /// Posts buffers for the remaining messages and the final one.
    fn post_again(&mut self) -> Result<(), PerfError> {
        let to_come = self.expected() + 1 - self.buffers.min(self.expected() + 1);
        let count = (self.qp.recv_room() as u64).min(to_come);
        self.buffers += count;
        self.qp.post_recv_mr(&self.prepared.theirs, self.prepared.buffer.clone(), count as usize)?;
        Ok(())
    }

    /// Performs a step of a latency test.
    fn one(&mut self, now: &impl Fn() -> Instant) -> Result<Turn, PerfError> {
        let Parameters { test, size, messages, .. } = self.parameters;
        let last = size as usize - 1;
        let unacked = self.qp.outstanding();
        let came = match test.verb {
            Verb::Send => self.received,
            Verb::Write if unacked > 0 => return Ok(Turn::Idle),
            Verb::Write => {
                // The last byte counts the messages.
                if self.sends && self.seen < messages && self.prepared.theirs.load(last) == (self.seen + 1) as u8 {
                    self.seen += 1;
                }
                self.seen
            }
            Verb::Read | Verb::Atomic(_) if unacked > 0 || !self.sends => return Ok(Turn::Idle),
            Verb::Read | Verb::Atomic(_) => self.posted,
        };
        // One request is reserved for the final message.
        let has_room = self.qp.room() > 1;
        let is_due = if self.is_client { came == self.posted } else { came > self.posted };
        if self.posted == messages || !is_due || !has_room {
            return Ok(Turn::Idle);
        }
        let posted = now();
        if test.verb == Verb::Write {
            self.prepared.ours.store(last, (self.posted + 1) as u8);
        }
        self.request()?;
        self.qp.flush()?;
        let since = posted.since(std::mem::replace(&mut self.last, posted));
        if self.posted == 1 {
            self.first = Some(posted);
            return Ok(Turn::Worked);
        }
        Ok(Turn::Trip(since))
    }

    /// Performs a step of a bandwidth test.
    fn many(&mut self, now: &impl Fn() -> Instant) -> Result<Turn, PerfError> {
        let Parameters { messages, tx_depth, list, .. } = self.parameters;
        if !self.sends || !self.is_begun {
            return Ok(Turn::Idle);
        }
        let mut turn = Turn::Idle;
        loop {
            let count = (messages - self.posted).min(list.into()) as usize;
            if count == 0 || self.qp.outstanding() + count > tx_depth.into() {
                return Ok(turn);
            }
            if self.posted == 0 {
                self.first = Some(now());
            }
            for _ in 0..count {
                self.request()?;
            }
            self.qp.flush()?;
            turn = Turn::Worked;
        }
    }

    /// Queues the next measured request.
    fn request(&mut self) -> Result<(), PerfError> {
        let Parameters { test, size, messages, .. } = self.parameters;
        self.posted += 1;
        let Run { prepared: Prepared { ours, .. }, qp, memory, .. } = self;
        let (part, is_last) = (0..size as usize, self.posted == messages);
        let noted = match test.verb {
            Verb::Send => qp.send_from_mr(ours, part, is_last),
            Verb::Write => qp.write_from_mr(ours, part, *memory, is_last),
            Verb::Read => qp.read_into_mr(ours, part, *memory, is_last),
            // As in perftest: the values do not matter to the device.
            Verb::Atomic(AtomicKind::FetchAdd) => qp.atomic_into_mr(ours, 0, Atomic::FetchAdd(1), *memory, is_last),
            Verb::Atomic(AtomicKind::CompareSwap) => {
                let atomic = Atomic::CompareSwap { expect: 0, swap: 1 };
                qp.atomic_into_mr(ours, 0, atomic, *memory, is_last)
            }
        };
        noted.map_err(|_| PerfError::Broken("send queue overflow"))
    }
}
