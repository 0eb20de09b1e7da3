//! Receive path of a worker: from frames to the engine, the slow path, or the owning worker.

use crate::config::Config;
use crate::config::fast_paths::{FastPath, FastPaths};
use crate::engine::{Engine, SegmentMeta, Segments};
use crate::ip::arp_ndp::{self, ArpNdpEvent, NeighborInfo};
use crate::ip::egress::Egress;
use crate::ip::neighbors::PendingResolutions;
use crate::ip::router_info::RouterInfo;
use crate::rng;
use crate::slow_path::{Lease, SlowPath};
use crate::wire::arp_ndp::Message;
use crate::wire::drop_stats::DropCause;
use crate::wire::ethernet::ETHERNET_HEADER;
use crate::wire::steering::{Steering, toeplitz};
use crate::wire::tuple::Tuple;
use crate::wire::udp::UdpDatagram;
use crate::wire::vlan::{self, VlanId};
use crate::worker::demux::fast::FastDemux;
use crate::worker::demux::{FrameKind, Host, Tcp};
use crate::worker::inter_worker::WorkerMsg;
use linerate_bypass::{Nic, Packet};
use linerate_service::Datagram;
use linerate_service::mailbox::Sender;
use linerate_service::time::Instant;
use std::collections::VecDeque;
use std::net::IpAddr;

/// Number of RSS hashes that must match the computed ones before the port's hash is used.
const HASHES_CHECKED: u32 = 64;

/// Maximum datagrams that wait while the transmit queue has no room for replies. The newest one beyond it is dropped.
/// Stopping reception instead could deadlock with a peer that does the same.
const DATAGRAMS: usize = 16_384;

/// Trust in the RSS hashes of the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortHash {
    /// Number of hashes still to match.
    Unverified(u32),
    /// The hashes have matched.
    Trusted,
    /// A hash differed.
    Ignored,
}

/// Receive path: demultiplexing and forwarding to other workers.
pub(crate) struct Ingress<P> {
    worker: usize,
    others: Vec<Sender<WorkerMsg<P>>>,
    steering: Steering,
    port_hash: PortHash,
    dhcp: bool,
    fragments: bool,
    raw_udp: Option<u16>,
    /// True if DAD of initial addresses runs, which the first worker handles.
    pub dad_running: bool,
    slaac: bool,
    fast_paths: FastPaths,
    /// Neighbours that other workers are resolving.
    resolving: PendingResolutions,
    /// Frames forwarded to their owner.
    misdirected: u64,
    /// Buffer in which chained packets are linearised for the slow path.
    scratch: Vec<u8>,
    /// TCP segments of the current burst, unless the engine processes each at once.
    burst: Segments<P>,
    /// True if the engine processes each segment at once. Constant during a burst, so that segments stay in order.
    at_once: bool,
    /// Received datagrams for delivery.
    pub datagrams: VecDeque<Datagram>,
    /// Frames with datagrams to the port of a protocol with its own integrity check, and the ends of the datagrams.
    pub raw: Vec<(P, usize)>,
}

impl<P: Packet> Ingress<P> {
    pub fn new(worker: usize, others: Vec<Sender<WorkerMsg<P>>>, config: &Config) -> Self {
        let (scratch, burst, datagrams) = (Vec::new(), Segments::new(), VecDeque::new());
        let steering = Steering::new(others.len(), &config.listen_by_worker);
        // The hash of a port is trusted only if it decides alone.
        let port_hash = if steering.has_ports() { PortHash::Ignored } else { PortHash::Unverified(HASHES_CHECKED) };
        Ingress {
            worker,
            others,
            steering,
            port_hash,
            dhcp: config.dhcp,
            fragments: config.fragments,
            raw_udp: config.listen_udp_raw,
            dad_running: false,
            slaac: config.slaac,
            fast_paths: config.fast_paths(),
            resolving: PendingResolutions::new(rng::draw(config.seed, "resolving", worker)),
            misdirected: 0,
            scratch,
            burst,
            at_once: false,
            datagrams,
            raw: Vec::new(),
        }
    }

    pub fn misdirected(&self) -> u64 {
        self.misdirected
    }

    /// Passes the remaining segments of the burst to the engine.
    pub fn end_burst<N: Nic<Packet = P>, E: Engine<N>>(
        &mut self,
        egress: &mut Egress<N>,
        engine: &mut E,
        now: Instant,
    ) {
        if !self.burst.is_empty() {
            engine.rx_burst(&mut self.burst, egress, now);
        }
        self.at_once = engine.processes_immediately();
    }

    /// Drops frames of other VLANs and removes the tags of the remaining frames.
    #[inline(never)]
    pub fn enter_vlan<N: Nic<Packet = P>>(&self, received: &mut Vec<P>, vlan: VlanId, egress: &mut Egress<N>) {
        received.retain_mut(|frame| match vlan::take_tag(frame, Some(vlan)) {
            Ok(()) => true,
            Err(cause) => {
                egress.count_drop(cause);
                false
            }
        });
    }

    /// Processes received frames and leaves `received` empty. TCP segments may wait for [`end_burst`](Self::end_burst).
    #[inline]
    pub fn rx_burst<N: Nic<Packet = P>, E: Engine<N>>(
        &mut self,
        received: &mut Vec<P>,
        egress: &mut Egress<N>,
        engine: &mut E,
        slow: &mut SlowPath,
        now: Instant,
    ) {
        if !self.fast_paths.has(FastPath::Demux) {
            self.burst.reserve(received.len());
            return received.drain(..).for_each(|frame| self.rx_frame(frame, false, egress, engine, slow, now));
        }
        let alone = self.others.len() == 1;
        let fast_demux = FastDemux::new(egress.mac(), egress.addresses(), slow.udp.raw());
        let fast_demux = fast_demux.with_raw(|local| slow.udp.listens(local));
        self.burst.reserve(received.len());
        for frame in received.drain(..) {
            match fast_demux.v4(&frame, egress.addresses()) {
                Some(tcp) if alone => self.deliver_segment(frame, tcp, egress, engine, now),
                Some(tcp) => self.rx_segment(frame, tcp, egress, engine, now),
                None => match fast_demux.raw_v4(&frame) {
                    Some(end) => self.raw.push((frame, end)),
                    None => self.rx_other(frame, &fast_demux, egress, engine, slow, now),
                },
            }
        }
    }

    /// Processes a frame that is not an ordinary segment over IPv4.
    #[inline(never)]
    fn rx_other<N: Nic<Packet = P>, E: Engine<N>>(
        &mut self,
        frame: P,
        fast_demux: &FastDemux,
        egress: &mut Egress<N>,
        engine: &mut E,
        slow: &mut SlowPath,
        now: Instant,
    ) {
        if let Some(udp) = fast_demux.udp_v4(&frame, egress.addresses()) {
            self.rx_datagram(frame, &udp, egress, slow, now);
        } else if let Some(tcp) = fast_demux.v6(&frame, egress.addresses()) {
            self.rx_segment(frame, tcp, egress, engine, now);
        } else {
            self.rx_frame(frame, false, egress, engine, slow, now);
        }
    }

    /// Queues a datagram for delivery. For an unbound port the slow path replies with ICMP.
    fn rx_datagram<N: Nic<Packet = P>>(
        &mut self,
        frame: P,
        udp: &UdpDatagram,
        egress: &mut Egress<N>,
        slow: &mut SlowPath,
        now: Instant,
    ) {
        if !slow.udp.listens(&udp.local) {
            return self.rx_slow_path(&frame, FrameKind::Ip, egress, slow, now);
        }
        if slow.udp.raw() == Some(udp.local.port()) {
            self.raw.push((frame, udp.end));
            return;
        }
        if self.datagrams.len() >= DATAGRAMS {
            return egress.count_drop(DropCause::DatagramQueue);
        }
        let datagram = slow.udp.receive(frame, udp, egress);
        self.datagrams.push_back(datagram);
    }

    /// Processes a segment, or forwards it to the owning worker.
    fn rx_segment<N: Nic<Packet = P>, E: Engine<N>>(
        &mut self,
        frame: P,
        tcp: Tcp,
        egress: &mut Egress<N>,
        engine: &mut E,
        now: Instant,
    ) {
        let owner = if self.others.len() == 1 { self.worker } else { self.owner_of(&tcp.tuple, &frame) };
        if owner == self.worker {
            self.deliver_segment(frame, tcp, egress, engine, now);
        } else {
            self.forward(frame, owner, egress);
        }
    }

    fn host<'a, N: Nic<Packet = P>>(&self, egress: &'a Egress<N>) -> Host<'a> {
        Host {
            mac: egress.mac(),
            addresses: egress.addresses(),
            dhcp: self.dhcp,
            fragments: self.fragments,
            raw_udp: self.raw_udp,
            partial_checksums: egress.capabilities().rx_partial_checksum,
        }
    }

    /// Returns the worker that owns the segment's flow.
    #[inline]
    fn owner_of(&mut self, tuple: &Tuple, frame: &P) -> usize {
        let reported = frame.rx_info().rss_hash;
        if let (Some(hash), PortHash::Trusted) = (reported, self.port_hash) {
            return self.steering.by_hash(hash);
        }
        if let Some(worker) = self.steering.by_port(tuple) {
            return worker;
        }
        let hash = self.hash(tuple, reported);
        self.steering.by_hash(hash)
    }

    /// Processes a segment of this worker, at once or with its burst.
    #[inline(always)]
    fn deliver_segment<N: Nic<Packet = P>, E: Engine<N>>(
        &mut self,
        mut frame: P,
        tcp: Tcp,
        egress: &mut Egress<N>,
        engine: &mut E,
        now: Instant,
    ) {
        let Tcp { tuple, start, end } = tcp;
        let padding = frame.len() - end;
        if padding > 0 && !frame.trim(padding) {
            return egress.count_drop(DropCause::Truncated);
        }
        let meta = SegmentMeta { tuple, tcp_offset: start };
        if self.at_once {
            engine.rx_segment(frame, &meta, egress, now);
        } else {
            self.burst.push(frame, meta);
        }
    }

    /// Processes a frame of any kind, from the port or forwarded. TCP segments may wait for
    /// [`end_burst`](Self::end_burst).
    #[inline(never)]
    pub fn rx_frame<N: Nic<Packet = P>, E: Engine<N>>(
        &mut self,
        mut frame: P,
        forwarded: bool,
        egress: &mut Egress<N>,
        engine: &mut E,
        slow: &mut SlowPath,
        now: Instant,
    ) {
        // With a VLAN configured, `enter_vlan` has removed all tags.
        if vlan::is_tagged(&frame)
            && let Err(cause) = vlan::take_tag(&mut frame, None)
        {
            return egress.count_drop(cause);
        }
        let kind = match self.host(egress).classify(&frame) {
            Ok(kind) => kind,
            Err(cause) => return egress.count_drop(cause),
        };
        let owner = match kind {
            _ if forwarded || self.others.len() == 1 => self.worker,
            FrameKind::Tcp(tcp) => self.owner_of(&tcp.tuple, &frame),
            FrameKind::IcmpError { tuple, .. } => self.steering.owner(&tuple),
            FrameKind::Dhcp | FrameKind::MldQuery => 0,
            FrameKind::Ndp if self.dad_running || self.slaac => 0,
            FrameKind::Arp | FrameKind::Ndp | FrameKind::Ip | FrameKind::Udp(_) | FrameKind::Refused { .. } => {
                self.worker
            }
        };
        if owner != self.worker {
            return match kind {
                FrameKind::Tcp(_) | FrameKind::IcmpError { .. } => self.forward(frame, owner, egress),
                // The first worker acts for all; this is not a flow that the port steered wrongly.
                _ => self.send_frame_to(frame, owner, egress),
            };
        }
        match kind {
            FrameKind::Tcp(tcp) => self.deliver_segment(frame, tcp, egress, engine, now),
            FrameKind::IcmpError { tuple, sequence, error } => engine.icmp_error(tuple, sequence, error),
            FrameKind::Udp(udp) => self.rx_datagram(frame, &udp, egress, slow, now),
            FrameKind::Refused { local, remote } => slow.refused(local, remote),
            FrameKind::Arp | FrameKind::Ndp | FrameKind::MldQuery | FrameKind::Dhcp | FrameKind::Ip => {
                self.rx_slow_path(&frame, kind, egress, slow, now);
            }
        }
    }

    /// Sends a DHCP lease, or its loss, to the other workers.
    pub fn share_lease(&self, lease: &Lease) {
        self.share(|| WorkerMsg::Lease(lease.clone()));
    }

    /// Informs the other workers that DAD has passed.
    pub fn share_verified(&self) {
        self.share(|| WorkerMsg::AddressesVerified);
    }

    /// Sends router information to the other workers.
    pub fn share_router_info(&self, network: &RouterInfo) {
        self.share(|| WorkerMsg::RouterInfo(Box::new(*network)));
    }

    /// Informs the first worker that `ip`, which may be a router, is unreachable.
    pub fn report_unreachable(&self, ip: IpAddr) {
        if self.slaac && self.worker != 0 {
            // If the mailbox is full, the first worker finds out by its own solicitation.
            let _ = self.others[0].send(WorkerMsg::NeighborUnreachable(ip));
        }
    }

    /// Informs the other workers that this one resolves `neighbors`, so that they forward replies.
    pub fn announce_resolving(&self, neighbors: Vec<IpAddr>) {
        for ip in neighbors {
            // If a mailbox is full, a forwarded reply may be missed and a solicitation is repeated.
            self.send_to_others(|| WorkerMsg::Resolving(ip));
        }
    }

    /// Records that another worker resolves `ip`.
    pub fn note_resolving(&mut self, ip: IpAddr, now: Instant) {
        self.resolving.insert(ip, now);
    }

    /// Sends a message that may be lost to all other workers.
    fn send_to_others(&self, message: impl Fn() -> WorkerMsg<P>) {
        for (_, other) in self.others.iter().enumerate().filter(|(worker, _)| *worker != self.worker) {
            let _ = other.send(message());
        }
    }

    fn share(&self, message: impl Fn() -> WorkerMsg<P>) {
        for (worker, other) in self.others.iter().enumerate() {
            if worker != self.worker && other.send(message()).is_err() {
                tracing::warn!("the mailbox of worker {worker} is full: it misses a change of the local addresses");
            }
        }
    }

    fn rx_slow_path<N: Nic<Packet = P>>(
        &mut self,
        frame: &P,
        kind: FrameKind,
        egress: &mut Egress<N>,
        slow: &mut SlowPath,
        now: Instant,
    ) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let data = if frame.data().len() == frame.len() {
            frame.data()
        } else {
            scratch.clear();
            frame.segments().for_each(|bytes| scratch.extend_from_slice(bytes));
            &scratch
        };
        let event = match kind {
            FrameKind::Arp => arp_ndp::parse_arp(data, egress.addresses(), egress.mac()).unwrap_or_else(|cause| {
                egress.count_drop(cause);
                ArpNdpEvent::Dropped
            }),
            FrameKind::Ndp => {
                let (duplicate, router) = match slow.ipv6() {
                    Some(ipv6) => ipv6.on_ndp(data, egress, now),
                    None => (None, None),
                };
                slow.duplicate = slow.duplicate.or(duplicate);
                match router {
                    Some(router) => ArpNdpEvent::Neighbor(router),
                    None => arp_ndp::parse_ndp(data, |ip| egress.addresses().is_local(ip), egress.mac()),
                }
            }
            FrameKind::MldQuery => {
                if let Some(ipv6) = slow.ipv6() {
                    ipv6.on_mld_query(data, now);
                }
                ArpNdpEvent::Nothing
            }
            _ => ArpNdpEvent::Nothing,
        };
        match event {
            ArpNdpEvent::Nothing | ArpNdpEvent::OwnMessage | ArpNdpEvent::Dropped => {}
            ArpNdpEvent::Neighbor(NeighborInfo { ip, mac, may_create }) => {
                egress.learn(ip, mac, may_create, now);
                if self.others.len() > 1 && egress.can_be_neighbor(ip, mac) && self.resolving.forwards(ip, now) {
                    // If a mailbox is full, the other worker repeats its solicitation.
                    self.send_to_others(|| WorkerMsg::Neighbor(NeighborInfo { ip, mac, may_create }));
                }
            }
            ArpNdpEvent::Claim(ip, mac) => slow.announcer().defend(ip, mac, egress, now),
            // smoltcp does not reply to a sender without an address.
            ArpNdpEvent::Probe(IpAddr::V4(own), to) => egress.send_message(Message::ProbeReply { own, to }),
            // RFC 4861 §7.2.4: multicast to all nodes.
            ArpNdpEvent::Probe(own, _) => egress.send_message(Message::Announce(own)),
        }
        let is_answered = matches!(
            event,
            ArpNdpEvent::OwnMessage | ArpNdpEvent::Dropped | ArpNdpEvent::Claim(..) | ArpNdpEvent::Probe(..)
        );
        if kind == FrameKind::MldQuery {
            // smoltcp does not implement MLD queries for these groups.
        } else if kind == FrameKind::Ip {
            slow.ip_packet(&data[ETHERNET_HEADER..], egress, &mut self.datagrams, now);
            while self.datagrams.len() > DATAGRAMS {
                self.datagrams.pop_back();
                egress.count_drop(DropCause::DatagramQueue);
            }
        } else if !is_answered {
            slow.ethernet_frame(data, egress, now);
        }
        self.scratch = scratch;
    }

    fn forward<N: Nic<Packet = P>>(&mut self, frame: P, owner: usize, egress: &mut Egress<N>) {
        if self.misdirected == 0 && !self.steering.has_ports() {
            tracing::info!(
                "frames arrive at worker {} that worker {owner} owns: the port uses another RSS function; frames are \
                 passed on",
                self.worker
            );
        }
        self.misdirected += 1;
        self.send_frame_to(frame, owner, egress);
    }

    fn send_frame_to<N: Nic<Packet = P>>(&self, frame: P, owner: usize, egress: &mut Egress<N>) {
        if self.others[owner].send(WorkerMsg::Frame(frame)).is_err() {
            egress.count_drop(DropCause::MailboxFull);
        }
    }

    /// Returns the computed hash of the flow, and compares it with the hash `reported` by the port.
    fn hash(&mut self, tuple: &Tuple, reported: Option<u32>) -> u32 {
        let computed = toeplitz(tuple);
        if let (Some(hash), PortHash::Unverified(left)) = (reported, self.port_hash) {
            self.port_hash = if hash != computed {
                tracing::warn!(
                    "the port's RSS hash is not used: {hash:#010x} differs from the expected {computed:#010x}"
                );
                PortHash::Ignored
            } else if left <= 1 {
                PortHash::Trusted
            } else {
                PortHash::Unverified(left - 1)
            };
        }
        computed
    }
}
