//! Sleeping and time limits, on the clock of the worker.

use crate::context;
use crate::executor;
use crate::timers::TimerKey;
use linerate_service::time::{Duration, Instant};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

/// Returns the time at which the current events began.
///
/// # Panics
/// Outside of a task.
pub fn now() -> Instant {
    context::executor(|executor| executor.now())
}

/// Waits for `duration`, on the clock of the worker: in a simulation, this is virtual time.
///
/// # Panics
/// Outside of a task.
pub fn sleep(duration: Duration) -> Sleep {
    sleep_until(now() + duration)
}

/// Waits until `deadline`, on the clock of the worker.
///
/// # Panics
/// Outside of a task.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, timer: None, executor: executor::current_id() }
}

/// Future of [`sleep`] and [`sleep_until`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Sleep {
    deadline: Instant,
    timer: Option<TimerKey>,
    executor: usize,
}

impl Sleep {
    /// Returns the time at which the future completes.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        context::executor(|executor| {
            assert_eq!(executor.id(), self.executor, "a timer belongs to the worker that created it");
            if executor.now() >= self.deadline {
                return executor.poll_operation(cx);
            }
            let mut replaced = None;
            let mut timers = executor.timers.borrow_mut();
            let waker = match self.timer {
                Some(key) => timers.waker(key),
                None => None,
            };
            match waker {
                Some(waker) if waker.will_wake(cx.waker()) => {}
                Some(waker) => replaced = Some(std::mem::replace(waker, cx.waker().clone())),
                None => self.timer = Some(timers.insert(self.deadline, cx.waker().clone())),
            }
            drop(timers);
            // Dropping a waker may run code of the application.
            drop(replaced);
            Poll::Pending
        })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let Some(timer) = self.timer else { return };
        context::try_executor(|executor| {
            if executor.id() == self.executor {
                let removed = executor.timers.borrow_mut().remove(timer);
                drop(removed);
            }
        });
    }
}

/// Error of [`timeout`]: the time has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("timed out")]
pub struct Elapsed;

/// Waits for `future`, for `duration` at most, and then drops it.
///
/// # Errors
/// [`Elapsed`] if `future` is not complete after `duration`.
///
/// # Panics
/// Outside of a task.
pub fn timeout<F: Future>(duration: Duration, future: F) -> impl Future<Output = Result<F::Output, Elapsed>> {
    let mut sleep = sleep(duration);
    async move {
        let mut future = pin!(future);
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => Pin::new(&mut sleep).poll(cx).map(|()| Err(Elapsed)),
        })
        .await
    }
}
