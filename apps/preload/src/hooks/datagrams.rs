//! Messages of datagram sockets.

use super::{epoll, io, last_error, poll, socket};
use crate::descriptors::FileId;
use crate::runtime::{self, Runtime, SocketFile};
use crate::signals::Interruptions;
use crate::waiting::{self, Deadline};
use crate::{real, sockaddr as address_of_c};
use libc::{c_int, c_void, cmsghdr, iovec, msghdr, pollfd, sockaddr, socklen_t};
use linerate_service::Datagram;
use rustix::io::Errno;
use std::net::{IpAddr, SocketAddr};

/// Returns a message of the buffers `parts`, which must outlive it, without control data.
pub fn message(parts: &[iovec], address: *mut sockaddr, len: socklen_t) -> msghdr {
    // SAFETY: all bytes of a message may be zero.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_ptr().cast_mut();
    message.msg_iovlen = parts.len();
    (message.msg_name, message.msg_namelen) = (address.cast(), if address.is_null() { 0 } else { len });
    message
}

/// Source of the next datagram.
enum Next {
    Stack(Datagram),
    /// The socket is shut down for reading.
    End,
    Kernel,
}

/// Waits for a datagram, as a blocking socket does, or makes one attempt.
fn next(fd: c_int, file: FileId, flags: c_int, deadline: &mut Option<Deadline>) -> Result<(Next, SocketFile), Errno> {
    let interruptions = Interruptions::so_far();
    let attempt = |runtime: &mut Runtime| {
        let socket = runtime.socket(file)?.clone();
        let received = runtime.sockets()?.0.recv_datagram(socket.id, flags & libc::MSG_PEEK != 0)?;
        Ok((received.map_or(Next::End, Next::Stack), socket))
    };
    loop {
        match waiting::once(attempt) {
            Err(Errno::AGAIN) => {}
            result => return result,
        }
        let socket = runtime::socket(file)?;
        if socket.kernel_listens && poll::kernel_is_ready(fd, libc::POLLIN) {
            return Ok((Next::Kernel, socket));
        }
        let deadline = *deadline.get_or_insert_with(|| Deadline::after(socket.receive_timeout));
        let waits = socket.is_blocking && flags & libc::MSG_DONTWAIT == 0 && !runtime::is_inside();
        if !waits || deadline.has_passed() {
            return Err(Errno::AGAIN);
        }
        let mut asked = [pollfd { fd, events: libc::POLLIN, revents: 0 }];
        match poll::wait(&mut asked, deadline.left(), std::ptr::null()) {
            Err(Errno::INTR) if !interruptions.ends_calls(deadline.exists()) => {}
            Err(error) => return Err(error),
            Ok(_) => {}
        }
    }
}

/// Receives a datagram, as recvmsg(2).
///
/// # Safety
/// `message` points to a message whose buffers are writable.
pub unsafe fn receive(fd: c_int, file: FileId, message: *mut msghdr, flags: c_int) -> Result<usize, Errno> {
    // SAFETY: the caller vouches for the message.
    let kernel = |flags| unsafe { usize::try_from(real::recvmsg(fd, message, flags)).map_err(|_| last_error()) };
    if flags & libc::MSG_ERRQUEUE != 0 {
        return kernel(flags);
    }
    let mut deadline = None;
    loop {
        let (next, socket) = next(fd, file, flags, &mut deadline)?;
        match next {
            // SAFETY: the caller vouches for the message.
            Next::Stack(datagram) => return Ok(unsafe { fill(message, &datagram, flags, &socket) }),
            Next::End => {
                // SAFETY: as above.
                unsafe { io::clear(message) };
                return Ok(0);
            }
            Next::Kernel => match kernel(flags | libc::MSG_DONTWAIT) {
                // Another thread has received the datagram, or its checksum is wrong.
                Err(Errno::AGAIN) if socket.is_blocking && flags & libc::MSG_DONTWAIT == 0 => {}
                result => return result,
            },
        }
    }
}

/// Copies `datagram` to `message`. Returns the result of recvmsg(2).
///
/// # Safety
/// As for [`receive`].
unsafe fn fill(message: *mut msghdr, datagram: &Datagram, flags: c_int, socket: &SocketFile) -> usize {
    let mut left = &datagram.payload[..];
    // SAFETY: the caller vouches for the message, its buffers and its address.
    unsafe {
        for part in io::vectors((*message).msg_iov, (*message).msg_iovlen) {
            let out = io::buffer(part.iov_base, part.iov_len);
            let (copied, rest) = left.split_at(left.len().min(out.len()));
            out[..copied.len()].copy_from_slice(copied);
            left = rest;
        }
        let (name, len) = ((*message).msg_name, &raw mut (*message).msg_namelen);
        address_of_c::write(datagram.remote, socket.is_v6, name.cast(), len);
        if socket.has_packet_info {
            write_packet_info(message, datagram.local.ip(), socket.is_v6);
        } else {
            (*message).msg_controllen = 0;
        }
        (*message).msg_flags = if left.is_empty() { 0 } else { libc::MSG_TRUNC };
    }
    let all = datagram.payload.len();
    if flags & libc::MSG_TRUNC != 0 { all } else { all - left.len() }
}

/// Writes the destination `ip` of a datagram to the control data of `message` (IP_PKTINFO).
///
/// # Safety
/// `message` points to a message whose control data is writable.
unsafe fn write_packet_info(message: *mut msghdr, ip: IpAddr, is_v6: bool) {
    let v6 = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let v6 = libc::in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: v6.octets() }, ipi6_ifindex: 0 };
    let v4 = match ip {
        IpAddr::V4(ip) => libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
        IpAddr::V6(_) => libc::in_addr { s_addr: 0 },
    };
    let v4 = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: v4, ipi_addr: v4 };
    let (level, kind, from, len) = if is_v6 {
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, (&raw const v6).cast::<u8>(), size_of_val(&v6))
    } else {
        (libc::IPPROTO_IP, libc::IP_PKTINFO, (&raw const v4).cast::<u8>(), size_of_val(&v4))
    };
    // SAFETY: CMSG_SPACE bytes are written if the control data has as many.
    unsafe {
        let space = libc::CMSG_SPACE(len as u32) as usize;
        let control = (*message).msg_control.cast::<cmsghdr>();
        if control.is_null() || (*message).msg_controllen < space {
            (*message).msg_controllen = 0;
            return;
        }
        (*control).cmsg_level = level;
        (*control).cmsg_type = kind;
        (*control).cmsg_len = libc::CMSG_LEN(len as u32) as usize;
        std::ptr::copy_nonoverlapping(from, libc::CMSG_DATA(control), len);
        (*message).msg_controllen = space;
    }
}

/// Returns the source address that the control data of `message` gives (IP_PKTINFO).
///
/// # Errors
/// `EIO` for a message that is to be split (UDP_SEGMENT).
///
/// # Safety
/// `message` points to a message.
unsafe fn packet_info(message: *const msghdr) -> Result<Option<IpAddr>, Errno> {
    // SAFETY: the caller vouches for the message. The data of a message of the kernel's format has its full length.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(message);
        while !control.is_null() {
            let data = libc::CMSG_DATA(control);
            let len = (*control).cmsg_len;
            let has = |size: usize| len >= libc::CMSG_LEN(size as u32) as usize;
            match ((*control).cmsg_level, (*control).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) if has(size_of::<libc::in_pktinfo>()) => {
                    let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                    let ip = IpAddr::from(info.ipi_spec_dst.s_addr.to_ne_bytes());
                    return Ok(Some(ip).filter(|ip| !ip.is_unspecified()));
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if has(size_of::<libc::in6_pktinfo>()) => {
                    let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                    let ip = IpAddr::from(info.ipi6_addr.s6_addr).to_canonical();
                    return Ok(Some(ip).filter(|ip| !ip.is_unspecified()));
                }
                // Programs then send datagrams one by one.
                (libc::IPPROTO_UDP, libc::UDP_SEGMENT) => return Err(Errno::IO),
                _ => control = libc::CMSG_NXTHDR(message, control),
            }
        }
    }
    Ok(None)
}

/// Sends a datagram, as sendmsg(2).
///
/// # Safety
/// `message` points to a message whose buffers are readable.
pub unsafe fn send(fd: c_int, file: FileId, message: *const msghdr, flags: c_int) -> Result<usize, Errno> {
    if flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY) != 0 {
        return Err(io::refusal(flags));
    }
    // SAFETY: the caller vouches for the message.
    let (parts, to, from) = unsafe {
        let to = match (*message).msg_name {
            name if name.is_null() => None,
            name => Some(address_of_c::read(name.cast(), (*message).msg_namelen).ok_or(Errno::AFNOSUPPORT)?),
        };
        (io::vectors((*message).msg_iov, (*message).msg_iovlen), to, packet_info(message)?)
    };
    if parts.iter().any(|part| part.iov_base.is_null() && part.iov_len > 0) {
        return Err(Errno::FAULT);
    }
    let len = parts.iter().map(|part| part.iov_len).sum();
    let write = |mut out: &mut [u8]| {
        for part in parts {
            // SAFETY: the caller vouches for the buffers.
            let bytes = unsafe { io::bytes(part.iov_base, part.iov_len) };
            let (copied, rest) = std::mem::take(&mut out).split_at_mut(bytes.len());
            copied.copy_from_slice(bytes);
            out = rest;
        }
    };
    let sent = io::wait(file, flags, false, |runtime| {
        let SocketFile { id, kernel_listens, .. } = *runtime.socket(file)?;
        if let Some(to) = to
            && !is_for_stack(runtime, to)
        {
            return if kernel_listens { Ok(false) } else { Err(Errno::NETUNREACH) };
        }
        if let Some(from) = from
            && !runtime.network().is_some_and(|network| network.is_local(from))
        {
            return Err(Errno::INVAL);
        }
        let (sockets, net) = runtime.sockets()?;
        sockets.send_datagram(net, id, (to, from), len, write)?;
        Ok(true)
    })?;
    if sent {
        return Ok(len);
    }
    // SAFETY: the caller vouches for the message.
    usize::try_from(unsafe { real::sendmsg(fd, message, flags) }).map_err(|_| last_error())
}

/// Returns whether the stack has a route to `remote`.
fn is_for_stack(runtime: &mut Runtime, remote: SocketAddr) -> bool {
    !remote.ip().is_loopback() && runtime.has_route(remote.ip())
}

/// Carries the unbound datagram socket `fd` of the kernel over the stack, if a message to `address` concerns the
/// network. Returns its file.
///
/// # Safety
/// `address` is null or points to `len` readable bytes.
pub unsafe fn adopt_for(fd: c_int, address: *const c_void, len: socklen_t) -> Option<FileId> {
    if address.is_null() || runtime::is_inside() || runtime::is_child() {
        return None;
    }
    // SAFETY: the caller vouches for the address.
    let remote = unsafe { address_of_c::read(address.cast(), len) }?;
    if remote.ip().is_loopback() || remote.ip().is_unspecified() {
        return None;
    }
    let is_for = |runtime: &mut Runtime| !runtime.will_serve() && is_for_stack(runtime, remote);
    if runtime::enter(|runtime| Ok(is_for(runtime))) != Ok(true) || !socket::has_datagrams(fd) {
        return None;
    }
    let file = socket::adopt(fd, is_for)?;
    match socket::bind_to_all(fd, file) {
        Ok(()) => {
            epoll::migrate(fd, file);
            Some(file)
        }
        Err(error) => {
            tracing::warn!("a datagram socket stays with the kernel: {error}");
            runtime::forget(fd);
            None
        }
    }
}

/// Connects a datagram socket, as connect(2): to `remote` in the network, to another address in the kernel, or to none.
///
/// # Safety
/// `address` points to `len` readable bytes.
pub unsafe fn connect(
    fd: c_int,
    file: FileId,
    remote: Option<SocketAddr>,
    (address, len): (*const sockaddr, socklen_t),
) -> Result<(), Errno> {
    // SAFETY: the caller vouches for the address.
    let kernel = || if unsafe { real::connect(fd, address, len) } == 0 { Ok(()) } else { Err(last_error()) };
    let (socket, is_routed, is_bound) = runtime::enter(|runtime| {
        let is_routed = remote.is_none_or(|remote| is_for_stack(runtime, remote));
        let socket = runtime.socket(file)?.clone();
        let is_bound = runtime.sockets()?.0.local_addr(socket.id).is_some();
        Ok((socket, is_routed, is_bound))
    })?;
    if !is_routed {
        if is_bound && !socket.kernel_listens {
            return Err(Errno::NETUNREACH);
        }
        // The stack's part of the socket ends.
        return kernel().inspect(|()| runtime::forget(fd));
    }
    if let Some(remote) = remote
        && !is_bound
    {
        let source = runtime::enter(|runtime| {
            let (_, net) = runtime.sockets()?;
            linerate_service::Transport::source_for(net, remote.ip()).ok_or(Errno::NETUNREACH)
        })?;
        socket::bind_at(fd, file, source)?;
    }
    runtime::enter(|runtime| {
        let (sockets, net) = runtime.sockets()?;
        sockets.connect_datagrams(net, socket.id, remote)
    })?;
    if socket.kernel_listens || remote.is_none() {
        // The kernel's socket receives from this peer only, as far as the kernel has a route to it.
        let _ = kernel();
    }
    Ok(())
}
