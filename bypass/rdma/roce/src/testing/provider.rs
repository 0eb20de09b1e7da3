//! Implementation of [`Provider`].

use super::call::Call;
use super::device::{Health, SimDevice};
use super::{Mode, Node, World};
use crate::engine::testing::Kind;
use crate::provider::Device;
use crate::table::require;
use linerate_rdma_provider::{
    Access, AhAttr, AsyncEvent, CmConnParam, CmEvent, DeviceLimits, Gid, Handle, Keys, PathOptions, Port, PostError,
    Provider, QpAttr, QpCap, QpInitAttr, QpOptions, QpState, RecvWr, SendWr, SrqInitAttr, Transition, WorkCompletion,
};
use linerate_service::time::Duration;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

impl SimDevice {
    /// Performs a call. With [`Mode::Auto`], all pending events occur before and after it.
    fn with<T>(&self, call: impl FnOnce(&mut World, &Device<Node>) -> T) -> T {
        let mut world = self.fabric.world();
        if world.mode == Mode::Auto {
            let now = world.clock.now() + Duration::from_micros(1);
            world.clock.set(now);
            world.settle();
        }
        let result = call(&mut world, &self.device);
        world.follow_up(self.index);
        if world.mode == Mode::Auto {
            world.settle();
        }
        result
    }

    /// Performs a call that fails once the process is gone.
    fn live<T>(&self, call: impl FnOnce(&mut World, &Device<Node>) -> io::Result<T>) -> io::Result<T> {
        self.with(|world, device| {
            require(world.sites[self.index].health != Health::Vanished, libc::EIO)?;
            call(world, device)
        })
    }

    /// Performs a call that destroys an object. It succeeds once the process is gone.
    fn destroy(&self, call: impl FnOnce(&mut World, &Device<Node>) -> io::Result<()>) -> io::Result<()> {
        self.with(|world, device| match world.sites[self.index].health {
            Health::Vanished => Ok(()),
            _ => call(world, device),
        })
    }

    /// # Panics
    /// If the object was destroyed: on a real device that would be a use after free.
    fn assert_live(&self, kind: Kind, handle: Handle) {
        let is_gone = self.device.driver().engine.is_gone(kind, handle);
        assert!(!is_gone, "{kind:?} {handle:?} is used after it was destroyed");
    }
}

/// Implements calls by those of the engine's device, after checks: that the objects after `uses` were not destroyed,
/// and that no failure of the call after `fails` is due.
macro_rules! calls {
    ($by:ident: $(fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty
        $(, uses [$($object:ident $handle:ident),+])? $(, fails $call:ident)?;)*) => {
        $(unsafe fn $name(&self, $($argument: $kind),*) -> io::Result<$result> {
            self.$by(|_world, device| {
                $(_world.sites[self.index].enter(Call::$call)?;)?
                $($(self.assert_live(Kind::$object, $handle);)+)?
                // SAFETY: guaranteed by the caller.
                unsafe { device.$name($($argument),*) }
            })
        })*
    };
}

// SAFETY: the engine's device accesses memory, as its implementation explains.
unsafe impl Provider for SimDevice {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn emulated_by(&self) -> Option<&str> {
        None
    }

    fn limits(&self) -> io::Result<DeviceLimits> {
        self.live(|world, _| Ok(world.sites[self.index].config.limits.clone()))
    }

    fn port(&self, port: u8) -> io::Result<Port> {
        self.live(|world, _| world.sites[self.index].port(port))
    }

    fn gids(&self, port: u8) -> io::Result<Vec<Gid>> {
        self.live(|world, _| world.sites[self.index].gids(port))
    }

    fn async_fd(&self) -> RawFd {
        self.async_fd
    }

    fn async_event(&self) -> io::Result<Option<AsyncEvent>> {
        self.live(|world, _| Ok(world.sites[self.index].events.pop()))
    }

    fn comp_vectors(&self) -> u32 {
        self.fabric.world().sites[self.index].config.comp_vectors
    }

    fn alloc_pd(&self) -> io::Result<Handle> {
        self.live(|world, device| {
            world.sites[self.index].enter(Call::AllocDomain)?;
            device.alloc_pd()
        })
    }

    fn alloc_td(&self) -> io::Result<Handle> {
        self.live(|world, device| {
            world.sites[self.index].enter(Call::AllocThread)?;
            require(world.sites[self.index].config.thread_domains, libc::EOPNOTSUPP)?;
            device.alloc_td()
        })
    }

    fn create_comp_channel(&self) -> io::Result<(Handle, RawFd)> {
        self.live(|world, device| {
            world.sites[self.index].enter(Call::CreateChannel)?;
            device.create_comp_channel()
        })
    }

    fn cm_create_event_channel(&self) -> io::Result<(Handle, RawFd)> {
        self.live(|world, device| {
            world.sites[self.index].enter(Call::CmCreateChannel)?;
            device.cm_create_event_channel()
        })
    }

    calls! { live:
        fn alloc_parent_domain(pd: Handle, td: Handle) -> Handle, uses [Pd pd, Td td], fails AllocParent;
        fn reg_mr(pd: Handle, start: *mut u8, len: usize, access: Access) -> (Handle, Keys),
            uses [Pd pd], fails Register;
        fn get_cq_event(channel: Handle) -> bool, uses [Channel channel];
        fn req_notify_cq(cq: Handle) -> (), uses [Cq cq];
        fn create_srq(pd: Handle, attr: &SrqInitAttr) -> Handle, uses [Pd pd], fails CreateShared;
        fn query_qp(qp: Handle) -> QpAttr, uses [Qp qp];
        fn cm_create_id(channel: Handle) -> Handle, uses [CmChannel channel], fails CmCreate;
        fn cm_listen(id: Handle, address: SocketAddr, backlog: u32) -> SocketAddr, uses [CmId id], fails CmListen;
        fn cm_resolve_addr(id: Handle, remote: SocketAddr, timeout_ms: u32) -> (),
            uses [CmId id], fails CmResolveAddress;
        fn cm_resolve_route(id: Handle, timeout_ms: u32) -> (), uses [CmId id], fails CmResolveRoute;
        fn cm_establish(id: Handle) -> (), uses [CmId id], fails CmEstablish;
        fn cm_reject(id: Handle, private_data: &[u8]) -> (), uses [CmId id], fails CmReject;
    }

    calls! { destroy:
        fn dealloc_pd(pd: Handle) -> (), uses [Pd pd];
        fn dealloc_td(td: Handle) -> (), uses [Td td];
        fn dereg_mr(mr: Handle) -> ();
        fn dealloc_mw(mw: Handle) -> ();
        fn destroy_ah(address: Handle) -> (), uses [Ah address];
        fn destroy_comp_channel(channel: Handle) -> (), uses [Channel channel];
        fn cm_destroy_event_channel(channel: Handle) -> (), uses [CmChannel channel];
        fn cm_destroy_id(id: Handle) -> (), uses [CmId id];
    }

    unsafe fn alloc_mw(&self, pd: Handle) -> io::Result<(Handle, u32)> {
        self.live(|world, device| {
            world.sites[self.index].enter(Call::AllocWindow)?;
            self.assert_live(Kind::Pd, pd);
            let config = &world.sites[self.index].config;
            require(config.limits.mw_type_2 && config.allocates_windows, libc::EOPNOTSUPP)?;
            // SAFETY: guaranteed by the caller.
            unsafe { device.alloc_mw(pd) }
        })
    }

    unsafe fn create_ah(&self, pd: Handle, path: &AhAttr) -> io::Result<Handle> {
        self.live(|world, device| {
            world.sites[self.index].enter(Call::CreateAddress)?;
            self.assert_live(Kind::Pd, pd);
            let to = world.to_engine(self.index, path)?;
            // SAFETY: guaranteed by the caller.
            let ah = unsafe { device.create_ah(pd, &to) }?;
            world.sites[self.index].classes.insert(ah.0, (path.traffic_class, path.service_level));
            Ok(ah)
        })
    }

    unsafe fn create_cq(&self, entries: u32, channel: Option<Handle>, vector: u32) -> io::Result<Handle> {
        self.live(|world, device| {
            require(vector < world.sites[self.index].config.comp_vectors, libc::EINVAL)?;
            world.sites[self.index].enter(Call::CreateQueue)?;
            channel.into_iter().for_each(|channel| self.assert_live(Kind::Channel, channel));
            // SAFETY: guaranteed by the caller.
            let cq = unsafe { device.create_cq(entries, channel, 0) }?;
            world.sites[self.index].vectors.push((cq, vector));
            Ok(cq)
        })
    }

    unsafe fn destroy_cq(&self, cq: Handle) -> io::Result<()> {
        self.destroy(|world, device| {
            self.assert_live(Kind::Cq, cq);
            // SAFETY: guaranteed by the caller.
            unsafe { device.destroy_cq(cq) }?;
            let site = &mut world.sites[self.index];
            site.events.retain(|&event| event != AsyncEvent::CqError(cq));
            site.vectors.retain(|&(of, _)| of != cq);
            Ok(())
        })
    }

    unsafe fn poll_cq(&self, cq: Handle, into: &mut Vec<WorkCompletion>) -> io::Result<usize> {
        self.live(|world, device| {
            self.assert_live(Kind::Cq, cq);
            // SAFETY: guaranteed by the caller.
            let count = unsafe { device.poll_cq(cq, into) }?;
            world.sites[self.index].polled(&into[into.len() - count..]);
            Ok(count)
        })
    }

    unsafe fn destroy_srq(&self, srq: Handle) -> io::Result<()> {
        self.destroy(|world, device| {
            self.assert_live(Kind::Srq, srq);
            // SAFETY: guaranteed by the caller.
            unsafe { device.destroy_srq(srq) }?;
            world.sites[self.index].late.retain(|late| !late.is_shared || late.queue != srq);
            Ok(())
        })
    }

    unsafe fn create_qp(&self, pd: Handle, attr: &QpInitAttr) -> io::Result<(Handle, u32, QpCap)> {
        // SAFETY: guaranteed by the caller.
        self.live(|world, _| world.create_qp(self.index, attr, |device| unsafe { device.create_qp(pd, attr) }))
    }

    unsafe fn create_ud_qp(&self, pd: Handle, attr: &QpInitAttr) -> io::Result<(Handle, u32, QpCap)> {
        self.live(|world, _| {
            require(!world.sites[self.index].config.is_iwarp(), libc::EOPNOTSUPP)?;
            // SAFETY: guaranteed by the caller.
            world.create_qp(self.index, attr, |device| unsafe { device.create_ud_qp(pd, attr) })
        })
    }

    unsafe fn destroy_qp(&self, qp: Handle) -> io::Result<()> {
        self.destroy(|world, _| {
            self.assert_live(Kind::Qp, qp);
            world.destroy_qp(self.index, qp)
        })
    }

    unsafe fn modify_qp(&self, qp: Handle, transition: &Transition) -> io::Result<()> {
        self.live(|world, _| {
            self.assert_live(Kind::Qp, qp);
            world.modify_qp(self.index, qp, transition)
        })
    }

    unsafe fn modify_qp_by_cm(&self, qp: Handle, id: Handle, state: QpState, options: &QpOptions) -> io::Result<()> {
        self.live(|world, device| {
            self.assert_live(Kind::Qp, qp);
            self.assert_live(Kind::CmId, id);
            world.sites[self.index].enter(Call::Modify)?;
            let site = &mut world.sites[self.index];
            if site.config.is_iwarp() && state != QpState::Init {
                // The kernel does this when connecting.
                let is_connected = device.driver().engine.qp(qp)?.state == QpState::Rts;
                return require(is_connected && state == QpState::Rts, libc::EINVAL);
            }
            let path = PathOptions { pkey_index: 0, ..options.path };
            // SAFETY: guaranteed by the caller.
            unsafe { device.modify_qp_by_cm(qp, id, state, &QpOptions { path, ..*options }) }?;
            let source = device.driver().engine.cm.source(id)?;
            let port = site.port_of(source).unwrap_or(1);
            let sim = site.qp(qp)?;
            (sim.port, sim.partition) = (port, options.path.pkey_index);
            sim.classes = (path.traffic_class, path.service_level);
            Ok(())
        })
    }

    unsafe fn post_send(&self, qp: Handle, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        self.with(|world, _| {
            let failed = |at| move |error| PostError { at, error };
            if !requests.is_empty() {
                world.sites[self.index].enter(Call::PostSend).map_err(failed(0))?;
                self.assert_live(Kind::Qp, qp);
            }
            for (at, request) in requests.iter().enumerate() {
                // SAFETY: guaranteed by the caller.
                unsafe { world.post_send(self.index, qp, request) }.map_err(failed(at))?;
            }
            Ok(())
        })
    }

    unsafe fn post_recv(&self, qp: Handle, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.with(|world, _| {
            if !requests.is_empty() {
                world.sites[self.index].enter(Call::PostReceive).map_err(|error| PostError { at: 0, error })?;
                self.assert_live(Kind::Qp, qp);
            }
            world.post_buffers(self.index, false, qp, requests)
        })
    }

    unsafe fn post_srq_recv(&self, srq: Handle, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.with(|world, _| {
            if !requests.is_empty() {
                world.sites[self.index].enter(Call::PostShared).map_err(|error| PostError { at: 0, error })?;
                self.assert_live(Kind::Srq, srq);
            }
            world.post_buffers(self.index, true, srq, requests)
        })
    }

    unsafe fn cm_get_event(&self, channel: Handle) -> io::Result<Option<CmEvent>> {
        self.live(|world, device| {
            self.assert_live(Kind::CmChannel, channel);
            // SAFETY: guaranteed by the caller.
            let event = unsafe { device.cm_get_event(channel) }?;
            Ok(event.map(|event| world.translate(self.index, event)))
        })
    }

    unsafe fn cm_connect(&self, id: Handle, parameters: &CmConnParam) -> io::Result<()> {
        self.live(|world, device| {
            world.sites[self.index].enter(Call::CmConnect)?;
            self.assert_live(Kind::CmId, id);
            world.take_over(self.index, id, parameters, false)?;
            // SAFETY: guaranteed by the caller.
            unsafe { device.cm_connect(id, parameters) }
        })
    }

    unsafe fn cm_accept(&self, id: Handle, parameters: &CmConnParam) -> io::Result<()> {
        self.live(|world, device| {
            world.sites[self.index].enter(Call::CmAccept)?;
            self.assert_live(Kind::CmId, id);
            world.take_over(self.index, id, parameters, true)?;
            // SAFETY: guaranteed by the caller.
            unsafe { device.cm_accept(id, parameters) }?;
            world.join(self.index, id)
        })
    }

    unsafe fn cm_disconnect(&self, id: Handle) -> io::Result<()> {
        self.live(|world, device| {
            world.sites[self.index].enter(Call::CmDisconnect)?;
            self.assert_live(Kind::CmId, id);
            world.end(self.index, id);
            // SAFETY: guaranteed by the caller.
            unsafe { device.cm_disconnect(id) }
        })
    }

    unsafe fn cm_is_on_device(&self, id: Handle) -> bool {
        // SAFETY: guaranteed by the caller.
        self.live(|_, device| Ok(unsafe { device.cm_is_on_device(id) })).unwrap_or(false)
    }

    unsafe fn cm_addresses(&self, id: Handle) -> Option<(SocketAddr, SocketAddr)> {
        // SAFETY: guaranteed by the caller.
        self.live(|_, device| Ok(unsafe { device.cm_addresses(id) })).ok()?
    }

    unsafe fn cm_source(&self, id: Handle) -> io::Result<(u8, [u8; 16])> {
        self.live(|world, device| {
            let source = device.driver().engine.cm.source(id)?;
            let site = &world.sites[self.index];
            let port = site.port_of(source).unwrap_or(1);
            Ok((port, site.gid(port)))
        })
    }
}
