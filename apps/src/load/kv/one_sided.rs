//! GETs that the server has no part in: values that this end reads by itself, out of what the server exports.

use super::ask::Ask;
use super::reply::{Known, Wrong, check};
use super::request::Request;
use linerate_bypass::{Bytes, ConnId, NoRemote, Remote, RemotePlace, Transport};
use linerate_kv::export::{Candidate, Extent, Layout, Next, Search};
use std::net::SocketAddr;
use std::ops::{AddAssign, Range};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::keys::key;

/// How often what is being changed is read again before the server is asked.
const TRIES: u32 = 8;

/// Where a server's export is, and how it lies there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exported {
    place: RemotePlace,
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
    tries: u32,
}

/// A connection's GETs on their way, which READs know by their places.
#[derive(Debug, Default)]
pub struct Lanes {
    lanes: Vec<Option<Lane>>,
    free: Vec<usize>,
}

/// What has come of a GET.
pub enum Outcome {
    /// It goes on.
    Going,
    /// This is its value, in what was read.
    Found(Request, Bytes, Range<usize>),
    /// The server has to be asked.
    Ask(Request),
}

impl Exported {
    /// That of the numbers which a server tells in answer to `LINERATE.EXPORT`; `None`, if they make no sense.
    fn of(numbers: [u64; 6]) -> Option<Self> {
        let [address, key, seed, shards, rows, log] = numbers;
        let layout = Layout::new(seed, shards.try_into().ok()?, rows.try_into().ok()?, log.try_into().ok()?)?;
        address.checked_add(layout.bytes())?;
        Some(Exported { place: RemotePlace { address, key: key.try_into().ok()? }, layout })
    }

    fn read(&self, net: &mut impl Transport, conn: ConnId, extent: Extent, token: usize) -> Result<(), NoRemote> {
        let RemotePlace { address, key } = self.place;
        let len = u32::try_from(extent.len).map_err(|_| NoRemote::NoRoom)?;
        net.begin_remote(conn, Remote::Read { address: address + extent.at, key, len }, token as u64)
    }
}

impl Lanes {
    /// GETs on their way.
    pub fn len(&self) -> usize {
        self.lanes.len() - self.free.len()
    }

    /// Begins to read the value of a GET. It comes back when nothing can be read now.
    pub fn begin(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        exported: &Exported,
        request: Request,
        counts: &mut Reads,
    ) -> Result<(), Request> {
        let token = self.free.pop().unwrap_or_else(|| {
            self.lanes.push(None);
            self.lanes.len() - 1
        });
        let name = key(request.number);
        if exported.read(net, conn, Search::new(&exported.layout, &name).row(), token).is_err() {
            self.free.push(token);
            return Err(request);
        }
        counts.reads += 1;
        self.lanes[token] = Some(Lane { request, row: None, candidate: None, tries: 0 });
        Ok(())
    }

    /// `bytes` have been read for the GET of this `token`, at `now` milliseconds since 1970.
    pub fn done(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        exported: &Exported,
        (token, bytes): (u64, Bytes),
        now: u64,
        counts: &mut Reads,
    ) -> Outcome {
        let token = token as usize;
        let Some(mut lane) = self.lanes.get_mut(token).and_then(Option::take) else { return Outcome::Going };
        let name = key(lane.request.number);
        let search = Search::new(&exported.layout, &name);
        let next = match (&lane.row, lane.candidate) {
            (Some(row), Some(candidate)) => search.in_record(candidate, &bytes, row, now),
            _ => {
                let next = search.in_row(&bytes);
                lane.row = Some(bytes.clone());
                next
            }
        };
        let again = match next {
            Next::Found(value) => {
                counts.found += 1;
                self.free.push(token);
                return Outcome::Found(lane.request, bytes, value);
            }
            Next::Read(candidate) => {
                lane.candidate = Some(candidate);
                Some(candidate.extent)
            }
            Next::Retry if lane.tries < TRIES => {
                counts.torn += 1;
                lane.tries += 1;
                (lane.row, lane.candidate) = (None, None);
                Some(search.row())
            }
            Next::Retry | Next::Absent => None,
        };
        match again {
            Some(extent) if exported.read(net, conn, extent, token).is_ok() => {
                counts.reads += 1;
                self.lanes[token] = Some(lane);
                Outcome::Going
            }
            _ => {
                counts.asked += 1;
                self.free.push(token);
                Outcome::Ask(lane.request)
            }
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

/// What an answer says, once it is all there; `Err` if it is no such answer.
fn parse(answer: &[u8]) -> Result<Option<Option<Exported>>, ()> {
    let text = std::str::from_utf8(answer).map_err(|_| ())?;
    let lines: Vec<&str> = text.split("\r\n").collect();
    match lines[..] {
        // What is not known there is not exported.
        ["$-1" | "_", ..] => Ok(Some(None)),
        [first, _, ..] if first.starts_with('-') => Ok(Some(None)),
        ["*6", _, a, _, b, _, c, _, d, _, e, _, f, _, ..] => {
            let numbers = [a, b, c, d, e, f].map(str::parse::<u64>);
            if numbers.iter().any(Result::is_err) {
                return Err(());
            }
            Exported::of(numbers.map(|number| number.unwrap_or(0))).map(|exported| Some(Some(exported))).ok_or(())
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_understood_once_it_is_whole() {
        let answer =
            b"*6\r\n$5\r\n65536\r\n$1\r\n7\r\n$20\r\n18446744073709551615\r\n$1\r\n2\r\n$3\r\n100\r\n$4\r\n1000\r\n";
        for end in 0..answer.len() {
            assert_eq!(parse(&answer[..end]), Ok(None), "{end}");
        }
        let layout = Layout::new(u64::MAX, 2, 100, 1000).unwrap();
        let exported = Exported { place: RemotePlace { address: 65536, key: 7 }, layout };
        assert_eq!(parse(answer), Ok(Some(Some(exported))));
        assert_eq!(parse(b"$-1\r\n"), Ok(Some(None)));
        assert_eq!(parse(b"-ERR unknown command\r\n"), Ok(Some(None)));
        for nonsense in [
            "*6\r\n$1\r\nx\r\n$1\r\n7\r\n$1\r\n1\r\n$1\r\n2\r\n$3\r\n100\r\n$4\r\n1000\r\n",
            "*6\r\n$1\r\n1\r\n$1\r\n7\r\n$1\r\n1\r\n$1\r\n0\r\n$3\r\n100\r\n$4\r\n1000\r\n",
            "*6\r\n$20\r\n18446744073709551615\r\n$1\r\n7\r\n$1\r\n1\r\n$1\r\n2\r\n$3\r\n100\r\n$4\r\n1000\r\n",
        ] {
            assert_eq!(parse(nonsense.as_bytes()), Err(()), "{nonsense}");
        }
    }
}
