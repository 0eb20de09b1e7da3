//! What a link does to the frames that cross it.

use crate::time::Duration;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What happens to the frames that one end of a link sends. Nothing, by default.
///
/// Probabilities are from 0 to 1, and drawn frame by frame from a generator that begins at `seed`: the same
/// frames sent at the same times meet the same fate. Each queue of an end has a generator and a rate of its own.
///
/// A frame goes through it in this order: the path's MTU, `drop_if`, the bounded queue in front of the rate
/// limit, loss, truncation, corruption, duplication, delay and jitter, reordering.
#[derive(Clone, Default)]
pub struct Impairments {
    /// Where the randomness begins.
    pub seed: u64,
    /// The chance that a frame is lost.
    pub loss: f64,
    /// The chance that a frame arrives twice.
    pub duplication: f64,
    /// Frames that are overtaken by later ones.
    pub reordering: Reordering,
    /// How long every frame takes.
    pub delay: Duration,
    /// Up to how much longer, evenly spread. Jitter alone does not reorder.
    pub jitter: Duration,
    /// The chance that one bit of a frame is inverted: in half of the cases within the first 64 bytes, where the
    /// headers are, else anywhere. Whoever else holds the frame does not see it.
    pub corruption: f64,
    /// The chance that the end of a frame is cut off, from anywhere behind its first byte.
    pub truncation: f64,
    /// The speed of the link.
    pub rate: Option<Rate>,
    /// IP packets longer than this many bytes vanish: a path that has a smaller MTU than the link and does not
    /// say so. A frame that the port was asked to cut counts with the length of what it would be cut into.
    pub path_mtu: Option<usize>,
    /// Frames that are lost for certain.
    pub drop_if: Option<DropIf>,
}

/// How a link lets frames overtake each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reordering {
    /// The chance that a frame is held back.
    pub chance: f64,
    /// It goes on behind this many later frames …
    pub frames: u32,
    /// … or when it has been held for this long, whichever comes first.
    pub within: Duration,
}

impl Default for Reordering {
    fn default() -> Self {
        Reordering { chance: 0.0, frames: 3, within: Duration::from_millis(10) }
    }
}

/// A speed limit with the queue of frames that wait in front of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Bits per second, Ethernet headers counted in, preamble and gaps not.
    pub bits_per_second: u64,
    /// A frame that would find more than this many bytes waiting, its own included, is dropped.
    pub queue_bytes: usize,
}

/// A choice of frames by the bytes of their first segment, the Ethernet header included.
#[derive(Clone)]
pub struct DropIf(pub(super) Arc<Chosen>);

type Chosen = dyn Fn(&[u8]) -> bool + Send + Sync;

impl DropIf {
    /// The frames for which `chosen` returns true. It is asked once for each frame, in the order of sending, so it
    /// may count.
    pub fn new(chosen: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> Self {
        DropIf(Arc::new(chosen))
    }
}

impl fmt::Debug for DropIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DropIf")
    }
}

impl fmt::Debug for Impairments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only what is not the default: a failing test prints this.
        let none = Impairments::default();
        let mut s = f.debug_struct("Impairments");
        s.field("seed", &self.seed);
        if self.loss > 0.0 {
            s.field("loss", &self.loss);
        }
        if self.duplication > 0.0 {
            s.field("duplication", &self.duplication);
        }
        if self.reordering != none.reordering {
            s.field("reordering", &self.reordering);
        }
        if !self.delay.is_zero() {
            s.field("delay", &self.delay);
        }
        if !self.jitter.is_zero() {
            s.field("jitter", &self.jitter);
        }
        if self.corruption > 0.0 {
            s.field("corruption", &self.corruption);
        }
        if self.truncation > 0.0 {
            s.field("truncation", &self.truncation);
        }
        if let Some(rate) = &self.rate {
            s.field("rate", rate);
        }
        if let Some(mtu) = &self.path_mtu {
            s.field("path_mtu", mtu);
        }
        if let Some(drop_if) = &self.drop_if {
            s.field("drop_if", drop_if);
        }
        s.finish()
    }
}

impl Impairments {
    /// Whether every frame arrives at once and as it was sent.
    pub fn is_none(&self) -> bool {
        self.loss <= 0.0
            && self.duplication <= 0.0
            && self.reordering.chance <= 0.0
            && self.delay.is_zero()
            && self.jitter.is_zero()
            && self.corruption <= 0.0
            && self.truncation <= 0.0
            && self.rate.is_none()
            && self.path_mtu.is_none()
            && self.drop_if.is_none()
    }
}

/// What a link has done to the frames of one end, over all queues. Frames that crossed it while there was no
/// impairment are not counted; nor are those that the receiver has not polled for yet.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ImpairmentStats {
    /// Frames that came to the impaired link.
    pub frames: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Lost because the link was down or nobody was at the other end.
    pub down: u64,
    /// Lost because `drop_if` said so.
    pub chosen: u64,
    /// Lost because they were longer than the path's MTU.
    pub too_long: u64,
    /// Lost because the queue in front of the rate limit was full.
    pub queue_full: u64,
    /// Arrived twice.
    pub duplicated: u64,
    /// Held back, to be overtaken.
    pub reordered: u64,
    /// Had a bit inverted.
    pub corrupted: u64,
    /// Had the end cut off.
    pub truncated: u64,
    /// Lost instead of corrupted, or not duplicated, because the sender's pool had no packet for the copy.
    pub no_packet: u64,
}

macro_rules! counters {
    ($($name:ident),*) => {
        /// [`ImpairmentStats`] that several queues count in.
        #[derive(Default)]
        pub(super) struct Counters {
            $(pub(super) $name: AtomicU64),*
        }

        impl Counters {
            pub(super) fn stats(&self) -> ImpairmentStats {
                ImpairmentStats { $($name: self.$name.load(Ordering::Relaxed)),* }
            }
        }
    };
}

counters!(frames, lost, down, chosen, too_long, queue_full, duplicated, reordered, corrupted, truncated, no_packet);

/// Counts `n` more.
pub(super) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
