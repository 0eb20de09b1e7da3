//! One-sided operations (RDMA READ and atomics): access to a peer's memory without participation of its program.

use crate::Bytes;
use std::sync::{Arc, OnceLock};

/// One-sided operation on the memory of a connection's peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OneSidedOp {
    /// Reads bytes. The result may mix old and new bytes if the peer writes them concurrently.
    Read {
        /// Remote address of the first byte.
        address: u64,
        /// Remote key (R_Key) of the memory region.
        key: u32,
        /// Number of bytes, at least 1.
        len: u32,
    },
    /// Adds to a `u64` in the peer's byte order and returns its previous value. Atomic with respect to other
    /// operations of devices on the same address.
    FetchAdd {
        /// Remote address, a multiple of 8.
        address: u64,
        /// Remote key (R_Key) of the memory region.
        key: u32,
        /// Addend, modulo 2⁶⁴.
        add: u64,
    },
    /// Replaces a `u64` if it has the expected value, and returns its previous value.
    CompareSwap {
        /// Remote address, a multiple of 8.
        address: u64,
        /// Remote key (R_Key) of the memory region.
        key: u32,
        /// Expected value.
        expect: u64,
        /// New value.
        swap: u64,
    },
}

/// Address of memory that peers may access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Address of the first byte.
    pub address: u64,
    /// R_Key of the memory region.
    pub key: u32,
}

/// Cell that receives a [`RemoteAddr`] once the memory has been registered.
pub type RemoteAddrCell = Arc<OnceLock<RemoteAddr>>;

/// Result of a successful [`OneSidedOp`]. A failed operation ends the connection.
#[derive(Debug, Clone)]
pub enum OneSidedResult {
    /// Bytes that were read.
    Read(Bytes),
    /// Value before an atomic operation.
    Previous(u64),
}

/// Reason why a [`OneSidedOp`] could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OneSidedError {
    /// The transport has no one-sided operations, or the device does not support this one.
    #[error("this network has no one-sided operations: use --via rdma:DEVICE")]
    Unsupported,
    /// The connection has ended, its send queue is full, or there is no memory. Completion of another operation may
    /// free resources.
    #[error("no room for another one-sided operation")]
    NoRoom,
}
