//! The functions of libc that this library replaces.

mod datagrams;
mod descriptors;
mod epoll;
mod io;
mod options;
mod poll;
mod signal;
mod socket;
mod stream;
mod tcp_info;
mod transfers;
mod uncovered;
mod user;

use libc::{c_int, ssize_t};
use rustix::io::Errno;

/// Sets errno, and returns -1.
fn fail(error: Errno) -> c_int {
    // SAFETY: the function returns the address of the thread's errno.
    unsafe { *libc::__errno_location() = error.raw_os_error() };
    -1
}

fn last_error() -> Errno {
    // SAFETY: the function returns the address of the thread's errno.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// Returns the result of a call in the convention of C.
fn status(result: Result<(), Errno>) -> c_int {
    result.map_or_else(fail, |()| 0)
}

/// Returns a number of bytes in the convention of C.
fn length(result: Result<usize, Errno>) -> ssize_t {
    match result {
        Ok(n) => n as ssize_t,
        Err(error) => fail(error) as ssize_t,
    }
}

/// Defines functions with the names and types of C.
macro_rules! export {
    ($(
        $(#[$meta:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty $body:block
    )*) => {
        $(
            $(#[$meta])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
                #[inline(always)]
                unsafe fn function($($arg: $type),*) -> $result $body
                if $crate::explain::is_on() {
                    let arguments = [$($crate::explain::Argument::word($arg)),*];
                    // SAFETY: the arguments of the program.
                    return $crate::explain::call(stringify!($name), &arguments, || unsafe { function($($arg),*) });
                }
                // SAFETY: as above.
                unsafe { function($($arg),*) }
            }
        )*
    };
}
use export;
