//! Devices of this machine through rdma-core, whose libraries are opened at run time and may be absent.
//!
//! [`RdmaCore`] implements [`Provider`] with the classic calls (`ibv_post_send`, `ibv_poll_cq`), which every device
//! and every release of rdma-core supports. The extended calls return garbage on rxe with rdma-core 44, and siw lacks
//! them. A [`Handle`] is the address of the library's object.

mod answer;
mod cm;
mod cm_values;
mod device;
mod error;
mod events;
mod inline;
mod objects;
mod open;
mod poll;
mod post;
mod qp;
mod values;

pub use error::Error;
pub use open::RdmaCore;

use crate::provider::{
    AhAttr, AsyncEvent, CmConnParam, CmEvent, DeviceLimits, Gid, Handle, Keys, Port, PostError, Provider, QpAttr,
    QpCap, QpInitAttr, QpState, RecvWr, SendWr, SrqInitAttr, Transition, WorkCompletion,
};
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

// SAFETY: the libraries, and the device on their behalf, access only memory that requests name, within registered
// regions.
unsafe impl Provider for RdmaCore {
    fn name(&self) -> &str {
        &self.name
    }

    fn emulated_by(&self) -> Option<&str> {
        self.emulated_by.as_deref()
    }

    fn limits(&self) -> io::Result<DeviceLimits> {
        device::limits(self)
    }

    fn port(&self, port: u8) -> io::Result<Port> {
        device::port(self, port)
    }

    fn gids(&self, port: u8) -> io::Result<Vec<Gid>> {
        device::gids(self, port)
    }

    fn async_fd(&self) -> RawFd {
        events::async_fd(self)
    }

    fn async_event(&self) -> io::Result<Option<AsyncEvent>> {
        events::async_event(self)
    }

    fn alloc_pd(&self) -> io::Result<Handle> {
        objects::alloc_pd(self)
    }

    unsafe fn dealloc_pd(&self, pd: Handle) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { objects::dealloc_pd(pd) }
    }

    unsafe fn reg_mr(
        &self,
        pd: Handle,
        start: *mut u8,
        len: usize,
        access: crate::provider::Access,
    ) -> io::Result<(Handle, Keys)> {
        // SAFETY: the caller upholds the same contract.
        unsafe { objects::reg_mr(pd, start, len, access) }
    }

    unsafe fn dereg_mr(&self, mr: Handle) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { objects::dereg_mr(mr) }
    }

    unsafe fn alloc_mw(&self, pd: Handle) -> io::Result<(Handle, u32)> {
        // SAFETY: the caller upholds the same contract.
        unsafe { objects::alloc_mw(pd) }
    }

    unsafe fn dealloc_mw(&self, mw: Handle) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { objects::dealloc_mw(mw) }
    }

    unsafe fn create_ah(&self, pd: Handle, path: &AhAttr) -> io::Result<Handle> {
        // SAFETY: the caller upholds the same contract.
        unsafe { objects::create_ah(pd, path) }
    }

    unsafe fn destroy_ah(&self, address: Handle) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { objects::destroy_ah(address) }
    }

    fn create_comp_channel(&self) -> io::Result<(Handle, RawFd)> {
        events::create_comp_channel(self)
    }

    unsafe fn destroy_comp_channel(&self, channel: Handle) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { events::destroy_comp_channel(channel) }
    }

    unsafe fn get_cq_event(&self, channel: Handle) -> io::Result<bool> {
        // SAFETY: the caller upholds the same contract.
        unsafe { events::get_cq_event(channel) }
    }

    unsafe fn create_cq(&self, entries: u32, channel: Option<Handle>) -> io::Result<Handle> {
        // SAFETY: the caller upholds the same contract.
        unsafe { objects::create_cq(self, entries, channel) }
    }

    unsafe fn destroy_cq(&self, cq: Handle) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { objects::destroy_cq(cq) }
    }

    unsafe fn req_notify_cq(&self, cq: Handle) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { poll::req_notify_cq(cq) }
    }

    unsafe fn poll_cq(&self, cq: Handle, into: &mut Vec<WorkCompletion>) -> io::Result<usize> {
        // SAFETY: the caller upholds the same contract.
        unsafe { poll::poll(self, cq, into) }
    }

    unsafe fn create_srq(&self, pd: Handle, config: &SrqInitAttr) -> io::Result<Handle> {
        // SAFETY: the caller upholds the same contract.
        unsafe { objects::create_srq(pd, config) }
    }

    unsafe fn modify_srq_limit(&self, srq: Handle, limit: u32) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { objects::modify_srq_limit(srq, limit) }
    }

    unsafe fn destroy_srq(&self, srq: Handle) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { objects::destroy_srq(srq) }
    }

    unsafe fn post_srq_recv(&self, srq: Handle, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { post::srq(srq, requests) }
    }

    unsafe fn create_qp(&self, pd: Handle, config: &QpInitAttr) -> io::Result<(Handle, u32, QpCap)> {
        // SAFETY: the caller upholds the same contract.
        unsafe { qp::create(pd, config) }
    }

    unsafe fn create_ud_qp(&self, pd: Handle, config: &QpInitAttr) -> io::Result<(Handle, u32, QpCap)> {
        // SAFETY: the caller upholds the same contract.
        unsafe { qp::create_ud_qp(pd, config) }
    }

    unsafe fn destroy_qp(&self, qp: Handle) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { qp::destroy(qp) }
    }

    unsafe fn modify_qp(&self, qp: Handle, transition: &Transition) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { qp::modify_qp(qp, transition) }
    }

    unsafe fn modify_qp_by_cm(&self, qp: Handle, id: Handle, state: QpState) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { qp::modify_qp_by_cm(qp, id, state) }
    }

    unsafe fn query_qp(&self, qp: Handle) -> io::Result<QpAttr> {
        // SAFETY: the caller upholds the same contract.
        unsafe { qp::query(qp) }
    }

    unsafe fn post_send(&self, qp: Handle, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { post::send(qp, requests) }
    }

    unsafe fn post_recv(&self, qp: Handle, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { post::receive(qp, requests) }
    }

    fn cm_create_event_channel(&self) -> io::Result<(Handle, RawFd)> {
        cm::create_comp_channel()
    }

    unsafe fn cm_destroy_event_channel(&self, channel: Handle) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { cm::destroy_comp_channel(channel) }
    }

    unsafe fn cm_get_event(&self, channel: Handle) -> io::Result<Option<CmEvent>> {
        // SAFETY: the caller upholds the same contract.
        unsafe { cm::event(channel) }
    }

    unsafe fn cm_create_id(&self, channel: Handle) -> io::Result<Handle> {
        // SAFETY: the caller upholds the same contract.
        unsafe { cm::create(channel) }
    }

    unsafe fn cm_destroy_id(&self, id: Handle) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { cm::destroy(id) }
    }

    unsafe fn cm_listen(&self, id: Handle, address: SocketAddr, backlog: u32) -> io::Result<SocketAddr> {
        // SAFETY: the caller upholds the same contract.
        unsafe { cm::listen(id, address, backlog) }
    }

    unsafe fn cm_resolve_addr(&self, id: Handle, remote: SocketAddr, timeout_ms: u32) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { cm::resolve_address(id, remote, timeout_ms) }
    }

    unsafe fn cm_resolve_route(&self, id: Handle, timeout_ms: u32) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { cm::resolve_route(id, timeout_ms) }
    }

    unsafe fn cm_is_here(&self, id: Handle) -> bool {
        // SAFETY: the caller upholds the same contract.
        unsafe { cm::is_here(self, id) }
    }

    unsafe fn cm_addresses(&self, id: Handle) -> Option<(SocketAddr, SocketAddr)> {
        // SAFETY: the caller upholds the same contract.
        unsafe { cm::addresses(id) }
    }

    unsafe fn cm_connect(&self, id: Handle, parameters: &CmConnParam) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { cm::connect(id, parameters) }
    }

    unsafe fn cm_establish(&self, id: Handle) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { cm::establish(id) }
    }

    unsafe fn cm_accept(&self, id: Handle, parameters: &CmConnParam) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { cm::accept(id, parameters) }
    }

    unsafe fn cm_reject(&self, id: Handle, private_data: &[u8]) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { cm::reject(id, private_data) }
    }

    unsafe fn cm_disconnect(&self, id: Handle) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { cm::disconnect(id) }
    }
}
