//! Calls on descriptors of any kind.

use super::{export, fail};
use crate::descriptors;
use crate::real;
use crate::runtime::{self, SocketFile};
use crate::start;
use libc::{c_int, c_uint, c_ulong};
use rustix::io::Errno;

/// Gives the new descriptor `fd` the file of `from`.
fn duplicated(from: c_int, fd: c_int) -> c_int {
    if descriptors::file(from).is_none() {
        descriptors::kernel_duplicated();
    }
    if fd >= 0
        && fd != from
        && let Some(file) = descriptors::file(from)
        && !runtime::is_vfork_child()
    {
        let _ = runtime::enter(|runtime| {
            runtime.duplicate(file, fd);
            if runtime.epoll(file).is_ok() {
                // Items are counted by descriptor: the kernel is asked for events of both.
                [from, fd].into_iter().for_each(descriptors::kernel_item_added);
            }
            Ok(())
        });
    }
    fd
}

/// Gives `fd`, which the kernel has closed and replaced if it is not negative, the file of `from`.
fn replaced(from: c_int, fd: c_int) -> c_int {
    if fd >= 0 && fd != from {
        runtime::forget(fd);
    }
    duplicated(from, fd)
}

fn set_blocking(fd: c_int, is_blocking: bool) {
    if let Some(file) = descriptors::file(fd) {
        let _ = runtime::enter(|runtime| {
            runtime.socket(file)?.is_blocking = is_blocking;
            Ok(())
        });
    }
}

fn forget_range(first: c_uint, last: c_uint) {
    descriptors::range(first, last).for_each(runtime::forget);
}

/// Closes the kernel's descriptors of a range, except those of the network.
fn close_others(mut first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if !runtime::is_vfork_child() && !runtime::is_child() {
        for kept in descriptors::protected(first, last) {
            // SAFETY: close_range(2) has no pointers.
            if kept > first && unsafe { real::close_range(first, kept - 1, flags) } != 0 {
                return -1;
            }
            first = kept + 1;
        }
    }
    // SAFETY: as above.
    if first <= last { unsafe { real::close_range(first, last, flags) } } else { 0 }
}

/// Returns whether the call of the program would close a descriptor of the network, which it does not own.
fn hits_network(fd: c_int) -> bool {
    descriptors::is_protected(fd)
        && !runtime::is_inside()
        && !runtime::is_child()
        && !runtime::is_vfork_child()
        && !start::may_close()
}

export! {
    fn close(fd: c_int) -> c_int {
        if hits_network(fd) {
            return fail(Errno::BADF);
        }
        runtime::forget(fd);
        descriptors::take_registered(fd);
        descriptors::unprotect(fd);
        if descriptors::has_counted_items(fd) && !runtime::is_vfork_child() {
            descriptors::set_closed(fd);
        }
        // SAFETY: the argument of the program.
        unsafe { real::close(fd) }
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        if flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0 || last < first {
            // SAFETY: the arguments of the program.
            return unsafe { real::close_range(first, last, flags) };
        }
        forget_range(first, last);
        close_others(first, last, flags)
    }

    fn closefrom(first: c_int) -> () {
        let first = first.max(0) as c_uint;
        forget_range(first, c_uint::MAX);
        close_others(first, c_uint::MAX, 0);
    }

    fn dup(fd: c_int) -> c_int {
        // SAFETY: the argument of the program.
        duplicated(fd, unsafe { real::dup(fd) })
    }

    fn dup2(fd: c_int, to: c_int) -> c_int {
        if hits_network(to) {
            return fail(Errno::BUSY);
        }
        // SAFETY: the arguments of the program.
        replaced(fd, unsafe { real::dup2(fd, to) })
    }

    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        if hits_network(to) {
            return fail(Errno::BUSY);
        }
        // SAFETY: the arguments of the program.
        replaced(fd, unsafe { real::dup3(fd, to, flags) })
    }

    // The third argument is passed in the same register with and without a variable number of arguments.
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        // SAFETY: the arguments of the program.
        let result = unsafe { real::fcntl(fd, command, argument) };
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => return duplicated(fd, result),
            libc::F_SETFL if result == 0 => set_blocking(fd, argument as c_int & libc::O_NONBLOCK == 0),
            _ => {}
        }
        result
    }

    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
        // SAFETY: offsets have 64 bits.
        unsafe { fcntl(fd, command, argument) }
    }

    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
        if let Some(file) = descriptors::file(fd)
            && matches!(request, libc::FIONREAD | libc::TIOCOUTQ)
        {
            let bytes = runtime::enter(|runtime| {
                let SocketFile { id, kernel_listens, has_datagrams, .. } = *runtime.socket(file)?;
                let (sockets, net) = runtime.sockets()?;
                if request == libc::FIONREAD {
                    let n = sockets.readable(net, id);
                    // The kernel's socket may have a datagram.
                    return if n == 0 && has_datagrams && kernel_listens { Err(Errno::AGAIN) } else { Ok(n) };
                }
                // Bytes that the peer has not acknowledged (SIOCOUTQ).
                let info = sockets.info(net, id);
                Ok(info.map_or(0, |info| (info.unsent + info.tcp.in_flight.unwrap_or(0)) as usize))
            });
            if let Ok(n) = bytes {
                // SAFETY: the program passes the address of an integer.
                unsafe { *(argument as *mut c_int) = c_int::try_from(n).unwrap_or(c_int::MAX) };
                return 0;
            }
        }
        // SAFETY: the arguments of the program.
        let result = unsafe { real::ioctl(fd, request, argument) };
        if request == libc::FIONBIO && result == 0 {
            // SAFETY: the kernel has read the integer.
            set_blocking(fd, unsafe { *(argument as *const c_int) } == 0);
        }
        result
    }
}
