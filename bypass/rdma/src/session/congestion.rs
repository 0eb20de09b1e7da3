//! Congestion control of a session: NewReno (RFC 5681, RFC 6582), counted in messages.
//!
//! Network and receiver drop datagrams alike, and neither end learns the cause, so every loss is congestion.

use super::WINDOW;

/// Initial congestion window (RFC 6928).
const INITIAL: u32 = 10;
/// Minimum slow-start threshold, and so the minimum congestion window except after a time-out.
const LEAST: u32 = 2;

/// Congestion window of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Congestion {
    /// Maximum messages in flight.
    window: u32,
    /// Slow-start threshold. Below it, the window grows by one for each acknowledged message.
    threshold: u32,
    /// Messages acknowledged since the last growth in congestion avoidance.
    acked: u32,
    /// The last transmission filled the window.
    is_full: bool,
    /// Number of the first message that was not yet sent at the last reduction. Losses before it belong to the same
    /// congestion.
    recover: Option<u32>,
}

impl Default for Congestion {
    fn default() -> Self {
        Congestion { window: INITIAL, threshold: WINDOW, acked: 0, is_full: false, recover: None }
    }
}

impl Congestion {
    /// Returns the maximum number of messages in flight.
    #[inline]
    pub fn window(&self) -> usize {
        self.window as usize
    }

    /// Returns the slow-start threshold in messages.
    pub fn threshold(&self) -> usize {
        self.threshold as usize
    }

    /// Records that a transmission has left `in_flight` messages in flight.
    pub fn sent(&mut self, in_flight: usize) {
        self.is_full = in_flight >= self.window();
    }

    /// Records `count` newly acknowledged messages. The window grows only if it limited the sender (RFC 9002 §7.8), and
    /// not while losses of the last reduction are repaired.
    pub fn acknowledged(&mut self, count: usize) {
        if self.recover.is_some() || !self.is_full {
            return;
        }
        let count = count as u32;
        if self.window < self.threshold {
            self.window = (self.window + count).min(self.threshold);
            return;
        }
        self.acked += count;
        if self.acked >= self.window {
            self.acked -= self.window;
            self.window = (self.window + 1).min(WINDOW);
        }
    }

    /// Records that all messages before `first` are acknowledged.
    pub fn advanced(&mut self, first: u32) {
        self.recover.take_if(|recover| !super::is_before(first, *recover));
    }

    /// Records the loss of a message. `next` is the number of the first message that was not yet sent.
    pub fn lost(&mut self, next: u32) {
        if self.recover.is_none() {
            self.threshold = (self.window / 2).max(LEAST);
            (self.window, self.acked, self.recover) = (self.threshold, 0, Some(next));
        }
    }

    /// Records a time-out; `is_first` if it is the first one since the last acknowledgement (RFC 5681 §3.1).
    pub fn timed_out(&mut self, is_first: bool) {
        if is_first {
            self.threshold = (self.window / 2).max(LEAST);
        }
        (self.window, self.acked, self.recover) = (1, 0, None);
    }
}

#[cfg(test)]
impl Congestion {
    /// Creates a congestion window of the maximum size, for comparison.
    pub fn fixed() -> Self {
        Congestion { window: WINDOW, ..Congestion::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_doubles_in_each_round_trip_up_to_the_threshold_and_then_grows_by_one() {
        let mut congestion = Congestion { threshold: 24, ..Congestion::default() };
        let mut windows = Vec::new();
        for _ in 0..4 {
            congestion.sent(congestion.window());
            (0..congestion.window()).for_each(|_| congestion.acknowledged(1));
            windows.push(congestion.window());
        }
        assert_eq!(windows, [20, 24, 25, 26]);
        (0..1000).for_each(|_| congestion.acknowledged(1));
        assert_eq!(congestion.window(), WINDOW as usize);
    }

    #[test]
    fn unused_window_does_not_grow() {
        let mut congestion = Congestion::default();
        congestion.sent(9);
        (0..1000).for_each(|_| congestion.acknowledged(1));
        assert_eq!(congestion, Congestion::default());
    }

    #[test]
    fn losses_of_one_round_trip_halve_the_window_once() {
        let mut congestion = Congestion { window: 32, ..Congestion::default() };
        congestion.lost(u32::MAX);
        congestion.lost(3);
        congestion.sent(32);
        congestion.acknowledged(20);
        congestion.advanced(u32::MAX - 1);
        congestion.lost(5);
        assert_eq!((congestion.window(), congestion.threshold()), (16, 16));
        congestion.advanced(u32::MAX);
        congestion.lost(5);
        assert_eq!(congestion.window(), 8);
        congestion.advanced(2);
        assert!(congestion.recover.is_some());
        congestion.advanced(6);
        (0..3).for_each(|_| {
            congestion.lost(9);
            congestion.advanced(9);
        });
        assert_eq!(congestion.window(), 2);
    }

    #[test]
    fn time_outs_leave_one_message_in_flight() {
        let mut congestion = Congestion { window: 32, ..Congestion::default() };
        congestion.timed_out(true);
        congestion.timed_out(false);
        assert_eq!((congestion.window(), congestion.threshold()), (1, 16));
        congestion.sent(1);
        congestion.acknowledged(1);
        assert_eq!(congestion.window(), 2);
    }
}
