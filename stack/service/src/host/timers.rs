//! Timers of connections.

use crate::ConnId;
use crate::time::Instant;
use std::collections::BTreeSet;

/// Timer of one connection.
#[derive(Debug, Default, Clone, Copy)]
pub struct Timer {
    deadline: Option<Instant>,
    /// Deadline of the entry in [`Timers`], no later than `deadline`. Postponing a timer, the most frequent operation,
    /// leaves the entry in place; it is re-armed when it expires.
    armed: Option<Instant>,
}

/// Timers of one worker: at most one entry per connection, ordered by deadline.
#[derive(Default)]
pub struct Timers {
    entries: BTreeSet<(Instant, ConnId)>,
}

impl Timers {
    /// Sets the timer of `conn` to `deadline`, or stops it.
    pub fn set(&mut self, conn: ConnId, timer: &mut Timer, deadline: Option<Instant>) {
        timer.deadline = deadline;
        let Some(at) = deadline else { return };
        if timer.armed.is_none_or(|armed| at < armed) {
            self.cancel(conn, timer);
            self.entries.insert((at, conn));
            timer.armed = deadline;
        }
    }

    /// Removes the entry of `conn`, which is about to end.
    pub fn cancel(&mut self, conn: ConnId, timer: &mut Timer) {
        if let Some(armed) = timer.armed.take() {
            self.entries.remove(&(armed, conn));
        }
    }

    /// Removes and returns the connection whose entry expired first, if it expired by `now`. [`fired`](Self::fired)
    /// follows.
    pub fn pop(&mut self, now: Instant) -> Option<ConnId> {
        let &(at, conn) = self.entries.first()?;
        (at <= now).then(|| {
            self.entries.pop_first();
            conn
        })
    }

    /// Returns whether the timer of `conn` has expired; its entry has just been popped. Re-arms a postponed timer.
    pub fn fired(&mut self, conn: ConnId, timer: &mut Timer, now: Instant) -> bool {
        timer.armed = None;
        match timer.deadline {
            Some(at) if at <= now => {
                timer.deadline = None;
                true
            }
            deadline => {
                self.set(conn, timer, deadline);
                false
            }
        }
    }

    /// Returns the deadline of the first entry.
    pub fn next(&self) -> Option<Instant> {
        self.entries.first().map(|&(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Option<Instant> {
        Some(Instant::from_nanos(nanos))
    }

    fn run(timers: &mut Timers, conn: ConnId, timer: &mut Timer, now: u64) -> bool {
        let now = Instant::from_nanos(now);
        let mut due = false;
        while let Some(popped) = timers.pop(now) {
            assert_eq!(popped, conn);
            due |= timers.fired(conn, timer, now);
        }
        due
    }

    #[test]
    fn timer_fires_once_at_its_latest_setting() {
        let (mut timers, mut timer, conn) = (Timers::default(), Timer::default(), ConnId::new(0, 1, 0));
        timers.set(conn, &mut timer, at(100));
        timers.set(conn, &mut timer, at(50));
        timers.set(conn, &mut timer, at(70));
        assert_eq!(timers.next(), at(50));
        assert!(!run(&mut timers, conn, &mut timer, 60));
        assert!(!run(&mut timers, conn, &mut timer, 69));
        assert!(run(&mut timers, conn, &mut timer, 70));
        assert!(!run(&mut timers, conn, &mut timer, 1000));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn stopped_timer_does_not_fire() {
        let (mut timers, mut timer, conn) = (Timers::default(), Timer::default(), ConnId::new(0, 1, 0));
        timers.set(conn, &mut timer, at(100));
        timers.set(conn, &mut timer, None);
        assert!(!run(&mut timers, conn, &mut timer, 1000));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn connection_has_one_entry_however_often_its_timer_is_set() {
        let (mut timers, mut timer, conn) = (Timers::default(), Timer::default(), ConnId::new(0, 1, 0));
        for n in 0..1000 {
            timers.set(conn, &mut timer, at(10_000 + (n * 7919) % 1000));
            assert_eq!(timers.entries.len(), 1);
        }
        timers.cancel(conn, &mut timer);
        assert!(timers.entries.is_empty());
    }
}
