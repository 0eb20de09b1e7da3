//! Eventfd that wakes a sleeping thread.

use linerate_service::mailbox::Wake;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Eventfd that wakes the thread waiting for it, from any thread. Clones share it.
#[derive(Debug, Clone)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Creates an eventfd that is not signalled.
    pub fn new() -> io::Result<Self> {
        Ok(Waker(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Returns the function that signals the eventfd while there is a waker. Each call is an edge.
    pub fn wake(&self) -> Wake {
        let fd = Arc::downgrade(&self.0);
        // The write fails after 2⁶⁴ signals, and the eventfd is readable nevertheless.
        Box::new(move || _ = fd.upgrade().map(|fd| rustix::io::write(&*fd, &1u64.to_ne_bytes())))
    }

    /// Resets the eventfd. A thread that waits for edges does not need to.
    pub fn quiet(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
#[cfg_attr(miri, ignore = "Miri has no eventfd(2)")]
mod tests {
    use super::*;

    #[test]
    fn function_that_wakes_does_not_keep_the_eventfd() {
        let waker = Waker::new().unwrap();
        let (fd, wake) = (Arc::downgrade(&waker.0), waker.wake());
        drop(waker);
        assert!(fd.upgrade().is_none());
        wake();
    }
}
