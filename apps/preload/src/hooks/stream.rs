//! Streams of stdio on sockets: libc reads and writes their descriptors without the functions that this library
//! replaces.

use super::export;
use crate::{descriptors, real, runtime};
use libc::{FILE, c_char, c_int, c_void, size_t, ssize_t};

/// Functions of a stream of fopencookie(3).
#[repr(C)]
struct Functions {
    read: extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: *const c_void,
    close: extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

/// Returns the descriptor, which a stream has in place of a pointer.
fn descriptor(cookie: *mut c_void) -> c_int {
    cookie as usize as c_int
}

extern "C" fn read(cookie: *mut c_void, buffer: *mut c_char, n: size_t) -> ssize_t {
    // SAFETY: libc passes `n` writable bytes.
    unsafe { super::io::read(descriptor(cookie), buffer.cast(), n) }
}

extern "C" fn write(cookie: *mut c_void, buffer: *const c_char, n: size_t) -> ssize_t {
    let mut written = 0;
    while written < n {
        // SAFETY: libc passes `n` readable bytes.
        match unsafe { super::io::write(descriptor(cookie), buffer.add(written).cast(), n - written) } {
            // A stream expects 0 in place of a negative number.
            more if more <= 0 => break,
            more => written += more as size_t,
        }
    }
    written as ssize_t
}

extern "C" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: the stream owns the descriptor.
    unsafe { super::descriptors::close(descriptor(cookie)) }
}

export! {
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        if descriptors::file(fd).is_none() || runtime::is_inside() {
            // SAFETY: the arguments of the program.
            return unsafe { real::fdopen(fd, mode) };
        }
        let functions = Functions { read, write, seek: std::ptr::null(), close };
        // SAFETY: the functions have the types of C, and the mode is the program's.
        unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) }
    }
}
