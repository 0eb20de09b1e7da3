//! Tasks.

use crate::context;
use crate::wake::TaskKey;
use linerate_service::Stop;
use slotmap::DefaultKey;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Runs `future` as a task of this worker, concurrently with the current one. It need not be `Send`. The task goes on
/// if the result is dropped.
///
/// A task that panics ends: the connections whose streams it holds are reset, and all other tasks go on.
///
/// # Panics
/// Outside of a task.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let outcome = Rc::new(Outcome { result: Cell::new(None), waker: RefCell::default() });
    let completion = Completion(outcome.clone());
    let task = context::executor(|executor| {
        executor.spawn(Box::pin(async move {
            let completion = completion;
            let output = future.await;
            completion.0.complete(Ok(output));
        }))
    });
    JoinHandle { outcome, task, executor: crate::executor::current_id() }
}

/// Lets the other tasks and the worker run before this one goes on.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Waits until the worker drains, if it follows a [`Stop`]
/// ([`AsyncService::with_stop`](crate::AsyncService::with_stop)). Tasks then finish what they have begun.
///
/// # Panics
/// Outside of a task.
pub fn draining() -> Draining {
    Draining { waiter: None, executor: crate::executor::current_id() }
}

/// Future of [`draining`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Draining {
    waiter: Option<DefaultKey>,
    executor: usize,
}

impl Future for Draining {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        context::executor(|executor| {
            assert_eq!(executor.id(), self.executor, "the future belongs to the worker that created it");
            let drain = &executor.registry.drain;
            if drain.is_draining() {
                return executor.poll_operation(cx);
            }
            self.waiter = Some(drain.wait(self.waiter, cx.waker()));
            Poll::Pending
        })
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter else { return };
        context::try_executor(|executor| {
            if executor.id() == self.executor {
                executor.registry.drain.leave(waiter);
            }
        });
    }
}

pub(crate) fn follow(executor: &crate::executor::Executor, stop: Stop) {
    executor.registry.drain.follow(stop);
}

struct Outcome<T> {
    result: Cell<Option<Result<T, JoinError>>>,
    waker: RefCell<Option<Waker>>,
}

impl<T> Outcome<T> {
    fn complete(&self, result: Result<T, JoinError>) {
        self.result.set(Some(result));
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Reports the end of a task that is dropped before it is complete.
struct Completion<T>(Rc<Outcome<T>>);

impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        let error = match context::try_executor(|executor| executor.is_unwinding()) {
            Some(true) => JoinError::Panicked,
            _ => JoinError::Aborted,
        };
        let result = self.0.result.take();
        self.0.complete(result.unwrap_or(Err(error)));
    }
}

/// Result of a task, and the means to abort it.
#[derive(Debug)]
pub struct JoinHandle<T> {
    outcome: Rc<Outcome<T>>,
    task: TaskKey,
    executor: usize,
}

impl<T> std::fmt::Debug for Outcome<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Outcome")
    }
}

impl<T> JoinHandle<T> {
    /// Drops the task and everything that it holds; a task that runs is dropped when it next waits. Does nothing if the
    /// task has ended.
    pub fn abort(&self) {
        context::try_executor(|executor| {
            if executor.id() == self.executor {
                executor.abort(self.task);
            }
        });
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.outcome.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                let replaced = self.outcome.waker.borrow_mut().replace(cx.waker().clone());
                drop(replaced);
                Poll::Pending
            }
        }
    }
}

/// Reason that a task has no output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "messages explain the fields")]
pub enum JoinError {
    #[error("the task panicked")]
    Panicked,
    #[error("the task was aborted")]
    Aborted,
}
