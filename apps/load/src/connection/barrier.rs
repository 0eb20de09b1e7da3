//! Synchronisation of a load's workers with each other and with the observer.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Counter that one worker writes often, on its own cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart(AtomicU64);

/// Flags and counters of one load. They guard no other memory, so relaxed ordering suffices.
#[derive(Debug)]
pub struct Barrier {
    connections: usize,
    opened: AtomicUsize,
    failed: AtomicUsize,
    preparing: AtomicBool,
    workers_prepared: AtomicUsize,
    begun: AtomicBool,
    stopped: AtomicBool,
    workers_done: AtomicUsize,
    progress: Vec<Apart>,
}

impl Barrier {
    /// Creates the barrier of `workers` workers that open `connections` connections in total.
    pub fn new(workers: usize, connections: usize) -> Self {
        Barrier {
            connections,
            opened: AtomicUsize::new(0),
            failed: AtomicUsize::new(0),
            preparing: AtomicBool::new(false),
            workers_prepared: AtomicUsize::new(0),
            begun: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            workers_done: AtomicUsize::new(0),
            progress: (0..workers).map(|_| Apart::default()).collect(),
        }
    }

    /// Counts a connection opened for the first time.
    pub fn connection_opened(&self) {
        self.opened.fetch_add(1, Relaxed);
    }

    /// Counts a connection that could not be opened.
    pub fn connection_failed(&self) {
        self.failed.fetch_add(1, Relaxed);
    }

    /// Returns the number of opened connections.
    pub fn opened(&self) -> usize {
        self.opened.load(Relaxed)
    }

    /// Returns the number of connections that could not be opened.
    pub fn failed(&self) -> usize {
        self.failed.load(Relaxed)
    }

    /// Returns whether every connection has either been opened or failed.
    pub fn all_decided(&self) -> bool {
        self.opened() + self.failed() >= self.connections
    }

    /// Starts the workers' preparation of the server.
    pub fn prepare(&self) {
        self.preparing.store(true, Relaxed);
    }

    /// Returns whether workers may prepare.
    pub fn may_prepare(&self) -> bool {
        self.preparing.load(Relaxed)
    }

    /// Counts a worker that has completed its preparation.
    pub fn worker_prepared(&self) {
        self.workers_prepared.fetch_add(1, Relaxed);
    }

    /// Returns whether all workers have prepared.
    pub fn all_prepared(&self) -> bool {
        self.workers_prepared.load(Relaxed) >= self.progress.len()
    }

    /// Starts the measurement.
    pub fn begin(&self) {
        self.begun.store(true, Relaxed);
    }

    /// Returns whether workers may measure.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Relaxed)
    }

    /// Ends the measurement early: workers drain.
    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }

    /// Returns whether workers are to stop.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    /// Counts a worker that has ended.
    pub fn worker_done(&self) {
        self.workers_done.fetch_add(1, Relaxed);
    }

    /// Returns whether all workers have ended.
    pub fn all_done(&self) -> bool {
        self.workers_done.load(Relaxed) >= self.progress.len()
    }

    /// Sets the progress of worker `worker`.
    pub fn progress(&self, worker: usize, done: u64) {
        self.progress[worker].0.store(done, Relaxed);
    }

    /// Returns the sum of all workers' progress.
    pub fn total_progress(&self) -> u64 {
        self.progress.iter().map(|worker| worker.0.load(Relaxed)).sum()
    }
}
