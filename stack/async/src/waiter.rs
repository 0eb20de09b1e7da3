//! Task that waits for an event.

use crate::executor::{Executor, Task};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

/// Task that waits for one kind of event. It is kept between events, so that waiting again costs one comparison.
#[derive(Default)]
pub(crate) struct Waiter {
    is_waiting: Cell<bool>,
    /// The task, if it waits by the waker of its executor.
    task: RefCell<Option<Rc<Task>>>,
    /// Waker of a future that replaces the waker of its task, such as one of several futures of a set.
    waker: Cell<Option<Waker>>,
}

impl Waiter {
    /// Registers the task of `cx` for the next event, in place of an earlier task.
    #[inline]
    pub fn wait(&self, executor: &Executor, cx: &Context<'_>) {
        if !self.wait_again(cx) {
            self.replace(executor, cx.waker());
        }
    }

    /// Registers the task of `cx` if it is the task that waited last. Returns whether it is.
    #[inline]
    pub fn wait_again(&self, cx: &Context<'_>) -> bool {
        let is_kept = self.task.borrow().as_ref().is_some_and(|task| task.is_woken_by(cx.waker()));
        if is_kept {
            self.is_waiting.set(true);
        }
        is_kept
    }

    #[inline(never)]
    fn replace(&self, executor: &Executor, waker: &Waker) {
        self.is_waiting.set(true);
        let task = executor.running_task(waker);
        let kept = self.waker.take();
        let new = match (&task, &kept) {
            (Some(_), _) => None,
            (None, Some(kept)) if kept.will_wake(waker) => kept.clone().into(),
            (None, _) => Some(waker.clone()),
        };
        self.waker.set(new);
        // Dropping a waker may run code of the application.
        let replaced = self.task.replace(task);
        drop((replaced, kept));
    }

    /// Wakes the task if it waits.
    #[inline]
    pub fn wake(&self) {
        if let Some(task) = self.take_waiting() {
            task.wake();
        }
    }

    /// Polls the task if it waits: at once, unless other tasks were woken before.
    #[inline]
    pub fn wake_and_poll(&self, executor: &Executor) {
        if let Some(task) = self.take_waiting() {
            executor.poll_or_list(&task);
        }
    }

    /// Ends waiting. Returns the task that waited, or wakes the future.
    #[inline]
    fn take_waiting(&self) -> Option<Rc<Task>> {
        if !self.is_waiting.replace(false) {
            return None;
        }
        let task = self.task.borrow().clone();
        if task.is_none() {
            self.wake_future();
        }
        task
    }

    #[inline(never)]
    fn wake_future(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake_by_ref();
            // A waker may run code that waits again.
            let newer = self.waker.take();
            self.waker.set(newer.or(Some(waker)));
        }
    }
}
