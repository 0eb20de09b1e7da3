//! Calls that transfer bytes.

use super::{datagrams, export, fail, last_error, length};
use crate::descriptors::{self, FileId};
use crate::real;
use crate::runtime::{self, Runtime};
use crate::waiting::{self, Deadline};
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use rustix::io::Errno;

/// Bytes that sendfile(2) copies at a time.
const COPIED: usize = 64 << 10;

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

/// Receives into `parts`, as recvmsg(2).
///
/// # Safety
/// As for [`buffer`], for each element.
unsafe fn receive(file: FileId, parts: &[iovec], flags: c_int) -> Result<usize, Errno> {
    let peek = flags & libc::MSG_PEEK != 0;
    let attempt = |runtime: &mut Runtime| {
        let id = runtime.socket(file)?.id;
        let (sockets, net) = runtime.sockets()?;
        if peek {
            // SAFETY: the caller vouches for the elements.
            let first = parts.first().map_or(&mut [][..], |part| unsafe { buffer(part.iov_base, part.iov_len) });
            return sockets.recv(net, id, first, true);
        }
        let mut received = 0;
        for part in parts {
            // SAFETY: the caller vouches for the elements.
            let out = unsafe { buffer(part.iov_base, part.iov_len) };
            let wanted = out.len();
            match sockets.recv(net, id, out, false) {
                Ok(n) => received += n,
                Err(_) if received > 0 => break,
                Err(error) => return Err(error),
            }
            if received < wanted {
                break;
            }
        }
        Ok(received)
    };
    wait(file, flags, true, attempt)
}

/// Receives all of one buffer with MSG_WAITALL.
///
/// # Safety
/// As for [`buffer`].
unsafe fn receive_into(file: FileId, base: *mut c_void, n: usize, flags: c_int) -> Result<usize, Errno> {
    let mut received = 0;
    loop {
        let part = iovec { iov_base: base.wrapping_byte_add(received), iov_len: n - received };
        // SAFETY: the part lies in the buffer.
        match unsafe { receive(file, &[part], flags) } {
            Ok(more) => {
                received += more;
                let waits = flags & libc::MSG_WAITALL != 0 && flags & (libc::MSG_PEEK | libc::MSG_DONTWAIT) == 0;
                if more == 0 || received == n || !waits {
                    return Ok(received);
                }
            }
            Err(_) if received > 0 => return Ok(received),
            Err(error) => return Err(error),
        }
    }
}

/// Sends `parts`, as sendmsg(2). A blocking socket sends all of them.
///
/// # Safety
/// As for [`bytes`], for each element.
unsafe fn transmit(file: FileId, parts: &[iovec], flags: c_int) -> Result<usize, Errno> {
    let (mut sent, mut part, mut offset) = (0, 0, 0);
    let mut attempt = |runtime: &mut Runtime| {
        let id = runtime.socket(file)?.id;
        let (sockets, net) = runtime.sockets()?;
        while let Some(next) = parts.get(part) {
            // SAFETY: the caller vouches for the elements.
            let left = unsafe { &bytes(next.iov_base, next.iov_len)[offset..] };
            let n = sockets.send(net, id, left)?;
            (sent, offset) = (sent + n, offset + n);
            if n == left.len() {
                (part, offset) = (part + 1, 0);
            }
        }
        Ok(())
    };
    let result = wait(file, flags, false, &mut attempt);
    match result {
        Ok(()) => Ok(sent),
        Err(_) if sent > 0 => Ok(sent),
        Err(error) => {
            if error == Errno::PIPE && flags & libc::MSG_NOSIGNAL == 0 {
                // SAFETY: raise(3) has no pointers. The signal is for this thread, as that of the kernel.
                unsafe { libc::raise(libc::SIGPIPE) };
            }
            Err(error)
        }
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

/// Copies `n` bytes of the file `from` to a socket, as sendfile(2).
///
/// # Safety
/// `offset` is null or points to an offset.
unsafe fn send_file(file: FileId, from: c_int, offset: *mut off_t, n: usize) -> Result<usize, Errno> {
    // SAFETY: the caller vouches for the pointer.
    let start = if offset.is_null() {
        // SAFETY: lseek(2) has no pointers.
        unsafe { libc::lseek(from, 0, libc::SEEK_CUR) }
    } else {
        // SAFETY: the caller vouches for the pointer.
        unsafe { *offset }
    };
    if start < 0 {
        return Err(last_error());
    }
    let mut copied = vec![0; COPIED.min(n)];
    let mut sent = 0;
    while sent < n {
        let wanted = copied.len().min(n - sent);
        // SAFETY: `copied` has `wanted` bytes.
        let read = unsafe { libc::pread(from, copied.as_mut_ptr().cast(), wanted, start + sent as off_t) };
        let Ok(read) = usize::try_from(read) else {
            if sent > 0 {
                break;
            }
            return Err(last_error());
        };
        if read == 0 {
            break;
        }
        // SAFETY: `copied` has `read` bytes.
        match unsafe { send_from(file, copied.as_ptr().cast(), read, 0) } {
            Ok(n) => {
                sent += n;
                if n < read {
                    break;
                }
            }
            Err(_) if sent > 0 => break,
            Err(error) => return Err(error),
        }
    }
    let end = start + sent as off_t;
    // SAFETY: the caller vouches for the pointer; lseek(2) has none.
    unsafe {
        if offset.is_null() {
            libc::lseek(from, end, libc::SEEK_SET);
        } else {
            *offset = end;
        }
    }
    Ok(sent)
}

/// Receives a datagram into one buffer.
///
/// # Safety
/// As for [`buffer`].
unsafe fn receive_datagram(fd: c_int, file: FileId, base: *mut c_void, n: usize, flags: c_int) -> Result<usize, Errno> {
    let mut parts = [iovec { iov_base: base, iov_len: n }];
    let mut message = datagrams::message(&mut parts, std::ptr::null_mut(), 0);
    // SAFETY: the caller vouches for the buffer.
    unsafe { datagrams::receive(fd, file, &raw mut message, flags) }
}

/// Sends one buffer as a datagram to the peer.
///
/// # Safety
/// As for [`bytes`].
unsafe fn send_datagram(fd: c_int, file: FileId, base: *const c_void, n: usize, flags: c_int) -> Result<usize, Errno> {
    let mut parts = [iovec { iov_base: base.cast_mut(), iov_len: n }];
    let message = datagrams::message(&mut parts, std::ptr::null_mut(), 0);
    // SAFETY: the caller vouches for the buffer.
    unsafe { datagrams::send(fd, file, &raw const message, flags) }
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
            let mut parts = [iovec { iov_base: buffer, iov_len: n }];
            // SAFETY: the arguments of the program.
            let mut message = unsafe {
                datagrams::message(&mut parts, address, if len.is_null() { 0 } else { *len })
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
                let mut message = datagrams::message(&mut parts.to_vec(), std::ptr::null_mut(), 0);
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
                let mut parts = [iovec { iov_base: buffer.cast_mut(), iov_len: n }];
                let message = datagrams::message(&mut parts, address.cast_mut(), len);
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
                let message = datagrams::message(&mut parts.to_vec(), std::ptr::null_mut(), 0);
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
            return unsafe { real::sendmsg(fd, message, flags) };
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

    fn sendfile64(fd: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t {
        match descriptors::file(fd) {
            // SAFETY: the arguments of the program.
            None => unsafe { real::sendfile64(fd, from, offset, n) },
            // SAFETY: the program passes null or an offset.
            Some(file) => length(unsafe { send_file(file, from, offset, n) }),
        }
    }

    fn sendfile(fd: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t {
        // SAFETY: offsets have 64 bits.
        unsafe { sendfile64(fd, from, offset, n) }
    }
}
