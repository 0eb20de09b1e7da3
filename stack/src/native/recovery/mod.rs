//! Temporary: to be replaced.
use super::seq::Seq;
use crate::config::Config;
use crate::congestion::CongestionControl;
use linerate_bypass::time::{Duration, Instant};
#[derive(Debug, Clone, Copy, Default)]
pub struct RttEstimator(u64);
impl RttEstimator {
    pub fn sample(&mut self, rtt: Duration) {
        self.0 = rtt.as_nanos() as u64;
    }
    pub fn smoothed(&self) -> Option<Duration> {
        (self.0 > 0).then_some(Duration::from_nanos(self.0))
    }
    pub fn rto(&self, floor: Duration) -> Duration {
        floor.max(Duration::from_nanos(3 * self.0))
    }
}
#[derive(Default)]
pub struct Path(u64);
pub struct Limits {
    pub rto_floor: Duration,
}
impl Limits {
    pub fn of(_: &Config) -> Self {
        Limits { rto_floor: Duration::from_millis(200) }
    }
}
pub enum Expired {
    Nothing,
    Reordering,
    Probe,
    TimeOut,
    GiveUp,
}
pub struct Acknowledgement<'a> {
    pub ack: Seq,
    pub sack: &'a [(Seq, Seq)],
    pub echoed_timestamp: Option<u32>,
    pub ece: bool,
    pub duplicate: bool,
    pub pure: bool,
    pub now: Instant,
}
#[derive(Default)]
pub struct Outcome {
    pub window_may_have_changed: bool,
    pub reduced: bool,
    pub retransmit: bool,
}
pub struct Flight {
    una: Seq,
    nxt: Seq,
    lost: Option<Seq>,
    at: Instant,
}
impl Flight {
    pub fn new(una: Seq) -> Self {
        Flight { una, nxt: una, lost: None, at: Instant::ZERO }
    }
    pub fn reset(&mut self, una: Seq) {
        *self = Flight::new(una);
    }
    pub fn is_empty(&self) -> bool {
        self.una == self.nxt
    }
    pub fn sent(&mut self, len: u32, now: Instant) {
        self.nxt += len;
        self.at = now;
    }
    pub fn retransmitted(&mut self, seq: Seq, len: u32, now: Instant, _: Option<u32>) {
        self.at = now;
        let end = seq + len;
        self.lost = end.before(self.nxt).then_some(end);
    }
    pub fn retransmission(&self, max: u32) -> Option<(Seq, u32)> {
        self.lost.map(|seq| (seq, (self.nxt - seq).min(max)))
    }
    pub fn probe_range(&self, max: u32) -> Option<(Seq, u32)> {
        let len = (self.nxt - self.una).min(max);
        Some((self.nxt - len, len))
    }
    pub fn allowance(&self, window: u32) -> u32 {
        if self.lost.is_some() { window } else { window.saturating_sub(self.nxt - self.una) }
    }
    pub fn acknowledge<C: CongestionControl>(
        &mut self,
        a: &Acknowledgement,
        _: &mut RttEstimator,
        _: &mut Path,
        _: &mut C,
        _: &Limits,
    ) -> Outcome {
        if a.ack.after(self.una) {
            self.una = a.ack;
            if self.lost.is_some_and(|l| l.before(a.ack)) {
                self.lost = a.ack.before(self.nxt).then_some(a.ack);
            }
            self.at = a.now;
        }
        Outcome::default()
    }
    pub fn deadline(&self, _: &RttEstimator, _: &Path, limits: &Limits, _unsent: bool) -> Option<Instant> {
        (!self.is_empty()).then(|| self.at + limits.rto_floor)
    }
    pub fn expire<C: CongestionControl>(
        &mut self,
        _: Instant,
        _: &mut RttEstimator,
        _: &mut Path,
        _: &mut C,
        _: &Limits,
    ) -> Expired {
        self.lost = Some(self.una);
        Expired::TimeOut
    }
}
