//! Event queue with a file descriptor that signals events.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Event queue with a non-blocking file descriptor that is readable while it is not empty.
pub(crate) struct Waker<T> {
    fd: OwnedFd,
    events: VecDeque<T>,
}

impl<T> Waker<T> {
    /// Creates an empty queue. Fails if no file descriptor is left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is open and owned by nothing else.
        Ok(Waker { fd: unsafe { OwnedFd::from_raw_fd(fd) }, events: VecDeque::new() })
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Returns another descriptor of the same events.
    pub fn try_clone_fd(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    pub fn push(&mut self, event: T) {
        self.events.push_back(event);
        if self.events.len() == 1 {
            let one = 1u64;
            // SAFETY: reads 8 bytes from `one`. The counter is zero, so the write cannot block.
            unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
        }
    }

    pub fn pop(&mut self) -> Option<T> {
        let event = self.events.pop_front()?;
        self.clear_if_empty();
        Some(event)
    }

    /// Removes the events for which `keep` returns false.
    pub fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        if !self.events.is_empty() {
            self.events.retain(keep);
            self.clear_if_empty();
        }
    }

    fn clear_if_empty(&mut self) {
        if self.events.is_empty() {
            let mut count = 0u64;
            // SAFETY: writes 8 bytes to `count`.
            unsafe { libc::read(self.fd(), (&raw mut count).cast(), 8) };
        }
    }
}
