//! Sleeping and waking of idle threads.

use crate::provider::Provider;
use crate::verbs::{CompChannel, Error};
use linerate_bypass::Waker;
use linerate_service::mailbox::Wake;
use linerate_service::time::Duration;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

pub(crate) fn waker() -> Result<Waker, Error> {
    Waker::new().map_err(Error::of("create an eventfd"))
}

/// Waits until one of `fds` is readable, or for `timeout`.
pub fn wait_readable<const N: usize>(fds: [BorrowedFd<'_>; N], timeout: Duration) -> Result<(), Error> {
    let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let timeout = Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(Error::of("wait for events")(error.into())),
    }
}

/// Wake-up sources of an idle worker.
pub struct IdleWait<C: Provider> {
    channel: CompChannel<C>,
    bell: Waker,
    /// Maximum sleep.
    pub(crate) longest: Duration,
}

/// Sleep after a failed wait, and longest sleep if only the worker drives the device.
const SHORT: Duration = Duration::from_millis(1);
/// Maximum sleep of an idle worker.
const LONG: Duration = Duration::from_secs(1);

impl<C: Provider> IdleWait<C> {
    /// Creates the sources of one worker on the device of `provider`. The worker's completion queues must use the
    /// channel, and its mailboxes the waker.
    pub fn new(provider: &Arc<C>) -> Result<Self, Error> {
        Ok(IdleWait {
            channel: CompChannel::new(provider)?,
            bell: waker()?,
            longest: if provider.needs_progress() { SHORT } else { LONG },
        })
    }

    /// Returns the channel for the worker's completion queues.
    pub fn channel(&self) -> &CompChannel<C> {
        &self.channel
    }

    /// Returns the function that wakes the worker.
    pub fn wake(&self) -> Wake {
        self.bell.wake()
    }

    /// Waits for a completion event, a wake-up, or `timeout`.
    pub(crate) fn wait(&mut self, timeout: Duration) {
        let waited = wait_readable([self.channel.as_fd(), self.bell.as_fd()], timeout.min(self.longest));
        self.bell.quiet();
        if let Err(error) = waited.and_then(|()| self.channel.take_events().map(drop)) {
            // Polling the completion queue reports whether the device still exists.
            tracing::debug!("{error}");
            std::thread::sleep(SHORT);
        }
    }
}
