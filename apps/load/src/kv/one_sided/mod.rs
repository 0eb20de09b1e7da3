//! One-sided GETs: values that this end READs from the memory that the server exports.

mod places;

pub use places::KnownPlaces;

use super::keyspace::key;
use super::protocol::{Expected, Malformed, NumbersReply, Query, Request, Wrong, check, parse_numbers};
use linerate_kv::export::{Candidate, Extent, Layout, Next, Search};
use linerate_service::time::{Duration, Instant};
use linerate_service::{Bytes, ConnId, OneSidedError, OneSidedOp, RemoteAddr, Transport};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::{AddAssign, Range};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Attempts to read a record that is being changed before the GET is sent to the server.
const TRIES: u32 = 8;

/// Time for which floors that were read serve later GETs: a flush may be noticed this late.
const FRESH: Duration = Duration::from_millis(10);

/// Minimum interval of touches of a connection: GETs sent to the server, so that it does not evict keys that are read
/// one-sided only. The interval limits the wake-ups of an idle server.
const TOUCH: Duration = Duration::from_millis(250);

/// Address and layout of a server's export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exported {
    addr: RemoteAddr,
    layout: Layout,
    /// Upper bound of the lead of the server's clock over the local clock in milliseconds; wraps if it is negative.
    clock_offset: u64,
}

/// Counters of one-sided GETs.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct OneSidedStats {
    pub reads: u64,
    /// GETs whose value was found.
    pub found: u64,
    /// READs of a record that was being changed, which were repeated.
    pub torn: u64,
    /// READs of the known place of a record that was superseded.
    pub superseded: u64,
    /// GETs sent to the server to refresh its order of eviction.
    pub touches: u64,
    /// GETs sent to the server because the key is not exported or its record changes constantly.
    pub fallbacks: u64,
}

impl AddAssign for OneSidedStats {
    fn add_assign(&mut self, other: OneSidedStats) {
        self.reads += other.reads;
        self.found += other.found;
        self.torn += other.torn;
        self.superseded += other.superseded;
        self.touches += other.touches;
        self.fallbacks += other.fallbacks;
    }
}

/// An outstanding GET.
#[derive(Debug)]
struct PendingGet {
    request: Request,
    /// Row of the key; `None` also while the candidate is a known place.
    row: Option<Bytes>,
    candidate: Option<Candidate>,
    /// The candidate's record, while it waits for floors.
    record: Option<Bytes>,
    /// Smallest number of a READ of floors that suffices for this GET.
    floors: u64,
    tries: u32,
}

/// Floors for a connection's GETs. One READ serves all GETs that began before it or [shortly](FRESH) after; one is
/// outstanding at a time.
#[derive(Debug, Default)]
struct Floors {
    /// Numbers of the last READ begun, completed, and needed.
    begun: u64,
    done: u64,
    wanted: u64,
    /// Begin time of the last READ.
    begun_at: Option<Instant>,
    bytes: Option<Bytes>,
}

/// Token of READs of floors. GETs have their index as token.
const FLOORS: u64 = u64::MAX;

/// A connection's outstanding GETs.
#[derive(Debug, Default)]
pub struct PendingGets {
    gets_pending: Vec<Option<PendingGet>>,
    free: Vec<usize>,
    floors: Floors,
    /// Indices of GETs whose record has arrived, in order of arrival.
    waiting: VecDeque<usize>,
    /// Time of the next touch.
    touch_at: Option<Instant>,
}

/// Result of a GET.
pub enum GetOutcome {
    /// Value, as a range of the record that was read.
    Found(Request, Bytes, Range<usize>),
    /// The request must be sent to the server.
    Fallback(Request),
}

/// Connection and export of a READ.
pub struct Reader<'a, T> {
    pub net: &'a mut T,
    pub conn: ConnId,
    pub exported: &'a Exported,
    pub counts: &'a mut OneSidedStats,
    pub places: &'a mut KnownPlaces,
}

impl Exported {
    /// Creates the export from the numbers in an answer to `LINERATE.EXPORT`; `None` if they are invalid. The last
    /// number is the server's clock in milliseconds since 1970.
    fn from_numbers(numbers: [u64; 7]) -> Option<Self> {
        let [address, key, seed, shards, rows, log, clock] = numbers;
        let layout = Layout::new(seed, shards.try_into().ok()?, rows.try_into().ok()?, log.try_into().ok()?)?;
        address.checked_add(layout.bytes())?;
        let addr = RemoteAddr { address, key: key.try_into().ok()? };
        Some(Exported { addr, layout, clock_offset: clock })
    }

    /// Computes the clock offset. The query was sent at the local time `asked` in milliseconds or later, so the
    /// server's clock is never underestimated: a GET of a key that is about to expire may be sent to the server, but no
    /// expired value is found. Called once.
    pub fn asked_at(self, asked: u64) -> Self {
        Exported { clock_offset: self.clock_offset.wrapping_sub(asked), ..self }
    }

    /// Returns the server's clock at the local time `now`.
    pub(super) fn clock(&self, now: u64) -> u64 {
        now.wrapping_add(self.clock_offset)
    }
}

impl<T: Transport> Reader<'_, T> {
    fn read(&mut self, extent: Extent, token: u64) -> Result<(), OneSidedError> {
        let RemoteAddr { address, key } = self.exported.addr;
        let len = u32::try_from(extent.len).map_err(|_| OneSidedError::NoRoom)?;
        self.net.post_one_sided(self.conn, OneSidedOp::Read { address: address + extent.at, key, len }, token)?;
        self.counts.reads += 1;
        Ok(())
    }
}

impl Floors {
    /// Ensures that the READ of floors with this number has begun, or begins when the outstanding one completes.
    fn want(&mut self, number: u64, reader: &mut Reader<'_, impl Transport>) -> Result<(), OneSidedError> {
        self.wanted = self.wanted.max(number);
        if self.begun < self.wanted && self.begun == self.done {
            reader.read(reader.exported.layout.floors(), FLOORS)?;
            self.begun += 1;
            self.begun_at = Some(reader.net.now());
        }
        Ok(())
    }

    /// Returns the number of the READ of floors that serves a GET beginning at `now`.
    fn of_now(&self, now: Instant) -> u64 {
        let is_fresh = self.begun_at.is_some_and(|at| now < at + FRESH);
        self.begun + u64::from(!is_fresh)
    }
}

impl PendingGets {
    /// Returns the number of outstanding GETs.
    pub fn len(&self) -> usize {
        self.gets_pending.len() - self.free.len()
    }

    /// Starts a one-sided GET; returns the request if no READ can be posted now.
    pub fn begin(&mut self, reader: &mut Reader<'_, impl Transport>, request: Request) -> Result<(), Request> {
        let token = self.free.pop().unwrap_or_else(|| {
            self.gets_pending.push(None);
            self.gets_pending.len() - 1
        });
        let name = key(request.number);
        let search = Search::new(&reader.exported.layout, &name);
        let floors = self.floors.of_now(reader.net.now());
        let known = reader.places.get(request.number);
        let extent = known.map_or_else(|| search.row(), |candidate| candidate.extent);
        let is_begun = self.floors.want(floors, reader).is_ok() && reader.read(extent, token as u64).is_ok();
        if !is_begun {
            self.free.push(token);
            return Err(request);
        }
        self.gets_pending[token] =
            Some(PendingGet { request, row: None, candidate: known, record: None, floors, tries: 0 });
        Ok(())
    }

    /// Iterates over the requests of the outstanding GETs.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.gets_pending.iter().flatten().map(|get| &get.request)
    }

    /// Returns true if the GET of key `number` at `now` is to be sent to the server as a touch.
    pub fn touches(&mut self, places: &mut KnownPlaces, number: u64, now: Instant) -> bool {
        let is_due = now >= *self.touch_at.get_or_insert(now + TOUCH) && places.touch(number, now);
        if is_due {
            self.touch_at = Some(now + TOUCH);
        }
        is_due
    }

    /// Processes a completed READ. [`next`](Self::next) returns the results.
    pub fn done(&mut self, reader: &mut Reader<'_, impl Transport>, (token, bytes): (u64, Bytes)) {
        if token == FLOORS {
            self.floors.done = self.floors.begun;
            self.floors.bytes = Some(bytes);
            // If this READ cannot be posted now, the first GET that needs it posts it.
            let _ = self.floors.want(0, reader);
            return;
        }
        let token = token as usize;
        let Some(Some(get)) = self.gets_pending.get_mut(token) else { return };
        if get.candidate.is_some() {
            get.record = Some(bytes);
        } else {
            let name = key(get.request.number);
            let next = Search::new(&reader.exported.layout, &name).in_row(&bytes);
            get.row = Some(bytes);
            if get.go_on(&next, token, &mut self.floors, reader) {
                return;
            }
        }
        self.waiting.push_back(token);
    }

    /// Returns the next result, given the server's clock `now` in milliseconds since 1970.
    pub fn next(&mut self, reader: &mut Reader<'_, impl Transport>, now: u64) -> Option<GetOutcome> {
        while let Some(&token) = self.waiting.front() {
            let Some(Some(get)) = self.gets_pending.get_mut(token) else {
                self.waiting.pop_front();
                continue;
            };
            let name = key(get.request.number);
            let search = Search::new(&reader.exported.layout, &name);
            let mut next = Next::Absent;
            let mut is_superseded = false;
            if let (Some(record), Some(candidate)) = (&get.record, get.candidate) {
                let can_wait = self.floors.want(get.floors, reader).is_ok();
                if self.floors.done < get.floors && can_wait {
                    return None;
                }
                if let Some(floors) = self.floors.bytes.as_ref().filter(|_| self.floors.done >= get.floors) {
                    let (number, places) = (get.request.number, &mut *reader.places);
                    if let Some(row) = &get.row {
                        next = search.in_record(candidate, record, (row, floors), now);
                        if matches!(next, Next::Found(_)) && search.is_current(candidate, record) {
                            places.found(number, candidate);
                        }
                    } else if let Some(known) = search.in_known_record(candidate, record, floors, now) {
                        next = known;
                        places.confirmed(number);
                    } else {
                        is_superseded = true;
                        places.superseded(number);
                    }
                }
            }
            self.waiting.pop_front();
            if is_superseded && get.read_row(token, reader) || get.go_on(&next, token, &mut self.floors, reader) {
                continue;
            }
            let Some(get) = self.gets_pending[token].take() else { continue };
            self.free.push(token);
            if let (Next::Found(value), Some(record)) = (next, get.record) {
                reader.counts.found += 1;
                return Some(GetOutcome::Found(get.request, record, value));
            }
            reader.counts.fallbacks += 1;
            return Some(GetOutcome::Fallback(get.request));
        }
        None
    }
}

impl PendingGet {
    /// Restarts with the row after the READ of a superseded record at a known place. A GET restarts at most once,
    /// because it then has no known place. Returns whether a READ was posted.
    fn read_row(&mut self, token: usize, reader: &mut Reader<'_, impl Transport>) -> bool {
        reader.counts.superseded += 1;
        (self.candidate, self.record) = (None, None);
        let name = key(self.request.number);
        let search = Search::new(&reader.exported.layout, &name);
        reader.read(search.row(), token as u64).is_ok()
    }

    /// Posts the READ that `next` requires, if any; returns whether one was posted.
    fn go_on(
        &mut self,
        next: &Next,
        token: usize,
        floors: &mut Floors,
        reader: &mut Reader<'_, impl Transport>,
    ) -> bool {
        let name = key(self.request.number);
        let search = Search::new(&reader.exported.layout, &name);
        match next {
            Next::Read(candidate) => {
                (self.candidate, self.record) = (Some(*candidate), None);
                reader.read(candidate.extent, token as u64).is_ok()
            }
            Next::Retry if self.tries < TRIES => {
                reader.counts.torn += 1;
                self.tries += 1;
                (self.row, self.candidate, self.record) = (None, None, None);
                self.floors = floors.begun + 1;
                floors.want(self.floors, reader).is_ok() && reader.read(search.row(), token as u64).is_ok()
            }
            Next::Found(_) | Next::Retry | Next::Absent => false,
        }
    }
}

/// Checks a value against the values that may have been written.
pub fn verify(value: &[u8], request: &Request, expected: Expected<'_>) -> Result<(), Wrong> {
    check(value, request, expected)
}

impl Query<Option<Exported>> {
    /// Queries the export of the server at `remote`; a server need not have one.
    pub fn export(remote: SocketAddr, is_over: Arc<AtomicBool>) -> Self {
        Query::new(remote, b"*1\r\n$15\r\nLINERATE.EXPORT\r\n", parse, is_over)
    }
}

/// Parses an answer; returns `None` while it is incomplete.
fn parse(answer: &[u8]) -> Result<Option<Option<Exported>>, Malformed> {
    let exported = match parse_numbers(answer)? {
        None => return Ok(None),
        Some((NumbersReply::Numbers(numbers), _)) => Some(Exported::from_numbers(numbers).ok_or(Malformed)?),
        // A server without the command exports nothing.
        Some((NumbersReply::Null | NumbersReply::Error(_), _)) => None,
    };
    Ok(Some(exported))
}

#[cfg(test)]
mod tests;
