//! The UDP sockets of one worker.

use linerate_bypass::{Buffer, BufferPool, Bytes, Datagram};
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

/// More than any datagram carries, so that none is cut short.
const LARGEST: usize = 1 << 16;

/// Blocks into which several of the largest fit.
const BLOCK: usize = 4 * LARGEST;

struct Socket {
    socket: UdpSocket,
    local: SocketAddr,
    /// There may be more to receive.
    ready: bool,
}

pub(crate) struct Udp {
    sockets: Vec<Socket>,
    pool: BufferPool,
    block: Option<Buffer>,
    /// Datagrams that arrived when there was no memory for them.
    pub dropped: u64,
}

impl Udp {
    /// The sockets, with up to `memory` bytes for what they receive.
    pub(crate) fn new(sockets: Vec<(UdpSocket, SocketAddr)>, memory: usize) -> Self {
        let sockets = sockets.into_iter().map(|(socket, local)| Socket { socket, local, ready: true }).collect();
        Udp { sockets, pool: BufferPool::new(BLOCK, 4, (memory / BLOCK).max(1)), block: None, dropped: 0 }
    }

    pub(crate) fn local_addrs(&self) -> Vec<SocketAddr> {
        self.sockets.iter().map(|socket| socket.local).collect()
    }

    /// Something has come for the socket of this index.
    pub(crate) fn set_ready(&mut self, index: usize) {
        if let Some(socket) = self.sockets.get_mut(index) {
            socket.ready = true;
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.sockets.iter().any(|socket| socket.ready)
    }

    /// Makes the whole of the current block usable if nobody has a part of it any more.
    pub(crate) fn reset(&mut self) {
        if let Some(block) = &mut self.block {
            block.reset();
        }
    }

    /// The next datagram that has come.
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
                // Whatever else is wrong is wrong with an earlier datagram; the next attempt gets past it.
                Err(error) => *ready = error.kind() != ErrorKind::WouldBlock,
            }
        }
        None
    }

    /// Sends from the socket that is bound to the datagram's local address; with an unspecified one and port 0,
    /// from the first of its family.
    pub(crate) fn send(&self, datagram: &Datagram) -> bool {
        let Datagram { local, remote, payload } = datagram;
        let any = local.ip().is_unspecified() && local.port() == 0;
        let fits = |socket: &&Socket| socket.local == *local || any && socket.local.is_ipv4() == local.is_ipv4();
        let payload: &Bytes = payload;
        self.sockets.iter().find(fits).is_some_and(|socket| socket.socket.send_to(payload, remote).is_ok())
    }
}
