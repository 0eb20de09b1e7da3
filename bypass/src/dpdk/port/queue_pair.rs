//! Receive/transmit queue pair of a DPDK port.

use super::SharedPort;
use super::dev_args::PortKind;
use super::quiesce::{QueueId, QueueView};
use super::setup::ETHERNET;
use super::wakeup;
use crate::capture::Capture;
use crate::dpdk::mbuf::Mbuf;
use crate::dpdk::mbuf::header_ownership;
use crate::dpdk::mbuf::mempool::Mempool;
use crate::dpdk::mbuf::segment::OFFLOADS;
use crate::prefetch::{CACHE_LINE, prefetch_for_write};
use crate::{BURST, Capabilities, MacAddr, Nic, Packet, QueueStats, Sleeper};
use dpdk_sys as sys;
use linerate_service::Bytes;
use std::cell::Cell;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Queue pair of a [`Port`](super::Port), returned by [`Port::take_queues`](super::Port::take_queues).
///
/// It can be moved to another thread and not be shared or cloned, so each DPDK queue has one user. It keeps the port's
/// devices open.
///
/// While the peer of a link is disconnected, the queue pair receives and sends nothing. It must still be polled, or
/// dropped: the device is created again only after all queue pairs have acknowledged its removal.
#[derive(Debug)]
pub struct QueuePair {
    shared: Arc<SharedPort>,
    index: usize,
    view: QueueView,
    pool: Mempool,
    /// Maximum length of a frame without segmentation by the device.
    max_frame: usize,
    mac: MacAddr,
    max_segments: usize,
    max_tso_segments: usize,
    max_tso_frame: usize,
    /// Offload flags for which the driver requires `rte_eth_tx_prepare`.
    prepare_flags: u64,
    /// True if reference counts are masked for the driver, which transmits into a split virtqueue.
    masks_refcnt: bool,
    /// True if the driver's memory may be unmapped during a burst.
    may_unmap: bool,
    /// True if received frames are not in this core's cache. Allocated packets then have [`EXTRA_HEADROOM`].
    rx_uncached: bool,
    stats: QueueStats,
    /// Epoch of the device whose wake-up the sleeper of the worker has.
    watched: Option<u64>,
    /// True if the port can wake the worker.
    is_known: bool,
    /// True if the device wakes the worker.
    is_armed: bool,
    /// Capture of the frames that pass.
    capture: Option<Box<Capture>>,
    not_sync: PhantomData<Cell<()>>,
}

/// Additional headroom of an allocated packet where received frames are in another core's cache. With usual headers in
/// front, the payload then occupies the cache lines of the previously received frame, which the other core has already
/// given up.
pub(crate) const EXTRA_HEADROOM: usize = CACHE_LINE;

/// Treatment of a frame to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TxCheck {
    Send,
    /// Send a copy.
    Copy,
    /// Drop it: the port can never send it.
    Drop,
}

impl QueuePair {
    pub(crate) fn new(shared: Arc<SharedPort>, index: usize) -> Self {
        QueuePair {
            view: shared.quiesce.register(index),
            index,
            pool: shared.pool.clone(),
            max_frame: usize::from(shared.settings.capabilities.mtu) + ETHERNET + shared.settings.tag_len,
            mac: shared.mac,
            max_segments: shared.settings.max_segments,
            max_tso_segments: shared.settings.max_tso_segments,
            max_tso_frame: shared.settings.max_tso_frame,
            prepare_flags: if shared.settings.virtio { sys::LR_TX_TCP_SEG } else { OFFLOADS },
            masks_refcnt: shared.settings.split_tx,
            may_unmap: shared.settings.may_unmap,
            rx_uncached: shared.settings.rx_uncached,
            stats: QueueStats::default(),
            watched: None,
            is_known: false,
            is_armed: false,
            capture: None,
            not_sync: PhantomData,
            shared,
        }
    }

    /// Returns the packet pool of the port.
    pub fn mempool(&self) -> &Mempool {
        &self.pool
    }

    /// Returns whether the driver sees the reference count of a frame with [retained](Packet::retain) payload as 1, so
    /// that it writes its header in front of the frame and not into a separate descriptor. It does on split virtqueues.
    pub fn masks_reference_counts(&self) -> bool {
        self.masks_refcnt
    }

    /// Captures passing frames from now on, until the reader of `capture` is dropped.
    pub fn set_capture(&mut self, capture: Capture) {
        self.capture = Some(Box::new(capture));
    }

    /// Returns the capture, if its reader exists.
    #[cold]
    #[inline(never)]
    fn capture(&mut self) -> Option<&mut Capture> {
        self.capture.take_if(|capture| capture.is_over());
        self.capture.as_deref_mut()
    }

    #[inline]
    fn queue_id(&mut self) -> Option<QueueId> {
        self.shared.quiesce.queue_id(self.index, &mut self.view)
    }

    /// Enables or disables the interrupt of the receive queue. Drivers whose descriptor needs none do not support it.
    fn set_interrupt(&self, queue_id: QueueId, on: bool) {
        let QueueId { port, queue } = queue_id;
        // SAFETY: there are no pointer arguments. The device exists while `queue_id` returns it.
        unsafe {
            match (&self.shared.spec.kind, on) {
                (PortKind::Vhost, on) => sys::lr_vhost_rx_interrupt(port, queue, on.into()),
                (_, true) => _ = sys::rte_eth_dev_rx_intr_enable(port, queue),
                (_, false) => _ = sys::rte_eth_dev_rx_intr_disable(port, queue),
            }
        }
    }

    #[inline]
    fn check_tx(&self, frame: &Mbuf) -> TxCheck {
        let head = frame.head();
        let flags = head.flags();
        let (max, max_segments) = if flags & sys::LR_TX_TCP_SEG == 0 {
            (self.max_frame, self.max_segments)
        } else if self.capabilities().tso.is_some() {
            (self.max_tso_frame, self.max_tso_segments)
        } else {
            (0, 0)
        };
        let len = head.pkt_len();
        if len > max || len < ETHERNET {
            return TxCheck::Drop;
        }
        if self.max_segments == 1 {
            // The AF_XDP driver sends the first buffer only, and assumes that it is exclusive and of its own pool.
            let is_from_own_pool = head.pool() == self.pool.raw();
            return if is_from_own_pool && head.segments() == 1 && head.is_exclusive() {
                TxCheck::Send
            } else {
                TxCheck::Copy
            };
        }
        if flags & OFFLOADS != 0 {
            let headers = head.headers_written();
            if headers > len {
                return TxCheck::Drop;
            }
            if headers > head.data_len() || !header_ownership::is_exclusive(head, headers) {
                return TxCheck::Copy;
            }
        }
        if head.segments() > max_segments { TxCheck::Copy } else { TxCheck::Send }
    }

    /// Copies `frame` to the minimum number of packets of this port's pool. Returns `None` if the pool is empty.
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

    /// Frees packets that the driver has sent, and allocates one of them.
    #[cold]
    fn free_sent_and_allocate(&mut self) -> Option<Mbuf> {
        if let Some(queue_id) = self.queue_id() {
            // SAFETY: the queue has no other user, and exists while `queue_id` returns it.
            unsafe { sys::lr_tx_reclaim(queue_id.port, queue_id.queue) };
        }
        let packet = self.pool.allocate();
        self.stats.pool_empty += u64::from(packet.is_none());
        packet
    }

    /// Prepares up to a burst of frames from the front of `frames`. Returns their number, and the treatment of the next
    /// frame if it stopped the preparation.
    #[inline]
    fn prepare(&mut self, frames: &mut [Mbuf], queue_id: QueueId) -> (usize, Option<TxCheck>) {
        let mut offloads = 0;
        let mut ready = 0;
        let mut blocked = None;
        for frame in frames.iter_mut().take(BURST) {
            match self.check_tx(frame) {
                TxCheck::Send => {}
                TxCheck::Copy if self.max_segments == 1 && frame.len() > self.pool.data_room() => {
                    blocked = Some(TxCheck::Drop);
                    break;
                }
                TxCheck::Copy => match self.copy(frame) {
                    Some(copy) => *frame = copy,
                    None => {
                        blocked = Some(TxCheck::Copy);
                        break;
                    }
                },
                TxCheck::Drop => {
                    blocked = Some(TxCheck::Drop);
                    break;
                }
            }
            offloads |= frame.head().flags() & self.prepare_flags;
            ready += 1;
        }
        if offloads != 0 {
            // SAFETY: as for `lr_tx_burst`. The frames remain owned by the caller, and their headers are exclusive
            // (`check_tx`).
            let prepared =
                unsafe { sys::lr_tx_prepare(queue_id.port, queue_id.queue, frames.as_mut_ptr().cast(), ready as u16) };
            if usize::from(prepared) < ready {
                return (prepared.into(), Some(TxCheck::Drop));
            }
        }
        (ready, blocked)
    }
}

/// Masks the reference counts of `frames`, a burst at most, where possible. Returns a bit for
/// each frame, from the lowest.
///
/// # Safety
/// The counts are restored before the references of the packets are released.
#[inline]
unsafe fn mask_refcnts(frames: &[Mbuf]) -> u32 {
    let mut masked = 0;
    for (at, frame) in frames.iter().enumerate() {
        // SAFETY: a packet has one owner, here the caller. The caller guarantees the rest.
        masked |= u32::from(unsafe { frame.head().mask_refcnt() }) << at;
    }
    masked
}

/// Receives or sends (`tx`) a burst by a driver whose memory may be unmapped meanwhile. Returns `None` if it was. The
/// packets that the driver had in hand are lost then.
///
/// # Safety
/// As for `lr_rx_burst` and `lr_tx_burst`. After `None`, the frames to be sent must not be used.
#[inline(never)]
unsafe fn guarded_burst(tx: bool, queue_id: QueueId, mbufs: *mut *mut sys::rte_mbuf, n: u16) -> Option<u16> {
    let mut left = 0;
    // SAFETY: by the caller's contract. The jump out of the burst ends within the called function and crosses frames of
    // the driver only, which holds no lock and owns only packets during a burst.
    let done = unsafe { sys::lr_guarded_burst(tx.into(), queue_id.port, queue_id.queue, mbufs, n, &mut left) };
    if left != 0 {
        tracing::warn!("the other end of the link disconnected during a burst: up to {BURST} packets are lost");
        return None;
    }
    Some(done)
}

/// Returns the total length of `frames`.
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
        self.queue_id().is_some() && self.shared.state.link_up()
    }

    #[inline]
    fn rx_burst(&mut self, into: &mut Vec<Mbuf>) -> usize {
        let Some(queue_id) = self.queue_id() else { return 0 };
        let before = into.len();
        let room = into.spare_capacity_mut();
        let n = room.len().min(BURST);
        if n == 0 {
            return 0;
        }
        // SAFETY: an `Mbuf` is a pointer to an mbuf, and there is room for `n`. The queue has no other user (`&mut`,
        // not cloned) and exists while `queue_id` returns it.
        let received = unsafe {
            let room = room.as_mut_ptr().cast();
            if self.may_unmap {
                guarded_burst(false, queue_id, room, n as u16).unwrap_or(0)
            } else {
                sys::lr_rx_burst(queue_id.port, queue_id.queue, room, n as u16)
            }
        };
        let received = usize::from(received);
        // SAFETY: that many were written, each a packet that the driver gave up.
        unsafe { into.set_len(before + received) };
        self.stats.rx_frames += received as u64;
        self.stats.rx_bytes += bytes(&into[before..]);
        if self.capture.is_some()
            && let Some(capture) = self.capture()
        {
            capture.received(&into[before..]);
        }
        if self.rx_uncached {
            // The lines are in another core's cache or in memory. They are written later: headers of received packets
            // are replaced, and payload is overwritten when the packet is reused.
            for start in into[before..].iter().map(|frame| frame.data().as_ptr()) {
                for line in [2, 1, 0] {
                    prefetch_for_write(start.wrapping_add(line * CACHE_LINE));
                }
            }
        }
        received
    }

    #[inline]
    fn tx_burst(&mut self, from: &mut Vec<Mbuf>) -> usize {
        let Some(queue_id) = self.queue_id() else {
            self.stats.tx_full += u64::from(!from.is_empty());
            return 0;
        };
        let total = from.len();
        let mut taken = 0;
        while taken < total {
            let (ready, blocked) = self.prepare(&mut from[taken..], queue_id);
            // Frames that are not accepted are subtracted below. An accepted frame cannot be accessed afterwards.
            self.stats.tx_bytes += bytes(&from[taken..taken + ready]);
            if ready == 0 && blocked == Some(TxCheck::Copy) {
                break;
            }
            if self.capture.is_some()
                && let Some(capture) = self.capture()
            {
                capture.sending(&from[taken..taken + ready]);
            }
            // SAFETY: between `mask_refcnts` and `restore_refcnt` the driver does not free these frames. `masks_refcnt`
            // states that the driver transmits by `virtio_xmit_pkts` or `virtio_xmit_pkts_inorder` of DPDK's virtio
            // driver, for split virtqueues:
            // - Both fill descriptors and the available ring (`virtqueue_enqueue_xmit`,
            //   `virtqueue_enqueue_xmit_inorder`, `vq_update_avail_ring`) for all frames of the call, and store
            //   `avail->idx` once, after the loop (`vq_update_avail_idx`). The device may not access a frame before it
            //   sees that index.
            // - Within the call they free frames in `virtio_xmit_cleanup` and `virtio_xmit_cleanup_inorder` only, at
            //   most as many as the device has put into the used ring (`virtqueue_nused`). These are of earlier calls.
            // - They free no frame that they reject, except one for which `rte_vlan_insert` fails: no frame for a
            //   virtio port has `LR_TX_VLAN` (`setup::derive` clears `vlan`).
            // - No other thread frees frames of this queue: `lr_tx_reclaim` and the closing of the device require the
            //   queue pair or quiescence.
            // The device is trusted to put no descriptor into the used ring that was not made available to it; the
            // driver does not survive one that does.
            // Counts are not masked for packed virtqueues: `virtio_xmit_pkts_packed` and `virtio_xmit_pkts_packed_vec`
            // make each frame available within the loop (`virtqueue_store_flags_packed`), and free frames that the
            // device has used in the same loop (`virtio_xmit_cleanup_packed`). They are not masked for other drivers
            // either: `eth_vhost_tx`, for example, frees every frame that it has copied.
            let mut masked = if self.masks_refcnt { unsafe { mask_refcnts(&from[taken..taken + ready]) } } else { 0 };
            // SAFETY: an `Mbuf` is a pointer to an mbuf. The driver takes the first frames, whose number it returns;
            // they are forgotten below. The queue has no other user, and exists while `queue_id` returns it.
            let sent = unsafe {
                let frames = from.as_mut_ptr().add(taken).cast();
                if self.may_unmap {
                    // It is unknown which of the frames the driver has freed.
                    guarded_burst(true, queue_id, frames, ready as u16).unwrap_or(ready as u16)
                } else {
                    sys::lr_tx_burst(queue_id.port, queue_id.queue, frames, ready as u16)
                }
            };
            let sent = usize::from(sent);
            while masked != 0 {
                let frame = &from[taken + masked.trailing_zeros() as usize];
                // SAFETY: masked above, which keeps the segment alive.
                unsafe { frame.head().restore_refcnt() };
                masked &= masked - 1;
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
            match blocked {
                None => {}
                Some(TxCheck::Drop) => {
                    // SAFETY: within the vector; it is forgotten with the sent frames.
                    unsafe { from.as_mut_ptr().add(taken).drop_in_place() };
                    self.stats.tx_dropped += 1;
                    taken += 1;
                }
                Some(_) => break,
            }
        }
        // SAFETY: the first `taken` frames belong to the driver or have been dropped; the others move to the front.
        // Nothing in between panics.
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
        let packet = self.pool.allocate().or_else(|| self.free_sent_and_allocate())?;
        if self.rx_uncached {
            let head = packet.head();
            head.set_data_off(head.data_off() + EXTRA_HEADROOM);
        }
        Some(packet)
    }

    #[inline]
    fn attach(&mut self, bytes: Bytes) -> Result<Mbuf, Bytes> {
        let Some(packet) = self.allocate() else { return Err(bytes) };
        packet.attach(bytes)
    }

    fn pool_left(&mut self) -> Option<usize> {
        Some(self.pool.available())
    }

    fn arm(&mut self, sleeper: &mut Sleeper) -> bool {
        if !std::mem::replace(&mut self.is_known, true) {
            self.shared.sleepers.add(sleeper.wake());
        }
        // Without a device no frame arrives. The supervisor wakes the worker when there is one again.
        let Some(queue_id) = self.queue_id() else { return true };
        let Some(fd) = self.shared.wakeup(self.index) else { return false };
        if self.watched != Some(self.view.seen) {
            // SAFETY: the device keeps the descriptor open, and exists until the epoch changes.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            if let Err(error) = sleeper.watch(fd, !wakeup::is_level(&self.shared.spec.kind)) {
                tracing::debug!("{}: cannot wait for the port: {error}", self.shared.spec.via);
                return false;
            }
            self.watched = Some(self.view.seen);
        }
        self.set_interrupt(queue_id, true);
        self.is_armed = true;
        // The look for frames that follows must not precede the request: the other end publishes a frame, and then
        // reads the request after a fence of its own.
        fence(Ordering::SeqCst);
        true
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.is_armed)
            && let Some(queue_id) = self.queue_id()
        {
            self.set_interrupt(queue_id, false);
        }
    }

    fn stats(&self) -> QueueStats {
        self.stats
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.shared.quiesce.unregister(self.index);
    }
}
