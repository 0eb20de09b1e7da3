//! TCP sockets of the kernel.

use super::ExchangeError;
use crate::provider::{Keepalive, StreamEvent, Streams};
use linerate_bypass::raise_open_files;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, listen, socket_with, sockopt};
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Listen backlog.
const BACKLOG: i32 = 4096;
/// Events processed at a time.
const EVENTS: usize = 64;
/// Event key of all listeners.
const LISTENER: u64 = u64::MAX;

/// Sockets with an edge-triggered epoll.
pub(super) struct Sockets {
    epoll: OwnedFd,
    listeners: Vec<TcpListener>,
    streams: HashMap<u64, TcpStream>,
    next: u64,
    events: VecDeque<StreamEvent>,
}

impl Sockets {
    pub fn open() -> Result<Self, ExchangeError> {
        // Each connection needs a socket; the default limit is 1024.
        if let Err(error) = raise_open_files(None) {
            tracing::debug!("cannot raise the limit of open files: {error}");
        }
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Sockets { epoll, listeners: Vec::new(), streams: HashMap::new(), next: 0, events: VecDeque::new() })
    }

    fn add(&mut self, stream: TcpStream, flags: EventFlags) -> io::Result<u64> {
        stream.set_nodelay(true)?;
        let flags = flags | EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &stream, EventData::new_u64(self.next), flags)?;
        self.streams.insert(self.next, stream);
        self.next += 1;
        Ok(self.next - 1)
    }

    fn stream(&mut self, stream: u64) -> io::Result<&mut TcpStream> {
        self.streams.get_mut(&stream).ok_or_else(|| ErrorKind::NotConnected.into())
    }
}

impl AsFd for Sockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Streams for Sockets {
    fn listen(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind(address)?;
        // Increases the backlog: a client that finds it full retries only after seconds.
        listen(&listener, BACKLOG)?;
        listener.set_nonblocking(true)?;
        epoll::add(&self.epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN | EventFlags::ET)?;
        let address = listener.local_addr()?;
        self.listeners.push(listener);
        Ok(address)
    }

    fn stop_listening(&mut self) {
        self.listeners.clear();
    }

    fn accept(&mut self) -> io::Result<u64> {
        for listener in &self.listeners {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    return self.add(stream, EventFlags::empty());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Err(ErrorKind::WouldBlock.into())
    }

    fn connect(&mut self, remote: SocketAddr) -> io::Result<u64> {
        let family = if remote.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        match connect(&socket, &remote) {
            Ok(()) | Err(Errno::INPROGRESS) => self.add(socket.into(), EventFlags::OUT),
            Err(error) => Err(error.into()),
        }
    }

    fn next_event(&mut self) -> io::Result<Option<StreamEvent>> {
        if self.events.is_empty() {
            let mut buffer = [const { MaybeUninit::uninit() }; EVENTS];
            let none = Timespec { tv_sec: 0, tv_nsec: 0 };
            match epoll::wait(&self.epoll, &mut buffer, Some(&none)) {
                Ok((events, _)) => self.events.extend(events.iter().map(|event| match event.data.u64() {
                    LISTENER => StreamEvent::Incoming,
                    stream => StreamEvent::Ready(stream),
                })),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.events.pop_front())
    }

    fn addresses(&mut self, stream: u64) -> io::Result<[SocketAddr; 2]> {
        let stream = self.stream(stream)?;
        match stream.take_error()? {
            Some(error) => Err(error),
            None => Ok([stream.local_addr()?, stream.peer_addr()?]),
        }
    }

    fn read(&mut self, stream: u64, into: &mut [u8]) -> io::Result<usize> {
        self.stream(stream)?.read(into)
    }

    fn write(&mut self, stream: u64, bytes: &[u8]) -> io::Result<()> {
        self.stream(stream)?.write_all(bytes)
    }

    fn keep_alive(&mut self, stream: u64, keepalive: &Keepalive) -> io::Result<()> {
        let stream = self.stream(stream)?;
        sockopt::set_tcp_keepidle(&stream, keepalive.idle)?;
        sockopt::set_tcp_keepintvl(&stream, keepalive.interval)?;
        sockopt::set_tcp_keepcnt(&stream, keepalive.probes.into())?;
        Ok(sockopt::set_socket_keepalive(&stream, true)?)
    }

    fn close(&mut self, stream: u64) {
        self.streams.remove(&stream);
    }
}
