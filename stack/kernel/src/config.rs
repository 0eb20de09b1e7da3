//! What workers are told about their sockets.

use std::net::SocketAddr;
use std::time::Duration;

/// The sockets and the limits of a worker. All workers of one service share one.
#[derive(Debug, Clone)]
pub struct Config {
    /// TCP addresses to accept connections on. Port 0 asks for any free one, the same for all workers. An
    /// unspecified address means all of its family: `[::]` does not include IPv4.
    pub listen: Vec<SocketAddr>,
    /// UDP addresses to receive datagrams on, as for [`listen`](Self::listen). The kernel does not say which of
    /// our addresses a datagram came to, so one that came by way of an unspecified address names that one.
    pub listen_udp: Vec<SocketAddr>,
    /// Never sleep: poll the kernel without pause. The lowest latency, a whole core.
    pub spin: bool,
    /// Connections of one worker. A further one is reset and counted.
    pub max_connections: usize,
    /// Received bytes that a connection may hold unconsumed; beyond them it is not read from, and TCP holds the
    /// peer back.
    pub rx_buffer: usize,
    /// Bytes that a connection may hold to be sent, on top of what the kernel's own buffer takes.
    pub tx_buffer: usize,
    /// Bytes of blocks for all connections of one worker, shared among them as they need it, and as many again for
    /// datagrams.
    pub memory: usize,
    /// Messages that a worker's mailbox holds.
    pub mailbox: usize,
    /// How long an outgoing connection may take to be established.
    pub connect_timeout: Duration,
    /// How long a peer may leave our data unacknowledged before its connection is given up.
    pub user_timeout: Duration,
    /// An established connection from which nothing was read and to which nothing was written for so long is reset and ends as
    /// [`IdleTimeout`](linerate_bypass::CloseReason::IdleTimeout); it may last up to a quarter longer. No limit if `None`.
    pub idle_timeout: Option<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: Vec::new(),
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
