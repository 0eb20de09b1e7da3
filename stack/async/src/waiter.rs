//! Task that waits for an event.

use std::cell::Cell;
use std::task::{Context, Waker};

/// Waker of the task that waits for one kind of event. The waker is kept between events, so that a task that waits
/// again does not clone it again.
#[derive(Default)]
pub(crate) struct Waiter {
    waker: Cell<Option<Waker>>,
    is_waiting: Cell<bool>,
}

impl Waiter {
    /// Registers the task of `cx` for the next event, in place of an earlier task.
    #[inline]
    pub fn wait(&self, cx: &Context<'_>) {
        self.is_waiting.set(true);
        let waker = self.waker.take().filter(|waker| waker.will_wake(cx.waker()));
        self.waker.set(Some(waker.unwrap_or_else(|| cx.waker().clone())));
    }

    /// Wakes the task if it waits.
    #[inline]
    pub fn wake(&self) {
        if !self.is_waiting.replace(false) {
            return;
        }
        if let Some(waker) = self.waker.take() {
            waker.wake_by_ref();
            // A waker may run code that waits again.
            let newer = self.waker.take();
            self.waker.set(newer.or(Some(waker)));
        }
    }
}
