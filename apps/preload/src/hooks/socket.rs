//! Calls that create, connect and configure sockets.

use super::{export, fail, last_error, status};
use crate::descriptors::{self, FileId};
use crate::runtime::{self, Kind, Runtime, SocketFile};
use crate::waiting::{self, Deadline};
use crate::{real, sockaddr as address_of_c};
use libc::{c_int, c_void, sockaddr, socklen_t};
use linerate_sockets::{Shutdown, SocketId};
use rustix::io::Errno;
use std::net::SocketAddr;
use std::time::Duration;

/// Returns an integer option of the kernel's socket.
fn kernel_option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut len) = (0, size_of::<c_int>() as socklen_t);
    // SAFETY: `value` has `len` bytes.
    let status = unsafe { real::getsockopt(fd, level, name, (&raw mut value).cast(), &mut len) };
    (status == 0).then_some(value)
}

fn is_stream(fd: c_int) -> bool {
    kernel_option(fd, libc::SOL_SOCKET, libc::SO_TYPE) == Some(libc::SOCK_STREAM)
        && kernel_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}

fn socket_file(fd: c_int, id: SocketId) -> SocketFile {
    let is_v6 = kernel_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Some(libc::AF_INET6);
    SocketFile::new(id, is_v6, !runtime::is_nonblocking(fd))
}

/// Carries the socket `fd` over the stack, if `is_for` is true for the network. Returns its file.
fn adopt(fd: c_int, is_for: impl FnOnce(&mut Runtime) -> bool) -> Option<FileId> {
    if !is_stream(fd) {
        return None;
    }
    let adopted = runtime::enter(|runtime| {
        if !is_for(runtime) {
            return Ok(None);
        }
        let id = runtime.bound()?.socket();
        Ok(Some(runtime.open(fd, Kind::Socket(socket_file(fd, id)))))
    });
    adopted.ok().flatten()
}

/// Binds a socket of the stack to `address`, with a free port in place of port 0.
fn bind_socket(runtime: &mut Runtime, file: FileId, mut address: SocketAddr) -> Result<(), Errno> {
    let id = runtime.socket(file)?.id;
    let sockets = runtime.bound()?;
    if address.port() != 0 {
        return sockets.bind(id, address);
    }
    // The range of local ports of the kernel (net.ipv4.ip_local_port_range) by default.
    for port in 32_768..=60_999 {
        address.set_port(port);
        match sockets.bind(id, address) {
            Err(Errno::ADDRINUSE) => {}
            result => return result,
        }
    }
    Err(Errno::ADDRINUSE)
}

/// Returns the descriptor of a new kernel's socket, which stands for an accepted connection.
fn placeholder(is_v6: bool, flags: c_int) -> Result<c_int, Errno> {
    let family = if is_v6 { libc::AF_INET6 } else { libc::AF_INET };
    let kind = libc::SOCK_STREAM | flags & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    // SAFETY: socket(2) has no pointers.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 { Err(last_error()) } else { Ok(fd) }
}

/// Accepts a connection of the stack. Returns its descriptor and the peer.
fn accept_connection(runtime: &mut Runtime, file: FileId, flags: c_int) -> Result<(c_int, SocketAddr), Errno> {
    let SocketFile { id, is_v6, .. } = *runtime.socket(file)?;
    let (sockets, net) = runtime.sockets()?;
    let (accepted, peer) = sockets.accept(id)?;
    let fd = match placeholder(is_v6, flags) {
        Ok(fd) => fd,
        Err(error) => {
            // The peer sees a reset, as if the connection had been closed after accept(2).
            sockets.reset_on_close(accepted, true);
            sockets.close(net, accepted);
            return Err(error);
        }
    };
    let opened = SocketFile::new(accepted, is_v6, flags & libc::SOCK_NONBLOCK == 0);
    runtime.open(fd, Kind::Socket(opened));
    Ok((fd, peer))
}

/// Reads a `timeval` (SO_RCVTIMEO); zero is no timeout.
///
/// # Safety
/// `value` points to `len` readable bytes.
unsafe fn timeout(value: *const c_void, len: socklen_t) -> Option<Duration> {
    if (len as usize) < size_of::<libc::timeval>() {
        return None;
    }
    // SAFETY: the bytes are readable.
    let time = unsafe { value.cast::<libc::timeval>().read_unaligned() };
    let (seconds, micros) = (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_usec).ok()?);
    Some(Duration::from_secs(seconds) + Duration::from_micros(micros)).filter(|time| !time.is_zero())
}

export! {
    fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        // SAFETY: the arguments of the program.
        let kernel = || unsafe { real::bind(fd, address, len) };
        // SAFETY: the program passes `len` bytes at `address`.
        let Some(wanted) = (unsafe { address_of_c::read(address, len) }) else { return kernel() };
        if descriptors::file(fd).is_some() {
            // A socket is bound once.
            return fail(Errno::INVAL);
        }
        if runtime::is_inside() || wanted.ip().is_loopback() {
            return kernel();
        }
        let any = wanted.ip().is_unspecified();
        let is_for = |runtime: &mut Runtime| {
            if any { runtime.has_network() } else { runtime.is_local(wanted.ip()) }
        };
        let Some(file) = adopt(fd, is_for) else { return kernel() };
        // The kernel's socket is bound as far as the kernel has the address: its port is then reserved, and an
        // unspecified address includes loopback.
        let has_bound = kernel() == 0;
        if any && !has_bound {
            runtime::forget(fd);
            return -1;
        }
        let wanted = if any && wanted.port() == 0 { kernel_local(fd).unwrap_or(wanted) } else { wanted };
        let result = runtime::enter(|runtime| {
            runtime.socket(file)?.kernel_listens = any;
            bind_socket(runtime, file, wanted)
        });
        if result.is_err() {
            runtime::forget(fd);
        }
        status(result)
    }

    fn listen(fd: c_int, backlog: c_int) -> c_int {
        let Some(file) = descriptors::file(fd) else {
            // SAFETY: the arguments of the program.
            return unsafe { real::listen(fd, backlog) };
        };
        let result = runtime::enter(|runtime| {
            let SocketFile { id, is_v6, kernel_listens, .. } = *runtime.socket(file)?;
            let backlog = usize::try_from(backlog).unwrap_or(usize::MAX);
            let is_dual = is_v6 && kernel_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == Some(0);
            for address in runtime.bound()?.listen(id, backlog, is_dual)? {
                runtime.listen(address)?;
            }
            Ok(kernel_listens)
        });
        match result {
            // SAFETY: the arguments of the program.
            Ok(true) => unsafe { real::listen(fd, backlog) },
            result => status(result.map(drop)),
        }
    }

    fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        // SAFETY: accept(2) is accept4(2) without flags.
        unsafe { accept4(fd, address, len, 0) }
    }

    fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        // SAFETY: the arguments of the program.
        let kernel = || unsafe { real::accept4(fd, address, len, flags) };
        let Some(file) = descriptors::file(fd) else { return kernel() };
        let socket = match runtime::socket(file) {
            Ok(socket) => socket,
            Err(error) => return fail(error),
        };
        let deadline = Deadline::after(socket.receive_timeout);
        loop {
            match waiting::once(|runtime| accept_connection(runtime, file, flags)) {
                Ok((accepted, peer)) => {
                    // SAFETY: the program passes the address of `len` bytes.
                    unsafe { address_of_c::write(peer, socket.is_v6, address, len) };
                    return accepted;
                }
                Err(Errno::AGAIN) => {}
                Err(error) => return fail(error),
            }
            if socket.kernel_listens && super::poll::kernel_is_ready(fd, libc::POLLIN) {
                return kernel();
            }
            if !socket.is_blocking || deadline.has_passed() || runtime::is_inside() {
                return fail(Errno::AGAIN);
            }
        }
    }

    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        // SAFETY: the arguments of the program.
        let kernel = || unsafe { real::connect(fd, address, len) };
        // SAFETY: the program passes `len` bytes at `address`.
        let Some(remote) = (unsafe { address_of_c::read(address, len) }) else { return kernel() };
        if runtime::is_inside() || remote.ip().is_loopback() {
            return kernel();
        }
        let is_for =
            |runtime: &mut Runtime| runtime.network().is_some_and(|network| network.has_route(remote.ip()));
        let Some(file) = descriptors::file(fd).or_else(|| adopt(fd, is_for)) else { return kernel() };
        let started = runtime::enter(|runtime| {
            let socket = runtime.socket(file)?.clone();
            let (sockets, net) = runtime.sockets()?;
            match sockets.connect(net, socket.id, remote) {
                // A program may wait for a connection by connect(2) itself.
                Err(Errno::INPROGRESS) => {}
                Err(Errno::ALREADY) if socket.is_blocking => {}
                result => return result.map(|()| socket),
            }
            runtime.turn();
            Ok(socket)
        });
        let socket = match started {
            Ok(socket) => socket,
            Err(error) => return fail(error),
        };
        let attempt = |runtime: &mut Runtime| {
            let (sockets, _) = runtime.sockets()?;
            match sockets.take_error(socket.id) {
                Some(error) => Err(error),
                None if sockets.is_connecting(socket.id) => Err(Errno::AGAIN),
                None => {
                    sockets.report_connected(socket.id);
                    Ok(())
                }
            }
        };
        let deadline = Deadline::after(if socket.is_blocking { socket.send_timeout } else { Some(Duration::ZERO) });
        match waiting::until_ready(deadline, attempt) {
            Err(Errno::AGAIN) => fail(Errno::INPROGRESS),
            result => status(result),
        }
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int {
        let Some(file) = descriptors::file(fd) else {
            // SAFETY: the arguments of the program.
            return unsafe { real::shutdown(fd, how) };
        };
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return fail(Errno::INVAL),
        };
        status(runtime::enter(|runtime| {
            let id = runtime.socket(file)?.id;
            let (sockets, net) = runtime.sockets()?;
            sockets.shutdown(net, id, how)?;
            runtime.turn();
            Ok(())
        }))
    }

    fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        let local = descriptors::file(fd).and_then(|file| {
            let local = runtime::enter(|runtime| {
                let SocketFile { id, is_v6, .. } = *runtime.socket(file)?;
                let local = runtime.bound()?.local_addr(id).ok_or(Errno::INVAL)?;
                Ok((local, is_v6))
            });
            local.ok()
        });
        match local {
            Some((local, is_v6)) => {
                // SAFETY: the program passes the address of `len` bytes.
                unsafe { address_of_c::write(local, is_v6, address, len) };
                0
            }
            // SAFETY: the arguments of the program. The kernel's socket is unbound, as the one of the program.
            None => unsafe { real::getsockname(fd, address, len) },
        }
    }

    fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        let Some(file) = descriptors::file(fd) else {
            // SAFETY: the arguments of the program.
            return unsafe { real::getpeername(fd, address, len) };
        };
        let peer = runtime::enter(|runtime| {
            let SocketFile { id, is_v6, .. } = *runtime.socket(file)?;
            Ok((runtime.bound()?.peer_addr(id)?, is_v6))
        });
        match peer {
            Ok((peer, is_v6)) => {
                // SAFETY: the program passes the address of `len` bytes.
                unsafe { address_of_c::write(peer, is_v6, address, len) };
                0
            }
            Err(error) => fail(error),
        }
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        let own = descriptors::file(fd).filter(|_| level == libc::SOL_SOCKET);
        let result = own.and_then(|file| {
            let answer = runtime::enter(|runtime| {
                let id = runtime.socket(file)?.id;
                let sockets = runtime.bound()?;
                Ok(match name {
                    libc::SO_ERROR => Some(sockets.take_error(id).map_or(0, Errno::raw_os_error)),
                    libc::SO_ACCEPTCONN => Some(sockets.is_listening(id).into()),
                    _ => None,
                })
            });
            answer.ok().flatten()
        });
        let Some(result) = result else {
            // SAFETY: the arguments of the program. The kernel's socket has the options that were set.
            return unsafe { real::getsockopt(fd, level, name, value, len) };
        };
        if value.is_null() || len.is_null() {
            return fail(Errno::FAULT);
        }
        // SAFETY: the program passes `len` writable bytes at `value`.
        unsafe {
            let n = size_of::<c_int>().min(*len as usize);
            std::ptr::copy_nonoverlapping((&raw const result).cast::<u8>(), value.cast(), n);
            *len = n as socklen_t;
        }
        0
    }

    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        // The kernel's socket checks and keeps all options.
        // SAFETY: the arguments of the program.
        let result = unsafe { real::setsockopt(fd, level, name, value, len) };
        let Some(file) = descriptors::file(fd).filter(|_| result == 0 && level == libc::SOL_SOCKET) else {
            return result;
        };
        let _ = runtime::enter(|runtime| {
            let socket = runtime.socket(file)?;
            // SAFETY: the kernel has read `len` bytes at `value`.
            unsafe {
                match name {
                    libc::SO_RCVTIMEO => socket.receive_timeout = timeout(value, len),
                    libc::SO_SNDTIMEO => socket.send_timeout = timeout(value, len),
                    libc::SO_LINGER => {
                        let linger = value.cast::<libc::linger>().read_unaligned();
                        let id = socket.id;
                        runtime.bound()?.reset_on_close(id, linger.l_onoff != 0 && linger.l_linger == 0);
                    }
                    _ => {}
                }
            }
            Ok(())
        });
        result
    }
}

/// Returns the local address of the kernel's socket.
fn kernel_local(fd: c_int) -> Option<SocketAddr> {
    // SAFETY: all bytes of an address may be zero.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&storage) as socklen_t;
    // SAFETY: the storage has `len` bytes.
    unsafe {
        if real::getsockname(fd, (&raw mut storage).cast(), &mut len) != 0 {
            return None;
        }
        address_of_c::read((&raw const storage).cast(), len)
    }
}
