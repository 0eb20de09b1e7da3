//! State of one connection as seen on the wire: relative sequence numbers, negotiated options, and invariants of every
//! segment.

use super::app::stream;
use super::params::{Peer, TIMESTAMP_HZ};
use super::segment::{Rel, Seg, Want};
use super::wire::{ACK, CE, CWR, Captured, ECE, FIN, Options, RST, RawSegment, SYN, URG};
use linerate_service::time::{Duration, Instant};
use std::net::SocketAddr;

/// Initial sequence number of the peer. Sequence numbers wrap after its first kilobyte.
pub const PEER_ISN: u32 = 0xffff_fc00;
/// Period within which two values of a millisecond clock compare: less than half of 2³² ms.
const HALF_ROUND: Duration = Duration::from_secs(24 * 24 * 3600);
/// Value below every relative number of a script.
const NEVER: Rel = Rel::MIN / 2;
/// Value of the peer's timestamp clock at virtual time zero.
pub const PEER_CLOCK: u32 = 5000;

/// Segment sent by the worker, with relative numbers.
#[derive(Debug, Clone)]
pub struct Got {
    pub at: Instant,
    /// The peer's port.
    pub port: u16,
    pub flags: u8,
    pub seq: Rel,
    pub ack: Rel,
    pub len: Rel,
    /// SACK blocks with relative edges.
    pub sack: Vec<(Rel, Rel)>,
    pub raw: Captured,
}

impl Got {
    /// Returns the TSval.
    ///
    /// # Panics
    /// If the segment has no timestamps option.
    #[track_caller]
    pub fn tsval(&self) -> u32 {
        self.raw.options.timestamp.expect("a segment with timestamps").0
    }

    /// Returns the sequence number after the segment.
    pub fn end(&self) -> Rel {
        self.seq + self.len + Rel::from(self.flags & SYN != 0) + Rel::from(self.flags & FIN != 0)
    }

    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }
}

/// Flags and options of a SYN.
#[derive(Debug, Clone)]
struct SynInfo {
    flags: u8,
    options: Options,
}

pub struct Flow {
    pub peer: Peer,
    pub remote: SocketAddr,
    pub local: SocketAddr,
    pub peer_isn: u32,
    pub worker_isn: Option<u32>,
    /// TSval of the worker's last segment.
    pub last_tsval: Option<u32>,
    /// Time of the worker's last segment.
    last_sent: Instant,
    /// End of the peer's data sent so far.
    pub peer_end: Rel,
    /// Right edge of the worker's receive window.
    pub right_edge: Rel,
    /// Size of the worker's receive window, scaled.
    pub window: Rel,
    peer_syn: Option<SynInfo>,
    worker_syn: Option<SynInfo>,
    /// Last SYN of the peer, which may belong to no connection.
    last_peer_syn: Option<SynInfo>,
    /// True if the worker has sent a segment after its SYN.
    established: bool,
    /// Highest sequence number that the worker has acknowledged.
    acknowledged: Rel,
    /// Highest right edge of the peer's window.
    peer_edge: Rel,
    /// Sequence number after the peer's FIN.
    peer_fin: Option<Rel>,
}

fn relative(number: u32, origin: u32) -> Rel {
    Rel::from(number.wrapping_sub(origin) as i32)
}

fn absolute(number: Rel, origin: u32) -> u32 {
    origin.wrapping_add(number as u32)
}

impl Flow {
    pub fn new(peer: Peer, remote: SocketAddr, local: SocketAddr) -> Self {
        Flow {
            peer,
            remote,
            local,
            peer_isn: PEER_ISN,
            worker_isn: None,
            last_tsval: None,
            last_sent: Instant::ZERO,
            peer_end: 0,
            right_edge: NEVER,
            window: 0,
            peer_syn: None,
            worker_syn: None,
            last_peer_syn: None,
            established: false,
            acknowledged: NEVER,
            peer_edge: 0,
            peer_fin: None,
        }
    }

    /// Starts a new incarnation of the connection with this initial sequence number of the peer.
    pub fn reincarnate(&mut self, peer_isn: u32) {
        *self = Flow { peer_isn, ..Flow::new(self.peer.clone(), self.remote, self.local) };
    }

    fn both(&self, offers: impl Fn(&Options) -> bool) -> bool {
        [&self.peer_syn, &self.worker_syn].into_iter().all(|syn| syn.as_ref().is_some_and(|syn| offers(&syn.options)))
    }

    pub fn has_timestamps(&self) -> bool {
        self.both(|options| options.timestamp.is_some())
    }

    pub fn has_scaling(&self) -> bool {
        self.both(|options| options.window_scale.is_some())
    }

    /// Returns true if ECN was negotiated (RFC 3168 §6.1.1).
    pub fn has_ecn(&self) -> bool {
        let (Some(peer), Some(worker)) = (&self.peer_syn, &self.worker_syn) else { return false };
        let (first, answer) = if worker.flags & ACK != 0 { (peer, worker) } else { (worker, peer) };
        first.flags & (ECE | CWR) == ECE | CWR && answer.flags & (ECE | CWR) == ECE
    }

    /// Returns the window shift of the sender of `syn`, at most 14 (RFC 7323 §2.3).
    fn shift(&self, syn: &Option<SynInfo>) -> u8 {
        let offered = syn.as_ref().and_then(|syn| syn.options.window_scale);
        if self.has_scaling() { offered.unwrap_or(0).min(14) } else { 0 }
    }

    /// Returns the maximum size of options and data in a segment to this peer (RFC 9293 §3.7.1).
    fn peer_mss(&self) -> Rel {
        let default = if self.remote.is_ipv4() { 536 } else { 1220 };
        self.peer_syn.as_ref().and_then(|syn| syn.options.mss).map_or(default, Rel::from)
    }

    /// Returns the value of the peer's timestamp clock at `now`.
    pub fn peer_clock(now: Instant) -> u32 {
        PEER_CLOCK.wrapping_add((now.as_micros() * TIMESTAMP_HZ / 1_000_000) as u32)
    }

    /// Returns the peer's segment `seg` with absolute numbers and updates the connection state.
    pub fn emit(&mut self, seg: &Seg, now: Instant) -> RawSegment {
        let ack = match seg.ack {
            Want::Is(ack) => Some(ack),
            Want::Any if seg.flags & ACK != 0 => Some(1),
            _ => None,
        };
        let timestamp = match seg.timestamp {
            Want::Is(timestamp) => Some(timestamp),
            Want::Any if self.has_timestamps() && seg.flags & RST == 0 => {
                Some((Self::peer_clock(now), self.last_tsval.unwrap_or(0)))
            }
            _ => None,
        };
        let worker_isn = self.worker_isn.unwrap_or(0);
        let options = Options {
            mss: seg.mss.value(),
            window_scale: seg.window_scale.value(),
            sack_permitted: seg.sack_permitted.value().is_some(),
            timestamp,
            sack: seg.sack.iter().map(|(l, r)| (absolute(*l, worker_isn), absolute(*r, worker_isn))).collect(),
        };
        let window = seg.window.unwrap_or(self.peer.window);
        if seg.flags & SYN != 0 && !seg.absolute {
            self.last_peer_syn = Some(SynInfo { flags: seg.flags, options: options.clone() });
            if !self.established {
                self.peer_syn = self.last_peer_syn.clone();
            }
        }
        self.established |= self.worker_syn.is_some() && seg.flags & (SYN | ACK) == ACK;
        let shift = if seg.flags & SYN != 0 { 0 } else { self.shift(&self.peer_syn) };
        if let Some(ack) = ack {
            self.peer_edge = self.peer_edge.max(ack + (Rel::from(window) << shift));
        } else if seg.flags & SYN != 0 {
            self.peer_edge = self.peer_edge.max(1 + Rel::from(window));
        }
        if seg.flags & RST == 0 {
            self.peer_end = self.peer_end.max(seg.seq + seg.sequence_len());
        }
        if seg.flags & FIN != 0 {
            self.peer_fin = Some(seg.seq + seg.sequence_len());
        }
        let first = seg.seq + Rel::from(seg.flags & SYN != 0);
        let payload = match seg.payload {
            super::Payload::Stream(len) => stream(first, len),
            super::Payload::Junk(len) => stream(first, len).into_iter().map(|byte| !byte).collect(),
        };
        RawSegment {
            flags: seg.flags,
            seq: if seg.absolute { seg.seq as u32 } else { absolute(seg.seq, self.peer_isn) },
            ack: ack.map_or(0, |ack| if seg.absolute { ack as u32 } else { absolute(ack, worker_isn) }),
            window,
            urgent: seg.urgent,
            options: options.emit(&seg.raw_options),
            payload,
            ecn: seg.ecn.unwrap_or(0),
            bad_checksum: seg.bad_checksum,
        }
    }

    /// Returns the worker's segment `raw` with relative numbers. A new SYN starts a new connection.
    pub fn read(&mut self, raw: Captured, at: Instant) -> Got {
        if raw.flags & SYN != 0 && self.worker_isn != Some(raw.seq) {
            self.worker_isn = Some(raw.seq);
            (self.worker_syn, self.last_tsval, self.established) = (None, None, false);
            self.peer_syn = self.last_peer_syn.clone().filter(|_| raw.flags & ACK != 0);
            (self.right_edge, self.window, self.acknowledged) = (NEVER, 0, NEVER);
        }
        let worker_isn = self.worker_isn.unwrap_or(0);
        let edges = |(l, r): &(u32, u32)| (relative(*l, self.peer_isn), relative(*r, self.peer_isn));
        Got {
            at,
            port: self.remote.port(),
            flags: raw.flags,
            seq: relative(raw.seq, worker_isn),
            ack: if raw.flags & ACK != 0 { relative(raw.ack, self.peer_isn) } else { 0 },
            len: raw.payload.len() as Rel,
            sack: raw.options.sack.iter().map(edges).collect(),
            raw,
        }
    }

    /// Checks the invariants of every segment of the worker and updates the connection state.
    pub fn check(&mut self, got: &Got) -> Result<(), String> {
        let options = &got.raw.options;
        let is_syn = got.has(SYN);
        if got.has(URG) || (got.has(SYN) && got.flags & (FIN | RST) != 0) || (got.has(RST) && got.len > 0) {
            return Err("an invalid combination of flags, or a reset with data".into());
        }
        if !got.has(ACK) && !got.has(SYN) && !got.has(RST) {
            return Err("neither ACK nor SYN nor RST".into());
        }
        // RFC 9293 §3.2, RFC 7323 §2.2, RFC 2018 §2: these options appear only in a SYN.
        if !is_syn && (options.mss.is_some() || options.window_scale.is_some() || options.sack_permitted) {
            return Err("a SYN option in another segment".into());
        }
        if got.has(RST) || self.worker_isn.is_none() {
            return Ok(());
        }
        if is_syn {
            self.worker_syn = Some(SynInfo { flags: got.flags, options: options.clone() });
        } else {
            self.established = true;
            self.check_established(got)?;
        }
        self.check_window(got)?;
        if let Some((value, _)) = options.timestamp {
            // RFC 7323 §5.4: the timestamp clock is monotonic.
            let comparable = got.at.since(self.last_sent) < HALF_ROUND;
            if comparable && self.last_tsval.is_some_and(|last| relative(value, last) < 0) {
                return Err("a TSval less than an earlier one".into());
            }
            (self.last_tsval, self.last_sent) = (Some(value), got.at);
        }
        Ok(())
    }

    fn check_established(&self, got: &Got) -> Result<(), String> {
        let options = &got.raw.options;
        // RFC 7323 §3.2: timestamps are on every segment once negotiated, and on none otherwise.
        if options.timestamp.is_some() != self.has_timestamps() {
            return Err("timestamps without negotiation, or none despite it".into());
        }
        if !options.sack.is_empty() && !self.peer_syn.as_ref().is_some_and(|syn| syn.options.sack_permitted) {
            return Err("SACK blocks without SACK-permitted (RFC 2018 §3)".into());
        }
        if !self.has_ecn() && (got.flags & (ECE | CWR) != 0 || got.raw.ecn != 0) {
            return Err("ECN marks without ECN negotiation (RFC 3168 §6.1.1)".into());
        }
        if got.raw.ecn == CE {
            return Err("a CE mark, which only routers set".into());
        }
        let carried = got.len + got.raw.options_len as Rel;
        // RFC 9293 §3.7.1: options count. Tiny MSS values are raised by the engine, so they are not checked.
        if got.raw.tso {
            // A payload that fits into one segment needs no TSO.
            if carried <= self.peer_mss() {
                return Err(format!("TSO for {carried} bytes with the peer's MSS {}", self.peer_mss()));
            }
        } else if got.len > 0 && carried > self.peer_mss() && self.peer_mss() >= 64 {
            return Err(format!(
                "{carried} bytes of options and data in a segment with the peer's MSS {}",
                self.peer_mss()
            ));
        }
        if got.len > 0 && got.raw.payload != stream(got.seq, got.len) {
            return Err("a payload that differs from the stream".into());
        }
        // A window probe may carry one byte beyond the window.
        if got.seq + got.len > self.peer_edge + 1 {
            return Err(format!("data up to {} beyond the window's right edge {}", got.seq + got.len, self.peer_edge));
        }
        Ok(())
    }

    fn check_window(&mut self, got: &Got) -> Result<(), String> {
        if !got.has(ACK) {
            return Ok(());
        }
        if got.ack > self.peer_end {
            return Err(format!("an acknowledgement of {} beyond the peer's end {}", got.ack, self.peer_end));
        }
        if got.ack < self.acknowledged {
            return Err(format!("an acknowledgement of {} after {}", got.ack, self.acknowledged));
        }
        self.acknowledged = got.ack;
        if self.peer_fin.is_some_and(|end| got.ack >= end) {
            // The window has no meaning after the peer's FIN.
            return Ok(());
        }
        let shift = if got.has(SYN) { 0 } else { self.shift(&self.worker_syn) };
        self.window = Rel::from(got.raw.window) << shift;
        let edge = got.ack + self.window;
        // RFC 9293 §3.8.6: the right edge should not move left, except by scale rounding (RFC 7323 §2.4).
        if edge + (1 << shift) <= self.right_edge {
            return Err(format!("the window's right edge moves left, from {} to {edge}", self.right_edge));
        }
        self.right_edge = self.right_edge.max(edge);
        Ok(())
    }
}
