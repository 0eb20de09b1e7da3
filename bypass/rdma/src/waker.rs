//! How a worker that may sleep does: until something is completed, or somebody has something for it.

use crate::provider::Provider;
use crate::verbs::{CompChannel, Error};
use linerate_bypass::mailbox::Wake;
use linerate_bypass::time::Duration;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Wakes whoever waits for its descriptor, from any thread.
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// One that nobody has rung.
    pub fn new() -> Result<Self, Error> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Waker(Arc::new(fd.map_err(|error| Error::of("make an eventfd")(error.into()))?)))
    }

    /// What rings it.
    pub fn wake(&self) -> Wake {
        let fd = self.0.clone();
        // It fails when it has been rung 2⁶⁴ times, and then it is readable all the same.
        Box::new(move || _ = rustix::io::write(&*fd, &1u64.to_ne_bytes()))
    }

    /// It has been heard.
    pub fn quiet(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of `fds` is readable, or for `timeout`.
pub fn wait_readable<const N: usize>(fds: [BorrowedFd<'_>; N], timeout: Duration) -> Result<(), Error> {
    let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let timeout = Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(Error::of("wait for something to happen")(error.into())),
    }
}

/// What a worker that may sleep is woken by.
pub struct IdleWait<C: Provider> {
    channel: CompChannel<C>,
    bell: Waker,
    /// It looks around so often, whatever happens.
    pub(crate) longest: Duration,
    /// How often it has waited.
    pub(crate) waits: u64,
}

/// How long a worker sleeps that cannot be woken.
const SHORT: Duration = Duration::from_millis(1);
/// A worker is stopped without being woken.
const STOP_CHECK: Duration = Duration::from_millis(20);

impl<C: Provider> IdleWait<C> {
    /// For a worker of the device behind `provider`, whose queue is to be made with its channel, and its mailboxes with its bell.
    pub fn new(provider: &Arc<C>) -> Result<Self, Error> {
        Ok(IdleWait { channel: CompChannel::new(provider)?, bell: Waker::new()?, longest: STOP_CHECK, waits: 0 })
    }

    /// What its queue is made with.
    pub fn channel(&self) -> &CompChannel<C> {
        &self.channel
    }

    /// What wakes it.
    pub fn wake(&self) -> Wake {
        self.bell.wake()
    }

    /// Waits until something is completed in its queue, which has been asked to say so, or it is woken, or for `timeout`.
    pub(crate) fn wait(&mut self, timeout: Duration) {
        self.waits += 1;
        let waited = wait_readable([self.channel.as_fd(), self.bell.as_fd()], timeout.min(self.longest));
        self.bell.quiet();
        if let Err(error) = waited.and_then(|()| self.channel.take_events().map(drop)) {
            // The queue will say whether there is a device.
            tracing::debug!("{error}");
            std::thread::sleep(SHORT);
        }
    }
}
