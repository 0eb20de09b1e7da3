//! TCP connection: its socket, queues and state.

use linerate_bypass::time::Instant;
use linerate_bypass::{Buffer, BytesQueue, CloseReason, Linger, Timer, VECTOR};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

/// Progress of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Connecting, by the call with this token.
    Connecting(u64),
    /// Established.
    Open,
    /// The socket is closed; the service has yet to be informed of the reason.
    Ended(CloseReason),
}

/// State of the receive direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receiving {
    /// Data may follow.
    Open,
    /// The peer's FIN has been read.
    Ended,
    /// The FIN has been reported to the service, after all data.
    Reported,
    /// Lingering close: input is discarded.
    Discarding(Linger),
}

/// State of the send direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sending {
    /// The service may send.
    Open,
    /// The service has closed; the queue is still being sent.
    Closing,
    /// The kernel has all data and the FIN.
    Finished,
}

/// Result of a read.
#[derive(Debug)]
pub(crate) enum Received {
    /// Bytes read; the kernel has no more.
    Last(usize),
    /// Bytes read; the kernel may have more.
    Some(usize),
    /// No data available.
    Nothing,
    /// End of stream.
    End,
    /// The connection failed.
    Broken(io::Error),
}

/// Undelivered events of a connection.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pending {
    pub readable: bool,
    pub writable: bool,
    pub timer: bool,
}

/// TCP connection of a worker.
pub(crate) struct Connection {
    /// Socket, until the connection ends.
    pub stream: Option<TcpStream>,
    pub remote: SocketAddr,
    pub stage: Stage,
    pub receiving: Receiving,
    pub sending: Sending,
    pub rx: BytesQueue,
    pub tx: BytesQueue,
    pub timer: Timer,
    /// Time of the last read or write of data, or of creation.
    pub moved: Instant,
    pub pending: Pending,
    /// True if it is in the worker's list of connections with events.
    pub listed: bool,
    /// True if it is in the worker's list of connections to write to.
    pub tx_pending: bool,
    /// True if it is in the worker's list of connections to read again.
    pub unread: bool,
    /// True if reading stopped at a full receive queue. Consuming resumes it.
    pub paused: bool,
    /// True if the kernel's send buffer is full. An event reports room in it.
    pub blocked: bool,
    /// True if the service found too little send space and expects `writable`.
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
            tx_pending: false,
            unread: false,
            paused: false,
            blocked: false,
            wants_room: false,
            more_than_bytes: false,
        }
    }

    /// Returns whether the service may send.
    pub(crate) fn may_send(&self) -> bool {
        self.stage == Stage::Open && self.sending == Sending::Open
    }

    /// Returns whether a lingering close is in progress: input is discarded, and the service gets only `closed`.
    pub(crate) fn is_lingering(&self) -> bool {
        matches!(self.receiving, Receiving::Discarding(_))
    }

    /// Returns whether `peer_closed` is due.
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
                // A short read has drained a stream socket (epoll(7)), so new data cause an edge.
                if n < want && !self.more_than_bytes { Received::Last(n) } else { Received::Some(n) }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Received::Nothing,
            Err(error) if error.kind() == ErrorKind::Interrupted => Received::Some(0),
            Err(error) => Received::Broken(error),
        }
    }

    /// Writes the first slices of the send queue. Returns the bytes that the kernel took: zero if the queue is empty or
    /// the kernel's buffer is full.
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
                // A short write has filled the kernel's buffer, so room in it causes an edge.
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

    /// Sends the FIN if the service has closed and all data before it are sent.
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

    /// Returns whether both directions are finished.
    pub(crate) fn is_finished(&self) -> bool {
        self.stage == Stage::Open && self.receiving == Receiving::Reported && self.sending == Sending::Finished
    }
}
