//! Actions of signals.

use super::export;
use crate::signals;
use libc::{c_int, sighandler_t};

export! {
    fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
        // SAFETY: the arguments of the program.
        unsafe { signals::set_action(signal, new, old) }
    }

    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        // SAFETY: all bytes of an action may be zero. The handler is the program's.
        unsafe {
            let (mut new, mut old): (libc::sigaction, libc::sigaction) = (std::mem::zeroed(), std::mem::zeroed());
            new.sa_sigaction = handler;
            // The semantics of BSD, as signal(3) of glibc.
            new.sa_flags = libc::SA_RESTART;
            match signals::set_action(signal, &new, &mut old) {
                0 => old.sa_sigaction,
                _ => libc::SIG_ERR,
            }
        }
    }
}
