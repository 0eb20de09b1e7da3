//! Counters of a worker, common to all transports.

use std::collections::BTreeMap;
use std::ops::AddAssign;

/// Counters of one worker, or the sum over several.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Received frames (stack), or reads that returned data (kernel).
    pub rx_frames: u64,
    /// Bytes in the received frames or reads.
    pub rx_bytes: u64,
    /// Turns of the worker.
    pub turns: u64,
    /// Turns with work: frames, messages of other threads, or events of connections.
    pub busy_turns: u64,
    /// Turns with received frames (stack), bytes or datagrams (kernel), or completions (RDMA). `rx_frames / bursts` is
    /// the mean burst size.
    pub bursts: u64,
    /// Sleeps of the worker.
    pub sleeps: u64,
    /// Sleeps after which there was work.
    pub wakeups: u64,
    /// Processor time of the worker's thread in microseconds. Zero before the worker has ended, except in a
    /// [`Snapshot`](super::Snapshot).
    pub cpu_us: u64,
    /// Transmitted frames (stack), or writes that accepted data (kernel).
    pub tx_frames: u64,
    /// Bytes in the transmitted frames or writes.
    pub tx_bytes: u64,
    /// Received frames handed to the worker that owns their flow.
    pub misdirected: u64,
    /// Connections accepted from peers (passive open).
    pub accepted: u64,
    /// Connections opened to peers (active open).
    pub connected: u64,
    /// Connections to peers that could not be established.
    pub failed: u64,
    /// Connections that both sides closed.
    pub finished: u64,
    /// Connections that ended by a reset, a timeout or an abort.
    pub broken: u64,
    /// Data segments retransmitted; `None` where the transport does not count them.
    pub retransmitted: Option<u64>,
    /// Payload bytes copied between the port's memory and the service, in both directions.
    pub copied_bytes: u64,
    /// Work of RDMA devices.
    pub verbs: Verbs,
    /// Completions of RDMA devices with an error, by status.
    pub verbs_errors: BTreeMap<&'static str, u64>,
    /// Packets of explicit congestion notification over RoCEv2, by kind.
    pub congestion: BTreeMap<&'static str, u64>,
    /// Frames, segments and datagrams dropped, by cause.
    pub drops: BTreeMap<&'static str, u64>,
}

/// Counts of verbs work requests and completions.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Verbs {
    /// Work requests posted to send queues: messages, READs, and memory window operations.
    pub requests: u64,
    /// Calls of `ibv_post_send`.
    pub posts: u64,
    /// Receive buffers posted since their connections were established.
    pub buffers: u64,
    /// Completions polled for send queues.
    pub requests_completed: u64,
    /// Completions polled for receive buffers.
    pub buffers_completed: u64,
    /// Flushes that left data behind because the peer had no free buffer.
    pub credit_stalls: u64,
    /// Flushes that left data behind because the send queue was full.
    pub queue_stalls: u64,
}

impl Summary {
    /// Adds `n` drops of `cause`. Does nothing if `n` is 0.
    pub fn drop_for(&mut self, cause: &'static str, n: u64) {
        if n > 0 {
            *self.drops.entry(cause).or_default() += n;
        }
    }
}

impl AddAssign for Verbs {
    fn add_assign(&mut self, other: Verbs) {
        self.requests += other.requests;
        self.posts += other.posts;
        self.buffers += other.buffers;
        self.requests_completed += other.requests_completed;
        self.buffers_completed += other.buffers_completed;
        self.credit_stalls += other.credit_stalls;
        self.queue_stalls += other.queue_stalls;
    }
}

impl AddAssign<&Summary> for Summary {
    fn add_assign(&mut self, other: &Summary) {
        self.rx_frames += other.rx_frames;
        self.rx_bytes += other.rx_bytes;
        self.turns += other.turns;
        self.busy_turns += other.busy_turns;
        self.bursts += other.bursts;
        self.sleeps += other.sleeps;
        self.wakeups += other.wakeups;
        self.cpu_us += other.cpu_us;
        self.tx_frames += other.tx_frames;
        self.tx_bytes += other.tx_bytes;
        self.misdirected += other.misdirected;
        self.accepted += other.accepted;
        self.connected += other.connected;
        self.failed += other.failed;
        self.finished += other.finished;
        self.broken += other.broken;
        self.retransmitted = self.retransmitted.into_iter().chain(other.retransmitted).reduce(|a, b| a + b);
        self.copied_bytes += other.copied_bytes;
        self.verbs += other.verbs;
        for (status, n) in &other.verbs_errors {
            *self.verbs_errors.entry(status).or_default() += n;
        }
        for (kind, n) in &other.congestion {
            *self.congestion.entry(kind).or_default() += n;
        }
        for (cause, n) in &other.drops {
            self.drop_for(cause, *n);
        }
    }
}
