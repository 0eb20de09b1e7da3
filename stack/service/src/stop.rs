//! Shutdown of workers: stop at once, or drain until all connections have ended.

use crate::sync::mailbox::Wake;
use crate::time::Duration;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Interval at which sleeping threads look at the flag of a request.
const FLAG_CHECK: Duration = Duration::from_millis(20);

/// Shutdown request from one thread to all workers. A worker that drains accepts no new connections and serves the
/// existing ones. Clones refer to the same workers.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    stopped: Arc<AtomicBool>,
    draining: Arc<AtomicBool>,
    reports: Arc<DrainReports>,
    sleepers: Arc<Sleepers>,
    /// True if a request may be a flag that is set without a call.
    is_silent: bool,
}

/// Threads that may sleep, and are woken together.
#[derive(Default)]
pub struct Sleepers(Mutex<Vec<Wake>>);

impl Sleepers {
    /// Adds a thread, which `wake` wakes.
    pub fn add(&self, wake: Wake) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(wake);
    }

    /// Wakes all threads.
    pub fn wake(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|wake| wake());
    }
}

impl fmt::Debug for Sleepers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sleepers")
    }
}

/// Reports of draining workers.
#[derive(Debug, Default)]
struct DrainReports {
    expected: AtomicUsize,
    workers: AtomicUsize,
    connections: AtomicUsize,
}

impl Stop {
    /// Requests all workers to stop.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.sleepers.wake();
    }

    /// Returns whether workers are requested to stop.
    #[inline]
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Requests all workers to drain.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.sleepers.wake();
    }

    /// Makes requests wake a sleeping thread by `wake`. Returns the longest sleep of the thread if requests may come by
    /// a flag, which wakes nobody.
    pub fn wake_by(&self, wake: Wake) -> Option<Duration> {
        self.sleepers.add(wake);
        self.is_silent.then_some(FLAG_CHECK)
    }

    /// Returns whether workers are requested to drain.
    #[inline]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Returns whether workers are requested to stop or drain, for code that waits before any worker exists.
    pub fn is_ending(&self) -> bool {
        self.is_stopped() || self.is_draining()
    }

    /// Sets the number of workers from which reports are expected.
    pub fn set_workers(&self, workers: usize) {
        self.reports.expected.store(workers, Ordering::Relaxed);
    }

    /// Returns the number of remaining connections, or `None` until all workers have stopped listening.
    pub fn remaining(&self) -> Option<usize> {
        let expected = self.reports.expected.load(Ordering::Relaxed);
        // Acquire: the connections of every counted worker are visible.
        let all = expected > 0 && self.reports.workers.load(Ordering::Acquire) >= expected;
        all.then(|| self.reports.connections.load(Ordering::Acquire))
    }
}

impl From<Arc<AtomicBool>> for Stop {
    /// Creates a request to stop that follows the flag `stopped`, which a signal handler can set. Sleeping workers
    /// look at it each 20 ms.
    fn from(stopped: Arc<AtomicBool>) -> Self {
        Stop { stopped, is_silent: true, ..Stop::default() }
    }
}

/// Drain state of one worker.
#[derive(Debug, Default)]
pub struct Drain {
    /// Last reported number of connections, or `None` if the worker has not stopped listening.
    reported: Option<usize>,
}

impl Drain {
    /// Returns whether the worker still has to stop listening.
    pub fn is_listening(&self) -> bool {
        self.reported.is_none()
    }

    /// Reports that the worker has stopped listening and has `connections` connections.
    pub fn report(&mut self, stop: &Stop, connections: usize) {
        if self.reported == Some(connections) {
            return;
        }
        let before = self.reported.replace(connections);
        // Adding the difference keeps the sum correct under concurrent reports; it wraps consistently.
        stop.reports.connections.fetch_add(connections.wrapping_sub(before.unwrap_or(0)), Ordering::Release);
        if before.is_none() {
            stop.reports.workers.fetch_add(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_is_the_sum_once_all_workers_have_reported() {
        let (stop, mut first, mut second) = (Stop::default(), Drain::default(), Drain::default());
        assert!(!stop.is_draining() && first.is_listening());
        assert_eq!(stop.remaining(), None);
        stop.set_workers(2);
        stop.clone().drain();
        assert!(stop.is_draining() && stop.is_ending() && !stop.is_stopped());
        assert_eq!(stop.remaining(), None);
        first.report(&stop, 3);
        assert!(!first.is_listening() && second.is_listening());
        assert_eq!(stop.remaining(), None);
        second.report(&stop, 2);
        assert_eq!(stop.remaining(), Some(5));
        for (connections, left) in [(1, 3), (1, 3), (4, 6), (0, 2)] {
            first.report(&stop, connections);
            assert_eq!(stop.remaining(), Some(left));
        }
        second.report(&stop, 0);
        assert_eq!(stop.remaining(), Some(0));
    }

    #[test]
    fn external_flag_stops_and_does_not_drain() {
        let flag = Arc::new(AtomicBool::new(false));
        let stop = Stop::from(flag.clone());
        assert!(!stop.is_ending());
        flag.store(true, Ordering::Relaxed);
        assert!(stop.is_stopped() && stop.is_ending() && !stop.is_draining());
        assert_eq!(stop.wake_by(Box::new(|| {})), Some(FLAG_CHECK));
    }

    #[test]
    fn each_request_wakes_the_sleepers_of_all_clones() {
        let (stop, woken) = (Stop::default(), Arc::new(AtomicUsize::new(0)));
        for stop in [stop.clone(), stop.clone()] {
            let woken = woken.clone();
            assert_eq!(stop.wake_by(Box::new(move || _ = woken.fetch_add(1, Ordering::Relaxed))), None);
        }
        stop.drain();
        assert_eq!(woken.load(Ordering::Relaxed), 2);
        stop.clone().stop();
        assert_eq!(woken.load(Ordering::Relaxed), 4);
    }
}
