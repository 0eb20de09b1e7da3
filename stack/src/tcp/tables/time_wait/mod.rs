//! Connections in TIME-WAIT (RFC 9293 §3.3.2): a record of 48 bytes and a table entry of 16 bytes each.

use crate::tcp::clock::challenge_ack::challenge_time;
use crate::tcp::clock::timestamps::TIMESTAMP_TICK;
use crate::tcp::tables::flow_table::FlowTable;
use crate::wire::tcp::options::Timestamp;
use crate::wire::tcp::seq::Seq;
use crate::wire::tuple::{Address, HashKey, Tuple};
use linerate_service::time::{Duration, Instant};

/// Duration of TIME-WAIT: twice a maximum segment lifetime of 30 s, as on common systems (RFC 9293 §3.4.2 leaves the
/// choice).
const TIME_WAIT: Duration = Duration::from_secs(60);

/// Maximum records that one call of [`TimeWait::expire`] removes: a few microseconds of work.
const BATCH: usize = 64;

/// Length of a tick, the unit of deadlines, in nanoseconds, as a power of two: 1.05 ms. A coarser unit would delay the
/// reuse of a port, for which the time of entry is derived from the deadline.
const TICK_SHIFT: u32 = 20;

/// End of a list.
const NONE: u32 = u32::MAX;

/// Connection that enters TIME-WAIT.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeWaitEntry {
    /// Addresses and ports.
    pub tuple: Tuple,
    /// SND.NXT: the sequence number after the local FIN.
    pub next: Seq,
    /// RCV.NXT: the sequence number after the peer's FIN.
    pub peer_next: Seq,
    /// TS.Recent, if timestamps were negotiated.
    pub ts_recent: Option<u32>,
    /// Last window field sent.
    pub window: u16,
}

/// Fields of a received segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    pub seq: Seq,
    /// Acknowledgement number; valid with ACK.
    pub ack: Seq,
    /// Control bits, as in byte 13 of the header (RFC 9293 §3.1).
    pub flags: u8,
    pub len: u32,
    /// Timestamps option, if present.
    pub timestamp: Option<Timestamp>,
}

/// Segment without data: `<SEQ=seq><ACK=ack><CTL=ACK>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reply {
    pub seq: Seq,
    pub ack: Seq,
    pub window: u16,
    /// Timestamp to echo, if timestamps were negotiated.
    pub ts_recent: Option<u32>,
}

/// Action for a segment that matches a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Drop the segment.
    Ignore,
    Acknowledge(Reply),
    /// Acknowledge, subject to the rate limit of challenge ACKs (RFC 5961 §7). An attacker may send such segments, and
    /// the peer may respond in kind: without a limit two inconsistent ends would exchange segments forever.
    Challenge(Reply),
    /// Permit a new connection, with an initial sequence number not before `isn_floor`
    /// ([`Secrets::isn_after`](crate::tcp::connection::secrets::Secrets::isn_after)).
    ///
    /// The record remains, so that TIME-WAIT continues if the SYN proves to be an old duplicate (RFC 9293 §3.6.1,
    /// MAY-2). The caller [removes](TimeWait::remove) it when the new connection is established, or at once if it keeps
    /// no state, as with SYN cookies.
    Reopen {
        /// SND.NXT of the old connection.
        isn_floor: Seq,
    },
}

/// Permission to open a connection on the tuple of an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// No record: permitted.
    NoRecord,
    /// Not permitted: the old connection ended too recently, or its segments cannot be distinguished from new ones.
    TooSoon,
    /// Permitted, with an initial sequence number not before `isn_floor`. Timestamps distinguish the old segments.
    Allowed {
        /// SND.NXT of the old connection.
        isn_floor: Seq,
    },
}

/// State of a connection. The tuple is stored in parts, because there are few local addresses.
struct Record {
    remote: Address,
    ports: u32,
    next: Seq,
    peer_next: Seq,
    ts_recent: u32,
    /// Deadline in ticks: the low 32 bits, which repeat after 52 days. [`TimeWait::deadline`] restores the upper bits.
    until: u32,
    /// Record with the next deadline, or the next free slot.
    later: u32,
    /// Record with the previous deadline.
    earlier: u32,
    window: u16,
    local: LocalId,
    marks: Marks,
}

/// Use of timestamps, and time of the last challenge ACK, in one byte.
#[derive(Debug, Clone, Copy)]
struct Marks(u8);

/// TIME-WAIT connections of a worker. Their number is bounded: the oldest ends early to make room for a new one.
pub(crate) struct TimeWait {
    records: Vec<Record>,
    table: FlowTable,
    key: HashKey,
    locals: LocalAddresses,
    /// Head of the list of free slots, linked by `later`.
    free: u32,
    /// Record with the earliest deadline.
    first: u32,
    /// Record with the latest deadline.
    last: u32,
    /// Latest deadline of all records so far, in ticks.
    latest: u64,
    ended_early: u64,
}

impl TimeWait {
    /// Creates a table for `capacity` records, hashed with `key`. Memory is touched on first use.
    pub fn new(capacity: usize, key: HashKey) -> Self {
        let capacity = capacity.min(FlowTable::MAX_CAPACITY);
        TimeWait {
            records: Vec::with_capacity(capacity),
            table: FlowTable::with_capacity(capacity),
            key,
            locals: LocalAddresses::default(),
            free: NONE,
            first: NONE,
            last: NONE,
            latest: 0,
            ended_early: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns the number of records that ended early for lack of room.
    pub fn ended_early(&self) -> u64 {
        self.ended_early
    }

    pub fn contains(&self, tuple: &Tuple) -> bool {
        self.find(tuple).is_some()
    }

    /// Returns whether a connection on `tuple` may be opened. A record permits it once the timestamps of the new
    /// connection exceed all that the old one sent before TIME-WAIT, so that the peer can distinguish the connections
    /// (RFC 6191 §2, seen from the other end; RFC 7323 §5.2).
    pub fn check_reuse(&self, tuple: &Tuple, now: Instant) -> Reuse {
        let Some(record) = self.find(tuple).and_then(|at| self.records.get(at as usize)) else {
            return Reuse::NoRecord;
        };
        let is_past = now + TIME_WAIT > self.deadline(record) + Duration::from_nanos(TIMESTAMP_TICK);
        if record.marks.timestamps() && is_past { Reuse::Allowed { isn_floor: record.next } } else { Reuse::TooSoon }
    }

    /// Adds a record. An existing record of the tuple is replaced.
    pub fn insert(&mut self, closed: TimeWaitEntry, now: Instant) {
        self.remove(&closed.tuple);
        if self.table.capacity() == 0 {
            self.ended_early += 1;
            return;
        }
        if self.table.len() == self.table.capacity() {
            self.end_early();
        }
        let (local, remote, ports) = closed.tuple.parts();
        let local = loop {
            match self.locals.acquire(local) {
                Some(id) => break id,
                None => self.end_early(),
            }
        };
        let record = Record {
            remote,
            ports,
            next: closed.next,
            peer_next: closed.peer_next,
            ts_recent: closed.ts_recent.unwrap_or_default(),
            until: 0,
            later: NONE,
            earlier: NONE,
            window: closed.window,
            local,
            marks: Marks::new(closed.ts_recent.is_some()),
        };
        let at = if self.free == NONE {
            self.records.push(record);
            self.records.len() as u32 - 1
        } else {
            let at = self.free;
            self.free = self.records[at as usize].later;
            self.records[at as usize] = record;
            at
        };
        // The table has room: its capacity equals the capacity for records.
        let _ = self.table.insert(closed.tuple.hash_with(&self.key), at);
        self.append(at, now);
    }

    /// Removes the record of `tuple`. Returns whether there was one.
    #[inline]
    pub fn remove(&mut self, tuple: &Tuple) -> bool {
        let Some(at) = self.find(tuple) else { return false };
        self.end(at);
        true
    }

    /// Returns the action for a segment on `tuple`, or `None` if there is no record.
    #[inline]
    pub fn process(&mut self, tuple: &Tuple, segment: &Segment, now: Instant) -> Option<Action> {
        let at = self.find(tuple)?;
        let (answer, restart) = self.records[at as usize].process(segment);
        if restart {
            self.unlink(at);
            self.append(at, now);
        }
        Some(answer)
    }

    /// Returns whether a challenge ACK may be sent for `tuple` at `now`, and records it. Each connection has a limit of
    /// its own, so that one connection reveals nothing of another (CVE-2016-5696).
    pub fn may_challenge(&mut self, tuple: &Tuple, now: Instant) -> bool {
        let Some(at) = self.find(tuple) else { return false };
        self.records[at as usize].marks.may_challenge(now)
    }

    /// Removes expired records, a batch at a time: while there are more, [`next_deadline`](Self::next_deadline) is in
    /// the past.
    pub fn expire(&mut self, now: Instant) {
        for _ in 0..BATCH {
            match self.records.get(self.first as usize) {
                Some(record) if self.deadline(record) <= now => self.end(self.first),
                _ => return,
            }
        }
    }

    /// Returns the earliest deadline.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.records.get(self.first as usize).map(|record| self.deadline(record))
    }

    fn deadline(&self, record: &Record) -> Instant {
        let before_latest = (self.latest as u32).wrapping_sub(record.until);
        Instant::from_nanos(self.latest.saturating_sub(before_latest.into()) << TICK_SHIFT)
    }

    #[inline]
    fn find(&self, tuple: &Tuple) -> Option<u32> {
        if self.table.is_empty() {
            return None;
        }
        self.table.find(tuple.hash_with(&self.key), |at| self.tuple(at) == *tuple)
    }

    #[inline]
    fn tuple(&self, at: u32) -> Tuple {
        let record = &self.records[at as usize];
        Tuple::from_parts(self.locals.address(record.local), record.remote, record.ports)
    }

    /// Ends the oldest record early.
    fn end_early(&mut self) {
        if self.first != NONE {
            self.end(self.first);
            self.ended_early += 1;
        }
    }

    fn end(&mut self, at: u32) {
        self.table.remove(self.tuple(at).hash_with(&self.key), at);
        self.unlink(at);
        let record = &mut self.records[at as usize];
        self.locals.release(record.local);
        record.later = self.free;
        self.free = at;
    }

    /// Appends the record at `at`, which is in no list, with a deadline of one TIME-WAIT period from `now`.
    fn append(&mut self, at: u32, now: Instant) {
        self.latest = (now + TIME_WAIT).as_nanos().div_ceil(1 << TICK_SHIFT);
        let last = self.last;
        let record = &mut self.records[at as usize];
        record.until = self.latest as u32;
        (record.earlier, record.later) = (last, NONE);
        match self.records.get_mut(last as usize) {
            Some(before) => before.later = at,
            None => self.first = at,
        }
        self.last = at;
    }

    /// Removes the record at `at` from the list.
    fn unlink(&mut self, at: u32) {
        let Record { earlier, later, .. } = self.records[at as usize];
        match self.records.get_mut(earlier as usize) {
            Some(before) => before.later = later,
            None => self.first = later,
        }
        match self.records.get_mut(later as usize) {
            Some(next) => next.earlier = earlier,
            None => self.last = earlier,
        }
    }
}

impl Marks {
    const TIMESTAMPS: u8 = 1 << 7;

    fn new(timestamps: bool) -> Self {
        Marks(if timestamps { Self::TIMESTAMPS } else { 0 })
    }

    fn timestamps(self) -> bool {
        self.0 & Self::TIMESTAMPS != 0
    }

    /// Returns whether a challenge ACK may be sent at `now`, and records it.
    fn may_challenge(&mut self, now: Instant) -> bool {
        let time = challenge_time(self.0 & !Self::TIMESTAMPS, now);
        self.0 = self.0 & Self::TIMESTAMPS | time.unwrap_or(self.0);
        time.is_some()
    }
}

impl Record {
    /// Returns the action for `segment`, and whether the TIME-WAIT period restarts.
    fn process(&mut self, segment: &Segment) -> (Action, bool) {
        const FIN: u8 = 1;
        const SYN: u8 = 2;
        const RST: u8 = 4;
        const ACK: u8 = 16;
        let has = |flag| segment.flags & flag != 0;
        // RFC 1337 §3, F1: a RST does not end TIME-WAIT.
        if has(RST) {
            return (Action::Ignore, false);
        }
        if has(SYN) {
            let begins = !has(ACK) && !has(FIN) && self.may_reopen(segment);
            // RFC 9293 §3.10.7.4, fourth: any other SYN elicits a challenge ACK, whatever its sequence number.
            let answer = if begins { Action::Reopen { isn_floor: self.next } } else { Action::Challenge(self.reply()) };
            return (answer, false);
        }
        // RFC 9293 §3.10.7.4, fifth. RFC 7323 §3.2: every segment carries timestamps once they are negotiated.
        if !has(ACK) || self.marks.timestamps() && segment.timestamp.is_none() {
            return (Action::Ignore, false);
        }
        // PAWS (RFC 7323 §5.3, R1), and acknowledgements of data that was never sent (RFC 5961 §5.2).
        let advance =
            segment.timestamp.filter(|_| self.marks.timestamps()).map(|t| t.value.wrapping_sub(self.ts_recent) as i32);
        let credible = advance.is_none_or(|advance| advance >= 0) && !segment.ack.after(self.next);
        let span = segment.len + u32::from(has(FIN));
        // The peer can only retransmit a segment that ends with its FIN, or send one without data after it.
        let end = segment.seq + span;
        let expected = credible && end == self.peer_next && (has(FIN) || segment.len == 0);
        if expected && let Some(timestamp) = segment.timestamp.filter(|_| self.marks.timestamps()) {
            // RFC 7323 §4.3.
            self.ts_recent = timestamp.value;
        }
        match span {
            0 if expected => (Action::Ignore, false),
            0 => (Action::Challenge(self.reply()), false),
            // RFC 9293 §3.10.7.4: "Acknowledge it, and restart the 2 MSL timeout."
            _ => (Action::Acknowledge(self.reply()), expected),
        }
    }

    /// Returns whether a SYN may open a new connection (RFC 6191 §2).
    fn may_reopen(&self, segment: &Segment) -> bool {
        // Greater than the last sequence number seen, the sequence number of the peer's FIN.
        let beyond = segment.seq.at_or_after(self.peer_next);
        match segment.timestamp {
            Some(timestamp) if self.marks.timestamps() => match timestamp.value.wrapping_sub(self.ts_recent) as i32 {
                0 => beyond,
                advance => advance > 0,
            },
            // Old segments carry no timestamps, and are distinguished from new ones.
            Some(_) => true,
            None => beyond,
        }
    }

    fn reply(&self) -> Reply {
        let ts_recent = self.marks.timestamps().then_some(self.ts_recent);
        Reply { seq: self.next, ack: self.peer_next, window: self.window, ts_recent }
    }
}

/// Identifier of a local address, in one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LocalId(u8);

/// Local addresses with the number of records that use them.
#[derive(Default)]
struct LocalAddresses(Vec<(Address, u32)>);

impl LocalAddresses {
    /// Returns the identifier of `address`, in use until it is released. Returns `None` if 256 other addresses are in
    /// use.
    fn acquire(&mut self, address: Address) -> Option<LocalId> {
        let at = self.0.iter().position(|(held, _)| *held == address);
        let at = at.or_else(|| self.0.iter().position(|(_, holders)| *holders == 0)).unwrap_or(self.0.len());
        let id = LocalId(u8::try_from(at).ok()?);
        match self.0.get_mut(at) {
            Some((held, holders)) => {
                *held = address;
                *holders += 1;
            }
            None => self.0.push((address, 1)),
        }
        Some(id)
    }

    fn release(&mut self, id: LocalId) {
        self.0[usize::from(id.0)].1 -= 1;
    }

    #[inline]
    fn address(&self, id: LocalId) -> Address {
        self.0[usize::from(id.0)].0
    }
}

#[cfg(test)]
mod tests;
