//! One-sided operations: what can be done with a peer's memory without its program having a part in it.

mod counters;
mod published;

pub use counters::Counters;
pub use published::Published;

use crate::Bytes;
use std::sync::{Arc, OnceLock};

/// An operation on the memory of a connection's peer, on transports that have such: RDMA's READ and its atomic operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remote {
    /// Reads some bytes. What is written there meanwhile may be seen in part.
    Read {
        /// Where they lie, as the peer has told.
        address: u64,
        /// The key that opens its memory.
        key: u32,
        /// How many bytes; at least one.
        len: u32,
    },
    /// Adds to a number of eight bytes, as the peer's machine has numbers, and tells what it was. Nothing else that devices do to
    /// the number comes between.
    FetchAdd {
        /// Where it lies, a multiple of eight.
        address: u64,
        /// The key that opens its memory.
        key: u32,
        /// How much, modulo 2⁶⁴.
        add: u64,
    },
    /// Replaces such a number if it is what is expected, and tells what it was.
    CompareSwap {
        /// Where it lies, a multiple of eight.
        address: u64,
        /// The key that opens its memory.
        key: u32,
        /// What it is to be before.
        expect: u64,
        /// What it becomes then.
        swap: u64,
    },
}

/// Where memory is that peers may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemotePlace {
    /// Its address.
    pub address: u64,
    /// The key that opens it.
    pub key: u32,
}

/// A place that is known later, to whoever waits for it.
pub type LaterPlace = Arc<OnceLock<RemotePlace>>;

/// What came of a [`Remote`] operation. Denied, or without an answer, it ends the connection.
#[derive(Debug, Clone)]
pub enum RemoteDone {
    /// The bytes that were read.
    Read(Bytes),
    /// What the number was before.
    Was(u64),
}

/// Why a [`Remote`] operation has not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRemote {
    /// The transport has no such operations, or the device not this one.
    #[error("the network has no one-sided operations: they go over --via rdma:DEVICE")]
    Unsupported,
    /// The connection is gone, or has no room for it or no memory now: when another one is done, there may be.
    #[error("no room for another one-sided operation")]
    NoRoom,
}
