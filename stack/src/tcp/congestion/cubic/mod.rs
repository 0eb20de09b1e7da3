//! CUBIC (RFC 9438): the window grows with the time since the last congestion, not with the round trip.

mod curve;

use super::hystart::HyStart;
use super::window::{MAX_WINDOW, Window};
use super::{CongestionControl, CongestionSignal, Delivery};
use crate::config::Config;
use curve::{Stamp, Ticks};
use linerate_service::time::{Duration, Instant};

/// CUBIC (RFC 9438): fast growth after a congestion, level around the window at which it occurred, then fast again.
/// Growth is never slower than NewReno's.
#[derive(Debug, Clone, Copy)]
pub struct Cubic {
    window: Window,
    /// W_max in bytes; zero while undefined, before the first congestion and after a timeout (RFC 9438 §4.8, §4.10).
    w_max: u32,
    /// W_max and cwnd_prior before the last reduction, to undo it (RFC 9438 §4.9.2).
    saved_w_max: u32,
    saved_prior: u32,
    phase: Phase,
}

/// Growth phase.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Initial slow start.
    Start(HyStart),
    /// Congestion avoidance, or slow start after its last stage.
    Avoidance(Stage),
}

/// Stage of congestion avoidance (RFC 9438 §4.1.2).
#[derive(Debug, Clone, Copy)]
struct Stage {
    /// t − K: time until (negative) or since the curve reaches W_max.
    position: Ticks,
    /// Time up to which `position` is updated.
    counted: Stamp,
    /// W_est in bytes, and its fraction in 2⁻¹⁶ bytes.
    reno: u32,
    reno_fraction: u16,
    /// Fraction of the window in 2⁻¹⁶ bytes.
    fraction: u16,
    state: CubicState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CubicState {
    /// In progress.
    Running,
    /// Ended by a reduction. Undoing the reduction before the next stage begins resumes the stage.
    Suspended,
    /// Ended.
    Over,
}

/// Returns `window` multiplied by β_cubic = 0.7 (RFC 9438 §4.6).
fn reduced(window: u32) -> u32 {
    scaled(window, 7, 10)
}

fn scaled(window: u32, numerator: u64, denominator: u64) -> u32 {
    u32::try_from(u64::from(window) * numerator / denominator).unwrap_or(u32::MAX)
}

impl Stage {
    /// Begins a stage with a window of `window` bytes, at its position on the curve around `w_max`.
    fn begin(now: Instant, window: u32, w_max: u32, mss: u32) -> Self {
        Stage {
            position: curve::position(i64::from(window) - i64::from(w_max), mss),
            counted: Stamp::new(now),
            reno: window,
            reno_fraction: 0,
            fraction: 0,
            state: CubicState::Running,
        }
    }

    /// Advances to `now`. An acknowledgement covers the round trip before it, so only that part of a longer silence
    /// counts: there was nothing to send (RFC 9438 §5.8).
    fn advance(&mut self, now: Instant, smoothed_rtt: Ticks) {
        let now = Stamp::new(now);
        let elapsed = now.since(self.counted);
        let most = if smoothed_rtt == Ticks::ZERO { elapsed } else { smoothed_rtt.plus(smoothed_rtt) };
        self.position = self.position.plus(elapsed.min(most));
        self.counted = now;
    }

    /// Skips the time to `now`.
    fn pause(&mut self, now: Instant) {
        self.counted = Stamp::new(now);
    }

    /// Advances W_est for `share` of a window delivered, in units of 2⁻³² (RFC 9438 §4.3, figure 4). Returns it in 2⁻¹⁶
    /// bytes.
    fn advance_reno(&mut self, share: u64, prior: u32, mss: u32) -> u64 {
        // α is 3(1 − β)/(1 + β) = 9/17, and 1 from the window of the last congestion on.
        let segment = u64::from(mss) * share;
        let more = if self.reno >= prior { segment } else { segment * 9 / 17 };
        let reno = join(self.reno, self.reno_fraction).saturating_add(more >> 16);
        (self.reno, self.reno_fraction) = split(reno);
        join(self.reno, self.reno_fraction)
    }

    /// Returns the window of `window` bytes after `bytes` delivered (RFC 9438 §4.2 to §4.5).
    fn grown(&mut self, window: &Window, w_max: u32, bytes: u32, smoothed_rtt: Ticks) -> u32 {
        let (cwnd, mss) = (window.bytes().max(1), window.mss());
        // Growth counts bytes, not acknowledgements, of which a peer or a coalescing port sends few.
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

/// Combines bytes and 2⁻¹⁶ bytes.
fn join(bytes: u32, fraction: u16) -> u64 {
    u64::from(bytes) << 16 | u64::from(fraction)
}

/// Splits the combined value, limited to the largest window.
fn split(wide: u64) -> (u32, u16) {
    let wide = wide.min(join(MAX_WINDOW, 0));
    ((wide >> 16) as u32, (wide & 0xffff) as u16)
}

impl Cubic {
    fn avoid_congestion(&mut self, delivery: &Delivery, bytes: u32) {
        let smoothed_rtt = Ticks::from_duration(delivery.smoothed_rtt);
        match &mut self.phase {
            Phase::Avoidance(stage) if stage.state == CubicState::Running => stage.advance(delivery.now, smoothed_rtt),
            _ => {
                // Without W_max, the curve begins at its flat point (RFC 9438 §4.8, §4.10).
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

    /// Saves the values that a reduction is about to change. The stage stays unchanged until the next begins.
    fn save(&mut self, prior: u32) {
        self.saved_w_max = self.w_max;
        self.saved_prior = prior;
        if let Phase::Avoidance(stage) = &mut self.phase {
            stage.state = if stage.state == CubicState::Running { CubicState::Suspended } else { CubicState::Over };
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

    // Based on the window and not on the data in flight, as RFC 9438 §4.6 allows if an unused window does not grow.
    fn congested(&mut self, _: CongestionSignal, _: u32, _: Instant) {
        let (window, prior) = (self.window.bytes(), self.window.prior());
        if self.window.congested(reduced(window)) {
            self.save(prior);
            // Fast convergence: a window below the last W_max shows that other flows need room (RFC 9438 §4.7).
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
            // A later stage takes its position on the restored curve from the window.
            Phase::Avoidance(stage) => {
                stage.state = if stage.state == CubicState::Suspended { CubicState::Running } else { CubicState::Over };
            }
        }
    }

    fn idle(&mut self, idle_for: Duration, rto: Duration) {
        if self.window.restart(idle_for, rto) {
            match &mut self.phase {
                Phase::Start(hystart) => *hystart = HyStart::new(),
                Phase::Avoidance(stage) => stage.state = CubicState::Over,
            }
        }
    }

    fn set_mss(&mut self, mss: u32) {
        self.window.set_mss(mss);
        // Longer segments make the curve steeper.
        if let Phase::Avoidance(stage) = &mut self.phase {
            stage.state = CubicState::Over;
        }
    }

    fn handshake_lost(&mut self) {
        self.window.handshake_lost();
    }
}

#[cfg(test)]
mod tests;
