//! Two ends of a link in one process, and the handle that a test keeps on it.

use super::capture::Frame;
use super::clock::VirtualClock;
use super::impair::{Counters, ImpairmentStats, Impairments};
use super::nic::MemoryNic;
use super::ring::{Receiver, Sender, ring};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One of the two ends of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// The first.
    A,
    /// The second.
    B,
}

impl End {
    /// The end that this one is linked with.
    pub fn other(self) -> End {
        match self {
            End::A => End::B,
            End::B => End::A,
        }
    }
}

/// Which queue of the receiver a frame goes to.
#[derive(Clone)]
pub struct Steering(pub(super) Arc<Choose>);

type Choose = dyn Fn(&[u8]) -> (usize, Option<u32>) + Send + Sync;

impl Steering {
    /// `choose` is given the first segment of a frame, the Ethernet header included, and returns the number of a
    /// queue (taken modulo the queues that there are), and what the port reports as the frame's RSS hash.
    pub fn new(choose: impl Fn(&[u8]) -> (usize, Option<u32>) + Send + Sync + 'static) -> Self {
        Steering(Arc::new(choose))
    }
}

impl fmt::Debug for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Steering")
    }
}

/// What a link and its ends are like; the same for both, but for [`tso_from`](Self::tso_from).
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// The largest IP packet in bytes. Longer ones are dropped by the sender's queue, unless it was asked to cut
    /// them and [`tso`](Self::tso) says that it can.
    pub mtu: u16,
    /// Frames that fit between a sending queue and a receiving one that is not polled.
    pub ring: usize,
    /// Packets in the pool of each queue. A frame holds one for each segment from allocation until its receiver
    /// has dropped it, so a link with delay needs as many as it has frames under way.
    pub pool: usize,
    /// Bytes behind the headroom of a packet.
    pub data_room: usize,
    /// Claim to compute checksums on transmit and to verify them on receive. None is computed, as on a virtio
    /// link, which never leaves the machine; the receiver's port vouches for those that it should have had. That
    /// it does not for a frame that the link damaged.
    pub checksum_offload: bool,
    /// Claim to cut TCP payloads of up to this many bytes. They cross the link whole, so the receiver's port
    /// claims to merge segments (LRO).
    pub tso: Option<usize>,
    /// The only end that cuts, if there is but one: the other sends no large frames and this one receives none.
    pub tso_from: Option<End>,
    /// Claim to put VLAN tags into sent frames and to take them from received ones: a tag crosses the link beside its
    /// frame, which then has no RSS hash.
    pub vlan: bool,
    /// Send chains, clones and attached bytes as they are. Without it they are copied into one packet first, as
    /// on AF_XDP, and [`copied_bytes`](crate::QueueStats::copied_bytes) says how many bytes that were.
    pub multi_segment: bool,
    /// Where frames go. Those sent on queue *i* arrive on queue *i*, if `None`; otherwise both ends claim RSS.
    pub steering: Option<Steering>,
    /// What happens on the way, in either direction, until [`Link::impair`] changes it.
    pub impairments: Impairments,
    /// The time that delays and rates go by. Without impairments nothing reads it, except for captures.
    pub clock: VirtualClock,
}

impl Default for LinkConfig {
    fn default() -> Self {
        LinkConfig {
            mtu: 1500,
            // Miri takes seconds for a pool of thousands.
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

/// A link: the handle by which a test looks at it and disturbs it while its ends are in use, on other threads even.
#[derive(Clone)]
pub struct Link {
    shared: Arc<Shared>,
}

struct Shared {
    config: LinkConfig,
    up: AtomicBool,
    capturing: AtomicBool,
    captured: Mutex<Vec<Frame>>,
    from_a: Direction,
    from_b: Direction,
}

/// One of the two directions of a link.
pub(super) struct Direction {
    pub(super) counters: Counters,
    impairments: Mutex<Impairments>,
    /// Changes with the impairments, so that receivers need not look at them for each burst.
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

    /// The impairments with their version, if that is not `known`.
    #[inline]
    pub(super) fn impairments_after(&self, known: u64) -> Option<(Impairments, u64)> {
        if self.version.load(Ordering::Acquire) == known {
            return None;
        }
        let impairments = locked(&self.impairments);
        Some((impairments.clone(), self.version.load(Ordering::Relaxed)))
    }
}

/// The rings of one direction: those that each queue of the sender fills, and those that each of the receiver empties.
/// One leads from each queue to that of the same number; with steering, one to every queue.
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

/// The locks here guard plain values, which are whole after a panic too.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// A link with one queue at each end: end A, then end B.
    ///
    /// # Panics
    /// As [`with_queues`](Self::with_queues).
    pub fn pair(config: LinkConfig) -> (MemoryNic, MemoryNic) {
        let (mut a, mut b) = Link::with_queues(config, 1);
        (a.remove(0), b.remove(0))
    }

    /// A link with `queues` queues at each end, each with a pool of its own: end A's, then end B's.
    ///
    /// # Panics
    /// If there are no queues, or no packets in a pool or a ring; if more memory is asked for than there can be;
    /// without `multi_segment`, if a packet has not the room for a frame; with `tso`, if `multi_segment` or
    /// `checksum_offload` is missing, without which no port cuts segments.
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
            "a link that cuts segments must take chains and compute checksums"
        );
        let link = Link {
            shared: Arc::new(Shared {
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

    /// What it was made as.
    pub fn config(&self) -> &LinkConfig {
        &self.shared.config
    }

    /// The time that it goes by.
    pub fn clock(&self) -> &VirtualClock {
        &self.shared.config.clock
    }

    /// Does this from now on to the frames that `from` sends. Frames that the receiver has polled for, and that are
    /// still under way, stay so.
    pub fn impair(&self, from: End, impairments: Impairments) {
        let direction = self.from(from);
        let mut current = locked(&direction.impairments);
        *current = impairments;
        direction.version.fetch_add(1, Ordering::Release);
    }

    /// What was done so far to the frames that `from` sent.
    pub fn impaired(&self, from: End) -> ImpairmentStats {
        self.from(from).counters.stats()
    }

    /// Takes the link down, which loses the frames that are sent meanwhile, or up again. Frames already under way
    /// arrive.
    pub fn set_up(&self, up: bool) {
        self.shared.up.store(up, Ordering::Relaxed);
    }

    /// Begins to keep a copy of every frame that is sent. For tests: it takes a lock and allocates.
    pub fn capture(&self) {
        self.shared.capturing.store(true, Ordering::Relaxed);
    }

    /// The frames kept since [`capture`](Self::capture) or the last call of this, in the order of sending.
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
