//! Epoll sets, which may have descriptors of the stack and of the kernel.

use super::poll::NOW;
use super::{export, fail};
use crate::descriptors::{self, FileId};
use crate::real;
use crate::runtime::{self, Kind, Runtime};
use crate::signals::Interruptions;
use crate::turns::Waiter;
use crate::waiting::{Deadline, KernelQueries};
use libc::{c_int, epoll_event, pollfd, sigset_t, timespec};
use linerate_sockets::{EpollId, Interest, Ready, Target};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// Most events of one call: more wait for the next one.
const MOST: usize = 1024;

/// Returns the epoll set of `fd`, which this call creates if necessary.
fn set_of(runtime: &mut Runtime, fd: c_int) -> Result<EpollId, Errno> {
    if let Some(file) = descriptors::file(fd) {
        return runtime.epoll(file);
    }
    let id = runtime.sockets()?.0.epoll_create();
    let file = runtime.open(fd, Kind::Epoll(id));
    // A library may wait with one descriptor and register sockets with another one.
    let others = if descriptors::has_kernel_duplicates() { duplicates(fd) } else { Vec::new() };
    for other in &others {
        runtime.duplicate(file, *other);
        // Items are counted by descriptor: the kernel is asked for events of both.
        [fd, *other].into_iter().for_each(descriptors::kernel_item_added);
    }
    // Either this thread sees the count of one that waits, or that one sees the set in the table.
    fence(Ordering::SeqCst);
    if others.iter().chain([&fd]).any(|set| descriptors::has_kernel_waiters(*set)) {
        wake_waiters(fd);
    }
    Ok(id)
}

/// Returns the socket or set of `file`.
fn target_of(runtime: &mut Runtime, file: FileId) -> Result<Target, Errno> {
    match runtime.socket(file) {
        Ok(socket) => Ok(Target::Socket(socket.id)),
        Err(Errno::NOTSOCK) => runtime.epoll(file).map(Target::Set),
        Err(error) => Err(error),
    }
}

/// Adds `fd`, which now belongs to the stack, to the sets that have the kernel's descriptor.
pub fn migrate(fd: c_int, file: FileId) {
    if !descriptors::take_registered(fd) || runtime::is_inside() {
        return;
    }
    let stays = runtime::kernel_listens(file);
    for set in descriptors::kernel_sets() {
        for interest in registrations(set, fd) {
            if !stays {
                // SAFETY: EPOLL_CTL_DEL takes no event.
                unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
                descriptors::kernel_item_removed(set);
            }
            if let Err(error) = control(set, libc::EPOLL_CTL_ADD, fd, file, Some(interest)) {
                tracing::warn!("an epoll set has lost a socket: {error}");
            }
        }
    }
}

/// Returns the events of interest of `fd` in a set of the kernel (proc_pid_fdinfo(5)).
fn registrations(set: c_int, fd: c_int) -> Vec<Interest> {
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let mut value = |name| words.next().filter(|word| *word == name).and_then(|_| words.next());
        let is_of = value("tfd:")?.parse() == Ok(fd);
        let events = u32::from_str_radix(value("events:")?, 16).ok()?;
        let data = u64::from_str_radix(value("data:")?, 16).ok()?;
        is_of.then_some(Interest { events, data })
    };
    let known = std::fs::read_to_string(format!("/proc/self/fdinfo/{set}"));
    known.map_or_else(|_| Vec::new(), |known| known.lines().filter_map(parse).collect())
}

/// Returns the other descriptors of the set, which was duplicated while it belonged to the kernel.
fn duplicates(set: c_int) -> Vec<c_int> {
    const KCMP_FILE: c_int = 0;
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let others = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // SAFETY: kcmp(2) has no pointers, and getpid(2) no arguments.
    let is_same = |other: &c_int| unsafe {
        let process = libc::getpid();
        libc::syscall(libc::SYS_kcmp, process, process, KCMP_FILE, set, *other) == 0
    };
    others.filter(|other| *other != set).filter(is_same).collect()
}

/// Value of the event that ends waits in the kernel for a set that had no socket of the stack.
const ENDS_WAIT: u64 = u64::from_be_bytes(*b"linerate");

/// Ends the wait of a thread that may wait for the set in the kernel, and would not see events of the stack.
fn wake_waiters(set: c_int) {
    static READABLE: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let readable = READABLE.get_or_init(|| eventfd(1, EventfdFlags::CLOEXEC).ok());
    if let Some(readable) = readable {
        let mut event = epoll_event { events: (libc::EPOLLIN | libc::EPOLLONESHOT) as u32, u64: ENDS_WAIT };
        // SAFETY: the event is of this function. The kernel reports it once, to one thread.
        unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_ADD, readable.as_raw_fd(), &mut event) };
    }
}

/// Removes the event of [`wake_waiters`] from `n` events of the kernel. Returns the number of the others.
///
/// # Safety
/// `events` points to `n` elements.
unsafe fn of_program(events: *mut epoll_event, n: c_int) -> c_int {
    let mut kept = 0;
    for at in 0..usize::try_from(n).unwrap_or(0) {
        // SAFETY: both positions are less than `n`.
        unsafe {
            let event = events.add(at).read_unaligned();
            if { event.u64 } != ENDS_WAIT {
                events.add(kept).write_unaligned(event);
                kept += 1;
            }
        }
    }
    if n < 0 { n } else { kept as c_int }
}

/// Waits by `kernel` for events of a set without sockets of the stack, and as [`wait`] once it has one.
///
/// # Safety
/// As for [`wait`].
unsafe fn wait_in_kernel(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: Option<Duration>,
    mask: *const sigset_t,
    kernel: impl FnOnce() -> c_int,
) -> c_int {
    let deadline = Deadline::after(timeout);
    let waiters = descriptors::kernel_waiters(set);
    waiters.inspect(|waiters| _ = waiters.fetch_add(1, Ordering::SeqCst));
    // A set that has received a socket since is not waited for in the kernel.
    let is_late = descriptors::file(set).is_some() && !runtime::is_inside();
    let n = if is_late { 0 } else { kernel() };
    waiters.inspect(|waiters| _ = waiters.fetch_sub(1, Ordering::SeqCst));
    match descriptors::file(set).filter(|_| (n > 0 || is_late) && !runtime::is_inside()) {
        None => n,
        // SAFETY: the caller vouches for the elements, of which the kernel has written `n`.
        Some(file) => match unsafe { of_program(events, n) } {
            // SAFETY: as above.
            0 => unsafe { wait(set, file, events, most, deadline.left(), mask) }.unwrap_or_else(fail),
            n => n,
        },
    }
}

/// Adds, changes or removes the socket or set `file` of `fd` in the set.
fn control(set: c_int, operation: c_int, fd: c_int, file: FileId, interest: Option<Interest>) -> Result<(), Errno> {
    let is_new = descriptors::file(set).is_none();
    let result = runtime::enter(|runtime| {
        let target = target_of(runtime, file)?;
        let id = set_of(runtime, set)?;
        let (sockets, _) = runtime.sockets()?;
        match (operation, interest) {
            (libc::EPOLL_CTL_ADD, Some(interest)) => sockets.epoll_add(id, target, fd, interest),
            (libc::EPOLL_CTL_MOD, Some(interest)) => sockets.epoll_modify(id, target, fd, interest),
            (libc::EPOLL_CTL_DEL, _) => sockets.epoll_delete(id, target, fd),
            _ => Err(Errno::INVAL),
        }
    });
    if is_new && let Some(file) = descriptors::file(set) {
        // The set may be an item of others.
        migrate(set, file);
    }
    result
}

/// Waits for events of the set.
///
/// # Safety
/// `events` points to `most` writable elements, and `mask` is null or points to a set of signals.
unsafe fn wait(
    set: c_int,
    file: FileId,
    events: *mut epoll_event,
    most: c_int,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Result<c_int, Errno> {
    let most = usize::try_from(most).ok().filter(|most| *most > 0).ok_or(Errno::INVAL)?.min(MOST);
    let (deadline, interruptions) = (Deadline::after(timeout), Interruptions::so_far());
    let mut queries = KernelQueries::of_epoll(set);
    let mut waiter = Waiter::new(deadline);
    // Another thread may add the first descriptor of the kernel.
    let kernel_set = pollfd { fd: set, events: libc::POLLIN, revents: 0 };
    loop {
        let (is_busy, n) = runtime::look(|runtime| {
            let is_busy = waiter.turn(runtime);
            let id = runtime.epoll(file)?;
            waiter.wait_for(id);
            let (sockets, net) = runtime.sockets()?;
            let n = sockets.epoll_collect(net, id, most, |at, Ready { events: conditions, data }| {
                // SAFETY: `at` is less than `most`.
                unsafe { events.add(at).write_unaligned(epoll_event { events: conditions, u64: data }) };
            });
            if n == 0 {
                waiter.rest(runtime);
            } else {
                waiter.leave(runtime);
            }
            Ok((is_busy, n))
        })?;
        let has_slept = n == 0 && waiter.sleep(&[kernel_set], mask);
        let mut kernel = 0;
        if n < most && (has_slept || queries.is_due(n > 0, is_busy)) {
            // SAFETY: the caller vouches for the elements and the mask. A wait without a duration does not deliver the
            // signals that the mask unblocks, which ppoll(2) does.
            kernel = unsafe {
                if !mask.is_null() && real::ppoll(std::ptr::null_mut(), 0, &NOW, mask) < 0 {
                    -1
                } else {
                    let n_kernel = real::epoll_pwait2(set, events.add(n), (most - n) as c_int, &NOW, mask);
                    of_program(events.add(n), n_kernel)
                }
            };
            if kernel < 0 && n == 0 {
                return Err(super::last_error());
            }
        }
        if n > 0 || kernel > 0 {
            return Ok(n as c_int + kernel.max(0));
        }
        if interruptions.any() {
            return Err(Errno::INTR);
        }
        if deadline.has_passed() {
            return Ok(0);
        }
    }
}

/// Returns a timeout in milliseconds; negative is none.
fn milliseconds(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

export! {
    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        // SAFETY: the arguments of the program.
        let kernel = || unsafe { real::epoll_ctl(set, operation, fd, event) };
        let own = descriptors::file(fd).filter(|_| !runtime::is_inside());
        if own.is_none_or(runtime::kernel_listens) {
            let result = kernel();
            match operation {
                libc::EPOLL_CTL_ADD if result == 0 => {
                    descriptors::kernel_item_added(set);
                    if own.is_none() {
                        descriptors::register(fd);
                    }
                }
                libc::EPOLL_CTL_DEL if result == 0 => descriptors::kernel_item_removed(set),
                _ => {}
            }
            if own.is_none() || result < 0 {
                return result;
            }
        }
        let interest = (!event.is_null()).then(|| {
            // SAFETY: the program passes an event.
            let event = unsafe { event.read_unaligned() };
            Interest { events: event.events, data: event.u64 }
        });
        let Some(file) = own else { return 0 };
        if interest.is_none() && operation != libc::EPOLL_CTL_DEL {
            return fail(Errno::FAULT);
        }
        super::status(control(set, operation, fd, file, interest))
    }

    fn epoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
        // SAFETY: epoll_wait(2) is epoll_pwait(2) without a mask.
        unsafe { epoll_pwait(set, events, most, timeout, std::ptr::null()) }
    }

    fn epoll_pwait(
        set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t,
    ) -> c_int {
        match descriptors::file(set).filter(|_| !runtime::is_inside()) {
            // SAFETY: the arguments of the program.
            None => unsafe {
                wait_in_kernel(set, events, most, milliseconds(timeout), mask, || {
                    real::epoll_pwait(set, events, most, timeout, mask)
                })
            },
            // SAFETY: the arguments of the program.
            Some(file) => unsafe { wait(set, file, events, most, milliseconds(timeout), mask) }.unwrap_or_else(fail),
        }
    }

    fn epoll_pwait2(
        set: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int {
        match descriptors::file(set).filter(|_| !runtime::is_inside()) {
            // SAFETY: the arguments of the program.
            None => unsafe {
                wait_in_kernel(set, events, most, super::poll::duration(timeout), mask, || {
                    real::epoll_pwait2(set, events, most, timeout, mask)
                })
            },
            // SAFETY: the arguments of the program.
            Some(file) => unsafe {
                wait(set, file, events, most, super::poll::duration(timeout), mask)
            }.unwrap_or_else(fail),
        }
    }
}
