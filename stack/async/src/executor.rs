//! Executor of one worker: its tasks, in the order in which they were woken.

use crate::context::{self, Unconsumed};
use crate::registry::Registry;
use crate::short_reads::ShortReads;
use crate::timers::Timers;
use crate::wake::{RemoteWakes, TaskKey, TaskWaker, Woken};
use linerate_service::AppSender;
use linerate_service::time::{Duration, Instant};
use slotmap::SlotMap;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Polls of tasks after one event. Further tasks run in the next turn, after the worker has served its port.
const POLLS_PER_EVENT: usize = 64;
/// Operations that complete in one poll of a task. The next operation yields, so that other connections are served.
const OPERATIONS_PER_POLL: u32 = 128;

type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

pub(crate) struct Task {
    key: TaskKey,
    /// Borrowed while the task is polled; `None` once it has ended.
    future: RefCell<Option<TaskFuture>>,
    waker: Waker,
    state: Arc<TaskWaker>,
    /// True if the task was aborted while it was polled.
    is_aborted: Cell<bool>,
}

impl Task {
    /// Returns whether `waker` wakes this task.
    #[inline]
    pub fn is_woken_by(&self, waker: &Waker) -> bool {
        self.waker.will_wake(waker)
    }

    /// Schedules the task.
    pub fn wake(&self) {
        self.waker.wake_by_ref();
    }
}

/// Tasks of one worker with everything that they wait for.
pub(crate) struct Executor {
    pub remote: Arc<RemoteWakes>,
    pub timers: RefCell<Timers>,
    pub registry: Registry,
    /// Received bytes that the running task has copied, and that the transport has yet to consume.
    pub unconsumed: Unconsumed,
    /// Copies of short received slices.
    pub short_reads: ShortReads,
    tasks: RefCell<SlotMap<TaskKey, Rc<Task>>>,
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
            unconsumed: Unconsumed::default(),
            short_reads: ShortReads::default(),
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

    /// Returns the time at which the current events began as a point of the standard library's clock. The difference
    /// between two returned points equals the time passed on the worker's clock.
    #[cfg(feature = "hyper")]
    pub fn std_now(&self) -> std::time::Instant {
        self.origin + self.now.get().since(Instant::ZERO)
    }

    #[inline]
    pub fn set_now(&self, now: Instant) {
        self.now.set(now);
    }

    /// Returns whether values of a task are being dropped because of a panic.
    pub fn is_unwinding(&self) -> bool {
        self.is_unwinding.get() || std::thread::panicking()
    }

    /// Adds a task, which is polled after the current one.
    pub fn spawn(&self, future: TaskFuture) -> TaskKey {
        let key = self.tasks.borrow_mut().insert_with_key(|key| {
            let state = Arc::new(TaskWaker::scheduled(key, self.remote.clone()));
            Rc::new(Task {
                key,
                future: RefCell::new(Some(future)),
                waker: Waker::from(state.clone()),
                state,
                is_aborted: Cell::new(false),
            })
        });
        self.ready.borrow_mut().push_back(key);
        key
    }

    /// Drops the task, at once or at the end of its poll.
    pub fn abort(&self, key: TaskKey) {
        let task = self.task(key);
        let Some(task) = task else { return };
        match task.future.try_borrow_mut().map(|mut future| future.take()) {
            Ok(future) => {
                self.remove(key);
                drop_future(future);
            }
            Err(_) => task.is_aborted.set(true),
        }
    }

    fn task(&self, key: TaskKey) -> Option<Rc<Task>> {
        self.tasks.borrow().get(key).cloned()
    }

    fn remove(&self, key: TaskKey) {
        let removed = self.tasks.borrow_mut().remove(key);
        drop(removed);
    }

    /// Returns the running task, if `waker` wakes it.
    pub fn running_task(&self, waker: &Waker) -> Option<Rc<Task>> {
        self.task(self.running.get()?).filter(|task| task.is_woken_by(waker))
    }

    /// Schedules a task: after the tasks that are already scheduled, or in the next turn if it has woken itself.
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

    /// Schedules the tasks that run in this turn without an event: tasks that yielded, that other threads woke, or that
    /// have an expired timer.
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

    /// Polls the scheduled tasks, and the tasks that they wake, up to a limit.
    pub fn run(&self) {
        let mut polls = 0..POLLS_PER_EVENT;
        self.guard(|| self.poll_listed(&mut polls));
    }

    /// Calls `event` for each of `items`, and polls the tasks that it has woken, up to a limit for each item.
    #[inline]
    pub fn run_each<T>(&self, items: impl IntoIterator<Item = T>, event: impl Fn(T)) {
        let mut items = items.into_iter();
        let mut polls = 0..0;
        self.guard(|| {
            // After a panic, the tasks that the same event has woken are next.
            self.poll_listed(&mut polls);
            for item in &mut items {
                polls = 0..POLLS_PER_EVENT;
                event(item);
                self.poll_listed(&mut polls);
            }
        });
    }

    /// Calls `work`. After a panic of a task, ends the task and calls `work` again.
    #[inline]
    fn guard(&self, mut work: impl FnMut()) {
        while let Err(panic) = catch_unwind(AssertUnwindSafe(&mut work)) {
            let Some(key) = self.running.take() else { resume_unwind(panic) };
            if let Some(task) = self.task(key) {
                self.is_unwinding.set(true);
                self.end(&task);
                self.is_unwinding.set(false);
            }
        }
    }

    /// Polls the scheduled tasks in order, at most one for each element of `polls`.
    #[inline]
    fn poll_listed(&self, polls: &mut Range<usize>) {
        while !self.ready.borrow().is_empty() && polls.next().is_some() {
            self.poll_next();
        }
    }

    /// Polls the task that was woken first.
    #[inline(never)]
    fn poll_next(&self) {
        let next = self.ready.borrow_mut().pop_front();
        if let Some(task) = next.and_then(|key| self.task(key)) {
            task.state.start_poll();
            self.poll(&task);
        }
    }

    /// Polls `task`, for which an event has occurred, at once if no task is scheduled; schedules it otherwise.
    #[inline]
    pub fn poll_or_list(&self, task: &Task) {
        if self.ready.borrow().is_empty() && !task.state.is_scheduled() {
            self.poll(task);
        } else {
            task.wake();
        }
    }

    #[inline]
    fn poll(&self, task: &Task) {
        let mut future = task.future.borrow_mut();
        let Some(pending) = &mut *future else { return };
        self.operations.set(OPERATIONS_PER_POLL);
        self.running.set(Some(task.key));
        let polled = pending.as_mut().poll(&mut Context::from_waker(&task.waker));
        drop(future);
        self.running.set(None);
        if self.unconsumed.is_some() {
            context::turn(|turn| turn.consume());
        }
        if polled.is_ready() || task.is_aborted.get() {
            self.end(task);
        }
    }

    #[inline(never)]
    fn end(&self, task: &Task) {
        self.remove(task.key);
        let future = task.future.borrow_mut().take();
        drop_future(future);
        if self.unconsumed.is_some() {
            context::turn(|turn| turn.consume());
        }
    }
}

/// Drops a future. A panic of its destructor, which the panic hook reports, does not propagate.
fn drop_future(future: Option<TaskFuture>) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
}

impl Drop for Executor {
    /// Drops the tasks while the rest of the executor exists.
    fn drop(&mut self) {
        for (_, task) in std::mem::take(self.tasks.get_mut()) {
            let future = task.future.borrow_mut().take();
            drop(future);
        }
    }
}

/// Returns the identity of the current executor.
///
/// # Panics
/// Outside of a turn.
pub(crate) fn current_id() -> usize {
    context::executor(Executor::id)
}
