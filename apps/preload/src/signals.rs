//! Signal handlers of the program. A handler that has run ends a wait with `EINTR`, as it ends a system call.

use crate::explain;
use crate::real;
use libc::{c_int, c_void, siginfo_t};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Number of signals (SIGRTMAX) and one.
const SIGNALS: usize = 65;

/// Handler of each signal, as the program gave it.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];

/// SA_RESTART of the action of each signal.
static RESTARTS: [AtomicBool; SIGNALS] = [const { AtomicBool::new(false) }; SIGNALS];

thread_local! {
    /// Handlers that have run on this thread.
    static RUN: Cell<u32> = const { Cell::new(0) };
    /// Handlers without SA_RESTART among them.
    static RUN_WITHOUT_RESTART: Cell<u32> = const { Cell::new(0) };
}

/// Handlers that had run when a wait began.
#[derive(Debug, Clone, Copy)]
pub struct Interruptions {
    run: u32,
    without_restart: u32,
}

impl Interruptions {
    pub fn so_far() -> Self {
        Interruptions { run: RUN.get(), without_restart: RUN_WITHOUT_RESTART.get() }
    }

    /// Returns whether a handler has run since, which ends epoll_wait(2) and poll(2).
    pub fn any(self) -> bool {
        RUN.get() != self.run
    }

    /// Returns whether a handler has run since that ends other calls, too: one without SA_RESTART, or any if the socket
    /// has a timeout (signal(7)).
    pub fn ends_calls(self, has_timeout: bool) -> bool {
        RUN_WITHOUT_RESTART.get() != self.without_restart || has_timeout && self.any()
    }
}

/// Counts the call and calls the handler of the program. A handler with one argument ignores the others, which are in
/// registers.
extern "C" fn counted(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    RUN.set(RUN.get().wrapping_add(1));
    let at = signal as usize % SIGNALS;
    if !RESTARTS[at].load(Ordering::Relaxed) {
        RUN_WITHOUT_RESTART.set(RUN_WITHOUT_RESTART.get().wrapping_add(1));
    }
    let handler = HANDLERS[at].load(Ordering::Acquire);
    if handler != 0 {
        // SAFETY: the address is a handler that the program passed to sigaction(2).
        let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = unsafe { std::mem::transmute(handler) };
        handler(signal, info, context);
    }
}

/// Sets the action of a signal as sigaction(2), with a handler that is counted.
///
/// # Safety
/// The arguments are those of a call of sigaction(2).
pub unsafe fn set_action(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let Some(at) = usize::try_from(signal).ok().filter(|at| *at < SIGNALS) else {
        // SAFETY: the caller's arguments, which the kernel refuses.
        return unsafe { real::sigaction(signal, new, old) };
    };
    let before = HANDLERS[at].load(Ordering::Acquire);
    let mut changed = None;
    if !new.is_null() {
        // SAFETY: the caller passes an action.
        let mut action = unsafe { *new };
        if !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
            RESTARTS[at].store(action.sa_flags & libc::SA_RESTART != 0, Ordering::Relaxed);
            HANDLERS[at].store(action.sa_sigaction, Ordering::Release);
            action.sa_sigaction = counted as *const () as usize;
        }
        action.sa_sigaction = explain::at_default(signal, action.sa_sigaction);
        changed = Some(action);
    }
    let passed = changed.as_ref().map_or(new, std::ptr::from_ref);
    // SAFETY: the caller's arguments, with the counted handler.
    let result = unsafe { real::sigaction(signal, passed, old) };
    // SAFETY: `old` is null or has been written.
    if result == 0 && !old.is_null() && unsafe { (*old).sa_sigaction } == counted as *const () as usize {
        // SAFETY: as above.
        unsafe { (*old).sa_sigaction = before };
    } else if result == 0 && !old.is_null() {
        // SAFETY: as above.
        unsafe { (*old).sa_sigaction = explain::given((*old).sa_sigaction) };
    }
    result
}
