//! Engine: the objects of a device, and the dispatch of packets, turns and timers to its queue pairs.

use crate::cm::Cm;
use crate::counters::Counters;
use crate::memory::Memory;
use crate::path::{Path, Port};
use crate::qp::datagrams::Address;
use crate::qp::requester::{MAX_MESSAGE, Requester};
use crate::qp::responder::Responder;
use crate::qp::{Objects, Qp, Sent, Service};
use crate::queues::{Completions, RecvQueue, Srq};
use crate::table::{Table, errno, require};
use crate::waker::Waker;
use crate::wire::{self, BTH, Bth, Deth, ICRC, Malformed, Received, opcode};
use linerate_rdma_provider::{
    AhAttr, AsyncEvent, AtomicCap, DeviceLimits, Gid, GidKind, Handle, LinkLayer, Mtu, Port as PortAttr, PortState,
    PostError, QpCap, QpInitAttr, QpState, RecvWr, SendWr, SrqInitAttr, Transition, TransportKind,
};
use linerate_service::time::Instant;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv6Addr};

/// Number of the only port.
const PORT: u8 = 1;
/// Lower bits of a queue pair number that are the index of the queue pair. The bits above are a generation, so that
/// packets for a destroyed queue pair do not reach the next one with its index.
const INDEX_BITS: u32 = 16;
/// Queue pair of the connection manager (IBA 3.5.10), and its Q_Key.
const QP1: u32 = 1;
const QP1_Q_KEY: u32 = 0x8001_0000;
/// Number of the first queue pair.
const FIRST_QP: u32 = 0x10;
/// Length of a management datagram.
const MAD: usize = 256;
/// Longest extension headers of a packet with payload: WRITE with immediate.
const MAX_EXTENSION: usize = 20;
const MAX_HEADERS: usize = 40 + 8;

/// Configuration of a device.
#[derive(Debug, Clone)]
pub struct Config {
    /// Seed of keys, sequence numbers and identifiers.
    pub seed: u64,
    /// MTU of the port: the longest IP packet in bytes.
    pub mtu: usize,
    /// Local addresses with their prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// Domain that objects belong to.
pub(crate) struct Pd {
    /// Protection and thread domain of a parent domain.
    parent_of: Option<(Handle, Handle)>,
    users: u32,
}

/// RoCEv2 device without input and output.
pub struct Engine {
    now: Instant,
    addresses: Vec<(IpAddr, u8)>,
    mtu: Mtu,
    limits: DeviceLimits,
    pub(crate) cm: Cm,
    pub(crate) pds: Table<Pd>,
    pub(crate) tds: Table<()>,
    qps: Table<Qp>,
    objects: Objects,
    generation: u32,
    /// Queue pairs with packets to send.
    queued: VecDeque<Handle>,
    /// Deadlines of queue pairs, at least one not after the deadline of each. An entry may be obsolete.
    timers: BinaryHeap<Reverse<(Instant, usize)>>,
}

/// Returns the largest path MTU of packets within `mtu` bytes of IP.
fn path_mtu(mtu: usize) -> Option<Mtu> {
    let room = mtu.saturating_sub(MAX_HEADERS + BTH + MAX_EXTENSION + ICRC);
    let sizes = [Mtu::Mtu4096, Mtu::Mtu2048, Mtu::Mtu1024, Mtu::Mtu512, Mtu::Mtu256];
    sizes.into_iter().find(|size| size.bytes() as usize <= room)
}

pub(crate) fn limits() -> DeviceLimits {
    DeviceLimits {
        transport: TransportKind::InfiniBand,
        firmware: env!("CARGO_PKG_VERSION").into(),
        vendor: 0,
        part: 0,
        ports: 1,
        mr_bytes: 1 << 40,
        mrs: 1 << 20,
        mws: 1 << 20,
        mw_type_2: true,
        pds: 1 << 16,
        qps: (1 << INDEX_BITS) - FIRST_QP,
        qp_wrs: 1 << 15,
        sges: 16,
        read_sges: 16,
        cqs: 1 << 16,
        cqes: 1 << 22,
        srqs: 1 << 16,
        srq_wrs: 1 << 20,
        srq_sges: 16,
        responder_resources: 16,
        initiator_depth: 16,
        atomics: AtomicCap::Device,
    }
}

/// Maximum inline data in bytes.
const MAX_INLINE: u32 = 512;

impl Engine {
    /// Creates a device.
    ///
    /// # Errors
    /// `EMSGSIZE` if the MTU is below the smallest path MTU; an error of `eventfd(2)`.
    pub fn new(config: &Config) -> io::Result<Self> {
        let mtu = path_mtu(config.mtu).ok_or_else(|| errno(libc::EMSGSIZE))?;
        let mut cm = Cm::new(config.seed);
        cm.set_addresses(&config.addresses, mtu, Instant::ZERO);
        let completions =
            Completions { cqs: Table::new(), channels: Table::new(), events: Waker::new()?, overrun: Vec::new() };
        Ok(Engine {
            now: Instant::ZERO,
            addresses: config.addresses.clone(),
            mtu,
            limits: limits(),
            cm,
            pds: Table::new(),
            tds: Table::new(),
            qps: Table::new(),
            objects: Objects {
                memory: Memory::new(config.seed),
                completions,
                srqs: Table::new(),
                addresses: Table::new(),
                counters: Counters::default(),
            },
            generation: (config.seed >> 8) as u32,
            queued: VecDeque::new(),
            timers: BinaryHeap::new(),
        })
    }

    /// Returns the statistics.
    pub fn counters(&self) -> Counters {
        self.objects.counters
    }

    /// Replaces the local addresses, with their prefix lengths.
    pub fn set_addresses(&mut self, addresses: &[(IpAddr, u8)], now: Instant) {
        if self.addresses != addresses {
            self.addresses = addresses.to_vec();
            self.cm.set_addresses(addresses, self.mtu, now);
            self.objects.completions.events.push(AsyncEvent::GidChange(PORT));
        }
    }

    /// Processes a received packet, from the IP header on. Its IP and UDP headers are valid, and its destination port is
    /// that of RoCEv2.
    pub fn receive(&mut self, packet: &[u8], now: Instant) {
        self.now = now;
        let counters = &mut self.objects.counters;
        let packet = match wire::parse(packet) {
            Ok(packet) => packet,
            Err(Malformed::Icrc) => return counters.icrc_errors += 1,
            Err(Malformed::Header) => return counters.malformed += 1,
        };
        counters.received += 1;
        if packet.bth.qp == QP1 {
            return self.receive_mad(&packet);
        }
        let Engine { qps, objects, .. } = self;
        let index = (packet.bth.qp & ((1 << INDEX_BITS) - 1)).wrapping_sub(FIRST_QP) as usize;
        let Some(qp) = qps.at(index).filter(|qp| qp.number == packet.bth.qp) else {
            return objects.counters.unexpected += 1;
        };
        let (bth, rest) = (&packet.bth, packet.rest);
        if bth.opcode & 0xe0 == opcode::UD {
            qp.receive_datagram(&packet, objects);
        } else if bth.opcode & 0xe0 != 0 {
            objects.counters.unexpected += 1;
        } else {
            let is_from_peer = qp.path.is_some_and(|path| path.remote == packet.remote && path.local == packet.local);
            if qp.service != Service::Rc || !qp.receives() || !is_from_peer {
                return objects.counters.unexpected += 1;
            }
            match bth.opcode {
                opcode::READ_RESPONSE_FIRST..=opcode::ATOMIC_ACKNOWLEDGE => {
                    qp.receive_response(bth, rest, now, objects);
                }
                _ => qp.receive_request(bth, rest, objects),
            }
        }
        let handle = qp.handle;
        self.settle(handle);
    }

    /// Queues a queue pair that may have packets to send, arms its timer, and fails the queue pairs of completion
    /// queues that have overrun.
    fn settle(&mut self, handle: Handle) {
        let Ok(qp) = self.qps.get_mut(handle) else { return };
        if !qp.is_queued && (qp.responder.is_pending() || !qp.requester.is_empty()) {
            qp.is_queued = true;
            self.queued.push_back(handle);
        }
        if let Some(deadline) = qp.deadline()
            && qp.armed.is_none_or(|armed| deadline < armed)
        {
            qp.armed = Some(deadline);
            self.timers.push(Reverse((deadline, handle.0)));
        }
        while let Some(cq) = self.objects.completions.overrun.pop() {
            for qp in self.qps.values_mut().filter(|qp| qp.send_cq == cq || qp.recv_cq == cq) {
                qp.fail(None, Some(AsyncEvent::QpFatal(qp.handle)), &mut self.objects);
            }
        }
    }

    /// Runs the timers that are due, and sends packets while the port has room.
    pub fn transmit(&mut self, now: Instant, port: &mut dyn Port) {
        self.now = now;
        self.expire(now);
        self.transmit_mads(now, port);
        for _ in 0..self.queued.len() {
            let Some(handle) = self.queued.pop_front() else { break };
            let Ok(qp) = self.qps.get_mut(handle) else { continue };
            qp.is_queued = false;
            let sent = qp.transmit(now, &mut self.objects, port);
            if sent == Sent::Some {
                qp.is_queued = true;
                self.queued.push_back(handle);
            }
            self.arm(handle);
            if !port.has_room() {
                break;
            }
        }
    }

    fn arm(&mut self, handle: Handle) {
        if let Ok(qp) = self.qps.get_mut(handle)
            && let Some(deadline) = qp.deadline()
            && qp.armed.is_none_or(|armed| deadline < armed)
        {
            qp.armed = Some(deadline);
            self.timers.push(Reverse((deadline, handle.0)));
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some(Reverse((at, handle))) = self.timers.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            self.timers.pop();
            let handle = Handle(handle);
            let Ok(qp) = self.qps.get_mut(handle) else { continue };
            if qp.armed == Some(at) {
                qp.armed = None;
                qp.expire(now, &mut self.objects);
                self.settle(handle);
            }
        }
        if self.cm.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.cm.expire(now);
        }
    }

    /// Returns whether packets wait to be sent.
    pub fn is_pending(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Returns the time of the next action without input.
    pub fn next_deadline(&self) -> Option<Instant> {
        let timers = self.timers.peek().map(|Reverse((at, _))| *at);
        [timers, self.cm.next_deadline()].into_iter().flatten().min()
    }

    fn receive_mad(&mut self, packet: &Received<'_>) {
        let is_datagram = packet.bth.opcode == opcode::UD | opcode::SEND_ONLY;
        match Deth::parse(packet.rest) {
            Some((deth, mad)) if is_datagram && deth.q_key == QP1_Q_KEY => {
                self.cm.receive(self.now, packet.local, packet.remote, mad);
            }
            _ => self.objects.counters.unexpected += 1,
        }
    }

    fn transmit_mads(&mut self, now: Instant, port: &mut dyn Port) {
        let counters = &mut self.objects.counters;
        self.cm.transmit(now, &mut |local, remote, mad| {
            if !port.has_room() {
                return false;
            }
            let path = Path { local, remote, traffic_class: 0 };
            let deth = Deth { q_key: QP1_Q_KEY, source: QP1 }.to_bytes();
            let bth = Bth { opcode: opcode::UD | opcode::SEND_ONLY, qp: QP1, ..Bth::default() };
            counters.sent += 1;
            port.send(&path, wire::packet_len(deth.len(), MAD), &mut |packet| {
                wire::write(packet, &path, bth, &deth, MAD, |payload| payload.copy_from_slice(mad));
            });
            true
        });
    }

    // Attributes.

    pub(crate) fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    #[cfg(test)]
    pub(crate) fn set_limits(&mut self, limits: DeviceLimits) {
        self.limits = limits;
    }

    pub(crate) fn port(&self, port: u8) -> io::Result<PortAttr> {
        require(port == PORT, libc::EINVAL)?;
        Ok(PortAttr {
            state: PortState::Active,
            max_mtu: self.mtu,
            mtu: self.mtu,
            message: MAX_MESSAGE,
            lid: 0,
            link: LinkLayer::Ethernet,
            speed: None,
        })
    }

    pub(crate) fn gids(&self, port: u8) -> io::Result<Vec<Gid>> {
        require(port == PORT, libc::EINVAL)?;
        let gids = self.addresses.iter().zip(0..).map(|((ip, _), index)| {
            let raw = match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            Gid { port, index, raw, kind: GidKind::RoceV2, interface: 0 }
        });
        Ok(gids.collect())
    }

    /// Returns the path of an address vector.
    fn path(&self, to: &AhAttr) -> io::Result<Path> {
        let local = self.addresses.get(usize::from(to.source)).filter(|_| to.port == PORT);
        let local = local.ok_or_else(|| errno(libc::EINVAL))?.0;
        let remote = Ipv6Addr::from(to.gid).to_canonical();
        require(local.is_ipv4() == remote.is_ipv4(), libc::EINVAL)?;
        Ok(Path { local, remote, traffic_class: to.traffic_class })
    }

    // Passive objects.

    pub(crate) fn alloc_pd(&mut self, parent_of: Option<(Handle, Handle)>) -> io::Result<Handle> {
        require(self.pds.len() < self.limits.pds as usize, libc::ENOMEM)?;
        if let Some((pd, td)) = parent_of {
            self.tds.get(td)?;
            require(self.pds.get(pd)?.parent_of.is_none(), libc::EINVAL)?;
            self.pds.get_mut(pd)?.users += 1;
        }
        Ok(self.pds.add(Pd { parent_of, users: 0 }))
    }

    pub(crate) fn dealloc_pd(&mut self, pd: Handle) -> io::Result<()> {
        let object = self.pds.get(pd)?;
        require(object.users == 0 && !self.objects.memory.uses(pd), libc::EBUSY)?;
        if let Some((of, _)) = self.pds.remove(pd)?.parent_of {
            self.pds.get_mut(of)?.users -= 1;
        }
        Ok(())
    }

    pub(crate) fn dealloc_td(&mut self, td: Handle) -> io::Result<()> {
        let is_used = self.pds.iter().any(|(_, pd)| pd.parent_of.is_some_and(|(_, of)| of == td));
        require(!is_used, libc::EBUSY)?;
        self.tds.remove(td)
    }

    /// Returns the protection domain of an object that is created with `pd`, which may be a parent domain.
    pub(crate) fn base_pd(&self, pd: Handle) -> io::Result<Handle> {
        Ok(self.pds.get(pd)?.parent_of.map_or(pd, |(pd, _)| pd))
    }

    fn hold_pd(&mut self, pd: Handle) -> io::Result<()> {
        self.pds.get_mut(pd)?.users += 1;
        Ok(())
    }

    fn release_pd(&mut self, pd: Handle) {
        if let Ok(pd) = self.pds.get_mut(pd) {
            pd.users -= 1;
        }
    }

    pub(crate) fn memory(&mut self) -> &mut Memory {
        &mut self.objects.memory
    }

    pub(crate) fn completions(&mut self) -> &mut Completions {
        &mut self.objects.completions
    }

    pub(crate) fn create_ah(&mut self, pd: Handle, to: &AhAttr) -> io::Result<Handle> {
        let (pd, path) = (self.base_pd(pd)?, self.path(to)?);
        self.hold_pd(pd)?;
        Ok(self.objects.addresses.add(Address { pd, path }))
    }

    pub(crate) fn destroy_ah(&mut self, ah: Handle) -> io::Result<()> {
        let Address { pd, .. } = self.objects.addresses.remove(ah)?;
        self.release_pd(pd);
        Ok(())
    }

    pub(crate) fn create_srq(&mut self, pd: Handle, attr: &SrqInitAttr) -> io::Result<Handle> {
        let is_valid = (1..=self.limits.srq_wrs).contains(&attr.buffers) && attr.sges <= self.limits.srq_sges;
        require(is_valid, libc::EINVAL)?;
        require(self.objects.srqs.len() < self.limits.srqs as usize, libc::ENOMEM)?;
        let pd = self.base_pd(pd)?;
        self.hold_pd(pd)?;
        Ok(self.objects.srqs.add(Srq { pd, queue: RecvQueue::new(attr.buffers, attr.sges), users: 0 }))
    }

    pub(crate) fn destroy_srq(&mut self, srq: Handle) -> io::Result<()> {
        require(self.objects.srqs.get(srq)?.users == 0, libc::EBUSY)?;
        let Srq { pd, .. } = self.objects.srqs.remove(srq)?;
        self.release_pd(pd);
        Ok(())
    }

    pub(crate) fn post_srq_recv(&mut self, srq: Handle, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        let srq = self.objects.srqs.get_mut(srq).map_err(|error| PostError { at: 0, error })?;
        srq.queue.post(requests)
    }

    // Queue pairs.

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
            access: linerate_rdma_provider::Access::default(),
            q_key: 0,
            path: None,
            peer: 0,
            mtu: self.mtu.bytes() as usize,
            receives,
            requester: Requester::new(cap),
            responder,
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
        self.settle(handle);
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
