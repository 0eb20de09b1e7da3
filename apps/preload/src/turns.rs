//! Distribution of the worker's turns among waiting threads.
//!
//! One waiting thread, the driver, runs the turns. The others sleep in the kernel, and the driver wakes those for which
//! there are events, as does the helper thread while no thread of the program waits.

use crate::runtime::{self, Runtime};
use crate::{descriptors, real};
use libc::{c_int, nfds_t, pollfd, sigset_t};
use linerate_sockets::EpollId;
use rustix::event::{EventfdFlags, eventfd};
use slab::Slab;
use std::cell::OnceCell;
use std::os::fd::{AsRawFd, OwnedFd};
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
        Waiting { has_driver: false, sleepers: Slab::new(), woken: 0 }
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
    set: Option<EpollId>,
    role: Role,
    /// True if woken threads need this core.
    yields: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    None,
    Driver,
    /// Sleeper, with its key and its descriptor.
    Sleeper(usize, c_int),
}

impl Waiter {
    /// Creates the part of a thread that waits for any change.
    pub fn new() -> Self {
        Waiter { set: None, role: Role::None, yields: false }
    }

    /// Lets the thread wait for events of `set` only.
    pub fn wait_for(&mut self, set: EpollId) {
        self.set = Some(set);
    }

    /// Runs a turn, unless another thread does. Returns whether it did anything.
    pub fn turn(&mut self, runtime: &mut Runtime) -> bool {
        self.leave_sleep(runtime);
        if self.role == Role::None && !runtime.waiting.has_driver {
            runtime.waiting.has_driver = true;
            self.role = Role::Driver;
        }
        self.yields = runtime.waiting.woken > 0;
        self.role == Role::Driver && runtime.turn()
    }

    /// Lets the thread sleep, if another one runs the turns.
    pub fn rest(&mut self, runtime: &mut Runtime) {
        if self.role != Role::None {
            return;
        }
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
        }
        self.role = Role::None;
    }

    fn leave_sleep(&mut self, runtime: &mut Runtime) {
        if let Role::Sleeper(key, _) = self.role {
            self.role = Role::None;
            if runtime.waiting.sleepers.remove(key).is_woken {
                runtime.waiting.woken -= 1;
            }
        }
    }

    /// Sleeps if [`rest`](Self::rest) has prepared it: until the thread is woken, a descriptor of the kernel has an
    /// event, or `limit`. Returns whether it slept.
    pub fn sleep(&self, kernel: &[pollfd], limit: Option<Duration>, mask: *const sigset_t) -> bool {
        let Role::Sleeper(_, wake) = self.role else {
            if self.yields {
                std::thread::yield_now();
            }
            return false;
        };
        let mut fds = Vec::with_capacity(kernel.len() + 1);
        fds.push(pollfd { fd: wake, events: libc::POLLIN, revents: 0 });
        fds.extend(kernel.iter().filter(|asked| asked.fd >= 0));
        let limit = limit.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP);
        let limit = libc::timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
        // SAFETY: the elements of the vector; the mask is the program's. A signal ends the sleep.
        unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as nfds_t, &limit, mask) };
        if fds[0].revents != 0 {
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
