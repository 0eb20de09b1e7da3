//! What is to be sent and what is not acknowledged yet, where the service or the port put it.

use crate::egress::Egress;
use crate::native::queue::Queue;
use crate::native::segment::seq::Seq;
use linerate_bypass::{Bytes, Nic, Packet};

/// Pieces in one frame at most: enough for 64 KB in segments of an ordinary link.
const MAX_PIECES: usize = 48;

/// Bytes of a piece on the heap: few allocations, and each of them is freed soon after a peer reads again.
const HEAP_PIECE: usize = 16 << 10;

/// A piece of the stream, which lies in one of two places.
struct Piece<P> {
    seq: Seq,
    len: u32,
    /// In a packet of its own that has never been sent: headers can go in front of it, where it lies.
    packet: Option<P>,
    /// In memory that is kept until it is acknowledged, and that a port may be reading: that of a packet that has been sent or
    /// is shared, or other.
    retained: Option<Bytes>,
    /// It holds a packet of the port: the one that it is or was, or one that its bytes are part of.
    holds_mbuf: bool,
}

impl<P: Packet> Piece<P> {
    #[inline]
    fn end(&self) -> Seq {
        self.seq + self.len
    }

    /// Packets that it holds: one, or none where the memory is not a port's.
    #[inline]
    fn packets(&self) -> usize {
        usize::from(self.holds_mbuf)
    }

    fn bytes(&self) -> Option<&[u8]> {
        match &self.packet {
            Some(packet) => Some(packet.data()),
            None => self.retained.as_deref(),
        }
    }
}

/// Result of [`SendQueue::move_to_heap`].
#[derive(Debug, Default)]
pub(crate) struct HeapMove {
    /// Packets let go of.
    pub packets: usize,
    /// Bytes that lay in them.
    pub bytes: usize,
    /// Bytes copied, with those that were on the heap and became part of longer pieces.
    pub copied: usize,
}

/// The stream from the oldest unacknowledged byte to the last one queued, in pieces.
pub(crate) struct SendQueue<P> {
    pieces: Queue<Piece<P>>,
    /// The number of the first piece of which something has never been sent.
    unsent: usize,
}

impl<P: Packet> SendQueue<P> {
    pub fn new() -> Self {
        SendQueue { pieces: Queue::new(), unsent: 0 }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Pieces held: each takes a description, however short it is.
    #[inline]
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Packets held: each pins a buffer of the port, however little of it is to be sent.
    pub fn packets(&self) -> usize {
        self.pieces.iter().map(Piece::packets).sum()
    }

    pub fn clear(&mut self) {
        self.pieces.clear();
        self.unsent = 0;
    }

    /// Number of pieces that it has memory for.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.pieces.capacity()
    }

    /// Gives memory back that is for more than `most` pieces.
    pub fn shrink_to(&mut self, most: usize) {
        self.pieces.shrink_to(most);
    }

    /// Appends `bytes` to the last piece, if it lies in a packet that has never been sent, has room, and stays within `most` bytes.
    /// Returns whether it did.
    pub fn append_copy(&mut self, bytes: &[u8], most: usize) -> bool {
        let Some(piece) = self.pieces.back_mut() else { return false };
        let Some(packet) = &mut piece.packet else { return false };
        if piece.len as usize + bytes.len() > most {
            return false;
        }
        let Some(place) = packet.append(bytes.len()) else { return false };
        place.copy_from_slice(bytes);
        piece.len += bytes.len() as u32;
        true
    }

    /// Copies data in packets of the port to the heap, in pieces of up to [`HEAP_PIECE`] bytes. Data that lie elsewhere stay: a queue
    /// that grows while its peer does not read is moved again and again. `nxt` is SND.NXT.
    pub fn move_to_heap(&mut self, nxt: Seq) -> HeapMove {
        let mut all = HeapMove { packets: self.packets(), ..HeapMove::default() };
        if all.packets == 0 {
            return all;
        }
        let mut pieces = std::mem::replace(&mut self.pieces, Queue::new());
        let (mut copy, mut begin) = (Vec::new(), None);
        while let Some(piece) = pieces.pop_front() {
            if piece.packets() == 0 {
                all.copied += self.push_copy(begin.take(), &mut copy);
                self.pieces.push_back(piece);
                continue;
            }
            let mut seq = piece.seq;
            let mut bytes = piece.bytes().unwrap_or_default();
            all.bytes += bytes.len();
            while !bytes.is_empty() {
                begin.get_or_insert(seq);
                let (part, rest) = bytes.split_at(bytes.len().min(HEAP_PIECE - copy.len()));
                copy.extend_from_slice(part);
                seq += part.len() as u32;
                bytes = rest;
                if copy.len() == HEAP_PIECE {
                    all.copied += self.push_copy(begin.take(), &mut copy);
                }
            }
        }
        all.copied += self.push_copy(begin, &mut copy);
        self.unsent = self.pieces.partition_point(|piece| !piece.end().after(nxt));
        all
    }

    /// Moves `copy`, the data from `begin` on, to the end of the queue. Shorter pieces on the heap before it become part of it, so that
    /// pieces are not many and no byte is copied often. Returns the bytes copied.
    fn push_copy(&mut self, begin: Option<Seq>, copy: &mut Vec<u8>) -> usize {
        let Some(mut seq) = begin else { return 0 };
        let mut copied = copy.len();
        while let Some(last) = self.pieces.back()
            && last.packets() == 0
            && (last.len as usize) < copy.len()
            && last.len as usize + copy.len() <= HEAP_PIECE
            && let Some(last) = self.pieces.pop_back()
        {
            seq = last.seq;
            copied += last.len as usize;
            copy.splice(..0, last.bytes().unwrap_or_default().iter().copied());
        }
        copy.shrink_to_fit();
        let bytes = Bytes::from(std::mem::take(copy));
        let len = bytes.len() as u32;
        self.pieces.push_back(Piece { seq, len, packet: None, retained: Some(bytes), holds_mbuf: false });
        copied
    }

    /// Queues the data of `packet`, a single segment, at `seq`, where the queue ends.
    #[inline(always)]
    pub fn push_packet(&mut self, seq: Seq, packet: P) {
        let len = packet.len() as u32;
        self.pieces.push_back(Piece { seq, len, packet: Some(packet), retained: None, holds_mbuf: true });
    }

    /// Queues `bytes` at `seq`, where the queue ends. Returns how many packets it holds more.
    #[inline]
    pub fn push_bytes(&mut self, seq: Seq, bytes: Bytes) -> usize {
        let holds_mbuf = bytes.is_pooled();
        let piece = Piece { seq, len: bytes.len() as u32, packet: None, retained: Some(bytes), holds_mbuf };
        let packets = piece.packets();
        self.pieces.push_back(piece);
        packets
    }

    /// Makes the last piece longer by up to `max` bytes, if nothing of it has been sent, there is room behind it, and it
    /// stays within `most` bytes. Returns by how many; what is not wanted of them is given back by [`trim`](Self::trim).
    pub fn extend(&mut self, max: usize, most: usize) -> usize {
        let Some(piece) = self.pieces.back_mut() else { return 0 };
        let Some(packet) = &mut piece.packet else { return 0 };
        let n = max.min(most.saturating_sub(piece.len as usize));
        if n == 0 || packet.append(n).is_none() {
            return 0;
        }
        piece.len += n as u32;
        n
    }

    /// The last `n` bytes, which [`extend`](Self::extend) has just made.
    pub fn end_mut(&mut self, n: usize) -> Option<&mut [u8]> {
        let data = self.pieces.back_mut()?.packet.as_mut()?.data_mut()?;
        let at = data.len().checked_sub(n).filter(|_| n > 0)?;
        data.get_mut(at..)
    }

    /// Takes `n` bytes off the end of the last piece, which has never been sent. Returns how many packets went with them.
    pub fn trim(&mut self, n: u32) -> usize {
        let Some(piece) = self.pieces.back_mut() else { return 0 };
        if let Some(packet) = &mut piece.packet
            && packet.trim(n as usize)
        {
            piece.len -= n;
        }
        if piece.len == 0 {
            let packets = piece.packets();
            self.pieces.pop_back();
            self.unsent = self.unsent.min(self.pieces.len());
            return packets;
        }
        0
    }

    /// Lets go of everything before `una`. Returns how many packets that were.
    #[inline]
    pub fn acknowledge(&mut self, una: Seq) -> usize {
        let mut packets = 0;
        while let Some(first) = self.pieces.front()
            && !first.end().after(una)
        {
            packets += first.packets();
            self.pieces.pop_front();
            self.unsent = self.unsent.saturating_sub(1);
        }
        packets
    }

    /// Where the queue begins and ends, `None` if nothing is in it. Panics unless its pieces lie one behind the other.
    pub fn assert_contiguous(&self) -> Option<(Seq, Seq)> {
        for (piece, next) in self.pieces.iter().zip(self.pieces.iter().skip(1)) {
            assert_eq!(piece.end(), next.seq, "a gap in the send queue");
        }
        for piece in self.pieces.iter() {
            let lens = (piece.packet.as_ref().map(Packet::len), piece.retained.as_ref().map(|bytes| bytes.len()));
            let in_one_place = matches!(lens, (Some(len), None) | (None, Some(len)) if len == piece.len as usize);
            assert!(in_one_place, "a piece of {} bytes of the send queue has {lens:?}", piece.len);
        }
        Some((self.pieces.front()?.seq, self.pieces.back()?.end()))
    }

    /// How much of the `max` bytes from `seq` on goes into one frame: ports take chains of so many pieces and no more.
    #[inline]
    pub fn span(&self, seq: Seq, max: u32) -> u32 {
        if self.pieces.len() <= MAX_PIECES {
            return max;
        }
        let first = self.find(seq);
        match self.pieces.get(first + MAX_PIECES) {
            Some(beyond) => max.min(beyond.seq - seq),
            None => max,
        }
    }

    /// How much from `seq` on lies in one piece.
    pub fn piece_left(&self, seq: Seq) -> u32 {
        self.pieces.get(self.find(seq)).map_or(0, |piece| piece.end() - seq)
    }

    /// The number of the piece that holds `seq`.
    #[inline]
    fn find(&self, seq: Seq) -> usize {
        match self.pieces.get(self.unsent) {
            Some(piece) if !piece.seq.after(seq) && piece.end().after(seq) => self.unsent,
            _ => self.pieces.partition_point(|piece| !piece.end().after(seq)),
        }
    }

    /// The bytes of `seq..seq + len`, for a checksum.
    pub fn slices(&self, seq: Seq, len: u32) -> impl Iterator<Item = &[u8]> {
        let end = seq + len;
        self.pieces.iter_from(self.find(seq)).map_while(move |piece| {
            let from = seq.max(piece.seq);
            let to = end.min(piece.end());
            if !to.after(from) {
                return None;
            }
            let bytes = piece.bytes()?;
            bytes.get((from - piece.seq) as usize..(to - piece.seq) as usize)
        })
    }

    /// The packet, and its length, that begins at `seq`, the next to be sent for the first time, if it was never sent.
    #[inline(always)]
    pub fn next_packet(&mut self, seq: Seq) -> Option<(u32, &mut P)> {
        let piece = self.pieces.get_mut(self.unsent)?;
        if piece.seq != seq {
            return None;
        }
        Some((piece.len, piece.packet.as_mut()?))
    }

    /// Takes the [next packet](Self::next_packet) out, to be sent; `retained` are its bytes, which stay.
    #[inline(always)]
    pub fn packet_sent(&mut self, retained: Bytes) -> Option<P> {
        let piece = self.pieces.get_mut(self.unsent)?;
        let packet = piece.packet.take();
        piece.retained = Some(retained);
        self.unsent += 1;
        packet
    }

    /// Queues `bytes` of a packet at `seq`, where the queue ends, being empty; they are about to be sent.
    #[inline(always)]
    pub fn push_lone(&mut self, seq: Seq, bytes: Bytes) {
        self.pieces.put(Piece { seq, len: bytes.len() as u32, packet: None, retained: Some(bytes), holds_mbuf: true });
        self.unsent = 1;
    }

    /// Lets go of the only piece there is, all of it being acknowledged. Returns how many packets that were.
    #[inline(always)]
    pub fn acknowledge_lone(&mut self) -> usize {
        let packets = self.pieces.only().map_or(0, Piece::packets);
        self.unsent = 0;
        self.pieces.drop_only();
        packets
    }

    /// Takes out the bytes of the only piece there is, if they have been sent and lie in a packet of the port.
    pub fn take_lone(&mut self) -> Option<Bytes> {
        let piece = self.pieces.only()?;
        if piece.retained.is_none() || !piece.holds_mbuf {
            return None;
        }
        self.unsent = 0;
        self.pieces.take_only()?.retained
    }

    /// Whether there is one piece.
    #[inline(always)]
    pub fn is_lone(&self) -> bool {
        self.pieces.only().is_some()
    }

    /// A frame of `header` bytes that `write` fills and the `len` bytes of the stream from `seq` on, all of which are queued.
    /// The header goes in front of the payload where that lies, if `in_place` allows it and nothing of the payload was sent
    /// before; otherwise into a packet of its own. For a port that takes no chains and nothing that is shared, that packet has
    /// the payload too: made by the port, when others wait for it that hold all packets, the copy might never be.
    /// `None` when the port has no packet for it.
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
            && let Some(piece) = self.pieces.get_mut(first)
            && piece.seq == seq
            && piece.len <= len
            && let Some(mut packet) = piece.packet.take()
        {
            // The packet leaves, and its bytes stay.
            let Some(place) = packet.prepend(header) else {
                piece.packet = Some(packet);
                return self.build_frame_separate(first, seq, len, header, egress, write);
            };
            write(place);
            let Some(bytes) = packet.retain(header) else {
                // Its holders cannot be counted any more. This one stays, and is sent from where it lies.
                piece.retained = Some(packet.into_bytes(header..header + piece.len as usize));
                return None;
            };
            piece.retained = Some(bytes);
            let rest = len - piece.len;
            if rest > 0 {
                let next = piece.end();
                self.append(&mut packet, first + 1, next, rest, egress)?;
            }
            self.sent_up_to(seq + len);
            return Some(packet);
        }
        self.build_frame_separate(first, seq, len, header, egress, write)
    }

    /// As [`build_frame`](Self::build_frame), with the header in a packet of its own.
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

    /// Chains the `len` bytes from `seq` on, which begin in piece number `at`, behind `packet`.
    fn append<N: Nic<Packet = P>>(
        &mut self,
        packet: &mut P,
        mut at: usize,
        mut seq: Seq,
        mut len: u32,
        egress: &mut Egress<N>,
    ) -> Option<()> {
        while len > 0 {
            let piece = self.pieces.get_mut(at)?;
            let from = seq - piece.seq;
            let n = len.min(piece.len - from);
            if let Some(mut own) = piece.packet.take() {
                if n == piece.len
                    && let Some(bytes) = own.retain(0)
                {
                    piece.retained = Some(bytes);
                    packet.chain(own).ok()?;
                    (at, seq, len) = (at + 1, seq + n, len - n);
                    continue;
                }
                let end = own.data().len();
                piece.retained = Some(own.into_bytes(0..end));
            }
            let bytes = piece.retained.as_ref()?.slice(from as usize..(from + n) as usize);
            match egress.attach(bytes) {
                Ok(part) => packet.chain(part).ok()?,
                // Either no packet is left, or the port does not reach that memory.
                Err(bytes) => copy(packet, &bytes, egress)?,
            }
            (at, seq, len) = (at + 1, seq + n, len - n);
        }
        Some(())
    }

    /// Notes that everything before `end` has been sent.
    #[inline]
    fn sent_up_to(&mut self, end: Seq) {
        while let Some(piece) = self.pieces.get(self.unsent)
            && !piece.end().after(end)
        {
            self.unsent += 1;
        }
    }
}

/// Copies `bytes` behind `packet`, into packets of the port.
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
