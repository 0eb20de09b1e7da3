//! Implementation of [`Provider`].

use super::device::SimDevice;
use super::world::{World, require};
use linerate_rdma_provider::{
    Access, AhAttr, AsyncEvent, CmConnParam, CmEvent, DeviceLimits, Gid, Handle, Keys, Port, PostError, Provider,
    QpAttr, QpCap, QpInitAttr, QpOptions, QpState, RecvWr, SendWr, SrqInitAttr, Transition, WorkCompletion,
};
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

impl SimDevice {
    /// Performs a call that fails once the process is gone.
    fn live<T>(&self, call: impl FnOnce(&mut World) -> io::Result<T>) -> io::Result<T> {
        self.with(|world| {
            require(!world.is_vanished(self.index), libc::EIO)?;
            call(world)
        })
    }

    /// Performs a call that destroys an object. It succeeds once the process is gone.
    fn destroy(&self, call: impl FnOnce(&mut World) -> io::Result<()>) -> io::Result<()> {
        self.with(|world| if world.is_vanished(self.index) { Ok(()) } else { call(world) })
    }
}

/// Implements calls by the methods of [`World`] of the same names.
macro_rules! calls {
    ($by:ident: $(fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(unsafe fn $name(&self, $($argument: $kind),*) -> io::Result<$result> {
            self.$by(|world| world.$name(self.index, $($argument),*))
        })*
    };
}

// SAFETY: only `memory` accesses memory: within registered regions, for elements that requests name and keys that
// peers name; and the elements of an inline request while it is posted.
unsafe impl Provider for SimDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn emulated_by(&self) -> Option<&str> {
        None
    }

    fn limits(&self) -> io::Result<DeviceLimits> {
        self.live(|world| Ok(world.devices[self.index].config.limits.clone()))
    }

    fn port(&self, port: u8) -> io::Result<Port> {
        self.live(|world| world.devices[self.index].port(port))
    }

    fn gids(&self, port: u8) -> io::Result<Vec<Gid>> {
        self.live(|world| {
            let device = &world.devices[self.index];
            require(device.has_port(port), libc::EINVAL)?;
            Ok(device.gids(port))
        })
    }

    fn async_fd(&self) -> RawFd {
        self.async_fd
    }

    fn async_event(&self) -> io::Result<Option<AsyncEvent>> {
        self.live(|world| Ok(world.devices[self.index].events.pop()))
    }

    fn comp_vectors(&self) -> u32 {
        self.with(|world| world.devices[self.index].config.comp_vectors)
    }

    fn alloc_pd(&self) -> io::Result<Handle> {
        self.live(|world| world.alloc_pd(self.index))
    }

    fn alloc_td(&self) -> io::Result<Handle> {
        self.live(|world| world.alloc_td(self.index))
    }

    fn create_comp_channel(&self) -> io::Result<(Handle, RawFd)> {
        self.live(|world| world.create_comp_channel(self.index))
    }

    fn cm_create_event_channel(&self) -> io::Result<(Handle, RawFd)> {
        self.live(|world| world.cm_create_event_channel(self.index))
    }

    calls! { live:
        fn alloc_parent_domain(pd: Handle, td: Handle) -> Handle;
        fn reg_mr(pd: Handle, start: *mut u8, len: usize, access: Access) -> (Handle, Keys);
        fn alloc_mw(pd: Handle) -> (Handle, u32);
        fn create_ah(pd: Handle, path: &AhAttr) -> Handle;
        fn get_cq_event(channel: Handle) -> bool;
        fn create_cq(entries: u32, channel: Option<Handle>, vector: u32) -> Handle;
        fn req_notify_cq(cq: Handle) -> ();
        fn poll_cq(cq: Handle, into: &mut Vec<WorkCompletion>) -> usize;
        fn create_srq(pd: Handle, attr: &SrqInitAttr) -> Handle;
        fn create_qp(pd: Handle, attr: &QpInitAttr) -> (Handle, u32, QpCap);
        fn create_ud_qp(pd: Handle, attr: &QpInitAttr) -> (Handle, u32, QpCap);
        fn modify_qp(qp: Handle, transition: &Transition) -> ();
        fn modify_qp_by_cm(qp: Handle, id: Handle, state: QpState, options: &QpOptions) -> ();
        fn query_qp(qp: Handle) -> QpAttr;
        fn cm_get_event(channel: Handle) -> Option<CmEvent>;
        fn cm_create_id(channel: Handle) -> Handle;
        fn cm_listen(id: Handle, address: SocketAddr, backlog: u32) -> SocketAddr;
        fn cm_resolve_addr(id: Handle, remote: SocketAddr, timeout_ms: u32) -> ();
        fn cm_resolve_route(id: Handle, timeout_ms: u32) -> ();
        fn cm_connect(id: Handle, parameters: &CmConnParam) -> ();
        fn cm_establish(id: Handle) -> ();
        fn cm_accept(id: Handle, parameters: &CmConnParam) -> ();
        fn cm_reject(id: Handle, private_data: &[u8]) -> ();
        fn cm_disconnect(id: Handle) -> ();
        fn cm_source(id: Handle) -> (u8, [u8; 16]);
    }

    calls! { destroy:
        fn dealloc_pd(pd: Handle) -> ();
        fn dealloc_td(td: Handle) -> ();
        fn dereg_mr(mr: Handle) -> ();
        fn dealloc_mw(mw: Handle) -> ();
        fn destroy_ah(address: Handle) -> ();
        fn destroy_comp_channel(channel: Handle) -> ();
        fn destroy_cq(cq: Handle) -> ();
        fn destroy_srq(srq: Handle) -> ();
        fn destroy_qp(qp: Handle) -> ();
        fn cm_destroy_event_channel(channel: Handle) -> ();
        fn cm_destroy_id(id: Handle) -> ();
    }

    unsafe fn post_send(&self, qp: Handle, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller guarantees the elements.
        self.with(|world| unsafe { world.post_send(self.index, qp, requests) })
    }

    unsafe fn post_recv(&self, qp: Handle, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.with(|world| world.post_recv(self.index, qp, requests))
    }

    unsafe fn post_srq_recv(&self, srq: Handle, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.with(|world| world.post_srq_recv(self.index, srq, requests))
    }

    unsafe fn cm_is_on_device(&self, id: Handle) -> bool {
        self.with(|world| world.cm_is_on_device(self.index, id))
    }

    unsafe fn cm_addresses(&self, id: Handle) -> Option<(SocketAddr, SocketAddr)> {
        self.with(|world| world.cm_addresses(self.index, id))
    }
}
