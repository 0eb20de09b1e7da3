//! poll(2) and select(2).

use super::{export, fail};
use crate::descriptors;
use crate::real;
use crate::runtime;
use crate::signals::Interruptions;
use crate::turns::Waiter;
use crate::waiting::{Deadline, KernelQueries, time_of};
use libc::{c_int, c_short, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use rustix::io::Errno;
use std::cell::Cell;
use std::time::Duration;

pub const NOW: timespec = timespec { tv_sec: 0, tv_nsec: 0 };

const WRITE: c_short = libc::POLLOUT | libc::POLLWRNORM;

/// Returns a timeout; null is none.
///
/// # Safety
/// `timeout` is null or points to a time.
pub unsafe fn duration(timeout: *const timespec) -> Option<Duration> {
    if timeout.is_null() {
        return None;
    }
    // SAFETY: as above.
    let timeout = unsafe { timeout.read_unaligned() };
    let seconds = u64::try_from(timeout.tv_sec).unwrap_or(0);
    Some(Duration::new(seconds, u32::try_from(timeout.tv_nsec).unwrap_or(0)))
}

/// Returns whether the kernel's descriptor has one of `events` now.
pub fn kernel_is_ready(fd: c_int, events: c_short) -> bool {
    let mut asked = pollfd { fd, events, revents: 0 };
    // SAFETY: one element.
    unsafe { real::ppoll(&mut asked, 1, &NOW, std::ptr::null()) > 0 }
}

thread_local! {
    /// Memory for the kernel's part of an array, kept between calls.
    static KERNEL: Cell<Vec<pollfd>> = const { Cell::new(Vec::new()) };
}

/// Waits for events of `fds`, of which at least one belongs to the stack. Returns their number.
pub fn wait(fds: &mut [pollfd], timeout: Option<Duration>, mask: *const sigset_t) -> Result<c_int, Errno> {
    // A thread that ends has no memory of its own any more.
    let mut kernel = KERNEL.try_with(Cell::take).unwrap_or_default();
    kernel.clear();
    kernel.extend_from_slice(fds);
    let result = wait_with(fds, &mut kernel, timeout, mask);
    let _ = KERNEL.try_with(|kept| kept.set(kernel));
    result
}

/// Waits for events of `fds`. `kernel` is a copy, which becomes the kernel's part.
fn wait_with(
    fds: &mut [pollfd],
    kernel: &mut [pollfd],
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Result<c_int, Errno> {
    let (deadline, interruptions) = (Deadline::after(timeout), Interruptions::so_far());
    runtime::look(|runtime| {
        for asked in &mut *kernel {
            if descriptors::file(asked.fd).is_some_and(|file| !runtime.kernel_listens(file)) {
                asked.fd = -1;
            }
            asked.revents = 0;
        }
        Ok(())
    })?;
    let mut queries = KernelQueries::of_some(kernel.iter().any(|asked| asked.fd >= 0));
    let mut waiter = Waiter::new(deadline);
    loop {
        let (is_busy, mut ready) = runtime::look(|runtime| {
            let is_busy = waiter.turn(runtime);
            let mut ready = 0;
            for asked in &mut *fds {
                asked.revents = 0;
                let Some(file) = descriptors::file(asked.fd) else { continue };
                let conditions = match runtime.socket(file).map(|socket| socket.id) {
                    Ok(id) => {
                        let (sockets, net) = runtime.sockets()?;
                        sockets.readiness(net, id)
                    }
                    Err(_) => {
                        let Ok(id) = runtime.epoll(file) else { continue };
                        let (sockets, net) = runtime.sockets()?;
                        sockets.epoll_readiness(net, id)
                    }
                };
                let always = libc::POLLERR | libc::POLLHUP;
                asked.revents = conditions as c_short & (asked.events | always);
                if asked.revents & WRITE != 0 && runtime.writes_wait(file) {
                    asked.revents &= !WRITE;
                }
                ready += c_int::from(asked.revents != 0);
            }
            if ready == 0 {
                waiter.rest(runtime);
            } else {
                waiter.leave(runtime);
            }
            Ok((is_busy, ready))
        })?;
        let has_slept = ready == 0 && waiter.sleep(kernel, mask);
        if has_slept || queries.is_due(ready > 0, is_busy) {
            // SAFETY: the elements of the array; the mask is the program's.
            let n = unsafe { real::ppoll(kernel.as_mut_ptr(), kernel.len() as nfds_t, &NOW, mask) };
            if n < 0 && ready == 0 {
                return Err(super::last_error());
            }
            for (asked, kernel) in fds.iter_mut().zip(&*kernel).filter(|(_, kernel)| n > 0 && kernel.revents != 0) {
                ready += c_int::from(asked.revents == 0);
                asked.revents |= kernel.revents;
            }
        }
        if ready > 0 {
            return Ok(ready);
        }
        if interruptions.any() {
            return Err(Errno::INTR);
        }
        if deadline.has_passed() {
            return Ok(0);
        }
    }
}

/// Waits as ppoll(2).
///
/// # Safety
/// The arguments are those of a call of ppoll(2) by the program.
unsafe fn poll_all(fds: *mut pollfd, n: nfds_t, timeout: Option<Duration>, mask: *const sigset_t) -> Option<c_int> {
    if fds.is_null() || runtime::is_inside() {
        return None;
    }
    // SAFETY: the caller vouches for `n` elements.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, n as usize) };
    if !fds.iter().any(|asked| descriptors::file(asked.fd).is_some()) {
        return None;
    }
    Some(wait(fds, timeout, mask).unwrap_or_else(fail))
}

/// Set of select(2), or null.
#[derive(Clone, Copy)]
struct Set(*mut fd_set);

impl Set {
    fn has(self, fd: c_int) -> bool {
        // SAFETY: a set that is not null is the program's, and has the bit: `fd` is less than FD_SETSIZE.
        !self.0.is_null() && unsafe { libc::FD_ISSET(fd, self.0) }
    }

    fn keep(self, fd: c_int, is_ready: bool) -> c_int {
        if !self.has(fd) {
            return 0;
        }
        if !is_ready {
            // SAFETY: as above.
            unsafe { libc::FD_CLR(fd, self.0) };
        }
        is_ready.into()
    }
}

/// Waits as pselect(2). Returns `None` if no descriptor belongs to the stack.
fn select_all(n: c_int, sets: [Set; 3], timeout: Option<Duration>, mask: *const sigset_t) -> Option<c_int> {
    const READ: c_short = libc::POLLIN | libc::POLLRDNORM;
    let n = n.clamp(0, libc::FD_SETSIZE as c_int);
    let events = |fd| {
        let [read, write, except] = sets.map(|set| set.has(fd));
        (if read { READ } else { 0 }) | (if write { WRITE } else { 0 }) | (if except { libc::POLLPRI } else { 0 })
    };
    let mut fds: Vec<pollfd> =
        (0..n).map(|fd| pollfd { fd, events: events(fd), revents: 0 }).filter(|asked| asked.events != 0).collect();
    if runtime::is_inside() || !fds.iter().any(|asked| descriptors::file(asked.fd).is_some()) {
        return None;
    }
    if let Err(error) = wait(&mut fds, timeout, mask) {
        return Some(fail(error));
    }
    let [read, write, except] = sets;
    let mut ready = 0;
    for pollfd { fd, revents, .. } in fds {
        // As select(2) of the kernel groups the conditions.
        ready += read.keep(fd, revents & (READ | libc::POLLHUP | libc::POLLERR) != 0);
        ready += write.keep(fd, revents & (WRITE | libc::POLLERR) != 0);
        ready += except.keep(fd, revents & libc::POLLPRI != 0);
    }
    Some(ready)
}

export! {
    fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
        let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
        // SAFETY: the arguments of the program.
        if let Some(result) = unsafe { poll_all(fds, n, limit, std::ptr::null()) } {
            return result;
        }
        let limit = limit.map(time_of);
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the arguments of the program, with its timeout as a time.
        unsafe { real::ppoll(fds, n, limit, std::ptr::null()) }
    }

    fn __poll_chk(fds: *mut pollfd, n: nfds_t, timeout: c_int, room: usize) -> c_int {
        if room / size_of::<pollfd>() < n as usize {
            std::process::abort();
        }
        // SAFETY: the arguments of the program.
        unsafe { poll(fds, n, timeout) }
    }

    fn ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        // SAFETY: the arguments of the program.
        unsafe {
            poll_all(fds, n, duration(timeout), mask).unwrap_or_else(|| real::ppoll(fds, n, timeout, mask))
        }
    }

    fn select(
        n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval,
    ) -> c_int {
        // SAFETY: the program passes null or a time.
        let limit = (!timeout.is_null()).then(|| unsafe { timeout.read_unaligned() });
        let limit = limit.map(|limit| {
            Duration::from_secs(limit.tv_sec.max(0) as u64) + Duration::from_micros(limit.tv_usec.max(0) as u64)
        });
        select_all(n, [read, write, except].map(Set), limit, std::ptr::null())
            // SAFETY: the arguments of the program.
            .unwrap_or_else(|| unsafe { real::select(n, read, write, except, timeout) })
    }

    fn pselect(
        n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        // SAFETY: the program passes null or a time.
        let limit = unsafe { duration(timeout) };
        select_all(n, [read, write, except].map(Set), limit, mask)
            // SAFETY: the arguments of the program.
            .unwrap_or_else(|| unsafe { real::pselect(n, read, write, except, timeout, mask) })
    }
}
