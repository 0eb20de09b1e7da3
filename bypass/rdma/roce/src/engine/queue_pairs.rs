//! Queue pairs: creation, states, and posted requests.

use super::{Engine, FIRST_QP, INDEX_BITS, MAX_INLINE, PORT};
use crate::qp::requester::Requester;
use crate::qp::responder::Responder;
use crate::qp::{Qp, Service};
use crate::queues::RecvQueue;
use crate::table::require;
use linerate_rdma_provider::{
    Access, AsyncEvent, Handle, PostError, QpCap, QpInitAttr, QpState, RecvWr, SendWr, Transition,
};
use std::io;

impl Engine {
    pub(crate) fn create_qp(
        &mut self,
        pd: Handle,
        attr: &QpInitAttr,
        service: Service,
    ) -> io::Result<(Handle, u32, QpCap)> {
        let QpInitAttr { send_cq, recv_cq, srq, cap } = *attr;
        let cap = match srq {
            Some(_) => QpCap { receives: 0, recv_sges: 0, ..cap },
            None => cap,
        };
        let is_valid = cap.sends.max(cap.receives) <= self.limits.qp_wrs
            && cap.send_sges.max(cap.recv_sges) <= self.limits.sges
            && cap.inline <= MAX_INLINE;
        require(is_valid, libc::EINVAL)?;
        require(self.qps.len() < self.limits.qps as usize, libc::ENOMEM)?;
        let (domain, pd) = (pd, self.base_pd(pd)?);
        let objects = &mut self.objects;
        objects.completions.cqs.get(send_cq)?;
        objects.completions.cqs.get(recv_cq)?;
        let receives = RecvQueue::new(cap.receives, cap.recv_sges);
        let buffer_of = match srq {
            Some(srq) => {
                let srq = objects.srqs.get_mut(srq)?;
                srq.users += 1;
                &srq.queue
            }
            None => &receives,
        };
        let responder = Responder::new(buffer_of);
        for cq in [send_cq, recv_cq] {
            objects.completions.cqs.get_mut(cq)?.users += 1;
        }
        self.hold_pd(domain)?;
        let handle = self.qps.add(Qp {
            handle: Handle(0),
            number: 0,
            service,
            pd,
            domain,
            send_cq,
            recv_cq,
            srq,
            cap,
            state: QpState::Reset,
            access: Access::default(),
            q_key: 0,
            path: None,
            peer: 0,
            mtu: self.mtu.bytes() as usize,
            receives,
            requester: Requester::new(cap),
            responder,
            rate: None,
            due: None,
            is_paused: false,
            notified: None,
            is_queued: false,
            armed: None,
        });
        self.generation = self.generation.wrapping_add(1) & 0xff;
        let qp = self.qps.get_mut(handle)?;
        let index = (handle.0 & ((1 << INDEX_BITS) - 1)) as u32;
        (qp.handle, qp.number) = (handle, self.generation << INDEX_BITS | (index + FIRST_QP));
        Ok((handle, qp.number, cap))
    }

    pub(crate) fn destroy_qp(&mut self, handle: Handle) -> io::Result<()> {
        // While a window is bound, the queue pair is busy.
        self.qps.get(handle)?;
        require(!self.objects.memory.is_bound(handle), libc::EBUSY)?;
        let mut qp = self.qps.remove(handle)?;
        qp.reset(&mut self.objects);
        for cq in [qp.send_cq, qp.recv_cq] {
            self.objects.completions.cqs.get_mut(cq)?.users -= 1;
        }
        if let Some(srq) = qp.srq {
            self.objects.srqs.get_mut(srq)?.users -= 1;
        }
        self.objects.completions.events.retain(|event| match *event {
            AsyncEvent::QpFatal(of)
            | AsyncEvent::QpRequestError(of)
            | AsyncEvent::QpAccessError(of)
            | AsyncEvent::CommEstablished(of)
            | AsyncEvent::LastWqeReached(of) => of != handle,
            _ => true,
        });
        self.release_pd(qp.domain);
        Ok(())
    }

    /// Performs the transitions that Linux permits (IBA 10.3.1; `ib_modify_qp_is_ok`).
    pub(crate) fn modify_qp(&mut self, handle: Handle, transition: &Transition) -> io::Result<()> {
        use QpState::{Init, Reset, Rtr, Rts};
        let is_psn = |psn: u32| require(psn < 1 << 24, libc::EINVAL);
        let is_port = |port, partition| require(port == PORT && partition == 0, libc::EINVAL);
        match *transition {
            Transition::Init { port, partition, access } => {
                is_port(port, partition)?;
                let qp = self.qps.get_mut(handle)?;
                qp.enter(&[Reset, Init], Service::Rc, Init)?;
                qp.access = access;
            }
            Transition::Rtr { mtu, qp: peer, psn, responder_resources, min_rnr_timer, path } => {
                is_psn(psn)?;
                let is_valid = mtu <= self.mtu
                    && peer < 1 << 24
                    && responder_resources <= self.limits.responder_resources
                    && min_rnr_timer < 32;
                require(is_valid, libc::EINVAL)?;
                let path = self.path(&path)?;
                let qp = self.qps.get_mut(handle)?;
                qp.enter(&[Init], Service::Rc, Rtr)?;
                (qp.path, qp.peer, qp.mtu) = (Some(path), peer, mtu.bytes() as usize);
                qp.responder.start(psn, responder_resources, min_rnr_timer);
            }
            Transition::Rts { psn, timeout, retries, rnr_retries, initiator_depth } => {
                is_psn(psn)?;
                let is_valid =
                    timeout < 32 && retries < 8 && rnr_retries < 8 && initiator_depth <= self.limits.initiator_depth;
                require(is_valid, libc::EINVAL)?;
                let qp = self.qps.get_mut(handle)?;
                qp.enter(&[Rtr], Service::Rc, Rts)?;
                qp.requester.start(psn, timeout, retries, rnr_retries, initiator_depth);
            }
            Transition::InitUd { port, partition, key } => {
                is_port(port, partition)?;
                let qp = self.qps.get_mut(handle)?;
                qp.enter(&[Reset, Init], Service::Ud, Init)?;
                qp.q_key = key;
            }
            Transition::RtrUd => self.qps.get_mut(handle)?.enter(&[Init], Service::Ud, Rtr)?,
            Transition::RtsUd { psn } => {
                is_psn(psn)?;
                let qp = self.qps.get_mut(handle)?;
                qp.enter(&[Rtr], Service::Ud, Rts)?;
                qp.requester.start(psn, 0, 0, 0, 0);
            }
            Transition::Error => {
                let qp = self.qps.get_mut(handle)?;
                require(qp.state != Reset, libc::EINVAL)?;
                qp.fail(None, None, &mut self.objects);
            }
            Transition::Reset => {
                let qp = self.qps.get_mut(handle)?;
                qp.reset(&mut self.objects);
                self.objects.memory.unbind_all(handle);
            }
        }
        self.settle(handle);
        Ok(())
    }

    pub(crate) fn qp(&self, handle: Handle) -> io::Result<&Qp> {
        self.qps.get(handle)
    }

    /// # Safety
    /// The elements of inline requests are memory of the caller.
    pub(crate) unsafe fn post_send(&mut self, handle: Handle, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        let qp = self.qps.get_mut(handle).map_err(|error| PostError { at: 0, error })?;
        // SAFETY: guaranteed by the caller.
        let posted = unsafe { qp.post_send(requests, &mut self.objects) };
        // A request has no deadline before it is sent.
        super::queue(qp, &mut self.queued);
        self.fail_overrun();
        posted
    }

    pub(crate) fn post_recv(&mut self, handle: Handle, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        let failed = |error| PostError { at: 0, error };
        let qp = self.qps.get_mut(handle).map_err(failed)?;
        require(qp.srq.is_none() && qp.state != QpState::Reset, libc::EINVAL).map_err(failed)?;
        let posted = qp.receives.post(requests);
        if qp.state == QpState::Error {
            qp.flush_buffers(&mut self.objects);
        }
        posted
    }
}
