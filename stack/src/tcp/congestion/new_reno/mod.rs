//! NewReno: additive increase, multiplicative decrease (RFC 5681, RFC 6582), with HyStart++ for the first slow start.

use super::hystart::HyStart;
use super::window::Window;
use super::{CongestionControl, CongestionSignal, Delivery};
use crate::config::Config;
use linerate_service::time::{Duration, Instant};

/// Standard congestion control (RFC 5681): one more segment per round trip, half the window per loss.
#[derive(Debug, Clone, Copy)]
pub struct NewReno {
    window: Window,
    hystart: HyStart,
    /// Bytes delivered in congestion avoidance since the window last grew.
    credit: u32,
}

impl CongestionControl for NewReno {
    fn new(_: &Config, mss: u32) -> Self {
        NewReno { window: Window::new(mss), hystart: HyStart::new(), credit: 0 }
    }

    fn window(&self) -> u32 {
        self.window.bytes()
    }

    fn slow_start_threshold(&self) -> u32 {
        self.window.threshold()
    }

    fn delivered(&mut self, delivery: &Delivery) {
        let bytes = self.window.delivered(delivery);
        if bytes == 0 {
            return;
        }
        if self.window.in_initial_slow_start() {
            self.window.slow_start(bytes, delivery.paced, self.hystart.divisor());
            if self.hystart.delivered(delivery) {
                self.window.leave_slow_start();
            }
        } else if self.window.in_slow_start() {
            self.window.slow_start(bytes, delivery.paced, 1);
        } else {
            self.window.additive_increase(&mut self.credit, bytes);
        }
    }

    fn congested(&mut self, _: CongestionSignal, in_flight: u32, _: Instant) {
        self.window.congested(half(in_flight, &self.window));
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
        if self.window.restart(idle_for, rto) {
            self.hystart = HyStart::new();
        }
    }

    fn set_mss(&mut self, mss: u32) {
        self.window.set_mss(mss);
    }

    fn handshake_lost(&mut self) {
        self.window.handshake_lost();
    }
}

/// Returns half of the data in flight (RFC 5681 §3.1, equation 4), counting at most the window, which excludes limited
/// transmit (RFC 5681 §3.2).
pub(super) fn half(in_flight: u32, window: &Window) -> u32 {
    in_flight.min(window.bytes()) / 2
}

#[cfg(test)]
mod tests;
