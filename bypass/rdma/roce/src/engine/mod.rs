//! Engine: the objects of a device, and the dispatch of packets, turns and timers to its queue pairs.

mod congestion;
mod objects;
mod queue_pairs;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use crate::cm::Cm;
use crate::counters::Counters;
use crate::icrc::MAX_HEADERS;
use crate::memory::Memory;
use crate::path::{Path, Port};
use crate::qp::requester::MAX_MESSAGE;
use crate::qp::{Objects, QUANTUM, Qp, Sent, Service};
use crate::queues::Completions;
use crate::table::{Table, errno, require};
use crate::waker::Waker;
use crate::wire::{self, BTH, Bth, Deth, ICRC, Malformed, Received, opcode};
use linerate_rdma_provider::{
    AhAttr, AsyncEvent, AtomicCap, DeviceLimits, Gid, GidKind, Handle, LinkLayer, Mtu, Port as PortAttr, PortState,
    TransportKind,
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
    /// Queue pairs that notify their peers of congestion, if that is enabled.
    notifying: Option<VecDeque<Handle>>,
    /// Queue pairs with packets to send.
    queued: VecDeque<Handle>,
    /// Deadlines of queue pairs, at least one not after the deadline of each. An entry may be obsolete.
    timers: DeadlineHeap,
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

/// Deadlines of queue pairs by handle, earliest first.
type DeadlineHeap = BinaryHeap<Reverse<(Instant, usize)>>;

/// Queues a queue pair that may have packets to send, and arms its timer.
fn settle(qp: &mut Qp, queued: &mut VecDeque<Handle>, timers: &mut DeadlineHeap) {
    queue(qp, queued);
    arm(qp, timers);
}

/// Queues a queue pair that may have packets to send.
#[inline]
fn queue(qp: &mut Qp, queued: &mut VecDeque<Handle>) {
    if !qp.is_queued && (qp.responder.is_pending() || qp.requester.is_pending()) {
        qp.is_queued = true;
        queued.push_back(qp.handle);
    }
}

/// Adds an entry for the deadline of a queue pair, unless an earlier one exists.
#[inline]
fn arm(qp: &mut Qp, timers: &mut DeadlineHeap) {
    if let Some(deadline) = qp.deadline()
        && qp.armed.is_none_or(|armed| deadline < armed)
    {
        qp.armed = Some(deadline);
        timers.push(Reverse((deadline, qp.handle.0)));
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
        cm.set_addresses(&config.addresses, mtu);
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
                sent_bytes: 0,
            },
            generation: (config.seed >> 8) as u32,
            notifying: None,
            queued: VecDeque::new(),
            timers: BinaryHeap::new(),
        })
    }

    /// Returns the statistics.
    pub fn counters(&self) -> Counters {
        Counters { cm: self.cm.counters(), ..self.objects.counters }
    }

    /// Replaces the local addresses, with their prefix lengths.
    pub fn set_addresses(&mut self, addresses: &[(IpAddr, u8)]) {
        if self.addresses != addresses {
            self.addresses = addresses.to_vec();
            self.cm.set_addresses(addresses, self.mtu);
            self.objects.completions.events.push(AsyncEvent::GidChange(PORT));
        }
    }

    /// Processes a received packet, from the IP header on. Its IP and UDP headers are valid, and its destination port
    /// is that of RoCEv2.
    pub fn receive(&mut self, packet: &[u8], now: Instant) {
        self.now = now;
        let Objects { counters, .. } = &mut self.objects;
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
        } else {
            let is_from_peer = qp.path.as_ref().is_some_and(|path| path.is_of(packet.ip_header));
            if qp.service != Service::Rc || !qp.receives() || !is_from_peer {
                return objects.counters.unexpected += 1;
            }
            if bth.opcode & 0xe0 != 0 {
                let handle = qp.handle;
                return self.receive_other(bth, handle);
            }
            match bth.opcode {
                opcode::READ_RESPONSE_FIRST..=opcode::ATOMIC_ACKNOWLEDGE => {
                    qp.receive_response(bth, rest, now, objects);
                    arm(qp, &mut self.timers);
                }
                // Requests of the peer change no deadline.
                _ => qp.receive_request(bth, rest, objects),
            }
        }
        queue(qp, &mut self.queued);
        let handle = qp.handle;
        if self.notifying.is_some() && packet.is_marked() {
            self.receive_marked(handle);
        }
        self.fail_overrun();
    }

    /// Queues a queue pair that may have packets to send, arms its timer, and fails the queue pairs of completion
    /// queues that have overrun.
    fn settle(&mut self, handle: Handle) {
        let Ok(qp) = self.qps.get_mut(handle) else { return };
        settle(qp, &mut self.queued, &mut self.timers);
        self.fail_overrun();
    }

    #[inline]
    fn fail_overrun(&mut self) {
        if !self.objects.completions.overrun.is_empty() {
            self.fail_all_overrun();
        }
    }

    #[cold]
    fn fail_all_overrun(&mut self) {
        while let Some(cq) = self.objects.completions.overrun.pop() {
            for qp in self.qps.values_mut().filter(|qp| qp.send_cq == cq || qp.recv_cq == cq) {
                qp.fail(None, Some(AsyncEvent::QpFatal(qp.handle)), &mut self.objects);
            }
        }
    }

    /// Runs the timers that are due, and sends packets while the port has room.
    pub fn transmit(&mut self, now: Instant, port: &mut impl Port) {
        self.now = now;
        self.expire(now);
        self.transmit_mads(port);
        self.transmit_notifications(port);
        for _ in 0..self.queued.len() {
            let Some(handle) = self.queued.pop_front() else { break };
            let Ok(qp) = self.qps.get_mut(handle) else { continue };
            qp.is_queued = false;
            let has_limit = qp.rate.is_some();
            let quantum = if has_limit { qp.begin_at_rate(now, &mut self.objects) } else { QUANTUM };
            let sent = qp.transmit(quantum, now, &mut self.objects, port);
            if sent == Sent::Some {
                qp.is_queued = true;
                self.queued.push_back(handle);
            }
            if has_limit
                && let Some(due) = qp.end_at_rate(now, &mut self.objects)
                && qp.due.replace(due) != Some(due)
            {
                self.timers.push(Reverse((due, handle.0)));
            }
            arm(qp, &mut self.timers);
            if !port.has_room() {
                break;
            }
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
            } else if qp.due == Some(at) {
                qp.due = None;
                self.settle(handle);
            }
        }
        if self.cm.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.cm.expire(now);
        }
    }

    /// Returns whether packets wait to be sent.
    pub fn is_pending(&self) -> bool {
        !self.queued.is_empty() || self.notifying.as_ref().is_some_and(|notifying| !notifying.is_empty())
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
                let [local, remote] = packet.addresses();
                self.cm.receive(self.now, local, remote, mad);
            }
            _ => self.objects.counters.unexpected += 1,
        }
    }

    fn transmit_mads(&mut self, port: &mut impl Port) {
        let Objects { counters, .. } = &mut self.objects;
        self.cm.transmit(&mut |local, remote, mad| {
            if !port.has_room() {
                return false;
            }
            let path = Path::new([local, remote], 0);
            let deth = Deth { q_key: QP1_Q_KEY, source: QP1 }.to_bytes();
            let bth = Bth { opcode: opcode::UD | opcode::SEND_ONLY, qp: QP1, ..Bth::default() };
            counters.sent += 1;
            port.send(&path, wire::packet_len(deth.len(), MAD), |packet| {
                wire::write(packet, &path, bth, &deth, MAD, |payload| payload.copy_from_slice(mad));
            });
            true
        });
    }

    pub(crate) fn limits(&self) -> &DeviceLimits {
        &self.limits
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
        Ok(Path::new([local, remote], to.traffic_class))
    }
}
