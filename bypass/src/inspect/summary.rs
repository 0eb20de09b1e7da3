//! What a worker did, in numbers: the same for every transport.

use std::collections::BTreeMap;
use std::ops::AddAssign;

/// Counters of one worker, or of several added up.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Frames (stack) or reads (kernel) that brought something.
    pub rx_frames: u64,
    /// Bytes in them.
    pub rx_bytes: u64,
    /// Turns of the worker.
    pub turns: u64,
    /// Turns in which there was something to do: frames, messages of other threads, or events of connections.
    pub busy_turns: u64,
    /// Turns in which frames (stack), bytes or datagrams (kernel), or completions (RDMA) came. Frames for each of them are how many
    /// came together.
    pub bursts: u64,
    /// Frames (stack) or writes (kernel) that took something away.
    pub tx_frames: u64,
    /// Bytes in them.
    pub tx_bytes: u64,
    /// Received frames that were passed on to the worker that owns their flow.
    pub misdirected: u64,
    /// Connections that peers opened to us.
    pub accepted: u64,
    /// Connections that we opened.
    pub connected: u64,
    /// Connections that we could not open.
    pub failed: u64,
    /// Connections that ended by themselves, both sides having closed.
    pub finished: u64,
    /// Connections that ended by a reset, a time-out or an abort.
    pub broken: u64,
    /// Segments with data that were sent again; `None` where nobody counts them: it is no TCP of our own.
    pub retransmitted: Option<u64>,
    /// Payload bytes copied between the port's memory and the service's view of them, either way.
    pub copied_bytes: u64,
    /// What was asked of RDMA devices.
    pub verbs: Verbs,
    /// Frames, segments and datagrams dropped, by cause.
    pub drops: BTreeMap<&'static str, u64>,
}

/// What was asked of RDMA devices, and polled from them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Verbs {
    /// Requests posted to send queues: messages, READs, and what opens and closes windows.
    pub requests: u64,
    /// Calls that posted them.
    pub posts: u64,
    /// Buffers posted for messages, since their connections were made.
    pub buffers: u64,
    /// Completions of requests that were polled.
    pub requests_completed: u64,
    /// Completions of buffers that were polled.
    pub buffers_completed: u64,
}

impl Summary {
    /// Counts `n` drops under `cause`, unless there were none.
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
    }
}

impl AddAssign<&Summary> for Summary {
    fn add_assign(&mut self, other: &Summary) {
        self.rx_frames += other.rx_frames;
        self.rx_bytes += other.rx_bytes;
        self.turns += other.turns;
        self.busy_turns += other.busy_turns;
        self.bursts += other.bursts;
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
        for (cause, n) in &other.drops {
            self.drop_for(cause, *n);
        }
    }
}
