//! Signals of the TAP and memif drivers.
//!
//! The TAP driver makes the kernel send a real-time signal to the process for every received frame, and reads nothing
//! before the signal. The signal interrupts a system call of the thread that receives it: a `recv` with a timeout, for
//! example, then returns an error. If the signal queue overflows, the kernel sends SIGIO, which terminates the process.

/// Blocks the driver's signals in the calling thread and in threads that it starts later, which leaves them to existing
/// threads, including EAL's.
pub(crate) fn leave_to_eal() {
    // SAFETY: `sigset_t` is a bit set, which `sigemptyset` initialises.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is a local, the numbers are signals, and no handler is installed. Ignoring SIGIO replaces a
    // handler only if the process had one.
    unsafe {
        libc::sigemptyset(&mut set);
        // The driver does not use the first real-time signal.
        (libc::SIGRTMIN() + 1..libc::SIGRTMAX()).for_each(|signal| _ = libc::sigaddset(&mut set, signal));
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        if libc::signal(libc::SIGIO, libc::SIG_IGN) != libc::SIG_DFL {
            tracing::debug!("the TAP port removed the handler of SIGIO");
        }
    }
}

/// Installs a SIGSEGV handler that leaves a burst whose driver memory has been unmapped.
pub(crate) fn guard_bursts() {
    // SAFETY: the handler acts on faults within a guarded burst, and passes all others to the previous handler.
    if unsafe { dpdk_sys::lr_guard_bursts() } != 0 {
        tracing::warn!("cannot install a SIGSEGV handler: a peer that disconnects during a burst ends this process");
    }
}
