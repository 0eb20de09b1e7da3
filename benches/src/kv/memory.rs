//! In-memory transport, and the requests of key-value clients over it.

use linerate_bypass::arena::{Arena, ArenaConfig};
use linerate_kv::cluster::ClusterMap;
use linerate_kv::commands::Settings;
use linerate_kv::service::{Config, Hub, Kv};
use linerate_service::time::Instant;
use linerate_service::{Bytes, ConnId, Datagram, Origin, Service, Transport, Unsent, WriteError};
use std::net::SocketAddr;
use std::sync::Arc;

/// Connections of a worker: one per frame of a burst.
pub const CONNECTIONS: usize = 32;
/// Maximum bytes per write of the service.
const RESERVED: usize = 4096;
/// Memory per key in addition to its value.
const OVERHEAD: usize = 256;

/// Creates the hub of a service for `keys` keys, whose workers are nodes of a cluster if `is_cluster`.
///
/// # Panics
/// If memory is unavailable.
pub fn hub(workers: usize, keys: u64, value: usize, is_cluster: bool) -> Arc<Hub> {
    let memory = (keys as usize * (value + OVERHEAD)).max(64 << 20) as u64;
    let settings = Settings { memory, ..Settings::default() };
    let arena = Arena::new(ArenaConfig { bytes: memory as usize, hugepages: false }).expect("memory");
    let config =
        Config { settings, workers, memcached: None, memcached_tls: None, arena, export: None, counters: None };
    if is_cluster {
        let map = ClusterMap::of_one_process(None, (6379, 0), workers, 1).expect("at most 255 workers");
        return Hub::in_cluster(config, map);
    }
    // A fixed hash secret gives two runs the same index collisions.
    Hub::with_key(config, [7; 16])
}

/// Returns the length of the reply to a GET of a value of `value` bytes.
pub fn answer_to_get(value: usize) -> u64 {
    (format!("${value}\r\n").len() + value + "\r\n".len()) as u64
}

/// Appends a GET and returns the length of its reply.
pub fn get(requests: &mut Vec<u8>, key: u64, value: usize) -> u64 {
    requests.extend(format!("*2\r\n$3\r\nGET\r\n$16\r\nkey:{key:012}\r\n").bytes());
    answer_to_get(value)
}

/// Appends an MGET and returns the length of its reply.
pub fn mget(requests: &mut Vec<u8>, keys: impl ExactSizeIterator<Item = u64>, value: usize) -> u64 {
    let count = keys.len();
    requests.extend(format!("*{}\r\n$4\r\nMGET\r\n", count + 1).bytes());
    keys.for_each(|key| requests.extend(format!("$16\r\nkey:{key:012}\r\n").bytes()));
    format!("*{count}\r\n").len() as u64 + count as u64 * answer_to_get(value)
}

/// Appends a SET and returns the length of its reply.
pub fn set(requests: &mut Vec<u8>, key: u64, value: &str) -> u64 {
    let len = value.len();
    requests.extend(format!("*3\r\n$3\r\nSET\r\n$16\r\nkey:{key:012}\r\n${len}\r\n{value}\r\n").bytes());
    "+OK\r\n".len() as u64
}

/// Client's end of a connection.
#[derive(Debug, Default, Clone)]
pub struct End {
    /// All bytes to send.
    pub requests: Vec<u8>,
    /// Number of bytes that have arrived.
    pub arrived: usize,
    read: usize,
    /// Number of bytes received from the service.
    pub answered: u64,
}

impl End {
    /// Clears both directions.
    pub fn clear(&mut self) {
        self.requests.clear();
        (self.arrived, self.read) = (0, 0);
    }

    /// Sends the output of `append` at once and returns its result.
    pub fn send(&mut self, append: impl FnOnce(&mut Vec<u8>) -> u64) -> u64 {
        let answer = append(&mut self.requests);
        self.arrived = self.requests.len();
        answer
    }
}

/// Transport with requests from memory, which counts reply bytes.
pub struct Memory {
    worker: usize,
    /// Time, as the service sees it.
    pub now: Instant,
    /// Ends by connection slot.
    pub ends: Vec<End>,
    /// Bit mask of slots with new replies.
    pub replied: u32,
    reserved: Vec<u8>,
    /// Bytes written by the service.
    pub written: u64,
    /// Bytes sent by the service without a copy.
    pub sent: u64,
    /// Written bytes, if they are kept.
    pub kept: Option<Vec<u8>>,
    /// Maximum length of a slice of received bytes.
    pub segment: usize,
}

impl Memory {
    /// Creates the transport of `worker` with a number of connections, which takes up to `reserved` bytes per write.
    pub fn new(worker: usize, connections: usize, reserved: usize) -> Self {
        let ends = vec![End::default(); connections];
        let (now, reserved) = (Instant::ZERO, vec![0; reserved]);
        Memory { worker, now, ends, replied: 0, reserved, written: 0, sent: 0, kept: None, segment: usize::MAX }
    }

    /// Creates the transport of `worker` with service `kv`, and connected clients.
    pub fn with_clients(kv: &mut Kv, worker: usize) -> (Self, Vec<ConnId>) {
        let mut net = Memory::new(worker, CONNECTIONS, RESERVED);
        let conns: Vec<ConnId> = (0..CONNECTIONS).map(|slot| ConnId::new(worker, slot, 0)).collect();
        for conn in &conns {
            kv.opened(&mut net, *conn, Origin::Accepted);
        }
        (net, conns)
    }

    fn note(&mut self, conn: ConnId, bytes: usize) {
        self.ends[conn.slot()].answered += bytes as u64;
        self.replied |= 1 << conn.slot();
    }
}

impl Transport for Memory {
    #[inline]
    fn now(&self) -> Instant {
        self.now
    }

    fn worker(&self) -> usize {
        self.worker
    }

    fn local_addr(&self, _: ConnId) -> Option<SocketAddr> {
        Some(([10, 0, 0, 2], 6379).into())
    }

    fn peer_addr(&self, _: ConnId) -> Option<SocketAddr> {
        Some(([10, 0, 0, 1], 49_152).into())
    }

    #[inline]
    fn received(&self, conn: ConnId) -> usize {
        let end = &self.ends[conn.slot()];
        end.arrived - end.read
    }

    #[inline]
    fn peek(&mut self, conn: ConnId) -> &[u8] {
        let end = &self.ends[conn.slot()];
        &end.requests[end.read..end.arrived.min(end.read.saturating_add(self.segment))]
    }

    #[inline]
    fn consume(&mut self, conn: ConnId, n: usize) {
        let end = &mut self.ends[conn.slot()];
        end.read = end.read.saturating_add(n).min(end.arrived);
    }

    fn take(&mut self, _: ConnId, _: usize) -> Option<Bytes> {
        None
    }

    #[inline]
    fn send_space(&mut self, _: ConnId) -> usize {
        1 << 20
    }

    fn send(&mut self, conn: ConnId, bytes: Bytes) -> Result<(), Unsent> {
        self.sent += bytes.len() as u64;
        self.note(conn, bytes.len());
        Ok(())
    }

    #[inline]
    fn reserve(&mut self, _: ConnId, max: usize) -> Result<&mut [u8], WriteError> {
        let n = max.min(self.reserved.len());
        Ok(&mut self.reserved[..n])
    }

    #[inline]
    fn commit(&mut self, conn: ConnId, n: usize) {
        self.written += n as u64;
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(&self.reserved[..n]);
        }
        self.note(conn, n);
    }

    fn close(&mut self, _: ConnId) {}

    fn abort(&mut self, _: ConnId) {}

    fn set_timer(&mut self, _: ConnId, _: Option<linerate_service::time::Duration>) {}

    fn connect(&mut self, _: SocketAddr, _: u64) {}

    fn send_datagram(&mut self, datagram: Datagram) -> Result<(), Datagram> {
        Err(datagram)
    }
}
