//! How workers are asked to end: at once, or when their connections have ended by themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What one thread asks of all workers: to stop, or to drain first, which is to take in no new connections and go on with
/// those that there are. Clones ask the same workers.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    stopped: Arc<AtomicBool>,
    draining: Arc<AtomicBool>,
    told: Arc<Told>,
}

/// What draining workers have told.
#[derive(Debug, Default)]
struct Told {
    expected: AtomicUsize,
    workers: AtomicUsize,
    connections: AtomicUsize,
}

impl Stop {
    /// Has the workers stop.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether they are to stop.
    #[inline]
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Has the workers drain.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether they are to drain.
    #[inline]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// What is set once workers are to drain, for who waits for something before there are any.
    pub fn draining(&self) -> &Arc<AtomicBool> {
        &self.draining
    }

    /// There are so many workers.
    pub fn begin(&self, workers: usize) {
        self.told.expected.store(workers, Ordering::Relaxed);
    }

    /// The connections that are left, or `None` until all workers listen no more.
    pub fn left(&self) -> Option<usize> {
        let expected = self.told.expected.load(Ordering::Relaxed);
        // What was told by those that are counted is seen.
        let all = expected > 0 && self.told.workers.load(Ordering::Acquire) >= expected;
        all.then(|| self.told.connections.load(Ordering::Acquire))
    }
}

impl From<Arc<AtomicBool>> for Stop {
    /// To stop when `stopped` is set, and never to drain.
    fn from(stopped: Arc<AtomicBool>) -> Self {
        Stop { stopped, ..Stop::default() }
    }
}

/// A worker's side of a [`Stop`] while it drains.
#[derive(Debug, Default)]
pub struct Drain {
    /// Its connections as it last told, if it ever did.
    told: Option<usize>,
}

impl Drain {
    /// Whether the worker still listens, which it is not to do any more.
    pub fn begins(&self) -> bool {
        self.told.is_none()
    }

    /// The worker listens no more, and has so many connections.
    pub fn tell(&mut self, stop: &Stop, connections: usize) {
        if self.told == Some(connections) {
            return;
        }
        let before = self.told.replace(connections);
        // By the difference, as others tell of theirs: a sum that wraps is right in the end.
        stop.told.connections.fetch_add(connections.wrapping_sub(before.unwrap_or(0)), Ordering::Release);
        if before.is_none() {
            stop.told.workers.fetch_add(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_known_when_all_workers_have_told_and_is_their_sum() {
        let (stop, mut first, mut second) = (Stop::default(), Drain::default(), Drain::default());
        assert!(!stop.is_draining() && first.begins());
        assert_eq!(stop.left(), None);
        stop.begin(2);
        stop.clone().drain();
        assert!(stop.is_draining() && !stop.is_stopped());
        assert_eq!(stop.left(), None);
        first.tell(&stop, 3);
        assert!(!first.begins() && second.begins());
        assert_eq!(stop.left(), None);
        second.tell(&stop, 2);
        assert_eq!(stop.left(), Some(5));
        for (connections, left) in [(1, 3), (1, 3), (4, 6), (0, 2)] {
            first.tell(&stop, connections);
            assert_eq!(stop.left(), Some(left));
        }
        second.tell(&stop, 0);
        assert_eq!(stop.left(), Some(0));
    }

    #[test]
    fn a_flag_of_somebody_elses_stops_workers_and_drains_none() {
        let flag = Arc::new(AtomicBool::new(false));
        let stop = Stop::from(flag.clone());
        assert!(!stop.is_stopped());
        flag.store(true, Ordering::Relaxed);
        assert!(stop.is_stopped() && !stop.is_draining());
    }
}
