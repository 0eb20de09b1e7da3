//! Changes of the user. A process that serves opens its network before it gives its privileges up.

use super::export;
use crate::{real, runtime};
use libc::{c_int, uid_t};

export! {
    fn setuid(id: uid_t) -> c_int {
        runtime::open_to_serve();
        // SAFETY: the arguments of the program.
        unsafe { real::setuid(id) }
    }

    fn setreuid(real: uid_t, effective: uid_t) -> c_int {
        runtime::open_to_serve();
        // SAFETY: the arguments of the program.
        unsafe { real::setreuid(real, effective) }
    }

    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int {
        runtime::open_to_serve();
        // SAFETY: the arguments of the program.
        unsafe { real::setresuid(real, effective, saved) }
    }
}
