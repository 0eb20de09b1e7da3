//! Functions of the next library, normally libc.

use libc::{
    FILE, aiocb, c_char, c_int, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t,
    pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval, uid_t,
};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Address of a function, resolved at its first call.
struct Symbol {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Symbol {
    const fn new(name: &'static CStr) -> Self {
        Symbol { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    #[inline]
    fn get(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if known.is_null() { self.resolve() } else { known }
    }

    #[cold]
    fn resolve(&self) -> *mut c_void {
        // SAFETY: the name is a C string, and the handle is one of dlsym(3).
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if address.is_null() {
            // The program calls a function that its own libc does not have.
            std::process::abort();
        }
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            #[inline]
            pub unsafe fn $name($($arg: $type),*) -> $result {
                static SYMBOL: Symbol = Symbol::new(match CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => name,
                    Err(_) => panic!("name with a zero byte"),
                });
                // SAFETY: the symbol is the function of this name, whose C declaration these types repeat. The caller
                // passes the arguments that it received from the program.
                unsafe {
                    let function: unsafe extern "C" fn($($type),*) -> $result = std::mem::transmute(SYMBOL.get());
                    function($($arg),*)
                }
            }
        )*
    };
}

functions! {
    fn _exit(status: c_int) -> ();
    fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    fn aio_read(request: *mut aiocb) -> c_int;
    fn aio_write(request: *mut aiocb) -> c_int;
    fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(fd: c_int, to: c_int) -> c_int;
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn epoll_pwait(
        set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t
    ) -> c_int;
    fn epoll_pwait2(
        set: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int;
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn pselect(
        n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    fn preadv2(fd: c_int, parts: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn pwritev2(fd: c_int, parts: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn read(fd: c_int, buffer: *mut c_void, n: size_t) -> ssize_t;
    fn readv(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t;
    fn recvfrom(
        fd: c_int, buffer: *mut c_void, n: size_t, flags: c_int, address: *mut sockaddr, len: *mut socklen_t
    ) -> ssize_t;
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn select(
        n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval
    ) -> c_int;
    fn sendfile64(fd: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t;
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn sendto(
        fd: c_int, buffer: *const c_void, n: size_t, flags: c_int, address: *const sockaddr, len: socklen_t
    ) -> ssize_t;
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int;
    fn setreuid(real: uid_t, effective: uid_t) -> c_int;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    fn setuid(id: uid_t) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    fn splice(
        from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, n: size_t, flags: c_uint
    ) -> ssize_t;
    fn write(fd: c_int, buffer: *const c_void, n: size_t) -> ssize_t;
    fn writev(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t;
}
