//! CUBIC (RFC 9438): the window grows by the time since the last congestion, not by the round trip.

mod curve;

use super::hystart::HyStart;
use super::window::{MAX_WINDOW, Window};
use super::{CongestionControl, CongestionSignal, Delivery};
use crate::Config;
use curve::{Stamp, Ticks};
use linerate_bypass::time::{Duration, Instant};

/// CUBIC (RFC 9438): fast at first after a congestion, level around the window at which it happened, then fast again; and
/// never slower than NewReno would be.
#[derive(Debug, Clone, Copy)]
pub struct Cubic {
    window: Window,
    /// W_max in bytes; zero while it is undefined, before the first congestion and after a time-out (RFC 9438 §4.8, §4.10).
    w_max: u32,
    /// W_max and cwnd_prior before the last reduction, for undoing it (RFC 9438 §4.9.2).
    saved_w_max: u32,
    saved_prior: u32,
    phase: Phase,
}

/// What the window grows by.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// The first slow start; congestion avoidance has never begun.
    Start(HyStart),
    /// Congestion avoidance has begun: its last stage.
    Avoidance(Stage),
}

/// A stage of congestion avoidance (RFC 9438 §4.1.2).
#[derive(Debug, Clone, Copy)]
struct Stage {
    /// t − K: the time until (negative) or since the curve is at W_max.
    position: Ticks,
    /// Up to when time has been counted in `position`.
    counted: Stamp,
    /// W_est in bytes, and in 2⁻¹⁶ bytes beyond.
    reno: u32,
    reno_fraction: u16,
    /// The window's own fraction of a byte, in 2⁻¹⁶.
    fraction: u16,
    state: State,
}

/// Whether a stage goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It does.
    Running,
    /// A reduction has ended it; undoing that, before another has begun, revives it.
    Suspended,
    /// It is over.
    Over,
}

/// β_cubic = 0.7 (RFC 9438 §4.6).
fn reduced(window: u32) -> u32 {
    scaled(window, 7, 10)
}

fn scaled(window: u32, numerator: u64, denominator: u64) -> u32 {
    u32::try_from(u64::from(window) * numerator / denominator).unwrap_or(u32::MAX)
}

impl Stage {
    /// A stage that begins with a window of `window` bytes, where the curve around `w_max` has it.
    fn begin(now: Instant, window: u32, w_max: u32, mss: u32) -> Self {
        Stage {
            position: curve::position(i64::from(window) - i64::from(w_max), mss),
            counted: Stamp::new(now),
            reno: window,
            reno_fraction: 0,
            fraction: 0,
            state: State::Running,
        }
    }

    /// Counts the time to `now`. An acknowledgement tells of the round trip before it, so of a longer silence no more
    /// counts: there was nothing to send in it (RFC 9438 §5.8).
    fn advance(&mut self, now: Instant, smoothed_rtt: Ticks) {
        let now = Stamp::new(now);
        let elapsed = now.since(self.counted);
        let most = if smoothed_rtt == Ticks::ZERO { elapsed } else { smoothed_rtt.plus(smoothed_rtt) };
        self.position = self.position.plus(elapsed.min(most));
        self.counted = now;
    }

    /// Lets the time to `now` pass uncounted.
    fn pause(&mut self, now: Instant) {
        self.counted = Stamp::new(now);
    }

    /// W_est for `share` of a window delivered, in units of 2⁻³² (RFC 9438 §4.3, figure 4), in 2⁻¹⁶ bytes.
    fn advance_reno(&mut self, share: u64, prior: u32, mss: u32) -> u64 {
        // α is 3(1 − β)/(1 + β) = 9/17, and 1 from where the last stage ended.
        let segment = u64::from(mss) * share;
        let more = if self.reno >= prior { segment } else { segment * 9 / 17 };
        let reno = join(self.reno, self.reno_fraction).saturating_add(more >> 16);
        (self.reno, self.reno_fraction) = split(reno);
        join(self.reno, self.reno_fraction)
    }

    /// The window of `window` bytes after `bytes` delivered (RFC 9438 §4.2 to §4.5).
    fn grown(&mut self, window: &Window, w_max: u32, bytes: u32, smoothed_rtt: Ticks) -> u32 {
        let (cwnd, mss) = (window.bytes().max(1), window.mss());
        // By bytes and not by acknowledgements, of which a peer or a port that coalesces sends few.
        let share = (u64::from(bytes.min(cwnd)) << 32) / u64::from(cwnd);
        let reno = self.advance_reno(share, window.prior(), mss);
        let ahead = i64::from(w_max) + curve::height(self.position.plus(smoothed_rtt), mss).min(MAX_WINDOW.into());
        let growth = u64::try_from(ahead - i64::from(cwnd)).unwrap_or(0).min(u64::from(cwnd / 2));
        let cubic = join(cwnd, self.fraction) + ((growth * share) >> 16);
        let (grown, fraction) = split(cubic.max(reno));
        self.fraction = fraction;
        grown
    }
}

/// Bytes and 2⁻¹⁶ bytes.
fn join(bytes: u32, fraction: u16) -> u64 {
    u64::from(bytes) << 16 | u64::from(fraction)
}

/// The other way round, for at most the largest window.
fn split(wide: u64) -> (u32, u16) {
    let wide = wide.min(join(MAX_WINDOW, 0));
    ((wide >> 16) as u32, (wide & 0xffff) as u16)
}

impl Cubic {
    fn avoid_congestion(&mut self, delivery: &Delivery, bytes: u32) {
        let smoothed_rtt = Ticks::from_duration(delivery.smoothed_rtt);
        match &mut self.phase {
            Phase::Avoidance(stage) if stage.state == State::Running => stage.advance(delivery.now, smoothed_rtt),
            _ => {
                // Without a W_max, the curve begins where it is flat (RFC 9438 §4.8, §4.10).
                if self.w_max == 0 {
                    self.w_max = self.window.bytes();
                }
                let stage = Stage::begin(delivery.now, self.window.bytes(), self.w_max, self.window.mss());
                self.phase = Phase::Avoidance(stage);
            }
        }
        if let Phase::Avoidance(stage) = &mut self.phase {
            let grown = stage.grown(&self.window, self.w_max, bytes, smoothed_rtt);
            self.window.grow_to(grown);
        }
    }

    /// Keeps what a reduction is about to change. The stage itself stays as it is until the next begins.
    fn save(&mut self, prior: u32) {
        self.saved_w_max = self.w_max;
        self.saved_prior = prior;
        if let Phase::Avoidance(stage) = &mut self.phase {
            stage.state = if stage.state == State::Running { State::Suspended } else { State::Over };
        }
    }
}

impl CongestionControl for Cubic {
    fn new(_: &Config, mss: u32) -> Self {
        Cubic {
            window: Window::new(mss),
            w_max: 0,
            saved_w_max: 0,
            saved_prior: 0,
            phase: Phase::Start(HyStart::new()),
        }
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
            if let Phase::Avoidance(stage) = &mut self.phase {
                stage.pause(delivery.now);
            }
            return;
        }
        if !self.window.in_slow_start() {
            self.avoid_congestion(delivery, bytes);
            return;
        }
        match &mut self.phase {
            Phase::Start(hystart) if self.window.in_initial_slow_start() => {
                self.window.slow_start(bytes, delivery.paced, hystart.divisor());
                if hystart.delivered(delivery) {
                    self.window.leave_slow_start();
                }
            }
            _ => self.window.slow_start(bytes, delivery.paced, 1),
        }
    }

    // From the window and not from what is in flight, as RFC 9438 §4.6 allows where an unused window does not grow.
    fn congested(&mut self, _: CongestionSignal, _: u32, _: Instant) {
        let (window, prior) = (self.window.bytes(), self.window.prior());
        if self.window.congested(reduced(window)) {
            self.save(prior);
            // Fast convergence: less than last time, so others need the room (RFC 9438 §4.7).
            self.w_max = if window < self.w_max { scaled(window, 17, 20) } else { window };
        }
    }

    fn recovered(&mut self, _: Instant) {
        self.window.recovered();
    }

    fn timed_out(&mut self, _: u32, _: Instant) {
        let prior = self.window.prior();
        if self.window.timed_out(reduced(self.window.bytes())) {
            self.save(prior);
            self.w_max = 0;
        }
    }

    fn undo(&mut self) {
        if !self.window.undo() {
            return;
        }
        self.w_max = self.saved_w_max;
        self.window.set_prior(self.saved_prior);
        match &mut self.phase {
            Phase::Start(_) => {}
            phase if self.window.in_initial_slow_start() => *phase = Phase::Start(HyStart::new()),
            // Where another stage has begun, one that begins now finds its place on the restored curve from the window.
            Phase::Avoidance(stage) => {
                stage.state = if stage.state == State::Suspended { State::Running } else { State::Over };
            }
        }
    }

    fn idle(&mut self, idle_for: Duration, rto: Duration) {
        if self.window.restart(idle_for, rto) {
            match &mut self.phase {
                Phase::Start(hystart) => *hystart = HyStart::new(),
                Phase::Avoidance(stage) => stage.state = State::Over,
            }
        }
    }

    fn set_mss(&mut self, mss: u32) {
        self.window.set_mss(mss);
        // The curve is steeper for longer segments.
        if let Phase::Avoidance(stage) = &mut self.phase {
            stage.state = State::Over;
        }
    }

    fn handshake_lost(&mut self) {
        self.window.handshake_lost();
    }
}

#[cfg(test)]
mod tests;
