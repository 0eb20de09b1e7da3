//! DCTCP (RFC 8257): the reduction is proportional to the marked fraction, for networks whose switches mark early.

use super::new_reno::half;
use super::window::{Round, Window};
use super::{CongestionControl, CongestionSignal, Delivery};
use crate::config::Config;
use linerate_service::time::{Duration, Instant};

/// Fixed-point one of the marked fraction.
const ONE: u32 = 1 << 30;

/// g = 1/16 (RFC 8257 §4.2), as a shift.
const GAIN_SHIFT: u32 = 4;

/// Data Center TCP (RFC 8257): NewReno with a reduction proportional to the marked fraction. For networks under one
/// administration that mark at a low threshold; elsewhere it takes more than its share.
///
/// Deliveries during a recovery, if reported, update only the estimate.
#[derive(Debug, Clone, Copy)]
pub struct Dctcp {
    window: Window,
    /// Bytes delivered in congestion avoidance since the window last grew.
    credit: u32,
    /// `DCTCP.Alpha`, in units of 1/[`ONE`].
    alpha: u32,
    /// `DCTCP.WindowEnd`: the observation window.
    observation: Round,
    /// Window of data that has caused a reduction. Further marks in it are ignored (RFC 3168 §6.1.2).
    answered: Round,
    /// `DCTCP.BytesAcked`.
    acked: u32,
    /// `DCTCP.BytesMarked`.
    marked: u32,
}

impl Dctcp {
    /// Returns the estimated fraction of marked bytes, from 0 to 1 (`DCTCP.Alpha` of RFC 8257 §3.3).
    pub fn alpha(&self) -> f64 {
        f64::from(self.alpha) / f64::from(ONE)
    }

    /// Updates the estimate (RFC 8257 §3.3, steps 1 to 8). Selectively acknowledged bytes count when reported, earlier
    /// than cumulative ones would.
    fn estimate(&mut self, delivery: &Delivery) {
        self.acked = self.acked.saturating_add(delivery.bytes);
        self.marked = self.marked.saturating_add(delivery.marked.min(delivery.bytes)).min(self.acked);
        if self.observation.until_passed(delivery) {
            return;
        }
        let fraction = (u64::from(self.marked) * u64::from(ONE)).checked_div(self.acked.into());
        if let Some(fraction) = fraction.and_then(|fraction| u32::try_from(fraction).ok()) {
            self.alpha = self.alpha - (self.alpha >> GAIN_SHIFT) + (fraction >> GAIN_SHIFT);
        }
        self.observation = Round::begin(delivery);
        (self.acked, self.marked) = (0, 0);
    }

    /// Returns the window less half of its marked fraction (RFC 8257 §3.3, step 9).
    fn reduced(&self) -> u32 {
        let window = u64::from(self.window.bytes());
        let less = (window * u64::from(self.alpha)) / (2 * u64::from(ONE));
        self.window.bytes() - u32::try_from(less).unwrap_or(0)
    }
}

impl CongestionControl for Dctcp {
    fn new(_: &Config, mss: u32) -> Self {
        Dctcp {
            window: Window::new(mss),
            credit: 0,
            alpha: ONE,
            observation: Round::NONE,
            answered: Round::NONE,
            acked: 0,
            marked: 0,
        }
    }

    fn window(&self) -> u32 {
        self.window.bytes()
    }

    fn slow_start_threshold(&self) -> u32 {
        self.window.threshold()
    }

    fn delivered(&mut self, delivery: &Delivery) {
        self.estimate(delivery);
        let bytes = self.window.delivered(delivery);
        if !self.answered.until_passed(delivery) && delivery.marked > 0 && self.window.is_open() {
            self.window.reduce_to(self.reduced());
            self.answered = Round::begin(delivery);
        }
        // Growth is conventional (RFC 8257 §3.4). It continues during a reduction; otherwise the window would only
        // shrink if every window has a few marks.
        if self.window.in_slow_start() {
            self.window.slow_start(bytes, delivery.paced, 1);
        } else {
            self.window.additive_increase(&mut self.credit, bytes);
        }
    }

    fn congested(&mut self, cause: CongestionSignal, in_flight: u32, _: Instant) {
        let threshold = match cause {
            // As in conventional TCP (RFC 8257 §3.5).
            CongestionSignal::Loss => half(in_flight, &self.window),
            CongestionSignal::EcnEcho => self.reduced(),
        };
        self.window.congested(threshold);
    }

    fn recovered(&mut self, _: Instant) {
        self.window.recovered();
        self.credit = 0;
    }

    fn timed_out(&mut self, in_flight: u32, _: Instant) {
        self.window.timed_out(half(in_flight, &self.window));
        self.credit = 0;
    }

    fn undo(&mut self) {
        self.window.undo();
    }

    fn idle(&mut self, idle_for: Duration, rto: Duration) {
        self.window.restart(idle_for, rto);
    }

    fn set_mss(&mut self, mss: u32) {
        self.window.set_mss(mss);
    }

    fn handshake_lost(&mut self) {
        self.window.handshake_lost();
    }

    fn wants_ecn(&self) -> bool {
        true
    }

    fn exact_ecn_echo(&self) -> bool {
        true
    }

    fn handles_ecn_echo(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
