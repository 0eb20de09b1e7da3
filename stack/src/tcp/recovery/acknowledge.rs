//! Processing of acknowledgements by a flight.

use linerate_service::time::{Duration, Instant};

use super::flight::{Flight, Phase};
use super::path::Path;
use super::probe::ProbeVerdict;
use super::rtt::RttEstimator;
use super::scoreboard::SackReport;
use super::scoreboard::{LossScan, TxRecord};
use super::{Acknowledgement, CongestionControl, Delivery, Limits, Outcome, Seq};

/// Segments delivered by an acknowledgement.
#[derive(Debug, Default)]
pub(crate) struct AckSummary {
    pub(crate) delivered: u32,
    /// Bytes delivered that were never retransmitted.
    pub(crate) original: u32,
    /// True if retransmitted bytes were acknowledged cumulatively.
    retransmitted: bool,
    /// Earliest and latest transmission among the segments never retransmitted.
    oldest: Option<Instant>,
    newest: Option<Instant>,
    /// True if a segment was delivered after one that was sent later.
    reordered: bool,
}

impl AckSummary {
    fn record(&mut self, record: &TxRecord, reordered: bool) {
        self.delivered += record.len;
        self.reordered |= reordered;
        if record.is_retransmitted() {
            self.retransmitted = true;
        } else {
            self.original += record.len;
            self.oldest = Some(self.oldest.map_or(record.sent, |oldest| oldest.min(record.sent)));
            self.newest = Some(self.newest.map_or(record.sent, |newest| newest.max(record.sent)));
        }
    }
}

/// Measurement by an acknowledgement in order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AckReport {
    /// RTT sample in nanoseconds.
    pub(crate) sample: u64,
    /// True if a segment without data acknowledged a lone segment.
    pub(crate) lone: bool,
    /// True if it has to be [reported](Flight::report).
    pub(crate) notable: bool,
}

#[inline]
fn nanos_since(now: Instant, earlier: Instant) -> u64 {
    now.as_nanos().saturating_sub(earlier.as_nanos()).max(1)
}

impl Flight {
    /// Processes an acknowledgement.
    ///
    /// Without losses this takes about a hundred instructions for a single record. It accesses `cc` only if the window
    /// limited the acknowledged data (RFC 9438 §5.8) or `exact_ecn` is set, and `path` only once in sixteen times, for
    /// an unusually short RTT sample, or for a lone segment acknowledged without data.
    #[inline]
    pub(crate) fn acknowledge<C: CongestionControl>(
        &mut self,
        ack: &Acknowledgement,
        rtt: &mut RttEstimator,
        path: &mut Path,
        cc: &mut C,
        limits: &Limits,
    ) -> Outcome {
        if !self.disturbed && ack.sack.is_empty() && !ack.ece {
            if ack.ack.after(self.una()) && !ack.ack.after(self.next()) {
                return self.advance_in_order(ack, rtt, path, cc, limits);
            }
            // Data of the peer, while no local data was acknowledged.
            if !ack.duplicate_candidate {
                return Outcome::default();
            }
        }
        let outcome = self.acknowledge_general(ack, rtt, path, cc, limits);
        Outcome { window_changed: true, ..outcome }
    }

    /// Processes an acknowledgement of new data in order, without losses.
    #[inline]
    fn advance_in_order<C: CongestionControl>(
        &mut self,
        ack: &Acknowledgement,
        rtt: &mut RttEstimator,
        path: &mut Path,
        cc: &mut C,
        limits: &Limits,
    ) -> Outcome {
        let acknowledged = ack.ack - self.una();
        let AckReport { sample, lone, notable } = self.acknowledge_clean(ack.ack, ack.pure, ack.now, rtt);
        if notable {
            self.report(ack.ack, acknowledged, sample, lone, ack.now, rtt, path, cc, limits);
        }
        Outcome { acknowledged, delivered: acknowledged, rtt: sample, window_changed: notable, ..Outcome::default() }
    }

    /// Returns whether an acknowledgement that advances SND.UNA from `una` to `ack`, with an RTT sample of `sample`
    /// nanoseconds, has to be [reported](Self::report). The minimum RTT is in cold memory, and is updated only if it
    /// may have changed, or from time to time. A report every 16 MB advances the stored sequence numbers.
    #[inline(always)]
    fn is_notable(&self, una: Seq, ack: Seq, sample: u64, previous: RttEstimator) -> bool {
        previous.is_much_longer_than(sample)
            || ack.0.wrapping_mul(0x9e37_79b1) >> 28 == 0
            || (una.0 ^ ack.0) >> 24 != 0
            || previous.consults_path()
            || una.before(self.limited_until)
            || self.config.exact_ecn
    }

    /// Processes an acknowledgement of new data up to `ack` like [`acknowledge`](Self::acknowledge), for a
    /// [clean](Self::is_clean) flight. `pure`: the segment has no data.
    #[inline(always)]
    pub(crate) fn acknowledge_clean(
        &mut self,
        ack: Seq,
        pure: bool,
        now: Instant,
        rtt: &mut RttEstimator,
    ) -> AckReport {
        let una = self.una();
        let previous = *rtt;
        let (sample, lone) = if self.is_lone_acked_by(ack) {
            let lone = pure && self.scoreboard.is_one_segment();
            let sample = nanos_since(now, self.scoreboard.take_lone(ack));
            rtt.sample_nanos(sample, 0);
            (sample, lone)
        } else {
            (self.advance_further(ack, now, rtt), false)
        };
        self.rto_base = now;
        self.probe_base = now;
        AckReport { sample, lone, notable: lone || self.is_notable(una, ack, sample, previous) }
    }

    /// Returns whether `ack` acknowledges the only transmission in flight.
    #[inline(always)]
    pub(crate) fn is_lone_acked_by(&self, ack: Seq) -> bool {
        self.scoreboard.is_lone() && ack == self.next()
    }

    /// Advances SND.UNA to `ack` in the general case, samples the RTT, and returns the sample in nanoseconds.
    #[inline(never)]
    fn advance_further(&mut self, ack: Seq, now: Instant, rtt: &mut RttEstimator) -> u64 {
        let shift = self.samples_shift();
        let sample = nanos_since(now, self.scoreboard.advance_in_order(ack));
        rtt.sample_nanos(sample, shift);
        sample
    }

    /// Reports an acknowledgement in order to the path estimator and to congestion control.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "out-of-line part of advance_in_order")]
    pub(crate) fn report<C: CongestionControl>(
        &mut self,
        ack: Seq,
        acknowledged: u32,
        sample: u64,
        lone: bool,
        now: Instant,
        rtt: &mut RttEstimator,
        path: &mut Path,
        cc: &mut C,
        limits: &Limits,
    ) {
        path.measured_nanos(sample, now);
        if lone {
            path.sample_ack_delay(sample);
        }
        path.clear_backoff();
        path.update_consults_path(rtt, limits);
        let window_limited = (ack - acknowledged).before(self.limited_until);
        if window_limited || self.config.exact_ecn {
            cc.delivered(&Delivery {
                paced: limits.paced,
                now,
                bytes: acknowledged,
                marked: 0,
                in_flight: self.scoreboard.outstanding() + acknowledged,
                window_limited,
                rtt: Some(Duration::from_nanos(sample)),
                smoothed_rtt: rtt.smoothed(),
                acknowledged: ack.0,
                next: self.next().0,
            });
        }
        self.follow_una();
    }

    /// Returns the logarithm of the approximate number of RTT samples per round trip, one for every other segment.
    #[inline]
    fn samples_shift(&self) -> u32 {
        let records = self.scoreboard.len();
        if records < 4 { 0 } else { (records.ilog2() - 1).min(4) }
    }

    /// Moves stored sequence numbers along with SND.UNA, so that none wraps and appears to be ahead of it.
    fn follow_una(&mut self) {
        let una = self.una();
        self.limited_until = self.limited_until.max(una);
        self.recover = self.recover.max(una - 1);
        self.rack.follow_una(una);
        self.scoreboard.follow_una();
    }

    /// Marks the flight as clean if no trace of a disturbance remains, which enables the fast path.
    fn clean(&mut self) {
        self.disturbed = self.phase != Phase::Open
            || !self.is_quiet()
            || !self.probe.may_be_sent()
            || self.scoreboard.has_retransmissions()
            || self.guarded
            || self.duplicates > 0
            || self.timeouts > 0;
        if !self.disturbed {
            self.forced = false;
            self.rack.forget();
        }
    }

    /// Processes an acknowledgement on the general path.
    #[inline(never)]
    fn acknowledge_general<C: CongestionControl>(
        &mut self,
        ack: &Acknowledgement,
        rtt: &mut RttEstimator,
        path: &mut Path,
        cc: &mut C,
        limits: &Limits,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        if ack.ack.after(self.next()) {
            return outcome;
        }
        self.disturbed = true;
        let una = self.una();
        let in_flight = self.in_flight();
        let was_limited = una.before(self.limited_until);
        let had_backlog = !self.is_empty();
        let selective = if self.config.sack { ack.sack } else { &[] };
        let blocks = SackReport::read(selective, ack.ack, una.max(ack.ack), self.next());
        outcome.invalid_blocks = blocks.invalid_blocks;

        let mut summary = self.update_scoreboard(ack, &blocks, path);
        outcome.acknowledged = self.una() - una;
        let repeated = had_backlog && outcome.acknowledged == 0 && ack.ack == una && ack.duplicate_candidate;
        if !self.config.sack {
            self.count_duplicates(repeated, outcome.acknowledged, &mut summary);
        }
        outcome.delivered = summary.delivered;
        outcome.duplicate = repeated && (!self.config.sack || summary.delivered == 0);
        if summary.reordered {
            path.saw_reordering();
        }

        if outcome.acknowledged > 0 {
            self.timeouts = 0;
            self.forced = false;
            self.probe_base = ack.now;
            // RFC 6298 §5.3; without SACK only once in a fast recovery (RFC 6582 §3.2 step 3).
            if self.config.sack || self.phase != Phase::Recovery || !self.partial {
                self.rto_base = ack.now;
            }
            self.partial = true;
            self.guarded &= !self.una().after(self.recover);
            if summary.original > 0 || ack.echoed_timestamp.is_some() {
                // Karn: the RTT is known again. With timestamps, the RTT of a retransmission is known as well (RFC 7323
                // §4.1).
                path.clear_backoff();
            }
        }
        self.measure(ack.now, &summary, rtt, path, &mut outcome);

        let bare_duplicate = ack.sack.is_empty() && ack.duplicate_candidate && outcome.acknowledged == 0;
        let verdict = self.probe.acknowledged(ack.ack, blocks.duplicate, bare_duplicate);
        if verdict == ProbeVerdict::Needless
            && let Some(since) = self.probe.alone_since()
        {
            // The peer delayed the acknowledgement for longer than assumed.
            path.raise_ack_delay(nanos_since(ack.now, since));
        }
        if let Some((start, end)) = blocks.duplicate {
            outcome.duplicates = end - start;
        }
        self.detect_spurious(ack, &blocks, &summary, verdict, path, cc, &mut outcome);
        self.end_episode(ack.now, path, cc, &mut outcome);
        let found = if self.config.sack {
            let recovering = matches!(self.phase, Phase::Recovery | Phase::Loss);
            self.rack.detect(&mut self.scoreboard, ack.now, recovering, path, rtt)
        } else {
            LossScan { lost: self.mark_lost_without_sack(&outcome), ..Default::default() }
        };
        (outcome.lost, outcome.lost_again) = (found.lost, found.lost_again);
        self.respond(ack, verdict, in_flight, summary.delivered, cc, &mut outcome);

        match self.phase {
            Phase::Reducing | Phase::Recovery => {
                let safe = outcome.acknowledged > 0 && found.lost == 0;
                self.prr.acknowledged(summary.delivered, self.in_flight(), safe, self.mss());
            }
            Phase::Open | Phase::Disorder => self.phase = self.open_or_disorder(),
            Phase::Loss => {}
        }
        let growing = matches!(self.phase, Phase::Open | Phase::Disorder | Phase::Loss);
        // RFC 5681 §3.2: the window does not grow during a fast recovery. Without an advance of SND.UNA it grows only
        // on a path known to reorder.
        let progress = outcome.acknowledged > 0 || self.config.sack && path.reordering_seen();
        let window_limited = growing
            && progress
            && !outcome.recovery_ended
            && !outcome.reduced
            && (was_limited || self.phase == Phase::Loss);
        if summary.delivered > 0 && (window_limited || self.config.exact_ecn) {
            cc.delivered(&Delivery {
                paced: limits.paced,
                now: ack.now,
                bytes: summary.delivered,
                marked: if ack.ece { summary.delivered } else { 0 },
                in_flight,
                window_limited,
                rtt: outcome.rtt(),
                smoothed_rtt: rtt.smoothed(),
                acknowledged: self.una().0,
                next: self.next().0,
            });
        }
        self.undo.expire(self.una(), !self.is_empty());
        self.follow_una();
        self.clean();
        path.update_consults_path(rtt, limits);
        if self.is_empty() && had_backlog {
            // From here on an empty flight waits for reports of duplicates or the result of a probe.
            self.rto_base = ack.now;
        }
        outcome
    }

    /// Updates the scoreboard, and performs RACK's steps 2 and 3 (RFC 8985 §6.2).
    fn update_scoreboard(&mut self, ack: &Acknowledgement, blocks: &SackReport, path: &Path) -> AckSummary {
        let mut summary = AckSummary::default();
        let (scoreboard, rack) = (&mut self.scoreboard, &mut self.rack);
        let minimum = path.min_rtt_nanos();
        let mut delivered = |summary: &mut AckSummary, record: &TxRecord| {
            let reordered = rack.delivered(record, ack.now, ack.echoed_timestamp, minimum);
            summary.record(record, reordered);
        };
        if ack.ack.after(scoreboard.una()) {
            scoreboard.advance(ack.ack, |record| delivered(&mut summary, record));
        }
        let cumulatively_retransmitted = summary.retransmitted;
        for (start, end) in blocks.iter() {
            scoreboard.sack(start, end, |record| delivered(&mut summary, record));
        }
        summary.retransmitted = cumulatively_retransmitted;
        summary
    }

    /// Counts a duplicate acknowledgement without SACK: each represents one delivered segment (RFC 9937 §6.2, RFC
    /// 3042).
    fn count_duplicates(&mut self, repeated: bool, acknowledged: u32, summary: &mut AckSummary) {
        let mss = self.mss();
        if acknowledged > 0 {
            // The first segment was missing; the data beyond it was counted by the duplicates.
            let counted = self.duplicated.min(acknowledged.saturating_sub(mss));
            self.duplicated = (self.duplicated - counted).min(self.scoreboard.in_flight());
            summary.delivered -= counted.min(summary.delivered);
            if self.phase != Phase::Recovery {
                self.duplicates = 0;
                self.duplicated = 0;
            }
        } else if repeated && !self.guarded {
            let possible = match self.phase {
                Phase::Recovery => self.prr.undelivered(),
                // Only duplicates of new data sent after the timeout count (RFC 5682 §2.1 step 2b).
                Phase::Loss if !self.next().after(self.recover) => return,
                Phase::Loss => (self.next() - self.recover).saturating_sub(self.duplicated),
                _ => mss,
            };
            let counted = mss.min(self.in_flight()).min(possible);
            self.duplicates = self.duplicates.saturating_add(1);
            self.duplicated += counted;
            summary.delivered += counted;
        }
    }

    /// Samples the RTT from the earliest transmission, because the RTO has to include delayed acknowledgements. The
    /// minimum RTT is sampled from the latest transmission. Retransmitted segments yield no sample (RFC 6298 §3).
    fn measure(
        &mut self,
        now: Instant,
        summary: &AckSummary,
        rtt: &mut RttEstimator,
        path: &mut Path,
        outcome: &mut Outcome,
    ) {
        if summary.retransmitted {
            return;
        }
        if let (Some(oldest), Some(newest)) = (summary.oldest, summary.newest) {
            outcome.rtt = nanos_since(now, oldest);
            rtt.sample_nanos(outcome.rtt, self.samples_shift());
            path.measured_nanos(nanos_since(now, newest), now);
            self.probe.measured();
        }
    }
}
