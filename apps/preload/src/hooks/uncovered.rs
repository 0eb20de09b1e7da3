//! Calls that work on sockets of the stack in part or not at all, and the end of a process without exit(3).

use super::{export, fail};
use crate::explain::{self, uncovered};
use crate::real;
use crate::{descriptors, runtime};
use libc::{aiocb, c_int, iovec, off_t, ssize_t};
use rustix::io::Errno;

/// Offset of preadv2(2) for which it is readv(2).
const NO_OFFSET: off_t = -1;

/// Returns whether the call of the program concerns the stack.
fn is_of_stack(fd: c_int) -> bool {
    descriptors::file(fd).is_some() && !runtime::is_inside()
}

export! {
    fn preadv2(fd: c_int, parts: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t {
        match (is_of_stack(fd), offset, flags) {
            // SAFETY: the arguments of the program.
            (false, ..) => unsafe { real::preadv2(fd, parts, n, offset, flags) },
            // SAFETY: as above.
            (true, NO_OFFSET, 0) => unsafe { super::io::readv(fd, parts, n) },
            (true, NO_OFFSET, _) => fail(uncovered("preadv2 with flags", Errno::OPNOTSUPP)) as ssize_t,
            _ => fail(Errno::SPIPE) as ssize_t,
        }
    }

    fn pwritev2(fd: c_int, parts: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t {
        match (is_of_stack(fd), offset, flags) {
            // SAFETY: the arguments of the program.
            (false, ..) => unsafe { real::pwritev2(fd, parts, n, offset, flags) },
            // SAFETY: as above.
            (true, NO_OFFSET, 0) => unsafe { super::io::writev(fd, parts, n) },
            (true, NO_OFFSET, _) => fail(uncovered("pwritev2 with flags", Errno::OPNOTSUPP)) as ssize_t,
            _ => fail(Errno::SPIPE) as ssize_t,
        }
    }

    fn aio_read(request: *mut aiocb) -> c_int {
        // SAFETY: the program passes a request.
        if is_of_stack(unsafe { (*request).aio_fildes }) {
            return fail(uncovered("aio_read", Errno::NOSYS));
        }
        // SAFETY: the argument of the program.
        unsafe { real::aio_read(request) }
    }

    fn aio_read64(request: *mut aiocb) -> c_int {
        // SAFETY: offsets have 64 bits.
        unsafe { aio_read(request) }
    }

    fn aio_write(request: *mut aiocb) -> c_int {
        // SAFETY: the program passes a request.
        if is_of_stack(unsafe { (*request).aio_fildes }) {
            return fail(uncovered("aio_write", Errno::NOSYS));
        }
        // SAFETY: the argument of the program.
        unsafe { real::aio_write(request) }
    }

    fn aio_write64(request: *mut aiocb) -> c_int {
        // SAFETY: offsets have 64 bits.
        unsafe { aio_write(request) }
    }
}

/// Ends the process. The function of libc does not call functions of atexit(3).
#[unsafe(no_mangle)]
pub extern "C" fn _exit(status: c_int) -> ! {
    runtime::end();
    explain::ends();
    // SAFETY: no pointers.
    unsafe { real::_exit(status) };
    std::process::abort()
}

/// Ends the process as [`_exit`].
#[unsafe(no_mangle)]
pub extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}
