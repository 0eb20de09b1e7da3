//! Protection domains, memory regions and windows, address handles, completion queues and shared receive queues.

use super::RdmaCore;
use super::answer::{done, made, object};
use super::error::{kilobytes, locked_memory};
use super::{qp, values};
use crate::provider::{Access, AhAttr, Handle, Keys, SrqInitAttr};
use rdma_mummy_sys as sys;
use std::ffi::c_int;
use std::io;
use std::ptr::null_mut;

pub(super) fn alloc_pd(native: &RdmaCore) -> io::Result<Handle> {
    // SAFETY: `native` keeps the context open.
    made(unsafe { sys::ibv_alloc_pd(native.context.as_ptr()) })
}

/// # Safety
/// As for [`Provider::dealloc_pd`](crate::provider::Provider::dealloc_pd).
pub(super) unsafe fn dealloc_pd(pd: Handle) -> io::Result<()> {
    // SAFETY: the domain is live.
    done(unsafe { sys::ibv_dealloc_pd(object(pd)) })
}

/// # Safety
/// As for [`Provider::reg_mr`](crate::provider::Provider::reg_mr).
pub(super) unsafe fn reg_mr(pd: Handle, start: *mut u8, len: usize, access: Access) -> io::Result<(Handle, Keys)> {
    let access = values::access(access).cast_signed();
    // SAFETY: the domain is live, and the caller keeps the memory mapped.
    let mr = unsafe { sys::ibv_reg_mr(object(pd), start.cast(), len, access) };
    let handle = made(mr).map_err(|error| explained(error, len))?;
    // SAFETY: the region was created above.
    let keys = unsafe { Keys { local: (*mr).lkey, remote: (*mr).rkey } };
    Ok((handle, keys))
}

/// Adds the limit of locked memory to an error: the kernel returns the same error for the limit and for lack of
/// memory.
fn explained(error: io::Error, len: usize) -> io::Error {
    match locked_memory() {
        Some(limit) if error.raw_os_error() == Some(libc::ENOMEM) => io::Error::new(
            io::ErrorKind::OutOfMemory,
            format!(
                "{error}: a region of {} counts as locked memory, of which {} are allowed, and by some drivers to \
                 root, too: ulimit -l unlimited",
                kilobytes(len as u64),
                kilobytes(limit)
            ),
        ),
        _ => error,
    }
}

/// # Safety
/// As for [`Provider::dereg_mr`](crate::provider::Provider::dereg_mr).
pub(super) unsafe fn dereg_mr(mr: Handle) -> io::Result<()> {
    // SAFETY: the region is live.
    done(unsafe { sys::ibv_dereg_mr(object(mr)) })
}

/// # Safety
/// As for [`Provider::alloc_mw`](crate::provider::Provider::alloc_mw).
pub(super) unsafe fn alloc_mw(pd: Handle) -> io::Result<(Handle, u32)> {
    // SAFETY: the domain is live.
    let mw = unsafe { sys::ibv_alloc_mw(object(pd), sys::ibv_mw_type::IBV_MW_TYPE_2) };
    let handle = made(mw)?;
    // SAFETY: the window was created above.
    Ok((handle, unsafe { (*mw).rkey }))
}

/// # Safety
/// As for [`Provider::dealloc_mw`](crate::provider::Provider::dealloc_mw).
pub(super) unsafe fn dealloc_mw(mw: Handle) -> io::Result<()> {
    // SAFETY: the window is live.
    done(unsafe { sys::ibv_dealloc_mw(object(mw)) })
}

/// # Safety
/// As for [`Provider::create_ah`](crate::provider::Provider::create_ah).
pub(super) unsafe fn create_ah(pd: Handle, path: &AhAttr) -> io::Result<Handle> {
    let mut attributes = qp::address(path);
    // SAFETY: the domain is live; the call only reads the attributes.
    made(unsafe { sys::ibv_create_ah(object(pd), &mut attributes) })
}

/// # Safety
/// As for [`Provider::destroy_ah`](crate::provider::Provider::destroy_ah).
pub(super) unsafe fn destroy_ah(address: Handle) -> io::Result<()> {
    // SAFETY: the address handle is live.
    done(unsafe { sys::ibv_destroy_ah(object(address)) })
}

/// # Safety
/// As for [`Provider::create_cq`](crate::provider::Provider::create_cq).
pub(super) unsafe fn create_cq(native: &RdmaCore, entries: u32, channel: Option<Handle>) -> io::Result<Handle> {
    let entries = c_int::try_from(entries).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let channel = channel.map_or(null_mut(), object);
    // SAFETY: the context is open, and the channel, if any, live; the user context may be anything.
    made(unsafe { sys::ibv_create_cq(native.context.as_ptr(), entries, null_mut(), channel, 0) })
}

/// # Safety
/// As for [`Provider::destroy_cq`](crate::provider::Provider::destroy_cq).
pub(super) unsafe fn destroy_cq(cq: Handle) -> io::Result<()> {
    // SAFETY: the queue is live.
    done(unsafe { sys::ibv_destroy_cq(object(cq)) })
}

/// # Safety
/// As for [`Provider::create_srq`](crate::provider::Provider::create_srq).
pub(super) unsafe fn create_srq(pd: Handle, config: &SrqInitAttr) -> io::Result<Handle> {
    let mut attributes = sys::ibv_srq_init_attr {
        srq_context: null_mut(),
        attr: sys::ibv_srq_attr { max_wr: config.buffers, max_sge: config.sges, srq_limit: 0 },
    };
    // SAFETY: the domain is live; the structure outlives the call. The extended call would read more of it.
    made(unsafe { sys::ibv_create_srq(object(pd), &mut attributes) })
}

/// # Safety
/// As for [`Provider::modify_srq_limit`](crate::provider::Provider::modify_srq_limit).
pub(super) unsafe fn modify_srq_limit(srq: Handle, limit: u32) -> io::Result<()> {
    let mut attributes = sys::ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
    let mask = sys::ibv_srq_attr_mask::IBV_SRQ_LIMIT.0.cast_signed();
    // SAFETY: the shared receive queue is live; the structure outlives the call.
    done(unsafe { sys::ibv_modify_srq(object(srq), &mut attributes, mask) })
}

/// # Safety
/// As for [`Provider::destroy_srq`](crate::provider::Provider::destroy_srq).
pub(super) unsafe fn destroy_srq(srq: Handle) -> io::Result<()> {
    // SAFETY: the shared receive queue is live.
    done(unsafe { sys::ibv_destroy_srq(object(srq)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_registration_names_memory_limit() {
        let other = explained(io::Error::from_raw_os_error(libc::EINVAL), 1);
        assert_eq!(other.raw_os_error(), Some(libc::EINVAL));
        let error = explained(io::Error::from_raw_os_error(libc::ENOMEM), 1 << 20);
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        assert_eq!(error.to_string().contains("1024 KB"), locked_memory().is_some(), "{error}");
    }
}
