//! Implementation of [`Provider`].

use super::device::SimDevice;
use crate::world::require;
use linerate_rdma_provider::{
    Access, AhAttr, AsyncEvent, CmConnParam, CmEvent, DeviceLimits, Gid, Handle, Keys, Port, PostError, Provider,
    QpAttr, QpCap, QpInitAttr, QpState, RecvWr, SendWr, SrqInitAttr, Transition, WorkCompletion,
};
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

// SAFETY: only `memory` accesses memory: within registered regions, for elements that requests name and keys that
// peers name; and the elements of an inline request while it is posted.
unsafe impl Provider for SimDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn emulated_by(&self) -> Option<&str> {
        self.emulated_by.as_deref()
    }

    fn limits(&self) -> io::Result<DeviceLimits> {
        self.with(|world| {
            require(!world.is_vanished(self.index), libc::EIO)?;
            Ok(world.devices[self.index].config.limits.clone())
        })
    }

    fn port(&self, port: u8) -> io::Result<Port> {
        self.with(|world| {
            require(!world.is_vanished(self.index), libc::EIO)?;
            world.devices[self.index].port(port)
        })
    }

    fn gids(&self, port: u8) -> io::Result<Vec<Gid>> {
        self.with(|world| {
            require(!world.is_vanished(self.index), libc::EIO)?;
            require(port == 1, libc::EINVAL)?;
            Ok(world.devices[self.index].gids())
        })
    }

    fn async_fd(&self) -> RawFd {
        self.async_fd
    }

    fn async_event(&self) -> io::Result<Option<AsyncEvent>> {
        self.with(|world| world.async_event(self.index))
    }

    fn alloc_pd(&self) -> io::Result<Handle> {
        self.with(|world| world.alloc_pd(self.index))
    }

    unsafe fn dealloc_pd(&self, pd: Handle) -> io::Result<()> {
        self.with(|world| world.dealloc_pd(self.index, pd))
    }

    unsafe fn reg_mr(&self, pd: Handle, start: *mut u8, len: usize, access: Access) -> io::Result<(Handle, Keys)> {
        self.with(|world| world.reg_mr(self.index, pd, start, len, access))
    }

    unsafe fn dereg_mr(&self, mr: Handle) -> io::Result<()> {
        self.with(|world| world.dereg_mr(self.index, mr))
    }

    unsafe fn alloc_mw(&self, pd: Handle) -> io::Result<(Handle, u32)> {
        self.with(|world| world.alloc_mw(self.index, pd))
    }

    unsafe fn dealloc_mw(&self, mw: Handle) -> io::Result<()> {
        self.with(|world| world.dealloc_mw(self.index, mw))
    }

    unsafe fn create_ah(&self, pd: Handle, path: &AhAttr) -> io::Result<Handle> {
        self.with(|world| world.create_ah(self.index, pd, path))
    }

    unsafe fn destroy_ah(&self, address: Handle) -> io::Result<()> {
        self.with(|world| world.destroy_ah(self.index, address))
    }

    fn create_comp_channel(&self) -> io::Result<(Handle, RawFd)> {
        self.with(|world| world.create_comp_channel(self.index))
    }

    unsafe fn destroy_comp_channel(&self, channel: Handle) -> io::Result<()> {
        self.with(|world| world.destroy_comp_channel(self.index, channel))
    }

    unsafe fn get_cq_event(&self, channel: Handle) -> io::Result<bool> {
        self.with(|world| world.get_cq_event(self.index, channel))
    }

    unsafe fn create_cq(&self, entries: u32, channel: Option<Handle>) -> io::Result<Handle> {
        self.with(|world| world.create_cq(self.index, entries, channel))
    }

    unsafe fn destroy_cq(&self, cq: Handle) -> io::Result<()> {
        self.with(|world| world.destroy_cq(self.index, cq))
    }

    unsafe fn req_notify_cq(&self, cq: Handle) -> io::Result<()> {
        self.with(|world| world.notify(self.index, cq))
    }

    unsafe fn poll_cq(&self, cq: Handle, into: &mut Vec<WorkCompletion>) -> io::Result<usize> {
        self.with(|world| world.poll(self.index, cq, into))
    }

    unsafe fn create_srq(&self, pd: Handle, config: &SrqInitAttr) -> io::Result<Handle> {
        self.with(|world| world.create_srq(self.index, pd, config))
    }

    unsafe fn destroy_srq(&self, srq: Handle) -> io::Result<()> {
        self.with(|world| world.destroy_srq(self.index, srq))
    }

    unsafe fn post_srq_recv(&self, srq: Handle, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.with(|world| world.post_srq_recv(self.index, srq, requests))
    }

    unsafe fn create_qp(&self, pd: Handle, config: &QpInitAttr) -> io::Result<(Handle, u32, QpCap)> {
        self.with(|world| world.create_qp(self.index, pd, config))
    }

    unsafe fn create_ud_qp(&self, pd: Handle, config: &QpInitAttr) -> io::Result<(Handle, u32, QpCap)> {
        self.with(|world| world.create_ud_qp(self.index, pd, config))
    }

    unsafe fn destroy_qp(&self, qp: Handle) -> io::Result<()> {
        self.with(|world| world.destroy_qp(self.index, qp))
    }

    unsafe fn modify_qp(&self, qp: Handle, transition: &Transition) -> io::Result<()> {
        self.with(|world| world.modify_qp(self.index, qp, transition))
    }

    unsafe fn modify_qp_by_cm(&self, qp: Handle, id: Handle, state: QpState) -> io::Result<()> {
        self.with(|world| world.modify_qp_by_cm(self.index, qp, id, state))
    }

    unsafe fn query_qp(&self, qp: Handle) -> io::Result<QpAttr> {
        self.with(|world| world.query_qp(self.index, qp))
    }

    unsafe fn post_send(&self, qp: Handle, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller guarantees the elements.
        self.with(|world| unsafe { world.post_send(self.index, qp, requests) })
    }

    unsafe fn post_recv(&self, qp: Handle, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.with(|world| world.post_recv(self.index, qp, requests))
    }

    fn cm_create_event_channel(&self) -> io::Result<(Handle, RawFd)> {
        self.with(|world| world.cm_create_event_channel(self.index))
    }

    unsafe fn cm_destroy_event_channel(&self, channel: Handle) -> io::Result<()> {
        self.with(|world| world.cm_destroy_event_channel(self.index, channel))
    }

    unsafe fn cm_get_event(&self, channel: Handle) -> io::Result<Option<CmEvent>> {
        self.with(|world| world.cm_get_event(self.index, channel))
    }

    unsafe fn cm_create_id(&self, channel: Handle) -> io::Result<Handle> {
        self.with(|world| world.cm_create_id(self.index, channel))
    }

    unsafe fn cm_destroy_id(&self, id: Handle) -> io::Result<()> {
        self.with(|world| world.cm_destroy_id(self.index, id))
    }

    unsafe fn cm_listen(&self, id: Handle, address: SocketAddr, backlog: u32) -> io::Result<SocketAddr> {
        self.with(|world| world.cm_listen(self.index, id, address, backlog))
    }

    unsafe fn cm_resolve_addr(&self, id: Handle, remote: SocketAddr, _timeout_ms: u32) -> io::Result<()> {
        self.with(|world| world.cm_resolve_addr(self.index, id, remote))
    }

    unsafe fn cm_resolve_route(&self, id: Handle, _timeout_ms: u32) -> io::Result<()> {
        self.with(|world| world.cm_resolve_route(self.index, id))
    }

    unsafe fn cm_is_here(&self, id: Handle) -> bool {
        self.with(|world| world.cm_is_here(self.index, id))
    }

    unsafe fn cm_addresses(&self, id: Handle) -> Option<(SocketAddr, SocketAddr)> {
        self.with(|world| world.cm_addresses(self.index, id))
    }

    unsafe fn cm_connect(&self, id: Handle, parameters: &CmConnParam) -> io::Result<()> {
        self.with(|world| world.cm_connect(self.index, id, parameters))
    }

    unsafe fn cm_establish(&self, id: Handle) -> io::Result<()> {
        self.with(|world| world.cm_establish(self.index, id))
    }

    unsafe fn cm_accept(&self, id: Handle, parameters: &CmConnParam) -> io::Result<()> {
        self.with(|world| world.cm_accept(self.index, id, parameters))
    }

    unsafe fn cm_reject(&self, id: Handle, private_data: &[u8]) -> io::Result<()> {
        self.with(|world| world.cm_reject(self.index, id, private_data))
    }

    unsafe fn cm_disconnect(&self, id: Handle) -> io::Result<()> {
        self.with(|world| world.cm_disconnect(self.index, id))
    }
}
