//! Impairments of a link.

use linerate_service::time::Duration;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Impairments of the frames that one end of a link sends. None by default.
///
/// Probabilities are from 0 to 1, and drawn per frame from a generator with the seed `seed`: the same frames sent at
/// the same times have the same outcome. Each queue of an end has its own generator and rate limit.
///
/// Impairments apply to a frame in this order: path MTU, `drop_if`, queue of the rate limit, loss, truncation,
/// corruption, duplication, delay and jitter, reordering.
#[derive(Clone, Default)]
pub struct Impairments {
    /// Seed of the random generator.
    pub seed: u64,
    /// Probability that a frame is lost.
    pub loss: f64,
    /// Probability that a frame is duplicated.
    pub duplication: f64,
    /// Frames that are overtaken by later ones.
    pub reordering: Reordering,
    /// Delay of every frame.
    pub delay: Duration,
    /// Maximum of the additional, uniformly distributed delay. Jitter alone does not reorder.
    pub jitter: Duration,
    /// Probability that one bit of a frame is inverted: in half of the cases within the first 64 bytes, which contain
    /// the headers, otherwise anywhere. Other holders of the frame keep the original.
    pub corruption: f64,
    /// Probability that a frame is truncated at a random point after its first byte.
    pub truncation: f64,
    /// Rate limit of the link.
    pub rate: Option<Rate>,
    /// MTU of the path: longer IP packets are lost silently. A frame to be segmented counts with the length of its
    /// segments.
    pub path_mtu: Option<usize>,
    /// Frames that are always lost.
    pub drop_if: Option<DropIf>,
}

/// Reordering of frames.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reordering {
    /// Probability that a frame is held back.
    pub chance: f64,
    /// Number of later frames that overtake the frame.
    pub frames: u32,
    /// Maximum time for which the frame is held back, even if fewer frames have overtaken it.
    pub within: Duration,
}

impl Default for Reordering {
    fn default() -> Self {
        Reordering { chance: 0.0, frames: 3, within: Duration::from_millis(10) }
    }
}

/// Rate limit, with a queue of waiting frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Bits per second, including Ethernet headers and excluding preamble and gaps.
    pub bits_per_second: u64,
    /// Maximum number of waiting bytes, including the frame itself. A frame beyond it is dropped.
    pub queue_bytes: usize,
}

/// Predicate on the first segment of a frame, Ethernet header included.
#[derive(Clone)]
pub struct DropIf(pub(super) Arc<Chosen>);

type Chosen = dyn Fn(&[u8]) -> bool + Send + Sync;

impl DropIf {
    /// Creates a predicate from `chosen`, which is called once per frame, in the order of sending, and may count.
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
        // Prints only non-default fields, for the output of failing tests.
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
    /// Returns whether there is no impairment.
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

/// Counters of impairments of one end's frames, over all queues. Frames that crossed the link without impairments are
/// not counted, and neither are frames for which the receiver has not polled yet.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ImpairmentStats {
    /// Frames that entered the impaired link.
    pub frames: u64,
    /// Frames lost at random.
    pub lost: u64,
    /// Frames lost because the link was down or had no receiver.
    pub down: u64,
    /// Frames lost by `drop_if`.
    pub chosen: u64,
    /// Frames longer than the path MTU.
    pub too_long: u64,
    /// Frames lost because the queue of the rate limit was full.
    pub queue_full: u64,
    /// Frames duplicated.
    pub duplicated: u64,
    /// Frames held back.
    pub reordered: u64,
    /// Frames with an inverted bit.
    pub corrupted: u64,
    /// Frames truncated.
    pub truncated: u64,
    /// Frames lost instead of corrupted, or not duplicated, because the sender's pool had no packet for the copy.
    pub no_packet: u64,
}

macro_rules! counters {
    ($($name:ident),*) => {
        /// [`ImpairmentStats`] shared by several queues.
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

pub(super) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
