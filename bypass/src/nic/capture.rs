//! Capture of the frames that pass a queue pair.
//!
//! The queue pair copies frames into a fixed number of records, which the [`Reader`] returns after use. Without a free
//! record, a frame passes uncaptured and is counted. Neither end waits for the other, and capturing allocates nothing.

use crate::{BURST, Packet};
use linerate_service::mailbox::{Receiver, Sender, mailbox};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Bytes of a frame that a [`Filter`] sees, even if fewer are captured: enough for all headers.
const FILTER_SEES: usize = 256;

/// Direction of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Received from the network.
    Received,
    /// Sent to the network.
    Sent,
}

/// Captured frame, or the start of one.
#[derive(Debug)]
pub struct Record {
    /// Time at which the burst of the frame was received or sent, since 1970.
    pub at: Duration,
    /// Direction of the frame.
    pub direction: Direction,
    /// Length of the frame, Ethernet header included.
    pub len: usize,
    bytes: Vec<u8>,
}

impl Record {
    fn with_capacity(room: usize) -> Self {
        Record { at: Duration::ZERO, direction: Direction::Received, len: 0, bytes: Vec::with_capacity(room) }
    }

    /// Creates the record of a frame with all its `bytes`.
    pub fn new(at: Duration, direction: Direction, bytes: Vec<u8>) -> Self {
        Record { at, direction, len: bytes.len(), bytes }
    }

    /// Returns the captured bytes, from the Ethernet header on. A sent frame lacks values that the port computes, such
    /// as checksums.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Stores the start of `frame`, at most `most` bytes.
    fn fill(&mut self, frame: &impl Packet, most: usize) {
        self.bytes.clear();
        for segment in frame.segments() {
            let room = most - self.bytes.len();
            self.bytes.extend_from_slice(&segment[..segment.len().min(room)]);
        }
        self.len = frame.len();
    }
}

/// Predicate on the start of a frame that selects frames to capture.
pub type Filter = Box<dyn Fn(&[u8]) -> bool + Send>;

/// State shared by both ends.
#[derive(Debug, Default)]
struct SharedCapture {
    missed: AtomicU64,
    over: AtomicBool,
}

/// Copied frame of a burst, which is captured or counted if the port accepts the frame.
enum Staged {
    Record(Record),
    /// The filter rejected the frame.
    Filtered,
    /// No record was free.
    Missed,
}

/// Capturing end, owned by a queue pair.
pub struct Capture {
    empty: Receiver<Record>,
    full: Sender<Record>,
    filter: Option<Filter>,
    snap: usize,
    /// Bytes copied of each frame before filtering.
    copied: usize,
    /// Frames of the burst being sent, in order.
    staged: Vec<Staged>,
    /// Free records at this end.
    spare: Vec<Record>,
    shared: Arc<SharedCapture>,
}

/// Reading end. Capturing stops when it is dropped.
pub struct Reader {
    full: Receiver<Record>,
    empty: Sender<Record>,
    shared: Arc<SharedCapture>,
}

/// Creates both ends, with `records` records of up to `snap` bytes, and one burst more. `filter` selects the frames.
pub fn capture(records: usize, snap: usize, filter: Option<Filter>) -> (Capture, Reader) {
    let records = records.max(1);
    let copied = if filter.is_some() { snap.max(FILTER_SEES) } else { snap };
    // Both mailboxes have room for all records.
    let (give_back, empty) = mailbox(records + BURST);
    let (full, filled) = mailbox(records + BURST);
    let mut spare = Vec::with_capacity(records + BURST);
    spare.resize_with(records + BURST, || Record::with_capacity(copied));
    let shared = Arc::<SharedCapture>::default();
    (
        Capture { empty, full, filter, snap, copied, staged: Vec::with_capacity(BURST), spare, shared: shared.clone() },
        Reader { full: filled, empty: give_back, shared },
    )
}

impl Capture {
    /// Returns whether the reader has been dropped.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.shared.over.load(Ordering::Relaxed)
    }

    /// Captures received `frames`.
    pub fn received(&mut self, frames: &[impl Packet]) {
        self.stage(Direction::Received, frames);
        self.commit(frames.len());
    }

    /// Copies `frames` before transmission. They are captured only by the following call of [`sent`](Self::sent).
    pub fn sending(&mut self, frames: &[impl Packet]) {
        self.stage(Direction::Sent, frames);
    }

    /// Captures the first `n` frames of the last [`sending`](Self::sending), and discards the others.
    pub fn sent(&mut self, n: usize) {
        self.commit(n);
    }

    fn stage(&mut self, direction: Direction, frames: &[impl Packet]) {
        self.commit(0);
        if frames.is_empty() {
            return;
        }
        // The clock may be before 1970 if it has never been set.
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        for frame in frames {
            let staged = self.copy(at, direction, frame);
            self.staged.push(staged);
        }
    }

    fn copy(&mut self, at: Duration, direction: Direction, frame: &impl Packet) -> Staged {
        let Some(mut record) = self.spare.pop().or_else(|| self.empty.receive()) else { return Staged::Missed };
        record.fill(frame, self.copied);
        if self.filter.as_ref().is_some_and(|selects| !selects(&record.bytes)) {
            self.spare.push(record);
            return Staged::Filtered;
        }
        record.bytes.truncate(self.snap);
        (record.at, record.direction) = (at, direction);
        Staged::Record(record)
    }

    /// Captures the first `n` staged frames, and discards the others: rejected frames may be sent again.
    fn commit(&mut self, n: usize) {
        for (at, staged) in self.staged.drain(..).enumerate() {
            match staged {
                Staged::Record(record) if at < n => {
                    if let Err(record) = self.full.send(record) {
                        self.spare.push(record);
                    }
                }
                Staged::Record(record) => self.spare.push(record),
                Staged::Missed if at < n => _ = self.shared.missed.fetch_add(1, Ordering::Relaxed),
                Staged::Missed | Staged::Filtered => {}
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
    /// Passes the next captured frame to `look`, if there is one.
    pub fn read<T>(&mut self, look: impl FnOnce(&Record) -> T) -> Option<T> {
        let record = self.full.receive()?;
        let seen = look(&record);
        // The mailbox has room for all records. A dropped capture needs none.
        let _gone = self.empty.send(record);
        Some(seen)
    }

    /// Returns the number of frames that passed uncaptured and unfiltered because no record was free.
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
    fn frames_are_read_in_order_with_direction_and_time() {
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
    fn frames_that_the_port_did_not_accept_are_not_captured() {
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
    fn capture_of_a_chain_is_truncated_to_the_snap_length() {
        let mut nic = nic();
        let (mut capture, mut reader) = capture(4, 5, None);
        let (mut head, tail) = (frame(&mut nic, b"head"), frame(&mut nic, b"tail"));
        head.chain(tail).unwrap();
        capture.received(&[head]);
        assert_eq!(all(&mut reader), [(Direction::Received, 8, b"headt".into())]);
    }

    #[test]
    fn filter_sees_more_than_the_snap_length_and_rejected_frames_use_no_record() {
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
    fn frames_without_a_free_record_are_counted_until_records_return() {
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
    fn frame_without_a_free_record_is_counted_once_when_the_port_accepts_it() {
        let mut nic = nic();
        let (mut capture, mut reader) = capture(1, 10, None);
        let records = 1 + BURST;
        for _ in 0..records {
            capture.received(&[frame(&mut nic, b"x")]);
        }
        let frames = [b"1", b"2"].map(|bytes| frame(&mut nic, bytes));
        for (from, accepted, missed) in [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 2)] {
            capture.sending(&frames[from..]);
            capture.sent(accepted);
            assert_eq!(reader.missed(), missed, "{accepted} frames accepted from frame {from}");
        }
        assert_eq!(all(&mut reader).len(), records);
    }

    #[test]
    fn capture_is_over_when_the_reader_is_dropped() {
        let (capture, reader) = capture(1, 10, None);
        assert!(!capture.is_over());
        drop(reader);
        assert!(capture.is_over());
    }
}
