//! Tail loss probes (RFC 8985 §7).

use linerate_service::time::Instant;

use super::Seq;
use super::path::{self, Path};
use super::rtt::{RttEstimator, TICK};
use super::{Limits, scoreboard::Scoreboard};

/// State of the last probe.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Probe {
    /// TLP.end_seq: SND.NXT when the probe was sent, while its result is open.
    end: Option<Seq>,
    /// TLP.is_retrans: whether the probe was a retransmission.
    retransmission: bool,
    /// True if the engine has to send a probe and has not yet.
    pending: bool,
    /// True if no RTT sample was taken since the last probe.
    unmeasured: bool,
    /// Bytes in flight when the probe became due, and whether they were a lone segment.
    in_flight: u32,
    alone: bool,
    /// Time of the last transmission or acknowledgement before the probe became due.
    since: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeVerdict {
    /// Not yet known, or irrelevant.
    Nothing,
    /// The probe was unnecessary: the original had arrived.
    Needless,
    /// The probe repaired a loss, to which congestion control must respond.
    Repaired,
}

impl Probe {
    /// Returns whether a probe may be sent (§7.3): none is in flight, and the RTT was sampled since the last one.
    #[inline]
    pub(crate) fn may_be_sent(&self) -> bool {
        self.end.is_none() && !self.unmeasured
    }

    /// Returns whether a probe is in flight, or its result open.
    #[inline]
    pub(crate) fn is_unresolved(&self) -> bool {
        self.end.is_some()
    }

    /// Makes a probe due. `in_flight` bytes are in flight, `alone` if they are a lone segment; nothing new was sent or
    /// acknowledged since `since`.
    pub(crate) fn due(&mut self, in_flight: u32, alone: bool, since: Instant) {
        self.pending = true;
        self.unmeasured = true;
        self.in_flight = in_flight;
        self.alone = alone;
        self.since = since;
    }

    /// Returns the time of transmission of the lone segment that the last probe was due for.
    pub(crate) fn alone_since(&self) -> Option<Instant> {
        self.alone.then_some(self.since)
    }

    /// Records a transmission, which is the probe if one was due. `next` is SND.NXT. Returns whether it was the probe.
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

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Records an RTT sample.
    #[inline]
    pub(crate) fn measured(&mut self) {
        self.unmeasured = false;
    }

    /// Cancels the probe at the start of a recovery, which makes it irrelevant (§7.1).
    pub(crate) fn forget(&mut self) {
        self.end = None;
        self.pending = false;
    }

    /// Performs TLP_process_ack (§7.4.2): `ack` was acknowledged, and `duplicate` was reported. `bare_duplicate`: the
    /// segment is a duplicate acknowledgement without SACK blocks.
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

    /// Ends the wait for a result. Returns whether a loss has to be presumed (§7.4.2).
    pub(crate) fn abandon(&mut self) -> bool {
        self.end.take().is_some() && self.retransmission
    }
}

/// Returns the probe timeout in nanoseconds (§7.2): 2·SRTT, or SRTT + 4·RTTVAR if that is more, and two ticks of the
/// clock, because the RTT may be shorter than a tick. For a lone segment, the acknowledgement delay of the receiver is
/// added.
pub(crate) fn probe_timeout(rtt: &RttEstimator, path: &Path, limits: &Limits, scoreboard: &Scoreboard) -> u64 {
    let smoothed = rtt.smoothed_nanos();
    let margin = smoothed.max(4 * rtt.variation_nanos()) + 2 * TICK.as_nanos() as u64;
    smoothed + margin + if scoreboard.is_one_segment() { path::delay_allowed(rtt, path, limits) } else { 0 }
}
