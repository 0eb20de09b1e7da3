//! Calls with effects beyond those of the engine: slots of queues, ports, and habits of drivers.

use super::call::Call;
use super::device::{LateBuffer, SimQp, Site};
use super::{Mode, World};
use crate::provider::Device;
use crate::queues::Buffer;
use crate::table::{errno, require};
use crate::testing::Node;
use linerate_rdma_provider::{
    AhAttr, AsyncEvent, Handle, Operation, PostError, Provider, QpCap, QpInitAttr, QpState, RecvWr, SendWr, Transition,
    WcOpcode, WcStatus, WorkCompletion,
};
use linerate_service::time::Instant;
use std::io;
use std::sync::Arc;

/// Entries of a port's P_Key table, all different.
pub(super) const PKEYS: u16 = 2;

fn is_receive(completion: &WorkCompletion) -> bool {
    matches!(completion.opcode, WcOpcode::Receive | WcOpcode::ReceiveWrite)
}

impl Site {
    pub fn qp_by_number(&self, number: u32) -> Option<Handle> {
        self.qps.iter().find(|(_, qp)| qp.number == number).map(|(&handle, _)| Handle(handle))
    }

    pub fn qp(&mut self, qp: Handle) -> io::Result<&mut SimQp> {
        self.qps.get_mut(&qp.0).ok_or_else(|| errno(libc::EINVAL))
    }

    /// Returns the number of free slots of a receive queue. Only polling frees slots, because a provider has no other
    /// information on the device's progress.
    fn free_slots(&self, is_shared: bool, queue: Handle) -> io::Result<usize> {
        let mut driver = self.device.driver();
        let (qps, objects) = driver.engine.parts();
        let (posted, limit) = match is_shared {
            true => objects.srqs.get(queue)?.queue.usage(),
            false => qps.get(queue)?.receives.usage(),
        };
        let users: Vec<_> = match is_shared {
            true => qps.iter().filter(|(_, qp)| qp.srq == Some(queue)).map(|(_, qp)| qp).collect(),
            false => vec![qps.get(queue)?],
        };
        let completions = objects.completions.cqs.iter().flat_map(|(_, cq)| &cq.completions);
        let is_users = |done: &&WorkCompletion| is_receive(done) && users.iter().any(|qp| qp.number == done.qp);
        let unpolled = completions.filter(is_users).count();
        let filling = users.iter().filter(|qp| qp.responder.has_buffer()).count();
        let is_same = |late: &&LateBuffer| late.is_shared == is_shared && late.queue == queue;
        let late = self.late.iter().filter(is_same).count();
        Ok(limit.saturating_sub(posted + unpolled + filling + late))
    }

    /// Frees the slots of polled requests.
    pub fn polled(&mut self, completions: &[WorkCompletion]) {
        for done in completions.iter().filter(|done| !is_receive(done)) {
            let Some(qp) = self.qps.values_mut().find(|qp| qp.number == done.qp) else { continue };
            let is_its = |&(id, signalled)| id == done.id && (signalled || done.status != WcStatus::Success);
            if let Some(last) = qp.posted.iter().position(is_its) {
                qp.posted.drain(..=last);
            }
        }
    }

    /// Performs a call that makes the engine discard the completions of a queue pair, unless the driver keeps them.
    fn discarding<T>(&self, qp: Handle, call: impl FnOnce(&Device<Node>) -> io::Result<T>) -> io::Result<T> {
        if !self.config.keeps_completions {
            return call(&self.device);
        }
        let mut kept = Vec::new();
        {
            let mut driver = self.device.driver();
            let qp = driver.engine.qp(qp)?;
            let (number, cqs) = (qp.number, [qp.send_cq, qp.recv_cq]);
            for &cq in if cqs[0] == cqs[1] { &cqs[..1] } else { &cqs } {
                let completions = &driver.engine.completions().cqs.get(cq)?.completions;
                kept.extend(completions.iter().rev().filter(|done| done.qp == number).map(|done| (cq, *done)));
            }
        }
        let result = call(&self.device)?;
        let mut driver = self.device.driver();
        for (cq, done) in kept {
            driver.engine.completions().cqs.get_mut(cq)?.completions.push_front(done);
        }
        Ok(result)
    }
}

impl World {
    /// Takes the events of an engine as its driver reports them, and performs what follows from a call or packet.
    pub fn follow_up(&mut self, index: usize) {
        let site = &mut self.sites[index];
        let events: Vec<_> = {
            let mut driver = site.device.driver();
            let completions = driver.engine.completions();
            std::iter::from_fn(|| completions.events.pop()).collect()
        };
        for event in events {
            match event {
                // The engine has one port.
                AsyncEvent::GidChange(_) => continue,
                AsyncEvent::LastWqeReached(qp) => {
                    site.hold_shared(qp);
                    if !site.config.reports_last_wqe {
                        continue;
                    }
                }
                _ => {}
            }
            site.events.push(event);
        }
        self.fail_peers(index);
        self.sever(index, None);
        let site = &mut self.sites[index];
        site.next_turn = site.device.driver().engine.next_turn();
    }

    pub fn create_qp(
        &mut self,
        index: usize,
        attr: &QpInitAttr,
        create: impl FnOnce(&Device<Node>) -> io::Result<(Handle, u32, QpCap)>,
    ) -> io::Result<(Handle, u32, QpCap)> {
        self.sites[index].enter(Call::CreatePair)?;
        let nth = self.created;
        let site = &mut self.sites[index];
        require(attr.cap.inline <= site.config.inline, libc::EINVAL)?;
        let generation = if site.config.recycles_numbers { index } else { nth };
        site.device.driver().engine.set_generation(generation as u32);
        let (qp, number, cap) = create(&site.device)?;
        let (sends, port) = (cap.sends as usize, 1);
        site.qps.insert(qp.0, SimQp { number, nth, port, sends, ..SimQp::default() });
        self.created += 1;
        Ok((qp, number, cap))
    }

    pub fn destroy_qp(&mut self, index: usize, qp: Handle) -> io::Result<()> {
        // SAFETY: guaranteed by the caller.
        self.sites[index].discarding(qp, |device| unsafe { device.destroy_qp(qp) })?;
        self.sever(index, Some(qp));
        let site = &mut self.sites[index];
        site.qps.remove(&qp.0);
        site.late.retain(|late| late.is_shared || late.queue != qp);
        site.events.retain(|event| match *event {
            AsyncEvent::QpFatal(of)
            | AsyncEvent::QpRequestError(of)
            | AsyncEvent::QpAccessError(of)
            | AsyncEvent::CommEstablished(of)
            | AsyncEvent::LastWqeReached(of) => of != qp,
            _ => true,
        });
        Ok(())
    }

    /// Returns an address vector as the engine has it: with IP addresses, which are all of its only port.
    pub fn to_engine(&self, index: usize, path: &AhAttr) -> io::Result<AhAttr> {
        let gid = self.sites.iter().find_map(|site| site.address_of(path.gid)).unwrap_or(path.gid);
        self.sites[index].to_engine(&AhAttr { gid, ..*path })
    }

    pub fn modify_qp(&mut self, index: usize, qp: Handle, transition: &Transition) -> io::Result<()> {
        self.sites[index].enter(Call::Modify)?;
        let site = &mut self.sites[index];
        let has_atomics = site.config.limits.atomics.any();
        let (mut port, mut partition) = (site.qp(qp)?.port, site.qp(qp)?.partition);
        let mut classes = site.qp(qp)?.classes;
        let mut transition = *transition;
        match &mut transition {
            Transition::Init { port: to, partition: key, .. } | Transition::InitUd { port: to, partition: key, .. } => {
                site.check_port(*to)?;
                require(*key < PKEYS, libc::EINVAL)?;
                (port, partition) = (std::mem::replace(to, 1), std::mem::take(key));
            }
            Transition::Rtr { path, .. } => {
                require(path.port == port, libc::EINVAL)?;
                classes = (path.traffic_class, path.service_level);
                *path = self.to_engine(index, path)?;
            }
            _ => {}
        }
        if let Transition::Init { access, .. } = &mut transition {
            access.remote_atomic &= has_atomics;
        }
        let site = &mut self.sites[index];
        // SAFETY: guaranteed by the caller.
        let modify = |device: &Device<Node>| unsafe { device.modify_qp(qp, &transition) };
        if transition == Transition::Reset {
            let buffers = site.device.driver().engine.qp(qp)?.receives.usage().0;
            site.discarding(qp, modify)?;
            if site.config.keeps_reset_buffers {
                let empty = vec![RecvWr { id: 0, sges: &[] }; buffers];
                let mut driver = site.device.driver();
                _ = driver.engine.parts().0.get_mut(qp)?.receives.post(&empty);
            }
            site.late.retain(|late| late.is_shared || late.queue != qp);
            site.qp(qp)?.posted.clear();
            self.sever(index, Some(qp));
        } else {
            modify(&site.device)?;
        }
        let sim = self.sites[index].qp(qp)?;
        (sim.port, sim.partition, sim.classes) = (port, partition, classes);
        Ok(())
    }

    /// Posts a request, which fails if a failure is scheduled.
    ///
    /// # Safety
    /// As for [`Provider::post_send`].
    pub unsafe fn post_send(&mut self, index: usize, qp: Handle, request: &SendWr<'_>) -> io::Result<()> {
        let site = &mut self.sites[index];
        let (limits, is_iwarp) = (&site.config.limits, site.config.is_iwarp());
        let is_possible = match request.operation {
            Operation::WriteImmediate { .. } | Operation::SendImmediate(_) => !is_iwarp,
            Operation::Read { .. } => request.sges.len() <= limits.read_sges as usize,
            Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => limits.atomics.any(),
            _ => true,
        };
        require(is_possible, libc::EINVAL)?;
        let device = Arc::clone(&site.device);
        let is_premature = site.qp(qp)?.iwarp.is_some_and(|(_, is_passive)| is_passive)
            && !device.driver().engine.qp(qp)?.responder.has_received();
        // The initiator of a connection sends first (RFC 5044 §7.1.2).
        if is_premature {
            self.fail(index, qp, Some(AsyncEvent::QpFatal(qp)));
        }
        let site = &mut self.sites[index];
        let mut fault = None;
        if is_iwarp && matches!(request.operation, Operation::Read { .. }) {
            // READ data arrives as a write of the peer.
            let mut driver = device.driver();
            let mut regions = driver.engine.memory().registered();
            let is_closed =
                regions.any(|(key, .., access)| !access.remote_write && request.sges.iter().any(|sge| sge.lkey == key));
            fault = is_closed.then_some(WcStatus::LocalProtection);
        }
        let classes = match request.operation {
            Operation::Datagram { address, .. } => site.classes.get(&address.0).copied(),
            _ => None,
        };
        let sim = site.qp(qp)?;
        require(sim.posted.len() < sim.sends, libc::ENOMEM)?;
        if let Some(due) = sim.faults.iter().position(|&(after, _)| after == 0) {
            fault = Some(sim.faults.remove(due).1);
        }
        let mut request = *request;
        if let Operation::Datagram { address, .. } = &mut request.operation
            && fault.take().is_some()
        {
            *address = Handle(usize::MAX);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { device.post_send(qp, &[request]) }.map_err(|error| error.error)?;
        sim.faults.iter_mut().for_each(|(after, _)| *after = after.saturating_sub(1));
        sim.posted.push_back((request.id, request.flags.is_signalled()));
        sim.classes = classes.unwrap_or(sim.classes);
        if let Some(status) = fault {
            sim.peer_event = match status {
                WcStatus::RemoteAccess => Some(AsyncEvent::QpAccessError),
                WcStatus::RemoteInvalidRequest => Some(AsyncEvent::QpRequestError),
                WcStatus::RemoteOperation | WcStatus::RemoteAborted => Some(AsyncEvent::QpFatal),
                _ => None,
            };
            let mut driver = device.driver();
            let (qps, objects) = driver.engine.parts();
            qps.get_mut(qp)?.fail_newest(status, objects);
        }
        Ok(())
    }

    /// Returns the time until which all messages that found no buffer wait.
    fn rnr_until(&self) -> Option<Instant> {
        let of = |site: &Site| {
            let mut driver = site.device.driver();
            driver.engine.parts().0.iter().filter_map(|(_, qp)| qp.requester.rnr_until).max()
        };
        self.sites.iter().filter_map(of).max()
    }

    /// Posts buffers, which the device may see later.
    pub fn post_buffers(
        &mut self,
        index: usize,
        is_shared: bool,
        queue: Handle,
        requests: &[RecvWr<'_>],
    ) -> Result<(), PostError> {
        let failed = |error| PostError { at: 0, error };
        let now = self.clock.now();
        if self.mode == Mode::Auto {
            // Time does not pass while threads sleep: messages that wait for a buffer are sent again at once.
            self.clock.set(self.rnr_until().unwrap_or(now).max(now));
        }
        let site = &mut self.sites[index];
        let free = site.free_slots(is_shared, queue).map_err(failed)?.min(requests.len());
        let mut driver = site.device.driver();
        let state = if is_shared { QpState::Rts } else { driver.engine.qp(queue).map_err(failed)?.state };
        let is_late = site.config.post_delay.as_nanos() > 0 && !matches!(state, QpState::Reset | QpState::Error);
        match (is_late, is_shared) {
            (false, true) => driver.engine.post_srq_recv(queue, &requests[..free])?,
            (false, false) => driver.engine.post_recv(queue, &requests[..free])?,
            (true, _) => {
                drop(driver);
                requests[..free].iter().for_each(|request| site.delay(is_shared, queue, request, now));
            }
        }
        if free == requests.len() { Ok(()) } else { Err(PostError { at: free, error: errno(libc::ENOMEM) }) }
    }
}

impl Site {
    /// Flushes a shared buffer that a failed queue pair holds, if devices of this type do.
    fn hold_shared(&mut self, qp: Handle) {
        let mut driver = self.device.driver();
        let (qps, objects) = driver.engine.parts();
        let (true, Ok(qp)) = (self.config.holds_shared, qps.get(qp)) else { return };
        let mut held = Buffer::default();
        let srq = qp.srq.and_then(|srq| objects.srqs.get_mut(srq).ok());
        if srq.is_some_and(|srq| srq.queue.pop(&mut held)) {
            let flushed = WorkCompletion::new(held.id, WcStatus::Flushed, WcOpcode::Receive, 0, qp.number);
            qp.complete_receive(flushed, objects);
        }
    }
}
