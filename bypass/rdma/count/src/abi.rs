//! What is read and written of libibverbs' structures: their beginnings, which have not changed since its version 1.0.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The bit of `ibv_wc_opcode` that completed buffers have, and nothing else.
const RECEIVED: u32 = 1 << 7;

/// A function of a device's driver, which other threads may call while it is replaced.
#[repr(transparent)]
pub struct Function(AtomicPtr<c_void>);

impl Function {
    /// None.
    pub const fn none() -> Self {
        Function(AtomicPtr::new(null_mut()))
    }

    /// Which it is.
    pub fn get(&self) -> *mut c_void {
        self.0.load(Ordering::Acquire)
    }

    /// Makes it another.
    pub fn set(&self, function: *mut c_void) {
        self.0.store(function, Ordering::Release);
    }
}

/// `ibv_context`, as far as what it begins with.
#[repr(C)]
pub struct Context {
    device: *mut c_void,
    before_poll: [*mut c_void; 11],
    /// `poll_cq`.
    pub poll: Function,
    before_shared: [*mut c_void; 8],
    /// `post_srq_recv`.
    pub post_shared: Function,
    before_send: [*mut c_void; 4],
    /// `post_send`.
    pub post_send: Function,
    /// `post_recv`.
    pub post_receive: Function,
}

/// `ibv_send_wr` and `ibv_recv_wr`, as far as both begin with.
#[repr(C)]
pub struct Request {
    id: u64,
    /// The one after it.
    pub next: *mut Request,
    /// Where what it carries, or fills, lies.
    pub pieces: *const Piece,
    /// How many of these there are.
    pub count: c_int,
}

/// `ibv_sge`.
#[repr(C)]
pub struct Piece {
    address: u64,
    /// Its bytes.
    pub len: u32,
    local_key: u32,
}

/// `ibv_wc`.
#[repr(C)]
pub struct Completion {
    id: u64,
    /// Not 0 if it failed.
    pub status: u32,
    opcode: u32,
    rest: [u32; 8],
}

impl Completion {
    /// Whether it is of a buffer, if it did not fail.
    pub fn is_buffer(&self) -> bool {
        self.opcode & RECEIVED != 0
    }
}

#[cfg(feature = "bindings")]
const _: () = {
    use rdma_mummy_sys as sys;
    use std::mem::offset_of;
    const OPS: usize = offset_of!(sys::ibv_context, ops);
    assert!(offset_of!(Context, poll) == OPS + offset_of!(sys::ibv_context_ops, poll_cq));
    assert!(offset_of!(Context, post_shared) == OPS + offset_of!(sys::ibv_context_ops, post_srq_recv));
    assert!(offset_of!(Context, post_send) == OPS + offset_of!(sys::ibv_context_ops, post_send));
    assert!(offset_of!(Context, post_receive) == OPS + offset_of!(sys::ibv_context_ops, post_recv));
    assert!(offset_of!(Request, next) == offset_of!(sys::ibv_send_wr, next));
    assert!(offset_of!(Request, next) == offset_of!(sys::ibv_recv_wr, next));
    assert!(offset_of!(Request, pieces) == offset_of!(sys::ibv_send_wr, sg_list));
    assert!(offset_of!(Request, pieces) == offset_of!(sys::ibv_recv_wr, sg_list));
    assert!(offset_of!(Request, count) == offset_of!(sys::ibv_send_wr, num_sge));
    assert!(offset_of!(Request, count) == offset_of!(sys::ibv_recv_wr, num_sge));
    assert!(size_of::<Piece>() == size_of::<sys::ibv_sge>());
    assert!(offset_of!(Piece, len) == offset_of!(sys::ibv_sge, length));
    assert!(size_of::<Completion>() == size_of::<sys::ibv_wc>());
    assert!(offset_of!(Completion, status) == offset_of!(sys::ibv_wc, status));
    assert!(offset_of!(Completion, opcode) == offset_of!(sys::ibv_wc, opcode));
    assert!(RECEIVED == sys::ibv_wc_opcode::IBV_WC_RECV);
};

#[cfg(test)]
pub mod testing {
    use super::*;

    /// A context of a driver that has these functions.
    pub fn context(functions: [*mut c_void; 4]) -> Context {
        let [poll, post_shared, post_send, post_receive] = functions.map(|it| Function(AtomicPtr::new(it)));
        let (before_poll, before_shared, before_send) = ([null_mut(); 11], [null_mut(); 8], [null_mut(); 4]);
        Context {
            device: null_mut(),
            before_poll,
            poll,
            before_shared,
            post_shared,
            before_send,
            post_send,
            post_receive,
        }
    }

    /// Two pieces, of 10 and of 7 bytes.
    static PIECES: [Piece; 2] =
        [Piece { address: 0, len: 10, local_key: 0 }, Piece { address: 10, len: 7, local_key: 0 }];

    /// Requests, each linked to the next, of 0, 10 and 17 bytes in turn.
    pub fn list<const N: usize>() -> Box<[Request; N]> {
        let request = |at: usize| {
            let count = (at % 3) as c_int;
            let pieces = if count == 0 { std::ptr::null() } else { PIECES.as_ptr() };
            Request { id: 0, next: null_mut(), pieces, count }
        };
        let mut list = Box::new(std::array::from_fn(request));
        for place in 1..N {
            list[place - 1].next = &raw mut list[place];
        }
        list
    }

    /// What became of a request, or of a buffer.
    pub fn completion(status: u32, is_buffer: bool) -> Completion {
        Completion { id: 0, status, opcode: if is_buffer { RECEIVED | 1 } else { 1 }, rest: [0; 8] }
    }
}
