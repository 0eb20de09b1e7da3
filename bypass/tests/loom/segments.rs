//! Models of the reference counts of a segment, while a driver has its packet and other threads have its payload.

use super::model;
use super::refcnt::RefCounts;
use super::sync::atomic::{AtomicU16, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

struct Segment {
    refcnt: AtomicU16,
    handles: AtomicU16,
    /// Bytes that handles read, and that the thread that frees the segment writes.
    payload: UnsafeCell<u32>,
    /// Bytes in front of them.
    headers: UnsafeCell<u32>,
}

impl Segment {
    /// Creates a segment with its packet's reference only. The handle count is stale.
    fn of_a_packet() -> Arc<Segment> {
        Arc::new(Segment {
            refcnt: AtomicU16::new(1),
            handles: AtomicU16::new(0),
            payload: UnsafeCell::new(0),
            headers: UnsafeCell::new(0),
        })
    }

    fn counts(&self) -> RefCounts<'_> {
        RefCounts { refcnt: &self.refcnt, handles: &self.handles }
    }

    fn retain(&self) {
        if self.counts().is_sole() {
            self.counts().add_first_handle();
        } else {
            assert!(self.counts().add_handle_to_shared());
        }
    }

    fn read(&self) {
        // SAFETY: the caller holds a handle; loom reports a concurrent writer.
        self.payload.with(|word| unsafe { *word });
    }

    fn free(&self) {
        // DPDK frees a segment with its last reference.
        self.refcnt.store(1, Ordering::Relaxed);
        // SAFETY: the caller owns the segment exclusively; loom reports another access.
        self.payload.with_mut(|word| unsafe { *word += 1 });
        // SAFETY: as above.
        self.headers.with_mut(|word| unsafe { *word += 1 });
    }

    /// Reads the payload through a handle, and releases the handle.
    fn read_and_release(&self) {
        self.read();
        if self.counts().release_handle() {
            self.free();
        }
    }

    /// Releases the packet's reference as `rte_pktmbuf_prefree_seg` does.
    fn free_packet(&self) {
        if self.refcnt.load(Ordering::Relaxed) == 1 || self.refcnt.fetch_sub(1, Ordering::AcqRel) == 1 {
            // DPDK's own load has the ordering of `rte_mbuf_refcnt_read` on the CPU.
            loom::sync::atomic::fence(Ordering::Acquire);
            self.free();
        }
    }

    /// Sends the packet as a virtio driver does: with a masked count, and the driver's header in front if it looks
    /// unshared.
    fn send(&self) {
        let masked = self.counts().mask_refcnt();
        if self.refcnt.load(Ordering::Relaxed) == 1 {
            // SAFETY: bytes in front of the retained ones are exclusive to the packet.
            self.headers.with_mut(|word| unsafe { *word += 1 });
        }
        if masked && self.counts().restore_refcnt() {
            self.free();
        }
    }

    fn frees(&self) -> u32 {
        // SAFETY: all threads have been joined.
        self.payload.with(|word| unsafe { *word })
    }
}

#[test]
fn masked_segment_is_freed_once_after_its_last_reader() {
    model(|| {
        let segment = Segment::of_a_packet();
        segment.retain();
        let other = segment.clone();
        let holder = thread::spawn(move || {
            other.counts().add_handle();
            other.read_and_release();
            other.read_and_release();
        });
        segment.send();
        segment.free_packet();
        holder.join().unwrap();
        assert_eq!(segment.frees(), 1);
    });
}

#[test]
fn masked_segment_with_handles_on_two_threads_is_freed_once() {
    model(|| {
        let segment = Segment::of_a_packet();
        segment.retain();
        segment.retain();
        let handles: Vec<_> = (0..2)
            .map(|_| {
                let other = segment.clone();
                thread::spawn(move || other.read_and_release())
            })
            .collect();
        segment.send();
        segment.free_packet();
        handles.into_iter().for_each(|holder| holder.join().unwrap());
        assert_eq!(segment.frees(), 1);
    });
}

#[test]
fn segment_retained_during_the_last_release_is_freed_once() {
    model(|| {
        let segment = Segment::of_a_packet();
        segment.retain();
        let other = segment.clone();
        let holder = thread::spawn(move || other.read_and_release());
        segment.send();
        segment.retain();
        segment.read_and_release();
        segment.send();
        segment.free_packet();
        holder.join().unwrap();
        assert_eq!(segment.frees(), 1);
    });
}

#[test]
fn packet_converted_to_a_handle_during_a_release_is_freed_once() {
    model(|| {
        let segment = Segment::of_a_packet();
        segment.retain();
        let other = segment.clone();
        let holder = thread::spawn(move || other.read_and_release());
        if segment.counts().packet_to_handle() {
            segment.free();
        } else {
            segment.read_and_release();
        }
        holder.join().unwrap();
        assert_eq!(segment.frees(), 1);
    });
}

#[test]
fn packet_writes_its_segment_only_after_all_handles_are_released() {
    model(|| {
        let segment = Segment::of_a_packet();
        segment.retain();
        let other = segment.clone();
        let holder = thread::spawn(move || other.read_and_release());
        while !segment.counts().is_sole() {
            thread::yield_now();
        }
        // SAFETY: there is no other reference; loom reports a concurrent reader.
        segment.payload.with_mut(|word| unsafe { *word = 0 });
        holder.join().unwrap();
        assert!(segment.counts().dec_refcnt());
    });
}
