//! Edge-triggered epoll instance of a worker, with a waker for other threads.

use linerate_bypass::Waker;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Maximum events per wait.
const EVENTS: usize = 256;

/// Source of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    /// Connection in this slot.
    Connection(usize),
    /// Listening socket of this index.
    Listener(usize),
    /// UDP socket of this index.
    Udp(usize),
    /// [`Poller::waker`].
    Wake,
}

impl Token {
    fn to_bits(self) -> u64 {
        match self {
            Token::Connection(slot) => slot as u64,
            Token::Listener(index) => 1 << 32 | index as u64,
            Token::Udp(index) => 2 << 32 | index as u64,
            Token::Wake => 3 << 32,
        }
    }

    fn from_bits(bits: u64) -> Self {
        let low = bits as u32 as usize;
        match bits >> 32 {
            0 => Token::Connection(low),
            1 => Token::Listener(low),
            2 => Token::Udp(low),
            _ => Token::Wake,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Readiness(EventFlags);

impl Readiness {
    /// Returns whether data, the end of the stream or an error can be read.
    pub(crate) fn readable(self) -> bool {
        self.0.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR)
    }

    /// Returns whether there is send space, or an error that a write would report.
    pub(crate) fn writable(self) -> bool {
        self.0.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR)
    }

    /// Returns whether an end, an error or urgent data follows the bytes, so that a short read does not imply a drained
    /// socket.
    pub(crate) fn more_than_bytes(self) -> bool {
        self.0.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR | EventFlags::PRI)
    }

    pub(crate) fn error(self) -> bool {
        self.0.contains(EventFlags::ERR)
    }
}

/// Events of a wait. The default has no capacity.
#[derive(Default)]
pub(crate) struct Events(Vec<Event>);

impl Events {
    pub(crate) fn with_room() -> Self {
        Events(Vec::with_capacity(EVENTS))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Token, Readiness)> {
        self.0.iter().map(|event| (Token::from_bits(event.data.u64()), Readiness(event.flags)))
    }
}

pub(crate) struct Poller {
    epoll: OwnedFd,
    /// Waker that ends a wait. Its eventfd is never read: each write is an edge.
    pub(crate) waker: Waker,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let poller = Poller { epoll, waker: Waker::new()? };
        poller.register(&poller.waker, Token::Wake, EventFlags::IN)?;
        Ok(poller)
    }

    /// Registers `stream` for edge-triggered events until it is closed.
    pub(crate) fn add_stream(&self, stream: impl AsFd, token: Token) -> io::Result<()> {
        self.register(stream, token, EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::PRI)
    }

    /// Registers a listening or UDP socket for read events until it is closed.
    pub(crate) fn add_source(&self, socket: impl AsFd, token: Token) -> io::Result<()> {
        self.register(socket, token, EventFlags::IN)
    }

    fn register(&self, fd: impl AsFd, token: Token, interest: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(token.to_bits()), interest | EventFlags::ET)?)
    }

    /// Waits for events, at most `timeout`, or indefinitely with `None`.
    pub(crate) fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        events.0.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut events.0), timeout.map(timespec).as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: duration.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn each_wake_ends_a_wait() {
        let (poller, mut events) = (Poller::new().unwrap(), Events::with_room());
        let wake = poller.waker.wake();
        for _ in 0..3 {
            wake();
            poller.wait(&mut events, None).unwrap();
            assert!(events.iter().map(|(token, _)| token).eq([Token::Wake]));
            poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
            assert_eq!(events.iter().count(), 0);
        }
    }

    #[test]
    fn wait_can_be_shorter_than_a_millisecond() {
        let (poller, mut events) = (Poller::new().unwrap(), Events::with_room());
        let start = Instant::now();
        let shortest = (0..20)
            .map(|_| {
                let start = Instant::now();
                poller.wait(&mut events, Some(Duration::from_micros(100))).unwrap();
                start.elapsed()
            })
            .min()
            .unwrap();
        assert!(shortest >= Duration::from_micros(100) && shortest < Duration::from_millis(1), "{shortest:?}");
        assert!(start.elapsed() >= Duration::from_millis(2));
    }

    #[test]
    fn tokens_round_trip_through_epoll_data() {
        for token in
            [Token::Connection(0), Token::Connection((1 << 24) - 1), Token::Listener(3), Token::Udp(0), Token::Wake]
        {
            assert_eq!(Token::from_bits(token.to_bits()), token);
        }
    }
}
