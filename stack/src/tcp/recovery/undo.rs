//! Undo of unnecessary window reductions: Eifel (RFC 3522, RFC 4015), F-RTO (RFC 5682), and DSACK (RFC 3708).

use super::acknowledge::AckSummary;
use super::flight::{Flight, Phase};
use super::path::Path;
use super::probe::ProbeVerdict;
use super::rack::timestamp_before;
use super::scoreboard::SackReport;
use super::{Acknowledgement, CongestionControl, Evidence, Outcome, Seq, Undone};

/// State of a recovery that may prove unnecessary.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Undo {
    /// True if there is a reduction that may be undone.
    active: bool,
    /// True if a timeout caused the reduction.
    by_timeout: bool,
    /// SND.UNA at the start of the recovery.
    una: Seq,
    /// End of the highest range retransmitted in the recovery.
    end: Seq,
    /// Bytes retransmitted in the recovery and not yet reported as duplicates.
    unreported: u32,
    /// TSval of the first retransmission ("RetransmitTS", RFC 3522 §3.2 step 2).
    timestamp: Option<u32>,
    /// After the recovery: sequence number whose acknowledgement ends the wait for reports.
    until: Option<Seq>,
}

impl Undo {
    /// Creates the state without a reduction.
    pub(crate) fn none(una: Seq) -> Self {
        Undo { active: false, by_timeout: false, una, end: una, unreported: 0, timestamp: None, until: None }
    }

    /// Starts a recovery that is undone if none of its retransmissions was necessary.
    pub(crate) fn start(una: Seq, by_timeout: bool) -> Self {
        Undo { active: true, by_timeout, ..Undo::none(una) }
    }

    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.active
    }

    pub(crate) fn is_by_timeout(&self) -> bool {
        self.by_timeout
    }

    pub(crate) fn una(&self) -> Seq {
        self.una
    }

    /// Records the retransmission of `[seq, seq + len)` with TSval `timestamp`.
    pub(crate) fn retransmitted(&mut self, seq: Seq, len: u32, timestamp: u32) {
        if self.active {
            self.end = if self.timestamp.is_some() { self.end.max(seq + len) } else { seq + len };
            self.unreported = self.unreported.saturating_add(len);
            self.timestamp.get_or_insert(timestamp);
        }
    }

    /// Returns whether the reported duplicate `[start, end)` may be one of the retransmissions.
    pub(crate) fn covers(&self, start: Seq, end: Seq) -> bool {
        self.active && self.timestamp.is_some() && !start.before(self.una) && !end.after(self.end)
    }

    /// Records a reported duplicate of `len` retransmitted bytes. Returns whether all retransmissions are known to be
    /// unnecessary.
    pub(crate) fn duplicate(&mut self, len: u32) -> bool {
        self.unreported = self.unreported.saturating_sub(len);
        self.unreported == 0
    }

    /// Returns whether an acknowledgement that advanced SND.UNA and echoed `echo` was caused by a transmission before
    /// the first retransmission (RFC 3522 §3.2 step 4).
    pub(crate) fn original_arrived(&self, echo: Option<u32>) -> bool {
        match (echo, self.timestamp) {
            (Some(echo), Some(first)) => self.active && timestamp_before(echo, first),
            _ => false,
        }
    }

    /// Returns whether all retransmissions are below `una`.
    pub(crate) fn is_before(&self, una: Seq) -> bool {
        una.at_or_after(self.end)
    }

    /// Ends the recovery. `next` is SND.NXT. Reports of duplicates may arrive for another round trip.
    pub(crate) fn recovered(&mut self, next: Seq) {
        if self.timestamp.is_none() {
            self.active = false;
        }
        self.until = Some(next);
    }

    /// Gives up when no more reports can be expected. SND.UNA is `una`; `outstanding` is true while data is in flight.
    pub(crate) fn expire(&mut self, una: Seq, outstanding: bool) {
        if outstanding && self.until.is_some_and(|until| una.after(until)) {
            self.active = false;
        }
    }

    /// Ends the state, after an undo or when none is possible.
    pub(crate) fn finish(&mut self) {
        self.active = false;
    }
}

/// Forward RTO-Recovery (RFC 5682): the expected acknowledgement after a timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForwardRto {
    /// Inactive: conventional recovery, or no timeout.
    Off,
    /// Step 2: acknowledgement of the retransmission, which ends at `retransmitted` if it was sent.
    First { retransmitted: Option<Seq> },
    /// Step 3: the next acknowledgement. `sent` is SND.NXT at the first one ("RecoveryPoint").
    Second { sent: Seq },
}

impl Flight {
    /// Looks for evidence that a reduction was unnecessary, and undoes it.
    #[expect(clippy::too_many_arguments, reason = "one step of acknowledge_general")]
    pub(crate) fn detect_spurious<C: CongestionControl>(
        &mut self,
        ack: &Acknowledgement,
        blocks: &SackReport,
        summary: &AckSummary,
        verdict: ProbeVerdict,
        path: &mut Path,
        cc: &mut C,
        outcome: &mut Outcome,
    ) {
        let mut evidence = None;
        if let Some((start, end)) = blocks.duplicate
            && verdict != ProbeVerdict::Needless
            && self.undo.covers(start, end)
        {
            if !self.undo.is_by_timeout() {
                // Data considered lost was late. RFC 8985 only widens the reordering window, which has no effect while
                // reordering_seen is false; but this is reordering.
                path.saw_reordering();
            }
            self.rack.duplicate(self.una(), self.next(), path);
            if self.undo.duplicate(end - start) {
                evidence = Some(Evidence::Duplicates);
            }
        }
        if outcome.acknowledged > 0 && self.undo.original_arrived(ack.echoed_timestamp) {
            if !self.undo.is_by_timeout() {
                path.saw_reordering();
            }
            // After a fast retransmission, further retransmissions may have been necessary. Therefore all of them have
            // to be acknowledged.
            if self.phase == Phase::Loss || self.undo.is_before(self.una()) {
                evidence = Some(Evidence::Timestamp);
            }
        }
        if self.phase == Phase::Loss && self.is_timeout_spurious(ack, summary, outcome) {
            evidence = evidence.or(Some(Evidence::ForwardRto));
        }
        if let Some(evidence) = evidence {
            let by_timeout = self.undo.is_by_timeout();
            self.undo_reduction(by_timeout, path, cc);
            outcome.undone = Some(Undone { by_timeout, evidence });
        }
    }

    /// Performs the algorithm of RFC 5682, §3.1 with SACK and §2.1 without. Returns whether the timeout is spurious.
    fn is_timeout_spurious(&mut self, ack: &Acknowledgement, summary: &AckSummary, outcome: &Outcome) -> bool {
        match self.forward_rto {
            ForwardRto::Off => false,
            ForwardRto::First { retransmitted } => {
                if outcome.acknowledged == 0 {
                    // Extension of the RFC, which waits here: a selective acknowledgement of data sent before the
                    // timeout is evidence as in step 3.
                    return summary.original > 0 && !self.rack.forward().after(self.recover);
                }
                let whole = retransmitted.is_some_and(|end| self.una().at_or_after(end));
                if whole && self.una().before(self.recover) && ack.unsent {
                    // Step 2b: new data instead of retransmissions.
                    self.recover = self.next();
                    self.forward_rto = ForwardRto::Second { sent: self.next() };
                } else {
                    self.forward_rto = ForwardRto::Off;
                }
                false
            }
            ForwardRto::Second { sent } => {
                let beyond =
                    self.una().after(sent) || self.scoreboard.highest_sacked().is_some_and(|end| end.after(sent));
                if beyond || outcome.duplicate {
                    // Step 3a.
                    self.forward_rto = ForwardRto::Off;
                    return false;
                }
                // Step 3b.
                summary.original > 0
            }
        }
    }

    /// Undoes the last reduction.
    fn undo_reduction<C: CongestionControl>(&mut self, by_timeout: bool, path: &mut Path, cc: &mut C) {
        cc.undo();
        self.undo.finish();
        if by_timeout {
            path.discard_learnt_delay();
        }
        // Otherwise the recovery is already over.
        if matches!(self.phase, Phase::Recovery | Phase::Loss) {
            self.scoreboard.unmark_lost();
            // The retransmissions were sent later than all data in flight, and must not make it appear lost.
            self.rack.forget();
            self.forward_rto = ForwardRto::Off;
            self.forced = false;
            self.duplicates = 0;
            self.duplicated = 0;
            self.recover = self.una();
            self.phase = self.open_or_disorder();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undo_ends_a_round_trip_after_the_recovery() {
        // RFC 3708 §3: a later report concerns other data.
        let mut undo = Undo::start(Seq(1), false);
        undo.retransmitted(Seq(1), 1000, 0);
        undo.recovered(Seq(5001));
        undo.expire(Seq(5001), true);
        assert!(undo.is_active() && undo.covers(Seq(1), Seq(1001)));
        undo.expire(Seq(5002), true);
        assert!(!undo.is_active() && !undo.covers(Seq(1), Seq(1001)));
    }

    #[test]
    fn undo_of_the_last_data_waits_for_late_reports() {
        // Without data in flight no acknowledgement passes the end of the recovery.
        let mut undo = Undo::start(Seq(1), false);
        undo.retransmitted(Seq(1), 1000, 0);
        undo.recovered(Seq(5001));
        undo.expire(Seq(5002), false);
        assert!(undo.is_active());
    }
}
