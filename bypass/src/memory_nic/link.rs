//! Link: two ends in one process, and a handle for the test.

use super::clock::VirtualClock;
use super::impair::{Counters, ImpairmentStats, Impairments};
use super::nic::MemoryNic;
use super::ring::{Receiver, Sender, ring};
use linerate_service::time::Instant;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Frame as it was sent, before impairments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Time of sending.
    pub at: Instant,
    /// Sending end.
    pub from: End,
    /// Queue to which the frame was sent.
    pub queue: usize,
    /// Bytes of the frame, from the Ethernet header on.
    pub bytes: Vec<u8>,
}

/// End of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// First end.
    A,
    /// Second end.
    B,
}

impl End {
    /// Returns the other end.
    pub fn other(self) -> End {
        match self {
            End::A => End::B,
            End::B => End::A,
        }
    }
}

/// Selection of the receive queue of a frame.
#[derive(Clone)]
pub struct Steering(pub(super) Arc<Choose>);

type Choose = dyn Fn(&[u8]) -> (usize, Option<u32>) + Send + Sync;

impl Steering {
    /// Creates a selection from `choose`. It receives the first segment of a frame, Ethernet header included, and
    /// returns the number of a queue (taken modulo the number of queues) and the RSS hash that the port reports.
    pub fn new(choose: impl Fn(&[u8]) -> (usize, Option<u32>) + Send + Sync + 'static) -> Self {
        Steering(Arc::new(choose))
    }
}

impl fmt::Debug for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Steering")
    }
}

/// Configuration of a link, common to both ends except [`tso_from`](Self::tso_from).
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// MTU: longer IP packets are dropped by the sender's queue, unless they are to be segmented within
    /// [`tso`](Self::tso).
    pub mtu: u16,
    /// Frames that fit between a sending queue and a receiving queue that is not polled.
    pub ring: usize,
    /// Packets in the pool of each queue. A frame occupies one packet per segment from allocation until its receiver
    /// has dropped it, so a link with delay needs packets for all frames in flight.
    pub pool: usize,
    /// Data room of a packet in bytes.
    pub data_room: usize,
    /// True if the port offers checksum offload. No checksum is computed, as on a virtio link, which never leaves the
    /// machine: the receiver's port reports offloaded checksums as good, unless the link damaged the frame.
    pub checksum_offload: bool,
    /// Maximum TCP payload for segmentation offload. Frames cross the link unsegmented, so the receiver's port offers
    /// LRO.
    pub tso: Option<usize>,
    /// The only end with segmentation offload, if only one has it.
    pub tso_from: Option<End>,
    /// True if the port offers VLAN offload: a tag crosses the link outside of its frame, which then has no RSS hash.
    pub vlan: bool,
    /// True if chains, clones and attached bytes are sent as they are. Otherwise they are copied into one packet, as on
    /// AF_XDP, and counted in [`copied_bytes`](crate::QueueStats::copied_bytes).
    pub multi_segment: bool,
    /// Steering of frames to queues. Without it, frames sent on queue *i* arrive on queue *i*; with it, both ends offer
    /// RSS.
    pub steering: Option<Steering>,
    /// Impairments in both directions, until [`Link::impair`] changes them.
    pub impairments: Impairments,
    /// Clock of delays and rates. Without impairments only captures read it.
    pub clock: VirtualClock,
}

impl Default for LinkConfig {
    fn default() -> Self {
        LinkConfig {
            mtu: 1500,
            // Miri needs seconds for a pool of thousands.
            ring: if cfg!(miri) { 128 } else { 1024 },
            pool: if cfg!(miri) { 256 } else { 8192 },
            data_room: 2048,
            checksum_offload: false,
            tso: None,
            tso_from: None,
            vlan: false,
            multi_segment: true,
            steering: None,
            impairments: Impairments::default(),
            clock: VirtualClock::new(),
        }
    }
}

/// Handle to a link, by which a test inspects and impairs it while its ends are in use, also on other threads.
#[derive(Clone)]
pub struct Link {
    shared: Arc<SharedLink>,
}

struct SharedLink {
    config: LinkConfig,
    up: AtomicBool,
    capturing: AtomicBool,
    captured: Mutex<Vec<Frame>>,
    from_a: Direction,
    from_b: Direction,
}

pub(super) struct Direction {
    pub(super) counters: Counters,
    impairments: Mutex<Impairments>,
    /// Version of the impairments, so that receivers need not lock them for each burst.
    version: AtomicU64,
}

impl Direction {
    fn new(config: &LinkConfig) -> Self {
        Direction {
            counters: Counters::default(),
            impairments: Mutex::new(config.impairments.clone()),
            version: AtomicU64::new(1),
        }
    }

    /// Returns the impairments and their version, unless it is `known`.
    #[inline]
    pub(super) fn impairments_after(&self, known: u64) -> Option<(Impairments, u64)> {
        if self.version.load(Ordering::Acquire) == known {
            return None;
        }
        let impairments = locked(&self.impairments);
        Some((impairments.clone(), self.version.load(Ordering::Relaxed)))
    }
}

/// Creates the rings of one direction, as the sending sides of each sending queue and the receiving sides of each
/// receiving queue. A ring connects queues of the same number; with steering, each pair of queues.
fn rings(config: &LinkConfig, queues: usize) -> (Vec<Vec<Sender>>, Vec<Vec<Receiver>>) {
    let mut senders: Vec<_> = (0..queues).map(|_| Vec::new()).collect();
    let mut receivers: Vec<_> = (0..queues).map(|_| Vec::new()).collect();
    for (from, senders) in senders.iter_mut().enumerate() {
        for (to, receivers) in receivers.iter_mut().enumerate() {
            if config.steering.is_some() || from == to {
                let (sender, receiver) = ring(config.ring);
                senders.push(sender);
                receivers.push(receiver);
            }
        }
    }
    (senders, receivers)
}

/// Locks a value that is consistent even after a panic.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// Creates a link with one queue at each end. Returns end A and end B.
    ///
    /// # Panics
    /// As [`with_queues`](Self::with_queues).
    pub fn pair(config: LinkConfig) -> (MemoryNic, MemoryNic) {
        let (mut a, mut b) = Link::with_queues(config, 1);
        (a.remove(0), b.remove(0))
    }

    /// Creates a link with `queues` queues at each end, each with its own pool. Returns the queues of end A and end B.
    ///
    /// # Panics
    /// If there are no queues, or no packets in a pool or a ring; if the memory exceeds the address space; without
    /// `multi_segment`, if a packet has no room for a frame; with `tso`, if `multi_segment` or `checksum_offload` is
    /// missing, without which no port segments.
    pub fn with_queues(config: LinkConfig, queues: usize) -> (Vec<MemoryNic>, Vec<MemoryNic>) {
        assert!(queues > 0, "a link needs a queue at each end");
        assert!(config.ring > 0, "a link's ring needs room for a frame");
        assert!(
            config.multi_segment || config.data_room >= config.max_frame(),
            "a packet of {} bytes cannot hold a frame of {}, and the link cannot send chains",
            config.data_room,
            config.max_frame()
        );
        assert!(
            config.tso.is_none() || (config.multi_segment && config.checksum_offload),
            "segmentation requires multi_segment and checksum_offload"
        );
        let link = Link {
            shared: Arc::new(SharedLink {
                up: AtomicBool::new(true),
                capturing: AtomicBool::new(false),
                captured: Mutex::default(),
                from_a: Direction::new(&config),
                from_b: Direction::new(&config),
                config,
            }),
        };
        let (from_a, to_b) = rings(link.config(), queues);
        let (from_b, to_a) = rings(link.config(), queues);
        let end = |end, senders: Vec<_>, receivers| {
            let rings = senders.into_iter().zip::<Vec<_>>(receivers).enumerate();
            rings
                .map(|(queue, (senders, receivers))| MemoryNic::new(link.clone(), end, queue, senders, receivers))
                .collect()
        };
        (end(End::A, from_a, to_a), end(End::B, from_b, to_b))
    }

    /// Returns the configuration.
    pub fn config(&self) -> &LinkConfig {
        &self.shared.config
    }

    /// Returns the clock.
    pub fn clock(&self) -> &VirtualClock {
        &self.shared.config.clock
    }

    /// Sets the impairments of frames that `from` sends. Frames in flight for which the receiver has polled are
    /// unaffected.
    pub fn impair(&self, from: End, impairments: Impairments) {
        let direction = self.from(from);
        let mut current = locked(&direction.impairments);
        *current = impairments;
        direction.version.fetch_add(1, Ordering::Release);
    }

    /// Returns the counters of impairments of frames that `from` sent.
    pub fn impaired(&self, from: End) -> ImpairmentStats {
        self.from(from).counters.stats()
    }

    /// Sets the state of the link. Frames that are sent while it is down are lost; frames in flight arrive.
    pub fn set_up(&self, up: bool) {
        self.shared.up.store(up, Ordering::Relaxed);
    }

    /// Starts to record every frame that is sent. For tests: recording takes a lock and allocates.
    pub fn capture(&self) {
        self.shared.capturing.store(true, Ordering::Relaxed);
    }

    /// Returns the frames recorded since [`capture`](Self::capture) or the last call, in the order of sending.
    pub fn captured(&self) -> Vec<Frame> {
        std::mem::take(&mut locked(&self.shared.captured))
    }

    #[inline]
    pub(super) fn from(&self, end: End) -> &Direction {
        match end {
            End::A => &self.shared.from_a,
            End::B => &self.shared.from_b,
        }
    }

    #[inline]
    pub(super) fn is_up(&self) -> bool {
        self.shared.up.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn is_capturing(&self) -> bool {
        self.shared.capturing.load(Ordering::Relaxed)
    }

    pub(super) fn keep(&self, frames: Vec<Frame>) {
        locked(&self.shared.captured).extend(frames);
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("up", &self.is_up())
            .field("from_a", &*locked(&self.shared.from_a.impairments))
            .field("from_b", &*locked(&self.shared.from_b.impairments))
            .finish_non_exhaustive()
    }
}
