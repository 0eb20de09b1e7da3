//! Work requests and work completions.

use super::{Access, Handle};
use std::io;

/// Scatter/gather element. Same layout as `struct ibv_sge`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Address.
    pub address: u64,
    /// Length in bytes.
    pub len: u32,
    /// L_Key of the memory region.
    pub lkey: u32,
}

/// Operation of a send request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// SEND: a message for a posted buffer of the peer.
    Send,
    /// SEND with immediate data.
    SendImmediate(u32),
    /// SEND that invalidates an R_Key of the peer: of a window that is bound to its queue pair.
    SendInvalidate(u32),
    /// RDMA WRITE.
    Write {
        /// Address in the peer's memory.
        address: u64,
        /// R_Key of the peer's region or window.
        rkey: u32,
    },
    /// RDMA WRITE with immediate data, which completes a posted buffer of the peer.
    WriteImmediate {
        /// Address in the peer's memory.
        address: u64,
        /// R_Key of the peer's region or window.
        rkey: u32,
        /// Immediate data.
        immediate: u32,
    },
    /// RDMA READ.
    Read {
        /// Address in the peer's memory.
        address: u64,
        /// R_Key of the peer's region or window.
        rkey: u32,
    },
    /// Atomic addition modulo 2⁶⁴ to eight bytes in the peer's byte order. The eight bytes of the scatter list receive
    /// the old value in local byte order (IBA 9.4.5).
    FetchAdd {
        /// Address in the peer's memory, a multiple of eight.
        address: u64,
        /// R_Key of the peer's region.
        rkey: u32,
        /// Addend.
        add: u64,
    },
    /// Atomic compare-and-swap; the old value is returned as for `FetchAdd`.
    CompareSwap {
        /// Address in the peer's memory, a multiple of eight.
        address: u64,
        /// R_Key of the peer's region.
        rkey: u32,
        /// Expected old value.
        expect: u64,
        /// New value.
        swap: u64,
    },
    /// Bind of a type 2 memory window, without scatter/gather elements.
    Bind {
        /// Window.
        mw: Handle,
        /// New R_Key: the index of the old key with another lowest byte.
        rkey: u32,
        /// Region that the window opens a part of.
        mr: Handle,
        /// Address of the part.
        address: u64,
        /// Length of the part in bytes.
        len: u64,
        /// Access rights of the peer.
        access: Access,
    },
    /// Invalidation of a local R_Key, without scatter/gather elements.
    InvalidateLocal(u32),
    /// Datagram of a UD queue pair, one packet without delivery guarantee. A datagram above the port's MTU is not sent
    /// and completes successfully (IBA C10-93.1.1).
    Datagram {
        /// Address handle of the same protection domain.
        address: Handle,
        /// Queue pair number of the peer.
        qp: u32,
        /// Q_Key of the peer. With the highest bit set, the local Q_Key is sent instead (IBA 10.2.5).
        key: u32,
    },
}

impl Operation {
    /// Returns the operation as its completion names it.
    pub fn wc_opcode(&self) -> WcOpcode {
        match self {
            Operation::Send
            | Operation::SendImmediate(_)
            | Operation::SendInvalidate(_)
            | Operation::Datagram { .. } => WcOpcode::Send,
            Operation::Write { .. } | Operation::WriteImmediate { .. } => WcOpcode::Write,
            Operation::Read { .. } => WcOpcode::Read,
            Operation::FetchAdd { .. } => WcOpcode::FetchAdd,
            Operation::CompareSwap { .. } => WcOpcode::CompareSwap,
            Operation::Bind { .. } => WcOpcode::Bind,
            Operation::InvalidateLocal(_) => WcOpcode::Invalidate,
        }
    }

    /// Returns whether the operation takes a posted buffer of a connected peer.
    #[inline]
    pub fn takes_buffer(&self) -> bool {
        matches!(
            self,
            Operation::Send
                | Operation::SendImmediate(_)
                | Operation::SendInvalidate(_)
                | Operation::WriteImmediate { .. }
        )
    }
}

/// Flags of a send request, in one byte that is copied as a whole.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SendFlags(u8);

impl SendFlags {
    /// Flags of an ordinary signalled request.
    pub const SIGNALLED: Self = SendFlags(1);
    /// Flags of an ordinary request that generates a completion on failure only.
    pub const UNSIGNALLED: Self = SendFlags(0);
    /// Flags of an unsignalled request whose data is copied when it is posted.
    pub const INLINE: Self = SendFlags(2);

    /// Returns the flags with a completion also on success if `is_signalled`, and on failure only otherwise.
    #[inline]
    pub const fn with_signal(self, is_signalled: bool) -> Self {
        SendFlags(self.0 & !Self::SIGNALLED.0 | is_signalled as u8)
    }

    /// Returns whether the request generates a completion also on success.
    #[inline]
    pub const fn is_signalled(self) -> bool {
        self.0 & Self::SIGNALLED.0 != 0
    }

    /// Returns whether the data is copied when the request is posted.
    #[inline]
    pub const fn is_inline(self) -> bool {
        self.0 & Self::INLINE.0 != 0
    }
}

/// Send work request.
#[derive(Debug, Clone, Copy)]
pub struct SendWr<'a> {
    /// Identifier, returned in the completion.
    pub id: u64,
    /// Data to send; destination of a READ or atomic operation.
    pub sges: &'a [Sge],
    /// Operation.
    pub operation: Operation,
    /// Flags.
    pub flags: SendFlags,
}

/// Receive work request.
#[derive(Debug, Clone, Copy)]
pub struct RecvWr<'a> {
    /// Identifier, returned in the completion.
    pub id: u64,
    /// Destination of the message.
    pub sges: &'a [Sge],
}

/// Failure to post a list of work requests.
#[derive(Debug, thiserror::Error)]
#[error("request {at} could not be posted: {error}")]
pub struct PostError {
    /// Index of the first request that was not posted; the length of the list if the device failed after posting all.
    pub at: usize,
    /// Error of the device; `ENOMEM` if the queue is full.
    pub error: io::Error,
}

/// Completed operation (`enum ibv_wc_opcode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WcOpcode {
    /// SEND of any kind.
    Send,
    /// RDMA WRITE of any kind.
    Write,
    /// RDMA READ.
    Read,
    /// Atomic addition.
    FetchAdd,
    /// Atomic compare-and-swap.
    CompareSwap,
    /// Memory window bind.
    Bind,
    /// Local invalidate.
    Invalidate,
    /// Message in a posted buffer.
    Receive,
    /// WRITE with immediate of the peer, which consumed a posted buffer.
    ReceiveWrite,
    /// Any other operation, by its number.
    Other(u32),
}

/// Status of a completion (`enum ibv_wc_status`; IBA 11.6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "messages explain the fields")]
pub enum WcStatus {
    #[error("success")]
    Success,
    #[error("a message was longer than its buffer")]
    LocalLength,
    #[error("internal error of the queue pair")]
    LocalQp,
    #[error("a scatter/gather element is not in registered memory")]
    LocalProtection,
    #[error("flushed: the connection has ended")]
    Flushed,
    #[error("a memory window could not be bound")]
    Bind,
    #[error("invalid response from the peer")]
    BadResponse,
    #[error("the peer was denied access to local memory")]
    LocalAccess,
    #[error("the peer received an invalid request")]
    RemoteInvalidRequest,
    #[error("the peer denied access to its memory")]
    RemoteAccess,
    #[error("the peer could not complete a request")]
    RemoteOperation,
    #[error("no answer from the peer")]
    RetryExceeded,
    #[error("the peer had no buffer posted")]
    RnrRetryExceeded,
    #[error("the peer aborted an operation")]
    RemoteAborted,
    #[error("the device failed")]
    Fatal,
    #[error("status {0}")]
    Other(u32),
}

impl WcStatus {
    /// Returns the name, as in `enum ibv_wc_status`.
    pub fn name(self) -> &'static str {
        match self {
            WcStatus::Success => "success",
            WcStatus::LocalLength => "loc_len_err",
            WcStatus::LocalQp => "loc_qp_op_err",
            WcStatus::LocalProtection => "loc_prot_err",
            WcStatus::Flushed => "wr_flush_err",
            WcStatus::Bind => "mw_bind_err",
            WcStatus::BadResponse => "bad_resp_err",
            WcStatus::LocalAccess => "loc_access_err",
            WcStatus::RemoteInvalidRequest => "rem_inv_req_err",
            WcStatus::RemoteAccess => "rem_access_err",
            WcStatus::RemoteOperation => "rem_op_err",
            WcStatus::RetryExceeded => "retry_exc_err",
            WcStatus::RnrRetryExceeded => "rnr_retry_exc_err",
            WcStatus::RemoteAborted => "rem_abort_err",
            WcStatus::Fatal => "fatal_err",
            WcStatus::Other(_) => "other",
        }
    }
}

/// Work completion (`struct ibv_wc`). On error only `id`, `status`, `qp` and `vendor_error` are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkCompletion {
    /// Identifier of the work request.
    pub id: u64,
    /// Status.
    pub status: WcStatus,
    /// Completed operation.
    pub opcode: WcOpcode,
    /// Bytes received; for a datagram, with the [`GRH_LEN`] bytes in front of it.
    pub len: u32,
    /// Local queue pair number.
    pub qp: u32,
    /// Immediate data of the peer.
    pub immediate: Option<u32>,
    /// Queue pair number of a received datagram's sender.
    pub source: u32,
    /// Error code of the vendor, if the request failed.
    pub vendor_error: u32,
}

impl WorkCompletion {
    /// Creates a completion without immediate data and not of a datagram.
    #[inline]
    pub fn new(id: u64, status: WcStatus, opcode: WcOpcode, len: u32, qp: u32) -> Self {
        WorkCompletion { id, status, opcode, len, qp, immediate: None, source: 0, vendor_error: 0 }
    }
}

/// Bytes reserved for the global route header (GRH) at the start of each receive buffer of a UD queue pair. RoCE
/// version 2 stores the IP header there; an IPv4 header occupies the last 20 bytes.
pub const GRH_LEN: usize = 40;
