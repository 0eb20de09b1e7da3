//! The calls that a model answers.

use super::device::Model;
use crate::calls::{
    Access, AsyncEvent, Calls, Capacities, CmEvent, CmParameters, DeviceLimits, Gid, Handle, Keys, Path, Port,
    PostError, QueuePairAttributes, QueuePairConfig, QueuePairState, ReceiveRequest, SendRequest, SharedConfig,
    Transition, WorkCompletion,
};
use crate::model::world::require;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

// SAFETY: memory is touched by `memory` alone: what a region that is registered covers, of segments that requests name and keys
// that peers name; and the segments of a request that is sent inline, while it is posted.
unsafe impl Calls for Model {
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

    fn alloc_domain(&self) -> io::Result<Handle> {
        self.with(|world| world.alloc_domain(self.index))
    }

    unsafe fn dealloc_domain(&self, domain: Handle) -> io::Result<()> {
        self.with(|world| world.dealloc_domain(self.index, domain))
    }

    unsafe fn register(
        &self,
        domain: Handle,
        start: *mut u8,
        len: usize,
        access: Access,
    ) -> io::Result<(Handle, Keys)> {
        self.with(|world| world.register(self.index, domain, start, len, access))
    }

    unsafe fn deregister(&self, region: Handle) -> io::Result<()> {
        self.with(|world| world.deregister(self.index, region))
    }

    unsafe fn alloc_window(&self, domain: Handle) -> io::Result<(Handle, u32)> {
        self.with(|world| world.alloc_window(self.index, domain))
    }

    unsafe fn dealloc_window(&self, window: Handle) -> io::Result<()> {
        self.with(|world| world.dealloc_window(self.index, window))
    }

    unsafe fn create_address(&self, domain: Handle, path: &Path) -> io::Result<Handle> {
        self.with(|world| world.create_address(self.index, domain, path))
    }

    unsafe fn destroy_address(&self, address: Handle) -> io::Result<()> {
        self.with(|world| world.destroy_address(self.index, address))
    }

    fn create_channel(&self) -> io::Result<(Handle, RawFd)> {
        self.with(|world| world.create_channel(self.index))
    }

    unsafe fn destroy_channel(&self, channel: Handle) -> io::Result<()> {
        self.with(|world| world.destroy_channel(self.index, channel))
    }

    unsafe fn channel_event(&self, channel: Handle) -> io::Result<bool> {
        self.with(|world| world.channel_event(self.index, channel))
    }

    unsafe fn create_queue(&self, entries: u32, channel: Option<Handle>) -> io::Result<Handle> {
        self.with(|world| world.create_queue(self.index, entries, channel))
    }

    unsafe fn destroy_queue(&self, queue: Handle) -> io::Result<()> {
        self.with(|world| world.destroy_queue(self.index, queue))
    }

    unsafe fn notify(&self, queue: Handle) -> io::Result<()> {
        self.with(|world| world.notify(self.index, queue))
    }

    unsafe fn poll(&self, queue: Handle, into: &mut Vec<WorkCompletion>) -> io::Result<usize> {
        self.with(|world| world.poll(self.index, queue, into))
    }

    unsafe fn create_shared(&self, domain: Handle, config: &SharedConfig) -> io::Result<Handle> {
        self.with(|world| world.create_shared(self.index, domain, config))
    }

    unsafe fn limit_shared(&self, shared: Handle, limit: u32) -> io::Result<()> {
        self.with(|world| world.limit_shared(self.index, shared, limit))
    }

    unsafe fn destroy_shared(&self, shared: Handle) -> io::Result<()> {
        self.with(|world| world.destroy_shared(self.index, shared))
    }

    unsafe fn post_shared(&self, shared: Handle, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        self.with(|world| world.post_shared(self.index, shared, requests))
    }

    unsafe fn create_pair(&self, domain: Handle, config: &QueuePairConfig) -> io::Result<(Handle, u32, Capacities)> {
        self.with(|world| world.create_pair(self.index, domain, config))
    }

    unsafe fn create_datagrams(
        &self,
        domain: Handle,
        config: &QueuePairConfig,
    ) -> io::Result<(Handle, u32, Capacities)> {
        self.with(|world| world.create_datagrams(self.index, domain, config))
    }

    unsafe fn destroy_pair(&self, pair: Handle) -> io::Result<()> {
        self.with(|world| world.destroy_pair(self.index, pair))
    }

    unsafe fn modify(&self, pair: Handle, transition: &Transition) -> io::Result<()> {
        self.with(|world| world.modify(self.index, pair, transition))
    }

    unsafe fn modify_by(&self, pair: Handle, id: Handle, state: QueuePairState) -> io::Result<()> {
        self.with(|world| world.modify_by(self.index, pair, id, state))
    }

    unsafe fn query_pair(&self, pair: Handle) -> io::Result<QueuePairAttributes> {
        self.with(|world| world.query_pair(self.index, pair))
    }

    unsafe fn post_send(&self, pair: Handle, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller says that the segments are its own.
        self.with(|world| unsafe { world.post_send(self.index, pair, requests) })
    }

    unsafe fn post_receive(&self, pair: Handle, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        self.with(|world| world.post_receive(self.index, pair, requests))
    }

    fn cm_create_channel(&self) -> io::Result<(Handle, RawFd)> {
        self.with(|world| world.cm_create_channel(self.index))
    }

    unsafe fn cm_destroy_channel(&self, channel: Handle) -> io::Result<()> {
        self.with(|world| world.cm_destroy_channel(self.index, channel))
    }

    unsafe fn cm_event(&self, channel: Handle) -> io::Result<Option<CmEvent>> {
        self.with(|world| world.cm_event(self.index, channel))
    }

    unsafe fn cm_create(&self, channel: Handle) -> io::Result<Handle> {
        self.with(|world| world.cm_create(self.index, channel))
    }

    unsafe fn cm_destroy(&self, id: Handle) -> io::Result<()> {
        self.with(|world| world.cm_destroy(self.index, id))
    }

    unsafe fn cm_listen(&self, id: Handle, address: SocketAddr, backlog: u32) -> io::Result<SocketAddr> {
        self.with(|world| world.cm_listen(self.index, id, address, backlog))
    }

    unsafe fn cm_resolve_address(&self, id: Handle, remote: SocketAddr, _timeout_ms: u32) -> io::Result<()> {
        self.with(|world| world.cm_resolve_address(self.index, id, remote))
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

    unsafe fn cm_connect(&self, id: Handle, parameters: &CmParameters) -> io::Result<()> {
        self.with(|world| world.cm_connect(self.index, id, parameters))
    }

    unsafe fn cm_establish(&self, id: Handle) -> io::Result<()> {
        self.with(|world| world.cm_establish(self.index, id))
    }

    unsafe fn cm_accept(&self, id: Handle, parameters: &CmParameters) -> io::Result<()> {
        self.with(|world| world.cm_accept(self.index, id, parameters))
    }

    unsafe fn cm_reject(&self, id: Handle, private: &[u8]) -> io::Result<()> {
        self.with(|world| world.cm_reject(self.index, id, private))
    }

    unsafe fn cm_disconnect(&self, id: Handle) -> io::Result<()> {
        self.with(|world| world.cm_disconnect(self.index, id))
    }
}
