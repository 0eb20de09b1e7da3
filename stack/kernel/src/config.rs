//! Configuration of kernel socket workers.

use std::net::SocketAddr;
use std::time::Duration;

/// Sockets and limits of a worker. All workers of one service share one value.
#[derive(Debug, Clone)]
pub struct Config {
    /// TCP addresses to accept connections on. Port 0 selects any free port, the same for all workers. An unspecified
    /// address stands for its family: `[::]` does not include IPv4.
    pub listen: Vec<SocketAddr>,
    /// TCP addresses with one port per worker: only worker *n*, counted from 0, listens on the port plus *n*.
    pub listen_by_worker: Vec<SocketAddr>,
    /// UDP addresses to receive datagrams on, with the same rules as [`listen`](Self::listen). The kernel does not
    /// report the local address of a datagram: on an unspecified address, datagrams have the unspecified address as
    /// their local address.
    pub listen_udp: Vec<SocketAddr>,
    /// True if workers poll without sleeping: lowest latency, at the cost of a whole core per worker.
    pub spin: bool,
    /// Maximum connections of one worker. A further one is reset and counted.
    pub max_connections: usize,
    /// Receive buffer of a connection in bytes. When it is full, the socket is not read, and TCP flow control stops the
    /// peer.
    pub rx_buffer: usize,
    /// Send buffer of a connection in bytes, in addition to the kernel's buffer.
    pub tx_buffer: usize,
    /// Bytes of blocks shared by all connections of one worker. Datagrams have blocks of the same total size.
    pub memory: usize,
    /// Capacity of a worker's mailbox in messages.
    pub mailbox: usize,
    /// Time limit for an outgoing connection.
    pub connect_timeout: Duration,
    /// Maximum time that sent data may stay unacknowledged before the connection is aborted.
    pub user_timeout: Duration,
    /// Idle timeout: an established connection without reads and writes for this time is reset and ends as
    /// [`IdleTimeout`](linerate_service::CloseReason::IdleTimeout). It may last up to a quarter longer. No limit if
    /// `None`.
    pub idle_timeout: Option<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: Vec::new(),
            listen_by_worker: Vec::new(),
            listen_udp: Vec::new(),
            spin: false,
            max_connections: 1 << 17,
            rx_buffer: 256 << 10,
            tx_buffer: 256 << 10,
            memory: 1 << 30,
            mailbox: 4096,
            connect_timeout: Duration::from_secs(10),
            user_timeout: Duration::from_secs(60),
            idle_timeout: None,
        }
    }
}
