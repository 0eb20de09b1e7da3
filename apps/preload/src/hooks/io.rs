//! Calls that transfer bytes.

use super::{datagrams, export, fail, length};
use crate::descriptors::{self, FileId};
use crate::real;
use crate::runtime::{self, Runtime};
use crate::waiting::{self, Deadline};
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};
use rustix::io::Errno;

/// Returns the memory of an element of an array of buffers.
///
/// # Safety
/// The program has passed the element, whose memory is writable, and does not access it during the call.
pub unsafe fn buffer<'a>(base: *mut c_void, n: usize) -> &'a mut [u8] {
    if base.is_null() || n == 0 {
        return &mut [];
    }
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts_mut(base.cast(), n.min(isize::MAX as usize)) }
}

/// Returns the memory of an element of an array of buffers to be sent.
///
/// # Safety
/// As for [`buffer`], for readable memory.
pub unsafe fn bytes<'a>(base: *const c_void, n: usize) -> &'a [u8] {
    if base.is_null() || n == 0 {
        return &[];
    }
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(base.cast(), n.min(isize::MAX as usize)) }
}

/// Returns an array of buffers.
///
/// # Safety
/// `parts` points to `n` elements.
pub unsafe fn vectors<'a>(parts: *const iovec, n: usize) -> &'a [iovec] {
    if parts.is_null() || n == 0 {
        return &[];
    }
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(parts, n) }
}

/// Repeats `attempt` as a blocking socket does, or makes one attempt.
pub fn wait<R>(
    file: FileId,
    flags: c_int,
    is_receive: bool,
    mut attempt: impl FnMut(&mut Runtime) -> Result<R, Errno>,
) -> Result<R, Errno> {
    match waiting::once(&mut attempt) {
        Err(Errno::AGAIN) if flags & libc::MSG_DONTWAIT == 0 && !runtime::is_inside() => {
            let socket = runtime::socket(file)?;
            if !socket.is_blocking {
                return Err(Errno::AGAIN);
            }
            let limit = if is_receive { socket.receive_timeout } else { socket.send_timeout };
            waiting::until_ready(Deadline::after(limit), attempt)
        }
        result => result,
    }
}

/// Most bytes of a call that receives into memory of its own.
const MOST_COPIED: usize = 1 << 20;

/// Receives into `parts`, as recvmsg(2).
///
/// # Safety
/// As for [`buffer`], for each element.
pub unsafe fn receive(file: FileId, parts: &[iovec], flags: c_int) -> Result<usize, Errno> {
    let [peeks, discards] = [libc::MSG_PEEK, libc::MSG_TRUNC].map(|flag| flags & flag != 0);
    let wanted = parts.iter().fold(0, |sum: usize, part| sum.saturating_add(part.iov_len));
    let whole = [iovec { iov_base: std::ptr::null_mut(), iov_len: wanted }];
    // Discarded bytes need no memory (tcp(7)).
    let parts = if discards { &whole } else { parts };
    if peeks && parts.len() > 1 {
        // SAFETY: the caller vouches for the elements.
        return unsafe { peek_parts(file, parts, wanted, flags) };
    }
    let waits_for_all = flags & libc::MSG_WAITALL != 0 && !peeks;
    let (mut received, mut part, mut offset) = (0, 0, 0);
    let attempt = |runtime: &mut Runtime| {
        let id = runtime.socket(file)?.id;
        let (sockets, net) = runtime.sockets()?;
        while let Some(next) = parts.get(part) {
            if received > 0 && sockets.has_error(id) {
                return Ok(());
            }
            let wanted = next.iov_len - offset;
            let result = if discards {
                sockets.skip(net, id, wanted, peeks)
            } else {
                // SAFETY: the caller vouches for the elements.
                match unsafe { buffer(next.iov_base, next.iov_len) } {
                    out if out.len() < next.iov_len => Err(Errno::FAULT),
                    out => sockets.recv(net, id, &mut out[offset..], peeks),
                }
            };
            let n = match result {
                Ok(n) => n,
                Err(Errno::AGAIN) if received > 0 && waits_for_all => return Err(Errno::AGAIN),
                Err(_) if received > 0 => return Ok(()),
                Err(error) => return Err(error),
            };
            (received, offset) = (received + n, offset + n);
            if n == wanted {
                (part, offset) = (part + 1, 0);
            } else if n == 0 || !waits_for_all {
                return Ok(());
            }
        }
        Ok(())
    };
    match wait(file, flags, true, attempt) {
        Err(error) if received == 0 => Err(error),
        _ => Ok(received),
    }
}

/// Copies received bytes to several buffers of `wanted` bytes (MSG_PEEK).
///
/// # Safety
/// As for [`buffer`], for each element.
unsafe fn peek_parts(file: FileId, parts: &[iovec], wanted: usize, flags: c_int) -> Result<usize, Errno> {
    let mut bytes = vec![0; wanted.min(MOST_COPIED)];
    let whole = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: the vector has as many bytes.
    let received = unsafe { receive(file, &[whole], flags)? };
    let mut left = &bytes[..received];
    for part in parts {
        // SAFETY: the caller vouches for the elements.
        let out = unsafe { buffer(part.iov_base, part.iov_len) };
        let (copied, rest) = left.split_at(left.len().min(out.len()));
        out[..copied.len()].copy_from_slice(copied);
        left = rest;
    }
    Ok(received)
}

/// Receives into one buffer.
///
/// # Safety
/// As for [`buffer`].
unsafe fn receive_into(file: FileId, base: *mut c_void, n: usize, flags: c_int) -> Result<usize, Errno> {
    // SAFETY: the caller vouches for the buffer.
    unsafe { receive(file, &[iovec { iov_base: base, iov_len: n }], flags) }
}

/// Sends `parts`, as sendmsg(2). A blocking socket sends all of them.
///
/// # Safety
/// As for [`bytes`], for each element.
pub unsafe fn transmit(file: FileId, parts: &[iovec], flags: c_int) -> Result<usize, Errno> {
    if flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY) != 0 {
        return Err(refusal(flags));
    }
    let mut progress = Progress { more: flags & libc::MSG_MORE != 0, ..Progress::default() };
    // SAFETY: the caller vouches for the elements.
    let result = wait(file, flags, false, |runtime| unsafe { progress.send(runtime, file, parts) });
    match result {
        Err(error) if progress.sent == 0 => {
            if error == Errno::PIPE && flags & libc::MSG_NOSIGNAL == 0 {
                // SAFETY: raise(3) has no pointers. The signal is for this thread, as that of the kernel.
                unsafe { libc::raise(libc::SIGPIPE) };
            }
            Err(error)
        }
        _ => Ok(progress.sent),
    }
}

/// Returns the error of MSG_OOB or MSG_ZEROCOPY. With that of the latter, programs send a copy.
#[cold]
pub fn refusal(flags: c_int) -> Errno {
    if flags & libc::MSG_OOB != 0 { Errno::OPNOTSUPP } else { Errno::NOBUFS }
}

/// Sends all of `bytes`, even with O_NONBLOCK.
pub fn transmit_all(file: FileId, bytes: &[u8]) -> Result<usize, Errno> {
    let parts = [iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }];
    let mut progress = Progress::default();
    // SAFETY: the bytes are readable.
    let send = |runtime: &mut Runtime| unsafe { progress.send(runtime, file, &parts) };
    match waiting::until_ready(Deadline::after(None), send) {
        Err(error) if progress.sent == 0 => Err(error),
        _ => Ok(progress.sent),
    }
}

/// Position in the elements of a call that sends.
#[derive(Default)]
struct Progress {
    sent: usize,
    part: usize,
    offset: usize,
    /// True if a further call follows (MSG_MORE).
    more: bool,
}

impl Progress {
    /// Sends the rest of `parts`.
    ///
    /// # Safety
    /// As for [`bytes`], for each element.
    unsafe fn send(&mut self, runtime: &mut Runtime, file: FileId, parts: &[iovec]) -> Result<(), Errno> {
        let id = runtime.socket(file)?.id;
        let (sockets, net) = runtime.sockets()?;
        while let Some(next) = parts.get(self.part) {
            if self.sent > 0 && sockets.has_error(id) {
                return Ok(());
            }
            // SAFETY: the caller vouches for the elements.
            let all = unsafe { bytes(next.iov_base, next.iov_len) };
            if all.len() < next.iov_len {
                return Err(Errno::FAULT);
            }
            let left = &all[self.offset..];
            let n = sockets.send(net, id, left, self.more)?;
            (self.sent, self.offset) = (self.sent + n, self.offset + n);
            if n == left.len() {
                (self.part, self.offset) = (self.part + 1, 0);
            }
        }
        Ok(())
    }
}

/// Sends one buffer.
///
/// # Safety
/// As for [`bytes`].
unsafe fn send_from(file: FileId, base: *const c_void, n: usize, flags: c_int) -> Result<usize, Errno> {
    // SAFETY: the caller vouches for the buffer, which is only read.
    unsafe { transmit(file, &[iovec { iov_base: base.cast_mut(), iov_len: n }], flags) }
}

/// Receives a datagram into one buffer.
///
/// # Safety
/// As for [`buffer`].
unsafe fn receive_datagram(fd: c_int, file: FileId, base: *mut c_void, n: usize, flags: c_int) -> Result<usize, Errno> {
    let parts = [iovec { iov_base: base, iov_len: n }];
    let mut message = datagrams::message(&parts, std::ptr::null_mut(), 0);
    // SAFETY: the caller vouches for the buffer.
    unsafe { datagrams::receive(fd, file, &raw mut message, flags) }
}

/// Sends one buffer as a datagram to the peer.
///
/// # Safety
/// As for [`bytes`].
unsafe fn send_datagram(fd: c_int, file: FileId, base: *const c_void, n: usize, flags: c_int) -> Result<usize, Errno> {
    let parts = [iovec { iov_base: base.cast_mut(), iov_len: n }];
    let message = datagrams::message(&parts, std::ptr::null_mut(), 0);
    // SAFETY: the caller vouches for the buffer.
    unsafe { datagrams::send(fd, file, &raw const message, flags) }
}

/// Returns whether a message gives sockets or sets of the stack to another process (SCM_RIGHTS), which is refused: the
/// process would receive the kernel's unused descriptors.
///
/// # Safety
/// `message` points to a message.
unsafe fn passes_sockets(message: *const msghdr) -> bool {
    // SAFETY: the caller vouches for the message, whose control data has the format of the kernel.
    unsafe {
        if (*message).msg_controllen == 0 || runtime::is_inside() {
            return false;
        }
        let mut control = libc::CMSG_FIRSTHDR(message);
        while !control.is_null() {
            if ((*control).cmsg_level, (*control).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let data = libc::CMSG_DATA(control).cast::<c_int>();
                let n = (*control).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize) / size_of::<c_int>();
                if (0..n).any(|at| descriptors::file(data.add(at).read_unaligned()).is_some()) {
                    tracing::error!("a socket of the stack cannot be passed to another process (SCM_RIGHTS)");
                    return true;
                }
            }
            control = libc::CMSG_NXTHDR(message, control);
        }
    }
    false
}

/// Clears the fields of a received message that a stream does not have.
///
/// # Safety
/// `message` points to a message.
pub unsafe fn clear(message: *mut msghdr) {
    // SAFETY: as above.
    unsafe {
        (*message).msg_namelen = 0;
        (*message).msg_controllen = 0;
        (*message).msg_flags = 0;
    }
}

export! {
    fn read(fd: c_int, buffer: *mut c_void, n: size_t) -> ssize_t {
        match descriptors::file(fd) {
            // SAFETY: the arguments of the program.
            None => unsafe { real::read(fd, buffer, n) },
            // SAFETY: the program passes `n` writable bytes.
            Some(file) if file.has_datagrams() => length(unsafe { receive_datagram(fd, file, buffer, n, 0) }),
            // SAFETY: the program passes `n` writable bytes.
            Some(file) => length(unsafe { receive_into(file, buffer, n, 0) }),
        }
    }

    fn __read_chk(fd: c_int, buffer: *mut c_void, n: size_t, room: size_t) -> ssize_t {
        if n > room {
            std::process::abort();
        }
        // SAFETY: the arguments of the program.
        unsafe { read(fd, buffer, n) }
    }

    fn recv(fd: c_int, buffer: *mut c_void, n: size_t, flags: c_int) -> ssize_t {
        // SAFETY: recv(2) is recvfrom(2) without an address.
        unsafe { recvfrom(fd, buffer, n, flags, std::ptr::null_mut(), std::ptr::null_mut()) }
    }

    fn __recv_chk(fd: c_int, buffer: *mut c_void, n: size_t, room: size_t, flags: c_int) -> ssize_t {
        if n > room {
            std::process::abort();
        }
        // SAFETY: the arguments of the program.
        unsafe { recv(fd, buffer, n, flags) }
    }

    fn recvfrom(
        fd: c_int, buffer: *mut c_void, n: size_t, flags: c_int, address: *mut sockaddr, len: *mut socklen_t,
    ) -> ssize_t {
        let Some(file) = descriptors::file(fd) else {
            // SAFETY: the arguments of the program.
            return unsafe { real::recvfrom(fd, buffer, n, flags, address, len) };
        };
        if file.has_datagrams() {
            let parts = [iovec { iov_base: buffer, iov_len: n }];
            // SAFETY: the arguments of the program.
            let mut message = unsafe {
                datagrams::message(&parts, address, if len.is_null() { 0 } else { *len })
            };
            // SAFETY: as above.
            let result = unsafe { datagrams::receive(fd, file, &raw mut message, flags) };
            if result.is_ok() && !len.is_null() {
                // SAFETY: as above.
                unsafe { *len = message.msg_namelen };
            }
            return length(result);
        }
        if !len.is_null() {
            // SAFETY: the program passes the address of a length. A stream returns no address.
            unsafe { *len = 0 };
        }
        // SAFETY: the program passes `n` writable bytes.
        length(unsafe { receive_into(file, buffer, n, flags) })
    }

    fn __recvfrom_chk(
        fd: c_int, buffer: *mut c_void, n: size_t, room: size_t, flags: c_int, address: *mut sockaddr,
        len: *mut socklen_t,
    ) -> ssize_t {
        if n > room {
            std::process::abort();
        }
        // SAFETY: the arguments of the program.
        unsafe { recvfrom(fd, buffer, n, flags, address, len) }
    }

    fn readv(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t {
        let Some(file) = descriptors::file(fd) else {
            // SAFETY: the arguments of the program.
            return unsafe { real::readv(fd, parts, n) };
        };
        let Ok(n) = usize::try_from(n) else { return fail(Errno::INVAL) as ssize_t };
        // SAFETY: the program passes `n` elements.
        unsafe {
            let parts = vectors(parts, n);
            if file.has_datagrams() {
                let mut message = datagrams::message(parts, std::ptr::null_mut(), 0);
                return length(datagrams::receive(fd, file, &raw mut message, 0));
            }
            length(receive(file, parts, 0))
        }
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        let Some(file) = descriptors::file(fd) else {
            // SAFETY: the arguments of the program.
            return unsafe { real::recvmsg(fd, message, flags) };
        };
        // SAFETY: the program passes a message with `msg_iovlen` elements.
        unsafe {
            if file.has_datagrams() {
                return length(datagrams::receive(fd, file, message, flags));
            }
            let parts = vectors((*message).msg_iov, (*message).msg_iovlen);
            let result = receive(file, parts, flags);
            clear(message);
            length(result)
        }
    }

    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        let Some(file) = descriptors::file(fd) else {
            // SAFETY: the arguments of the program.
            return unsafe { real::recvmmsg(fd, messages, n, flags, timeout) };
        };
        // A stream fills one message.
        let most = if file.has_datagrams() { n } else { n.min(1) };
        // SAFETY: the program passes null or a time.
        let deadline = Deadline::after(unsafe { super::poll::duration(timeout) });
        let mut flags = flags;
        for at in 0..most {
            // SAFETY: the program passes `n` messages.
            unsafe {
                let message = messages.add(at as usize);
                let received = recvmsg(fd, &raw mut (*message).msg_hdr, flags & !libc::MSG_WAITFORONE);
                if received < 0 {
                    return if at > 0 { at as c_int } else { -1 };
                }
                (*message).msg_len = received as c_uint;
            }
            if flags & libc::MSG_WAITFORONE != 0 {
                flags |= libc::MSG_DONTWAIT;
            }
            if deadline.has_passed() {
                return at as c_int + 1;
            }
        }
        most as c_int
    }

    fn write(fd: c_int, buffer: *const c_void, n: size_t) -> ssize_t {
        match descriptors::file(fd) {
            // SAFETY: the arguments of the program.
            None => unsafe { real::write(fd, buffer, n) },
            // SAFETY: the program passes `n` readable bytes.
            Some(file) if file.has_datagrams() => length(unsafe { send_datagram(fd, file, buffer, n, 0) }),
            // SAFETY: the program passes `n` readable bytes.
            Some(file) => length(unsafe { send_from(file, buffer, n, 0) }),
        }
    }

    fn send(fd: c_int, buffer: *const c_void, n: size_t, flags: c_int) -> ssize_t {
        // SAFETY: send(2) is sendto(2) without an address.
        unsafe { sendto(fd, buffer, n, flags, std::ptr::null(), 0) }
    }

    fn sendto(
        fd: c_int, buffer: *const c_void, n: size_t, flags: c_int, address: *const sockaddr, len: socklen_t,
    ) -> ssize_t {
        // SAFETY: the program passes `len` bytes at `address`.
        let adopt = || unsafe { datagrams::adopt_for(fd, address.cast(), len) };
        match descriptors::file(fd).or_else(adopt) {
            // SAFETY: the arguments of the program.
            None => unsafe { real::sendto(fd, buffer, n, flags, address, len) },
            Some(file) if file.has_datagrams() => {
                let parts = [iovec { iov_base: buffer.cast_mut(), iov_len: n }];
                let message = datagrams::message(&parts, address.cast_mut(), len);
                // SAFETY: the arguments of the program.
                length(unsafe { datagrams::send(fd, file, &raw const message, flags) })
            }
            // SAFETY: the program passes `n` readable bytes.
            Some(file) => length(unsafe { send_from(file, buffer, n, flags) }),
        }
    }

    fn writev(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t {
        let Some(file) = descriptors::file(fd) else {
            // SAFETY: the arguments of the program.
            return unsafe { real::writev(fd, parts, n) };
        };
        let Ok(n) = usize::try_from(n) else { return fail(Errno::INVAL) as ssize_t };
        // SAFETY: the program passes `n` elements.
        unsafe {
            let parts = vectors(parts, n);
            if file.has_datagrams() {
                let message = datagrams::message(parts, std::ptr::null_mut(), 0);
                return length(datagrams::send(fd, file, &raw const message, 0));
            }
            length(transmit(file, parts, 0))
        }
    }

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        // SAFETY: the program passes a message.
        let adopt = || unsafe { datagrams::adopt_for(fd, (*message).msg_name, (*message).msg_namelen) };
        let Some(file) = descriptors::file(fd).or_else(adopt) else {
            // SAFETY: the arguments of the program.
            return unsafe {
                if passes_sockets(message) {
                    return fail(Errno::OPNOTSUPP) as ssize_t;
                }
                real::sendmsg(fd, message, flags)
            };
        };
        // SAFETY: the program passes a message with `msg_iovlen` elements.
        unsafe {
            if file.has_datagrams() {
                return length(datagrams::send(fd, file, message, flags));
            }
            length(transmit(file, vectors((*message).msg_iov, (*message).msg_iovlen), flags))
        }
    }

    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int {
        // SAFETY: the program passes `n` messages.
        let adopt = || unsafe {
            let first = if n > 0 { &raw const (*messages).msg_hdr } else { return None };
            datagrams::adopt_for(fd, (*first).msg_name, (*first).msg_namelen)
        };
        if descriptors::file(fd).or_else(adopt).is_none() {
            // SAFETY: the arguments of the program.
            return unsafe { real::sendmmsg(fd, messages, n, flags) };
        }
        for at in 0..n {
            // SAFETY: the program passes `n` messages.
            unsafe {
                let message = messages.add(at as usize);
                let sent = sendmsg(fd, &raw const (*message).msg_hdr, flags);
                if sent < 0 {
                    return if at > 0 { at as c_int } else { -1 };
                }
                (*message).msg_len = sent as c_uint;
            }
        }
        n as c_int
    }
}
