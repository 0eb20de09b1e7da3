//! Retransmission state of the data that a connection has in flight.

use linerate_service::time::Instant;

use super::Seq;
use super::probe::Probe;
use super::prr::Prr;
use super::rack::Rack;
use super::scoreboard::Scoreboard;
use super::undo::{ForwardRto, Undo};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No indication of loss.
    Open,
    /// Data is missing at the receiver, but not yet considered lost.
    Disorder,
    /// The window is reduced for one round trip in response to ECE. Nothing is lost.
    Reducing,
    /// Fast recovery: data was lost, and the window is reduced.
    Recovery,
    /// The retransmission timer expired; slow start from one segment.
    Loss,
}

/// Connection parameters of a flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlightConfig {
    /// Payload of a full segment in bytes; at least one.
    pub(crate) mss: u16,
    /// True if SACK was negotiated.
    pub(crate) sack: bool,
    /// True if congestion control processes every ECN mark instead of one per window
    /// (`CongestionControl::exact_ecn_echo`).
    pub(crate) exact_ecn: bool,
}

/// Retransmission state of the data in flight. It is attached to a connection that has data in flight, and returns to a
/// pool when it [is settled](Self::is_settled). [`reset`](Self::reset) prepares it for another connection.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) scoreboard: Scoreboard,
    pub(crate) config: FlightConfig,
    pub(crate) phase: Phase,
    /// True if anything but transmission and acknowledgement in order happened and has left a trace. If not, the phase
    /// is Open, and all fields below have their initial values, except for those that record transmissions.
    pub(crate) disturbed: bool,
    /// Consecutive timeouts since SND.UNA last advanced.
    pub(crate) timeouts: u8,
    /// True if one segment may be sent regardless of the window: the retransmission after a timeout.
    pub(crate) forced: bool,
    /// True if a fast recovery without SACK has ended, and SND.UNA has not passed `recover`. Duplicate acknowledgements
    /// are then caused by its retransmissions (RFC 6582 §3.2 step 2).
    pub(crate) guarded: bool,
    /// True if SND.UNA has advanced in this fast recovery without SACK (RFC 6582 §3.2 step 3).
    pub(crate) partial: bool,
    /// Number of duplicate acknowledgements without SACK.
    pub(crate) duplicates: u32,
    /// Bytes represented by [`duplicates`](Self::duplicates): "1 SMSS for each" (RFC 9937 §6.2).
    pub(crate) duplicated: u32,
    /// Data before this was sent while the congestion window left no room for another segment (RFC 9438 §5.8).
    pub(crate) limited_until: Seq,
    /// SND.NXT at the start of the current recovery or reduction ("RecoveryPoint").
    pub(crate) recover: Seq,
    /// Time of the last transmission. It is unique: transmissions at the same time of the clock are ordered by
    /// nanoseconds.
    pub(crate) last_sent: Instant,
    /// Start of the retransmission timeout.
    pub(crate) rto_base: Instant,
    /// Start of the probe timeout.
    pub(crate) probe_base: Instant,
    pub(crate) probe: Probe,
    pub(crate) rack: Rack,
    pub(crate) prr: Prr,
    pub(crate) undo: Undo,
    pub(crate) forward_rto: ForwardRto,
}

impl Flight {
    /// Creates an empty flight for a connection whose SND.UNA is `una`.
    pub(crate) fn new(una: Seq, config: FlightConfig) -> Self {
        Flight {
            scoreboard: Scoreboard::new(una),
            config: FlightConfig { mss: config.mss.max(1), ..config },
            phase: Phase::Open,
            disturbed: false,
            timeouts: 0,
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

    /// Resets the flight for another connection, and keeps up to 24 KB of its memory.
    ///
    /// This runs once for every short exchange. A flight without losses has few fields to reset.
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

    /// Drops the data in flight when the connection ends. Nearly always this is one segment, and the flight stays
    /// clean.
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
        self.timeouts = 0;
        self.forced = false;
        self.guarded = false;
        self.duplicates = 0;
        self.duplicated = 0;
        self.probe = Probe::default();
        self.rack = Rack::new(una);
        self.undo = Undo::none(una);
        self.forward_rto = ForwardRto::Off;
    }

    #[inline]
    pub(crate) fn una(&self) -> Seq {
        self.scoreboard.una()
    }

    /// Returns SND.NXT, the sequence number after the highest one sent.
    #[inline]
    pub(crate) fn next(&self) -> Seq {
        self.scoreboard.next()
    }

    /// Returns whether everything sent was acknowledged.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.una() == self.next()
    }

    /// Returns whether the flight is empty and no further information is expected, so that it may be detached.
    /// Otherwise an empty flight waits about two round trips for a report of duplicates that would undo a recovery, or
    /// for the result of a probe. A flight detached earlier loses only this information.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.is_empty() && self.is_quiet()
    }

    /// Returns whether neither the result of a probe nor a report of duplicates is pending.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        !self.probe.is_unresolved() && !self.undo.is_active()
    }

    #[inline]
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the bytes estimated to be in the network ("pipe" of RFC 6675, "inflight" of RFC 9937 §6.2).
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.scoreboard.in_flight().saturating_sub(self.duplicated)
    }

    /// Returns the number of records, at most the number of segments outstanding.
    #[cfg(test)]
    pub(crate) fn records(&self) -> usize {
        self.scoreboard.len()
    }

    /// Returns the consecutive timeouts without an advance of SND.UNA.
    pub(crate) fn timeouts(&self) -> u8 {
        self.timeouts
    }

    #[inline]
    pub(crate) fn mss(&self) -> u32 {
        u32::from(self.config.mss)
    }

    /// Returns a unique time for a transmission at `now`.
    #[inline]
    fn stamp(&mut self, now: Instant) -> Instant {
        self.last_sent = now.max(Instant::from_nanos(self.last_sent.as_nanos().saturating_add(1)));
        self.last_sent
    }

    /// Records the transmission of `len` bytes at SND.NXT; a FIN counts as one byte. `window` is the congestion window.
    ///
    /// Data of more than one segment must have been segmented by the current MSS, with only the last segment shorter.
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

    /// Returns whether the flight is in its initial state except for transmissions in order.
    #[inline(always)]
    pub(crate) fn is_clean(&self) -> bool {
        !self.disturbed
    }

    /// Records one segment like [`sent`](Self::sent), in a [clean](Self::is_clean) flight without data in flight.
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

    /// Records a segment like [`sent_lone`](Self::sent_lone), at the earlier time `at`, for a new flight.
    pub(crate) fn resume_lone(&mut self, len: u32, at: Instant, window: u32) {
        // Transmissions of another connection do not matter.
        self.last_sent = Instant::ZERO;
        self.sent_lone(len, at, window);
    }

    /// Marks the data in flight as limited by the window, when only the window prevented more.
    pub(crate) fn mark_window_limited(&mut self) {
        self.limited_until = self.next();
    }

    /// Records new data in a disturbed flight.
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

    /// Returns the bytes that may be sent now, new or retransmitted, for a congestion window of `window`.
    #[inline]
    pub(crate) fn allowance(&self, window: u32) -> u32 {
        let allowance = match self.phase {
            Phase::Open | Phase::Disorder | Phase::Loss => window.saturating_sub(self.in_flight()),
            Phase::Reducing | Phase::Recovery => self.prr.quota(),
        };
        if self.forced { allowance.max(self.mss()) } else { allowance }
    }

    /// Returns the next range to retransmit: the first lost range, of at most `max` bytes. It is cut between segments;
    /// if not even one segment fits, the result is `None`.
    pub(crate) fn retransmission(&self, max: u32) -> Option<(Seq, u32)> {
        match self.forward_rto {
            // RFC 5682: until the timeout is known to be spurious or not, only the first segment is retransmitted, and
            // new data is sent instead of the rest.
            ForwardRto::First { retransmitted: Some(_) } | ForwardRto::Second { .. } => return None,
            ForwardRto::First { retransmitted: None } | ForwardRto::Off => {}
        }
        let (start, end) = self.scoreboard.first_lost()?;
        let max = if self.forward_rto == ForwardRto::Off { max } else { max.min(self.mss()) };
        let len = end - start;
        let len = if len > max { max - max % self.mss() } else { len };
        (len > 0).then_some((start, len))
    }

    /// Records the retransmission of `[seq, seq + len)` with TSval `timestamp` (zero without timestamps): a range from
    /// [`retransmission`](Self::retransmission) or a probe, or the beginning of one.
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
            // An acknowledgement of the first segment is a round trip away (see also RFC 6582 §3.2 step 3).
            self.rto_base = now;
        }
    }

    /// Reduces the MSS to `mss` and marks all data in flight for retransmission. This is not a congestion signal (RFC
    /// 1191 §6.4).
    pub(crate) fn mss_exceeded(&mut self, mss: u16) {
        self.set_mss(mss);
        self.disturbed = true;
        self.scoreboard.mark_lost_on_rto(|_| true);
        self.forward_rto = ForwardRto::Off;
        self.enter_loss();
    }

    /// Enters slow start from one segment, which may be sent regardless of the window.
    pub(crate) fn enter_loss(&mut self) {
        self.phase = Phase::Loss;
        self.recover = self.next();
        self.duplicates = 0;
        self.duplicated = 0;
        self.guarded = false;
        self.forced = true;
        self.probe.forget();
    }

    /// Sets the MSS for new segments (path MTU discovery).
    pub(crate) fn set_mss(&mut self, mss: u16) {
        self.config.mss = mss.max(1);
        self.scoreboard.set_mss(self.config.mss);
    }

    /// Returns the phase outside of recovery: Open or Disorder.
    pub(crate) fn open_or_disorder(&self) -> Phase {
        if self.scoreboard.sacked() > 0 || self.duplicated > 0 { Phase::Disorder } else { Phase::Open }
    }

    /// Panics if the state is inconsistent.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.scoreboard.check();
        assert!(u64::from(self.in_flight()) <= u64::from(self.scoreboard.outstanding()));
        let calm = matches!(self.phase, Phase::Open | Phase::Disorder);
        assert!(!calm || self.scoreboard.lost() == 0, "lost data outside of a recovery");
        assert!(self.phase != Phase::Open || self.scoreboard.sacked() == 0 && self.duplicated == 0);
        if !self.disturbed {
            assert!(self.phase == Phase::Open && self.is_quiet() && self.probe.may_be_sent());
            assert!(!self.scoreboard.has_retransmissions() && self.rack.deadline().is_none());
            assert!(!self.forced && !self.guarded && self.duplicates == 0 && self.timeouts == 0);
            assert_eq!(self.forward_rto, ForwardRto::Off);
        }
    }
}
