//! Queue pairs: their states, and what is posted to them.

use super::completion::Place;
use super::device::raw_gid;
use super::faults::Call;
use super::memory::read_inline;
use super::world::{World, require};
use crate::calls::{
    Access, AsyncEvent, Capacities, Completed, Handle, Mtu, Operation, PostError, QueuePairAttributes, QueuePairConfig,
    QueuePairState, ReceiveRequest, Segment, SendFlags, SendRequest, Status, Transition, WorkCompletion,
};
use std::collections::VecDeque;
use std::io;

/// A posted buffer.
#[derive(Debug, Clone)]
pub(super) struct Buffer {
    pub id: u64,
    pub segments: Vec<Segment>,
}

/// A posted request that was not completed.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub id: u64,
    /// Its number among all that were posted to the queue pair.
    pub sequence: u64,
    pub segments: Vec<Segment>,
    /// The bytes, if it is sent inline.
    pub inline: Option<Vec<u8>>,
    pub operation: Operation,
    pub flags: SendFlags,
    /// Whether it was tried.
    pub is_tried: bool,
    /// How it ended, when it was executed and the queue pair has not heard of it yet.
    pub answer: Option<Answer>,
}

/// What comes back for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// It was executed.
    Done(Status),
    /// A READ that the peer has accepted: its memory is read when the answer is sent, which may be after later requests were
    /// executed (IBA 10.8.3.3: what is after a READ is ordered by a fence only).
    ReadDue,
    /// An atomic operation was executed, and the peer's number was this.
    Was(u64),
}

impl Request {
    /// Whether its answer has bytes for its segments: the peer answers only so many of these at a time (IBA 9.7.4.1.6).
    pub fn fetches(&self) -> bool {
        matches!(self.operation, Operation::Read { .. }) || self.is_atomic()
    }

    pub fn is_atomic(&self) -> bool {
        matches!(self.operation, Operation::FetchAdd { .. } | Operation::CompareSwap { .. })
    }

    pub fn is_local(&self) -> bool {
        matches!(self.operation, Operation::Bind { .. } | Operation::InvalidateLocal(_))
    }

    pub fn what(&self) -> Completed {
        match self.operation {
            Operation::Send
            | Operation::SendImmediate(_)
            | Operation::SendInvalidate(_)
            | Operation::Datagram { .. } => Completed::Send,
            Operation::Write { .. } | Operation::WriteImmediate { .. } => Completed::Write,
            Operation::Read { .. } => Completed::Read,
            Operation::FetchAdd { .. } => Completed::FetchAdd,
            Operation::CompareSwap { .. } => Completed::CompareSwap,
            Operation::Bind { .. } => Completed::Bind,
            Operation::InvalidateLocal(_) => Completed::Invalidate,
        }
    }

    pub fn len(&self) -> u64 {
        let segments = || self.segments.iter().map(|segment| u64::from(segment.len)).sum();
        self.inline.as_ref().map_or_else(segments, |bytes| bytes.len() as u64)
    }
}

/// What a queue pair knows from `ReadyToReceive` on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Receiving {
    pub mtu: Mtu,
    pub pair: u32,
    pub first_packet: u32,
    pub reads_answered: u8,
    pub gid: [u8; 16],
}

/// What it knows from `ReadyToSend` on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sending {
    pub first_packet: u32,
    pub timeout: u8,
    pub retries: u8,
    pub not_ready_retries: u8,
    pub reads_asked: u8,
}

pub(super) struct Pair {
    pub domain: Handle,
    pub config: QueuePairConfig,
    pub number: u32,
    pub state: QueuePairState,
    /// What the peer may do at all.
    pub access: Access,
    pub receiving: Option<Receiving>,
    pub sending: Option<Sending>,
    /// Requests not completed; of these the first `launched` were executed and wait to be answered.
    pub sends: VecDeque<Request>,
    pub launched: usize,
    /// Requests posted, and those whose places are free again: the difference is what the send queue holds.
    pub posted: u64,
    pub retired: u64,
    pub receives: VecDeque<Buffer>,
    /// Places of the receive queue taken: by buffers, and by completions of them that were not polled.
    pub receives_held: u32,
    /// Whether a request failed, so that none after it is executed.
    pub is_stopped: bool,
    /// When it is too late for the peer to answer.
    pub deadline: Option<u64>,
    /// How often the next request found no buffer, and when it is tried again.
    pub not_ready: u8,
    pub not_ready_until: u64,
    /// Whether the last buffer of a shared queue was reported, and the first message.
    pub is_last_told: bool,
    pub is_established_told: bool,
    /// Whether it may not send yet: over iWARP the one that was connected to hears the other first (RFC 5044 7.1.2).
    pub hears_first: bool,
    /// Whether it is one of datagrams: its Q_Key.
    pub datagrams: Option<u32>,
    /// Requests to fail: how many are tried before, and how.
    pub faults: Vec<(u64, Status)>,
}

impl Pair {
    pub fn uses(&self, queue: Handle) -> bool {
        self.config.send_queue == queue || self.config.receive_queue == queue
    }

    /// Whether requests of the peer are answered.
    pub fn receives(&self) -> bool {
        matches!(self.state, QueuePairState::ReadyToReceive | QueuePairState::ReadyToSend)
    }

    /// READs and atomic operations that wait for their answers.
    pub fn reads_under_way(&self) -> usize {
        self.sends.iter().take(self.launched).filter(|request| request.fetches()).count()
    }
}

impl World {
    pub fn create_pair(
        &mut self,
        device: usize,
        domain: Handle,
        config: &QueuePairConfig,
    ) -> io::Result<(Handle, u32, Capacities)> {
        self.enter(device, Call::CreatePair)?;
        self.handles.check(&self.domains, device, domain)?;
        self.handles.check(&self.queues, device, config.send_queue)?;
        self.handles.check(&self.queues, device, config.receive_queue)?;
        if let Some(shared) = config.shared {
            self.handles.check(&self.shared, device, shared)?;
        }
        let capacities = self.devices[device].grant(&config.capacities, config.shared.is_some())?;
        let limit = self.devices[device].config.limits.pairs;
        require(self.pairs.count(Some(device)) < limit as usize, libc::ENOMEM)?;
        let number = self.next_number;
        self.next_number += 1 + self.random.u32(0..4);
        let pair = Pair {
            domain,
            config: QueuePairConfig { capacities, ..*config },
            number,
            state: QueuePairState::Reset,
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
            is_last_told: false,
            is_established_told: false,
            hears_first: false,
            datagrams: None,
            faults: Vec::new(),
        };
        let handle = self.handles.add(&mut self.pairs, device, pair);
        self.numbers.insert(number, handle);
        self.counters.insert(number, Default::default());
        Ok((handle, number, capacities))
    }

    /// What was posted is gone without a completion. While a window is bound on it, it is busy: Linux' Soft-RoCE waits for that
    /// window, for most of a minute.
    pub fn destroy_pair(&mut self, device: usize, pair: Handle) -> io::Result<()> {
        if self.is_vanished(device) {
            return Ok(());
        }
        self.handles.check(&self.pairs, device, pair)?;
        let is_bound = self.windows.values().any(|window| window.bound.is_some_and(|bound| bound.pair == pair));
        require(!is_bound, libc::EBUSY)?;
        self.forget_completions(pair);
        self.forget_shared(pair);
        self.sever(pair);
        let object = self.handles.remove(&mut self.pairs, pair);
        self.forget_pair(device, pair, object.number);
        Ok(())
    }

    /// Removes what names a queue pair that is gone.
    pub fn forget_pair(&mut self, device: usize, pair: Handle, number: u32) {
        self.numbers.remove(&number);
        self.active.remove(&pair.0);
        for window in self.windows.values_mut() {
            window.bound = window.bound.filter(|bound| bound.pair != pair);
        }
        self.devices[device].events.retain(|event| match *event {
            AsyncEvent::PairFatal(of)
            | AsyncEvent::PairRequest(of)
            | AsyncEvent::PairAccess(of)
            | AsyncEvent::Established(of)
            | AsyncEvent::LastBuffer(of) => of != pair,
            _ => true,
        });
    }

    /// The transitions that Linux permits (IBA 10.3.1; `ib_modify_qp_is_ok`, which has none from `Reset` to `Error`).
    pub fn modify(&mut self, device: usize, pair: Handle, transition: &Transition) -> io::Result<()> {
        self.enter(device, Call::Modify)?;
        self.handles.check(&self.pairs, device, pair)?;
        require(self.is_of_its_kind(pair, transition), libc::EINVAL)?;
        let config = &self.devices[device].config;
        let gids = self.devices[device].gids().len();
        let object = &mut self.pairs[pair];
        match *transition {
            Transition::Init { port, partition, access } => {
                require(matches!(object.state, QueuePairState::Reset | QueuePairState::Init), libc::EINVAL)?;
                require(port == 1 && partition == 0, libc::EINVAL)?;
                object.state = QueuePairState::Init;
                object.access = access;
            }
            Transition::ReadyToReceive { mtu, pair, first_packet, reads_answered, not_ready_timer, path } => {
                let is_valid = object.state == QueuePairState::Init
                    && mtu <= config.mtu
                    && first_packet < 1 << 24
                    && pair < 1 << 24
                    && reads_answered <= config.limits.reads_answered
                    && not_ready_timer < 32
                    && path.port == 1
                    && usize::from(path.source) < gids;
                require(is_valid, libc::EINVAL)?;
                object.state = QueuePairState::ReadyToReceive;
                object.receiving = Some(Receiving { mtu, pair, first_packet, reads_answered, gid: path.gid });
            }
            Transition::ReadyToSend { first_packet, timeout, retries, not_ready_retries, reads_asked } => {
                let is_valid = object.state == QueuePairState::ReadyToReceive
                    && first_packet < 1 << 24
                    && timeout < 32
                    && retries < 8
                    && not_ready_retries < 8
                    && reads_asked <= config.limits.reads_asked;
                require(is_valid, libc::EINVAL)?;
                object.state = QueuePairState::ReadyToSend;
                object.sending = Some(Sending { first_packet, timeout, retries, not_ready_retries, reads_asked });
            }
            Transition::InitDatagrams { .. } | Transition::ReceiveDatagrams | Transition::SendDatagrams { .. } => {
                self.modify_datagrams(pair, transition)?;
            }
            Transition::Error => {
                require(object.state != QueuePairState::Reset, libc::EINVAL)?;
                self.break_pair(pair, None);
            }
            Transition::Reset => self.reset(pair),
        }
        Ok(())
    }

    /// What was posted is gone without a completion (IBA 10.3.1.1).
    fn reset(&mut self, pair: Handle) {
        self.forget_completions(pair);
        self.forget_shared(pair);
        self.sever(pair);
        self.active.remove(&pair.0);
        let object = &mut self.pairs[pair];
        object.state = QueuePairState::Reset;
        object.access = Access::default();
        (object.receiving, object.sending) = (None, None);
        object.sends.clear();
        object.launched = 0;
        object.retired = object.posted;
        object.receives.clear();
        object.receives_held = 0;
        object.is_stopped = false;
        object.deadline = None;
        object.not_ready = 0;
        object.not_ready_until = 0;
        object.is_last_told = false;
        object.is_established_told = false;
        object.hears_first = false;
    }

    /// Brings a queue pair to `Error`, where all that is posted is flushed, and says so if nobody asked for it.
    pub fn break_pair(&mut self, pair: Handle, event: Option<AsyncEvent>) {
        let object = &mut self.pairs[pair];
        if matches!(object.state, QueuePairState::Error | QueuePairState::Reset) {
            return;
        }
        let received = object.state != QueuePairState::Init;
        object.state = QueuePairState::Error;
        object.deadline = None;
        if received {
            self.hold_shared(pair);
        }
        self.wake(pair);
        if let Some(event) = event {
            let device = self.pairs.device(pair);
            self.devices[device].events.push(event);
        }
        self.sever(pair);
    }

    pub fn query_pair(&self, device: usize, pair: Handle) -> io::Result<QueuePairAttributes> {
        require(!self.is_vanished(device), libc::EIO)?;
        self.handles.check(&self.pairs, device, pair)?;
        let pair = &self.pairs[pair];
        Ok(QueuePairAttributes { state: pair.state, capacities: pair.config.capacities })
    }

    /// # Safety
    /// The segments of requests that are sent inline are memory of the caller's.
    pub unsafe fn post_send(
        &mut self,
        device: usize,
        pair: Handle,
        requests: &[SendRequest<'_>],
    ) -> Result<(), PostError> {
        let failed = |at| move |error| PostError { at, error };
        if requests.is_empty() {
            return Ok(());
        }
        self.enter(device, Call::PostSend).map_err(failed(0))?;
        self.handles.check(&self.pairs, device, pair).map_err(failed(0))?;
        let number = self.pairs[pair].number;
        self.counters.entry(number).or_default().request_posts += 1;
        for (at, request) in requests.iter().enumerate() {
            self.check_send(device, pair, request).map_err(failed(at))?;
            // SAFETY: the caller says so.
            let inline = request.flags.inline.then(|| unsafe { read_inline(request.segments) });
            let object = &mut self.pairs[pair];
            object.sends.push_back(Request {
                id: request.id,
                sequence: object.posted,
                segments: request.segments.to_vec(),
                inline,
                operation: request.operation,
                flags: request.flags,
                is_tried: false,
                answer: None,
            });
            object.posted += 1;
            self.counters.entry(number).or_default().requests += 1;
            self.wake(pair);
        }
        Ok(())
    }

    /// What is found out before a request is taken (IBA 11.4.1.1): everything else is an error of its completion.
    fn check_send(&self, device: usize, pair: Handle, request: &SendRequest<'_>) -> io::Result<()> {
        let (limits, is_iwarp) = (&self.devices[device].config.limits, self.devices[device].is_iwarp());
        let object = &self.pairs[pair];
        let capacities = &object.config.capacities;
        require(matches!(object.state, QueuePairState::ReadyToSend | QueuePairState::Error), libc::EINVAL)?;
        require(request.segments.len() <= capacities.send_segments as usize, libc::EINVAL)?;
        let is_datagram = matches!(request.operation, Operation::Datagram { .. });
        require(is_datagram == object.datagrams.is_some(), libc::EINVAL)?;
        let len: u64 = request.segments.iter().map(|segment| u64::from(segment.len)).sum();
        require(!request.flags.inline || len <= u64::from(capacities.inline), libc::EINVAL)?;
        let is_possible = match request.operation {
            Operation::Send | Operation::Write { .. } | Operation::SendInvalidate(_) => true,
            Operation::SendImmediate(_) | Operation::WriteImmediate { .. } => !is_iwarp,
            Operation::Read { .. } => !request.flags.inline && request.segments.len() <= limits.read_segments as usize,
            Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => {
                !request.flags.inline && limits.atomics.any() && !is_iwarp
            }
            Operation::Bind { window, region, .. } => {
                self.handles.check(&self.windows, device, window)?;
                self.handles.check(&self.regions, device, region)?;
                request.segments.is_empty()
            }
            Operation::InvalidateLocal(_) => request.segments.is_empty(),
            Operation::Datagram { address, pair, .. } => {
                self.handles.check(&self.addresses, device, address)?;
                pair < 1 << 24
            }
        };
        require(is_possible, libc::EINVAL)?;
        require(object.posted - object.retired < u64::from(capacities.sends), libc::ENOMEM)
    }

    pub fn post_receive(
        &mut self,
        device: usize,
        pair: Handle,
        requests: &[ReceiveRequest<'_>],
    ) -> Result<(), PostError> {
        let failed = |at| move |error| PostError { at, error };
        if requests.is_empty() {
            return Ok(());
        }
        self.enter(device, Call::PostReceive).map_err(failed(0))?;
        self.handles.check(&self.pairs, device, pair).map_err(failed(0))?;
        for (at, request) in requests.iter().enumerate() {
            let object = &mut self.pairs[pair];
            let capacities = &object.config.capacities;
            let is_valid = object.config.shared.is_none()
                && object.state != QueuePairState::Reset
                && request.segments.len() <= capacities.receive_segments as usize;
            require(is_valid, libc::EINVAL).map_err(failed(at))?;
            require(object.receives_held < capacities.receives, libc::ENOMEM).map_err(failed(at))?;
            object.receives.push_back(Buffer { id: request.id, segments: request.segments.to_vec() });
            object.receives_held += 1;
            self.counters.entry(object.number).or_default().buffers += 1;
        }
        self.wake(pair);
        Ok(())
    }

    pub fn post_shared(
        &mut self,
        device: usize,
        shared: Handle,
        requests: &[ReceiveRequest<'_>],
    ) -> Result<(), PostError> {
        let failed = |at| move |error| PostError { at, error };
        if requests.is_empty() {
            return Ok(());
        }
        self.enter(device, Call::PostShared).map_err(failed(0))?;
        self.handles.check(&self.shared, device, shared).map_err(failed(0))?;
        let object = &mut self.shared[shared];
        for (at, request) in requests.iter().enumerate() {
            require(request.segments.len() <= object.segments as usize, libc::EINVAL).map_err(failed(at))?;
            require(object.held < object.capacity, libc::ENOMEM).map_err(failed(at))?;
            object.buffers.push_back(Buffer { id: request.id, segments: request.segments.to_vec() });
            object.held += 1;
        }
        Ok(())
    }

    /// Ends the oldest of a queue pair's requests. One that fails takes the queue pair to `Error`.
    pub fn end_send(&mut self, pair: Handle, status: Status) {
        let object = &mut self.pairs[pair];
        let Some(request) = object.sends.pop_front() else { return };
        object.launched = object.launched.saturating_sub(1);
        object.deadline = None;
        if request.flags.signalled || status != Status::Success {
            let (queue, number) = (object.config.send_queue, object.number);
            let completion = WorkCompletion {
                id: request.id,
                status,
                what: request.what(),
                len: request.len() as u32,
                pair: number,
                immediate: None,
                invalidated: None,
                source: 0,
                has_route: false,
            };
            self.complete(queue, completion, Place::Send(pair, request.sequence));
        }
        if status != Status::Success {
            self.break_pair(pair, None);
        }
    }

    /// The device and the queue pair that another one sends to, wherever its packets get to.
    pub fn peer_of(&self, pair: Handle) -> Option<Handle> {
        let receiving = self.pairs[pair].receiving?;
        let peer = *self.numbers.get(&receiving.pair)?;
        self.devices[self.pairs.device(peer)].has_gid(receiving.gid).then_some(peer)
    }

    /// The address of a device in the table of its port: version 2 of RoCE.
    pub fn source_of(&self, device: usize) -> u8 {
        let raw = raw_gid(self.devices[device].config.address);
        let gids = self.devices[device].gids();
        gids.iter().rfind(|gid| gid.raw == raw).map_or(0, |gid| gid.index)
    }
}
