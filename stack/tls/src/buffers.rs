//! Memory for received and sent data, recycled so that records in steady state allocate nothing.

use linerate_service::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;

/// Capacities of buffers for received records. The larger holds any record.
const CAPACITIES: [usize; 2] = [2 << 10, 17 << 10];
/// Number of free buffers of each kind that a worker keeps.
const KEPT: usize = 64;
/// Capacity of a buffer for data to send: the maximum of one record.
pub const STAGE: usize = crate::record::MAX_DATA;

/// Free buffers of one worker.
#[derive(Default)]
pub struct Buffers {
    received: [Recycled; 2],
    stages: Vec<Box<[u8]>>,
    records: Vec<Vec<u8>>,
    /// Empty queues, which connections without data do not keep.
    queues: Vec<VecDeque<Chunk>>,
}

/// Vectors for received data, which may still be shared with slices that a service has taken.
#[derive(Default)]
struct Recycled(VecDeque<Arc<Vec<u8>>>);

impl Recycled {
    /// Returns an empty vector that nothing else refers to.
    fn pop(&mut self) -> Option<Arc<Vec<u8>>> {
        // The oldest are the most likely to be free.
        for _ in 0..self.0.len().min(4) {
            let mut buffer = self.0.pop_front()?;
            if let Some(vector) = Arc::get_mut(&mut buffer) {
                vector.clear();
                return Some(buffer);
            }
            self.0.push_back(buffer);
        }
        None
    }

    fn push(&mut self, buffer: Arc<Vec<u8>>) {
        if self.0.len() < KEPT {
            self.0.push_back(buffer);
        }
    }
}

impl Buffers {
    /// Returns an empty buffer for received records of `len` bytes.
    pub fn take(&mut self, len: usize) -> Arc<Vec<u8>> {
        let kind = usize::from(len > CAPACITIES[0]);
        self.received[kind].pop().unwrap_or_else(|| Arc::new(Vec::with_capacity(CAPACITIES[kind].max(len))))
    }

    /// Takes back a buffer, of which slices may still exist.
    pub fn give(&mut self, buffer: Arc<Vec<u8>>) {
        self.received[usize::from(buffer.capacity() > CAPACITIES[0])].push(buffer);
    }

    /// Returns a buffer of [`STAGE`] bytes for data to send.
    pub fn take_stage(&mut self) -> Box<[u8]> {
        self.stages.pop().unwrap_or_else(|| vec![0; STAGE].into_boxed_slice())
    }

    /// Takes back a buffer for data to send.
    pub fn give_stage(&mut self, stage: Box<[u8]>) {
        if self.stages.len() < KEPT {
            self.stages.push(stage);
        }
    }

    /// Returns an empty vector for records.
    pub fn take_records(&mut self) -> Vec<u8> {
        self.records.pop().unwrap_or_default()
    }

    /// Takes back a vector for records.
    pub fn give_records(&mut self, mut records: Vec<u8>) {
        if self.records.len() < KEPT && records.capacity() <= 4 * STAGE {
            records.clear();
            self.records.push(records);
        }
    }
}

/// Part of a buffer with received data.
struct Chunk {
    buffer: Arc<Vec<u8>>,
    start: usize,
    end: usize,
}

/// Received data of one connection, in order.
#[derive(Default)]
pub struct Received {
    chunks: VecDeque<Chunk>,
    len: usize,
}

impl Received {
    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the first slice, empty only if there are no bytes.
    #[inline]
    pub fn front(&self) -> &[u8] {
        self.chunks.front().map_or(&[], |chunk| &chunk.buffer[chunk.start..chunk.end])
    }

    /// Copies `bytes` behind the data, lets `open` shorten them in place, and adds the result. Returns what `open`
    /// returned beside the number of remaining bytes.
    #[inline]
    pub fn append<R, E>(
        &mut self,
        bytes: &[u8],
        buffers: &mut Buffers,
        open: impl FnOnce(&mut [u8]) -> Result<(R, usize), E>,
    ) -> Result<R, E> {
        let has_space = self.chunks.back_mut().is_some_and(|chunk| {
            let free = chunk.buffer.capacity() - chunk.end;
            free >= bytes.len() && Arc::get_mut(&mut chunk.buffer).is_some()
        });
        if !has_space {
            if self.chunks.capacity() == 0 {
                self.chunks = buffers.queues.pop().unwrap_or_default();
            }
            self.chunks.push_back(Chunk { buffer: buffers.take(bytes.len()), start: 0, end: 0 });
        }
        let chunk = self.chunks.back_mut().expect("a chunk has been added");
        let vector = Arc::get_mut(&mut chunk.buffer).expect("nothing else refers to the buffer");
        vector.truncate(chunk.end);
        vector.extend_from_slice(bytes);
        let opened = open(&mut vector[chunk.end..]);
        let added = opened.as_ref().map_or(0, |(_, len)| *len);
        chunk.end += added;
        vector.truncate(chunk.end);
        self.len += added;
        if chunk.start == chunk.end {
            self.pop_back(buffers);
        }
        opened.map(|(result, _)| result)
    }

    /// Adds `buffer` from `start` to `end`.
    pub fn push(&mut self, buffer: Arc<Vec<u8>>, start: usize, end: usize, buffers: &mut Buffers) {
        if start == end {
            return buffers.give(buffer);
        }
        self.len += end - start;
        self.chunks.push_back(Chunk { buffer, start, end });
    }

    fn pop_back(&mut self, buffers: &mut Buffers) {
        if let Some(chunk) = self.chunks.pop_back() {
            buffers.give(chunk.buffer);
        }
    }

    /// Drops the first `n` bytes, or all if there are fewer.
    #[inline]
    pub fn consume(&mut self, n: usize, buffers: &mut Buffers) {
        let mut left = n.min(self.len);
        self.len -= left;
        while left > 0 {
            let Some(chunk) = self.chunks.front_mut() else { return };
            let part = left.min(chunk.end - chunk.start);
            chunk.start += part;
            left -= part;
            if chunk.start == chunk.end
                && let Some(chunk) = self.chunks.pop_front()
            {
                buffers.give(chunk.buffer);
            }
        }
        if self.len == 0 && buffers.queues.len() < KEPT {
            buffers.queues.push(std::mem::take(&mut self.chunks));
        }
    }

    /// Removes and returns the first slice, or its first `max` bytes.
    pub fn take(&mut self, max: usize, buffers: &mut Buffers) -> Option<Bytes> {
        let chunk = self.chunks.front_mut().filter(|_| max > 0)?;
        let len = max.min(chunk.end - chunk.start);
        let mut bytes = Bytes::from(chunk.buffer.clone());
        bytes.advance(chunk.start);
        bytes.truncate(len);
        self.consume(len, buffers);
        Some(bytes)
    }

    /// Drops all bytes.
    pub fn clear(&mut self, buffers: &mut Buffers) {
        self.consume(usize::MAX, buffers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(received: &mut Received, bytes: &[u8], keep: usize, buffers: &mut Buffers) {
        let appended: Result<(), ()> = received.append(bytes, buffers, |_| Ok(((), keep)));
        appended.unwrap();
    }

    #[test]
    fn short_records_share_a_buffer_until_a_slice_is_taken() {
        let (mut received, mut buffers) = (Received::default(), Buffers::default());
        append(&mut received, b"abcXX", 3, &mut buffers);
        append(&mut received, b"defXX", 3, &mut buffers);
        append(&mut received, b"XX", 0, &mut buffers);
        assert_eq!((received.front(), received.len()), (&b"abcdef"[..], 6));
        let taken = received.take(2, &mut buffers).unwrap();
        append(&mut received, b"ghi", 3, &mut buffers);
        assert_eq!((&taken[..], received.front(), received.len()), (&b"ab"[..], &b"cdef"[..], 7));
        assert_eq!(received.append(b"bad", &mut buffers, |_| Err::<((), usize), _>(7)), Err(7));
        received.consume(5, &mut buffers);
        assert_eq!(received.front(), b"hi");
        assert_eq!(&received.take(9, &mut buffers).unwrap()[..], b"hi");
        assert!(received.take(9, &mut buffers).is_none() && received.front().is_empty());
    }

    #[test]
    fn buffers_are_reused_once_their_slices_are_dropped() {
        let (mut received, mut buffers) = (Received::default(), Buffers::default());
        append(&mut received, b"abc", 3, &mut buffers);
        let taken = received.take(3, &mut buffers).unwrap();
        append(&mut received, b"def", 3, &mut buffers);
        assert_eq!((&taken[..], received.front()), (&b"abc"[..], &b"def"[..]));
        received.clear(&mut buffers);
        let place = taken.as_ptr();
        drop(taken);
        let mut places = Vec::new();
        for _ in 0..2 {
            append(&mut received, b"ghi", 3, &mut buffers);
            places.push(received.front().as_ptr());
            received.clear(&mut buffers);
        }
        assert!(places.contains(&place));
    }
}
