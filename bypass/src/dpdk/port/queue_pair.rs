//! One receive/transmit queue pair of a port.

use super::Shared;
use super::quiesce::{Pass, Place};
use super::setup::ETHERNET;
use crate::capture::Capture;
use crate::dpdk::mbuf::Mbuf;
use crate::dpdk::mbuf::header_ownership;
use crate::dpdk::mbuf::mempool::Mempool;
use crate::dpdk::mbuf::segment::OFFLOADS;
use crate::prefetch::{CACHE_LINE, prefetch_to_write};
use crate::{BURST, Bytes, Capabilities, MacAddr, Nic, Packet, QueueStats};
use dpdk_sys as sys;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

/// A queue pair of a [`Port`](super::Port), from [`Port::take_queues`](super::Port::take_queues).
///
/// It can move to another thread and cannot be shared or cloned, so the driver's queues have one user each. It keeps
/// the port's devices open.
///
/// While the other end of a link is away, it receives nothing and sends nothing. It must be polled even so, or
/// dropped: a device is made again only when all queue pairs have noticed that the old one is to go.
#[derive(Debug)]
pub struct QueuePair {
    shared: Arc<Shared>,
    index: usize,
    pass: Pass,
    pool: Mempool,
    /// The longest frame that the device is not asked to cut.
    longest: usize,
    mac: MacAddr,
    max_segments: usize,
    max_tso_segments: usize,
    max_tso_frame: usize,
    /// What a frame asks for that the driver wants to prepare.
    to_prepare: u64,
    /// Frames are lent to the driver, which transmits into a split virtqueue.
    lends: bool,
    /// The driver's memory may vanish within a burst.
    may_vanish: bool,
    /// Frames arrive cold, and empty packets begin further.
    cold: bool,
    stats: QueueStats,
    /// Who keeps copies of what passes.
    capture: Option<Box<Capture>>,
    not_sync: PhantomData<Cell<()>>,
}

/// Where frames arrive cold, an empty packet begins further behind than a received one, by so many bytes: with usual headers in
/// front, a payload then lies in the lines of the frame that was received in the packet before, which the other core has given
/// away already.
pub(crate) const FURTHER: usize = CACHE_LINE;

/// What is to be done with a frame to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// It goes as it is.
    Ready,
    /// A copy of it goes.
    Copy,
    /// It can never go.
    Never,
}

impl QueuePair {
    pub(crate) fn new(shared: Arc<Shared>, index: usize) -> Self {
        QueuePair {
            pass: shared.gate.enter(index),
            index,
            pool: shared.pool.clone(),
            longest: usize::from(shared.choice.capabilities.mtu) + ETHERNET + shared.choice.tag,
            mac: shared.mac,
            max_segments: shared.choice.max_segments,
            max_tso_segments: shared.choice.max_tso_segments,
            max_tso_frame: shared.choice.max_tso_frame,
            to_prepare: if shared.choice.virtio { sys::LR_TX_TCP_SEG } else { OFFLOADS },
            lends: shared.choice.split_tx,
            may_vanish: shared.choice.may_vanish,
            cold: shared.choice.cold,
            stats: QueueStats::default(),
            capture: None,
            not_sync: PhantomData,
            shared,
        }
    }

    /// The pool that the packets of this port come from.
    pub fn mempool(&self) -> &Mempool {
        &self.pool
    }

    /// Returns whether a frame whose payload is [retained](Packet::retain) is presented to the driver as one without other holders,
    /// so that the driver puts its header in front of the frame and not into a descriptor of its own: on split virtqueues.
    pub fn masks_reference_counts(&self) -> bool {
        self.lends
    }

    /// Lets `capture` keep copies of what passes from now on, until nobody reads them any more.
    pub fn keep_copies(&mut self, capture: Capture) {
        self.capture = Some(Box::new(capture));
    }

    /// Who keeps copies, if anybody still reads them.
    #[cold]
    #[inline(never)]
    fn capture(&mut self) -> Option<&mut Capture> {
        self.capture.take_if(|capture| capture.is_over());
        self.capture.as_deref_mut()
    }

    #[inline]
    fn place(&mut self) -> Option<Place> {
        self.shared.gate.check(self.index, &mut self.pass)
    }

    #[inline]
    fn fit(&self, frame: &Mbuf) -> Fit {
        let head = frame.head();
        let flags = head.flags();
        let (max, max_segments) = if flags & sys::LR_TX_TCP_SEG == 0 {
            (self.longest, self.max_segments)
        } else if self.capabilities().tso.is_some() {
            (self.max_tso_frame, self.max_tso_segments)
        } else {
            (0, 0)
        };
        let len = head.pkt_len();
        if len > max || len < ETHERNET {
            return Fit::Never;
        }
        if self.max_segments == 1 {
            // AF_XDP sends the first buffer, and takes it for one of its own and for nobody else's.
            let is_own = head.pool() == self.pool.raw();
            return if is_own && head.segments() == 1 && head.is_exclusive() { Fit::Ready } else { Fit::Copy };
        }
        if flags & OFFLOADS != 0 {
            let headers = head.headers_written();
            if headers > len {
                return Fit::Never;
            }
            if headers > head.data_len() || !header_ownership::is_own(head, headers) {
                return Fit::Copy;
            }
        }
        if head.segments() > max_segments { Fit::Copy } else { Fit::Ready }
    }

    /// A copy of `frame` in packets of our own, as few as hold it. `None` when the pool is empty.
    fn copy(&mut self, frame: &Mbuf) -> Option<Mbuf> {
        let mut copy = self.allocate()?;
        for mut from in frame.segments() {
            while !from.is_empty() {
                let last = copy.head().last();
                let room = last.buf_len() - last.data_off() - last.data_len();
                if room == 0 {
                    let more = self.allocate()?;
                    copy.chain(more).ok()?;
                    continue;
                }
                let (now, later) = from.split_at(room.min(from.len()));
                copy.append(now.len())?.copy_from_slice(now);
                from = later;
            }
        }
        copy.head().set_flags(frame.head().flags() & sys::LR_TX_OFFLOAD_MASK);
        copy.head().set_tx_offload(frame.head().tx_offload());
        copy.head().set_vlan_tci(frame.head().vlan_tci());
        self.stats.copied_bytes += frame.len() as u64;
        Some(copy)
    }

    /// A packet of those that the driver has sent and not freed yet, of which some are freed now.
    #[cold]
    fn reclaim_one(&mut self) -> Option<Mbuf> {
        if let Some(place) = self.place() {
            // SAFETY: the queue has no other user, and exists while the gate is open.
            unsafe { sys::lr_tx_reclaim(place.port, place.queue) };
        }
        let packet = self.pool.allocate();
        self.stats.pool_empty += u64::from(packet.is_none());
        packet
    }

    /// Makes the first frames of `frames`, up to a burst, ready to go. Returns how many are, and what holds up the
    /// one behind them, if anything does.
    #[inline]
    fn ready(&mut self, frames: &mut [Mbuf], place: Place) -> (usize, Option<Fit>) {
        let mut offloads = 0;
        let mut ready = 0;
        let mut held_up = None;
        for frame in frames.iter_mut().take(BURST) {
            match self.fit(frame) {
                Fit::Ready => {}
                Fit::Copy if self.max_segments == 1 && frame.len() > self.pool.data_room() => {
                    held_up = Some(Fit::Never);
                    break;
                }
                Fit::Copy => match self.copy(frame) {
                    Some(copy) => *frame = copy,
                    None => {
                        held_up = Some(Fit::Copy);
                        break;
                    }
                },
                Fit::Never => {
                    held_up = Some(Fit::Never);
                    break;
                }
            }
            offloads |= frame.head().flags() & self.to_prepare;
            ready += 1;
        }
        if offloads != 0 {
            // SAFETY: as for `lr_tx_burst`; the frames stay ours, and nobody else sees their headers (`fit`).
            let prepared =
                unsafe { sys::lr_tx_prepare(place.port, place.queue, frames.as_mut_ptr().cast(), ready as u16) };
            if usize::from(prepared) < ready {
                return (prepared.into(), Some(Fit::Never));
            }
        }
        (ready, held_up)
    }
}

/// [Lends](Segment::lend) those of `frames`, a burst at most, that can be: bit by bit, from the lowest.
///
/// # Safety
/// They are reclaimed before anybody gives their packets' references back.
#[inline]
unsafe fn lend(frames: &[Mbuf]) -> u32 {
    let mut lent = 0;
    for (at, frame) in frames.iter().enumerate() {
        // SAFETY: packets have one owner, who lets us have them; the rest is the caller's promise.
        lent |= u32::from(unsafe { frame.head().lend() }) << at;
    }
    lent
}

/// A burst of a driver whose memory may vanish meanwhile, sent if `tx` and else received; `None` if it did, and what the
/// driver had in hand is lost.
///
/// # Safety
/// As of `lr_rx_burst` and `lr_tx_burst`; and of what is sent nothing is used after a `None`.
#[inline(never)]
unsafe fn guarded_burst(tx: bool, place: Place, mbufs: *mut *mut sys::rte_mbuf, n: u16) -> Option<u16> {
    let mut left = 0;
    // SAFETY: the caller's promises. The jump out of the burst ends within the function that is called here, and passes
    // frames of the driver only, which holds no lock and owns nothing in a burst but packets.
    let done = unsafe { sys::lr_guarded_burst(tx.into(), place.port, place.queue, mbufs, n, &mut left) };
    if left != 0 {
        tracing::warn!("the other end of the link left in the middle of a burst: up to {BURST} packets are lost");
        return None;
    }
    Some(done)
}

/// Bytes of `frames` in all.
#[inline]
fn bytes(frames: &[Mbuf]) -> u64 {
    frames.iter().map(|frame| frame.len() as u64).sum()
}

impl Nic for QueuePair {
    type Packet = Mbuf;

    fn mac(&self) -> MacAddr {
        self.mac
    }

    #[inline]
    fn capabilities(&self) -> &Capabilities {
        self.shared.capabilities()
    }

    fn link_up(&mut self) -> bool {
        self.place().is_some() && self.shared.is_link_up()
    }

    #[inline]
    fn rx_burst(&mut self, into: &mut Vec<Mbuf>) -> usize {
        let Some(place) = self.place() else { return 0 };
        let before = into.len();
        let room = into.spare_capacity_mut();
        let n = room.len().min(BURST);
        if n == 0 {
            return 0;
        }
        // SAFETY: an `Mbuf` is a pointer to an mbuf, and there is room for `n`; the queue has no other user (`&mut`,
        // not cloned) and exists while the gate is open.
        let received = unsafe {
            let room = room.as_mut_ptr().cast();
            if self.may_vanish {
                guarded_burst(false, place, room, n as u16).unwrap_or(0)
            } else {
                sys::lr_rx_burst(place.port, place.queue, room, n as u16)
            }
        };
        let received = usize::from(received);
        // SAFETY: that many were written, each a packet that the driver gave away.
        unsafe { into.set_len(before + received) };
        self.stats.rx_frames += received as u64;
        self.stats.rx_bytes += bytes(&into[before..]);
        if self.capture.is_some()
            && let Some(capture) = self.capture()
        {
            capture.received(&into[before..]);
        }
        if self.cold {
            // From another core's cache, or from memory: payload, and headers that others are going to be written over, now or
            // when the packet is used again.
            for start in into[before..].iter().map(|frame| frame.data().as_ptr()) {
                for line in [2, 1, 0] {
                    prefetch_to_write(start.wrapping_add(line * CACHE_LINE));
                }
            }
        }
        received
    }

    #[inline]
    fn tx_burst(&mut self, from: &mut Vec<Mbuf>) -> usize {
        let Some(place) = self.place() else {
            self.stats.tx_full += u64::from(!from.is_empty());
            return 0;
        };
        let total = from.len();
        let mut taken = 0;
        while taken < total {
            let (ready, held_up) = self.ready(&mut from[taken..], place);
            // Those that are not taken do not count; of those that are, nothing can be asked afterwards.
            self.stats.tx_bytes += bytes(&from[taken..taken + ready]);
            if ready == 0 && held_up == Some(Fit::Copy) {
                break;
            }
            if self.capture.is_some()
                && let Some(capture) = self.capture()
            {
                capture.sending(&from[taken..taken + ready]);
            }
            // SAFETY: between `lend` and `reclaim` the driver does not free these frames. `lends` says that the driver
            // transmits by `virtio_xmit_pkts` or `virtio_xmit_pkts_inorder` of DPDK's virtio driver, for split virtqueues:
            // - Both fill descriptors and the available ring (`virtqueue_enqueue_xmit`, `virtqueue_enqueue_xmit_inorder`,
            //   `vq_update_avail_ring`) for all frames of the call, and store `avail->idx` once, behind the loop
            //   (`vq_update_avail_idx`). The device may not look at a frame before it sees that index.
            // - Within the call they free frames in `virtio_xmit_cleanup` and `virtio_xmit_cleanup_inorder` only, and of those
            //   no more than `virtqueue_nused` says that the device has put into the used ring. So these are of earlier calls.
            // - They free no frame that they refuse, short of one in which `rte_vlan_insert` fails: no frame for a virtio port
            //   has `LR_TX_VLAN` (`setup::choose` clears `vlan`).
            // - No other thread frees frames of this queue: `lr_tx_reclaim` and the closing of the device need the queue pair
            //   or a closed gate.
            // It is taken for granted that the device puts no descriptor into the used ring that was not made available to it;
            // the driver does not survive one that does.
            // The functions for packed virtqueues are not masked for. `virtio_xmit_pkts_packed` and
            // `virtio_xmit_pkts_packed_vec` make each frame available within the loop (`virtqueue_store_flags_packed`), and free
            // what the device has used in the same loop (`virtio_xmit_cleanup_packed`). Other drivers are not, either:
            // `eth_vhost_tx`, for one, frees every frame that it has copied.
            let mut lent = if self.lends { unsafe { lend(&from[taken..taken + ready]) } } else { 0 };
            // SAFETY: an `Mbuf` is a pointer to an mbuf; the driver takes the first ones that it returns the number
            // of, which are forgotten below. The queue has no other user, and exists while the gate is open.
            let sent = unsafe {
                let frames = from.as_mut_ptr().add(taken).cast();
                if self.may_vanish {
                    // Of those that it had in hand it is not known which it has freed.
                    guarded_burst(true, place, frames, ready as u16).unwrap_or(ready as u16)
                } else {
                    sys::lr_tx_burst(place.port, place.queue, frames, ready as u16)
                }
            };
            let sent = usize::from(sent);
            while lent != 0 {
                let frame = &from[taken + lent.trailing_zeros() as usize];
                // SAFETY: lent above, and kept alive by that, whoever has it now.
                unsafe { frame.head().reclaim() };
                lent &= lent - 1;
            }
            if let Some(capture) = &mut self.capture {
                capture.sent(sent);
            }
            self.stats.tx_frames += sent as u64;
            taken += sent;
            if sent < ready {
                self.stats.tx_bytes -= bytes(&from[taken..taken + ready - sent]);
                break;
            }
            match held_up {
                None => {}
                Some(Fit::Never) => {
                    // SAFETY: within the vector; it is forgotten with those sent.
                    unsafe { from.as_mut_ptr().add(taken).drop_in_place() };
                    self.stats.tx_dropped += 1;
                    taken += 1;
                }
                Some(_) => break,
            }
        }
        // SAFETY: the first `taken` belong to the driver or have been dropped; the others move to the front. Nothing
        // above panics between the one and the other.
        unsafe {
            let start = from.as_mut_ptr();
            std::ptr::copy(start.add(taken), start, total - taken);
            from.set_len(total - taken);
        }
        self.stats.tx_full += u64::from(taken < total);
        taken
    }

    #[inline]
    fn allocate(&mut self) -> Option<Mbuf> {
        let packet = self.pool.allocate().or_else(|| self.reclaim_one())?;
        if self.cold {
            let head = packet.head();
            head.set_data_off(head.data_off() + FURTHER);
        }
        Some(packet)
    }

    #[inline]
    fn attach(&mut self, bytes: Bytes) -> Result<Mbuf, Bytes> {
        let Some(packet) = self.allocate() else { return Err(bytes) };
        packet.hold(bytes)
    }

    fn pool_left(&mut self) -> Option<usize> {
        Some(self.pool.available())
    }

    fn stats(&self) -> QueueStats {
        self.stats
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.shared.gate.leave(self.index);
    }
}
