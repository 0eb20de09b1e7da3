//! Connections in TIME-WAIT (RFC 9293 §3.3.2): a record of 48 bytes each, in a table of 16 bytes each.

mod closing;

use crate::engine::TIME_WAIT;
use crate::native::flow_table::FlowTable;
use crate::native::handshake::isn::TIMESTAMP_TICK;
use crate::native::segment::options::Timestamp;
use crate::native::segment::seq::Seq;
use crate::tcp::tuple::{Address, HashKey, Tuple};
use linerate_bypass::time::{Duration, Instant};

/// Records that end in one call of [`TimeWait::expire`]: a few microseconds of work.
const BATCH: usize = 64;

/// Length of a tick, the unit of deadlines, in nanoseconds, as a power of two: 1.05 ms. A coarser unit would delay the reuse of a
/// port, for which the time of entry is derived from the deadline.
const TICK_SHIFT: u32 = 20;

/// Unit of the time between two challenges, in nanoseconds, as a power of two: 134 ms.
const CHALLENGE_SHIFT: u32 = 27;

/// Time between two challenges of one connection (RFC 5961 §7), in units of [`CHALLENGE_SHIFT`]: half a second, as in the other
/// states.
const CHALLENGE_PERIOD: u8 = 4;

/// Period, in units of [`CHALLENGE_SHIFT`], after which the recorded time of a challenge repeats: 17 s. One challenge that is due then
/// may be suppressed; the peer retransmits.
const CHALLENGE_WRAP: u64 = 127;

/// No record: the end of a list.
const NONE: u32 = u32::MAX;

/// A connection that enters TIME-WAIT.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeWaitEntry {
    /// Its name.
    pub tuple: Tuple,
    /// Our next sequence number: the one behind our FIN (SND.NXT).
    pub next: Seq,
    /// The peer's next sequence number: the one behind its FIN (RCV.NXT).
    pub peer_next: Seq,
    /// The last timestamp of the peer (TS.Recent), if timestamps were negotiated.
    pub ts_recent: Option<u32>,
    /// The window that we offered last, as it went on the wire.
    pub window: u16,
}

/// What matters here of a segment that has arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    pub seq: Seq,
    /// Without meaning unless the flags have ACK.
    pub ack: Seq,
    /// The flags as they lie in byte 13 of the header (RFC 9293 §3.1).
    pub flags: u8,
    /// Bytes of payload.
    pub len: u32,
    /// The timestamps option, as far as we use it at all.
    pub timestamp: Option<Timestamp>,
}

/// A segment without data: `<SEQ=seq><ACK=ack><CTL=ACK>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reply {
    pub seq: Seq,
    pub ack: Seq,
    /// As it goes on the wire.
    pub window: u16,
    /// The timestamp to echo; none if timestamps were not negotiated.
    pub ts_recent: Option<u32>,
}

/// What to do with a segment that met a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing.
    Ignore,
    /// Acknowledge again.
    Acknowledge(Reply),
    /// Acknowledge again, unless that was done too often of late (RFC 5961 §7): what the peer may answer in kind, or an
    /// attacker may send. Without a limit two ends that disagree would talk for ever.
    Challenge(Reply),
    /// A new connection may begin, with an initial sequence number that does not come before `isn_floor`
    /// ([`Secrets::isn_after`](crate::native::handshake::isn::Secrets::isn_after)).
    ///
    /// The record stays, so that the connection is in TIME-WAIT as before if the SYN turns out to be an old duplicate
    /// (RFC 9293 §3.6.1, MAY-2). [`TimeWait::remove`] it once the new connection is established; at once if nothing is kept
    /// of it, as with SYN cookies.
    Reopen {
        /// What our next sequence number would have been.
        isn_floor: Seq,
    },
}

/// What is known of an earlier connection to somebody who wants to open another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// Nothing.
    NoRecord,
    /// It has ended just now, or there is no way to tell its segments from new ones.
    TooSoon,
    /// Its segments will not be taken for new ones: another may begin, with an initial sequence number that does not come before
    /// `isn_floor`.
    Allowed {
        /// What our next sequence number would have been.
        isn_floor: Seq,
    },
}

/// What is kept of a connection. The tuple is in parts: our address is one of few.
struct Record {
    remote: Address,
    ports: u32,
    next: Seq,
    peer_next: Seq,
    ts_recent: u32,
    /// Deadline in ticks: the low 32 bits, which repeat after 52 days. [`TimeWait::deadline`] restores the others.
    until: u32,
    /// The record that ends next after this one, or the next free place.
    later: u32,
    /// The record that ends last before this one.
    earlier: u32,
    window: u16,
    local: LocalId,
    marks: Marks,
}

/// Use of timestamps, and time of the last challenge, in one byte.
#[derive(Debug, Clone, Copy)]
struct Marks(u8);

/// The connections of a worker that are in TIME-WAIT: a bounded number, of which the oldest ends early for a new one.
pub(crate) struct TimeWait {
    records: Vec<Record>,
    table: FlowTable,
    key: HashKey,
    locals: LocalAddresses,
    /// Places that are free, linked by `later`.
    free: u32,
    /// The record that ends first.
    first: u32,
    /// The record that ends last.
    last: u32,
    /// Latest deadline of all records so far, in ticks.
    latest: u64,
    ended_early: u64,
}

impl TimeWait {
    /// Room for `capacity` records, with `key` for the table. Memory is touched as it is needed.
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

    /// Records held.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Records that ended before their time because there was no room for them.
    pub fn ended_early(&self) -> u64 {
        self.ended_early
    }

    /// Whether there is a record of `tuple`.
    pub fn contains(&self, tuple: &Tuple) -> bool {
        self.find(tuple).is_some()
    }

    /// Our next sequence number of the connection `tuple`, if there is a record of it that keeps us from opening a new one, or
    /// an old one that does not: what is new then has timestamps that are greater than all that the old one sent before it
    /// was in TIME-WAIT, so that its peer tells one from the other (RFC 6191 §2, seen from the other end; RFC 7323 §5.2).
    pub fn check_reuse(&self, tuple: &Tuple, now: Instant) -> Reuse {
        let Some(record) = self.find(tuple).and_then(|at| self.records.get(at as usize)) else {
            return Reuse::NoRecord;
        };
        let is_past = now + TIME_WAIT > self.deadline(record) + Duration::from_nanos(TIMESTAMP_TICK);
        if record.marks.timestamps() && is_past { Reuse::Allowed { isn_floor: record.next } } else { Reuse::TooSoon }
    }

    /// Notes that a connection has entered TIME-WAIT. A record that is there of its tuple is replaced.
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
        // There is room: the table was made for as many.
        let _ = self.table.insert(closed.tuple.hash_with(&self.key), at);
        self.append(at, now);
    }

    /// Forgets the connection `tuple`; `false` if nothing was known of it.
    #[inline]
    pub fn remove(&mut self, tuple: &Tuple) -> bool {
        let Some(at) = self.find(tuple) else { return false };
        self.end(at);
        true
    }

    /// What a segment on `tuple` gets, or `None` if there is no record of it.
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

    /// Returns true and records the time if a challenge ACK may be sent for `tuple` now. Each connection has a limit of its own, so
    /// that one connection reveals nothing of another (CVE-2016-5696).
    pub fn may_challenge(&mut self, tuple: &Tuple, now: Instant) -> bool {
        let Some(at) = self.find(tuple) else { return false };
        self.records[at as usize].marks.may_challenge(now)
    }

    /// Forgets what has ended, some at a time: while there is more, [`next_deadline`](Self::next_deadline) is past.
    pub fn expire(&mut self, now: Instant) {
        for _ in 0..BATCH {
            match self.records.get(self.first as usize) {
                Some(record) if self.deadline(record) <= now => self.end(self.first),
                _ => return,
            }
        }
    }

    /// When the first record ends.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.records.get(self.first as usize).map(|record| self.deadline(record))
    }

    /// Returns the time at which `record` ends.
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

    /// Ends the oldest record before its time.
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

    /// Puts the record at `at`, which is in no list, behind all others, to end in the time of TIME-WAIT from `now`.
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

    /// Takes the record at `at` out of the list.
    fn unlink(&mut self, at: u32) {
        let Record { earlier, later, .. } = self.records[at as usize];
        match self.records.get_mut(earlier as usize) {
            Some(before) => before.later = later,
            None => self.first = later,
        }
        match self.records.get_mut(later as usize) {
            Some(behind) => behind.earlier = earlier,
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

    /// Returns true and records the time if no challenge was sent within [`CHALLENGE_PERIOD`].
    fn may_challenge(&mut self, now: Instant) -> bool {
        // Zero stands for no challenge.
        let tick = ((now.as_nanos() >> CHALLENGE_SHIFT) % CHALLENGE_WRAP) as u8 + 1;
        let last = self.0 & !Self::TIMESTAMPS;
        let since = if tick >= last { tick - last } else { CHALLENGE_WRAP as u8 - (last - tick) };
        if last != 0 && since < CHALLENGE_PERIOD {
            return false;
        }
        self.0 = self.0 & Self::TIMESTAMPS | tick;
        true
    }
}

impl Record {
    /// What `segment` gets, and whether the time begins anew.
    fn process(&mut self, segment: &Segment) -> (Action, bool) {
        const FIN: u8 = 1;
        const SYN: u8 = 2;
        const RST: u8 = 4;
        const ACK: u8 = 16;
        let has = |flag| segment.flags & flag != 0;
        // RFC 1337 §3, F1: a reset does not end TIME-WAIT.
        if has(RST) {
            return (Action::Ignore, false);
        }
        if has(SYN) {
            let begins = !has(ACK) && !has(FIN) && self.may_reopen(segment);
            // RFC 9293 §3.10.7.4, fourth: any other SYN gets a challenge, whatever its sequence number.
            let answer = if begins { Action::Reopen { isn_floor: self.next } } else { Action::Challenge(self.reply()) };
            return (answer, false);
        }
        // RFC 9293 §3.10.7.4, fifth. RFC 7323 §3.2: once negotiated, timestamps are in every segment.
        if !has(ACK) || self.marks.timestamps() && segment.timestamp.is_none() {
            return (Action::Ignore, false);
        }
        // PAWS (RFC 7323 §5.3, R1), and acknowledgements of what we have never sent (RFC 5961 §5.2).
        let advance =
            segment.timestamp.filter(|_| self.marks.timestamps()).map(|t| t.value.wrapping_sub(self.ts_recent) as i32);
        let credible = advance.is_none_or(|advance| advance >= 0) && !segment.ack.after(self.next);
        let span = segment.len + u32::from(has(FIN));
        // Up to now the peer can only have sent again what ends with its FIN, or nothing behind that.
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

    /// Whether a SYN begins a new connection (RFC 6191 §2).
    fn may_reopen(&self, segment: &Segment) -> bool {
        // Greater than the last sequence number seen, the one of the peer's FIN.
        let beyond = segment.seq.at_or_after(self.peer_next);
        match segment.timestamp {
            Some(timestamp) if self.marks.timestamps() => match timestamp.value.wrapping_sub(self.ts_recent) as i32 {
                0 => beyond,
                advance => advance > 0,
            },
            // Old segments have no timestamps, and will not be taken for new ones.
            Some(_) => true,
            None => beyond,
        }
    }

    fn reply(&self) -> Reply {
        let ts_recent = self.marks.timestamps().then_some(self.ts_recent);
        Reply { seq: self.next, ack: self.peer_next, window: self.window, ts_recent }
    }
}

/// Names one of our addresses in a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LocalId(u8);

/// The addresses of ours that records have, each once, with how many have it.
#[derive(Default)]
struct LocalAddresses(Vec<(Address, u32)>);

impl LocalAddresses {
    /// The name of `address`, held until it is released; `None` if 256 others are held.
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
