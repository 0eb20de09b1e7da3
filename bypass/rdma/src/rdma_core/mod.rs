//! Devices of this machine, by rdma-core, whose libraries are opened when the program starts and may be absent.
//!
//! [`Native`] is [`Calls`] by the classic calls (`ibv_post_send`, `ibv_poll_cq`): every device and every release of rdma-core has
//! them. Of the extended ones rdma-core 44 returns garbage on rxe, and siw has none. A [`Handle`] is the address of the
//! library's object.

mod answer;
mod connect;
mod connect_values;
mod device;
mod error;
mod events;
mod inline;
mod objects;
mod open;
mod pair;
mod poll;
mod post;
mod values;

pub use error::Error;
pub use open::Native;

use crate::calls::{
    AsyncEvent, Calls, Capacities, CmEvent, CmParameters, DeviceLimits, Gid, Handle, Keys, Path, Port, PostError,
    QueuePairAttributes, QueuePairConfig, QueuePairState, ReceiveRequest, SendRequest, SharedConfig, Transition,
    WorkCompletion,
};
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

// SAFETY: the libraries, and the device on their behalf, read and write what requests name, within regions.
unsafe impl Calls for Native {
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

    fn alloc_domain(&self) -> io::Result<Handle> {
        objects::alloc_domain(self)
    }

    unsafe fn dealloc_domain(&self, domain: Handle) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { objects::dealloc_domain(domain) }
    }

    unsafe fn register(
        &self,
        domain: Handle,
        start: *mut u8,
        len: usize,
        access: crate::calls::Access,
    ) -> io::Result<(Handle, Keys)> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { objects::register(domain, start, len, access) }
    }

    unsafe fn deregister(&self, region: Handle) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { objects::deregister(region) }
    }

    unsafe fn alloc_window(&self, domain: Handle) -> io::Result<(Handle, u32)> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { objects::alloc_window(domain) }
    }

    unsafe fn dealloc_window(&self, window: Handle) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { objects::dealloc_window(window) }
    }

    unsafe fn create_address(&self, domain: Handle, path: &Path) -> io::Result<Handle> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { objects::create_address(domain, path) }
    }

    unsafe fn destroy_address(&self, address: Handle) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { objects::destroy_address(address) }
    }

    fn create_channel(&self) -> io::Result<(Handle, RawFd)> {
        events::create_channel(self)
    }

    unsafe fn destroy_channel(&self, channel: Handle) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { events::destroy_channel(channel) }
    }

    unsafe fn channel_event(&self, channel: Handle) -> io::Result<bool> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { events::channel_event(channel) }
    }

    unsafe fn create_queue(&self, entries: u32, channel: Option<Handle>) -> io::Result<Handle> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { objects::create_queue(self, entries, channel) }
    }

    unsafe fn destroy_queue(&self, queue: Handle) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { objects::destroy_queue(queue) }
    }

    unsafe fn notify(&self, queue: Handle) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { poll::notify(queue) }
    }

    unsafe fn poll(&self, queue: Handle, into: &mut Vec<WorkCompletion>) -> io::Result<usize> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { poll::poll(self, queue, into) }
    }

    unsafe fn create_shared(&self, domain: Handle, config: &SharedConfig) -> io::Result<Handle> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { objects::create_shared(domain, config) }
    }

    unsafe fn limit_shared(&self, shared: Handle, limit: u32) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { objects::limit_shared(shared, limit) }
    }

    unsafe fn destroy_shared(&self, shared: Handle) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { objects::destroy_shared(shared) }
    }

    unsafe fn post_shared(&self, shared: Handle, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { post::shared(shared, requests) }
    }

    unsafe fn create_pair(&self, domain: Handle, config: &QueuePairConfig) -> io::Result<(Handle, u32, Capacities)> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { pair::create(domain, config) }
    }

    unsafe fn create_datagrams(
        &self,
        domain: Handle,
        config: &QueuePairConfig,
    ) -> io::Result<(Handle, u32, Capacities)> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { pair::create_datagrams(domain, config) }
    }

    unsafe fn destroy_pair(&self, pair: Handle) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { pair::destroy(pair) }
    }

    unsafe fn modify(&self, pair: Handle, transition: &Transition) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { pair::modify(pair, transition) }
    }

    unsafe fn modify_by(&self, pair: Handle, id: Handle, state: QueuePairState) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { pair::modify_by(pair, id, state) }
    }

    unsafe fn query_pair(&self, pair: Handle) -> io::Result<QueuePairAttributes> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { pair::query(pair) }
    }

    unsafe fn post_send(&self, pair: Handle, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { post::send(pair, requests) }
    }

    unsafe fn post_receive(&self, pair: Handle, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { post::receive(pair, requests) }
    }

    fn cm_create_channel(&self) -> io::Result<(Handle, RawFd)> {
        connect::create_channel()
    }

    unsafe fn cm_destroy_channel(&self, channel: Handle) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { connect::destroy_channel(channel) }
    }

    unsafe fn cm_event(&self, channel: Handle) -> io::Result<Option<CmEvent>> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { connect::event(channel) }
    }

    unsafe fn cm_create(&self, channel: Handle) -> io::Result<Handle> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { connect::create(channel) }
    }

    unsafe fn cm_destroy(&self, id: Handle) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { connect::destroy(id) }
    }

    unsafe fn cm_listen(&self, id: Handle, address: SocketAddr, backlog: u32) -> io::Result<SocketAddr> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { connect::listen(id, address, backlog) }
    }

    unsafe fn cm_resolve_address(&self, id: Handle, remote: SocketAddr, timeout_ms: u32) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { connect::resolve_address(id, remote, timeout_ms) }
    }

    unsafe fn cm_resolve_route(&self, id: Handle, timeout_ms: u32) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { connect::resolve_route(id, timeout_ms) }
    }

    unsafe fn cm_is_here(&self, id: Handle) -> bool {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { connect::is_here(self, id) }
    }

    unsafe fn cm_addresses(&self, id: Handle) -> Option<(SocketAddr, SocketAddr)> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { connect::addresses(id) }
    }

    unsafe fn cm_connect(&self, id: Handle, parameters: &CmParameters) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { connect::connect(id, parameters) }
    }

    unsafe fn cm_establish(&self, id: Handle) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { connect::establish(id) }
    }

    unsafe fn cm_accept(&self, id: Handle, parameters: &CmParameters) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { connect::accept(id, parameters) }
    }

    unsafe fn cm_reject(&self, id: Handle, private: &[u8]) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { connect::reject(id, private) }
    }

    unsafe fn cm_disconnect(&self, id: Handle) -> io::Result<()> {
        // SAFETY: our caller keeps the rules, which are the same.
        unsafe { connect::disconnect(id) }
    }
}
