//! TCP of a device, for the exchange of queue pair attributes.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

/// TCP streams on the addresses of a device, named by numbers. No call blocks: a call that would have to wait returns
/// [`WouldBlock`](io::ErrorKind::WouldBlock). All streams end when the value is dropped.
///
/// The file descriptor is readable while [`next_event`](Self::next_event) has an event.
pub trait Streams: AsFd + Send {
    /// Listens on `address`. Returns it with the port chosen for port 0.
    fn listen(&mut self, address: SocketAddr) -> io::Result<SocketAddr>;

    /// Stops listening on all addresses.
    fn stop_listening(&mut self);

    /// Returns the next stream that a client has connected. Bytes that have arrived before cause no event.
    fn accept(&mut self) -> io::Result<u64>;

    /// Starts to connect to `remote`. Returns the new stream.
    fn connect(&mut self, remote: SocketAddr) -> io::Result<u64>;

    /// Returns the next event.
    fn next_event(&mut self) -> io::Result<Option<StreamEvent>>;

    /// Returns the local and the peer's address of a connected stream, or the reason why it could not be connected.
    fn addresses(&mut self, stream: u64) -> io::Result<[SocketAddr; 2]>;

    /// Reads received bytes. Returns 0 at the end of the stream.
    fn read(&mut self, stream: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Sends a short message, for which a new stream has room.
    fn write(&mut self, stream: u64, bytes: &[u8]) -> io::Result<()>;

    /// Probes the peer of an idle stream, and ends the stream if it does not answer.
    fn keep_alive(&mut self, stream: u64, keepalive: &Keepalive) -> io::Result<()>;

    /// Ends a stream after sending everything that was written.
    fn close(&mut self, stream: u64);
}

/// Event of [`Streams`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEvent {
    /// A client may have connected.
    Incoming,
    /// This stream has become connected or readable, or has ended. The event does not recur for bytes that are left
    /// unread.
    Ready(u64),
}

/// Probes of an idle stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Idle time before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Number of unanswered probes before the stream ends.
    pub probes: u8,
}
