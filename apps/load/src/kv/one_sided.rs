//! GETs that the server has no part in: values that this end reads by itself, out of what the server exports.

use super::ask::Ask;
use super::numbers::{self, Nonsense, Said};
use super::reply::{Known, Wrong, check};
use super::request::Request;
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{Bytes, ConnId, OneSidedError, OneSidedOp, RemoteAddr, Transport};
use linerate_kv::export::{Candidate, Extent, Layout, Next, Search};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::{AddAssign, Range};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::keys::key;

/// How often what is being changed is read again before the server is asked.
const TRIES: u32 = 8;

/// How long what was read of floors serves GETs that begin later: so late a flush may be noticed.
const FRESH: Duration = Duration::from_millis(10);

/// Where a server's export is, and how it lies there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exported {
    place: RemoteAddr,
    layout: Layout,
}

/// How GETs went that were not asked for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Reads {
    /// READs.
    pub reads: u64,
    /// GETs whose value they brought.
    pub found: u64,
    /// READs of what was being changed, after which there were others.
    pub torn: u64,
    /// GETs that the server was asked for in the end: of what it does not export, or is changed all the time.
    pub asked: u64,
}

impl AddAssign for Reads {
    fn add_assign(&mut self, other: Reads) {
        self.reads += other.reads;
        self.found += other.found;
        self.torn += other.torn;
        self.asked += other.asked;
    }
}

/// A GET on its way.
#[derive(Debug)]
struct Lane {
    request: Request,
    row: Option<Bytes>,
    candidate: Option<Candidate>,
    /// The candidate's record, which waits for floors.
    record: Option<Bytes>,
    /// The READ of floors that it goes by, or a later one.
    floors: u64,
    tries: u32,
}

/// The floors of a connection's GETs: one READ is for all that have begun before it or [soon](FRESH) after, and there is one at a time.
#[derive(Debug, Default)]
struct Floors {
    /// READs that have begun, those that are done, and the last that somebody waits for.
    begun: u64,
    done: u64,
    wanted: u64,
    /// When the last began.
    begun_at: Option<Instant>,
    bytes: Option<Bytes>,
}

/// What READs of floors are known by; those of GETs, by their places.
const FLOORS: u64 = u64::MAX;

/// A connection's GETs on their way.
#[derive(Debug, Default)]
pub struct Lanes {
    lanes: Vec<Option<Lane>>,
    free: Vec<usize>,
    floors: Floors,
    /// The places of those whose record has come, in the order in which it has.
    waiting: VecDeque<usize>,
}

/// What has come of a GET.
pub enum Outcome {
    /// This is its value, in what was read.
    Found(Request, Bytes, Range<usize>),
    /// The server has to be asked.
    Ask(Request),
}

/// The connection on which something is read, and where.
pub struct Reader<'a, T> {
    pub net: &'a mut T,
    pub conn: ConnId,
    pub exported: &'a Exported,
    pub counts: &'a mut Reads,
}

impl Exported {
    /// That of the numbers which a server tells in answer to `LINERATE.EXPORT`; `None`, if they make no sense.
    fn of(numbers: [u64; 6]) -> Option<Self> {
        let [address, key, seed, shards, rows, log] = numbers;
        let layout = Layout::new(seed, shards.try_into().ok()?, rows.try_into().ok()?, log.try_into().ok()?)?;
        address.checked_add(layout.bytes())?;
        Some(Exported { place: RemoteAddr { address, key: key.try_into().ok()? }, layout })
    }
}

impl<T: Transport> Reader<'_, T> {
    fn read(&mut self, extent: Extent, token: u64) -> Result<(), OneSidedError> {
        let RemoteAddr { address, key } = self.exported.place;
        let len = u32::try_from(extent.len).map_err(|_| OneSidedError::NoRoom)?;
        self.net.post_one_sided(self.conn, OneSidedOp::Read { address: address + extent.at, key, len }, token)?;
        self.counts.reads += 1;
        Ok(())
    }
}

impl Floors {
    /// Sees to it that the READ of this number is on its way, or will be when the one before it is done.
    fn want(&mut self, number: u64, reader: &mut Reader<'_, impl Transport>) -> Result<(), OneSidedError> {
        self.wanted = self.wanted.max(number);
        if self.begun < self.wanted && self.begun == self.done {
            reader.read(reader.exported.layout.floors(), FLOORS)?;
            self.begun += 1;
            self.begun_at = Some(reader.net.now());
        }
        Ok(())
    }

    /// The READ that a GET goes by which begins at `now`.
    fn of_now(&self, now: Instant) -> u64 {
        let is_fresh = self.begun_at.is_some_and(|at| now < at + FRESH);
        self.begun + u64::from(!is_fresh)
    }
}

impl Lanes {
    /// GETs on their way.
    pub fn len(&self) -> usize {
        self.lanes.len() - self.free.len()
    }

    /// Begins to read the value of a GET. It comes back when nothing can be read now.
    pub fn begin(&mut self, reader: &mut Reader<'_, impl Transport>, request: Request) -> Result<(), Request> {
        let token = self.free.pop().unwrap_or_else(|| {
            self.lanes.push(None);
            self.lanes.len() - 1
        });
        let name = key(request.number);
        let search = Search::new(&reader.exported.layout, &name);
        let floors = self.floors.of_now(reader.net.now());
        let is_begun = self.floors.want(floors, reader).is_ok() && reader.read(search.row(), token as u64).is_ok();
        if !is_begun {
            self.free.push(token);
            return Err(request);
        }
        self.lanes[token] = Some(Lane { request, row: None, candidate: None, record: None, floors, tries: 0 });
        Ok(())
    }

    /// `bytes` have been read with this `token`. What has come of GETs by that is [`next`](Self::next).
    pub fn done(&mut self, reader: &mut Reader<'_, impl Transport>, (token, bytes): (u64, Bytes)) {
        if token == FLOORS {
            self.floors.done = self.floors.begun;
            self.floors.bytes = Some(bytes);
            // If that cannot begin now, it does when somebody comes to wait for it.
            let _ = self.floors.want(0, reader);
            return;
        }
        let token = token as usize;
        let Some(Some(lane)) = self.lanes.get_mut(token) else { return };
        if lane.candidate.is_some() {
            lane.record = Some(bytes);
        } else {
            let name = key(lane.request.number);
            let next = Search::new(&reader.exported.layout, &name).in_row(&bytes);
            lane.row = Some(bytes);
            if lane.go_on(&next, token, &mut self.floors, reader) {
                return;
            }
        }
        self.waiting.push_back(token);
    }

    /// What has come of the next of the GETs of which something has come, at `now` milliseconds since 1970.
    pub fn next(&mut self, reader: &mut Reader<'_, impl Transport>, now: u64) -> Option<Outcome> {
        while let Some(&token) = self.waiting.front() {
            let Some(Some(lane)) = self.lanes.get_mut(token) else {
                self.waiting.pop_front();
                continue;
            };
            let name = key(lane.request.number);
            let search = Search::new(&reader.exported.layout, &name);
            let mut next = Next::Absent;
            if let (Some(record), Some(row), Some(candidate)) = (&lane.record, &lane.row, lane.candidate) {
                let can_wait = self.floors.want(lane.floors, reader).is_ok();
                if self.floors.done < lane.floors && can_wait {
                    return None;
                }
                if let Some(floors) = self.floors.bytes.as_ref().filter(|_| self.floors.done >= lane.floors) {
                    next = search.in_record(candidate, record, (row, floors), now);
                }
            }
            self.waiting.pop_front();
            if lane.go_on(&next, token, &mut self.floors, reader) {
                continue;
            }
            let Some(lane) = self.lanes[token].take() else { continue };
            self.free.push(token);
            if let (Next::Found(value), Some(record)) = (next, lane.record) {
                reader.counts.found += 1;
                return Some(Outcome::Found(lane.request, record, value));
            }
            reader.counts.asked += 1;
            return Some(Outcome::Ask(lane.request));
        }
        None
    }
}

impl Lane {
    /// Reads what `next` says, if it says so and that can be read. Returns whether it is being read.
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

/// Compares a value that was read with what may have been written.
pub fn verify(value: &[u8], request: &Request, known: Known<'_>) -> Result<(), Wrong> {
    check(value, request, known)
}

impl Ask<Option<Exported>> {
    /// Asks the server at `remote` where its export is; it may have none.
    pub fn export(remote: SocketAddr, is_over: Arc<AtomicBool>) -> Self {
        Ask::new(remote, b"*1\r\n$15\r\nLINERATE.EXPORT\r\n", parse, is_over)
    }
}

/// What an answer says, once it is all there.
fn parse(answer: &[u8]) -> Result<Option<Option<Exported>>, Nonsense> {
    let exported = match numbers::parse(answer)? {
        None => return Ok(None),
        Some((Said::Numbers(numbers), _)) => Some(Exported::of(numbers).ok_or(Nonsense)?),
        // What is not known there is not exported.
        Some((Said::Nothing | Said::Error(_), _)) => None,
    };
    Ok(Some(exported))
}

#[cfg(test)]
mod tests;
