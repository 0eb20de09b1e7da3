//! Posting of requests, linked into lists on the stack in chunks.

use super::answer::{done, object};
use super::values;
use crate::provider::{Handle, Operation, PostError, RecvWr, SendWr, Sge};
use rdma_mummy_sys as sys;
use std::ffi::c_int;
use std::mem::{MaybeUninit, offset_of, zeroed};
use std::ptr::null_mut;

/// Requests per call: 4 KB of stack.
const CHUNK: usize = 32;

// `Sge` has the layout of `ibv_sge`.
const _: () = {
    assert!(size_of::<Sge>() == size_of::<sys::ibv_sge>());
    assert!(align_of::<Sge>() == align_of::<sys::ibv_sge>());
    assert!(offset_of!(Sge, address) == offset_of!(sys::ibv_sge, addr));
    assert!(offset_of!(Sge, len) == offset_of!(sys::ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(sys::ibv_sge, lkey));
};

/// # Safety
/// As for [`Provider::post_send`](crate::provider::Provider::post_send).
pub(super) unsafe fn send(qp: Handle, requests: &[SendWr<'_>]) -> Result<(), PostError> {
    let qp: *mut sys::ibv_qp = object(qp);
    let mut list = List::<sys::ibv_send_wr>::new();
    let mut before = 0;
    while before < requests.len() {
        let chunk = &requests[before..before + send_chunk(&requests[before..])];
        let first = list.link(chunk.iter().map(raw_send));
        let mut bad = null_mut();
        // SAFETY: the queue pair is live; the list is terminated and, with its elements, outlives the call. The
        // caller guarantees the memory that they name.
        let posted = done(unsafe { sys::ibv_post_send(qp, first, &mut bad) });
        let taken = if posted.is_ok() { chunk.len() } else { list.accepted_before(bad, chunk.len()) };
        // SAFETY: the caller guarantees that bound windows are live and not bound concurrently.
        chunk[..taken].iter().for_each(|request| unsafe { remember_key(request) });
        posted.map_err(|error| PostError { at: before + taken, error })?;
        before += chunk.len();
    }
    Ok(())
}

/// Returns how many of `requests` form one chunk. A second bind starts the next, because [`remember_key`] must run
/// between two binds of a window.
fn send_chunk(requests: &[SendWr<'_>]) -> usize {
    let binds = |request: &SendWr<'_>| matches!(request.operation, Operation::Bind { .. });
    let second = requests.iter().enumerate().filter(|(_, request)| binds(request)).map(|(index, _)| index).nth(1);
    second.unwrap_or(requests.len()).min(CHUNK)
}

/// Stores the new R_Key in the window. Providers (among them rxe) take the current key from the window and leave its
/// update to the program when it binds by a request.
///
/// # Safety
/// A window that is bound is live and not used concurrently.
unsafe fn remember_key(request: &SendWr<'_>) {
    if let Operation::Bind { mw, rkey, .. } = request.operation {
        // SAFETY: guaranteed by the caller.
        unsafe { (*object::<sys::ibv_mw>(mw)).rkey = rkey };
    }
}

/// # Safety
/// As for [`Provider::post_recv`](crate::provider::Provider::post_recv).
pub(super) unsafe fn receive(qp: Handle, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
    let qp: *mut sys::ibv_qp = object(qp);
    // SAFETY: the queue pair is live; the caller guarantees the memory that the requests name.
    receive_by(requests, |first, bad| unsafe { sys::ibv_post_recv(qp, first, bad) })
}

/// # Safety
/// As for [`Provider::post_srq_recv`](crate::provider::Provider::post_srq_recv).
pub(super) unsafe fn srq(srq: Handle, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
    let srq: *mut sys::ibv_srq = object(srq);
    // SAFETY: the shared receive queue is live; the caller guarantees the memory that the requests name.
    receive_by(requests, |first, bad| unsafe { sys::ibv_post_srq_recv(srq, first, bad) })
}

/// Passes the requests to `post` in chunks: a terminated list, and an out-parameter for the first rejected one.
fn receive_by(
    requests: &[RecvWr<'_>],
    post: impl Fn(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> c_int,
) -> Result<(), PostError> {
    let mut list = List::<sys::ibv_recv_wr>::new();
    for (index, chunk) in requests.chunks(CHUNK).enumerate() {
        let first = list.link(chunk.iter().map(raw_receive));
        let mut bad = null_mut();
        if let Err(error) = done(post(first, &mut bad)) {
            return Err(PostError { at: index * CHUNK + list.accepted_before(bad, chunk.len()), error });
        }
    }
    Ok(())
}

/// Linked requests on the stack.
struct List<R> {
    requests: [MaybeUninit<R>; CHUNK],
}

impl<R: Linked> List<R> {
    fn new() -> Self {
        List { requests: [const { MaybeUninit::uninit() }; CHUNK] }
    }

    /// Links `requests` and returns the first; null for none. At most one chunk.
    fn link(&mut self, requests: impl ExactSizeIterator<Item = R>) -> *mut R {
        let len = requests.len().min(CHUNK);
        let start = self.requests.as_mut_ptr().cast::<R>();
        for (index, mut request) in requests.take(CHUNK).enumerate() {
            let next = if index + 1 < len { start.wrapping_add(index + 1) } else { null_mut() };
            request.set_next(next);
            // SAFETY: `index` is within the array.
            unsafe { start.add(index).write(request) };
        }
        if len == 0 { null_mut() } else { start }
    }

    /// Returns the number of accepted requests before `bad`. Without one, the provider accepted all and failed then
    /// (rxe, if its kernel part cannot be notified): the device owns their memory.
    fn accepted_before(&self, bad: *mut R, len: usize) -> usize {
        let offset = bad.addr().wrapping_sub(self.requests.as_ptr().addr());
        (offset / size_of::<R>()).min(len)
    }
}

/// Request that can be linked.
trait Linked {
    fn set_next(&mut self, next: *mut Self);
}

impl Linked for sys::ibv_send_wr {
    fn set_next(&mut self, next: *mut Self) {
        self.next = next;
    }
}

impl Linked for sys::ibv_recv_wr {
    fn set_next(&mut self, next: *mut Self) {
        self.next = next;
    }
}

/// Converts scatter/gather elements, which the libraries do not write.
fn raw_segments(sges: &[Sge]) -> (*mut sys::ibv_sge, c_int) {
    // An excessive number must be an error of the device, not truncated.
    (sges.as_ptr().cast_mut().cast(), c_int::try_from(sges.len()).unwrap_or(c_int::MAX))
}

fn raw_receive(request: &RecvWr<'_>) -> sys::ibv_recv_wr {
    let (sg_list, num_sge) = raw_segments(request.sges);
    sys::ibv_recv_wr { wr_id: request.id, next: null_mut(), sg_list, num_sge }
}

fn raw_send(request: &SendWr<'_>) -> sys::ibv_send_wr {
    use sys::ibv_wr_opcode as opcode;
    let sges = match request.operation {
        Operation::Bind { .. } | Operation::InvalidateLocal(_) => &[],
        _ => request.sges,
    };
    let (sg_list, num_sge) = raw_segments(sges);
    let remote = |remote_addr, rkey| sys::wr_t { rdma: sys::rdma_t { remote_addr, rkey } };
    let atomic = |remote_addr, rkey, compare_add, swap| sys::wr_t {
        atomic: sys::atomic_t { remote_addr, compare_add, swap, rkey },
    };
    let key = |invalidated_rkey| sys::imm_data_invalidated_rkey_union_t { invalidated_rkey };
    // SAFETY: numbers and pointers, for which zero is valid.
    let no_bind: sys::bind_mw_tso_union_t = unsafe { zeroed() };
    let mut raw = sys::ibv_send_wr {
        wr_id: request.id,
        next: null_mut(),
        sg_list,
        num_sge,
        opcode: opcode::IBV_WR_SEND,
        send_flags: values::send_flags(request.flags),
        imm_data_invalidated_rkey_union: key(0),
        wr: remote(0, 0),
        qp_type: sys::qp_type_t { xrc: sys::xrc_t { remote_srqn: 0 } },
        bind_mw_tso_union: no_bind,
    };
    match request.operation {
        Operation::Send => {}
        Operation::SendImmediate(immediate) => {
            raw.opcode = opcode::IBV_WR_SEND_WITH_IMM;
            raw.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
        }
        Operation::SendInvalidate(rkey) => {
            raw.opcode = opcode::IBV_WR_SEND_WITH_INV;
            raw.imm_data_invalidated_rkey_union = key(rkey);
        }
        Operation::Write { address, rkey } => {
            raw.opcode = opcode::IBV_WR_RDMA_WRITE;
            raw.wr = remote(address, rkey);
        }
        Operation::WriteImmediate { address, rkey, immediate } => {
            raw.opcode = opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
            raw.wr = remote(address, rkey);
            raw.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
        }
        Operation::Read { address, rkey } => {
            raw.opcode = opcode::IBV_WR_RDMA_READ;
            raw.wr = remote(address, rkey);
        }
        Operation::FetchAdd { address, rkey, add } => {
            raw.opcode = opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
            raw.wr = atomic(address, rkey, add, 0);
        }
        Operation::CompareSwap { address, rkey, expect, swap } => {
            raw.opcode = opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
            raw.wr = atomic(address, rkey, expect, swap);
        }
        Operation::Bind { mw, rkey, mr, address, len, access } => {
            raw.opcode = opcode::IBV_WR_BIND_MW;
            let bind_info = sys::ibv_mw_bind_info {
                mr: object(mr),
                addr: address,
                length: len,
                mw_access_flags: values::access(access),
            };
            let bind_mw = sys::bind_mw_t { mw: object(mw), rkey, bind_info };
            raw.bind_mw_tso_union = sys::bind_mw_tso_union_t { bind_mw };
        }
        Operation::InvalidateLocal(lkey) => {
            raw.opcode = opcode::IBV_WR_LOCAL_INV;
            raw.imm_data_invalidated_rkey_union = key(lkey);
        }
        Operation::Datagram { address, qp, key } => {
            raw.wr = sys::wr_t { ud: sys::ud_t { ah: object(address), remote_qpn: qp, remote_qkey: key } };
        }
    }
    raw
}

#[cfg(test)]
mod tests;
