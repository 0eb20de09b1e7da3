//! Domains, regions, windows, addresses, completion queues and shared receive queues.

use super::Native;
use super::answer::{done, made, object};
use super::error::{kilobytes, locked_memory};
use super::{pair, values};
use crate::calls::{Access, Handle, Keys, Path, SharedConfig};
use rdma_mummy_sys as sys;
use std::ffi::c_int;
use std::io;
use std::ptr::null_mut;

pub(super) fn alloc_domain(native: &Native) -> io::Result<Handle> {
    // SAFETY: the context is open as long as `native` lives.
    made(unsafe { sys::ibv_alloc_pd(native.context.as_ptr()) })
}

/// # Safety
/// As [`Calls::dealloc_domain`](crate::calls::Calls::dealloc_domain).
pub(super) unsafe fn dealloc_domain(domain: Handle) -> io::Result<()> {
    // SAFETY: it is a live domain.
    done(unsafe { sys::ibv_dealloc_pd(object(domain)) })
}

/// # Safety
/// As [`Calls::register`](crate::calls::Calls::register).
pub(super) unsafe fn register(
    domain: Handle,
    start: *mut u8,
    len: usize,
    access: Access,
) -> io::Result<(Handle, Keys)> {
    let access = values::access(access).cast_signed();
    // SAFETY: the domain is live, and the caller keeps the memory mapped.
    let region = unsafe { sys::ibv_reg_mr(object(domain), start.cast(), len, access) };
    let handle = made(region).map_err(|error| explained(error, len))?;
    // SAFETY: it was made just now.
    let keys = unsafe { Keys { local: (*region).lkey, remote: (*region).rkey } };
    Ok((handle, keys))
}

/// The kernel has one answer for a limit and for want of memory: the limit, where there is one, is said.
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
/// As [`Calls::deregister`](crate::calls::Calls::deregister).
pub(super) unsafe fn deregister(region: Handle) -> io::Result<()> {
    // SAFETY: it is a live region.
    done(unsafe { sys::ibv_dereg_mr(object(region)) })
}

/// # Safety
/// As [`Calls::alloc_window`](crate::calls::Calls::alloc_window).
pub(super) unsafe fn alloc_window(domain: Handle) -> io::Result<(Handle, u32)> {
    // SAFETY: the domain is live.
    let window = unsafe { sys::ibv_alloc_mw(object(domain), sys::ibv_mw_type::IBV_MW_TYPE_2) };
    let handle = made(window)?;
    // SAFETY: it was made just now.
    Ok((handle, unsafe { (*window).rkey }))
}

/// # Safety
/// As [`Calls::dealloc_window`](crate::calls::Calls::dealloc_window).
pub(super) unsafe fn dealloc_window(window: Handle) -> io::Result<()> {
    // SAFETY: it is a live window.
    done(unsafe { sys::ibv_dealloc_mw(object(window)) })
}

/// # Safety
/// As [`Calls::create_address`](crate::calls::Calls::create_address).
pub(super) unsafe fn create_address(domain: Handle, path: &Path) -> io::Result<Handle> {
    let mut attributes = pair::address(path);
    // SAFETY: the domain is live, and the attributes are read.
    made(unsafe { sys::ibv_create_ah(object(domain), &mut attributes) })
}

/// # Safety
/// As [`Calls::destroy_address`](crate::calls::Calls::destroy_address).
pub(super) unsafe fn destroy_address(address: Handle) -> io::Result<()> {
    // SAFETY: it is a live address.
    done(unsafe { sys::ibv_destroy_ah(object(address)) })
}

/// # Safety
/// As [`Calls::create_queue`](crate::calls::Calls::create_queue).
pub(super) unsafe fn create_queue(native: &Native, entries: u32, channel: Option<Handle>) -> io::Result<Handle> {
    let entries = c_int::try_from(entries).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let channel = channel.map_or(null_mut(), object);
    // SAFETY: the context is open, and the channel, if there is one, live; any context of our own is.
    made(unsafe { sys::ibv_create_cq(native.context.as_ptr(), entries, null_mut(), channel, 0) })
}

/// # Safety
/// As [`Calls::destroy_queue`](crate::calls::Calls::destroy_queue).
pub(super) unsafe fn destroy_queue(queue: Handle) -> io::Result<()> {
    // SAFETY: it is a live queue.
    done(unsafe { sys::ibv_destroy_cq(object(queue)) })
}

/// # Safety
/// As [`Calls::create_shared`](crate::calls::Calls::create_shared).
pub(super) unsafe fn create_shared(domain: Handle, config: &SharedConfig) -> io::Result<Handle> {
    let mut attributes = sys::ibv_srq_init_attr {
        srq_context: null_mut(),
        attr: sys::ibv_srq_attr { max_wr: config.buffers, max_sge: config.segments, srq_limit: 0 },
    };
    // SAFETY: the domain is live, and the structure lives through the call. The extended call would read more of it.
    made(unsafe { sys::ibv_create_srq(object(domain), &mut attributes) })
}

/// # Safety
/// As [`Calls::limit_shared`](crate::calls::Calls::limit_shared).
pub(super) unsafe fn limit_shared(shared: Handle, limit: u32) -> io::Result<()> {
    let mut attributes = sys::ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
    let mask = sys::ibv_srq_attr_mask::IBV_SRQ_LIMIT.0.cast_signed();
    // SAFETY: the shared queue is live, and the structure lives through the call.
    done(unsafe { sys::ibv_modify_srq(object(shared), &mut attributes, mask) })
}

/// # Safety
/// As [`Calls::destroy_shared`](crate::calls::Calls::destroy_shared).
pub(super) unsafe fn destroy_shared(shared: Handle) -> io::Result<()> {
    // SAFETY: it is a live shared queue.
    done(unsafe { sys::ibv_destroy_srq(object(shared)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_that_may_be_too_large_is_told_the_limit() {
        let other = explained(io::Error::from_raw_os_error(libc::EINVAL), 1);
        assert_eq!(other.raw_os_error(), Some(libc::EINVAL));
        let error = explained(io::Error::from_raw_os_error(libc::ENOMEM), 1 << 20);
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        assert_eq!(error.to_string().contains("1024 KB"), locked_memory().is_some(), "{error}");
    }
}
