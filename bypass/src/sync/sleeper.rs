//! Sleep of a worker until its port, a mailbox or a deadline wakes it.

use super::waker::Waker;
use linerate_service::mailbox::Wake;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::DupFlags;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Descriptors that wake a sleeping worker: the descriptor of its port, and an eventfd for its mailboxes.
///
/// A worker prepares its mailboxes ([`about_to_sleep`](linerate_service::mailbox::Receiver::about_to_sleep)),
/// [arms](crate::Nic::arm) its port, looks for messages and frames once more, and sleeps only if there are none.
/// A message or frame that arrives after that look wakes it.
pub struct Sleeper {
    waker: Waker,
    epoll: OwnedFd,
}

impl Sleeper {
    /// Creates the descriptors.
    pub fn new() -> io::Result<Self> {
        let waker = Waker::new()?;
        Ok(Sleeper { epoll: watch(&waker)?, waker })
    }

    /// Makes sleeps of the calling thread end in time, which is by default up to 50 µs later.
    pub fn begin(&self) {
        if let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1)) {
            tracing::debug!("timers may expire 50 µs late: {error}");
        }
    }

    /// Returns the function that wakes the worker.
    pub fn wake(&self) -> Wake {
        self.waker.wake()
    }

    /// Wakes the worker by `fd` instead of the former descriptor of the port: when it becomes readable (`is_edge`), or
    /// while it is readable. Descriptors that are closed in this process only would remain in the former epoll set. The
    /// set keeps its number.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, is_edge: bool) -> io::Result<()> {
        let epoll = watch(&self.waker)?;
        let edge = if is_edge { EventFlags::ET } else { EventFlags::empty() };
        epoll::add(&epoll, fd, EventData::new_u64(1), EventFlags::IN | edge)?;
        rustix::io::dup3(&epoll, &mut self.epoll, DupFlags::CLOEXEC)?;
        Ok(())
    }

    /// Sleeps for `timeout`, or until a descriptor wakes the worker. Returns whether one did.
    pub fn sleep(&self, timeout: Duration) -> bool {
        let seconds = timeout.as_secs().try_into().unwrap_or(i64::MAX);
        let timeout = Timespec { tv_sec: seconds, tv_nsec: timeout.subsec_nanos().into() };
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 2];
        // A signal ends the sleep. There are no other errors: the set exists, and its events are edges or frames.
        epoll::wait(&self.epoll, &mut events, Some(&timeout)).is_ok_and(|events| events > 0)
    }
}

impl AsFd for Sleeper {
    /// Returns the epoll set, which is readable when [`sleep`](Self::sleep) would end.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Creates an epoll set with the edges of `waker`.
fn watch(waker: &Waker) -> io::Result<OwnedFd> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, waker.as_fd(), EventData::new_u64(0), EventFlags::IN | EventFlags::ET)?;
    Ok(epoll)
}

#[cfg(test)]
#[cfg_attr(miri, ignore = "Miri has no epoll_pwait2(2)")]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn each_wake_ends_one_sleep() {
        let sleeper = Sleeper::new().unwrap();
        let wake = sleeper.wake();
        for _ in 0..3 {
            wake();
            assert!(sleeper.sleep(LONG));
            assert!(!sleeper.sleep(Duration::ZERO));
        }
    }

    #[test]
    fn watched_descriptor_wakes_by_edges_or_while_it_is_readable() {
        for is_edge in [true, false] {
            let (former, fd) = (eventfd(1, EventfdFlags::CLOEXEC).unwrap(), eventfd(0, EventfdFlags::CLOEXEC).unwrap());
            let mut sleeper = Sleeper::new().unwrap();
            sleeper.watch(former.as_fd(), is_edge).unwrap();
            sleeper.watch(fd.as_fd(), is_edge).unwrap();
            assert!(!sleeper.sleep(Duration::ZERO), "the former descriptor wakes nobody");
            for _ in 0..2 {
                rustix::io::write(&fd, &1_u64.to_ne_bytes()).unwrap();
                assert!(sleeper.sleep(LONG));
                assert_eq!(sleeper.sleep(Duration::ZERO), !is_edge);
            }
            sleeper.wake()();
            assert!(sleeper.sleep(LONG));
        }
    }

    #[test]
    fn sleep_ends_after_its_time_which_may_be_short() {
        let sleeper = Sleeper::new().unwrap();
        let start = Instant::now();
        assert!(!sleeper.sleep(Duration::from_micros(100)));
        assert!(start.elapsed() >= Duration::from_micros(100));
    }
}
