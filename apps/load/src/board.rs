//! What the workers of a load, and whoever watches them, tell each other.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// A number that one worker writes often, apart from the others' so that they do not share a cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart(AtomicU64);

/// Flags and counts of one load. Nothing in them guards other memory, so that relaxed order is enough.
#[derive(Debug)]
pub struct Board {
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

impl Board {
    /// A board for `workers` workers that are to open `connections` connections together.
    pub fn new(workers: usize, connections: usize) -> Self {
        Board {
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

    /// A worker has opened one of its connections for the first time.
    pub fn connection_opened(&self) {
        self.opened.fetch_add(1, Relaxed);
    }

    /// A worker could not open one of its connections.
    pub fn connection_failed(&self) {
        self.failed.fetch_add(1, Relaxed);
    }

    /// Connections that were opened.
    pub fn opened(&self) -> usize {
        self.opened.load(Relaxed)
    }

    /// Connections that could not be opened.
    pub fn failed(&self) -> usize {
        self.failed.load(Relaxed)
    }

    /// Whether every connection has been opened or has failed.
    pub fn all_decided(&self) -> bool {
        self.opened() + self.failed() >= self.connections
    }

    /// Lets the workers prepare the server.
    pub fn prepare(&self) {
        self.preparing.store(true, Relaxed);
    }

    /// Whether the workers may prepare.
    pub fn may_prepare(&self) -> bool {
        self.preparing.load(Relaxed)
    }

    /// A worker has prepared all that it has to, or can.
    pub fn worker_prepared(&self) {
        self.workers_prepared.fetch_add(1, Relaxed);
    }

    /// Whether all workers have prepared.
    pub fn all_prepared(&self) -> bool {
        self.workers_prepared.load(Relaxed) >= self.progress.len()
    }

    /// Lets the workers begin to measure.
    pub fn begin(&self) {
        self.begun.store(true, Relaxed);
    }

    /// Whether the workers may measure.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Relaxed)
    }

    /// Has the workers stop measuring and drain before their time is over.
    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }

    /// Whether the workers are to stop.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    /// A worker has nothing more to do.
    pub fn worker_done(&self) {
        self.workers_done.fetch_add(1, Relaxed);
    }

    /// Whether no worker has anything more to do.
    pub fn all_done(&self) -> bool {
        self.workers_done.load(Relaxed) >= self.progress.len()
    }

    /// Worker `worker` has done `done` so far.
    pub fn progress(&self, worker: usize, done: u64) {
        self.progress[worker].0.store(done, Relaxed);
    }

    /// What all workers have done so far.
    pub fn total_progress(&self) -> u64 {
        self.progress.iter().map(|worker| worker.0.load(Relaxed)).sum()
    }
}
