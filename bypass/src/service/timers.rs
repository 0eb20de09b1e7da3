//! When connections asked to be told the time.

use crate::ConnId;
use crate::time::Instant;
use std::collections::BTreeSet;

/// What one connection asked for.
#[derive(Debug, Default, Clone, Copy)]
pub struct Timer {
    wanted: Option<Instant>,
    /// When its entry in [`Timers`] is due: never later than what is wanted. Putting a timer off, which is what
    /// most do again and again, leaves the entry where it is, and it moves when it comes up.
    armed: Option<Instant>,
}

/// The timers of one worker, at most one entry per connection.
#[derive(Default)]
pub struct Timers {
    entries: BTreeSet<(Instant, ConnId)>,
}

impl Timers {
    /// Asks for `conn`'s timer at `wanted`, in place of what was asked for before.
    pub fn set(&mut self, conn: ConnId, timer: &mut Timer, wanted: Option<Instant>) {
        timer.wanted = wanted;
        let Some(at) = wanted else { return };
        if timer.armed.is_none_or(|armed| at < armed) {
            self.forget(conn, timer);
            self.entries.insert((at, conn));
            timer.armed = wanted;
        }
    }

    /// Takes out the entry of `conn`, which is going away.
    pub fn forget(&mut self, conn: ConnId, timer: &mut Timer) {
        if let Some(armed) = timer.armed.take() {
            self.entries.remove(&(armed, conn));
        }
    }

    /// The connection whose entry came up before or at `now`; see [`fired`](Self::fired).
    pub fn pop(&mut self, now: Instant) -> Option<ConnId> {
        let &(at, conn) = self.entries.first()?;
        (at <= now).then(|| {
            self.entries.pop_first();
            conn
        })
    }

    /// Whether `conn`'s timer, whose entry was just popped, is due. If it has been put off, it is armed anew.
    pub fn fired(&mut self, conn: ConnId, timer: &mut Timer, now: Instant) -> bool {
        timer.armed = None;
        match timer.wanted {
            Some(at) if at <= now => {
                timer.wanted = None;
                true
            }
            wanted => {
                self.set(conn, timer, wanted);
                false
            }
        }
    }

    /// When the next entry comes up.
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
    fn a_timer_fires_once_at_the_last_time_asked_for() {
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
    fn a_timer_that_is_no_longer_wanted_does_not_fire() {
        let (mut timers, mut timer, conn) = (Timers::default(), Timer::default(), ConnId::new(0, 1, 0));
        timers.set(conn, &mut timer, at(100));
        timers.set(conn, &mut timer, None);
        assert!(!run(&mut timers, conn, &mut timer, 1000));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn however_often_it_is_set_a_connection_has_one_entry() {
        let (mut timers, mut timer, conn) = (Timers::default(), Timer::default(), ConnId::new(0, 1, 0));
        for n in 0..1000 {
            timers.set(conn, &mut timer, at(10_000 + (n * 7919) % 1000));
            assert_eq!(timers.entries.len(), 1);
        }
        timers.forget(conn, &mut timer);
        assert!(timers.entries.is_empty());
    }
}
