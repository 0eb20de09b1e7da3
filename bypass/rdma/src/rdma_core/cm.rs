//! Connection manager calls. Identifiers never own a queue pair: the queue pair is named by number, and
//! [`qp`](super::qp) changes its state.

use super::RdmaCore;
use super::answer::{done, is_nothing, made, object, set_nonblocking};
use super::cm_values::{Address, address, event_value, parameters};
use crate::provider::{CmConnParam, CmEvent, Handle, PrivateData};
use rdma_mummy_sys as sys;
use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::null_mut;

pub(super) fn create_comp_channel() -> io::Result<(Handle, RawFd)> {
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
/// As for [`Provider::cm_destroy_event_channel`](crate::provider::Provider::cm_destroy_event_channel).
pub(super) unsafe fn destroy_comp_channel(channel: Handle) -> io::Result<()> {
    // SAFETY: the channel is live.
    unsafe { sys::rdma_destroy_event_channel(object(channel)) };
    Ok(())
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
/// As for [`Provider::cm_create_id`](crate::provider::Provider::cm_create_id).
pub(super) unsafe fn create(channel: Handle) -> io::Result<Handle> {
    let mut id = null_mut();
    // SAFETY: the channel is live.
    done(unsafe { sys::rdma_create_id(object(channel), &mut id, null_mut(), sys::rdma_port_space::RDMA_PS_TCP) })?;
    made(id)
}

/// # Safety
/// As for [`Provider::cm_destroy_id`](crate::provider::Provider::cm_destroy_id).
pub(super) unsafe fn destroy(id: Handle) -> io::Result<()> {
    // SAFETY: the identifier is live, and all events taken for it are acknowledged.
    done(unsafe { sys::rdma_destroy_id(object(id)) })
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
    bound.ok_or_else(|| io::Error::other("the connection manager does not say where it listens"))
}

/// # Safety
/// As for [`Provider::cm_resolve_addr`](crate::provider::Provider::cm_resolve_addr).
pub(super) unsafe fn resolve_address(id: Handle, remote: SocketAddr, timeout_ms: u32) -> io::Result<()> {
    let mut remote = Address::new(remote);
    let timeout = c_int::try_from(timeout_ms).unwrap_or(c_int::MAX);
    // SAFETY: the identifier is live; the address outlives the call; no source address is given.
    done(unsafe { sys::rdma_resolve_addr(object(id), null_mut(), remote.as_mut_ptr(), timeout) })
}

/// # Safety
/// As for [`Provider::cm_resolve_route`](crate::provider::Provider::cm_resolve_route).
pub(super) unsafe fn resolve_route(id: Handle, timeout_ms: u32) -> io::Result<()> {
    // SAFETY: the identifier is live.
    done(unsafe { sys::rdma_resolve_route(object(id), c_int::try_from(timeout_ms).unwrap_or(c_int::MAX)) })
}

/// # Safety
/// As for [`Provider::cm_is_here`](crate::provider::Provider::cm_is_here).
pub(super) unsafe fn is_here(native: &RdmaCore, id: Handle) -> bool {
    // SAFETY: the identifier is live; its context is written only when the same caller takes an event.
    unsafe { (*object::<sys::rdma_cm_id>(id)).verbs == native.context.as_ptr() }
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
/// As for [`Provider::cm_connect`](crate::provider::Provider::cm_connect).
pub(super) unsafe fn connect(id: Handle, with: &CmConnParam) -> io::Result<()> {
    let mut raw = parameters(with);
    // SAFETY: the identifier is live; the structure and its private data outlive the call.
    done(unsafe { sys::rdma_connect(object(id), &mut raw) })
}

/// # Safety
/// As for [`Provider::cm_establish`](crate::provider::Provider::cm_establish).
pub(super) unsafe fn establish(id: Handle) -> io::Result<()> {
    // SAFETY: the identifier is live.
    done(unsafe { sys::rdma_establish(object(id)) })
}

/// # Safety
/// As for [`Provider::cm_accept`](crate::provider::Provider::cm_accept).
pub(super) unsafe fn accept(id: Handle, with: &CmConnParam) -> io::Result<()> {
    let mut raw = parameters(with);
    // SAFETY: as in `connect`.
    done(unsafe { sys::rdma_accept(object(id), &mut raw) })
}

/// # Safety
/// As for [`Provider::cm_reject`](crate::provider::Provider::cm_reject).
pub(super) unsafe fn reject(id: Handle, private_data: &[u8]) -> io::Result<()> {
    let private_data = PrivateData::new(private_data);
    let bytes = private_data.bytes();
    // SAFETY: the identifier is live; the bytes outlive the call.
    done(unsafe { sys::rdma_reject(object(id), bytes.as_ptr().cast(), bytes.len() as u8) })
}

/// # Safety
/// As for [`Provider::cm_disconnect`](crate::provider::Provider::cm_disconnect).
pub(super) unsafe fn disconnect(id: Handle) -> io::Result<()> {
    // SAFETY: the identifier is live.
    done(unsafe { sys::rdma_disconnect(object(id)) })
}
