//! UDP sockets of a worker.

use linerate_bypass::{Buffer, BufferPool};
use linerate_service::Datagram;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

/// Larger than any datagram, so that none is truncated.
const LARGEST: usize = 1 << 16;

/// Block size: several of the largest datagrams fit.
const BLOCK: usize = 4 * LARGEST;

struct Socket {
    socket: UdpSocket,
    local: SocketAddr,
    /// True if more datagrams may wait.
    ready: bool,
}

pub(crate) struct Udp {
    sockets: Vec<Socket>,
    pool: BufferPool,
    block: Option<Buffer>,
    /// Buffer for datagrams that services write.
    written: Vec<u8>,
    /// Received datagrams dropped for lack of memory.
    pub dropped: u64,
}

impl Udp {
    /// Creates the sockets, with up to `memory` bytes for received datagrams.
    pub(crate) fn new(sockets: Vec<(UdpSocket, SocketAddr)>, memory: usize) -> Self {
        let sockets = sockets.into_iter().map(|(socket, local)| Socket { socket, local, ready: true }).collect();
        let pool = BufferPool::new(BLOCK, 4, (memory / BLOCK).max(1));
        Udp { sockets, pool, block: None, written: Vec::new(), dropped: 0 }
    }

    pub(crate) fn local_addrs(&self) -> Vec<SocketAddr> {
        self.sockets.iter().map(|socket| socket.local).collect()
    }

    /// Marks the socket of this index as readable.
    pub(crate) fn set_ready(&mut self, index: usize) {
        if let Some(socket) = self.sockets.get_mut(index) {
            socket.ready = true;
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.sockets.iter().any(|socket| socket.ready)
    }

    /// Reuses the current block from its start if it has no users.
    pub(crate) fn reset(&mut self) {
        if let Some(block) = &mut self.block {
            block.reset();
        }
    }

    /// Returns the next received datagram.
    pub(crate) fn receive(&mut self) -> Option<Datagram> {
        for Socket { socket, local, ready } in self.sockets.iter_mut().filter(|socket| socket.ready) {
            if self.block.as_ref().is_none_or(|block| block.len() < LARGEST) {
                self.block = self.pool.take();
            }
            let Some(block) = &mut self.block else {
                match socket.recv_from(&mut []) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => *ready = false,
                    _ => self.dropped += 1,
                }
                continue;
            };
            match socket.recv_from(block) {
                Ok((n, remote)) => {
                    return Some(Datagram { local: *local, remote, payload: block.split_to(n) });
                }
                // Other errors concern an earlier datagram; the next attempt continues after it.
                Err(error) => *ready = error.kind() != ErrorKind::WouldBlock,
            }
        }
        None
    }

    /// Sends a datagram from the socket bound to `local`. For an unspecified address with port 0, sends from the first
    /// socket of its family.
    pub(crate) fn send(&self, local: SocketAddr, remote: SocketAddr, payload: &[u8]) -> bool {
        let any = local.ip().is_unspecified() && local.port() == 0;
        let fits = |socket: &&Socket| socket.local == local || any && socket.local.is_ipv4() == local.is_ipv4();
        self.sockets.iter().find(fits).is_some_and(|socket| socket.socket.send_to(payload, remote).is_ok())
    }

    /// Sends a datagram of `len` bytes that `write` writes, as [`send`](Self::send) does.
    pub(crate) fn write(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> bool {
        if self.written.len() < len {
            self.written.resize(len, 0);
        }
        write(&mut self.written[..len]);
        self.send(local, remote, &self.written[..len])
    }
}
