//! Prefixes of libibverbs structures, which are unchanged since version 1.0.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Flag of `ibv_wc_opcode` that only receive completions have.
const RECEIVED: u32 = 1 << 7;

/// Driver function, which other threads may call while it is replaced.
#[repr(transparent)]
pub struct Function(AtomicPtr<c_void>);

impl Function {
    /// Returns an empty entry.
    pub const fn none() -> Self {
        Function(AtomicPtr::new(null_mut()))
    }

    /// Returns the function.
    pub fn get(&self) -> *mut c_void {
        self.0.load(Ordering::Acquire)
    }

    /// Replaces the function.
    pub fn set(&self, function: *mut c_void) {
        self.0.store(function, Ordering::Release);
    }
}

/// Prefix of `ibv_context`.
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

/// Common prefix of `ibv_send_wr` and `ibv_recv_wr`.
#[repr(C)]
pub struct Request {
    id: u64,
    /// Next request.
    pub next: *mut Request,
    /// Scatter/gather elements.
    pub pieces: *const Piece,
    /// Number of elements.
    pub count: c_int,
}

/// `ibv_sge`.
#[repr(C)]
pub struct Piece {
    address: u64,
    /// Length in bytes.
    pub len: u32,
    local_key: u32,
}

/// `ibv_wc`.
#[repr(C)]
pub struct Completion {
    id: u64,
    /// Nonzero on failure.
    pub status: u32,
    opcode: u32,
    rest: [u32; 8],
}

impl Completion {
    /// Returns true for a successful receive completion.
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

    /// Returns a context of a driver with these functions.
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

    /// Two elements, of 10 and of 7 bytes.
    static PIECES: [Piece; 2] =
        [Piece { address: 0, len: 10, local_key: 0 }, Piece { address: 10, len: 7, local_key: 0 }];

    /// Returns linked requests of 0, 10 and 17 bytes in turn.
    pub fn list<const N: usize>() -> Box<[Request; N]> {
        let request = |at: usize| {
            let count = (at % 3) as c_int;
            let pieces = if count == 0 { std::ptr::null() } else { PIECES.as_ptr() };
            Request { id: 0, next: null_mut(), pieces, count }
        };
        let mut list = Box::new(std::array::from_fn(request));
        for index in 1..N {
            list[index - 1].next = &raw mut list[index];
        }
        list
    }

    /// Returns a completion of a send or receive request.
    pub fn completion(status: u32, is_buffer: bool) -> Completion {
        Completion { id: 0, status, opcode: if is_buffer { RECEIVED | 1 } else { 1 }, rest: [0; 8] }
    }
}
