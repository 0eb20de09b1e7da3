//! TCP connection: its socket, queues and state.

use linerate_bypass::Buffer;
use linerate_service::time::Instant;
use linerate_service::{BytesQueue, Lifecycle, Receiving, Sending, Stage, Tracked, VECTOR};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

/// Result of a read.
#[derive(Debug)]
pub(crate) enum Received {
    /// Bytes read; the kernel has no more.
    Last(usize),
    /// Bytes read; the kernel may have more.
    Some(usize),
    /// No data available.
    Nothing,
    End,
    /// The connection failed.
    Broken(io::Error),
}

/// TCP connection of a worker.
pub(crate) struct Connection {
    /// Socket, until the connection ends.
    pub stream: Option<TcpStream>,
    pub remote: SocketAddr,
    pub life: Lifecycle,
    pub rx: BytesQueue,
    pub tx: BytesQueue,
    /// Time of the last read or write of data, or of creation.
    pub moved: Instant,
    /// True if it is in the worker's list of connections to write to.
    pub tx_pending: bool,
    /// True if it is in the worker's list of connections to read again.
    pub unread: bool,
    /// True if reading stopped at a full receive queue. Consuming resumes it.
    pub paused: bool,
    /// True if the kernel's send buffer is full. An event reports room in it.
    pub blocked: bool,
    /// See [`Readiness::more_than_bytes`](crate::poller::Readiness::more_than_bytes).
    pub more_than_bytes: bool,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, remote: SocketAddr, stage: Stage, now: Instant) -> Self {
        Connection {
            stream: Some(stream),
            remote,
            life: Lifecycle::new(stage),
            rx: BytesQueue::default(),
            tx: BytesQueue::default(),
            moved: now,
            tx_pending: false,
            unread: false,
            paused: false,
            blocked: false,
            more_than_bytes: false,
        }
    }

    /// Reads up to `want` bytes once, into `block`.
    pub(crate) fn read(&mut self, block: &mut Buffer, want: usize) -> Received {
        let Some(mut stream) = self.stream.as_ref() else { return Received::Nothing };
        match stream.read(&mut block[..want]) {
            Ok(0) => {
                self.life.receiving = Receiving::Ended;
                Received::End
            }
            Ok(n) => {
                self.rx.push(block.split_to(n));
                self.life.pending.readable = true;
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
        if self.life.sending == Sending::Closing
            && self.tx.is_empty()
            && let Some(stream) = &self.stream
        {
            self.life.sending = Sending::Finished;
            stream.shutdown(Shutdown::Write)?;
        }
        Ok(())
    }
}

impl Tracked for Connection {
    #[inline]
    fn life(&self) -> &Lifecycle {
        &self.life
    }

    #[inline]
    fn life_mut(&mut self) -> &mut Lifecycle {
        &mut self.life
    }

    #[inline]
    fn is_read(&self) -> bool {
        self.rx.is_empty()
    }
}
