//! Timer of a flight: reordering, probe or retransmission (RFC 8985 §8).

use linerate_service::time::Instant;

use super::flight::{Flight, Phase};
use super::path::{self, Path};
use super::probe;
use super::rtt::RttEstimator;
use super::undo::{ForwardRto, Undo};
use super::{CongestionControl, Expired, Limits, Seq};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timer {
    Reordering,
    Probe,
    Retransmission,
    /// No data is in flight, but a probe result or duplicate report is pending.
    Linger,
}

#[inline]
fn after(base: Instant, nanos: u64) -> Instant {
    Instant::from_nanos(base.as_nanos().saturating_add(nanos))
}

impl Flight {
    fn timer(&self, rtt: &RttEstimator, path: &Path, limits: &Limits) -> Option<(Timer, Instant)> {
        if self.is_empty() {
            return self.settle_timer(rtt, path, limits);
        }
        let rto = after(self.rto_base, path::effective_rto(rtt, path, limits));
        if let Some(reordering) = self.rack.deadline().filter(|&at| at <= rto) {
            return Some((Timer::Reordering, reordering));
        }
        // RFC 8985 §7.2: neither in a recovery nor with selectively acknowledged data.
        let probing = self.config.sack
            && matches!(self.phase, Phase::Open | Phase::Reducing)
            && self.scoreboard.sacked() == 0
            && rtt.has_sample()
            && self.rack.deadline().is_none()
            && self.probe.may_be_sent();
        if probing {
            let probe = after(self.probe_base, probe::probe_timeout(rtt, path, limits, &self.scoreboard));
            return Some((Timer::Probe, probe.min(rto)));
        }
        Some((Timer::Retransmission, rto))
    }

    /// Returns the timer of an empty flight.
    #[cold]
    fn settle_timer(&self, rtt: &RttEstimator, path: &Path, limits: &Limits) -> Option<(Timer, Instant)> {
        let patience = probe::probe_timeout(rtt, path, limits, &self.scoreboard);
        (!self.is_quiet()).then(|| (Timer::Linger, after(self.rto_base, patience)))
    }

    /// Returns the time at which [`expire`](Self::expire) has to be called; `None` if nothing is pending. It changes
    /// with every transmission, acknowledgement and expiry.
    #[inline]
    pub(crate) fn deadline(&self, rtt: &RttEstimator, path: &Path, limits: &Limits) -> Option<Instant> {
        if !self.disturbed && !rtt.consults_path() && self.scoreboard.is_one_segment() {
            // Common case. The probe timeout would be after the RTO, because the acknowledgement of a lone segment may
            // be delayed for as long as the floor.
            let rto = after(self.rto_base, path::effective_rto(rtt, path, limits));
            debug_assert_eq!(self.timer(rtt, path, limits).map(|(_, at)| at), Some(rto));
            return Some(rto);
        }
        self.timer(rtt, path, limits).map(|(_, at)| at)
    }

    /// Processes a timer that may have expired, and returns the action. `unsent`: the engine has unsent data within the
    /// peer's window.
    pub(crate) fn expire<C: CongestionControl>(
        &mut self,
        now: Instant,
        unsent: bool,
        rtt: &mut RttEstimator,
        path: &mut Path,
        cc: &mut C,
        limits: &Limits,
    ) -> Expired {
        let due = self.timer(rtt, path, limits).filter(|&(_, at)| at <= now);
        let Some((timer, _)) = due else { return Expired::Nothing };
        self.disturbed = true;
        match timer {
            Timer::Reordering => self.expire_reordering(now, rtt, path, cc),
            Timer::Probe => self.send_probe(now, unsent),
            Timer::Retransmission => self.expire_rto(now, rtt, path, cc, limits),
            Timer::Linger => self.presume_settled(now, cc),
        }
    }

    /// Processes an expired reordering timer of RACK (RFC 8985 §6.2 step 5).
    fn expire_reordering<C: CongestionControl>(
        &mut self,
        now: Instant,
        rtt: &RttEstimator,
        path: &mut Path,
        cc: &mut C,
    ) -> Expired {
        let in_flight = self.in_flight();
        let recovering = matches!(self.phase, Phase::Recovery | Phase::Loss);
        let found = self.rack.detect(&mut self.scoreboard, now, recovering, path, rtt);
        if found.lost == 0 {
            return Expired::Nothing;
        }
        let recovery_began = !recovering;
        if recovery_began {
            self.begin_recovery(now, false, in_flight, 0, cc);
        }
        if self.phase == Phase::Recovery {
            self.prr.acknowledged(0, self.in_flight(), false, self.mss());
        }
        Expired::Reordering { lost: found.lost, recovery_began }
    }

    /// Makes a tail loss probe due (RFC 8985 §7.3).
    fn send_probe(&mut self, now: Instant, unsent: bool) -> Expired {
        self.probe.due(self.in_flight(), self.scoreboard.is_one_segment(), self.probe_base);
        self.rto_base = now;
        Expired::Probe(if unsent { None } else { self.last_segment() })
    }

    /// Returns the segment that ends at SND.NXT.
    fn last_segment(&self) -> Option<(Seq, u32)> {
        let last = self.scoreboard.last()?;
        let len = if last.is_one_segment() { last.len } else { (last.len - 1) % self.mss() + 1 };
        Some((last.end() - len, len))
    }

    /// Processes an expired retransmission timer (RFC 6298 §5.4 to §5.6).
    fn expire_rto<C: CongestionControl>(
        &mut self,
        now: Instant,
        rtt: &mut RttEstimator,
        path: &mut Path,
        cc: &mut C,
        limits: &Limits,
    ) -> Expired {
        if self.timeouts >= limits.max_retransmissions {
            return Expired::GiveUp;
        }
        let in_flight = self.in_flight();
        let was = self.phase;
        // The same segment timed out again.
        let again = was == Phase::Loss && self.timeouts > 0 && self.undo.una() == self.una();
        self.timeouts += 1;
        path.back_off();

        // RFC 2018 §8 requires the sender to forget selective acknowledgements, which causes a window of unnecessary
        // retransmissions. Therefore this is done only if the receiver has discarded data, as shown by a cumulative
        // acknowledgement that stops before selectively acknowledged data, or if the retransmission had no effect.
        let discarded = self.scoreboard.first().is_some_and(|first| first.is_sacked());
        let reneged = (discarded || again) && self.scoreboard.sacked() > 0;
        if reneged {
            self.scoreboard.forget_sacks();
        }
        let everything = reneged || again || !self.config.sack;
        let recovering = matches!(was, Phase::Recovery | Phase::Loss);
        let lost = if everything {
            self.rack.forget();
            self.scoreboard.mark_lost_on_rto(|_| true)
        } else {
            self.rack.mark_lost_on_rto(&mut self.scoreboard, now, recovering, path, rtt)
        };
        if !again {
            // RFC 5681 §3.1: when the same segment times out again, the threshold stays, and the window is one segment.
            cc.timed_out(in_flight, now);
            self.undo = Undo::start(self.una(), true);
        }
        // RFC 5682 §2.1 step 1: not during a recovery, unless it is for the same segment.
        let applicable = !recovering || again && self.forward_rto != ForwardRto::Off;
        self.forward_rto = if applicable { ForwardRto::First { retransmitted: None } } else { ForwardRto::Off };
        self.enter_loss();
        self.rto_base = now;
        path.update_consults_path(rtt, limits);
        Expired::Timeout { lost, reneged }
    }

    /// Ends the wait for reports with nothing in flight.
    fn presume_settled<C: CongestionControl>(&mut self, now: Instant, cc: &mut C) -> Expired {
        self.undo.finish();
        let reduced = self.probe.abandon();
        if reduced {
            self.respond_to_probe_repair(now, cc);
        }
        Expired::Settled { reduced }
    }
}
