//! File descriptors of accepted connections.

use linerate_service::inspect::Summary;
use linerate_service::time::{Duration, Instant};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};

/// Descriptors kept for other parts of the process, such as metrics: as many as introspection has clients. With a low
/// limit, a quarter of it.
const RESERVED: u64 = 32;
/// Interval between two warnings of a worker.
const WARNED: Duration = Duration::from_secs(60);

/// Bound of the descriptors that accepted connections may have.
///
/// The kernel assigns the lowest free descriptor (open(2)), so a descriptor below the bound is free while fewer are in
/// use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Descriptors {
    bound: RawFd,
    warned: Option<Instant>,
}

impl Descriptors {
    /// Creates the bound for a process that may have `limit` descriptors.
    pub fn within(limit: u64) -> Self {
        let bound = limit - RESERVED.min(limit / 4);
        Descriptors { bound: bound.try_into().unwrap_or(RawFd::MAX), warned: None }
    }

    /// Returns true if `stream` has a reserved descriptor.
    pub fn are_exceeded_by(&self, stream: &TcpStream) -> bool {
        stream.as_raw_fd() >= self.bound
    }

    /// Counts a connection for which there is no descriptor or memory. Logs one per minute.
    pub fn note_shortage(&mut self, summary: &mut Summary, now: Instant) {
        summary.drop_for("accept: no descriptor or memory", 1);
        if self.warned.is_none_or(|at| now.since(at) >= WARNED) {
            self.warned = Some(now);
            tracing::warn!(
                "no file descriptor or memory for a connection: raise the limit of open files with `ulimit -n` or \
                 LimitNOFILE=, or limit the connections"
            );
        }
    }
}
