//! The signals of drivers: what TAP's sends, and what memif's causes.
//!
//! It has the kernel send a real-time signal to the process for every frame that arrives, and reads nothing before it
//! comes. Whichever thread takes it has its system calls interrupted, a `recv` with a time-out among them, which the
//! standard library reports as an error. And should they queue up, the kernel sends SIGIO, which ends the process.

/// Leaves the driver's signals to the threads that exist, of which EAL's own is one: the calling thread blocks them,
/// and so does every thread that it starts.
pub(crate) fn leave_to_eal() {
    // SAFETY: a `sigset_t` is bits, and `sigemptyset` makes it a set.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours, the numbers are signals', and no handler is set: ignoring SIGIO takes one from nobody
    // unless the process had none.
    unsafe {
        libc::sigemptyset(&mut set);
        // As in the driver: the first of them is left alone.
        (libc::SIGRTMIN() + 1..libc::SIGRTMAX()).for_each(|signal| _ = libc::sigaddset(&mut set, signal));
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        if libc::signal(libc::SIGIO, libc::SIG_IGN) != libc::SIG_DFL {
            tracing::debug!("SIGIO had a handler, which the TAP port has replaced by none");
        }
    }
}

/// Takes the signal of a memory fault, to leave the bursts of a driver whose memory has vanished.
pub(crate) fn guard_bursts() {
    // SAFETY: the handler acts on what happens within a guarded burst, and leaves the rest to the one before.
    if unsafe { dpdk_sys::lr_guard_bursts() } != 0 {
        tracing::warn!("SIGSEGV cannot be taken: if the other end of the link leaves within a burst, the process ends");
    }
}
