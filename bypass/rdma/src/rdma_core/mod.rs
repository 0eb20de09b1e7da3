//! Devices of this machine through rdma-core, whose libraries are opened at run time and may be absent.
//!
//! [`RdmaCore`] implements [`Provider`] with the classic calls (`ibv_post_send`, `ibv_poll_cq`), which every device
//! and every release of rdma-core supports. The extended calls return garbage on rxe with rdma-core 44, and siw lacks
//! them. A [`Handle`] is the address of the library's object. Identifiers of the connection manager never own a queue
//! pair: the queue pair is named by number, and `qp` changes its state.

mod answer;
mod cm;
mod cm_values;
mod device;
mod error;
mod events;
mod inline;
mod open;
mod poll;
mod post;
mod qp;
mod values;

pub use error::Error;
pub use open::RdmaCore;

use crate::provider::{
    Access, AhAttr, AsyncEvent, CmConnParam, CmEvent, DeviceLimits, Gid, Handle, Keys, Port, PostError, PrivateData,
    Provider, QpAttr, QpCap, QpInitAttr, QpOptions, QpState, RecvWr, SendWr, SrqInitAttr, Transition, WorkCompletion,
};
use answer::{done, made, object};
use cm_values::Address;
use rdma_mummy_sys as sys;
use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::null_mut;

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
        // SAFETY: `self` keeps the context open.
        unsafe { (*self.context.as_ptr()).async_fd }
    }

    fn async_event(&self) -> io::Result<Option<AsyncEvent>> {
        events::async_event(self)
    }

    fn alloc_pd(&self) -> io::Result<Handle> {
        // SAFETY: `self` keeps the context open.
        made(unsafe { sys::ibv_alloc_pd(self.context.as_ptr()) })
    }

    unsafe fn dealloc_pd(&self, pd: Handle) -> io::Result<()> {
        // SAFETY: the domain is live.
        done(unsafe { sys::ibv_dealloc_pd(object(pd)) })
    }

    fn alloc_td(&self) -> io::Result<Handle> {
        let mut attributes = sys::ibv_td_init_attr { comp_mask: 0 };
        // SAFETY: `self` keeps the context open; the call only reads the attributes.
        made(unsafe { sys::ibv_alloc_td(self.context.as_ptr(), &mut attributes) })
    }

    unsafe fn dealloc_td(&self, td: Handle) -> io::Result<()> {
        // SAFETY: the thread domain is live.
        done(unsafe { sys::ibv_dealloc_td(object(td)) })
    }

    unsafe fn alloc_parent_domain(&self, pd: Handle, td: Handle) -> io::Result<Handle> {
        // SAFETY: numbers, pointers and optional functions, for which zero is valid.
        let mut attributes: sys::ibv_parent_domain_init_attr = unsafe { std::mem::zeroed() };
        (attributes.pd, attributes.td) = (object(pd), object(td));
        // SAFETY: the context is open and both domains are live; the call only reads the attributes.
        made(unsafe { sys::ibv_alloc_parent_domain(self.context.as_ptr(), &mut attributes) })
    }

    unsafe fn reg_mr(&self, pd: Handle, start: *mut u8, len: usize, access: Access) -> io::Result<(Handle, Keys)> {
        let register = |access| {
            let access = values::access(access).cast_signed();
            // SAFETY: the domain is live, and the caller keeps the memory mapped.
            let mr: *mut sys::ibv_mr = unsafe { sys::ibv_reg_mr(object(pd), start.cast(), len, access) };
            made(mr).map(|handle| (handle, mr))
        };
        let registered = match register(access) {
            // Kernels before 5.7 refuse unknown flags.
            Err(error) if access.relaxed && error.raw_os_error() == Some(libc::EINVAL) => {
                register(Access { relaxed: false, ..access })
            }
            registered => registered,
        };
        let (handle, mr) = registered.map_err(|error| error::explained(error, len))?;
        // SAFETY: the region was created above.
        let keys = unsafe { Keys { local: (*mr).lkey, remote: (*mr).rkey } };
        Ok((handle, keys))
    }

    unsafe fn dereg_mr(&self, mr: Handle) -> io::Result<()> {
        // SAFETY: the region is live.
        done(unsafe { sys::ibv_dereg_mr(object(mr)) })
    }

    unsafe fn alloc_mw(&self, pd: Handle) -> io::Result<(Handle, u32)> {
        // SAFETY: the domain is live.
        let mw = unsafe { sys::ibv_alloc_mw(object(pd), sys::ibv_mw_type::IBV_MW_TYPE_2) };
        let handle = made(mw)?;
        // SAFETY: the window was created above.
        Ok((handle, unsafe { (*mw).rkey }))
    }

    unsafe fn dealloc_mw(&self, mw: Handle) -> io::Result<()> {
        // SAFETY: the window is live.
        done(unsafe { sys::ibv_dealloc_mw(object(mw)) })
    }

    unsafe fn create_ah(&self, pd: Handle, path: &AhAttr) -> io::Result<Handle> {
        let mut attributes = qp::address(path);
        // SAFETY: the domain is live; the call only reads the attributes.
        made(unsafe { sys::ibv_create_ah(object(pd), &mut attributes) })
    }

    unsafe fn destroy_ah(&self, address: Handle) -> io::Result<()> {
        // SAFETY: the address handle is live.
        done(unsafe { sys::ibv_destroy_ah(object(address)) })
    }

    fn create_comp_channel(&self) -> io::Result<(Handle, RawFd)> {
        events::create_comp_channel(self)
    }

    unsafe fn destroy_comp_channel(&self, channel: Handle) -> io::Result<()> {
        // SAFETY: the channel is live.
        done(unsafe { sys::ibv_destroy_comp_channel(object(channel)) })
    }

    unsafe fn get_cq_event(&self, channel: Handle) -> io::Result<bool> {
        // SAFETY: the caller upholds the same contract.
        unsafe { events::get_cq_event(channel) }
    }

    unsafe fn create_cq(&self, entries: u32, channel: Option<Handle>, vector: u32) -> io::Result<Handle> {
        let vector = c_int::try_from(vector).unwrap_or(0);
        let entries = c_int::try_from(entries).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        let channel = channel.map_or(null_mut(), object);
        // SAFETY: the context is open, and the channel, if any, live; the user context may be anything.
        made(unsafe { sys::ibv_create_cq(self.context.as_ptr(), entries, null_mut(), channel, vector) })
    }

    fn comp_vectors(&self) -> u32 {
        // SAFETY: `self` keeps the context open; the number does not change.
        u32::try_from(unsafe { (*self.context.as_ptr()).num_comp_vectors }).unwrap_or(0).max(1)
    }

    unsafe fn destroy_cq(&self, cq: Handle) -> io::Result<()> {
        // SAFETY: the queue is live.
        done(unsafe { sys::ibv_destroy_cq(object(cq)) })
    }

    unsafe fn req_notify_cq(&self, cq: Handle) -> io::Result<()> {
        // SAFETY: the queue is live.
        done(unsafe { sys::ibv_req_notify_cq(object(cq), 0) })
    }

    unsafe fn poll_cq(&self, cq: Handle, into: &mut Vec<WorkCompletion>) -> io::Result<usize> {
        // SAFETY: the caller upholds the same contract.
        unsafe { poll::poll(cq, into) }
    }

    unsafe fn create_srq(&self, pd: Handle, config: &SrqInitAttr) -> io::Result<Handle> {
        let mut attributes = sys::ibv_srq_init_attr {
            srq_context: null_mut(),
            attr: sys::ibv_srq_attr { max_wr: config.buffers, max_sge: config.sges, srq_limit: 0 },
        };
        // SAFETY: the domain is live; the structure outlives the call. The extended call would read more of it.
        made(unsafe { sys::ibv_create_srq(object(pd), &mut attributes) })
    }

    unsafe fn destroy_srq(&self, srq: Handle) -> io::Result<()> {
        // SAFETY: the shared receive queue is live.
        done(unsafe { sys::ibv_destroy_srq(object(srq)) })
    }

    unsafe fn post_srq_recv(&self, srq: Handle, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the same contract.
        unsafe { post::srq(srq, requests) }
    }

    unsafe fn create_qp(&self, pd: Handle, config: &QpInitAttr) -> io::Result<(Handle, u32, QpCap)> {
        // SAFETY: the caller upholds the same contract.
        unsafe { qp::create(sys::ibv_qp_type::IBV_QPT_RC, pd, config) }
    }

    unsafe fn create_ud_qp(&self, pd: Handle, config: &QpInitAttr) -> io::Result<(Handle, u32, QpCap)> {
        // SAFETY: the caller upholds the same contract.
        unsafe { qp::create(sys::ibv_qp_type::IBV_QPT_UD, pd, config) }
    }

    unsafe fn destroy_qp(&self, qp: Handle) -> io::Result<()> {
        // SAFETY: the queue pair is live.
        done(unsafe { sys::ibv_destroy_qp(object(qp)) })
    }

    unsafe fn modify_qp(&self, qp: Handle, transition: &Transition) -> io::Result<()> {
        let (mut attributes, which) = qp::attributes(transition);
        // SAFETY: the queue pair is live; the structure outlives the call.
        done(unsafe { sys::ibv_modify_qp(object(qp), &mut attributes, which.0.cast_signed()) })
    }

    unsafe fn modify_qp_by_cm(&self, qp: Handle, id: Handle, state: QpState, options: &QpOptions) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { qp::modify_qp_by_cm(qp, id, state, options) }
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
        cm::create_event_channel()
    }

    unsafe fn cm_destroy_event_channel(&self, channel: Handle) -> io::Result<()> {
        // SAFETY: the channel is live.
        unsafe { sys::rdma_destroy_event_channel(object(channel)) };
        Ok(())
    }

    unsafe fn cm_get_event(&self, channel: Handle) -> io::Result<Option<CmEvent>> {
        // SAFETY: the caller upholds the same contract.
        unsafe { cm::event(channel) }
    }

    unsafe fn cm_create_id(&self, channel: Handle) -> io::Result<Handle> {
        let mut id = null_mut();
        // SAFETY: the channel is live.
        done(unsafe { sys::rdma_create_id(object(channel), &mut id, null_mut(), sys::rdma_port_space::RDMA_PS_TCP) })?;
        made(id)
    }

    unsafe fn cm_destroy_id(&self, id: Handle) -> io::Result<()> {
        // SAFETY: the identifier is live, and all events taken for it are acknowledged.
        done(unsafe { sys::rdma_destroy_id(object(id)) })
    }

    unsafe fn cm_listen(&self, id: Handle, address: SocketAddr, backlog: u32) -> io::Result<SocketAddr> {
        // SAFETY: the caller upholds the same contract.
        unsafe { cm::listen(id, address, backlog) }
    }

    unsafe fn cm_resolve_addr(&self, id: Handle, remote: SocketAddr, timeout_ms: u32) -> io::Result<()> {
        let mut remote = Address::new(remote);
        let timeout = c_int::try_from(timeout_ms).unwrap_or(c_int::MAX);
        // SAFETY: the identifier is live; the address outlives the call; no source address is given.
        done(unsafe { sys::rdma_resolve_addr(object(id), null_mut(), remote.as_mut_ptr(), timeout) })
    }

    unsafe fn cm_resolve_route(&self, id: Handle, timeout_ms: u32) -> io::Result<()> {
        // SAFETY: the identifier is live.
        done(unsafe { sys::rdma_resolve_route(object(id), c_int::try_from(timeout_ms).unwrap_or(c_int::MAX)) })
    }

    unsafe fn cm_is_on_device(&self, id: Handle) -> bool {
        // SAFETY: the identifier is live; its context is written only when the same caller takes an event.
        unsafe { (*object::<sys::rdma_cm_id>(id)).verbs == self.context.as_ptr() }
    }

    unsafe fn cm_addresses(&self, id: Handle) -> Option<(SocketAddr, SocketAddr)> {
        // SAFETY: the caller upholds the same contract.
        unsafe { cm::addresses(id) }
    }

    unsafe fn cm_connect(&self, id: Handle, parameters: &CmConnParam) -> io::Result<()> {
        let mut raw = cm_values::parameters(parameters);
        // SAFETY: the identifier is live; the structure and its private data outlive the call.
        done(unsafe { sys::rdma_connect(object(id), &mut raw) })
    }

    unsafe fn cm_establish(&self, id: Handle) -> io::Result<()> {
        // SAFETY: the identifier is live.
        done(unsafe { sys::rdma_establish(object(id)) })
    }

    unsafe fn cm_accept(&self, id: Handle, parameters: &CmConnParam) -> io::Result<()> {
        let mut raw = cm_values::parameters(parameters);
        // SAFETY: the identifier is live; the structure and its private data outlive the call.
        done(unsafe { sys::rdma_accept(object(id), &mut raw) })
    }

    unsafe fn cm_reject(&self, id: Handle, private_data: &[u8]) -> io::Result<()> {
        let private_data = PrivateData::new(private_data);
        let bytes = private_data.bytes();
        // SAFETY: the identifier is live; the bytes outlive the call.
        done(unsafe { sys::rdma_reject(object(id), bytes.as_ptr().cast(), bytes.len() as u8) })
    }

    unsafe fn cm_disconnect(&self, id: Handle) -> io::Result<()> {
        // SAFETY: the identifier is live.
        done(unsafe { sys::rdma_disconnect(object(id)) })
    }

    unsafe fn cm_source(&self, id: Handle) -> io::Result<(u8, [u8; 16])> {
        // SAFETY: the caller upholds the same contract.
        Ok(unsafe { cm::source(id) })
    }
}
