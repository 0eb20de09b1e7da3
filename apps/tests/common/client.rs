//! Clients over kernel sockets.

use linerate_harness::TIMEOUT;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Time limit of an exchange. With a thousand connections, many frames are lost in the AF_XDP ring of about 2000 frames
/// and are retransmitted after increasing timeouts.
const DEADLINE: Duration = Duration::from_secs(60);

/// Connects with a time limit on every operation.
#[track_caller]
pub fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&to, TIMEOUT).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Returns pseudo-random bytes that depend on the length only.
pub fn random(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(len as u64).fill(&mut bytes);
    bytes
}

/// Connection that sends a part of the bytes, closes its side, and compares the echo.
struct Stream<'a> {
    socket: TcpStream,
    to_send: &'a [u8],
    to_receive: &'a [u8],
    /// Set if all bytes and the end of the stream were received.
    done: bool,
}

impl Stream<'_> {
    fn events(&self) -> epoll::EventFlags {
        if self.to_send.is_empty() { epoll::EventFlags::IN } else { epoll::EventFlags::IN | epoll::EventFlags::OUT }
    }

    fn send(&mut self) -> io::Result<()> {
        while !self.to_send.is_empty() {
            match self.socket.write(self.to_send) {
                Ok(n) => self.to_send = &self.to_send[n..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.socket.shutdown(Shutdown::Write)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        loop {
            match self.socket.read(buffer) {
                Ok(0) => {
                    assert_eq!(self.to_receive.len(), 0, "stream ended before all bytes came back");
                    self.done = true;
                    return Ok(());
                }
                Ok(n) => {
                    assert!(self.to_receive.starts_with(&buffer[..n]), "wrong bytes came back");
                    self.to_receive = &self.to_receive[n..];
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Sends `bytes` to an echo service in equal parts over `connections` concurrent connections, each half-closed after
/// its last byte. Checks that all bytes and the end of each stream come back.
#[track_caller]
pub fn exchange(to: SocketAddr, bytes: &[u8], connections: usize) {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let mut streams: Vec<_> = bytes
        .chunks(bytes.len().div_ceil(connections))
        .map(|part| Stream { socket: connect(to), to_send: part, to_receive: part, done: false })
        .collect();
    assert_eq!(streams.len(), connections);
    for (index, stream) in streams.iter().enumerate() {
        stream.socket.set_nonblocking(true).unwrap();
        epoll::add(&epoll, &stream.socket, epoll::EventData::new_u64(index as u64), stream.events()).unwrap();
    }
    let mut left = connections;
    let mut buffer = vec![0; 1 << 18];
    let mut events = Vec::with_capacity(256);
    let end = Instant::now() + DEADLINE;
    while left > 0 {
        assert!(Instant::now() < end, "{left} of {connections} connections did not finish within {DEADLINE:?}");
        epoll::wait(&epoll, spare_capacity(&mut events), Some(&Timespec { tv_sec: 1, tv_nsec: 0 })).unwrap();
        for event in events.drain(..) {
            let stream = &mut streams[event.data.u64() as usize];
            let before = stream.events();
            if !stream.to_send.is_empty() {
                stream.send().unwrap();
            }
            stream.receive(&mut buffer).unwrap();
            if stream.done {
                epoll::delete(&epoll, &stream.socket).unwrap();
                left -= 1;
            } else if stream.events() != before {
                epoll::modify(&epoll, &stream.socket, event.data, stream.events()).unwrap();
            }
        }
    }
}
