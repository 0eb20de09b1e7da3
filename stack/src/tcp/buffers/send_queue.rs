//! Send queue: unsent and unacknowledged data, in the memory where the service or the port put it.

use crate::ip::egress::Egress;
use crate::tcp::buffers::mbufs_held::MbufsHeld;
use crate::tcp::buffers::queue::Queue;
use crate::wire::tcp::seq::Seq;
use linerate_bypass::{Nic, Packet};
use linerate_service::{Bytes, Memory};

/// Maximum chunks in one frame: enough for 64 KB in segments of an ordinary link.
const MAX_CHUNKS: usize = 48;

/// Bytes of a chunk on the heap: few allocations, and each is freed soon after the peer reads again.
const HEAP_CHUNK: usize = 16 << 10;

/// Contiguous part of the stream in one of two places.
struct Chunk<P> {
    seq: Seq,
    len: u32,
    /// Packet that was never sent. Headers can be prepended in place.
    packet: Option<P>,
    /// Memory that is kept until it is acknowledged, and that a port may be reading: the memory of a packet that was
    /// sent or is shared, or memory outside of packets.
    retained: Option<Bytes>,
    /// True if the chunk holds a packet of the port: in `packet`, or as the memory of `retained`.
    holds_mbuf: bool,
}

impl<P: Packet> Chunk<P> {
    #[inline]
    fn end(&self) -> Seq {
        self.seq + self.len
    }

    /// Returns the packets that the chunk holds: one, or none if the memory is not a port's.
    #[inline]
    fn packets(&self) -> usize {
        usize::from(self.holds_mbuf)
    }

    /// Returns the bytes of the chunk on the heap. Memory that devices can access is not counted: it belongs to a store
    /// of the service.
    fn heap_bytes(&self) -> usize {
        match &self.retained {
            Some(bytes) if !self.holds_mbuf && bytes.memory() == Memory::Process => self.len as usize,
            _ => 0,
        }
    }

    /// Returns the memory that the chunk holds.
    #[inline]
    fn held(&self) -> MbufsHeld {
        let packets = self.packets();
        MbufsHeld { all: packets, queued: packets, heap_bytes: if packets == 0 { self.heap_bytes() } else { 0 } }
    }

    fn bytes(&self) -> Option<&[u8]> {
        match &self.packet {
            Some(packet) => Some(packet.data()),
            None => self.retained.as_deref(),
        }
    }
}

/// Stream from SND.UNA to the last byte queued, in chunks.
pub(crate) struct SendQueue<P> {
    chunks: Queue<Chunk<P>>,
    /// Index of the first chunk that was not sent completely.
    unsent: usize,
}

impl<P: Packet> SendQueue<P> {
    pub fn new() -> Self {
        SendQueue { chunks: Queue::new(), unsent: 0 }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns the number of chunks. Each takes a descriptor, however short it is.
    #[inline]
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Returns the packets held. Each pins an mbuf of the port, however little of it is to be sent.
    pub fn packets(&self) -> usize {
        self.chunks.iter().map(Chunk::packets).sum()
    }

    /// Returns the bytes in the packets held.
    pub fn packet_bytes(&self) -> usize {
        self.chunks.iter().filter(|chunk| chunk.holds_mbuf).map(|chunk| chunk.len as usize).sum()
    }

    pub fn heap_bytes(&self) -> usize {
        self.chunks.iter().map(Chunk::heap_bytes).sum()
    }

    pub fn clear(&mut self) {
        self.chunks.clear();
        self.unsent = 0;
    }

    /// Returns the number of chunks for which memory is allocated.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.chunks.capacity()
    }

    /// Frees memory for more than `most` chunks.
    pub fn shrink_to(&mut self, most: usize) {
        self.chunks.shrink_to(most);
    }

    /// Appends `bytes` to the last chunk if it is in a packet that was never sent, has room, and stays within `most`
    /// bytes. Returns whether it did.
    pub fn append_copy(&mut self, bytes: &[u8], most: usize) -> bool {
        let Some(chunk) = self.chunks.back_mut() else { return false };
        let Some(packet) = &mut chunk.packet else { return false };
        if chunk.len as usize + bytes.len() > most {
            return false;
        }
        let Some(space) = packet.append(bytes.len()) else { return false };
        space.copy_from_slice(bytes);
        chunk.len += bytes.len() as u32;
        true
    }

    /// Copies data in packets of the port to the heap, in chunks of up to [`HEAP_CHUNK`] bytes. Other data stays in
    /// place, because a queue that grows while its peer does not read is moved repeatedly. `nxt` is SND.NXT. Returns
    /// the bytes copied, including bytes on the heap that became part of longer chunks.
    pub fn move_to_heap(&mut self, nxt: Seq) -> usize {
        if self.packets() == 0 {
            return 0;
        }
        let mut copied = 0;
        let mut chunks = std::mem::replace(&mut self.chunks, Queue::new());
        let (mut copy, mut begin) = (Vec::new(), None);
        while let Some(chunk) = chunks.pop_front() {
            if chunk.packets() == 0 {
                copied += self.push_copy(begin.take(), &mut copy);
                self.chunks.push_back(chunk);
                continue;
            }
            let mut seq = chunk.seq;
            let mut bytes = chunk.bytes().unwrap_or_default();
            while !bytes.is_empty() {
                begin.get_or_insert(seq);
                let (part, rest) = bytes.split_at(bytes.len().min(HEAP_CHUNK - copy.len()));
                copy.extend_from_slice(part);
                seq += part.len() as u32;
                bytes = rest;
                if copy.len() == HEAP_CHUNK {
                    copied += self.push_copy(begin.take(), &mut copy);
                }
            }
        }
        copied += self.push_copy(begin, &mut copy);
        self.unsent = self.chunks.partition_point(|chunk| !chunk.end().after(nxt));
        copied
    }

    /// Moves `copy`, the data at `begin`, to the end of the queue. Shorter heap chunks in front of it are merged, which
    /// bounds the number of chunks and the copies of a byte. Returns the bytes copied.
    fn push_copy(&mut self, begin: Option<Seq>, copy: &mut Vec<u8>) -> usize {
        let Some(mut seq) = begin else { return 0 };
        let mut copied = copy.len();
        while let Some(last) = self.chunks.back()
            && last.packets() == 0
            && (last.len as usize) < copy.len()
            && last.len as usize + copy.len() <= HEAP_CHUNK
            && let Some(last) = self.chunks.pop_back()
        {
            seq = last.seq;
            copied += last.len as usize;
            copy.splice(..0, last.bytes().unwrap_or_default().iter().copied());
        }
        copy.shrink_to_fit();
        let bytes = Bytes::from(std::mem::take(copy));
        let len = bytes.len() as u32;
        self.chunks.push_back(Chunk { seq, len, packet: None, retained: Some(bytes), holds_mbuf: false });
        copied
    }

    /// Queues the data of `packet`, a single mbuf segment, at `seq`, the end of the queue.
    #[inline(always)]
    pub fn push_packet(&mut self, seq: Seq, packet: P) {
        let len = packet.len() as u32;
        self.chunks.push_back(Chunk { seq, len, packet: Some(packet), retained: None, holds_mbuf: true });
    }

    /// Queues `bytes` at `seq`, the end of the queue. Returns the memory added.
    #[inline]
    pub fn push_bytes(&mut self, seq: Seq, bytes: Bytes) -> MbufsHeld {
        let holds_mbuf = bytes.is_pooled();
        let chunk = Chunk { seq, len: bytes.len() as u32, packet: None, retained: Some(bytes), holds_mbuf };
        let held = chunk.held();
        self.chunks.push_back(chunk);
        held
    }

    /// Extends the last chunk by up to `max` bytes if none of it was sent, it has room, and it stays within `most`
    /// bytes. Returns the number of bytes. [`trim`](Self::trim) returns unused bytes.
    pub fn extend(&mut self, max: usize, most: usize) -> usize {
        let Some(chunk) = self.chunks.back_mut() else { return 0 };
        let Some(packet) = &mut chunk.packet else { return 0 };
        let n = max.min(most.saturating_sub(chunk.len as usize));
        if n == 0 || packet.append(n).is_none() {
            return 0;
        }
        chunk.len += n as u32;
        n
    }

    /// Returns the last `n` bytes, added by [`extend`](Self::extend).
    pub fn end_mut(&mut self, n: usize) -> Option<&mut [u8]> {
        let data = self.chunks.back_mut()?.packet.as_mut()?.data_mut()?;
        let at = data.len().checked_sub(n).filter(|_| n > 0)?;
        data.get_mut(at..)
    }

    /// Removes `n` bytes from the end of the last chunk, which was never sent. Returns the packets released.
    pub fn trim(&mut self, n: u32) -> usize {
        let Some(chunk) = self.chunks.back_mut() else { return 0 };
        if let Some(packet) = &mut chunk.packet
            && packet.trim(n as usize)
        {
            chunk.len -= n;
        }
        if chunk.len == 0 {
            let packets = chunk.packets();
            self.chunks.pop_back();
            self.unsent = self.unsent.min(self.chunks.len());
            return packets;
        }
        0
    }

    /// Removes everything before `una`. Returns the memory released.
    #[inline]
    pub fn acknowledge(&mut self, una: Seq) -> MbufsHeld {
        let (mut packets, mut heap_bytes) = (0, 0);
        while let Some(first) = self.chunks.front()
            && !first.end().after(una)
        {
            if first.holds_mbuf {
                packets += 1;
            } else {
                heap_bytes += first.heap_bytes();
            }
            self.chunks.pop_front();
            self.unsent = self.unsent.saturating_sub(1);
        }
        MbufsHeld { all: packets, queued: packets, heap_bytes }
    }

    /// Returns the begin and end of the queue, or `None` if it is empty. Panics unless the chunks are contiguous.
    pub fn assert_contiguous(&self) -> Option<(Seq, Seq)> {
        for (chunk, next) in self.chunks.iter().zip(self.chunks.iter().skip(1)) {
            assert_eq!(chunk.end(), next.seq, "a gap in the send queue");
        }
        for chunk in self.chunks.iter() {
            let lens = (chunk.packet.as_ref().map(Packet::len), chunk.retained.as_ref().map(|bytes| bytes.len()));
            let is_stored_once = matches!(lens, (Some(len), None) | (None, Some(len)) if len == chunk.len as usize);
            assert!(is_stored_once, "a chunk of {} bytes of the send queue has {lens:?}", chunk.len);
        }
        Some((self.chunks.front()?.seq, self.chunks.back()?.end()))
    }

    /// Returns the part of the `max` bytes at `seq` that fits into one frame: ports limit the number of mbufs in a
    /// chain.
    #[inline]
    pub fn span(&self, seq: Seq, max: u32) -> u32 {
        if self.chunks.len() <= MAX_CHUNKS {
            return max;
        }
        let first = self.find(seq);
        match self.chunks.get(first + MAX_CHUNKS) {
            Some(beyond) => max.min(beyond.seq - seq),
            None => max,
        }
    }

    /// Returns the bytes from `seq` to the end of its chunk.
    pub fn chunk_left(&self, seq: Seq) -> u32 {
        self.chunks.get(self.find(seq)).map_or(0, |chunk| chunk.end() - seq)
    }

    /// Returns the index of the chunk that contains `seq`.
    #[inline]
    fn find(&self, seq: Seq) -> usize {
        match self.chunks.get(self.unsent) {
            Some(chunk) if !chunk.seq.after(seq) && chunk.end().after(seq) => self.unsent,
            _ => self.chunks.partition_point(|chunk| !chunk.end().after(seq)),
        }
    }

    /// Returns the bytes of `seq..seq + len`, for a checksum.
    pub fn slices(&self, seq: Seq, len: u32) -> impl Iterator<Item = &[u8]> {
        let end = seq + len;
        self.chunks.iter_from(self.find(seq)).map_while(move |chunk| {
            let from = seq.max(chunk.seq);
            let to = end.min(chunk.end());
            if !to.after(from) {
                return None;
            }
            let bytes = chunk.bytes()?;
            bytes.get((from - chunk.seq) as usize..(to - chunk.seq) as usize)
        })
    }

    /// Returns the packet that starts at `seq` (SND.NXT) and its length, if it was never sent.
    #[inline(always)]
    pub fn next_packet(&mut self, seq: Seq) -> Option<(u32, &mut P)> {
        let chunk = self.chunks.get_mut(self.unsent)?;
        if chunk.seq != seq {
            return None;
        }
        Some((chunk.len, chunk.packet.as_mut()?))
    }

    /// Takes the [next packet](Self::next_packet) out of the queue for transmission. `retained` is its data, which
    /// stays in the queue.
    #[inline(always)]
    pub fn packet_sent(&mut self, retained: Bytes) -> Option<P> {
        let chunk = self.chunks.get_mut(self.unsent)?;
        let packet = chunk.packet.take();
        chunk.retained = Some(retained);
        self.unsent += 1;
        packet
    }

    /// Queues `bytes` of a packet at `seq` in an empty queue, as sent.
    #[inline(always)]
    pub fn push_lone(&mut self, seq: Seq, bytes: Bytes) {
        self.chunks.put(Chunk { seq, len: bytes.len() as u32, packet: None, retained: Some(bytes), holds_mbuf: true });
        self.unsent = 1;
    }

    /// Removes the only chunk, which is acknowledged. Returns the memory released.
    #[inline(always)]
    pub fn acknowledge_lone(&mut self) -> MbufsHeld {
        let held = self.chunks.only().map_or(MbufsHeld::default(), Chunk::held);
        self.unsent = 0;
        self.chunks.drop_only();
        held
    }

    /// Takes the data of the only chunk, if it was sent and is in a packet of the port.
    pub fn take_lone(&mut self) -> Option<Bytes> {
        let chunk = self.chunks.only()?;
        if chunk.retained.is_none() || !chunk.holds_mbuf {
            return None;
        }
        self.unsent = 0;
        self.chunks.take_only()?.retained
    }

    /// Returns whether there is exactly one chunk.
    #[inline(always)]
    pub fn is_lone(&self) -> bool {
        self.chunks.only().is_some()
    }

    /// Builds a frame of `header` bytes, filled by `write`, and the `len` queued bytes at `seq`. The header is
    /// prepended in place if `in_place` permits it and the payload was never sent; otherwise it gets a packet of its
    /// own. For a port without chains and shared mbufs that packet contains the payload as well. The copy is made here
    /// and not by the port, which might never find a packet when waiting connections hold all packets. Returns `None`
    /// if the port has no packet.
    #[inline]
    pub fn build_frame<N: Nic<Packet = P>>(
        &mut self,
        seq: Seq,
        len: u32,
        header: usize,
        in_place: bool,
        egress: &mut Egress<N>,
        write: impl FnOnce(&mut [u8]),
    ) -> Option<P> {
        let first = self.find(seq);
        if in_place
            && egress.capabilities().multi_segment_tx
            && let Some(chunk) = self.chunks.get_mut(first)
            && chunk.seq == seq
            && chunk.len <= len
            && let Some(mut packet) = chunk.packet.take()
        {
            // The packet is sent, and its data stays in the queue.
            let Some(space) = packet.prepend(header) else {
                chunk.packet = Some(packet);
                return self.build_frame_separate(first, seq, len, header, egress, write);
            };
            write(space);
            let Some(bytes) = packet.retain(header) else {
                // The reference count is exhausted. The data stays and is sent from where it is.
                chunk.retained = Some(packet.into_bytes(header..header + chunk.len as usize));
                return None;
            };
            chunk.retained = Some(bytes);
            let rest = len - chunk.len;
            if rest > 0 {
                let next = chunk.end();
                self.append(&mut packet, first + 1, next, rest, egress)?;
            }
            self.sent_up_to(seq + len);
            return Some(packet);
        }
        self.build_frame_separate(first, seq, len, header, egress, write)
    }

    /// Builds a frame like [`build_frame`](Self::build_frame), with the header in a packet of its own.
    fn build_frame_separate<N: Nic<Packet = P>>(
        &mut self,
        first: usize,
        seq: Seq,
        len: u32,
        header: usize,
        egress: &mut Egress<N>,
        write: impl FnOnce(&mut [u8]),
    ) -> Option<P> {
        let mut packet = egress.allocate()?;
        write(packet.append(header)?);
        if egress.capabilities().multi_segment_tx {
            self.append(&mut packet, first, seq, len, egress)?;
        } else {
            for bytes in self.slices(seq, len) {
                packet.append(bytes.len())?.copy_from_slice(bytes);
            }
            egress.count_copied(len as usize);
        }
        self.sent_up_to(seq + len);
        Some(packet)
    }

    /// Chains the `len` bytes at `seq`, which start in chunk number `at`, to `packet`.
    fn append<N: Nic<Packet = P>>(
        &mut self,
        packet: &mut P,
        mut at: usize,
        mut seq: Seq,
        mut len: u32,
        egress: &mut Egress<N>,
    ) -> Option<()> {
        while len > 0 {
            let chunk = self.chunks.get_mut(at)?;
            let from = seq - chunk.seq;
            let n = len.min(chunk.len - from);
            if let Some(mut own) = chunk.packet.take() {
                if n == chunk.len
                    && let Some(bytes) = own.retain(0)
                {
                    chunk.retained = Some(bytes);
                    packet.chain(own).ok()?;
                    (at, seq, len) = (at + 1, seq + n, len - n);
                    continue;
                }
                let end = own.data().len();
                chunk.retained = Some(own.into_bytes(0..end));
            }
            let bytes = chunk.retained.as_ref()?.slice(from as usize..(from + n) as usize);
            match egress.attach(bytes) {
                Ok(part) => packet.chain(part).ok()?,
                // Either no packet is left, or the port cannot access the memory.
                Err(bytes) => copy(packet, &bytes, egress)?,
            }
            (at, seq, len) = (at + 1, seq + n, len - n);
        }
        Some(())
    }

    /// Marks everything before `end` as sent.
    #[inline]
    fn sent_up_to(&mut self, end: Seq) {
        while let Some(chunk) = self.chunks.get(self.unsent)
            && !chunk.end().after(end)
        {
            self.unsent += 1;
        }
    }
}

/// Copies `bytes` into packets of the port, and chains them to `packet`.
fn copy<N: Nic>(packet: &mut N::Packet, bytes: &[u8], egress: &mut Egress<N>) -> Option<()> {
    let room = egress.capabilities().data_room.max(1);
    for part in bytes.chunks(room) {
        let mut own = egress.allocate()?;
        own.append(part.len())?.copy_from_slice(part);
        egress.count_copied(part.len());
        packet.chain(own).ok()?;
    }
    Some(())
}
