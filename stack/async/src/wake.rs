//! Wakers of tasks.

use crate::context;
use crossbeam_queue::SegQueue;
use linerate_service::AppSender;
use slotmap::new_key_type;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

/// Message of an [`AsyncService`](crate::AsyncService): another thread has woken a task.
#[derive(Debug)]
pub struct Woken(());

new_key_type! {
    pub(crate) struct TaskKey;
}

/// Tasks that other threads have woken. A task is listed at most once, so the number of tasks bounds the list.
pub(crate) struct RemoteWakes {
    woken: SegQueue<TaskKey>,
    /// True from the first entry until the worker takes the entries.
    pending: AtomicBool,
    worker: usize,
    mailbox: AppSender<Woken>,
}

impl RemoteWakes {
    pub fn new(worker: usize, mailbox: AppSender<Woken>) -> Self {
        RemoteWakes { woken: SegQueue::new(), pending: AtomicBool::new(false), worker, mailbox }
    }

    fn push(&self, task: TaskKey) {
        self.woken.push(task);
        if !self.pending.swap(true, Ordering::AcqRel) {
            // The message ends the sleep of the worker. A worker with a full mailbox does not sleep, and reads the list
            // in its next turn.
            let _ = self.mailbox.send_to_worker(self.worker, Woken(()));
        }
    }

    /// Returns whether there are entries.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// Calls `schedule` with each task of the list and empties it.
    pub fn take(&self, mut schedule: impl FnMut(TaskKey)) {
        // The flag is cleared first: an entry that is added meanwhile sets it again.
        if self.pending.swap(false, Ordering::AcqRel) {
            while let Some(task) = self.woken.pop() {
                schedule(task);
            }
        }
    }
}

/// Waker of one task, for use on any thread.
pub(crate) struct TaskWaker {
    pub key: TaskKey,
    /// True while the task is scheduled.
    scheduled: AtomicBool,
    remote: Arc<RemoteWakes>,
}

impl TaskWaker {
    /// Creates the waker of a task that is scheduled already.
    pub fn scheduled(key: TaskKey, remote: Arc<RemoteWakes>) -> Self {
        TaskWaker { key, scheduled: AtomicBool::new(true), remote }
    }

    #[inline]
    pub fn is_scheduled(&self) -> bool {
        self.scheduled.load(Ordering::Relaxed)
    }

    /// Allows the task to be scheduled again. Memory accesses before an earlier wake-up are visible to the caller.
    #[inline]
    pub fn start_poll(&self) {
        self.scheduled.swap(false, Ordering::AcqRel);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    #[inline]
    fn wake_by_ref(self: &Arc<Self>) {
        if self.scheduled.swap(true, Ordering::AcqRel) {
            return;
        }
        let is_local = context::try_executor(|executor| {
            let is_own = Arc::ptr_eq(&executor.remote, &self.remote);
            if is_own {
                executor.schedule(self.key);
            }
            is_own
        });
        if is_local != Some(true) {
            self.remote.push(self.key);
        }
    }
}
