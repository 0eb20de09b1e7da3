//! What a connection has in flight.

use linerate_bypass::time::Instant;

use super::Seq;
use super::probe::Probe;
use super::prr::Prr;
use super::rack::Rack;
use super::scoreboard::Scoreboard;
use super::undo::{ForwardRto, Undo};

/// What the sender is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing suspicious.
    Open,
    /// Something is missing at the receiver, but not believed lost yet.
    Disorder,
    /// The window is being reduced because of an echo of congestion, for a round trip; nothing is lost.
    Reducing,
    /// Fast recovery: something was lost, and the window is being reduced.
    Recovery,
    /// The retransmission timer expired; slow start from one segment.
    Loss,
}

/// What a flight must know of its connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlightConfig {
    /// The size of a full segment's payload, bytes; at least one.
    pub(crate) mss: u16,
    /// The peer acknowledges selectively.
    pub(crate) sack: bool,
    /// Congestion control wants to hear of every mark rather than once per window
    /// (`CongestionControl::exact_ecn_echo`).
    pub(crate) exact_ecn: bool,
}

/// Everything about the data that a connection has in flight. One is attached to a connection while it has any, and returns
/// to a pool when it [is settled](Self::is_settled); [`reset`](Self::reset) makes it another connection's.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) scoreboard: Scoreboard,
    pub(crate) config: FlightConfig,
    pub(crate) phase: Phase,
    /// Whether anything is the matter, or has left a trace: anything but data that was sent and acknowledged in order.
    /// While it is not, the phase is Open and everything below but what is noted of sending is as in a new flight.
    pub(crate) disturbed: bool,
    /// Time-outs since SND.UNA last advanced.
    pub(crate) time_outs: u8,
    /// One segment may be sent whatever the window: the retransmission that a time-out makes.
    pub(crate) forced: bool,
    /// Once a fast recovery without SACK is over: until SND.UNA passes `recover`, duplicates are those of its
    /// retransmissions (RFC 6582 §3.2 step 2).
    pub(crate) guarded: bool,
    /// Whether SND.UNA has advanced in this fast recovery without SACK (RFC 6582 §3.2 step 3).
    pub(crate) partial: bool,
    /// Duplicate acknowledgements counted, without SACK.
    pub(crate) duplicates: u32,
    /// Bytes that they stand for: "1 SMSS for each" (RFC 9937 §6.2).
    pub(crate) duplicated: u32,
    /// Data before it was sent when the congestion window left no room for another segment (RFC 9438 §5.8).
    pub(crate) limited_until: Seq,
    /// SND.NXT when the present recovery or reduction began ("RecoveryPoint").
    pub(crate) recover: Seq,
    /// When something was last sent. No two calls have the same time here: the order of transmissions that happen at one
    /// time of the clock is kept as nanoseconds.
    pub(crate) last_sent: Instant,
    /// From when the retransmission timer counts.
    pub(crate) rto_base: Instant,
    /// From when the probe timer counts.
    pub(crate) probe_base: Instant,
    pub(crate) probe: Probe,
    pub(crate) rack: Rack,
    pub(crate) prr: Prr,
    pub(crate) undo: Undo,
    pub(crate) forward_rto: ForwardRto,
}

impl Flight {
    /// A flight with nothing in it, for a connection whose SND.UNA is `una`.
    pub(crate) fn new(una: Seq, config: FlightConfig) -> Self {
        Flight {
            scoreboard: Scoreboard::new(una),
            config: FlightConfig { mss: config.mss.max(1), ..config },
            phase: Phase::Open,
            disturbed: false,
            time_outs: 0,
            forced: false,
            guarded: false,
            partial: false,
            duplicates: 0,
            duplicated: 0,
            limited_until: una,
            recover: una - 1,
            last_sent: Instant::ZERO,
            rto_base: Instant::ZERO,
            probe_base: Instant::ZERO,
            probe: Probe::default(),
            rack: Rack::new(una),
            prr: Prr::default(),
            undo: Undo::none(una),
            forward_rto: ForwardRto::Off,
        }
    }

    /// Makes it as new, but keeps its memory, up to 24 KB.
    ///
    /// A flight in which nothing was missing has hardly anything to forget: this happens once for every short exchange.
    #[inline]
    pub(crate) fn reset(&mut self, una: Seq, config: FlightConfig) {
        if self.disturbed || !self.is_empty() || self.scoreboard.exceeds_idle_capacity() {
            self.reset_disturbed(una);
        }
        self.scoreboard.move_to(una);
        self.config = FlightConfig { mss: config.mss.max(1), ..config };
        self.limited_until = una;
        self.recover = una - 1;
        self.rack.move_to(una);
    }

    /// Nobody waits for what is in flight any more: the connection is over. Nearly always that is one segment, and the flight
    /// as clean as before.
    #[inline]
    pub(crate) fn abandon(&mut self) {
        if self.scoreboard.is_lone() {
            self.scoreboard.take_lone(self.next());
        }
    }

    #[cold]
    fn reset_disturbed(&mut self, una: Seq) {
        self.scoreboard.reset();
        self.phase = Phase::Open;
        self.disturbed = false;
        self.time_outs = 0;
        self.forced = false;
        self.guarded = false;
        self.duplicates = 0;
        self.duplicated = 0;
        self.probe = Probe::default();
        self.rack = Rack::new(una);
        self.undo = Undo::none(una);
        self.forward_rto = ForwardRto::Off;
    }

    /// SND.UNA.
    #[inline]
    pub(crate) fn una(&self) -> Seq {
        self.scoreboard.una()
    }

    /// SND.NXT: one beyond the highest sequence number sent.
    #[inline]
    pub(crate) fn next(&self) -> Seq {
        self.scoreboard.next()
    }

    /// Whether everything sent was acknowledged.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.una() == self.next()
    }

    /// Whether it is empty and nothing more is to be learnt: it may be given back. Otherwise an empty flight waits about
    /// two round trips for a report of duplicates that would undo a recovery, or for the fate of a probe; a flight that is
    /// given back earlier only loses that.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.is_empty() && self.is_quiet()
    }

    /// Whether neither a probe's fate nor a report of duplicates is waited for.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        !self.probe.is_unresolved() && !self.undo.is_active()
    }

    /// What the sender is doing.
    #[inline]
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Bytes believed to be in the network ("pipe" of RFC 6675, "inflight" of RFC 9937 §6.2).
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.scoreboard.in_flight().saturating_sub(self.duplicated)
    }

    /// How many records it holds: no more than segments are outstanding.
    #[cfg(test)]
    pub(crate) fn records(&self) -> usize {
        self.scoreboard.len()
    }

    /// Time-outs in a row, without SND.UNA advancing.
    pub(crate) fn time_outs(&self) -> u8 {
        self.time_outs
    }

    #[inline]
    pub(crate) fn mss(&self) -> u32 {
        u32::from(self.config.mss)
    }

    /// A time for a transmission at `now` that differs from that of any other.
    #[inline]
    fn stamp(&mut self, now: Instant) -> Instant {
        self.last_sent = now.max(Instant::from_nanos(self.last_sent.as_nanos().saturating_add(1)));
        self.last_sent
    }

    /// `len` bytes of new data were sent at SND.NXT, a FIN counting as one; `window` is the congestion window.
    ///
    /// More than one segment's worth must have been cut into segments of the present MSS, with only the last shorter.
    #[inline]
    pub(crate) fn sent(&mut self, len: u32, now: Instant, window: u32) {
        if len == 0 {
            return;
        }
        if self.is_empty() {
            // RFC 6298 §5.1.
            self.rto_base = now;
        }
        let sent = self.stamp(now);
        self.scoreboard.push(len, self.config.mss, sent);
        if self.disturbed {
            self.sent_in_disorder(len, now);
        } else {
            self.probe_base = now;
        }
        if u64::from(self.in_flight()) + u64::from(self.config.mss) > u64::from(window) {
            self.limited_until = self.next();
        }
    }

    /// Whether nothing is the matter, and never was.
    #[inline(always)]
    pub(crate) fn is_clean(&self) -> bool {
        !self.disturbed
    }

    /// [`sent`](Self::sent) for one segment when nothing is in flight, and nothing [was ever](Self::is_clean) the matter.
    #[inline(always)]
    pub(crate) fn sent_lone(&mut self, len: u32, now: Instant, window: u32) {
        // RFC 6298 §5.1.
        self.rto_base = now;
        self.probe_base = now;
        let sent = self.stamp(now);
        self.scoreboard.push_lone(len, self.config.mss, sent);
        if u64::from(len) + u64::from(self.config.mss) > u64::from(window) {
            self.limited_until = self.next();
        }
    }

    /// [`sent_lone`](Self::sent_lone) at `at`, some time ago, for a flight that is as new.
    pub(crate) fn resume_lone(&mut self, len: u32, at: Instant, window: u32) {
        // Whatever another connection sent at that time or later does not matter.
        self.last_sent = Instant::ZERO;
        self.sent_lone(len, at, window);
    }

    /// More would have been sent, but for the window: it counts as used until what is in flight has been acknowledged.
    pub(crate) fn mark_window_limited(&mut self) {
        self.limited_until = self.next();
    }

    /// What else is to be noted of new data when something is the matter.
    #[inline(never)]
    fn sent_in_disorder(&mut self, len: u32, now: Instant) {
        if !self.probe.sent(self.scoreboard.next(), false) {
            self.probe_base = now;
        }
        self.forced = false;
        if matches!(self.phase, Phase::Reducing | Phase::Recovery) {
            self.prr.sent(len);
        }
    }

    /// How many bytes may be sent now, new or retransmitted, `window` being the congestion window.
    #[inline]
    pub(crate) fn allowance(&self, window: u32) -> u32 {
        let allowance = match self.phase {
            Phase::Open | Phase::Disorder | Phase::Loss => window.saturating_sub(self.in_flight()),
            Phase::Reducing | Phase::Recovery => self.prr.quota(),
        };
        if self.forced { allowance.max(self.mss()) } else { allowance }
    }

    /// What is to be retransmitted next: the first range that is lost, of at most `max` bytes. If `max` cuts it, it is cut
    /// between segments; if not even one fits, there is none.
    pub(crate) fn retransmission(&self, max: u32) -> Option<(Seq, u32)> {
        match self.forward_rto {
            // RFC 5682: nothing but the first segment until it is known whether the time-out was spurious, and new data
            // in its place.
            ForwardRto::First { retransmitted: Some(_) } | ForwardRto::Second { .. } => return None,
            ForwardRto::First { retransmitted: None } | ForwardRto::Off => {}
        }
        let (start, end) = self.scoreboard.first_lost()?;
        let max = if self.forward_rto == ForwardRto::Off { max } else { max.min(self.mss()) };
        let len = end - start;
        let len = if len > max { max - max % self.mss() } else { len };
        (len > 0).then_some((start, len))
    }

    /// `[seq, seq + len)` was retransmitted with the TSval `timestamp` (zero if timestamps are not in use): a range that
    /// [`retransmission`](Self::retransmission) or a probe named, or the beginning of one.
    pub(crate) fn retransmitted(&mut self, seq: Seq, len: u32, now: Instant, timestamp: u32) {
        let sent = self.stamp(now);
        let first = self.una() == seq;
        let len = self.scoreboard.retransmitted(seq, len, sent, timestamp);
        if len == 0 {
            return;
        }
        self.forced = false;
        if self.probe.sent(self.scoreboard.next(), true) {
            return;
        }
        self.undo.retransmitted(seq, len, timestamp);
        if let ForwardRto::First { retransmitted } = &mut self.forward_rto {
            retransmitted.get_or_insert(seq + len);
        }
        if matches!(self.phase, Phase::Reducing | Phase::Recovery) {
            self.prr.sent(len);
        }
        if first && (self.config.sack || self.phase != Phase::Recovery || !self.partial) {
            // The first segment was sent anew, so its acknowledgement is a round trip away (and see RFC 6582 §3.2 step 3).
            self.rto_base = now;
        }
    }

    /// The path takes segments of at most `mss` bytes, and what is in flight did not fit: all of it is sent again, which is
    /// no answer to congestion (RFC 1191 §6.4).
    pub(crate) fn mss_exceeded(&mut self, mss: u16) {
        self.set_mss(mss);
        self.disturbed = true;
        self.scoreboard.time_out(|_| true);
        self.probe.forget();
        self.forward_rto = ForwardRto::Off;
        self.phase = Phase::Loss;
        self.recover = self.next();
        self.duplicates = 0;
        self.duplicated = 0;
        self.guarded = false;
        self.forced = true;
    }

    /// From now on segments have no more than `mss` bytes (path MTU discovery).
    pub(crate) fn set_mss(&mut self, mss: u16) {
        self.config.mss = mss.max(1);
        self.scoreboard.set_mss(self.config.mss);
    }

    /// Open or Disorder, whichever it is when nothing else is the matter.
    pub(crate) fn open_or_disorder(&self) -> Phase {
        if self.scoreboard.sacked() > 0 || self.duplicated > 0 { Phase::Disorder } else { Phase::Open }
    }

    /// Panics if anything does not agree with anything else.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.scoreboard.check();
        assert!(u64::from(self.in_flight()) <= u64::from(self.scoreboard.outstanding()));
        let calm = matches!(self.phase, Phase::Open | Phase::Disorder);
        assert!(!calm || self.scoreboard.lost() == 0, "what is lost is being recovered");
        assert!(self.phase != Phase::Open || self.scoreboard.sacked() == 0 && self.duplicated == 0);
        if !self.disturbed {
            assert!(self.phase == Phase::Open && self.is_quiet() && self.probe.may_be_sent());
            assert!(!self.scoreboard.has_retransmissions() && self.rack.deadline().is_none());
            assert!(!self.forced && !self.guarded && self.duplicates == 0 && self.time_outs == 0);
            assert_eq!(self.forward_rto, ForwardRto::Off);
        }
    }
}
