//! One TCP connection: its socket, its queues, and how far each side has come.

use linerate_bypass::time::Instant;
use linerate_bypass::{Buffer, BytesQueue, CloseReason, Linger, Timer, VECTOR};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

/// How far the connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The service asked for it with this token and has not been told of it.
    Connecting(u64),
    /// Established.
    Open,
    /// Its socket is closed; the service has still to be told why.
    Ended(CloseReason),
}

/// How far the peer's half has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receiving {
    /// There may be more to come.
    Open,
    /// Its end has been read.
    Ended,
    /// The service has been told so, after it consumed everything.
    Told,
    /// A lingering close: whatever comes is discarded.
    Discarding(Linger),
}

/// How far our half has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sending {
    /// The service may send.
    Open,
    /// It has closed; the queue is still being sent.
    Closing,
    /// The kernel has everything, the end of the stream included.
    Finished,
}

/// What an attempt to read came to.
#[derive(Debug)]
pub(crate) enum Received {
    /// This many bytes, and nothing is left in the kernel.
    Last(usize),
    /// This many bytes; there may be more.
    Some(usize),
    /// Nothing yet.
    Nothing,
    /// The end of the stream.
    End,
    /// The connection broke.
    Broken(io::Error),
}

/// The events of a connection that have happened and not been delivered.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pending {
    pub readable: bool,
    pub writable: bool,
    pub timer: bool,
}

/// See the file's head.
pub(crate) struct Connection {
    /// `None` once it has ended.
    pub stream: Option<TcpStream>,
    pub remote: SocketAddr,
    pub stage: Stage,
    pub receiving: Receiving,
    pub sending: Sending,
    pub rx: BytesQueue,
    pub tx: BytesQueue,
    pub timer: Timer,
    /// Time of the last read or write of bytes, or of creation.
    pub moved: Instant,
    pub pending: Pending,
    /// It is in the worker's list of connections with events.
    pub listed: bool,
    /// It is in the worker's list of connections to be written to.
    pub dirty: bool,
    /// It is in the worker's list of connections to be read from again.
    pub unread: bool,
    /// Reading stopped because the receive queue was full; consuming resumes it.
    pub paused: bool,
    /// The kernel's send buffer is full; an event will say when it is not.
    pub blocked: bool,
    /// The service found too little room and is to be told when there is some.
    pub wants_room: bool,
    /// See [`Readiness::more_than_bytes`](crate::poller::Readiness::more_than_bytes).
    pub more_than_bytes: bool,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, remote: SocketAddr, stage: Stage, now: Instant) -> Self {
        Connection {
            stream: Some(stream),
            remote,
            stage,
            receiving: Receiving::Open,
            sending: Sending::Open,
            rx: BytesQueue::default(),
            tx: BytesQueue::default(),
            timer: Timer::default(),
            moved: now,
            pending: Pending::default(),
            listed: false,
            dirty: false,
            unread: false,
            paused: false,
            blocked: false,
            wants_room: false,
            more_than_bytes: false,
        }
    }

    /// Whether the service may still send.
    pub(crate) fn may_send(&self) -> bool {
        self.stage == Stage::Open && self.sending == Sending::Open
    }

    /// Returns true in a lingering close: input is discarded, and the service gets no event but `closed`.
    pub(crate) fn is_lingering(&self) -> bool {
        matches!(self.receiving, Receiving::Discarding(_))
    }

    /// Whether the service is to be told now that the peer has finished.
    pub(crate) fn peer_closed_is_due(&self) -> bool {
        self.receiving == Receiving::Ended && self.rx.is_empty()
    }

    /// Reads up to `want` bytes once, into `block`.
    pub(crate) fn read(&mut self, block: &mut Buffer, want: usize) -> Received {
        let Some(mut stream) = self.stream.as_ref() else { return Received::Nothing };
        match stream.read(&mut block[..want]) {
            Ok(0) => {
                self.receiving = Receiving::Ended;
                Received::End
            }
            Ok(n) => {
                self.rx.push(block.split_to(n));
                self.pending.readable = true;
                // A short read has emptied a stream socket (epoll(7)), so that the next bytes are an edge.
                if n < want && !self.more_than_bytes { Received::Last(n) } else { Received::Some(n) }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Received::Nothing,
            Err(error) if error.kind() == ErrorKind::Interrupted => Received::Some(0),
            Err(error) => Received::Broken(error),
        }
    }

    /// Writes what the kernel takes of the first slices of the send queue, and returns how much that was. Zero
    /// means that there is nothing to write or that the kernel's buffer is full.
    pub(crate) fn write(&mut self) -> io::Result<usize> {
        let Some(mut stream) = self.stream.as_ref() else { return Ok(0) };
        if self.blocked || self.tx.is_empty() {
            return Ok(0);
        }
        let (offered, written) = if self.tx.slices() == 1 {
            let bytes = self.tx.front();
            (bytes.len(), stream.write(bytes))
        } else {
            let mut vector = [IoSlice::new(&[]); VECTOR];
            let (slices, len) = self.tx.vector(&mut vector);
            (len, stream.write_vectored(&vector[..slices]))
        };
        match written {
            Ok(n) => {
                // A short write has filled the kernel's buffer, so that room in it will be an edge.
                self.blocked = n < offered;
                self.tx.advance(n);
                Ok(n)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.blocked = true;
                Ok(0)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Sends the end of the stream if the service has closed and everything before it is sent.
    pub(crate) fn finish_sending(&mut self) -> io::Result<()> {
        if self.sending == Sending::Closing
            && self.tx.is_empty()
            && let Some(stream) = &self.stream
        {
            self.sending = Sending::Finished;
            stream.shutdown(Shutdown::Write)?;
        }
        Ok(())
    }

    /// Whether both halves are done with.
    pub(crate) fn is_finished(&self) -> bool {
        self.stage == Stage::Open && self.receiving == Receiving::Told && self.sending == Sending::Finished
    }
}
