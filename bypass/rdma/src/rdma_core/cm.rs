//! Connection manager calls.

use super::answer::{done, is_nothing, made, object, set_nonblocking};
use super::cm_values::{Address, address, event_value};
use crate::provider::{CmEvent, Handle};
use rdma_mummy_sys as sys;
use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::null_mut;

pub(super) fn create_event_channel() -> io::Result<(Handle, RawFd)> {
    // SAFETY: no preconditions.
    let channel = unsafe { sys::rdma_create_event_channel() };
    let handle = made(channel)?;
    // SAFETY: the channel was created above.
    let descriptor = unsafe { (*channel).fd };
    // SAFETY: the channel keeps the descriptor open.
    if let Err(error) = unsafe { set_nonblocking(descriptor) } {
        // SAFETY: nothing else has the channel.
        unsafe { sys::rdma_destroy_event_channel(channel) };
        return Err(error);
    }
    Ok((handle, descriptor))
}

/// # Safety
/// As for [`Provider::cm_get_event`](crate::provider::Provider::cm_get_event).
pub(super) unsafe fn event(channel: Handle) -> io::Result<Option<CmEvent>> {
    let mut event = null_mut();
    // SAFETY: the channel is live.
    match done(unsafe { sys::rdma_get_cm_event(object(channel), &mut event) }) {
        Ok(()) => {}
        Err(error) if is_nothing(&error) => return Ok(None),
        Err(error) => return Err(error),
    }
    // SAFETY: the event lives until it is acknowledged; its private data is part of it.
    let value = unsafe { event_value(&*event) };
    // SAFETY: acknowledged once. Its identifiers are live, because their destruction waits for this.
    done(unsafe { sys::rdma_ack_cm_event(event) })?;
    Ok(Some(value))
}

/// # Safety
/// As for [`Provider::cm_listen`](crate::provider::Provider::cm_listen).
pub(super) unsafe fn listen(id: Handle, at: SocketAddr, backlog: u32) -> io::Result<SocketAddr> {
    let id: *mut sys::rdma_cm_id = object(id);
    let mut to_bind = Address::new(at);
    // SAFETY: the identifier is live; the address outlives the call.
    done(unsafe { sys::rdma_bind_addr(id, to_bind.as_mut_ptr()) })?;
    // SAFETY: the identifier is live.
    done(unsafe { sys::rdma_listen(id, c_int::try_from(backlog).unwrap_or(c_int::MAX)) })?;
    // SAFETY: only calls on this identifier write its addresses, and none is in progress.
    let bound = unsafe { address(&(*id).route.addr.src_addr_union.src_storage) };
    bound.ok_or_else(|| io::Error::other("the connection manager reports no listening address"))
}

/// # Safety
/// As for [`Provider::cm_addresses`](crate::provider::Provider::cm_addresses).
pub(super) unsafe fn addresses(id: Handle) -> Option<(SocketAddr, SocketAddr)> {
    // SAFETY: the identifier is live; its addresses are written only when the same caller takes an event.
    let route = unsafe { &(*object::<sys::rdma_cm_id>(id)).route.addr };
    // SAFETY: every member of the unions is plain numbers, and the whole was zeroed before one was written.
    unsafe { Some((address(&route.src_addr_union.src_storage)?, address(&route.dst_addr_union.dst_storage)?)) }
}

/// # Safety
/// As for [`Provider::cm_source`](crate::provider::Provider::cm_source).
pub(super) unsafe fn source(id: Handle) -> (u8, [u8; 16]) {
    // SAFETY: the identifier is live; port and route are written only when the same caller takes an event.
    let id = unsafe { &*object::<sys::rdma_cm_id>(id) };
    // SAFETY: every member of the unions is plain numbers, and the whole was zeroed before one was written.
    (id.port_num, unsafe { id.route.addr.addr.ibaddr.sgid.raw })
}
