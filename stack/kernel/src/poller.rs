//! One worker's epoll instance, edge-triggered, and the way to wake it from another thread.

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Events that one wait brings at most.
const EVENTS: usize = 256;

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    /// The connection in this slot.
    Connection(usize),
    /// The listening socket of this index.
    Listener(usize),
    /// The UDP socket of this index.
    Udp(usize),
    /// Someone called [`Waker::wake`].
    Wake,
    /// The [`Ticker`] of [`Poller::tick`].
    Tick,
}

impl Token {
    fn to_bits(self) -> u64 {
        match self {
            Token::Connection(slot) => slot as u64,
            Token::Listener(index) => 1 << 32 | index as u64,
            Token::Udp(index) => 2 << 32 | index as u64,
            Token::Wake => 3 << 32,
            Token::Tick => 4 << 32,
        }
    }

    fn from_bits(bits: u64) -> Self {
        let low = bits as u32 as usize;
        match bits >> 32 {
            0 => Token::Connection(low),
            1 => Token::Listener(low),
            2 => Token::Udp(low),
            3 => Token::Wake,
            _ => Token::Tick,
        }
    }
}

/// What has become of a socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Readiness(EventFlags);

impl Readiness {
    /// Bytes, the end of the stream, or an error can be read.
    pub(crate) fn readable(self) -> bool {
        self.0.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR)
    }

    /// There is room, or an error that a write would find.
    pub(crate) fn writable(self) -> bool {
        self.0.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR)
    }

    /// Something lies behind the bytes (the end, an error, a mark of urgency), so that a short read does not mean
    /// that nothing is left to read.
    pub(crate) fn more_than_bytes(self) -> bool {
        self.0.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR | EventFlags::PRI)
    }

    /// The socket has an error.
    pub(crate) fn error(self) -> bool {
        self.0.contains(EventFlags::ERR)
    }
}

/// Wakes a [`Poller`] out of its wait, from any thread.
pub(crate) struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(crate) fn wake(&self) {
        // Each write is an edge, so the counter is never read. It overflows after 2^64 wakes: not in our time.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

/// Ends waits at regular times, for as long as it exists.
pub(crate) struct Ticker(OwnedFd);

impl Ticker {
    /// Takes note of a [`Token::Tick`]; without that there is no other.
    pub(crate) fn ticked(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// What a wait brought; the default has no room for anything.
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
    wake: Arc<OwnedFd>,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let poller = Poller { epoll, wake };
        poller.register(&*poller.wake, Token::Wake, EventFlags::IN)?;
        Ok(poller)
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker(self.wake.clone())
    }

    /// Reports `stream` until it is closed: once for all, there is no later change.
    pub(crate) fn add_stream(&self, stream: impl AsFd, token: Token) -> io::Result<()> {
        self.register(stream, token, EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::PRI)
    }

    /// Reports a listening or UDP socket that has something to read, until it is closed.
    pub(crate) fn add_source(&self, socket: impl AsFd, token: Token) -> io::Result<()> {
        self.register(socket, token, EventFlags::IN)
    }

    fn register(&self, fd: impl AsFd, token: Token, interest: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(token.to_bits()), interest | EventFlags::ET)?)
    }

    /// Ends a wait each `interval`. This costs nothing at each wait; a time-out costs the kernel a timer, which a
    /// round trip of a few microseconds feels.
    pub(crate) fn tick(&self, interval: Duration) -> io::Result<Ticker> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let interval = timespec(interval);
        let times = Itimerspec { it_interval: interval, it_value: interval };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &times)?;
        self.register(&timer, Token::Tick, EventFlags::IN)?;
        Ok(Ticker(timer))
    }

    /// Waits for events, at most `timeout`; with `None`, until there are some.
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
    fn every_wake_ends_a_wait() {
        let (poller, mut events) = (Poller::new().unwrap(), Events::with_room());
        let waker = poller.waker();
        for _ in 0..3 {
            waker.wake();
            poller.wait(&mut events, None).unwrap();
            assert!(events.iter().map(|(token, _)| token).eq([Token::Wake]));
            poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
            assert_eq!(events.iter().count(), 0);
        }
    }

    #[test]
    fn a_wait_may_be_shorter_than_a_millisecond() {
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
    fn every_tick_ends_a_wait_until_there_is_no_ticker() {
        let (poller, mut events) = (Poller::new().unwrap(), Events::with_room());
        let ticker = poller.tick(Duration::from_millis(1)).unwrap();
        for _ in 0..3 {
            poller.wait(&mut events, None).unwrap();
            assert!(events.iter().map(|(token, _)| token).eq([Token::Tick]));
            ticker.ticked();
        }
        drop(ticker);
        poller.wait(&mut events, Some(Duration::from_millis(3))).unwrap();
        assert_eq!(events.iter().count(), 0);
    }

    #[test]
    fn tokens_survive_the_kernel() {
        for token in [
            Token::Connection(0),
            Token::Connection((1 << 24) - 1),
            Token::Listener(3),
            Token::Udp(0),
            Token::Wake,
            Token::Tick,
        ] {
            assert_eq!(Token::from_bits(token.to_bits()), token);
        }
    }
}
