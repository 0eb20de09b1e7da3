//! Distribution of the worker's turns among waiting threads.
//!
//! One waiting thread, the driver, runs the turns. The others sleep in the kernel, and the driver wakes those for which
//! there are events, as does the helper thread while no thread of the program waits.
//!
//! With `--idle wait` the driver sleeps, too, until a packet arrives, or another thread has operated on a socket, after
//! which there must be a turn.

use crate::runtime::{self, Runtime};
use crate::waiting::{Deadline, time_of};
use crate::{descriptors, real};
use libc::{c_int, epoll_event, nfds_t, pollfd, sigset_t};
use linerate_sockets::EpollId;
use rustix::event::{EventfdFlags, eventfd};
use slab::Slab;
use std::cell::OnceCell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread::Thread;
use std::time::Duration;

thread_local! {
    static WAKE: OnceCell<Option<Wake>> = const { OnceCell::new() };
}

/// Descriptor whose events wake a thread.
struct Wake(OwnedFd);

impl Wake {
    fn new() -> Option<Wake> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        descriptors::protect(wake.as_raw_fd());
        Some(Wake(wake))
    }
}

impl Drop for Wake {
    fn drop(&mut self) {
        descriptors::unprotect(self.0.as_raw_fd());
    }
}

/// Waiting threads.
#[derive(Debug)]
pub struct Waiting {
    has_driver: bool,
    /// True while the driver sleeps and was not woken.
    pub driver_sleeps: bool,
    /// Helper thread, while it rests because the driver sleeps.
    pub resting: Option<Thread>,
    sleepers: Slab<Sleeper>,
    /// Threads that were woken and do not run yet.
    woken: usize,
}

#[derive(Debug)]
struct Sleeper {
    /// Set whose events the thread waits for; `None` for any change.
    set: Option<EpollId>,
    /// Changes of readiness when it fell asleep.
    changes: u64,
    wake: c_int,
    is_woken: bool,
}

impl Waiting {
    pub const fn new() -> Self {
        Waiting { has_driver: false, driver_sleeps: false, resting: None, sleepers: Slab::new(), woken: 0 }
    }

    /// Returns whether there are sleeping threads.
    pub fn has_sleepers(&self) -> bool {
        !self.sleepers.is_empty()
    }

    /// Wakes the threads that `has_events` selects by their set and the number of changes when they fell asleep.
    pub fn wake(&mut self, has_events: impl Fn(Option<EpollId>, u64) -> bool) {
        for (_, sleeper) in &mut self.sleepers {
            if !sleeper.is_woken && has_events(sleeper.set, sleeper.changes) {
                sleeper.is_woken = true;
                self.woken += 1;
                let one = 1_u64;
                // SAFETY: eight bytes. If the program has closed the descriptor, the sleep has a limit.
                unsafe { real::write(sleeper.wake, (&raw const one).cast(), size_of_val(&one)) };
            }
        }
    }
}

/// Longest sleep: the driver may begin to compute for long.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);

/// Part of one thread in the turns, while it waits.
#[derive(Debug)]
pub struct Waiter {
    deadline: Deadline,
    set: Option<EpollId>,
    role: Role,
    /// True if the thread may have operated on a socket since its last turn or sleep.
    has_news: bool,
    /// True if woken threads need this core.
    yields: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    None,
    Driver,
    /// Driver that is about to sleep, with the descriptor that wakes it, and for the longest time.
    SleepingDriver(c_int, Duration),
    /// Sleeper, with its key and its descriptor.
    Sleeper(usize, c_int),
}

impl Waiter {
    /// Creates the part of a thread that waits for any change.
    pub fn new(deadline: Deadline) -> Self {
        Waiter { deadline, set: None, role: Role::None, has_news: true, yields: false }
    }

    /// Lets the thread wait for events of `set` only.
    pub fn wait_for(&mut self, set: EpollId) {
        self.set = Some(set);
    }

    /// Runs a turn, unless another thread does. Returns whether it did anything.
    pub fn turn(&mut self, runtime: &mut Runtime) -> bool {
        let is_busy = self.leave_sleep(runtime);
        if self.role == Role::None && !runtime.waiting.has_driver {
            runtime.waiting.has_driver = true;
            self.role = Role::Driver;
        }
        self.yields = runtime.waiting.woken > 0;
        is_busy.unwrap_or_else(|| self.role == Role::Driver && runtime.turn())
    }

    /// Lets the thread sleep, if another one runs the turns, or there is no work.
    pub fn rest(&mut self, runtime: &mut Runtime) {
        if self.role == Role::Driver {
            if !self.deadline.has_passed()
                && let Some((wake, longest)) = runtime.about_to_sleep()
            {
                self.role = Role::SleepingDriver(wake, longest);
            }
            return;
        }
        self.pass_news(runtime);
        let wake = WAKE.with(|wake| wake.get_or_init(Wake::new).as_ref().map(|wake| wake.0.as_raw_fd()));
        // Without a descriptor the thread looks again after a moment.
        let wake = wake.unwrap_or(-1);
        let changes = runtime.changes();
        let sleeper = Sleeper { set: self.set, changes, wake, is_woken: false };
        self.role = Role::Sleeper(runtime.waiting.sleepers.insert(sleeper), wake);
    }

    /// Ends the part of the thread, whose wait is over.
    pub fn leave(&mut self, runtime: &mut Runtime) {
        self.leave_sleep(runtime);
        if self.role == Role::Driver {
            runtime.waiting.has_driver = false;
            if let Some(helper) = runtime.waiting.resting.take() {
                helper.unpark();
            }
        }
        self.role = Role::None;
        self.pass_news(runtime);
    }

    /// Ends a sleep. Returns whether the turn after that of a driver did anything.
    fn leave_sleep(&mut self, runtime: &mut Runtime) -> Option<bool> {
        match self.role {
            Role::None | Role::Driver => None,
            Role::SleepingDriver(..) => {
                self.role = Role::Driver;
                Some(runtime.awake())
            }
            Role::Sleeper(key, _) => {
                self.role = Role::None;
                self.has_news = runtime.waiting.sleepers.remove(key).is_woken;
                runtime.waiting.woken -= usize::from(self.has_news);
                None
            }
        }
    }

    /// Wakes the driver, if this thread may have operated on a socket.
    fn pass_news(&mut self, runtime: &mut Runtime) {
        if std::mem::take(&mut self.has_news) {
            runtime.wake_driver();
        }
    }

    /// Sleeps if [`rest`](Self::rest) has prepared it: until the thread is woken, a descriptor of the kernel has an
    /// event, or the deadline. Returns whether it slept.
    pub fn sleep(&self, kernel: &[pollfd], mask: *const sigset_t) -> bool {
        let (wake, longest) = match self.role {
            Role::Sleeper(_, wake) => (wake, LONGEST_SLEEP),
            Role::SleepingDriver(wake, longest) => (wake, longest),
            _ => {
                if self.yields {
                    std::thread::yield_now();
                } else {
                    std::hint::spin_loop();
                }
                return false;
            }
        };
        let mut fds = Vec::with_capacity(kernel.len() + 1);
        fds.push(pollfd { fd: wake, events: libc::POLLIN, revents: 0 });
        fds.extend(kernel.iter().filter(|asked| asked.fd >= 0));
        let limit = self.deadline.left().map_or(longest, |left| left.min(longest));
        let limit = time_of(limit);
        // SAFETY: the elements of the vector; the mask is the program's. A signal ends the sleep.
        unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as nfds_t, &limit, mask) };
        if fds[0].revents != 0 && matches!(self.role, Role::SleepingDriver(..)) {
            // Events that are edges end with this call.
            let mut events = [epoll_event { events: 0, u64: 0 }; 2];
            // SAFETY: two elements.
            unsafe { real::epoll_pwait(wake, events.as_mut_ptr(), 2, 0, std::ptr::null()) };
        } else if fds[0].revents != 0 {
            let mut count = 0_u64;
            // SAFETY: the descriptor returns eight bytes.
            unsafe { real::read(wake, (&raw mut count).cast(), size_of_val(&count)) };
        }
        true
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.role != Role::None {
            let _ = runtime::enter(|runtime| {
                self.leave(runtime);
                Ok(())
            });
        }
    }
}
