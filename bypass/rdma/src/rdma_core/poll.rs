//! Completion queue polling.

use super::answer::object;
use crate::provider::{Handle, WcOpcode, WcStatus, WorkCompletion};
use rdma_mummy_sys as sys;
use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;

/// Completions taken by one call.
const BATCH: usize = 32;

/// # Safety
/// As for [`Provider::poll_cq`](crate::provider::Provider::poll_cq).
pub(super) unsafe fn poll(cq: Handle, into: &mut Vec<WorkCompletion>) -> io::Result<usize> {
    let mut batch = [const { MaybeUninit::<sys::ibv_wc>::uninit() }; BATCH];
    let mut polled = 0;
    loop {
        let room = (into.capacity() - into.len()).min(BATCH);
        if room == 0 {
            return Ok(polled);
        }
        // SAFETY: the queue is live, and there is room for that many completions.
        let found = unsafe { sys::ibv_poll_cq(object(cq), room as c_int, batch.as_mut_ptr().cast()) };
        let Ok(found) = usize::try_from(found) else {
            // Completions polled before are returned; the error recurs.
            return if polled > 0 { Ok(polled) } else { Err(io::Error::from_raw_os_error(libc::EIO)) };
        };
        let found = found.min(room);
        // SAFETY: the call wrote that many completions.
        into.extend(batch[..found].iter().map(|one| completion(unsafe { one.assume_init_ref() })));
        polled += found;
        if found < room {
            return Ok(polled);
        }
    }
}

fn completion(of: &sys::ibv_wc) -> WorkCompletion {
    let has = |flags: u32| of.wc_flags & flags != 0;
    // SAFETY: both members are 32 bits of any value.
    let immediate = u32::from_be(unsafe { of.imm_data_invalidated_rkey_union.imm_data });
    WorkCompletion {
        id: of.wr_id,
        status: status(of.status),
        opcode: completed(of.opcode),
        len: of.byte_len,
        qp: of.qp_num,
        immediate: has(sys::ibv_wc_flags::IBV_WC_WITH_IMM.0).then_some(immediate),
        source: of.src_qp,
        vendor_error: of.vendor_err,
    }
}

fn status(number: sys::ibv_wc_status::Type) -> WcStatus {
    match number {
        sys::ibv_wc_status::IBV_WC_SUCCESS => WcStatus::Success,
        sys::ibv_wc_status::IBV_WC_LOC_LEN_ERR => WcStatus::LocalLength,
        sys::ibv_wc_status::IBV_WC_LOC_QP_OP_ERR => WcStatus::LocalQp,
        sys::ibv_wc_status::IBV_WC_LOC_PROT_ERR => WcStatus::LocalProtection,
        sys::ibv_wc_status::IBV_WC_WR_FLUSH_ERR => WcStatus::Flushed,
        sys::ibv_wc_status::IBV_WC_MW_BIND_ERR => WcStatus::Bind,
        sys::ibv_wc_status::IBV_WC_BAD_RESP_ERR => WcStatus::BadResponse,
        sys::ibv_wc_status::IBV_WC_LOC_ACCESS_ERR => WcStatus::LocalAccess,
        sys::ibv_wc_status::IBV_WC_REM_INV_REQ_ERR => WcStatus::RemoteInvalidRequest,
        sys::ibv_wc_status::IBV_WC_REM_ACCESS_ERR => WcStatus::RemoteAccess,
        sys::ibv_wc_status::IBV_WC_REM_OP_ERR => WcStatus::RemoteOperation,
        sys::ibv_wc_status::IBV_WC_RETRY_EXC_ERR => WcStatus::RetryExceeded,
        sys::ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => WcStatus::RnrRetryExceeded,
        sys::ibv_wc_status::IBV_WC_REM_ABORT_ERR => WcStatus::RemoteAborted,
        sys::ibv_wc_status::IBV_WC_FATAL_ERR => WcStatus::Fatal,
        other => WcStatus::Other(other),
    }
}

fn completed(number: sys::ibv_wc_opcode::Type) -> WcOpcode {
    match number {
        sys::ibv_wc_opcode::IBV_WC_SEND => WcOpcode::Send,
        sys::ibv_wc_opcode::IBV_WC_RDMA_WRITE => WcOpcode::Write,
        sys::ibv_wc_opcode::IBV_WC_RDMA_READ => WcOpcode::Read,
        sys::ibv_wc_opcode::IBV_WC_COMP_SWAP => WcOpcode::CompareSwap,
        sys::ibv_wc_opcode::IBV_WC_FETCH_ADD => WcOpcode::FetchAdd,
        sys::ibv_wc_opcode::IBV_WC_BIND_MW => WcOpcode::Bind,
        sys::ibv_wc_opcode::IBV_WC_LOCAL_INV => WcOpcode::Invalidate,
        sys::ibv_wc_opcode::IBV_WC_RECV => WcOpcode::Receive,
        sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM => WcOpcode::ReceiveWrite,
        other => WcOpcode::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw() -> sys::ibv_wc {
        sys::ibv_wc {
            wr_id: u64::MAX,
            status: 0,
            opcode: 128,
            vendor_err: 0,
            byte_len: 5,
            imm_data_invalidated_rkey_union: sys::imm_data_invalidated_rkey_union_t { invalidated_rkey: 0 },
            qp_num: 17,
            src_qp: 0,
            wc_flags: 0,
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        }
    }

    #[test]
    fn completion_has_immediate_only_if_flagged() {
        let read = completion(&raw());
        assert_eq!(
            (read.id, read.status, read.opcode, read.len, read.qp),
            (u64::MAX, WcStatus::Success, WcOpcode::Receive, 5, 17)
        );
        let mut with = raw();
        (with.wc_flags, with.src_qp) = (1, 18);
        let datagram = completion(&with);
        assert_eq!(datagram.source, 18);
        assert_eq!((read.immediate, datagram.immediate), (None, None));
        with.vendor_err = 0x81;
        assert_eq!(completion(&with).vendor_error, 0x81);
        with.wc_flags = 2;
        with.imm_data_invalidated_rkey_union.imm_data = 0x0102_0304_u32.to_be();
        assert_eq!(completion(&with).immediate, Some(0x0102_0304));
        with.wc_flags = 8;
        assert_eq!(completion(&with).immediate, None);
    }

    #[test]
    fn statuses_are_distinct() {
        let known = [
            (1, WcStatus::LocalLength),
            (2, WcStatus::LocalQp),
            (4, WcStatus::LocalProtection),
            (5, WcStatus::Flushed),
            (6, WcStatus::Bind),
            (7, WcStatus::BadResponse),
            (8, WcStatus::LocalAccess),
            (9, WcStatus::RemoteInvalidRequest),
            (10, WcStatus::RemoteAccess),
            (11, WcStatus::RemoteOperation),
            (12, WcStatus::RetryExceeded),
            (13, WcStatus::RnrRetryExceeded),
            (16, WcStatus::RemoteAborted),
            (19, WcStatus::Fatal),
            (21, WcStatus::Other(21)),
            (4711, WcStatus::Other(4711)),
        ];
        for (number, expected) in known {
            assert_eq!(status(number), expected);
        }
    }

    #[test]
    fn opcodes_are_distinct() {
        let known = [
            (0, WcOpcode::Send),
            (1, WcOpcode::Write),
            (2, WcOpcode::Read),
            (3, WcOpcode::CompareSwap),
            (4, WcOpcode::FetchAdd),
            (5, WcOpcode::Bind),
            (6, WcOpcode::Invalidate),
            (128, WcOpcode::Receive),
            (129, WcOpcode::ReceiveWrite),
            (7, WcOpcode::Other(7)),
        ];
        for (number, expected) in known {
            assert_eq!(completed(number), expected);
        }
    }
}
