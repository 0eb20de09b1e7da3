//! Executor of one worker: its tasks, in the order in which they were woken.

use crate::context;
use crate::registry::Registry;
use crate::timers::Timers;
use crate::wake::{RemoteWakes, TaskKey, TaskWaker, Woken};
use linerate_bypass::AppSender;
use linerate_bypass::time::{Duration, Instant};
use slotmap::SlotMap;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Polls of tasks after one event. Further tasks run in the next turn, after the worker has served its port.
const POLLS_PER_EVENT: usize = 64;
/// Operations that complete in one poll of a task. The next operation yields, so that other connections are served.
const OPERATIONS_PER_POLL: u32 = 128;

type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

struct Task {
    future: TaskFuture,
    waker: Waker,
    state: Arc<TaskWaker>,
}

struct TaskEntry {
    /// `None` while the task is polled.
    task: Option<Box<Task>>,
    /// True if the task was aborted while it was polled.
    is_aborted: bool,
}

/// Tasks of one worker with everything that they wait for.
pub(crate) struct Executor {
    pub remote: Arc<RemoteWakes>,
    pub timers: RefCell<Timers>,
    pub registry: Registry,
    tasks: RefCell<SlotMap<TaskKey, TaskEntry>>,
    ready: RefCell<VecDeque<TaskKey>>,
    /// Tasks that woke themselves, to run in the next turn.
    yielded: RefCell<VecDeque<TaskKey>>,
    running: Cell<Option<TaskKey>>,
    /// Operations left in this poll.
    operations: Cell<u32>,
    /// True while the remains of a panicked task are dropped.
    is_unwinding: Cell<bool>,
    now: Cell<Instant>,
    /// Point of the standard library's clock that stands for the origin of the worker's clock.
    #[cfg(feature = "hyper")]
    origin: std::time::Instant,
}

impl Executor {
    pub fn new(worker: usize, mailbox: AppSender<Woken>) -> Self {
        Executor {
            remote: Arc::new(RemoteWakes::new(worker, mailbox)),
            timers: RefCell::default(),
            registry: Registry::default(),
            tasks: RefCell::default(),
            ready: RefCell::default(),
            yielded: RefCell::default(),
            running: Cell::new(None),
            operations: Cell::new(0),
            is_unwinding: Cell::new(false),
            now: Cell::new(Instant::ZERO),
            #[cfg(feature = "hyper")]
            origin: std::time::Instant::now(),
        }
    }

    /// Returns the identity of the executor, which no other executor has while a connection of this one exists.
    #[inline]
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.remote).addr()
    }

    /// Returns the time at which the current events began.
    pub fn now(&self) -> Instant {
        self.now.get()
    }

    /// Returns the time at which the current events began as a point of the standard library's clock. Differences
    /// between such points are those of the worker's clock.
    #[cfg(feature = "hyper")]
    pub fn std_now(&self) -> std::time::Instant {
        self.origin + self.now.get().since(Instant::ZERO)
    }

    #[inline]
    pub fn set_now(&self, now: Instant) {
        self.now.set(now);
    }

    /// Returns whether a panic is the reason why a value of a task is dropped.
    pub fn is_unwinding(&self) -> bool {
        self.is_unwinding.get() || std::thread::panicking()
    }

    /// Adds a task, which is polled after the current one.
    pub fn spawn(&self, future: TaskFuture) -> TaskKey {
        let key = self.tasks.borrow_mut().insert_with_key(|key| {
            let state = Arc::new(TaskWaker::scheduled(key, self.remote.clone()));
            TaskEntry {
                task: Some(Box::new(Task { future, waker: Waker::from(state.clone()), state })),
                is_aborted: false,
            }
        });
        self.ready.borrow_mut().push_back(key);
        key
    }

    /// Drops the task, at once or at the end of its poll.
    pub fn abort(&self, key: TaskKey) {
        let task = {
            let mut tasks = self.tasks.borrow_mut();
            match tasks.get_mut(key) {
                Some(entry) if entry.task.is_none() => {
                    entry.is_aborted = true;
                    None
                }
                _ => tasks.remove(key),
            }
        };
        self.drop_task(task);
    }

    /// Lists a task to be polled: after the tasks that are listed, or in the next turn if it has woken itself.
    pub fn schedule(&self, key: TaskKey) {
        let list = if self.running.get() == Some(key) { &self.yielded } else { &self.ready };
        list.borrow_mut().push_back(key);
    }

    /// Accounts for one operation of the running task. Returns `Pending`, and wakes the task for the next turn, if it
    /// has used up its operations.
    #[inline]
    pub fn poll_operation(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self.operations.get().checked_sub(1) {
            Some(left) => {
                self.operations.set(left);
                Poll::Ready(())
            }
            None => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }

    /// Lists the tasks that run in this turn without an event: those that yielded, that other threads woke, and whose
    /// timers have expired.
    pub fn begin_turn(&self) {
        self.remote.take(|key| self.schedule(key));
        self.ready.borrow_mut().append(&mut self.yielded.borrow_mut());
        while let Some(waker) = self.pop_expired() {
            waker.wake();
        }
    }

    fn pop_expired(&self) -> Option<Waker> {
        self.timers.borrow_mut().pop_expired(self.now.get())
    }

    /// Returns whether [`begin_turn`](Self::begin_turn) and [`run`](Self::run) would do nothing.
    #[inline]
    pub fn is_idle(&self, now: Instant) -> bool {
        !self.remote.is_pending()
            && self.ready.borrow().is_empty()
            && self.yielded.borrow().is_empty()
            && self.timers.borrow().next().is_none_or(|at| at > now)
    }

    /// Returns the time until the next turn is needed without an event.
    #[inline]
    pub fn idle_time(&self) -> Option<Duration> {
        if !self.ready.borrow().is_empty() || !self.yielded.borrow().is_empty() {
            return Some(Duration::ZERO);
        }
        self.timers.borrow().next().map(|at| at.since(self.now.get()))
    }

    /// Polls the tasks that are listed, and those that they wake, up to a limit.
    pub fn run(&self) {
        for _ in 0..POLLS_PER_EVENT {
            let next = self.ready.borrow_mut().pop_front();
            let Some(key) = next else { break };
            self.poll(key);
        }
    }

    fn poll(&self, key: TaskKey) {
        let task = self.tasks.borrow_mut().get_mut(key).and_then(|entry| entry.task.take());
        let Some(mut task) = task else { return };
        task.state.start_poll();
        self.operations.set(OPERATIONS_PER_POLL);
        self.running.set(Some(key));
        let mut cx = Context::from_waker(&task.waker);
        let polled = catch_unwind(AssertUnwindSafe(|| task.future.as_mut().poll(&mut cx)));
        self.running.set(None);
        if let Ok(Poll::Pending) = polled
            && let Some(entry) = self.tasks.borrow_mut().get_mut(key)
            && !entry.is_aborted
        {
            entry.task = Some(task);
            return;
        }
        self.tasks.borrow_mut().remove(key);
        self.is_unwinding.set(polled.is_err());
        self.drop_task(task);
        self.is_unwinding.set(false);
    }

    /// Drops a task that has ended. A panic of a destructor, which the panic hook reports, ends nothing else.
    fn drop_task<T>(&self, task: T) {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(task)));
    }
}

impl Drop for Executor {
    /// Drops the tasks while the rest of the executor exists.
    fn drop(&mut self) {
        let tasks = std::mem::take(self.tasks.get_mut());
        drop(tasks);
    }
}

/// Returns the identity of the current executor.
///
/// # Panics
/// Outside of a turn.
pub(crate) fn current_id() -> usize {
    context::executor(Executor::id)
}
