//! sendfile(2) and splice(2), which copy.

use super::{export, io, last_error, length, poll};
use crate::descriptors::{self, FileId};
use crate::real;
use crate::runtime;
use libc::{c_int, c_short, c_uint, iovec, off_t, pollfd, size_t, ssize_t};
use rustix::io::Errno;
use std::cell::Cell;

/// Bytes that are copied at a time: the capacity of a pipe.
const COPIED: usize = 64 << 10;

thread_local! {
    /// Memory for the bytes, kept between calls.
    static MEMORY: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Calls `copy` with memory for [`COPIED`] bytes.
fn with_memory<R>(copy: impl FnOnce(&mut [u8]) -> R) -> R {
    // A thread that ends has no memory of its own any more.
    let mut memory = MEMORY.try_with(Cell::take).unwrap_or_default();
    memory.resize(COPIED, 0);
    let result = copy(&mut memory);
    let _ = MEMORY.try_with(|kept| kept.set(memory));
    result
}

/// Returns the result of a call that transfers bytes.
fn transferred(result: ssize_t) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| last_error())
}

/// Copies `n` bytes of the file `from` to a socket, as sendfile(2).
///
/// # Safety
/// `offset` is null or points to an offset.
unsafe fn send_file(file: FileId, from: c_int, offset: *mut off_t, n: usize) -> Result<usize, Errno> {
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
    let sent = with_memory(|memory| {
        let mut sent = 0;
        while sent < n {
            let wanted = memory.len().min(n - sent);
            // SAFETY: the memory has `wanted` bytes.
            let read = unsafe { libc::pread(from, memory.as_mut_ptr().cast(), wanted, start + sent as off_t) };
            let copied = transferred(read).and_then(|read| Ok((read, send_all(file, &memory[..read])?)));
            match copied {
                Ok((read, n)) => {
                    sent += n;
                    if n == 0 || n < read {
                        break;
                    }
                }
                Err(_) if sent > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    })?;
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

fn send_all(file: FileId, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the bytes are readable.
    unsafe { io::transmit(file, &[iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }], 0) }
}

fn is_pipe(fd: c_int) -> bool {
    // SAFETY: all bytes of the structure may be zero.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is writable.
    unsafe { libc::fstat(fd, &mut status) == 0 && status.st_mode & libc::S_IFMT == libc::S_IFIFO }
}

/// Waits until the pipe is ready, or returns `EAGAIN` with SPLICE_F_NONBLOCK or O_NONBLOCK.
fn await_pipe(pipe: c_int, events: c_short, flags: c_uint) -> Result<(), Errno> {
    if poll::kernel_is_ready(pipe, events) {
        return Ok(());
    }
    if flags & libc::SPLICE_F_NONBLOCK != 0 || runtime::is_nonblocking(pipe) {
        return Err(Errno::AGAIN);
    }
    let mut asked = pollfd { fd: pipe, events, revents: 0 };
    // SAFETY: one element, and no limit.
    let n = unsafe { real::ppoll(&mut asked, 1, std::ptr::null(), std::ptr::null()) };
    if n < 0 { Err(last_error()) } else { Ok(()) }
}

/// Writes as much of `bytes` to the pipe as it has room for.
fn fill_pipe(pipe: c_int, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: these commands have no pointers, and the bytes are readable.
    unsafe {
        let flags = real::fcntl(pipe, libc::F_GETFL, 0);
        let blocks = flags & libc::O_NONBLOCK == 0;
        if blocks {
            real::fcntl(pipe, libc::F_SETFL, (flags | libc::O_NONBLOCK) as usize);
        }
        let result = transferred(real::write(pipe, bytes.as_ptr().cast(), bytes.len()));
        if blocks {
            real::fcntl(pipe, libc::F_SETFL, flags as usize);
        }
        result
    }
}

/// Copies received bytes to a pipe. Bytes for which it has no room stay in the queue.
fn to_pipe(file: FileId, pipe: c_int, n: usize, flags: c_uint) -> Result<usize, Errno> {
    with_memory(|memory| {
        let n = n.min(memory.len());
        let part = [iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: n }];
        // SAFETY: the memory has `n` bytes.
        let received = unsafe { io::receive(file, &part, libc::MSG_PEEK)? };
        if received == 0 {
            return Ok(0);
        }
        loop {
            await_pipe(pipe, libc::POLLOUT, flags)?;
            match fill_pipe(pipe, &memory[..received]) {
                Err(Errno::AGAIN) if flags & libc::SPLICE_F_NONBLOCK == 0 => {}
                Err(error) => return Err(error),
                Ok(written) => {
                    let part = [iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: written }];
                    // SAFETY: the memory has `written` bytes.
                    return unsafe { io::receive(file, &part, libc::MSG_DONTWAIT) };
                }
            }
        }
    })
}

/// Sends bytes of a pipe.
fn from_pipe(file: FileId, pipe: c_int, n: usize, flags: c_uint) -> Result<usize, Errno> {
    await_pipe(pipe, libc::POLLIN, flags)?;
    let socket = runtime::socket(file)?;
    let space = io::wait(file, 0, false, |runtime| {
        let (sockets, net) = runtime.sockets()?;
        sockets.send_space(net, socket.id)
    })?;
    with_memory(|memory| {
        let wanted = n.min(memory.len()).min(space);
        // SAFETY: the memory has `wanted` bytes.
        let read = transferred(unsafe { real::read(pipe, memory.as_mut_ptr().cast(), wanted) })?;
        // The pipe does not have the bytes any more, so the rest waits for space.
        io::transmit_all(file, &memory[..read])
    })
}

/// Copies between a pipe and a socket of the stack, as splice(2). Returns `None` if neither descriptor is of the stack.
///
/// # Safety
/// The offsets are null or point to offsets.
unsafe fn spliced(
    (from, from_offset): (c_int, *mut off_t),
    (to, to_offset): (c_int, *mut off_t),
    n: usize,
    flags: c_uint,
) -> Option<Result<usize, Errno>> {
    let copy = match (descriptors::file(from), descriptors::file(to)) {
        (None, None) => return None,
        (Some(file), None) if !file.has_datagrams() && is_pipe(to) => {
            if !to_offset.is_null() {
                return Some(Err(Errno::SPIPE));
            }
            from_offset.is_null().then(|| to_pipe(file, to, n, flags))
        }
        (None, Some(file)) if !file.has_datagrams() && is_pipe(from) => {
            if !from_offset.is_null() {
                return Some(Err(Errno::SPIPE));
            }
            to_offset.is_null().then(|| from_pipe(file, from, n, flags))
        }
        _ => None,
    };
    Some(copy.unwrap_or(Err(Errno::INVAL)))
}

export! {
    fn sendfile64(fd: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t {
        match descriptors::file(fd) {
            // SAFETY: the arguments of the program.
            None => unsafe { real::sendfile64(fd, from, offset, n) },
            Some(file) if file.has_datagrams() => length(Err(Errno::INVAL)),
            // SAFETY: the program passes null or an offset.
            Some(file) => length(unsafe { send_file(file, from, offset, n) }),
        }
    }

    fn sendfile(fd: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t {
        // SAFETY: offsets have 64 bits.
        unsafe { sendfile64(fd, from, offset, n) }
    }

    fn splice(
        from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, n: size_t, flags: c_uint,
    ) -> ssize_t {
        // SAFETY: the arguments of the program.
        unsafe {
            match spliced((from, from_offset), (to, to_offset), n, flags) {
                Some(result) => length(result),
                None => real::splice(from, from_offset, to, to_offset, n, flags),
            }
        }
    }
}
