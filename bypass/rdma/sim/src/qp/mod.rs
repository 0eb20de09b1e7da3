//! Queue pairs: states and posted requests.

pub(crate) mod datagrams;
mod deliver;
mod execute;

use crate::completion::QueueSlot;
use crate::faults::Call;
use crate::memory::read_inline;
use crate::world::{World, require};
use linerate_rdma_provider::{
    Access, AsyncEvent, Handle, Mtu, Operation, PostError, QpAttr, QpCap, QpInitAttr, QpState, RecvWr, SendFlags,
    SendWr, Sge, Transition, WcOpcode, WcStatus, WorkCompletion,
};
use std::collections::VecDeque;
use std::io;

/// Entries of a port's P_Key table, all different.
pub(crate) const PKEYS: u16 = 2;

/// Posted buffer.
#[derive(Debug, Clone)]
pub(super) struct Buffer {
    pub id: u64,
    pub sges: Vec<Sge>,
    /// Time from which the device sees it.
    pub from: u64,
}

/// Posted request without a completion.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub id: u64,
    /// Sequence number among the requests of the queue pair.
    pub sequence: u64,
    pub sges: Vec<Sge>,
    pub inline: Option<Vec<u8>>,
    pub operation: Operation,
    pub flags: SendFlags,
    /// Execution was attempted.
    pub is_tried: bool,
    /// Response that has not arrived yet.
    pub answer: Option<Answer>,
}

/// Response to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// Executed.
    Done(WcStatus),
    /// Accepted READ. The memory is read when the response is sent, possibly after later requests were executed:
    /// without a fence, requests are not ordered after a READ (IBA 10.8.3.3).
    ReadDue,
    /// Old value of an atomic operation.
    Was(u64),
}

impl Request {
    /// Returns true if the response carries data: the peer limits the number of such requests (IBA 9.7.4.1.6).
    pub fn fetches(&self) -> bool {
        matches!(self.operation, Operation::Read { .. }) || self.is_atomic()
    }

    pub fn is_atomic(&self) -> bool {
        matches!(self.operation, Operation::FetchAdd { .. } | Operation::CompareSwap { .. })
    }

    pub fn is_local(&self) -> bool {
        matches!(self.operation, Operation::Bind { .. } | Operation::InvalidateLocal(_))
    }

    pub fn opcode(&self) -> WcOpcode {
        self.operation.wc_opcode()
    }

    pub fn len(&self) -> u64 {
        let sges = || self.sges.iter().map(|sge| u64::from(sge.len)).sum();
        self.inline.as_ref().map_or_else(sges, |bytes| bytes.len() as u64)
    }
}

/// Attributes from `Rtr` on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Receiving {
    pub mtu: Mtu,
    pub qp: u32,
    pub psn: u32,
    pub responder_resources: u8,
    pub gid: [u8; 16],
}

/// Attributes from `Rts` on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sending {
    pub psn: u32,
    pub timeout: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub initiator_depth: u8,
}

pub(super) struct Pair {
    pub pd: Handle,
    /// Parent domain, if it was created in one.
    pub parent: Option<Handle>,
    pub config: QpInitAttr,
    pub number: u32,
    /// Port and P_Key index, from `Init` on.
    pub port: u8,
    pub partition: u16,
    /// Traffic class and service level, from `Rtr` on.
    pub classes: (u8, u8),
    pub state: QpState,
    /// Rights of the peer.
    pub access: Access,
    pub receiving: Option<Receiving>,
    pub sending: Option<Sending>,
    /// Requests without a completion. The first `launched` were executed and wait for their responses.
    pub sends: VecDeque<Request>,
    pub launched: usize,
    /// Numbers of posted requests and of requests whose slots are free again. The difference occupies the send queue.
    pub posted: u64,
    pub retired: u64,
    pub receives: VecDeque<Buffer>,
    /// Used slots of the receive queue: posted buffers and unpolled completions.
    pub receives_held: u32,
    /// A request failed. Later requests are not executed.
    pub is_stopped: bool,
    /// Time-out of the oldest request.
    pub deadline: Option<u64>,
    /// Number of times that the next request found no buffer, and the time of its retry.
    pub not_ready: u8,
    pub not_ready_until: u64,
    /// Last-WQE-reached and communication-established events were generated.
    pub is_last_reported: bool,
    pub is_established_reported: bool,
    /// Sending is not yet permitted: over iWARP the responder of the connection waits for the first message (RFC 5044
    /// §7.1.2).
    pub awaits_first_message: bool,
    /// Q_Key of a UD queue pair.
    pub datagrams: Option<u32>,
    /// Requests to fail: the number of successful ones before, and the status.
    pub faults: Vec<(u64, WcStatus)>,
}

impl Pair {
    pub fn uses(&self, cq: Handle) -> bool {
        self.config.send_cq == cq || self.config.recv_cq == cq
    }

    /// Returns true if requests of the peer are answered.
    pub fn receives(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts)
    }

    /// Returns the number of READs and atomic operations that wait for responses.
    pub fn reads_outstanding(&self) -> usize {
        self.sends.iter().take(self.launched).filter(|request| request.fetches()).count()
    }
}

impl World {
    pub fn create_qp(&mut self, device: usize, pd: Handle, config: &QpInitAttr) -> io::Result<(Handle, u32, QpCap)> {
        self.enter(device, Call::CreatePair)?;
        self.handles.check(&self.pds, device, pd)?;
        self.handles.check(&self.cqs, device, config.send_cq)?;
        self.handles.check(&self.cqs, device, config.recv_cq)?;
        if let Some(srq) = config.srq {
            self.handles.check(&self.srq, device, srq)?;
        }
        let cap = self.devices[device].grant(&config.cap, config.srq.is_some())?;
        let limit = self.devices[device].config.limits.qps;
        require(self.qps.count(Some(device)) < limit as usize, libc::ENOMEM)?;
        let number = self.devices[device].free_numbers.pop().unwrap_or_else(|| {
            let number = self.next_number;
            self.next_number += 1 + self.random.u32(0..4);
            number
        });
        let base = self.base_pd(pd);
        let qp = Pair {
            pd: base,
            parent: (base != pd).then_some(pd),
            config: QpInitAttr { cap, ..*config },
            number,
            port: 1,
            partition: 0,
            classes: (0, 0),
            state: QpState::Reset,
            access: Access::default(),
            receiving: None,
            sending: None,
            sends: VecDeque::new(),
            launched: 0,
            posted: 0,
            retired: 0,
            receives: VecDeque::new(),
            receives_held: 0,
            is_stopped: false,
            deadline: None,
            not_ready: 0,
            not_ready_until: 0,
            is_last_reported: false,
            is_established_reported: false,
            awaits_first_message: false,
            datagrams: None,
            faults: Vec::new(),
        };
        let handle = self.handles.add(&mut self.qps, device, qp);
        self.numbers.insert(number, handle);
        self.counters.entry(number).or_default();
        Ok((handle, number, cap))
    }

    /// Discards posted requests without completions. While a window is bound, the queue pair is busy: Soft-RoCE waits
    /// for that window, for most of a minute.
    pub fn destroy_qp(&mut self, device: usize, qp: Handle) -> io::Result<()> {
        self.handles.check(&self.qps, device, qp)?;
        let is_bound = self.mws.values().any(|mw| mw.bound.is_some_and(|bound| bound.qp == qp));
        require(!is_bound, libc::EBUSY)?;
        self.forget_completions(qp);
        self.forget_shared(qp);
        self.sever(qp);
        let object = self.handles.remove(&mut self.qps, qp);
        self.forget_pair(device, qp, object.number);
        Ok(())
    }

    /// Removes references to a queue pair.
    pub fn forget_pair(&mut self, device: usize, qp: Handle, number: u32) {
        self.numbers.remove(&number);
        if self.devices[device].config.recycles_numbers {
            self.devices[device].free_numbers.push(number);
        }
        self.active.remove(&qp.0);
        for mw in self.mws.values_mut() {
            mw.bound = mw.bound.filter(|bound| bound.qp != qp);
        }
        self.devices[device].events.retain(|event| match *event {
            AsyncEvent::QpFatal(of)
            | AsyncEvent::QpRequestError(of)
            | AsyncEvent::QpAccessError(of)
            | AsyncEvent::CommEstablished(of)
            | AsyncEvent::LastWqeReached(of) => of != qp,
            _ => true,
        });
    }

    /// Performs the transitions that Linux permits (IBA 10.3.1; `ib_modify_qp_is_ok`, which has none from `Reset` to
    /// `Error`).
    pub fn modify_qp(&mut self, device: usize, qp: Handle, transition: &Transition) -> io::Result<()> {
        self.enter(device, Call::Modify)?;
        self.handles.check(&self.qps, device, qp)?;
        require(self.is_of_its_kind(qp, transition), libc::EINVAL)?;
        let config = &self.devices[device].config;
        let gids = self.devices[device].gids(1).len();
        let has_port = |port| self.devices[device].has_port(port);
        let object = &mut self.qps[qp];
        match *transition {
            Transition::Init { port, partition, access } => {
                require(matches!(object.state, QpState::Reset | QpState::Init), libc::EINVAL)?;
                require(has_port(port) && partition < PKEYS, libc::EINVAL)?;
                (object.state, object.port, object.partition) = (QpState::Init, port, partition);
                object.access = access;
            }
            Transition::Rtr { mtu, qp, psn, responder_resources, min_rnr_timer, path } => {
                let is_valid = object.state == QpState::Init
                    && mtu <= config.mtu
                    && psn < 1 << 24
                    && qp < 1 << 24
                    && responder_resources <= config.limits.responder_resources
                    && min_rnr_timer < 32
                    && path.port == object.port
                    && usize::from(path.source) < gids;
                require(is_valid, libc::EINVAL)?;
                object.state = QpState::Rtr;
                object.classes = (path.traffic_class, path.service_level);
                object.receiving = Some(Receiving { mtu, qp, psn, responder_resources, gid: path.gid });
            }
            Transition::Rts { psn, timeout, retries, rnr_retries, initiator_depth } => {
                let is_valid = object.state == QpState::Rtr
                    && psn < 1 << 24
                    && timeout < 32
                    && retries < 8
                    && rnr_retries < 8
                    && initiator_depth <= config.limits.initiator_depth;
                require(is_valid, libc::EINVAL)?;
                object.state = QpState::Rts;
                object.sending = Some(Sending { psn, timeout, retries, rnr_retries, initiator_depth });
            }
            Transition::InitUd { .. } | Transition::RtrUd | Transition::RtsUd { .. } => {
                self.modify_datagrams(qp, transition)?;
            }
            Transition::Error => {
                require(object.state != QpState::Reset, libc::EINVAL)?;
                self.break_pair(qp, None);
            }
            Transition::Reset => self.reset(qp),
        }
        Ok(())
    }

    /// Discards posted requests without completions (IBA 10.3.1.1).
    fn reset(&mut self, qp: Handle) {
        self.forget_completions(qp);
        self.forget_shared(qp);
        self.sever(qp);
        self.active.remove(&qp.0);
        let keeps_buffers = self.devices[self.qps.device(qp)].config.keeps_reset_buffers;
        let object = &mut self.qps[qp];
        object.state = QpState::Reset;
        object.access = Access::default();
        (object.receiving, object.sending) = (None, None);
        object.sends.clear();
        object.launched = 0;
        object.retired = object.posted;
        if keeps_buffers {
            object.receives.iter_mut().for_each(|buffer| (buffer.id, buffer.sges) = (0, Vec::new()));
        } else {
            object.receives.clear();
        }
        object.receives_held = object.receives.len() as u32;
        object.is_stopped = false;
        object.deadline = None;
        object.not_ready = 0;
        object.not_ready_until = 0;
        object.is_last_reported = false;
        object.is_established_reported = false;
        object.awaits_first_message = false;
    }

    /// Moves a queue pair to `Error`, which flushes posted requests, with an event unless the program requested it.
    pub fn break_pair(&mut self, qp: Handle, event: Option<AsyncEvent>) {
        let object = &mut self.qps[qp];
        if matches!(object.state, QpState::Error | QpState::Reset) {
            return;
        }
        let received = object.state != QpState::Init;
        object.state = QpState::Error;
        object.deadline = None;
        if received {
            self.hold_shared(qp);
        }
        self.wake(qp);
        if let Some(event) = event {
            let device = self.qps.device(qp);
            self.devices[device].events.push(event);
        }
        self.sever(qp);
    }

    pub fn query_qp(&self, device: usize, qp: Handle) -> io::Result<QpAttr> {
        self.handles.check(&self.qps, device, qp)?;
        let qp = &self.qps[qp];
        Ok(QpAttr { state: qp.state, cap: qp.config.cap })
    }

    /// # Safety
    /// The elements of inline requests are memory of the caller.
    pub unsafe fn post_send(&mut self, device: usize, qp: Handle, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        let failed = |at| move |error| PostError { at, error };
        if requests.is_empty() {
            return Ok(());
        }
        self.enter(device, Call::PostSend).map_err(failed(0))?;
        self.handles.check(&self.qps, device, qp).map_err(failed(0))?;
        let number = self.qps[qp].number;
        self.counters.entry(number).or_default().request_posts += 1;
        for (at, request) in requests.iter().enumerate() {
            self.check_send(device, qp, request).map_err(failed(at))?;
            // SAFETY: guaranteed by the caller.
            let inline = request.flags.is_inline().then(|| unsafe { read_inline(request.sges) });
            let object = &mut self.qps[qp];
            object.sends.push_back(Request {
                id: request.id,
                sequence: object.posted,
                sges: request.sges.to_vec(),
                inline,
                operation: request.operation,
                flags: request.flags,
                is_tried: false,
                answer: None,
            });
            object.posted += 1;
            self.counters.entry(number).or_default().requests += 1;
            self.wake(qp);
        }
        Ok(())
    }

    /// Performs the checks at posting (IBA 11.4.1.1). All other errors are reported by the completion.
    fn check_send(&self, device: usize, qp: Handle, request: &SendWr<'_>) -> io::Result<()> {
        let (limits, is_iwarp) = (&self.devices[device].config.limits, self.devices[device].is_iwarp());
        let object = &self.qps[qp];
        let cap = &object.config.cap;
        require(matches!(object.state, QpState::Rts | QpState::Error), libc::EINVAL)?;
        require(request.sges.len() <= cap.send_sges as usize, libc::EINVAL)?;
        let is_datagram = matches!(request.operation, Operation::Datagram { .. });
        require(is_datagram == object.datagrams.is_some(), libc::EINVAL)?;
        let len: u64 = request.sges.iter().map(|sge| u64::from(sge.len)).sum();
        require(!request.flags.is_inline() || len <= u64::from(cap.inline), libc::EINVAL)?;
        let is_possible = match request.operation {
            Operation::Send | Operation::Write { .. } => true,
            Operation::WriteImmediate { .. } => !is_iwarp,
            Operation::Read { .. } => !request.flags.is_inline() && request.sges.len() <= limits.read_sges as usize,
            Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => {
                !request.flags.is_inline() && limits.atomics.any() && !is_iwarp
            }
            Operation::Bind { mw, mr, .. } => {
                self.handles.check(&self.mws, device, mw)?;
                self.handles.check(&self.mrs, device, mr)?;
                request.sges.is_empty()
            }
            Operation::InvalidateLocal(_) => request.sges.is_empty(),
            Operation::Datagram { address, qp, .. } => {
                self.handles.check(&self.addresses, device, address)?;
                qp < 1 << 24
            }
        };
        require(is_possible, libc::EINVAL)?;
        require(object.posted - object.retired < u64::from(cap.sends), libc::ENOMEM)
    }

    pub fn post_recv(&mut self, device: usize, qp: Handle, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        let failed = |at| move |error| PostError { at, error };
        if requests.is_empty() {
            return Ok(());
        }
        self.enter(device, Call::PostReceive).map_err(failed(0))?;
        self.handles.check(&self.qps, device, qp).map_err(failed(0))?;
        let from = self.now + self.devices[device].config.post_delay;
        for (at, request) in requests.iter().enumerate() {
            let object = &mut self.qps[qp];
            let cap = &object.config.cap;
            let is_valid = object.config.srq.is_none()
                && object.state != QpState::Reset
                && request.sges.len() <= cap.recv_sges as usize;
            require(is_valid, libc::EINVAL).map_err(failed(at))?;
            require(object.receives_held < cap.receives, libc::ENOMEM).map_err(failed(at))?;
            object.receives.push_back(Buffer { id: request.id, sges: request.sges.to_vec(), from });
            object.receives_held += 1;
            self.counters.entry(object.number).or_default().buffers += 1;
        }
        self.wake(qp);
        Ok(())
    }

    pub fn post_srq_recv(&mut self, device: usize, srq: Handle, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        let failed = |at| move |error| PostError { at, error };
        if requests.is_empty() {
            return Ok(());
        }
        self.enter(device, Call::PostShared).map_err(failed(0))?;
        self.handles.check(&self.srq, device, srq).map_err(failed(0))?;
        let from = self.now + self.devices[device].config.post_delay;
        let object = &mut self.srq[srq];
        for (at, request) in requests.iter().enumerate() {
            require(request.sges.len() <= object.sges as usize, libc::EINVAL).map_err(failed(at))?;
            require(object.held < object.capacity, libc::ENOMEM).map_err(failed(at))?;
            object.buffers.push_back(Buffer { id: request.id, sges: request.sges.to_vec(), from });
            object.held += 1;
        }
        Ok(())
    }

    /// Completes the oldest request. A failed one moves the queue pair to `Error`.
    pub fn end_send(&mut self, qp: Handle, status: WcStatus) {
        let object = &mut self.qps[qp];
        let Some(request) = object.sends.pop_front() else { return };
        object.launched = object.launched.saturating_sub(1);
        object.deadline = None;
        if request.flags.is_signalled() || status != WcStatus::Success {
            let (cq, number) = (object.config.send_cq, object.number);
            let len = request.len() as u32;
            let completion = WorkCompletion::new(request.id, status, request.opcode(), len, number);
            // The code of mlx5 for this error.
            let vendor_error = if status == WcStatus::RetryExceeded { 0x81 } else { 0 };
            let completion = WorkCompletion { vendor_error, ..completion };
            self.complete(cq, completion, QueueSlot::Send(qp, request.sequence));
        }
        if status != WcStatus::Success {
            self.break_pair(qp, None);
        }
    }

    /// Returns the peer of a queue pair, whether or not its packets are accepted there.
    pub fn peer_of(&self, qp: Handle) -> Option<Handle> {
        let receiving = self.qps[qp].receiving?;
        let peer = *self.numbers.get(&receiving.qp)?;
        self.devices[self.qps.device(peer)].has_gid(self.qps[peer].port, receiving.gid).then_some(peer)
    }

    /// Returns the GID index that connections of a port use: for RoCE, the GID of version 2.
    pub fn source_of(&self, device: usize, port: u8) -> u8 {
        let device = &self.devices[device];
        let raw = device.gid(port);
        device.gids(port).iter().rfind(|gid| gid.raw == raw).map_or(0, |gid| gid.index)
    }
}
