//! Connection operations of the smoltcp engine.

use super::SmoltcpEngine;
use super::flow::{Flow, Phase};
use crate::ip::egress::Egress;
use linerate_bypass::Nic;
use linerate_service::time::Instant;
use linerate_service::{Bytes, CloseReason, ConnId, ConnectError, Event, Unsent, WriteError};
use std::net::SocketAddr;

/// Bytes moved at a time between sockets.
const CHUNK: usize = 16 << 10;

impl SmoltcpEngine {
    /// Updates `conn` after data were consumed: its window may open, and the peer's FIN may become reportable.
    fn after_consuming(&mut self, conn: ConnId) {
        let slot = conn.slot() as u32;
        if self.slots.get_mut(conn).is_some_and(|flow| flow.consumed()) {
            self.touch(slot);
        }
        self.tx_pending(slot);
    }

    pub(super) fn consume(&mut self, conn: ConnId, n: usize) {
        let Some(flow) = self.slots.get_mut(conn) else { return };
        let socket = flow.socket_mut();
        let mut left = n.min(socket.recv_queue());
        // Two steps if the ring wraps.
        while left > 0 {
            match socket.recv(|bytes| (bytes.len().min(left), bytes.len().min(left))) {
                Ok(dropped) if dropped > 0 => left -= dropped,
                _ => break,
            }
        }
        self.after_consuming(conn);
    }

    pub(super) fn take(&mut self, conn: ConnId, max: usize) -> Option<Bytes> {
        let flow = self.slots.get_mut(conn)?;
        let copies = &self.copies;
        let taken = flow.socket_mut().recv(|bytes| {
            let n = bytes.len().min(max);
            (n, (n > 0).then(|| copies.copy(&bytes[..n])))
        });
        let bytes = taken.ok().flatten()?;
        self.copied_bytes += bytes.len() as u64;
        self.after_consuming(conn);
        Some(bytes)
    }

    pub(super) fn send_space(&mut self, conn: ConnId) -> usize {
        let Some(flow) = self.slots.get_mut(conn) else { return 0 };
        let room = flow.send_space();
        flow.wants_room |= room == 0;
        room
    }

    pub(super) fn send(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Unsent> {
        let flow = match self.slots.get_mut(conn) {
            Some(flow) if flow.socket().may_send() => flow,
            _ => return Err(Unsent { bytes, error: WriteError::Closed }),
        };
        if flow.send_space() < bytes.len() {
            flow.wants_room = true;
            return Err(Unsent { bytes, error: WriteError::Full });
        }
        match flow.socket_mut().send_slice(&bytes) {
            Ok(_) => {
                self.copied_bytes += bytes.len() as u64;
                self.tx_pending(conn.slot() as u32);
                Ok(())
            }
            Err(_) => Err(Unsent { bytes, error: WriteError::Closed }),
        }
    }

    pub(super) fn reserve(&mut self, conn: ConnId, max: usize) -> Result<&mut [u8], WriteError> {
        let flow = self.slots.get_mut(conn).filter(|flow| flow.socket().may_send()).ok_or(WriteError::Closed)?;
        let room = flow.send_space();
        flow.wants_room |= room < max;
        if room == 0 || max == 0 {
            return Err(WriteError::Full);
        }
        // Writing zero bytes returns the buffer.
        let space = flow.socket_mut().send(|space| (0, space)).map_err(|_| WriteError::Closed)?;
        let n = space.len().min(max);
        Ok(&mut space[..n])
    }

    pub(super) fn commit(&mut self, conn: ConnId, n: usize) {
        let Some(flow) = self.slots.get_mut(conn) else { return };
        let _ = flow.socket_mut().send(|space| {
            assert!(n <= space.len(), "{n} bytes committed of {} reserved", space.len());
            (n, ())
        });
        self.copied_bytes += n as u64;
        self.tx_pending(conn.slot() as u32);
    }

    pub(super) fn forward(&mut self, from: ConnId, to: ConnId) -> usize {
        let mut chunk = std::mem::take(&mut self.scratch);
        chunk.resize(chunk.len().max(CHUNK), 0);
        let mut moved = 0;
        loop {
            let received = self.slots.get(from).map_or(0, |flow| flow.socket().recv_queue());
            if received == 0 {
                break;
            }
            let n = self.send_space(to).min(received).min(CHUNK);
            if n == 0 {
                break;
            }
            let Some(source) = self.slots.get_mut(from) else { break };
            let Ok(n) = source.socket_mut().recv_slice(&mut chunk[..n]) else { break };
            let Some(sink) = self.slots.get_mut(to) else { break };
            let sent = sink.socket_mut().send_slice(&chunk[..n]);
            debug_assert_eq!(sent, Ok(n));
            moved += n;
        }
        self.scratch = chunk;
        if moved > 0 {
            self.copied_bytes += 2 * moved as u64;
            self.after_consuming(from);
            self.tx_pending(to.slot() as u32);
        }
        moved
    }

    pub(super) fn abort_flow(&mut self, slot: u32) {
        let Some(flow) = self.slots.at_mut(slot as usize) else { return };
        // `Finished` requires that the service has read all data, which an abort rules out.
        if flow.reason.is_none_or(|reason| reason == CloseReason::Finished) {
            flow.reason = Some(CloseReason::Aborted);
        }
        flow.socket_mut().abort();
        self.tx_pending(slot);
    }

    /// Opens a connection.
    pub(super) fn begin<N: Nic>(
        &mut self,
        remote: SocketAddr,
        token: u64,
        egress: &Egress<N>,
        now: Instant,
    ) -> Result<(), ConnectError> {
        egress.addresses().check_remote(remote)?;
        let (table, time_wait) = (&self.table, &self.time_wait);
        let tuple = self
            .ports
            .choose(egress.addresses(), remote, now, |tuple| table.contains_key(tuple) || time_wait.contains(tuple))
            .ok_or(ConnectError::NoLocalAddress)?;
        let slot = self.insert(tuple, Phase::Connecting(token)).ok_or(ConnectError::TooMany)?;
        let timeout = self.limits.half_open_timeout;
        let interface = &mut self.interface;
        let connected = self.slots.at_mut(slot as usize).map(|flow: &mut Box<Flow>| {
            let socket = flow.socket_mut();
            socket.set_timeout(Some(timeout));
            let local = tuple.local();
            let from = (local.ip(), local.port());
            socket.connect(interface.context(), (remote.ip(), remote.port()), from)
        });
        if !matches!(connected, Some(Ok(()))) {
            self.remove(slot, Instant::ZERO);
            return Err(ConnectError::NoLocalAddress);
        }
        self.tx_pending(slot);
        Ok(())
    }

    /// Gives up a connection attempt.
    pub(super) fn fail(&mut self, slot: u32, token: u64, error: ConnectError) {
        self.counts.failed += 1;
        self.events.others.push(Event::Failed(token, error));
        self.remove(slot, Instant::ZERO);
    }
}
