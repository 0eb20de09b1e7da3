//! Clock of the server, and its difference from the wall clock.
//!
//! The server's clock shows milliseconds since 1970 according to the wall clock when the server started, advanced by
//! the monotonic clock. The wall clock may be stepped, so only absolute times of clients depend on it. They are
//! converted when a command runs.

use linerate_service::time::{self, Duration, Instant};
use std::time::{SystemTime, UNIX_EPOCH};

/// Interval between readings of the wall clock.
const MEASURED: Duration = Duration::from_secs(1);

/// Start of the server's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    wall: Duration,
    monotonic: time::Clock,
}

impl Start {
    pub fn now() -> Self {
        Start { wall: wall(), monotonic: time::Clock::start() }
    }

    /// Returns the time of the start in milliseconds since 1970.
    pub fn millis(&self) -> u64 {
        self.wall.as_millis() as u64
    }

    /// Returns the time of the server's clock.
    pub fn elapsed(&self) -> Duration {
        self.wall + Duration::from_nanos(self.monotonic.now().as_nanos())
    }
}

/// Returns the time since 1970 according to the wall clock.
fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The server's clock on a worker.
pub(super) struct ServerClock {
    start: Start,
    /// Offset from the transport's time.
    offset: u64,
    /// Milliseconds that the wall clock is ahead, and the time of their measurement.
    wall_ahead: i64,
    measured: Option<Instant>,
}

impl ServerClock {
    pub fn new(start: Start) -> Self {
        ServerClock { start, offset: 0, wall_ahead: 0, measured: None }
    }

    #[inline]
    pub fn wall_ahead(&self) -> i64 {
        self.wall_ahead
    }

    /// Returns the time of the server's clock in milliseconds.
    #[inline]
    pub fn millis(&mut self, now: Instant) -> u64 {
        if self.measured.is_none_or(|at| now.since(at) >= MEASURED) {
            self.measure(now);
        }
        self.offset + millis_of(now)
    }

    #[cold]
    fn measure(&mut self, now: Instant) {
        let elapsed = self.start.elapsed();
        if self.measured.is_none() {
            self.offset = (elapsed.as_millis() as u64).saturating_sub(millis_of(now));
        }
        self.measured = Some(now);
        self.wall_ahead = millis_ahead(wall(), elapsed);
    }
}

fn millis_of(time: Instant) -> u64 {
    time.as_nanos() / 1_000_000
}

/// Returns the milliseconds that `wall` is ahead of `clock`, rounded.
fn millis_ahead(wall: Duration, clock: Duration) -> i64 {
    let micros = wall.as_micros() as i64 - clock.as_micros() as i64;
    (micros + 500).div_euclid(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_clock_advances_with_the_transport_and_measures_steps_of_the_wall_clock() {
        let hour = Duration::from_secs(3600);
        let start = Start::now();
        let mut clock = ServerClock::new(start);
        let first = clock.millis(Instant::ZERO);
        assert_eq!(clock.wall_ahead(), 0);
        // A start that is an hour off is a step of the wall clock since then.
        for (wall, ahead) in [(start.wall - hour, 3_600_000), (start.wall, 0), (start.wall + hour, -3_600_000)] {
            clock.start.wall = wall;
            clock.measured = Some(Instant::ZERO);
            assert_eq!(clock.millis(Instant::from_nanos(2_000_000_000)), first + 2000);
            assert!(clock.wall_ahead().abs_diff(ahead) < 1000, "{}", clock.wall_ahead());
        }
        assert_eq!(millis_ahead(hour, hour + Duration::from_micros(499)), 0);
        assert_eq!(millis_ahead(hour, hour + Duration::from_micros(1499)), -1);
    }
}
