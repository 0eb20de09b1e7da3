//! Waits of the program's threads, which run the turns of the worker.

use crate::descriptors;
use crate::runtime::{self, Runtime};
use crate::signals::Interruptions;
use crate::turns::Waiter;
use libc::{c_int, timespec};
use rustix::io::Errno;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Returns a duration as a time of C.
pub fn time_of(duration: Duration) -> timespec {
    timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}

/// End of a wait.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// Returns the deadline after `timeout`, or none.
    pub fn after(timeout: Option<Duration>) -> Self {
        Deadline(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// Returns the time until the deadline.
    pub fn left(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }

    pub fn exists(self) -> bool {
        self.0.is_some()
    }

    pub fn has_passed(self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }
}

/// Repeats `attempt`, with a turn of the worker after each, until it does not return `EAGAIN`, `deadline` passes, or a
/// handler that ends calls has run.
pub fn until_ready<R>(
    deadline: Deadline,
    mut attempt: impl FnMut(&mut Runtime) -> Result<R, Errno>,
) -> Result<R, Errno> {
    let interruptions = Interruptions::so_far();
    let mut waiter = Waiter::new(deadline);
    loop {
        let result = runtime::look(|runtime| {
            let first = attempt(runtime);
            let is_busy = matches!(first, Err(Errno::AGAIN)) && waiter.turn(runtime);
            let result = if is_busy { attempt(runtime) } else { first };
            match result {
                Err(Errno::AGAIN) => waiter.rest(runtime),
                _ => waiter.leave(runtime),
            }
            result
        });
        match result {
            Err(Errno::AGAIN) if interruptions.ends_calls(deadline.exists()) => return Err(Errno::INTR),
            Err(Errno::AGAIN) if !runtime::is_inside() && !deadline.has_passed() => {
                waiter.sleep(&[], std::ptr::null());
            }
            result => return result,
        }
    }
}

/// Makes one attempt, and another after a turn of the worker if it returns `EAGAIN`.
pub fn once<R>(mut attempt: impl FnMut(&mut Runtime) -> Result<R, Errno>) -> Result<R, Errno> {
    runtime::enter(|runtime| match attempt(runtime) {
        Err(Errno::AGAIN) => {
            runtime.turn();
            attempt(runtime)
        }
        result => result,
    })
}

/// Times at which a wait asks the kernel for events of its descriptors, which takes a system call.
#[derive(Debug)]
pub struct KernelQueries {
    has_items: bool,
    /// Turns without work until the next query.
    idle_turns: u32,
}

/// Interval between two queries while the worker is busy.
const BUSY_PERIOD: Duration = Duration::from_micros(100);
/// Turns without work between two queries.
const IDLE_TURNS: u32 = 16;

thread_local! {
    /// Time of the last query of this thread.
    static LAST_QUERY: Cell<Option<Instant>> = const { Cell::new(None) };
}

impl KernelQueries {
    /// Queries of an epoll set.
    pub fn of_epoll(set: c_int) -> Self {
        Self::of_some(descriptors::has_kernel_items(set))
    }

    /// Queries of descriptors, if there are any.
    pub fn of_some(has_items: bool) -> Self {
        KernelQueries { has_items, idle_turns: 0 }
    }

    /// Returns whether the kernel should be asked now. `has_events` is true if the stack has events to return,
    /// `is_busy` if the last turn did anything.
    pub fn is_due(&mut self, has_events: bool, is_busy: bool) -> bool {
        if !self.has_items {
            return false;
        }
        if !has_events && !is_busy {
            let is_due = self.idle_turns == 0;
            self.idle_turns = if is_due { IDLE_TURNS } else { self.idle_turns - 1 };
            return is_due;
        }
        let now = Instant::now();
        let is_due = LAST_QUERY.get().is_none_or(|last| now.duration_since(last) >= BUSY_PERIOD);
        if is_due {
            LAST_QUERY.set(Some(now));
        }
        is_due
    }
}
