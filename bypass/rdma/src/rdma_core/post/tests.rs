use super::*;
use crate::provider::{Access, SendFlags};
use std::cell::RefCell;

const SEGMENT: Sge = Sge { address: 0x1000, len: 5, lkey: 7 };

fn request(operation: Operation) -> SendWr<'static> {
    SendWr { id: 3, sges: &[SEGMENT], operation, flags: SendFlags::SIGNALLED }
}

fn bind(mw: &mut sys::ibv_mw, rkey: u32) -> SendWr<'static> {
    let mw = Handle((&raw mut *mw).expose_provenance());
    let access = Access { remote_read: true, ..Access::default() };
    request(Operation::Bind { mw, rkey, mr: Handle(0x2000), address: 0x3000, len: 9, access })
}

fn mw() -> sys::ibv_mw {
    sys::ibv_mw { context: null_mut(), pd: null_mut(), rkey: 0x100, handle: 0, type_: 2 }
}

/// Returns opcode, remote address, remote key and immediate data.
fn parts(operation: Operation) -> (u32, u64, u32, u32) {
    let raw = raw_send(&request(operation));
    assert_eq!((raw.wr_id, raw.send_flags), (3, 2));
    // SAFETY: all members of these unions are numbers, zeroed or written.
    unsafe {
        (raw.opcode, raw.wr.rdma.remote_addr, raw.wr.rdma.rkey, raw.imm_data_invalidated_rkey_union.invalidated_rkey)
    }
}

#[test]
fn requests_match_library_layout() {
    let bits = 0x0102_0304_u32;
    let (address, rkey) = (0x5000, 6);
    assert_eq!(parts(Operation::Send), (2, 0, 0, 0));
    assert_eq!(parts(Operation::SendImmediate(bits)), (3, 0, 0, bits.to_be()));
    assert_eq!(parts(Operation::SendInvalidate(bits)), (9, 0, 0, bits));
    assert_eq!(parts(Operation::Write { address, rkey }), (0, 0x5000, 6, 0));
    let immediate = bits;
    assert_eq!(parts(Operation::WriteImmediate { address, rkey, immediate }), (1, 0x5000, 6, bits.to_be()));
    assert_eq!(parts(Operation::Read { address, rkey }), (4, 0x5000, 6, 0));
    assert_eq!(parts(Operation::InvalidateLocal(bits)), (7, 0, 0, bits));
}

#[test]
fn atomic_operations_contain_operands() {
    let (address, rkey) = (0x5000, 6);
    let numbers = |operation| {
        let raw = raw_send(&request(operation));
        // SAFETY: all members of the union are numbers, and a larger one was written.
        let atomic = unsafe { raw.wr.atomic };
        assert_eq!((atomic.remote_addr, atomic.rkey, raw.num_sge), (address, rkey, 1));
        (raw.opcode, atomic.compare_add, atomic.swap)
    };
    assert_eq!(numbers(Operation::FetchAdd { address, rkey, add: 7 }), (6, 7, 0));
    assert_eq!(numbers(Operation::CompareSwap { address, rkey, expect: 8, swap: 9 }), (5, 8, 9));
}

#[test]
fn datagram_contains_ah_qp_number_and_key() {
    let raw = raw_send(&request(Operation::Datagram { address: Handle(0x2000), qp: 17, key: 0x1234_5678 }));
    // SAFETY: this member was written.
    let to = unsafe { raw.wr.ud };
    assert_eq!((raw.opcode, raw.num_sge), (2, 1));
    assert_eq!((to.ah.addr(), to.remote_qpn, to.remote_qkey), (0x2000, 17, 0x1234_5678));
}

#[test]
fn sges_are_passed_in_place() {
    let sges = [SEGMENT; 3];
    let raw = raw_send(&SendWr { sges: &sges, ..request(Operation::Send) });
    assert_eq!((raw.sg_list.addr(), raw.num_sge), (sges.as_ptr().addr(), 3));
    let raw = raw_receive(&RecvWr { id: 8, sges: &sges });
    assert_eq!((raw.wr_id, raw.sg_list.addr(), raw.num_sge), (8, sges.as_ptr().addr(), 3));
    // SAFETY: it points to `sges`.
    let first = unsafe { *raw.sg_list };
    assert_eq!((first.addr, first.length, first.lkey), (0x1000, 5, 7));
    assert_eq!(raw_send(&request(Operation::InvalidateLocal(1))).num_sge, 0);
}

#[test]
fn bind_contains_window_region_and_rights() {
    let mut mw = mw();
    let raw = raw_send(&bind(&mut mw, 0x101));
    assert_eq!((raw.opcode, raw.num_sge), (8, 0));
    // SAFETY: this member was written.
    let bound = unsafe { raw.bind_mw_tso_union.bind_mw };
    assert_eq!((bound.mw.cast_const(), bound.rkey, bound.bind_info.mr.addr()), (&raw const mw, 0x101, 0x2000));
    assert_eq!((bound.bind_info.addr, bound.bind_info.length, bound.bind_info.mw_access_flags), (0x3000, 9, 4));
}

#[test]
fn key_of_bound_window_is_stored() {
    let mut mw = mw();
    let request = bind(&mut mw, 0x101);
    // SAFETY: the window is live.
    unsafe { remember_key(&request) };
    assert_eq!(mw.rkey, 0x101);
}

#[test]
fn chunk_has_at_most_one_bind() {
    let (mut mw, send) = (mw(), request(Operation::Send));
    let bind = bind(&mut mw, 0x101);
    assert_eq!(send_chunk(&[send; 3]), 3);
    assert_eq!(send_chunk(&[send; CHUNK + 1]), CHUNK);
    assert_eq!(send_chunk(&[bind, send]), 2);
    assert_eq!(send_chunk(&[send, bind, send, bind, send]), 3);
    assert_eq!(send_chunk(&[bind, bind]), 1);
    let mut late = [send; CHUNK + 2];
    (late[0], late[CHUNK + 1]) = (bind, bind);
    assert_eq!(send_chunk(&late), CHUNK);
}

/// Posts `len` buffers to a provider that accepts `taken` of them and then fails, reporting the next one or none.
/// Returns the accepted requests and the result.
fn post(len: usize, taken: usize, names: bool) -> (Vec<u64>, Result<(), PostError>) {
    let requests: Vec<_> = (0..len as u64).map(|id| RecvWr { id, sges: &[] }).collect();
    let seen = RefCell::new(Vec::new());
    let result = receive_by(&requests, |mut next, bad| {
        while !next.is_null() {
            if names && seen.borrow().len() == taken {
                // SAFETY: the caller provides a place.
                unsafe { *bad = next };
                return libc::ENOMEM;
            }
            // SAFETY: the list is linked.
            let request = unsafe { &*next };
            seen.borrow_mut().push(request.wr_id);
            next = request.next;
        }
        if !names && seen.borrow().len() >= taken { libc::EINVAL } else { 0 }
    });
    (seen.into_inner(), result)
}

#[test]
fn lists_of_any_length_are_posted_in_order() {
    for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5] {
        let (seen, result) = post(len, usize::MAX, true);
        assert!(result.is_ok());
        assert!(seen.into_iter().eq(0..len as u64), "{len}");
    }
}

#[test]
fn first_rejected_request_is_reported() {
    for taken in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 4] {
        let (seen, result) = post(2 * CHUNK + 5, taken, true);
        let error = result.unwrap_err();
        assert_eq!((error.at, seen.len()), (taken, taken));
        assert_eq!(error.error.raw_os_error(), Some(libc::ENOMEM));
    }
}

#[test]
fn failure_without_rejected_request_counts_chunk_as_posted() {
    assert_eq!(post(5, 1, false).1.unwrap_err().at, 5);
    assert_eq!(post(2 * CHUNK, 1, false).1.unwrap_err().at, CHUNK);
}

#[test]
fn empty_list_is_null() {
    assert!(List::<sys::ibv_recv_wr>::new().link(std::iter::empty()).is_null());
}
