//! The connection manager. Its identifiers never hold a queue pair: ours is named by its number, and its states are brought
//! about by [`qp`](super::pair).

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
    // SAFETY: it needs nothing.
    let channel = unsafe { sys::rdma_create_event_channel() };
    let handle = made(channel)?;
    // SAFETY: it was made just now.
    let descriptor = unsafe { (*channel).fd };
    // SAFETY: the channel has it open.
    if let Err(error) = unsafe { set_nonblocking(descriptor) } {
        // SAFETY: nobody else has it.
        unsafe { sys::rdma_destroy_event_channel(channel) };
        return Err(error);
    }
    Ok((handle, descriptor))
}

/// # Safety
/// As [`Provider::cm_destroy_event_channel`](linerate_rdma_provider::Provider::cm_destroy_channel).
pub(super) unsafe fn destroy_comp_channel(channel: Handle) -> io::Result<()> {
    // SAFETY: it is a live channel.
    unsafe { sys::rdma_destroy_event_channel(object(channel)) };
    Ok(())
}

/// # Safety
/// As [`Provider::cm_get_event`](linerate_rdma_provider::Provider::cm_event).
pub(super) unsafe fn event(channel: Handle) -> io::Result<Option<CmEvent>> {
    let mut event = null_mut();
    // SAFETY: it is a live channel.
    match done(unsafe { sys::rdma_get_cm_event(object(channel), &mut event) }) {
        Ok(()) => {}
        Err(error) if is_nothing(&error) => return Ok(None),
        Err(error) => return Err(error),
    }
    // SAFETY: an event was got, which lives until it is acknowledged; its private data are part of it.
    let value = unsafe { event_value(&*event) };
    // SAFETY: it is acknowledged once. Its identifiers are live: destroying them waits for this.
    done(unsafe { sys::rdma_ack_cm_event(event) })?;
    Ok(Some(value))
}

/// # Safety
/// As [`Provider::cm_create_id`](linerate_rdma_provider::Provider::cm_create).
pub(super) unsafe fn create(channel: Handle) -> io::Result<Handle> {
    let mut id = null_mut();
    // SAFETY: it is a live channel.
    done(unsafe { sys::rdma_create_id(object(channel), &mut id, null_mut(), sys::rdma_port_space::RDMA_PS_TCP) })?;
    made(id)
}

/// # Safety
/// As [`Provider::cm_destroy_id`](linerate_rdma_provider::Provider::cm_destroy).
pub(super) unsafe fn destroy(id: Handle) -> io::Result<()> {
    // SAFETY: it is a live identifier, and all of its events that were taken are acknowledged.
    done(unsafe { sys::rdma_destroy_id(object(id)) })
}

/// # Safety
/// As [`Provider::cm_listen`](linerate_rdma_provider::Provider::cm_listen).
pub(super) unsafe fn listen(id: Handle, at: SocketAddr, backlog: u32) -> io::Result<SocketAddr> {
    let id: *mut sys::rdma_cm_id = object(id);
    let mut to_bind = Address::new(at);
    // SAFETY: it is a live identifier, and the address lives through the call.
    done(unsafe { sys::rdma_bind_addr(id, to_bind.as_mut_ptr()) })?;
    // SAFETY: it is a live identifier.
    done(unsafe { sys::rdma_listen(id, c_int::try_from(backlog).unwrap_or(c_int::MAX)) })?;
    // SAFETY: the identifier's addresses are written by calls about it, of which there is none now.
    let bound = unsafe { address(&(*id).route.addr.src_addr_union.src_storage) };
    bound.ok_or_else(|| io::Error::other("the connection manager does not say where it listens"))
}

/// # Safety
/// As [`Provider::cm_resolve_addr`](linerate_rdma_provider::Provider::cm_resolve_address).
pub(super) unsafe fn resolve_address(id: Handle, remote: SocketAddr, timeout_ms: u32) -> io::Result<()> {
    let mut remote = Address::new(remote);
    let timeout = c_int::try_from(timeout_ms).unwrap_or(c_int::MAX);
    // SAFETY: it is a live identifier, and the address lives through the call; which of our own to take is left open.
    done(unsafe { sys::rdma_resolve_addr(object(id), null_mut(), remote.as_mut_ptr(), timeout) })
}

/// # Safety
/// As [`Provider::cm_resolve_route`](linerate_rdma_provider::Provider::cm_resolve_route).
pub(super) unsafe fn resolve_route(id: Handle, timeout_ms: u32) -> io::Result<()> {
    // SAFETY: it is a live identifier.
    done(unsafe { sys::rdma_resolve_route(object(id), c_int::try_from(timeout_ms).unwrap_or(c_int::MAX)) })
}

/// # Safety
/// As [`Provider::cm_is_here`](linerate_rdma_provider::Provider::cm_is_here).
pub(super) unsafe fn is_here(native: &RdmaCore, id: Handle) -> bool {
    // SAFETY: it is a live identifier, whose context is written when an event about it is got: by the same caller.
    unsafe { (*object::<sys::rdma_cm_id>(id)).verbs == native.context.as_ptr() }
}

/// # Safety
/// As [`Provider::cm_addresses`](linerate_rdma_provider::Provider::cm_addresses).
pub(super) unsafe fn addresses(id: Handle) -> Option<(SocketAddr, SocketAddr)> {
    // SAFETY: it is a live identifier, and its addresses are written when an event about it is got: by the same caller.
    let route = unsafe { &(*object::<sys::rdma_cm_id>(id)).route.addr };
    // SAFETY: every member of the unions is numbers, and the whole was zero before one was written.
    unsafe { Some((address(&route.src_addr_union.src_storage)?, address(&route.dst_addr_union.dst_storage)?)) }
}

/// # Safety
/// As [`Provider::cm_connect`](linerate_rdma_provider::Provider::cm_connect).
pub(super) unsafe fn connect(id: Handle, with: &CmConnParam) -> io::Result<()> {
    let mut raw = parameters(with);
    // SAFETY: it is a live identifier; the structure, and the private data that it points at, live through the call.
    done(unsafe { sys::rdma_connect(object(id), &mut raw) })
}

/// # Safety
/// As [`Provider::cm_establish`](linerate_rdma_provider::Provider::cm_establish).
pub(super) unsafe fn establish(id: Handle) -> io::Result<()> {
    // SAFETY: it is a live identifier.
    done(unsafe { sys::rdma_establish(object(id)) })
}

/// # Safety
/// As [`Provider::cm_accept`](linerate_rdma_provider::Provider::cm_accept).
pub(super) unsafe fn accept(id: Handle, with: &CmConnParam) -> io::Result<()> {
    let mut raw = parameters(with);
    // SAFETY: as for `connect`.
    done(unsafe { sys::rdma_accept(object(id), &mut raw) })
}

/// # Safety
/// As [`Provider::cm_reject`](linerate_rdma_provider::Provider::cm_reject).
pub(super) unsafe fn reject(id: Handle, private_data: &[u8]) -> io::Result<()> {
    let private_data = PrivateData::new(private_data);
    let bytes = private_data.bytes();
    // SAFETY: it is a live identifier, and the bytes live through the call.
    done(unsafe { sys::rdma_reject(object(id), bytes.as_ptr().cast(), bytes.len() as u8) })
}

/// # Safety
/// As [`Provider::cm_disconnect`](linerate_rdma_provider::Provider::cm_disconnect).
pub(super) unsafe fn disconnect(id: Handle) -> io::Result<()> {
    // SAFETY: it is a live identifier.
    done(unsafe { sys::rdma_disconnect(object(id)) })
}
