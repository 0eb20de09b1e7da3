//! The way in of a worker: received frames to the engine, the slow path, or the worker that owns them.

use crate::arp_ndp::Message;
use crate::arp_ndp::neighbors::Resolving;
use crate::arp_ndp::receive::{self, Heard, NeighborInfo};
use crate::config::Config;
use crate::demux::demux_fast::Shortcut;
use crate::demux::steering::{owner, toeplitz};
use crate::demux::vlan::{self, VlanId};
use crate::demux::{Host, Kind, Tcp};
use crate::drop_stats::DropCause;
use crate::egress::{ETHERNET, Egress};
use crate::engine::{Engine, SegmentMeta, Segments};
use crate::fast_paths::{FastPath, FastPaths};
use crate::ipv6::Network;
use crate::rng;
use crate::slow_path::{DhcpLease, SlowPath};
use crate::tcp::tuple::Tuple;
use crate::worker::inter_worker::Mail;
use linerate_bypass::mailbox::Sender;
use linerate_bypass::time::Instant;
use linerate_bypass::{Datagram, Nic, Packet};
use std::collections::VecDeque;
use std::net::IpAddr;

/// Frames whose RSS hash is compared with ours before the port's is trusted.
const HASHES_CHECKED: u32 = 64;

/// Datagrams that wait at most while the transmit queue has no room for what services answer to them. Beyond, the newest is dropped: a
/// worker that received nothing more would keep a peer waiting that receives nothing more itself.
const DATAGRAMS: usize = 16_384;

/// Whether the port computes the hash that we do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortHash {
    /// So many more must agree.
    OnTrial(u32),
    Trusted,
    Ignored,
}

/// A worker's place among the others, and where it sends frames that are not its own.
pub(crate) struct Ingress<P> {
    worker: usize,
    others: Vec<Sender<Mail<P>>>,
    port_hash: PortHash,
    dhcp: bool,
    fragments: bool,
    /// There are addresses that are not used yet, which the first worker sees to; routers may bring more.
    pub tries_addresses: bool,
    slaac: bool,
    fast_paths: FastPaths,
    /// Neighbours that other workers are asking for.
    resolving: Resolving,
    /// Frames passed on to their owner.
    misdirected: u64,
    /// A chain in one piece, for the slow path.
    scratch: Vec<u8>,
    /// TCP segments for the engine, of the burst at hand, unless it takes each at once.
    burst: Segments<P>,
    /// Whether it does. The same for all of a burst, so that none gets ahead of another.
    at_once: bool,
    /// Datagrams received and not yet delivered.
    pub datagrams: VecDeque<Datagram>,
}

impl<P: Packet> Ingress<P> {
    pub fn new(worker: usize, others: Vec<Sender<Mail<P>>>, config: &Config) -> Self {
        let (scratch, burst, datagrams) = (Vec::new(), Segments::new(), VecDeque::new());
        Ingress {
            worker,
            others,
            port_hash: PortHash::OnTrial(HASHES_CHECKED),
            dhcp: config.dhcp,
            fragments: config.fragments,
            tries_addresses: false,
            slaac: config.slaac,
            fast_paths: config.fast_paths(),
            resolving: Resolving::new(rng::draw(config.seed, "resolving", worker)),
            misdirected: 0,
            scratch,
            burst,
            at_once: false,
            datagrams,
        }
    }

    pub fn misdirected(&self) -> u64 {
        self.misdirected
    }

    /// Hands the segments of the burst to the engine that have not been.
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

    /// Drops those of `received` that are not of the VLAN `vlan`, and takes the tags off the others.
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

    /// Takes in the frames that the port received, and leaves `received` empty. TCP waits for
    /// [`end_burst`](Self::end_burst).
    #[inline]
    pub fn burst<N: Nic<Packet = P>, E: Engine<N>>(
        &mut self,
        received: &mut Vec<P>,
        egress: &mut Egress<N>,
        engine: &mut E,
        slow: &mut SlowPath,
        now: Instant,
    ) {
        if !self.fast_paths.has(FastPath::Demux) {
            self.burst.reserve(received.len());
            return received.drain(..).for_each(|frame| self.frame(frame, false, egress, engine, slow, now));
        }
        let alone = self.others.len() == 1;
        let shortcut = Shortcut::new(egress.mac(), egress.addresses());
        self.burst.reserve(received.len());
        for frame in received.drain(..) {
            match shortcut.v4(&frame, egress.addresses()) {
                Some(tcp) if alone => self.take_segment(frame, tcp, egress, engine, now),
                Some(tcp) => self.segment(frame, tcp, egress, engine, now),
                None => self.other(frame, &shortcut, egress, engine, slow, now),
            }
        }
    }

    /// Takes in a frame that is no ordinary IPv4 segment.
    #[inline(never)]
    fn other<N: Nic<Packet = P>, E: Engine<N>>(
        &mut self,
        frame: P,
        shortcut: &Shortcut,
        egress: &mut Egress<N>,
        engine: &mut E,
        slow: &mut SlowPath,
        now: Instant,
    ) {
        match shortcut.v6(&frame, egress.addresses()) {
            Some(tcp) => self.segment(frame, tcp, egress, engine, now),
            None => self.frame(frame, false, egress, engine, slow, now),
        }
    }

    /// Takes in a segment from the port: for this worker's engine, or for another worker.
    fn segment<N: Nic<Packet = P>, E: Engine<N>>(
        &mut self,
        frame: P,
        tcp: Tcp,
        egress: &mut Egress<N>,
        engine: &mut E,
        now: Instant,
    ) {
        let home = if self.others.len() == 1 { self.worker } else { self.home(&tcp.tuple, &frame) };
        if home == self.worker {
            self.take_segment(frame, tcp, egress, engine, now);
        } else {
            self.pass_on(frame, home, egress);
        }
    }

    fn host<'a, N: Nic<Packet = P>>(&self, egress: &'a Egress<N>) -> Host<'a> {
        Host {
            mac: egress.mac(),
            addresses: egress.addresses(),
            dhcp: self.dhcp,
            fragments: self.fragments,
            partial_checksums: egress.capabilities().rx_partial_checksum,
        }
    }

    /// The worker that owns the segment's flow.
    fn home(&mut self, tuple: &Tuple, frame: &P) -> usize {
        owner(self.hash(tuple, frame.rx_info().rss_hash), self.others.len())
    }

    /// Takes in a segment of this worker's: at once, or with the others of its burst.
    #[inline(always)]
    fn take_segment<N: Nic<Packet = P>, E: Engine<N>>(
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
        let head = SegmentMeta { tuple, tcp_offset: start };
        if self.at_once {
            engine.rx_segment(frame, &head, egress, now);
        } else {
            self.burst.push(frame, head);
        }
    }

    /// Takes in a frame of whatever kind: from the port, or passed on by another worker. TCP waits for
    /// [`end_burst`](Self::end_burst).
    #[inline(never)]
    pub fn frame<N: Nic<Packet = P>, E: Engine<N>>(
        &mut self,
        mut frame: P,
        passed_on: bool,
        egress: &mut Egress<N>,
        engine: &mut E,
        slow: &mut SlowPath,
        now: Instant,
    ) {
        // In a VLAN no frame has a tag any more.
        if vlan::is_tagged(&frame)
            && let Err(cause) = vlan::take_tag(&mut frame, None)
        {
            return egress.count_drop(cause);
        }
        let kind = match self.host(egress).classify(&frame) {
            Ok(kind) => kind,
            Err(cause) => return egress.count_drop(cause),
        };
        let home = match kind {
            _ if passed_on || self.others.len() == 1 => self.worker,
            Kind::Tcp(tcp) => self.home(&tcp.tuple, &frame),
            Kind::IcmpError { tuple, .. } => owner(toeplitz(&tuple), self.others.len()),
            Kind::Dhcp | Kind::ListenerQuery => 0,
            Kind::Ndp if self.tries_addresses || self.slaac => 0,
            Kind::Arp | Kind::Ndp | Kind::Ip | Kind::Udp(_) => self.worker,
        };
        if home != self.worker {
            return match kind {
                Kind::Tcp(_) | Kind::IcmpError { .. } => self.pass_on(frame, home, egress),
                // Who speaks for all is no owner that the port could know of.
                _ => self.leave_at(frame, home, egress),
            };
        }
        match kind {
            Kind::Tcp(tcp) => self.take_segment(frame, tcp, egress, engine, now),
            Kind::IcmpError { tuple, sequence, error } => engine.icmp_error(tuple, sequence, error),
            Kind::Udp(udp) if slow.direct.listens(&udp.local) => {
                if self.datagrams.len() >= DATAGRAMS {
                    return egress.count_drop(DropCause::DatagramQueue);
                }
                let datagram = slow.direct.receive(frame, &udp, egress);
                self.datagrams.push_back(datagram);
            }
            // Nobody listens, which the sender is told.
            Kind::Udp(_) => self.take_slow_path(&frame, Kind::Ip, egress, slow, now),
            Kind::Arp | Kind::Ndp | Kind::ListenerQuery | Kind::Dhcp | Kind::Ip => {
                self.take_slow_path(&frame, kind, egress, slow, now);
            }
        }
    }

    /// Tells the other workers what DHCP came to.
    pub fn tell_lease(&self, lease: Option<DhcpLease>) {
        self.tell(|| Mail::Lease(lease));
    }

    /// Tells the other workers that the addresses that were tried are ours.
    pub fn tell_verified(&self) {
        self.tell(|| Mail::Verified);
    }

    /// Tells the other workers what routers have advertised.
    pub fn tell_network(&self, network: &Network) {
        self.tell(|| Mail::Network(Box::new(*network)));
    }

    /// Tells the first worker that nobody answered for `ip`, which may be a router's.
    pub fn tell_lost(&self, ip: IpAddr) {
        if self.slaac && self.worker != 0 {
            // A full mailbox costs the first a question of its own.
            let _ = self.others[0].send(Mail::NeighborLost(ip));
        }
    }

    /// Tells the other workers that this one is asking for `neighbors`, so that an answer which arrives there is forwarded.
    pub fn tell_resolving(&self, neighbors: Vec<IpAddr>) {
        for ip in neighbors {
            // A full mailbox costs a question more when a flood keeps the answer from being forwarded.
            self.tell_all(|| Mail::Resolving(ip));
        }
    }

    /// Notes that another worker is asking for `ip`.
    pub fn note_resolving(&mut self, ip: IpAddr, now: Instant) {
        self.resolving.insert(ip, now);
    }

    /// Sends mail that may be lost to all other workers.
    fn tell_all(&self, mail: impl Fn() -> Mail<P>) {
        for (_, other) in self.others.iter().enumerate().filter(|(worker, _)| *worker != self.worker) {
            let _ = other.send(mail());
        }
    }

    fn tell(&self, mail: impl Fn() -> Mail<P>) {
        for (worker, other) in self.others.iter().enumerate() {
            if worker != self.worker && other.send(mail()).is_err() {
                tracing::warn!("worker {worker} does not read its mail, and was not told of our addresses");
            }
        }
    }

    fn take_slow_path<N: Nic<Packet = P>>(
        &mut self,
        frame: &P,
        kind: Kind,
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
        let heard = match kind {
            Kind::Arp => receive::hear_arp(data, egress.addresses(), egress.mac()).unwrap_or_else(|cause| {
                egress.count_drop(cause);
                Heard::Dropped
            }),
            Kind::Ndp => {
                let (duplicate, router) = match slow.six() {
                    Some(six) => six.hear(data, egress, now),
                    None => (None, None),
                };
                slow.duplicate = slow.duplicate.or(duplicate);
                match router {
                    Some(router) => Heard::Neighbor(router),
                    None => receive::hear_ndp(data, |ip| egress.addresses().is_ours(ip), egress.mac()),
                }
            }
            Kind::ListenerQuery => {
                if let Some(six) = slow.six() {
                    six.hear_query(data, now);
                }
                Heard::Nothing
            }
            _ => Heard::Nothing,
        };
        match heard {
            Heard::Nothing | Heard::Ourselves | Heard::Dropped => {}
            Heard::Neighbor(NeighborInfo { ip, mac, new }) => {
                egress.learn(ip, mac, new, now);
                if self.others.len() > 1 && egress.can_be_neighbor(ip, mac) && self.resolving.forwards(ip, now) {
                    // A full mailbox costs the other a question of its own.
                    self.tell_all(|| Mail::Neighbor(NeighborInfo { ip, mac, new }));
                }
            }
            Heard::Claim(ip, mac) => slow.presence().claimed(ip, mac, egress, now),
            // smoltcp answers nobody who has no address.
            Heard::Probe(IpAddr::V4(own), to) => egress.say(Message::AnswerProbe { own, to }),
            // RFC 4861 §7.2.4: to all.
            Heard::Probe(own, _) => egress.say(Message::Announce(own)),
        }
        let is_answered = matches!(heard, Heard::Ourselves | Heard::Dropped | Heard::Claim(..) | Heard::Probe(..));
        if kind == Kind::ListenerQuery {
            // smoltcp knows of no groups.
        } else if kind == Kind::Ip {
            slow.ip_packet(&data[ETHERNET..], egress, &mut self.datagrams, now);
            while self.datagrams.len() > DATAGRAMS {
                self.datagrams.pop_back();
                egress.count_drop(DropCause::DatagramQueue);
            }
        } else if !is_answered {
            slow.ethernet_frame(data, egress, now);
        }
        self.scratch = scratch;
    }

    fn pass_on<N: Nic<Packet = P>>(&mut self, frame: P, home: usize, egress: &mut Egress<N>) {
        if self.misdirected == 0 {
            tracing::info!(
                "frames arrive at worker {} that worker {home} owns: the port spreads flows in its own way; they are \
                 passed on",
                self.worker
            );
        }
        self.misdirected += 1;
        self.leave_at(frame, home, egress);
    }

    fn leave_at<N: Nic<Packet = P>>(&self, frame: P, home: usize, egress: &mut Egress<N>) {
        if self.others[home].send(Mail::Frame(frame)).is_err() {
            egress.count_drop(DropCause::MailboxFull);
        }
    }

    /// The flow's hash: the port's, once it has been seen to be right.
    fn hash(&mut self, tuple: &Tuple, reported: Option<u32>) -> u32 {
        if let (Some(hash), PortHash::Trusted) = (reported, self.port_hash) {
            return hash;
        }
        let ours = toeplitz(tuple);
        if let (Some(hash), PortHash::OnTrial(left)) = (reported, self.port_hash) {
            self.port_hash = if hash != ours {
                tracing::warn!("the port's RSS hash differs from ours ({hash:#010x}, not {ours:#010x}): not used");
                PortHash::Ignored
            } else if left <= 1 {
                PortHash::Trusted
            } else {
                PortHash::OnTrial(left - 1)
            };
        }
        ours
    }
}
