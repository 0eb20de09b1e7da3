//! Tail loss probes (RFC 8985 §7).

use linerate_bypass::time::Instant;

use super::Seq;
use super::path::{self, Path};
use super::rtt::{RttEstimator, TICK};
use super::{Limits, scoreboard::Scoreboard};

/// What is known of the last probe.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Probe {
    /// TLP.end_seq: SND.NXT when the probe was sent, while it matters.
    end: Option<Seq>,
    /// TLP.is_retrans: whether the probe was a retransmission.
    retransmission: bool,
    /// The engine was told to send a probe and has not yet.
    pending: bool,
    /// No round trip has been measured since the last probe.
    unmeasured: bool,
    /// Bytes in flight when the probe became due, and whether they were a single segment.
    in_flight: u32,
    alone: bool,
    /// When what it asks after was sent, or the last acknowledgement came.
    since: Instant,
}

/// What an acknowledgement says of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeVerdict {
    /// Nothing yet, or nothing that matters.
    Nothing,
    /// It was needless: the original had arrived.
    Needless,
    /// It repaired a loss, to which congestion control must respond.
    Repaired,
}

impl Probe {
    /// Whether a probe may be sent (§7.3): none is in flight, and a round trip was measured since the last.
    #[inline]
    pub(crate) fn may_be_sent(&self) -> bool {
        self.end.is_none() && !self.unmeasured
    }

    /// Whether one is in flight, or its fate unknown.
    #[inline]
    pub(crate) fn is_unresolved(&self) -> bool {
        self.end.is_some()
    }

    /// The engine is to send one now, while `in_flight` bytes are in flight, `alone` if they are a single segment, and
    /// nothing new was sent or acknowledged `since`.
    pub(crate) fn due(&mut self, in_flight: u32, alone: bool, since: Instant) {
        self.pending = true;
        self.unmeasured = true;
        self.in_flight = in_flight;
        self.alone = alone;
        self.since = since;
    }

    /// If only a single segment was in flight when the last probe became due: since when it had been.
    pub(crate) fn alone_since(&self) -> Option<Instant> {
        self.alone.then_some(self.since)
    }

    /// Something was sent: the probe, if one was due. `next` is SND.NXT. Returns whether it was.
    #[inline]
    pub(crate) fn sent(&mut self, next: Seq, retransmission: bool) -> bool {
        if !self.pending {
            return false;
        }
        self.pending = false;
        self.end = Some(next);
        self.retransmission = retransmission;
        true
    }

    /// Bytes in flight when the probe became due.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// A round trip was measured.
    #[inline]
    pub(crate) fn measured(&mut self) {
        self.unmeasured = false;
    }

    /// A recovery begins, which makes the probe irrelevant (§7.1).
    pub(crate) fn forget(&mut self) {
        self.end = None;
        self.pending = false;
    }

    /// TLP_process_ack of §7.4.2: `ack` was acknowledged, a `duplicate` reported, and the acknowledgement was a
    /// `bare_duplicate`: one without SACK blocks.
    pub(crate) fn acknowledged(
        &mut self,
        ack: Seq,
        duplicate: Option<(Seq, Seq)>,
        bare_duplicate: bool,
    ) -> ProbeVerdict {
        let Some(end) = self.end.filter(|&end| ack.at_or_after(end)) else { return ProbeVerdict::Nothing };
        let verdict = if !self.retransmission {
            ProbeVerdict::Nothing
        } else if duplicate.is_some_and(|(_, duplicate)| duplicate == end) {
            ProbeVerdict::Needless
        } else if ack.after(end) {
            ProbeVerdict::Repaired
        } else if bare_duplicate {
            ProbeVerdict::Needless
        } else {
            return ProbeVerdict::Nothing;
        };
        self.end = None;
        verdict
    }

    /// No answer can be expected any more. Returns whether a loss must be presumed (§7.4.2).
    pub(crate) fn abandon(&mut self) -> bool {
        self.end.take().is_some() && self.retransmission
    }
}

/// The probe time-out in nanoseconds (§7.2): 2·SRTT, and for a single segment what the receiver may hold its
/// acknowledgement back. Where round trips vary, SRTT + 4·RTTVAR if that is more; and two ticks of the clock, since a
/// round trip may be shorter than one.
pub(crate) fn time_out(rtt: &RttEstimator, path: &Path, limits: &Limits, scoreboard: &Scoreboard) -> u64 {
    let smoothed = rtt.smoothed_nanos();
    let margin = smoothed.max(4 * rtt.variation_nanos()) + 2 * TICK.as_nanos() as u64;
    smoothed + margin + if scoreboard.is_one_segment() { path::delay_allowed(rtt, path, limits) } else { 0 }
}
