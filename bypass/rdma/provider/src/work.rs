//! Requests, and how they end.

use super::{Access, Handle};
use std::io;

/// A piece of a region: where, how long, and the region's local key. Laid out as `ibv_sge`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Segment {
    /// Its address.
    pub address: u64,
    /// Its length in bytes.
    pub len: u32,
    /// The local key of the region it lies in.
    pub local_key: u32,
}

/// What a request is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A message for a posted buffer of the peer.
    Send,
    /// As `Send`, with 32 bits for the completion there.
    SendImmediate(u32),
    /// As `Send`, and the peer's key is invalid before its completion there.
    SendInvalidate(u32),
    /// The segments are written to the peer's memory.
    Write {
        /// Where.
        address: u64,
        /// The key of the peer's region or window.
        remote_key: u32,
    },
    /// As `Write`, and a posted buffer of the peer is completed with these 32 bits.
    WriteImmediate {
        /// Where.
        address: u64,
        /// The key of the peer's region or window.
        remote_key: u32,
        /// The bits.
        immediate: u32,
    },
    /// The peer's memory is read into the segments.
    Read {
        /// Where.
        address: u64,
        /// The key of the peer's region or window.
        remote_key: u32,
    },
    /// Adds to eight bytes of the peer's memory, a number as its machine has them, modulo 2⁶⁴. What it was goes to the segments,
    /// which are eight bytes, as this machine has numbers (IBA 9.4.5).
    FetchAdd {
        /// Where, a multiple of eight.
        address: u64,
        /// The key of the peer's region.
        remote_key: u32,
        /// How much.
        add: u64,
    },
    /// As `FetchAdd`, but replaces the number if it is what is expected.
    CompareSwap {
        /// Where, a multiple of eight.
        address: u64,
        /// The key of the peer's region.
        remote_key: u32,
        /// What it is to be before.
        expect: u64,
        /// What it becomes then.
        swap: u64,
    },
    /// Binds a window of type 2; no segments.
    Bind {
        /// The window.
        window: Handle,
        /// Its new key: the index of the last one with another lowest byte.
        remote_key: u32,
        /// The region that it opens a part of.
        region: Handle,
        /// The part's address.
        address: u64,
        /// The part's length in bytes.
        len: u64,
        /// What the peer may do.
        access: Access,
    },
    /// Makes a key of ours invalid; no segments.
    InvalidateLocal(u32),
    /// A message of one packet, of a queue pair of datagrams. It may get lost. Where it is longer than the port's MTU, nothing is
    /// sent, and its completion is a success (IBA C10-93.1.1).
    Datagram {
        /// The way to the peer's port, an address of the same domain.
        address: Handle,
        /// The number of the peer's queue pair.
        pair: u32,
        /// The peer's Q_Key. With the highest bit set, our own is sent (IBA 10.2.5).
        key: u32,
    },
}

/// How a request is done.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SendFlags {
    /// It has a completion even if it succeeds.
    pub signalled: bool,
    /// The bytes are taken when it is posted.
    pub inline: bool,
    /// It waits for READs and atomic operations before it.
    pub fenced: bool,
    /// Its completion at the peer is an event even where only such are asked for.
    pub solicited: bool,
}

/// One request of a send queue.
#[derive(Debug, Clone, Copy)]
pub struct SendRequest<'a> {
    /// Whatever its completion is to have.
    pub id: u64,
    /// What is sent or, for a READ or an atomic operation, filled.
    pub segments: &'a [Segment],
    /// What is done.
    pub operation: Operation,
    /// How.
    pub flags: SendFlags,
}

/// One buffer of a receive queue.
#[derive(Debug, Clone, Copy)]
pub struct ReceiveRequest<'a> {
    /// Whatever its completion is to have.
    pub id: u64,
    /// Where the message goes.
    pub segments: &'a [Segment],
}

/// Why requests could not be posted.
#[derive(Debug, thiserror::Error)]
#[error("request {at} could not be posted: {error}")]
pub struct PostError {
    /// The first of the list that is not under way; its length, if all are, and the device failed then.
    pub at: usize,
    /// What the device said; `ENOMEM` when the queue is full.
    pub error: io::Error,
}

/// What was completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completed {
    /// A `Send` of any kind.
    Send,
    /// A `Write` of any kind.
    Write,
    /// A `Read`.
    Read,
    /// A `FetchAdd`.
    FetchAdd,
    /// A `CompareSwap`.
    CompareSwap,
    /// A `Bind`.
    Bind,
    /// An `InvalidateLocal`.
    Invalidate,
    /// A message in a posted buffer.
    Receive,
    /// A `WriteImmediate` of the peer's, for which a posted buffer was used.
    ReceiveWrite,
    /// Something else.
    Other(u32),
}

/// How a request ended (`ibv_wc_status`; IBA 11.6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Status {
    /// As asked for.
    #[error("success")]
    Success,
    /// The message does not fit into the posted buffer, or is longer than messages may be.
    #[error("a message was longer than its buffer")]
    LocalLength,
    /// The queue pair failed.
    #[error("internal error of the queue pair")]
    LocalQueuePair,
    /// A segment is not within a region of the domain with the access needed.
    #[error("a segment was not in a region of ours")]
    LocalProtection,
    /// The queue pair went to the error state before it was done.
    #[error("flushed: the connection was over")]
    Flushed,
    /// A window could not be bound.
    #[error("a memory window could not be bound")]
    Bind,
    /// The peer answered what makes no sense.
    #[error("the peer's answer makes no sense")]
    BadResponse,
    /// A message of the peer's found no access to memory of ours.
    #[error("the peer was denied access to our memory")]
    LocalAccess,
    /// The peer could not make sense of the request.
    #[error("the peer could not make sense of a request")]
    RemoteInvalidRequest,
    /// The peer denied access to its memory.
    #[error("the peer denied access to its memory")]
    RemoteAccess,
    /// The peer could not complete the request.
    #[error("the peer could not complete a request")]
    RemoteOperation,
    /// No answer, after all retries.
    #[error("no answer from the peer")]
    RetryExceeded,
    /// The peer had no buffer posted, at all retries.
    #[error("the peer had no buffer posted")]
    ReceiverNotReady,
    /// The peer aborted the operation.
    #[error("the peer aborted an operation")]
    RemoteAborted,
    /// The device is out of order.
    #[error("the device failed")]
    Fatal,
    /// Another one, by its number.
    #[error("status {0}")]
    Other(u32),
}

/// The end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The request's.
    pub id: u64,
    /// How it ended. Of all others only `id` and `pair` mean something unless this is a success.
    pub status: Status,
    /// What was completed.
    pub what: Completed,
    /// Bytes received.
    pub len: u32,
    /// The number of the queue pair.
    pub pair: u32,
    /// The peer's 32 bits.
    pub immediate: Option<u32>,
    /// The key that the peer made invalid.
    pub invalidated: Option<u32>,
    /// Of a datagram that was received: the number of the queue pair that sent it.
    pub source: u32,
    /// Of a datagram that was received: whether its buffer begins with a global route, for which there are
    /// [`ROUTE_LEN`] bytes at the beginning in any case, which `len` counts.
    pub has_route: bool,
}

/// Bytes that each buffer of a queue pair of datagrams begins with: the place of the global route header (GRH). RoCE version 2
/// has an IP header there, that of IPv4 in the last 20 bytes.
pub const ROUTE_LEN: usize = 40;
