//! What every algorithm here keeps: the window, the threshold, and what they were before the last reduction.

use super::{Delivery, after};
use linerate_bypass::time::Duration;
use std::num::NonZeroU32;

/// The largest window in bytes: 1 GB, all that window scaling can offer (RFC 7323 §2.3).
pub const MAX_WINDOW: u32 = 1 << 30;

/// L of RFC 9406 §4.3: how many segments of one acknowledgement slow start takes into account without pacing.
const ACK_LIMIT: u32 = 8;

/// The window of a new connection in bytes (RFC 6928 §2): ten segments, of large segments fewer.
#[inline]
pub fn initial_window(mss: u32) -> u32 {
    mss.saturating_mul(10).min(mss.saturating_mul(2).max(14_600)).min(MAX_WINDOW)
}

/// What happens to the window just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Episode {
    /// It grows.
    Open,
    /// A reduction has been decided and the engine carries it out.
    Recovery,
    /// The retransmission timer expired, and nothing has been delivered since.
    TimedOut,
}

/// The window of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// cwnd in bytes.
    bytes: u32,
    /// ssthresh in bytes; `u32::MAX` before the first congestion.
    threshold: u32,
    /// cwnd when ssthresh was set last: before a reduction, or when slow start was left without one (`cwnd_prior` of
    /// RFC 9438 §4.1.2).
    prior: u32,
    /// ssthresh before the last reduction.
    prior_threshold: u32,
    mss: u16,
    episode: Episode,
    /// Whether the last reduction can still be undone.
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

    /// cwnd when ssthresh was set last.
    pub fn prior(&self) -> u32 {
        self.prior
    }

    pub fn set_prior(&mut self, prior: u32) {
        self.prior = prior;
    }

    pub fn mss(&self) -> u32 {
        self.mss.into()
    }

    /// The least that a reduction leaves: two segments (RFC 5681 §3.1).
    fn least(&self) -> u32 {
        2 * self.mss()
    }

    /// Whether the window grows exponentially (RFC 5681 §3.1).
    pub fn in_slow_start(&self) -> bool {
        self.bytes < self.threshold
    }

    /// Whether there has been no congestion yet: the only slow start that HyStart++ is for (RFC 9406 §4.3).
    pub fn in_initial_slow_start(&self) -> bool {
        self.threshold == u32::MAX
    }

    /// Takes note of a delivery, and says by how many bytes of it the window may grow: none of those that were marked
    /// (RFC 3168 §6.1.2), none during recovery, none when it was not the window that held the sender back.
    pub fn delivered(&mut self, delivery: &Delivery) -> u32 {
        match self.episode {
            Episode::Recovery => return 0,
            Episode::TimedOut if delivery.bytes > 0 => self.episode = Episode::Open,
            Episode::TimedOut | Episode::Open => {}
        }
        if delivery.window_limited { delivery.bytes.saturating_sub(delivery.marked) } else { 0 }
    }

    /// The window, grown to `bytes`.
    pub fn grow_to(&mut self, bytes: u32) {
        self.bytes = bytes.min(MAX_WINDOW).max(self.bytes);
    }

    /// Slow start for `bytes` delivered, a `divisor`th of it in conservative slow start (RFC 9406 §4.2). Not beyond the
    /// threshold.
    pub fn slow_start(&mut self, bytes: u32, paced: bool, divisor: u32) {
        let limit = if paced { u32::MAX } else { ACK_LIMIT * self.mss() };
        self.grow_to(self.bytes.saturating_add(bytes.min(limit) / divisor).min(self.threshold));
    }

    /// Reno's congestion avoidance for `bytes` delivered: a segment per window of them, which `credit` counts
    /// (RFC 5681 §3.1, RFC 3465 §2.1).
    pub fn additive_increase(&mut self, credit: &mut u32, bytes: u32) {
        *credit = credit.saturating_add(bytes.min(self.bytes));
        if *credit >= self.bytes {
            *credit -= self.bytes;
            self.grow_to(self.bytes.saturating_add(self.mss()));
        }
    }

    /// Slow start ends here, for no congestion: the threshold is the window.
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

    /// Recovery begins, and will leave a window of `threshold`. False, and nothing has happened, when this window of data
    /// has been answered already.
    pub fn congested(&mut self, threshold: u32) -> bool {
        if self.episode != Episode::Open {
            return false;
        }
        self.remember();
        self.threshold = threshold.max(self.least());
        self.episode = Episode::Recovery;
        true
    }

    /// Recovery ended.
    pub fn recovered(&mut self) {
        if self.episode == Episode::Recovery {
            self.episode = Episode::Open;
            self.bytes = self.threshold;
        }
    }

    /// The timer expired; the threshold becomes `threshold`, when this is the first time for this data. False when not.
    pub fn timed_out(&mut self, threshold: u32) -> bool {
        let threshold = threshold.max(self.least());
        let first = match self.episode {
            Episode::Open => {
                self.remember();
                self.threshold = threshold;
                true
            }
            Episode::Recovery => {
                // The recovery is taken as completed, so that undoing the time-out does not undo the loss before it; and
                // the threshold, which answers the same window of data, is lowered only if it has to be.
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

    /// Undoes the last reduction. False, and nothing has happened, when there is none, or when the window has outgrown it
    /// (RFC 9438 §4.9.2).
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

    /// A reduction at once, without a recovery: DCTCP's.
    pub fn reduce_to(&mut self, bytes: u32) {
        self.bytes = bytes.max(self.least()).min(self.bytes);
        self.threshold = self.bytes.max(self.least());
        self.undoable = false;
    }

    /// Whether neither a recovery nor a time-out is being answered.
    pub fn is_open(&self) -> bool {
        self.episode == Episode::Open
    }

    /// About to send after a pause: no more than a new connection may (RFC 5681 §4.1). Whether the window went down.
    pub fn restart(&mut self, idle_for: Duration, rto: Duration) -> bool {
        let restart = initial_window(self.mss());
        let down = self.episode == Episode::Open && idle_for > rto && restart < self.bytes;
        if down {
            self.bytes = restart;
        }
        down
    }

    /// The handshake was not received at once: one segment (RFC 5681 §3.1).
    pub fn handshake_lost(&mut self) {
        if self.in_initial_slow_start() {
            self.bytes = self.mss();
        }
    }

    /// Segments have another size. The window stays what it is in bytes, except one that has not been used yet.
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

/// A segment size as it is kept: no segment is empty, and none is longer than an IP packet.
fn segment(mss: u32) -> u16 {
    u16::try_from(mss).unwrap_or(u16::MAX).max(1)
}

/// The end of a window of data, as a sequence number: what counts rounds.
///
/// Sequence numbers wrap, so that the end of a round long past would look like one to come; a round that has ended is
/// therefore forgotten.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    /// One that would end with 0 ends a byte later, so that four bytes tell whether one runs too.
    end: Option<NonZeroU32>,
}

impl Round {
    /// None yet.
    pub const NONE: Round = Round { end: None };

    /// One that lasts until all that has been sent is acknowledged.
    pub fn begin(delivery: &Delivery) -> Self {
        Round { end: NonZeroU32::new(delivery.next.max(1)) }
    }

    /// Whether one runs that this delivery does not complete: its end has not been acknowledged.
    pub fn until_acknowledged(&mut self, delivery: &Delivery) -> bool {
        self.end = self.end.filter(|end| after(end.get(), delivery.acknowledged));
        self.end.is_some()
    }

    /// Whether one runs that this delivery does not go beyond: nothing sent after it has been acknowledged.
    pub fn until_passed(&mut self, delivery: &Delivery) -> bool {
        self.end = self.end.filter(|end| !after(delivery.acknowledged, end.get()));
        self.end.is_some()
    }
}
