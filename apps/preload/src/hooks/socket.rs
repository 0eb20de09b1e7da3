//! Calls that create, connect and configure sockets.

use super::options::{self, kernel_option, socket_file};
use super::{datagrams, epoll};
use super::{export, fail, last_error, status};
use crate::config;
use crate::descriptors::{self, FileId};
use crate::runtime::{self, Kind, Runtime, SocketFile};
use crate::signals::Interruptions;
use crate::start;
use crate::waiting::{self, Deadline};
use crate::{real, sockaddr as address_of_c};
use libc::{c_int, pollfd, sockaddr, socklen_t};
use linerate_sockets::{Reuse, Shutdown};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Returns whether `fd` is a stream socket of TCP (`Some(false)`) or a datagram socket of UDP (`Some(true)`).
fn kind_of(fd: c_int) -> Option<bool> {
    let kind = kernel_option(fd, libc::SOL_SOCKET, libc::SO_TYPE)?;
    match (kind, kernel_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL)?) {
        (libc::SOCK_STREAM, libc::IPPROTO_TCP) => Some(false),
        (libc::SOCK_DGRAM, libc::IPPROTO_UDP) => Some(true),
        _ => None,
    }
}

/// Returns whether `fd` is a datagram socket of UDP.
pub fn has_datagrams(fd: c_int) -> bool {
    kind_of(fd) == Some(true)
}

/// Carries the socket `fd` over the stack, if `is_for` is true for the network. Returns its file.
pub fn adopt(fd: c_int, is_for: impl FnOnce(&mut Runtime) -> bool) -> Option<FileId> {
    let has_datagrams = kind_of(fd)?;
    let adopted = runtime::enter(|runtime| {
        if !is_for(runtime) {
            return Ok(None);
        }
        let is_v6 = kernel_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Some(libc::AF_INET6);
        let sockets = runtime.bound()?;
        let id = if has_datagrams {
            let limit = kernel_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0);
            sockets.datagram_socket(limit as usize, is_v6 && includes_v4(fd))
        } else {
            sockets.socket()
        };
        let file = runtime.open(fd, Kind::Socket(socket_file(fd, id, is_v6, has_datagrams)));
        if !has_datagrams {
            options::adopt_all(runtime, fd, file)?;
        }
        Ok(Some(file))
    });
    adopted.ok().flatten()
}

/// Returns whether the network that may carry the socket `fd` cannot be started.
fn has_lost(fd: c_int) -> bool {
    start::has_failed() && kind_of(fd).is_some()
}

/// Returns whether `::` includes the addresses of IPv4 for a socket of AF_INET6.
fn includes_v4(fd: c_int) -> bool {
    kernel_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == Some(0)
}

/// Lets the kernel's socket be bound to an address that the kernel does not have: the kernel then chooses its port.
fn permit_any_address(fd: c_int) {
    let one: c_int = 1;
    for (level, name) in [(libc::IPPROTO_IP, libc::IP_FREEBIND), (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND)] {
        // SAFETY: the option is an integer. One of the calls fails: that of the other family.
        unsafe { real::setsockopt(fd, level, name, (&raw const one).cast(), size_of_val(&one) as socklen_t) };
    }
}

/// Binds a socket of the stack to `address`.
fn bind_socket(runtime: &mut Runtime, fd: c_int, file: FileId, address: SocketAddr) -> Result<(), Errno> {
    let SocketFile { id, has_datagrams, .. } = *runtime.socket(file)?;
    let has = |name| kernel_option(fd, libc::SOL_SOCKET, name) == Some(1);
    let sockets = runtime.bound()?;
    if !has_datagrams {
        return sockets.bind(id, address);
    }
    let reuse = Reuse { address: has(libc::SO_REUSEADDR), port: has(libc::SO_REUSEPORT) };
    for address in sockets.bind_datagrams(id, address, reuse)? {
        runtime.listen_udp(address)?;
    }
    Ok(())
}

/// Binds a datagram socket to `ip`, and to the port that the kernel's socket has or receives now.
pub fn bind_at(fd: c_int, file: FileId, ip: IpAddr) -> Result<(), Errno> {
    let has_port = |local: &SocketAddr| local.port() != 0;
    let local = match kernel_local(fd).filter(has_port) {
        Some(local) => local,
        None => {
            permit_any_address(fd);
            let is_v6 = runtime::socket(file)?.is_v6;
            // SAFETY: all bytes of an address may be zero.
            let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
            let mut len = size_of_val(&storage) as socklen_t;
            // SAFETY: the storage has `len` bytes.
            let status = unsafe {
                address_of_c::write(SocketAddr::new(ip, 0), is_v6, (&raw mut storage).cast(), &mut len);
                real::bind(fd, (&raw const storage).cast(), len)
            };
            if status != 0 {
                return Err(last_error());
            }
            kernel_local(fd).filter(has_port).ok_or(Errno::ADDRINUSE)?
        }
    };
    runtime::enter(|runtime| bind_socket(runtime, fd, file, SocketAddr::new(ip, local.port())))
}

/// Binds a datagram socket to all addresses, those of the kernel included.
pub fn bind_to_all(fd: c_int, file: FileId) -> Result<(), Errno> {
    let socket = runtime::socket(file)?;
    let any = if socket.is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    bind_at(fd, file, any)?;
    runtime::enter(|runtime| {
        runtime.socket(file)?.kernel_listens = true;
        Ok(())
    })
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
    let listening = runtime.socket(file)?.clone();
    options::inherit(fd, &listening);
    let is_blocking = flags & libc::SOCK_NONBLOCK == 0;
    let opened = SocketFile { id: accepted, is_blocking, kernel_listens: false, ..listening };
    runtime.open(fd, Kind::Socket(opened));
    Ok((fd, peer))
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
        if runtime::is_inside() || wanted.ip().is_loopback() || !config::listens_on(wanted.port()) {
            return kernel();
        }
        let any = wanted.ip().is_unspecified();
        let is_for = |runtime: &mut Runtime| {
            if any { runtime.has_network() } else { runtime.is_local(wanted.ip()) }
        };
        let Some(file) = adopt(fd, is_for) else {
            return if has_lost(fd) { fail(Errno::NETDOWN) } else { kernel() };
        };
        // The kernel's socket is bound as far as the kernel has the address: its port is then reserved, and an
        // unspecified address includes loopback.
        if wanted.port() == 0 && !any {
            permit_any_address(fd);
        }
        let has_bound = kernel() == 0;
        if !has_bound && (any || wanted.port() == 0) {
            let error = last_error();
            runtime::forget(fd);
            return fail(error);
        }
        let port = if wanted.port() == 0 { kernel_local(fd).map_or(0, |local| local.port()) } else { wanted.port() };
        let result = runtime::enter(|runtime| {
            runtime.socket(file)?.kernel_listens = any;
            bind_socket(runtime, fd, file, SocketAddr::new(wanted.ip(), port))
        });
        match result {
            Ok(()) => epoll::migrate(fd, file),
            Err(_) => runtime::forget(fd),
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
            let is_dual = is_v6 && includes_v4(fd);
            for address in runtime.bound()?.listen(id, backlog, is_dual)? {
                runtime.listen(address)?;
                tracing::info!("listens on {address}");
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
        let (deadline, interruptions) = (Deadline::after(socket.receive_timeout), Interruptions::so_far());
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
            let mut asked = [pollfd { fd, events: libc::POLLIN, revents: 0 }];
            match super::poll::wait(&mut asked, deadline.left(), std::ptr::null()) {
                Err(Errno::INTR) if interruptions.ends_calls(deadline.exists()) => return fail(Errno::INTR),
                Err(error) if error != Errno::INTR => return fail(error),
                _ => {}
            }
        }
    }

    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        // SAFETY: the arguments of the program.
        let kernel = || unsafe { real::connect(fd, address, len) };
        // SAFETY: the program passes `len` bytes at `address`.
        let remote = unsafe { address_of_c::read(address, len) };
        let datagrams = descriptors::file(fd).filter(|file| file.has_datagrams());
        if let Some(file) = datagrams
            && (remote.is_some() || unspecifies(address, len))
        {
            // SAFETY: as above.
            return status(unsafe { datagrams::connect(fd, file, remote, (address, len)) });
        }
        let Some(remote) = remote else { return kernel() };
        if runtime::is_inside() || remote.ip().is_loopback() || !config::connects_to(remote.port()) {
            return kernel();
        }
        // A datagram, such as a query of the resolver, does not make the parent of serving processes open the network.
        let is_for = |runtime: &mut Runtime| {
            !(runtime.will_serve() && has_datagrams(fd)) && runtime.has_route(remote.ip())
        };
        let Some(file) = descriptors::file(fd).or_else(|| adopt(fd, is_for)) else {
            return if has_lost(fd) { fail(Errno::NETDOWN) } else { kernel() };
        };
        if file.has_datagrams() {
            // SAFETY: the program passes `len` bytes at `address`.
            let result = unsafe { datagrams::connect(fd, file, Some(remote), (address, len)) };
            match result {
                Ok(()) => epoll::migrate(fd, file),
                Err(_) => runtime::forget(fd),
            }
            return status(result);
        }
        epoll::migrate(fd, file);
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
            if !socket.is_blocking {
                // The program waits for the connection, even if the peer has answered already.
                let (sockets, _) = runtime.sockets()?;
                return Err(sockets.take_error(socket.id).unwrap_or(Errno::INPROGRESS));
            }
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
        match waiting::until_ready(Deadline::after(socket.send_timeout), attempt) {
            Err(Errno::AGAIN) => fail(Errno::INPROGRESS),
            result => status(result),
        }
    }

    fn shutdown(fd: c_int, direction: c_int) -> c_int {
        let Some(file) = descriptors::file(fd) else {
            // SAFETY: the arguments of the program.
            return unsafe { real::shutdown(fd, direction) };
        };
        let how = match direction {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return fail(Errno::INVAL),
        };
        let stops = runtime::enter(|runtime| {
            let SocketFile { id, kernel_listens, .. } = *runtime.socket(file)?;
            let (sockets, net) = runtime.sockets()?;
            let stops = kernel_listens && sockets.is_listening(id);
            let ended = sockets.shutdown(net, id, how)?;
            runtime.stop_receiving(ended);
            runtime.turn();
            Ok(stops)
        });
        match stops {
            // SAFETY: the arguments of the program.
            Ok(true) => unsafe { real::shutdown(fd, direction) },
            result => status(result.map(drop)),
        }
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

/// Returns whether an address removes the peer of a datagram socket (AF_UNSPEC).
fn unspecifies(address: *const sockaddr, len: socklen_t) -> bool {
    // SAFETY: the program passes `len` bytes at `address`, which may be unaligned.
    !address.is_null()
        && len as usize >= size_of::<libc::sa_family_t>()
        && i32::from(unsafe { address.cast::<libc::sa_family_t>().read_unaligned() }) == libc::AF_UNSPEC
}
