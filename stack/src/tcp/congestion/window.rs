//! State shared by all algorithms: window, threshold, and their values before the last reduction.

use super::{Delivery, after};
use linerate_service::time::Duration;
use std::num::NonZeroU32;

/// Largest window in bytes: 1 GB, the limit of window scaling (RFC 7323 §2.3).
pub const MAX_WINDOW: u32 = 1 << 30;

/// L of RFC 9406 §4.3: segments of one acknowledgement that slow start counts without pacing.
const ACK_LIMIT: u32 = 8;

/// Returns the window of a new connection in bytes (RFC 6928 §2): ten segments, fewer if they are large.
#[inline]
pub fn initial_window(mss: u32) -> u32 {
    mss.saturating_mul(10).min(mss.saturating_mul(2).max(14_600)).min(MAX_WINDOW)
}

/// Phase of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Episode {
    /// The window may grow.
    Open,
    /// The engine carries out a reduction.
    Recovery,
    /// The retransmission timer expired, without a delivery since.
    TimedOut,
}

/// Congestion window of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// cwnd in bytes.
    bytes: u32,
    /// ssthresh in bytes; `u32::MAX` before the first congestion.
    threshold: u32,
    /// cwnd when ssthresh was last set: before a reduction, or at the end of slow start without one (`cwnd_prior` of
    /// RFC 9438 §4.1.2).
    prior: u32,
    /// ssthresh before the last reduction.
    prior_threshold: u32,
    mss: u16,
    episode: Episode,
    /// True if the last reduction can be undone.
    undoable: bool,
}

impl Window {
    pub fn new(mss: u32) -> Self {
        let mss = segment(mss);
        Window {
            bytes: initial_window(mss.into()),
            threshold: u32::MAX,
            prior: 0,
            prior_threshold: u32::MAX,
            mss,
            episode: Episode::Open,
            undoable: false,
        }
    }

    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    pub fn threshold(&self) -> u32 {
        self.threshold
    }

    /// Returns cwnd when ssthresh was last set.
    pub fn prior(&self) -> u32 {
        self.prior
    }

    pub fn set_prior(&mut self, prior: u32) {
        self.prior = prior;
    }

    pub fn mss(&self) -> u32 {
        self.mss.into()
    }

    /// Returns the minimum after a reduction: two segments (RFC 5681 §3.1).
    fn least(&self) -> u32 {
        2 * self.mss()
    }

    /// Returns whether the window grows exponentially (RFC 5681 §3.1).
    pub fn in_slow_start(&self) -> bool {
        self.bytes < self.threshold
    }

    /// Returns whether there has been no congestion: HyStart++ applies to this slow start only (RFC 9406 §4.3).
    pub fn in_initial_slow_start(&self) -> bool {
        self.threshold == u32::MAX
    }

    /// Records a delivery and returns how many of its bytes may grow the window: no marked ones (RFC 3168 §6.1.2), none
    /// during recovery, and none if the window did not limit the sender.
    pub fn delivered(&mut self, delivery: &Delivery) -> u32 {
        match self.episode {
            Episode::Recovery => return 0,
            Episode::TimedOut if delivery.bytes > 0 => self.episode = Episode::Open,
            Episode::TimedOut | Episode::Open => {}
        }
        if delivery.window_limited { delivery.bytes.saturating_sub(delivery.marked) } else { 0 }
    }

    pub fn grow_to(&mut self, bytes: u32) {
        self.bytes = bytes.min(MAX_WINDOW).max(self.bytes);
    }

    /// Applies slow start for `bytes` delivered, divided by `divisor` in conservative slow start (RFC 9406 §4.2), up to
    /// the threshold.
    pub fn slow_start(&mut self, bytes: u32, paced: bool, divisor: u32) {
        let limit = if paced { u32::MAX } else { ACK_LIMIT * self.mss() };
        self.grow_to(self.bytes.saturating_add(bytes.min(limit) / divisor).min(self.threshold));
    }

    /// Applies Reno's congestion avoidance for `bytes` delivered: one segment per window, counted in `credit` (RFC 5681
    /// §3.1, RFC 3465 §2.1).
    pub fn additive_increase(&mut self, credit: &mut u32, bytes: u32) {
        *credit = credit.saturating_add(bytes.min(self.bytes));
        if *credit >= self.bytes {
            *credit -= self.bytes;
            self.grow_to(self.bytes.saturating_add(self.mss()));
        }
    }

    /// Ends slow start without congestion: the threshold becomes the window.
    pub fn leave_slow_start(&mut self) {
        self.threshold = self.bytes;
        self.prior = self.bytes;
        self.undoable = false;
    }

    fn remember(&mut self) {
        self.prior = self.bytes;
        self.prior_threshold = self.threshold;
        self.undoable = true;
    }

    /// Starts a recovery to a window of `threshold`. Returns false without effect if this window of data has already
    /// caused a reduction.
    pub fn congested(&mut self, threshold: u32) -> bool {
        if self.episode != Episode::Open {
            return false;
        }
        self.remember();
        self.threshold = threshold.max(self.least());
        self.episode = Episode::Recovery;
        true
    }

    /// Ends the recovery.
    pub fn recovered(&mut self) {
        if self.episode == Episode::Recovery {
            self.episode = Episode::Open;
            self.bytes = self.threshold;
        }
    }

    /// Handles a timeout: sets the threshold to `threshold` on the first one for this data. Returns whether it was the
    /// first.
    pub fn timed_out(&mut self, threshold: u32) -> bool {
        let threshold = threshold.max(self.least());
        let first = match self.episode {
            Episode::Open => {
                self.remember();
                self.threshold = threshold;
                true
            }
            Episode::Recovery => {
                // The recovery counts as completed, so that undoing the timeout does not undo the earlier loss. The
                // threshold responds to the same window of data, so it may only decrease.
                self.bytes = self.threshold;
                self.remember();
                self.threshold = self.threshold.min(threshold);
                true
            }
            Episode::TimedOut => false,
        };
        self.bytes = self.mss();
        self.episode = Episode::TimedOut;
        first
    }

    /// Undoes the last reduction. Returns false without effect if there is none, or the window has outgrown it (RFC
    /// 9438 §4.9.2).
    pub fn undo(&mut self) -> bool {
        let outgrown = self.episode == Episode::Open && self.bytes > self.prior;
        if !std::mem::take(&mut self.undoable) || outgrown {
            return false;
        }
        self.episode = Episode::Open;
        self.bytes = self.bytes.max(self.prior).max(self.least());
        self.threshold = self.threshold.max(self.prior_threshold);
        true
    }

    /// Reduces the window at once, without a recovery, as DCTCP does.
    pub fn reduce_to(&mut self, bytes: u32) {
        self.bytes = bytes.max(self.least()).min(self.bytes);
        self.threshold = self.bytes.max(self.least());
        self.undoable = false;
    }

    /// Returns whether neither a recovery nor a timeout is in progress.
    pub fn is_open(&self) -> bool {
        self.episode == Episode::Open
    }

    /// Reduces the window to the initial window after an idle period (RFC 5681 §4.1). Returns whether it decreased.
    pub fn restart(&mut self, idle_for: Duration, rto: Duration) -> bool {
        let restart = initial_window(self.mss());
        let down = self.episode == Episode::Open && idle_for > rto && restart < self.bytes;
        if down {
            self.bytes = restart;
        }
        down
    }

    /// Sets the window to one segment after a lost handshake segment (RFC 5681 §3.1).
    pub fn handshake_lost(&mut self) {
        if self.in_initial_slow_start() {
            self.bytes = self.mss();
        }
    }

    /// Changes the segment size. The window keeps its size in bytes, unless it is still the initial one.
    pub fn set_mss(&mut self, mss: u32) {
        let old = self.mss();
        self.mss = segment(mss);
        let one = self.bytes == old;
        self.bytes = if one {
            self.mss()
        } else if self.in_initial_slow_start() && self.bytes == initial_window(old) {
            initial_window(self.mss())
        } else {
            self.bytes.max(self.least())
        };
        self.threshold = self.threshold.max(self.least());
    }
}

/// Returns a valid segment size: at least 1, at most 65 535.
fn segment(mss: u32) -> u16 {
    u16::try_from(mss).unwrap_or(u16::MAX).max(1)
}

/// End of a window of data, as a sequence number, which delimits rounds.
///
/// Sequence numbers wrap, and the end of an old round would then look like a future one. An ended round is therefore
/// cleared.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    /// An end of 0 is stored as 1, so that four bytes also encode absence.
    end: Option<NonZeroU32>,
}

impl Round {
    pub const NONE: Round = Round { end: None };

    /// Starts a round that lasts until all sent data are acknowledged.
    pub fn begin(delivery: &Delivery) -> Self {
        Round { end: NonZeroU32::new(delivery.next.max(1)) }
    }

    /// Returns whether a round continues after this delivery: its end is not acknowledged.
    pub fn until_acknowledged(&mut self, delivery: &Delivery) -> bool {
        self.end = self.end.filter(|end| after(end.get(), delivery.acknowledged));
        self.end.is_some()
    }

    /// Returns whether a round continues after this delivery: no data sent after it are acknowledged.
    pub fn until_passed(&mut self, delivery: &Delivery) -> bool {
        self.end = self.end.filter(|end| !after(delivery.acknowledged, end.get()));
        self.end.is_some()
    }
}
