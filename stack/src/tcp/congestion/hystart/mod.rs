//! HyStart++ (RFC 9406): ends slow start when the RTT grows, before it overshoots into loss.

use super::Delivery;
use super::window::Round;
use linerate_service::time::Duration;

// Recommended values (RFC 9406 §4.3).
const MIN_RTT_THRESHOLD: RoundTrip = RoundTrip::from_millis(4);
const MAX_RTT_THRESHOLD: RoundTrip = RoundTrip::from_millis(16);
const MIN_RTT_DIVISOR: u16 = 8;
const RTT_SAMPLES: u8 = 8;
const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u8 = 5;

/// RTT in units of 64 µs: three values take six bytes of a connection. The smallest relevant increase is 62 units.
/// Times above four seconds are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct RoundTrip(u16);

impl RoundTrip {
    /// No measurement.
    const INFINITE: RoundTrip = RoundTrip(u16::MAX);

    const fn from_millis(millis: u16) -> Self {
        RoundTrip(((millis as u32 * 1000) >> 6) as u16)
    }

    fn new(duration: Duration) -> Self {
        let seconds = u32::try_from(duration.as_secs()).unwrap_or(u32::MAX).min(5);
        let units = (seconds * 1_000_000 + duration.subsec_micros()) >> 6;
        RoundTrip(u16::try_from(units).unwrap_or(u16::MAX).min(u16::MAX - 1))
    }

    fn is_finite(self) -> bool {
        self != RoundTrip::INFINITE
    }

    fn plus(self, other: RoundTrip) -> RoundTrip {
        RoundTrip(self.0.saturating_add(other.0))
    }
}

/// State of the initial slow start (RFC 9406 §4.2).
#[derive(Debug, Clone, Copy)]
pub(super) struct HyStart {
    /// `windowEnd`.
    round: Round,
    /// `lastRoundMinRTT`.
    last: RoundTrip,
    /// `currentRoundMinRTT`.
    current: RoundTrip,
    /// `cssBaselineMinRtt`: finite in conservative slow start.
    baseline: RoundTrip,
    /// `rttSampleCount`.
    samples: u8,
    /// Completed rounds of conservative slow start.
    css_rounds: u8,
}

impl HyStart {
    pub fn new() -> Self {
        HyStart {
            round: Round::NONE,
            last: RoundTrip::INFINITE,
            current: RoundTrip::INFINITE,
            baseline: RoundTrip::INFINITE,
            samples: 0,
            css_rounds: 0,
        }
    }

    /// Returns the divisor of window growth: above one in conservative slow start.
    pub fn divisor(&self) -> u32 {
        if self.baseline.is_finite() { CSS_GROWTH_DIVISOR } else { 1 }
    }

    /// Processes a delivery that lets the window grow. Returns true at the end of slow start: the delay grew and stayed
    /// high for five rounds.
    ///
    /// Application-limited data do not show the effect of the window on the delay, so they must not end slow start.
    pub fn delivered(&mut self, delivery: &Delivery) -> bool {
        if let Some(rtt) = delivery.rtt {
            self.current = self.current.min(RoundTrip::new(rtt));
            self.samples = self.samples.saturating_add(1);
            self.judge();
        }
        if self.round.until_acknowledged(delivery) {
            return false;
        }
        self.round = Round::begin(delivery);
        self.last = std::mem::replace(&mut self.current, RoundTrip::INFINITE);
        self.samples = 0;
        // The round in which conservative slow start began counts (RFC 9406 §4.2).
        self.css_rounds = if self.baseline.is_finite() { self.css_rounds + 1 } else { 0 };
        self.css_rounds >= CSS_ROUNDS
    }

    /// Enters or leaves conservative slow start.
    fn judge(&mut self) {
        if self.samples < RTT_SAMPLES {
            return;
        }
        if self.baseline.is_finite() {
            if self.current < self.baseline {
                self.baseline = RoundTrip::INFINITE;
                self.css_rounds = 0;
            }
        } else if self.last.is_finite() {
            let threshold = RoundTrip(self.last.0 / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESHOLD, MAX_RTT_THRESHOLD);
            if self.current >= self.last.plus(threshold) {
                self.baseline = self.current;
            }
        }
    }
}

#[cfg(test)]
mod tests;
