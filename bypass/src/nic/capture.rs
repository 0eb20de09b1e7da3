//! Copies of the frames that pass a queue pair, for whoever writes them down.
//!
//! The queue pair fills records that the [`Reader`] has emptied. There are so many and no more: where none is empty, a frame passes
//! without being kept, and is counted. Neither end waits for the other, and nothing is allocated on the way.

use crate::mailbox::{Receiver, Sender, mailbox};
use crate::{BURST, Packet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Bytes of a frame that a [`Filter`] is shown, however few are kept: all headers that it may ask for.
const FILTER_SEES: usize = 256;

/// Which way a frame passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the network.
    Received,
    /// To the network.
    Sent,
}

/// One frame that passed, or the front of it.
#[derive(Debug)]
pub struct Record {
    /// When its burst came, or was handed to the port: the system's time since 1970.
    pub at: Duration,
    /// Which way it passed.
    pub direction: Direction,
    /// Bytes that it had, Ethernet header included.
    pub len: usize,
    bytes: Vec<u8>,
}

impl Record {
    fn of(room: usize) -> Self {
        Record { at: Duration::ZERO, direction: Direction::Received, len: 0, bytes: Vec::with_capacity(room) }
    }

    /// Its bytes from the Ethernet header on, as many as are kept. What a port computes by itself, as checksums, is not in a frame
    /// that was sent.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Holds the front of `frame`, no more than `most` bytes.
    fn fill(&mut self, frame: &impl Packet, most: usize) {
        self.bytes.clear();
        for segment in frame.segments() {
            let room = most - self.bytes.len();
            self.bytes.extend_from_slice(&segment[..segment.len().min(room)]);
        }
        self.len = frame.len();
    }
}

/// Says of the front of a frame whether the frame is kept.
pub type Filter = Box<dyn Fn(&[u8]) -> bool + Send>;

/// What both ends see.
#[derive(Debug, Default)]
struct Shared {
    missed: AtomicU64,
    over: AtomicBool,
}

/// The end at a queue pair, which notes what passes.
pub struct Capture {
    empty: Receiver<Record>,
    full: Sender<Record>,
    filter: Option<Filter>,
    snap: usize,
    /// Bytes that are copied of a frame at first.
    copied: usize,
    /// Those of a burst that is being sent, in its order; `None` for what is not kept.
    staged: Vec<Option<Record>>,
    /// Empty, and here.
    spare: Vec<Record>,
    shared: Arc<Shared>,
}

/// The end that what passed is read at. When it is dropped nothing is kept any more.
pub struct Reader {
    full: Receiver<Record>,
    empty: Sender<Record>,
    shared: Arc<Shared>,
}

/// The two ends, with `records` of up to `snap` bytes between them, and one burst more. Only what `filter` is for is kept.
pub fn capture(records: usize, snap: usize, filter: Option<Filter>) -> (Capture, Reader) {
    let records = records.max(1);
    let copied = if filter.is_some() { snap.max(FILTER_SEES) } else { snap };
    // Whatever is on its way has room.
    let (give_back, empty) = mailbox(records + BURST);
    let (full, filled) = mailbox(records + BURST);
    let mut spare = Vec::with_capacity(records + BURST);
    spare.resize_with(records + BURST, || Record::of(copied));
    let shared = Arc::<Shared>::default();
    (
        Capture { empty, full, filter, snap, copied, staged: Vec::with_capacity(BURST), spare, shared: shared.clone() },
        Reader { full: filled, empty: give_back, shared },
    )
}

impl Capture {
    /// Whether nobody reads any more.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.shared.over.load(Ordering::Relaxed)
    }

    /// Notes `frames` that were received.
    pub fn received(&mut self, frames: &[impl Packet]) {
        self.stage(Direction::Received, frames);
        self.commit(frames.len());
    }

    /// Copies `frames` that are about to be sent. Until [`sent`](Self::sent) says how many were, it is as if none had passed.
    pub fn sending(&mut self, frames: &[impl Packet]) {
        self.stage(Direction::Sent, frames);
    }

    /// The first `n` of those that were about to be sent were, and the others were not.
    pub fn sent(&mut self, n: usize) {
        self.commit(n);
    }

    fn stage(&mut self, direction: Direction, frames: &[impl Packet]) {
        self.spare.extend(self.staged.drain(..).flatten());
        if frames.is_empty() {
            return;
        }
        // It may be before 1970 if nobody has set the clock.
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        for frame in frames {
            let staged = self.note(at, direction, frame);
            self.staged.push(staged);
        }
    }

    fn note(&mut self, at: Duration, direction: Direction, frame: &impl Packet) -> Option<Record> {
        let Some(mut record) = self.spare.pop().or_else(|| self.empty.receive()) else {
            self.shared.missed.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        record.fill(frame, self.copied);
        if self.filter.as_ref().is_some_and(|is_for| !is_for(&record.bytes)) {
            self.spare.push(record);
            return None;
        }
        record.bytes.truncate(self.snap);
        (record.at, record.direction) = (at, direction);
        Some(record)
    }

    fn commit(&mut self, n: usize) {
        for (at, staged) in self.staged.drain(..).enumerate() {
            let Some(record) = staged else { continue };
            if at >= n {
                self.spare.push(record);
            } else if let Err(record) = self.full.send(record) {
                self.spare.push(record);
            }
        }
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("snap", &self.snap).finish_non_exhaustive()
    }
}

impl Reader {
    /// Lets `look` see the next frame that passed, if there is one.
    pub fn read<T>(&mut self, look: impl FnOnce(&Record) -> T) -> Option<T> {
        let record = self.full.receive()?;
        let seen = look(&record);
        // There is room for all of them. Whoever has gone needs none.
        let _gone = self.empty.send(record);
        Some(seen)
    }

    /// Frames that passed without being kept, or looked at by the filter, since no record was empty.
    pub fn missed(&self) -> u64 {
        self.shared.missed.load(Ordering::Relaxed)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("missed", &self.missed()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Nic;
    use crate::memory_nic::{Link, LinkConfig, MemoryNic, MemoryPacket};

    fn frame(nic: &mut MemoryNic, bytes: &[u8]) -> MemoryPacket {
        let mut packet = nic.allocate().unwrap();
        packet.append(bytes.len()).unwrap().copy_from_slice(bytes);
        packet
    }

    fn nic() -> MemoryNic {
        Link::pair(LinkConfig::default()).0
    }

    fn all(reader: &mut Reader) -> Vec<(Direction, usize, Vec<u8>)> {
        std::iter::from_fn(|| reader.read(|record| (record.direction, record.len, record.bytes().to_vec()))).collect()
    }

    #[test]
    fn what_passes_is_read_in_order_with_its_direction_and_the_time() {
        let mut nic = nic();
        let (mut capture, mut reader) = capture(4, 100, None);
        let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        capture.received(&[frame(&mut nic, b"one"), frame(&mut nic, b"two")]);
        capture.sending(&[frame(&mut nic, b"three")]);
        capture.sent(1);
        let at = reader.read(|record| record.at).unwrap();
        assert!(at >= before && at < before + Duration::from_secs(3600), "{at:?}");
        assert_eq!(all(&mut reader), [(Direction::Received, 3, b"two".into()), (Direction::Sent, 5, b"three".into())]);
        assert_eq!(reader.missed(), 0);
    }

    #[test]
    fn what_the_port_did_not_take_has_not_passed() {
        let mut nic = nic();
        let (mut capture, mut reader) = capture(4, 100, None);
        let frames = [b"1", b"2", b"3"].map(|bytes| frame(&mut nic, bytes));
        capture.sending(&frames);
        capture.sent(1);
        capture.sending(&frames[1..]);
        capture.sending(&frames[1..]);
        capture.sent(2);
        assert_eq!(all(&mut reader).into_iter().map(|(_, _, bytes)| bytes).collect::<Vec<_>>(), [b"1", b"2", b"3"]);
    }

    #[test]
    fn no_more_is_kept_than_asked_for_of_a_chain_either() {
        let mut nic = nic();
        let (mut capture, mut reader) = capture(4, 5, None);
        let (mut head, tail) = (frame(&mut nic, b"head"), frame(&mut nic, b"tail"));
        head.chain(tail).unwrap();
        capture.received(&[head]);
        assert_eq!(all(&mut reader), [(Direction::Received, 8, b"headt".into())]);
    }

    #[test]
    fn a_filter_sees_more_than_is_kept_and_what_it_refuses_takes_no_record() {
        let mut nic = nic();
        let filter: Filter = Box::new(|bytes| bytes.last() == Some(&b'!'));
        let (mut capture, mut reader) = capture(1, 2, Some(filter));
        for _ in 0..100 {
            capture.received(&[frame(&mut nic, b"no"), frame(&mut nic, b"yes!")]);
            assert_eq!(all(&mut reader), [(Direction::Received, 4, b"ye".into())]);
        }
        assert_eq!(reader.missed(), 0);
    }

    #[test]
    fn what_there_is_no_record_for_passes_and_is_counted_until_records_come_back() {
        let mut nic = nic();
        let (mut capture, mut reader) = capture(2, 10, None);
        let records = 2 + BURST;
        for _ in 0..records + 3 {
            capture.received(&[frame(&mut nic, b"x")]);
        }
        assert_eq!((all(&mut reader).len(), reader.missed()), (records, 3));
        capture.received(&[frame(&mut nic, b"y")]);
        assert_eq!((all(&mut reader).len(), reader.missed()), (1, 3));
    }

    #[test]
    fn it_is_over_when_nobody_reads() {
        let (capture, reader) = capture(1, 10, None);
        assert!(!capture.is_over());
        drop(reader);
        assert!(capture.is_over());
    }
}
