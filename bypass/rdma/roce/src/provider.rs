//! Device: the engine with its port, as a [`Provider`].

use crate::engine::Engine;
use crate::qp::Service;
use crate::streams::{DeviceStreams, StreamTable};
use crate::table::{errno, require};
use linerate_rdma_provider::{
    Access, AhAttr, AsyncEvent, CmConnParam, CmEvent, DeviceLimits, Gid, Handle, Keys, PacketCounts, Port, PostError,
    Provider, QpAttr, QpCap, QpInitAttr, QpOptions, QpState, RecvWr, SendWr, SrqInitAttr, Streams, Transition,
    WorkCompletion,
};
use linerate_service::time::Instant;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Engine with the port that carries its packets.
pub trait Driver: Send + 'static {
    /// Returns the engine.
    fn engine(&mut self) -> &mut Engine;

    /// Returns the current time.
    fn now(&self) -> Instant;

    /// Passes received packets to the engine, and sends its packets.
    fn turn(&mut self);

    /// Returns the packets that the port discarded, by cause.
    fn drops(&mut self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Returns the TCP streams of the port, if it carries them.
    fn streams(&mut self) -> Option<&mut StreamTable> {
        None
    }
}

/// Device over a port, which [`Provider::progress`] drives.
///
/// The worker and the connector use a device from two threads. Its lock is contended only while connections begin and
/// end.
pub struct Device<D> {
    name: String,
    async_fd: RawFd,
    driver: Mutex<D>,
}

impl<D: Driver> Device<D> {
    /// Creates the device with the engine and port of `driver`.
    pub fn new(name: &str, mut driver: D) -> Self {
        let async_fd = driver.engine().completions().events.fd();
        Device { name: name.to_owned(), async_fd, driver: Mutex::new(driver) }
    }

    /// Returns the engine with its port.
    pub fn driver(&self) -> MutexGuard<'_, D> {
        // The state of the engine is consistent between its calls.
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, call: impl FnOnce(&mut Engine) -> T) -> T {
        call(self.driver().engine())
    }

    /// Performs a call that starts messages or timers, and sends the messages.
    fn with_time<T>(&self, call: impl FnOnce(&mut Engine, Instant) -> T) -> T {
        let mut driver = self.driver();
        let now = driver.now();
        let result = call(driver.engine(), now);
        driver.turn();
        result
    }
}

// SAFETY: `Memory` checks each access against the registered regions, and only requests name memory outside of them, by
// inline elements.
unsafe impl<D: Driver> Provider for Device<D> {
    fn name(&self) -> &str {
        &self.name
    }

    fn emulated_by(&self) -> Option<&str> {
        Some("linerate")
    }

    fn limits(&self) -> io::Result<DeviceLimits> {
        Ok(self.with(|engine| engine.limits().clone()))
    }

    fn port(&self, port: u8) -> io::Result<Port> {
        self.with(|engine| engine.port(port))
    }

    fn gids(&self, port: u8) -> io::Result<Vec<Gid>> {
        self.with(|engine| engine.gids(port))
    }

    fn async_fd(&self) -> RawFd {
        self.async_fd
    }

    fn needs_progress(&self) -> bool {
        true
    }

    fn progress(&self) {
        self.driver().turn();
    }

    fn packet_counts(&self) -> Option<PacketCounts> {
        let mut driver = self.driver();
        let mut counts: PacketCounts = driver.engine().counters().into();
        counts.dropped.extend(driver.drops());
        Some(counts)
    }

    fn streams(self: &Arc<Self>) -> io::Result<Option<Box<dyn Streams>>> {
        Ok(DeviceStreams::open(self)?.map(|streams| Box::new(streams) as Box<dyn Streams>))
    }

    fn async_event(&self) -> io::Result<Option<AsyncEvent>> {
        Ok(self.with(|engine| engine.completions().events.pop()))
    }

    fn alloc_pd(&self) -> io::Result<Handle> {
        self.with(|engine| engine.alloc_pd(None))
    }

    unsafe fn dealloc_pd(&self, pd: Handle) -> io::Result<()> {
        self.with(|engine| engine.dealloc_pd(pd))
    }

    fn alloc_td(&self) -> io::Result<Handle> {
        Ok(self.with(|engine| engine.tds.add(())))
    }

    unsafe fn dealloc_td(&self, td: Handle) -> io::Result<()> {
        self.with(|engine| engine.dealloc_td(td))
    }

    unsafe fn alloc_parent_domain(&self, pd: Handle, td: Handle) -> io::Result<Handle> {
        self.with(|engine| engine.alloc_pd(Some((pd, td))))
    }

    unsafe fn reg_mr(&self, pd: Handle, start: *mut u8, len: usize, access: Access) -> io::Result<(Handle, Keys)> {
        self.with(|engine| {
            let limits = engine.limits();
            let (bytes, regions) = (limits.mr_bytes, limits.mrs);
            require(len as u64 <= bytes, libc::EINVAL)?;
            require(engine.memory().regions < regions, libc::ENOMEM)?;
            let pd = engine.base_pd(pd)?;
            let key = engine.memory().register(pd, start, len, access)?;
            Ok((Handle(key as usize), Keys { local: key, remote: key }))
        })
    }

    unsafe fn dereg_mr(&self, Handle(key): Handle) -> io::Result<()> {
        self.with(|engine| engine.memory().deregister(key as u32))
    }

    unsafe fn alloc_mw(&self, pd: Handle) -> io::Result<(Handle, u32)> {
        self.with(|engine| {
            let windows = engine.limits().mws;
            require(engine.memory().windows < windows, libc::ENOMEM)?;
            let pd = engine.base_pd(pd)?;
            let key = engine.memory().allocate_window(pd);
            Ok((Handle(key as usize), key))
        })
    }

    unsafe fn dealloc_mw(&self, Handle(key): Handle) -> io::Result<()> {
        self.with(|engine| engine.memory().deallocate_window(key as u32))
    }

    unsafe fn create_ah(&self, pd: Handle, path: &AhAttr) -> io::Result<Handle> {
        self.with(|engine| engine.create_ah(pd, path))
    }

    unsafe fn destroy_ah(&self, ah: Handle) -> io::Result<()> {
        self.with(|engine| engine.destroy_ah(ah))
    }

    fn create_comp_channel(&self) -> io::Result<(Handle, RawFd)> {
        let channel = crate::waker::Waker::new()?;
        let fd = channel.fd();
        Ok((self.with(|engine| engine.completions().channels.add(channel)), fd))
    }

    unsafe fn destroy_comp_channel(&self, channel: Handle) -> io::Result<()> {
        self.with(|engine| {
            let completions = engine.completions();
            let is_used = completions.cqs.iter().any(|(_, cq)| cq.channel == Some(channel));
            require(!is_used, libc::EBUSY)?;
            completions.channels.remove(channel).map(|_| ())
        })
    }

    unsafe fn get_cq_event(&self, channel: Handle) -> io::Result<bool> {
        self.with(|engine| Ok(engine.completions().channels.get_mut(channel)?.pop().is_some()))
    }

    unsafe fn create_cq(&self, entries: u32, channel: Option<Handle>, vector: u32) -> io::Result<Handle> {
        self.with(|engine| {
            let (entries_limit, limit) = (engine.limits().cqes, engine.limits().cqs as usize);
            require(entries <= entries_limit && vector < self.comp_vectors(), libc::EINVAL)?;
            require(engine.completions().cqs.len() < limit, libc::ENOMEM)?;
            engine.completions().create(entries, channel)
        })
    }

    fn comp_vectors(&self) -> u32 {
        1
    }

    unsafe fn destroy_cq(&self, cq: Handle) -> io::Result<()> {
        self.with(|engine| engine.completions().destroy(cq))
    }

    unsafe fn req_notify_cq(&self, cq: Handle) -> io::Result<()> {
        self.with(|engine| {
            engine.completions().cqs.get_mut(cq)?.is_armed = true;
            Ok(())
        })
    }

    unsafe fn poll_cq(&self, cq: Handle, into: &mut Vec<WorkCompletion>) -> io::Result<usize> {
        self.with(|engine| {
            let cq = engine.completions().cqs.get_mut(cq)?;
            let count = (into.capacity() - into.len()).min(cq.completions.len());
            into.extend(cq.completions.drain(..count));
            Ok(count)
        })
    }

    unsafe fn create_srq(&self, pd: Handle, attr: &SrqInitAttr) -> io::Result<Handle> {
        self.with(|engine| engine.create_srq(pd, attr))
    }

    unsafe fn destroy_srq(&self, srq: Handle) -> io::Result<()> {
        self.with(|engine| engine.destroy_srq(srq))
    }

    unsafe fn post_srq_recv(&self, srq: Handle, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.with(|engine| engine.post_srq_recv(srq, requests))
    }

    unsafe fn create_qp(&self, pd: Handle, attr: &QpInitAttr) -> io::Result<(Handle, u32, QpCap)> {
        self.with(|engine| engine.create_qp(pd, attr, Service::Rc))
    }

    unsafe fn create_ud_qp(&self, pd: Handle, attr: &QpInitAttr) -> io::Result<(Handle, u32, QpCap)> {
        self.with(|engine| engine.create_qp(pd, attr, Service::Ud))
    }

    unsafe fn destroy_qp(&self, qp: Handle) -> io::Result<()> {
        self.with(|engine| engine.destroy_qp(qp))
    }

    unsafe fn modify_qp(&self, qp: Handle, transition: &Transition) -> io::Result<()> {
        self.with(|engine| engine.modify_qp(qp, transition))
    }

    unsafe fn modify_qp_by_cm(&self, qp: Handle, id: Handle, state: QpState, options: &QpOptions) -> io::Result<()> {
        self.with(|engine| {
            let mut transition = engine.cm.transition(id, state, options)?;
            // The peer may ask for more than the program will grant it when it accepts.
            match &mut transition {
                Transition::Rtr { responder_resources, .. } => {
                    *responder_resources = engine.limits().responder_resources.min(*responder_resources);
                }
                Transition::Rts { initiator_depth, .. } => {
                    *initiator_depth = engine.limits().initiator_depth.min(*initiator_depth);
                }
                _ => {}
            }
            engine.modify_qp(qp, &transition)
        })
    }

    unsafe fn query_qp(&self, qp: Handle) -> io::Result<QpAttr> {
        self.with(|engine| engine.qp(qp).map(|qp| QpAttr { state: qp.state, cap: qp.cap }))
    }

    unsafe fn post_send(&self, qp: Handle, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller owns the elements of inline requests.
        self.with(|engine| unsafe { engine.post_send(qp, requests) })
    }

    unsafe fn post_recv(&self, qp: Handle, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.with(|engine| engine.post_recv(qp, requests))
    }

    fn cm_create_event_channel(&self) -> io::Result<(Handle, RawFd)> {
        self.with(|engine| engine.cm.create_event_channel())
    }

    unsafe fn cm_destroy_event_channel(&self, channel: Handle) -> io::Result<()> {
        self.with(|engine| engine.cm.destroy_event_channel(channel))
    }

    unsafe fn cm_get_event(&self, channel: Handle) -> io::Result<Option<CmEvent>> {
        self.with(|engine| engine.cm.get_event(channel))
    }

    unsafe fn cm_create_id(&self, channel: Handle) -> io::Result<Handle> {
        self.with(|engine| engine.cm.create_id(channel))
    }

    unsafe fn cm_destroy_id(&self, id: Handle) -> io::Result<()> {
        self.with_time(|engine, now| engine.cm.destroy_id(id, now))
    }

    unsafe fn cm_listen(&self, id: Handle, address: SocketAddr, backlog: u32) -> io::Result<SocketAddr> {
        self.with(|engine| engine.cm.listen(id, address, backlog))
    }

    unsafe fn cm_resolve_addr(&self, id: Handle, remote: SocketAddr, timeout_ms: u32) -> io::Result<()> {
        self.with(|engine| engine.cm.resolve_addr(id, remote, timeout_ms))
    }

    unsafe fn cm_resolve_route(&self, id: Handle, timeout_ms: u32) -> io::Result<()> {
        self.with(|engine| engine.cm.resolve_route(id, timeout_ms))
    }

    unsafe fn cm_is_on_device(&self, id: Handle) -> bool {
        self.with(|engine| engine.cm.is_on_device(id))
    }

    unsafe fn cm_addresses(&self, id: Handle) -> Option<(SocketAddr, SocketAddr)> {
        self.with(|engine| engine.cm.addresses(id))
    }

    unsafe fn cm_connect(&self, id: Handle, parameters: &CmConnParam) -> io::Result<()> {
        self.with_time(|engine, now| engine.cm.connect(id, parameters, now))
    }

    unsafe fn cm_establish(&self, id: Handle) -> io::Result<()> {
        self.with_time(|engine, _| engine.cm.establish(id))
    }

    unsafe fn cm_accept(&self, id: Handle, parameters: &CmConnParam) -> io::Result<()> {
        self.with_time(|engine, now| engine.cm.accept(id, parameters, now))
    }

    unsafe fn cm_reject(&self, id: Handle, private_data: &[u8]) -> io::Result<()> {
        self.with_time(|engine, now| engine.cm.reject(id, private_data, now))
    }

    unsafe fn cm_disconnect(&self, id: Handle) -> io::Result<()> {
        self.with_time(|engine, now| engine.cm.disconnect(id, now))
    }

    unsafe fn cm_source(&self, id: Handle) -> io::Result<(u8, [u8; 16])> {
        self.with(|engine| {
            let ip = engine.cm.source(id)?;
            let gids = engine.gids(1)?;
            let gid = gids.into_iter().find(|gid| gid.ip() == ip).ok_or_else(|| errno(libc::EINVAL))?;
            Ok((gid.port, gid.raw))
        })
    }
}
