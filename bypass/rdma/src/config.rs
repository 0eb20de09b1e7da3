//! What workers are told about their connections.

use std::time::Duration;

/// The limits of a worker and its connections. All workers of one service share one.
#[derive(Debug, Clone)]
pub struct Config {
    /// Buffers posted for each connection: so many messages may be on their way to it. 3 at least.
    pub buffers: u16,
    /// Bytes of a buffer, and so of a message.
    pub buffer: usize,
    /// Buffers that all connections of a worker share, in place of their own; each connection may use as many as there are for it
    /// when there are as many connections as there may be.
    pub shared: Option<u32>,
    /// Requests of a connection that are under way at a time.
    pub sends: u16,
    /// Messages up to this many bytes are copied when they are posted, if the device can.
    pub inline: u32,
    /// A completion is asked for at every so many messages.
    pub signal_every: usize,
    /// Requests posted by one call at most.
    pub list: usize,
    /// Slices from this many bytes on are read by the peer where they lie, if it can.
    pub offer_from: usize,
    /// Bytes that a connection may hold to be sent.
    pub tx_buffer: usize,
    /// Bytes of what was offered that a connection may hold unconsumed.
    pub rx_buffer: usize,
    /// Connections of one worker.
    pub max_connections: usize,
    /// How long an outgoing connection may take to be established.
    pub connect_timeout: Duration,
    /// After how long a connection on which nothing came is asked whether its peer is there.
    pub probe_after: Duration,
    /// How long all ports of the device may be down before its connections are over.
    pub down_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            buffers: 32,
            buffer: 4096,
            shared: None,
            sends: 32,
            inline: 220,
            signal_every: 16,
            list: 16,
            offer_from: 32 << 10,
            tx_buffer: 256 << 10,
            rx_buffer: 256 << 10,
            max_connections: 1024,
            connect_timeout: Duration::from_secs(10),
            probe_after: Duration::from_secs(10),
            down_timeout: Duration::from_secs(10),
        }
    }
}
