//! Sender and path for tests.

use super::{CongestionControl, CongestionSignal, Delivery};
use crate::config::Config;
use linerate_service::time::{Duration, Instant};

pub(super) const MSS: u32 = 1000;

/// Sender with unlimited data over a path without losses.
pub(super) struct Sender<C> {
    pub control: C,
    pub now: Instant,
    pub rtt: Duration,
    /// Marked bytes per thousand of each acknowledgement.
    pub marked: u32,
    pub paced: bool,
    pub window_limited: bool,
    pub segments_per_ack: u32,
    /// SND.UNA, which starts close to wrapping.
    acknowledged: u32,
}

impl<C: CongestionControl> Sender<C> {
    pub fn new(rtt: Duration) -> Self {
        Sender {
            control: C::new(&Config::default(), MSS),
            now: Instant::from_nanos(3_000_000_000),
            rtt,
            marked: 0,
            paced: false,
            window_limited: true,
            segments_per_ack: 2,
            acknowledged: u32::MAX - 30 * MSS,
        }
    }

    /// Returns a sender in congestion avoidance with a window of `window` bytes after a loss: W_max is `window` / β.
    pub fn after_loss_at(window: u32, rtt: Duration) -> Self {
        let mut sender = Sender::new(rtt);
        sender.start_to(window);
        sender.lose();
        sender
    }

    pub fn window(&self) -> u32 {
        self.control.window()
    }

    pub fn threshold(&self) -> u32 {
        self.control.slow_start_threshold()
    }

    /// Runs slow start to a window of exactly `window` bytes.
    pub fn start_to(&mut self, window: u32) {
        while self.window() < window {
            let bytes = (window - self.window()).min(MSS);
            self.deliver(bytes, |delivery| delivery.rtt = None);
        }
        assert_eq!(self.window(), window);
    }

    /// Acknowledges `bytes`. `change` adjusts the delivery.
    pub fn deliver(&mut self, bytes: u32, change: impl FnOnce(&mut Delivery)) {
        let outstanding = self.window().max(bytes);
        let mut delivery = Delivery {
            now: self.now,
            bytes,
            marked: u32::try_from(u64::from(bytes) * u64::from(self.marked) / 1000).unwrap(),
            in_flight: outstanding,
            window_limited: self.window_limited,
            paced: self.paced,
            rtt: Some(self.rtt),
            smoothed_rtt: self.rtt,
            acknowledged: self.acknowledged.wrapping_add(bytes),
            next: self.acknowledged.wrapping_add(outstanding),
        };
        change(&mut delivery);
        self.control.delivered(&delivery);
        self.acknowledged = delivery.acknowledged;
    }

    /// Runs a round trip: acknowledges a window of data, spread over it.
    pub fn round(&mut self) {
        let (window, begun) = (self.window(), self.now);
        let mut done = 0;
        while done < window {
            let bytes = (window - done).min(self.segments_per_ack * MSS);
            done += bytes;
            let part = u64::try_from(self.rtt.as_nanos()).unwrap() * u64::from(done) / u64::from(window);
            self.now = begun + Duration::from_nanos(part);
            self.deliver(bytes, |_| {});
        }
    }

    pub fn rounds(&mut self, n: usize) {
        for _ in 0..n {
            self.round();
        }
    }

    pub fn congested(&mut self) {
        self.control.congested(CongestionSignal::Loss, self.control.window(), self.now);
    }

    pub fn recovered(&mut self) {
        self.control.recovered(self.now);
    }

    /// Runs a loss and the round trip of its recovery.
    pub fn lose(&mut self) {
        self.congested();
        self.now += self.rtt;
        self.recovered();
    }

    pub fn time_out(&mut self) {
        self.control.timed_out(self.control.window(), self.now);
    }
}
