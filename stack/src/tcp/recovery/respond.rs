//! Congestion response: begin and end of recoveries and reductions, once per window.

use linerate_service::time::Instant;

use super::flight::{Flight, Phase};
use super::path::Path;
use super::probe::ProbeVerdict;
use super::prr::Prr;
use super::rack::DUPLICATE_THRESHOLD;
use super::undo::{ForwardRto, Undo};
use super::{Acknowledgement, CongestionControl, CongestionSignal, Outcome};

impl Flight {
    /// Ends a recovery or reduction that is complete.
    pub(crate) fn end_episode<C: CongestionControl>(
        &mut self,
        now: Instant,
        path: &mut Path,
        cc: &mut C,
        outcome: &mut Outcome,
    ) {
        if self.una().before(self.recover) {
            return;
        }
        match self.phase {
            Phase::Open | Phase::Disorder => return,
            // The reduction continues until the receiver can have received the segment with CWR, the first after it:
            // until then it sends ECE (RFC 3168 §6.1.3).
            Phase::Reducing if self.una() == self.recover && !self.is_empty() => return,
            Phase::Reducing => {}
            Phase::Recovery | Phase::Loss => {
                path.recovered();
                self.undo.recovered(self.next());
                self.guarded = !self.config.sack;
            }
        }
        if self.phase != Phase::Loss {
            // RFC 9937 §6.4.
            cc.recovered(now);
        }
        self.forward_rto = ForwardRto::Off;
        self.forced = false;
        self.duplicates = 0;
        self.duplicated = 0;
        outcome.recovery_ended = self.phase != Phase::Reducing;
        self.phase = self.open_or_disorder();
    }

    /// Marks lost data by the rules for peers without SACK. Returns the bytes marked.
    pub(crate) fn mark_lost_without_sack(&mut self, outcome: &Outcome) -> u32 {
        match self.phase {
            // RFC 5681 §3.2.
            Phase::Open | Phase::Disorder | Phase::Reducing if self.duplicates >= DUPLICATE_THRESHOLD => {
                self.scoreboard.mark_first_segment_lost()
            }
            // RFC 6582 §3.2 step 3, partial acknowledgement.
            Phase::Recovery if outcome.acknowledged > 0 => self.scoreboard.mark_first_segment_lost(),
            _ => 0,
        }
    }

    /// Responds to losses and ECE, once per window.
    pub(crate) fn respond<C: CongestionControl>(
        &mut self,
        ack: &Acknowledgement,
        verdict: ProbeVerdict,
        in_flight: u32,
        delivered: u32,
        cc: &mut C,
        outcome: &mut Outcome,
    ) {
        let calm = matches!(self.phase, Phase::Open | Phase::Disorder);
        if self.scoreboard.lost() > 0 && (calm || self.phase == Phase::Reducing) {
            self.begin_recovery(ack.now, ack.ece, in_flight, delivered, cc);
            outcome.recovery_began = true;
            outcome.reduced |= calm;
        } else if !ack.ece || !self.una().after(self.recover) {
            // No ECE, or ECE for congestion that was responded to.
        } else if calm && !self.config.exact_ecn {
            // RFC 3168 §6.1.2, with PRR (RFC 9937 §4).
            cc.congested(CongestionSignal::EcnEcho, in_flight, ack.now);
            self.prr = Prr::start(self.recovery_flight(delivered), cc.slow_start_threshold());
            self.phase = Phase::Reducing;
            self.recover = self.next();
            self.undo.finish();
            outcome.reduced = true;
        } else if self.config.exact_ecn {
            // The delivery passes the mark to congestion control. Only CWR is handled here, once per window (RFC 8257
            // §3.3).
            self.recover = self.next();
            outcome.reduced = true;
        }
        if verdict == ProbeVerdict::Repaired {
            outcome.probe_repaired = true;
            if matches!(self.phase, Phase::Open | Phase::Disorder) {
                outcome.reduced = true;
                self.respond_to_probe_repair(ack.now, cc);
            }
        }
    }

    /// Responds to a loss repaired by a probe: "a congestion control response equivalent to a fast recovery" (RFC 8985
    /// §7.4.2), with nothing left to recover.
    pub(crate) fn respond_to_probe_repair<C: CongestionControl>(&mut self, now: Instant, cc: &mut C) {
        cc.congested(CongestionSignal::Loss, self.in_flight().max(self.probe.in_flight()), now);
        cc.recovered(now);
    }

    /// Returns RecoverFS (RFC 9937 §6.1) after an acknowledgement that delivered `delivered` bytes.
    fn recovery_flight(&self, delivered: u32) -> u32 {
        (self.scoreboard.outstanding() - self.scoreboard.sacked())
            .saturating_sub(self.duplicated)
            .saturating_add(delivered)
    }

    /// Begins a fast recovery. `in_flight` is the bytes in flight before the loss was found, `delivered` the bytes
    /// delivered by the acknowledgement that revealed it.
    pub(crate) fn begin_recovery<C: CongestionControl>(
        &mut self,
        now: Instant,
        ece: bool,
        in_flight: u32,
        delivered: u32,
        cc: &mut C,
    ) {
        let reduced = self.phase == Phase::Reducing;
        if !reduced {
            cc.congested(CongestionSignal::Loss, in_flight, now);
            self.prr = Prr::start(self.recovery_flight(delivered), cc.slow_start_threshold());
        }
        // A reduction in response to ECE is never undone, even if the losses prove spurious.
        self.undo = if reduced || ece { Undo::none(self.una()) } else { Undo::start(self.una(), false) };
        self.phase = Phase::Recovery;
        self.recover = self.next();
        self.partial = false;
        self.probe.forget();
    }
}
