//! Quiescing of a port's queue pairs, so that its devices can be removed and created again.
//!
//! A device at one end of a link is created again after the peer has disconnected and reconnected, while worker threads
//! continue to poll their queue pairs. If the epoch is even, the devices exist; if it is odd, they must not be used. A
//! queue pair compares the epoch, one load per burst, with the last epoch that it acknowledged. If they differ, it
//! acknowledges the new epoch before it does anything else. Once all queue pairs have acknowledged an odd epoch, none
//! is within a burst, and none starts one.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// DPDK port and queue number of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueId {
    pub port: u16,
    pub queue: u16,
}

/// Quiescence of a port, shared by its queue pairs and its supervisor.
#[derive(Debug)]
pub(crate) struct Quiesce {
    epoch: AtomicU64,
    queues: Box<[QueueState]>,
}

/// State of one queue pair, on its own cache line.
#[derive(Debug)]
#[repr(align(64))]
struct QueueState {
    /// Last epoch that the queue pair acknowledged.
    seen: AtomicU64,
    /// [`QueueId`] as of the last even epoch.
    queue_id: AtomicU32,
}

/// Acknowledgement of a queue pair that does not exist.
const UNREGISTERED: u64 = u64::MAX;

impl Quiesce {
    /// Creates the state for queue pairs with `queue_ids`, none of which exists yet. The devices may be used.
    pub fn new(queue_ids: &[QueueId]) -> Self {
        let queue_state = |queue_id: &QueueId| QueueState {
            seen: AtomicU64::new(UNREGISTERED),
            queue_id: AtomicU32::new(pack(*queue_id)),
        };
        Quiesce { epoch: AtomicU64::new(0), queues: queue_ids.iter().map(queue_state).collect() }
    }

    /// Starts to quiesce. The devices are unused once [`is_quiescent`](Self::is_quiescent) returns `true`.
    pub fn begin(&self) {
        debug_assert!(self.epoch.load(Ordering::Relaxed).is_multiple_of(2));
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Returns whether every queue pair has acknowledged.
    pub fn is_quiescent(&self) -> bool {
        let epoch = self.epoch.load(Ordering::Relaxed);
        // Pairs with the fence of `register`.
        fence(Ordering::SeqCst);
        // Acquire: accesses of queue pairs to the devices happen before those of the supervisor.
        self.queues.iter().all(|queue_state| queue_state.seen.load(Ordering::Acquire) >= epoch)
    }

    /// Ends quiescence. The queue pairs have `queue_ids` now.
    pub fn resume(&self, queue_ids: &[QueueId]) {
        for (queue_state, queue_id) in self.queues.iter().zip(queue_ids) {
            queue_state.queue_id.store(pack(*queue_id), Ordering::Relaxed);
        }
        // Publishes the queue ids and all changes of the devices.
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Registers queue pair `index`.
    pub fn register(&self, index: usize) -> QueueView {
        let queue_state = &self.queues[index];
        // Either the supervisor sees this value and waits for this queue pair, or the load below sees the epoch that
        // the supervisor began.
        queue_state.seen.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let epoch = self.epoch.load(Ordering::Acquire);
        let mut view = QueueView { seen: epoch, queue_id: None };
        self.acknowledge(index, epoch, &mut view);
        view
    }

    /// Unregisters queue pair `index`.
    pub fn unregister(&self, index: usize) {
        self.queues[index].seen.store(UNREGISTERED, Ordering::Release);
    }

    /// Returns the DPDK queue of queue pair `index`, or `None` while the devices must not be used.
    #[inline]
    pub fn queue_id(&self, index: usize, view: &mut QueueView) -> Option<QueueId> {
        let epoch = self.epoch.load(Ordering::Acquire);
        if epoch != view.seen {
            self.acknowledge(index, epoch, view);
        }
        view.queue_id
    }

    #[cold]
    fn acknowledge(&self, index: usize, epoch: u64, view: &mut QueueView) {
        let queue_state = &self.queues[index];
        let is_open = epoch.is_multiple_of(2);
        view.queue_id = is_open.then(|| unpack(queue_state.queue_id.load(Ordering::Relaxed)));
        view.seen = epoch;
        // Accesses of this queue pair to the devices happen before those of the supervisor.
        queue_state.seen.store(epoch, Ordering::Release);
    }
}

/// Last state that a queue pair has seen.
#[derive(Debug)]
pub(crate) struct QueueView {
    /// Last epoch that the queue pair acknowledged.
    pub(crate) seen: u64,
    queue_id: Option<QueueId>,
}

fn pack(queue_id: QueueId) -> u32 {
    u32::from(queue_id.port) << 16 | u32::from(queue_id.queue)
}

fn unpack(queue_id: u32) -> QueueId {
    QueueId { port: (queue_id >> 16) as u16, queue: queue_id as u16 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    const FIRST: QueueId = QueueId { port: 1, queue: 2 };
    const SECOND: QueueId = QueueId { port: 3, queue: 4 };

    #[test]
    fn port_is_quiescent_once_every_queue_pair_has_acknowledged() {
        let quiesce = Quiesce::new(&[FIRST, FIRST]);
        let (mut first, mut second) = (quiesce.register(0), quiesce.register(1));
        assert_eq!(quiesce.queue_id(0, &mut first), Some(FIRST));
        quiesce.begin();
        assert!(!quiesce.is_quiescent());
        assert_eq!(quiesce.queue_id(0, &mut first), None);
        assert!(!quiesce.is_quiescent());
        assert_eq!(quiesce.queue_id(1, &mut second), None);
        assert!(quiesce.is_quiescent());
        quiesce.resume(&[SECOND, FIRST]);
        assert_eq!((quiesce.queue_id(0, &mut first), quiesce.queue_id(1, &mut second)), (Some(SECOND), Some(FIRST)));
    }

    #[test]
    fn unregistered_queue_pairs_are_not_waited_for() {
        let quiesce = Quiesce::new(&[FIRST, FIRST]);
        quiesce.register(0);
        quiesce.unregister(0);
        quiesce.begin();
        assert!(quiesce.is_quiescent());
        let mut late = quiesce.register(1);
        assert!(quiesce.is_quiescent());
        assert_eq!(quiesce.queue_id(1, &mut late), None);
    }

    #[test]
    fn no_queue_pair_uses_devices_while_quiescent() {
        const ROUNDS: usize = 200;
        let quiesce = Quiesce::new(&[FIRST; 2]);
        let inside = AtomicUsize::new(0);
        let rounds = AtomicUsize::new(0);
        thread::scope(|scope| {
            for index in 0..2 {
                let (quiesce, inside, rounds) = (&quiesce, &inside, &rounds);
                scope.spawn(move || {
                    let mut view = quiesce.register(index);
                    while rounds.load(Ordering::Relaxed) < ROUNDS {
                        if quiesce.queue_id(index, &mut view).is_some() {
                            inside.fetch_add(1, Ordering::Relaxed);
                            std::hint::spin_loop();
                            inside.fetch_sub(1, Ordering::Relaxed);
                        }
                    }
                    quiesce.unregister(index);
                });
            }
            for _ in 0..ROUNDS {
                quiesce.begin();
                while !quiesce.is_quiescent() {
                    thread::yield_now();
                }
                for _ in 0..100 {
                    assert_eq!(inside.load(Ordering::Relaxed), 0);
                }
                quiesce.resume(&[FIRST; 2]);
                rounds.fetch_add(1, Ordering::Relaxed);
                thread::yield_now();
            }
        });
    }
}
