//! What an acknowledgement does to a flight.

use linerate_bypass::time::{Duration, Instant};

use super::flight::{Flight, Phase};
use super::path::Path;
use super::probe::Verdict;
use super::prr::Prr;
use super::rack::DUPLICATE_THRESHOLD;
use super::rtt::RttEstimator;
use super::sack::Blocks;
use super::scoreboard::Record;
use super::undo::{ForwardRto, Undo};
use super::{Acknowledgement, Cause, CongestionControl, Delivery, Evidence, Limits, Outcome, Undone};

/// What an acknowledgement says of the segments it delivers.
#[derive(Debug, Default)]
struct News {
    /// Bytes that arrived.
    delivered: u32,
    /// How many of them were never retransmitted.
    original: u32,
    /// Whether some were, and were acknowledged cumulatively.
    retransmitted: bool,
    /// When the first and the last of those never retransmitted were sent.
    oldest: Option<Instant>,
    newest: Option<Instant>,
    /// Whether something sent later had arrived before something sent earlier.
    reordered: bool,
}

impl News {
    fn record(&mut self, record: &Record, reordered: bool) {
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

#[inline]
fn nanos_since(now: Instant, earlier: Instant) -> u64 {
    now.as_nanos().saturating_sub(earlier.as_nanos()).max(1)
}

impl Flight {
    /// Takes in an acknowledgement.
    ///
    /// When nothing is wrong and nothing selectively acknowledged, this costs a few dozen instructions, touches `cc` only
    /// if the window limited what is acknowledged (RFC 9438 §5.8) or `exact_ecn` is set, and `path` once in sixteen times,
    /// or when the round trip was remarkably short or that of a lone segment with a pure acknowledgement.
    #[inline]
    pub(crate) fn acknowledge<C: CongestionControl>(
        &mut self,
        ack: &Acknowledgement,
        rtt: &mut RttEstimator,
        path: &mut Path,
        cc: &mut C,
        limits: &Limits,
    ) -> Outcome {
        let in_order = self.phase == Phase::Open
            && ack.sack.is_empty()
            && !ack.ece
            && ack.ack.after(self.una())
            && !ack.ack.after(self.next())
            && self.is_quiet()
            && !self.board.has_retransmissions();
        if in_order {
            self.advance_in_order(ack, rtt, path, cc, limits)
        } else {
            let outcome = self.examine(ack, rtt, path, cc, limits);
            Outcome { window_changed: true, ..outcome }
        }
    }

    /// The common case: new data is acknowledged in order, and nothing was ever missing.
    #[inline]
    fn advance_in_order<C: CongestionControl>(
        &mut self,
        ack: &Acknowledgement,
        rtt: &mut RttEstimator,
        path: &mut Path,
        cc: &mut C,
        limits: &Limits,
    ) -> Outcome {
        let una = self.una();
        let outstanding = self.board.outstanding();
        // About one acknowledgement for every other segment.
        let spread = (self.board.len() / 2).checked_ilog2().unwrap_or(0).min(4);
        let Some((oldest, only)) = self.board.advance_in_order(ack.ack) else { return Outcome::default() };
        let acknowledged = ack.ack - una;
        let sample = nanos_since(ack.now, oldest.sent);
        let smoothed = rtt.smoothed_nanos();
        // The minimum of the path is worth a look into cold memory only if it may have changed, or now and then.
        let notable = sample < smoothed - smoothed / 8 || !rtt.has_sample();
        if notable || ack.ack.0.wrapping_mul(0x9e37_79b1) >> 28 == 0 {
            path.measured_nanos(sample, ack.now);
        }
        if ack.pure && only && self.is_empty() && oldest.is_one_segment() {
            path.lone_segment_answered(sample);
            path.advise(rtt, limits);
        }
        rtt.sample_nanos(sample, spread);
        if rtt.consults_path() && path.backoff() > 0 {
            path.clear_backoff();
            path.advise(rtt, limits);
        }
        self.probe.measured();
        self.time_outs = 0;
        self.rto_base = ack.now;
        self.probe_base = ack.now;
        self.guarded = false;
        let window_limited = una.before(self.limited_until);
        if (una.0 ^ ack.ack.0) >> 24 != 0 {
            self.keep_up();
        }
        if window_limited || self.setup.exact_ecn {
            cc.delivered(&Delivery {
                paced: false,
                now: ack.now,
                bytes: acknowledged,
                marked: 0,
                in_flight: outstanding,
                window_limited,
                rtt: Some(Duration::from_nanos(sample)),
                smoothed_rtt: rtt.smoothed(),
                acknowledged: ack.ack.0,
                next: self.next().0,
            });
        }
        let window_changed = window_limited || self.setup.exact_ecn;
        Outcome { acknowledged, delivered: acknowledged, rtt: sample, window_changed, ..Outcome::default() }
    }

    /// Lets no remembered sequence number fall so far behind SND.UNA that it would seem to be ahead.
    fn keep_up(&mut self) {
        let una = self.una();
        self.limited_until = self.limited_until.max(una);
        self.recover = self.recover.max(una - 1);
        self.rack.keep_up(una);
        self.board.keep_up();
    }

    /// Every other case.
    #[inline(never)]
    fn examine<C: CongestionControl>(
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
        let una = self.una();
        let in_flight = self.in_flight();
        let was_limited = una.before(self.limited_until);
        let had_backlog = !self.is_empty();
        let selective = if self.setup.sack { ack.sack } else { &[] };
        let blocks = Blocks::read(selective, ack.ack, una.max(ack.ack), self.next());
        outcome.nonsense = blocks.nonsense;

        let mut news = self.take_in(ack, &blocks, path);
        outcome.acknowledged = self.una() - una;
        let repeated = had_backlog && outcome.acknowledged == 0 && ack.ack == una && ack.duplicate_candidate;
        if !self.setup.sack {
            self.count_duplicates(repeated, outcome.acknowledged, &mut news);
        }
        outcome.delivered = news.delivered;
        outcome.duplicate = repeated && (!self.setup.sack || news.delivered == 0);
        if news.reordered {
            path.saw_reordering();
        }

        if outcome.acknowledged > 0 {
            self.time_outs = 0;
            self.forced = false;
            self.probe_base = ack.now;
            // RFC 6298 §5.3; without SACK only once in a fast recovery (RFC 6582 §3.2 step 3).
            if self.setup.sack || self.phase != Phase::Recovery || !self.partial {
                self.rto_base = ack.now;
            }
            self.partial = true;
            self.guarded &= !self.una().after(self.recover);
            if news.original > 0 || ack.echoed_timestamp.is_some() {
                // Karn: the round trip is known again; a timestamp tells it of a retransmission too (RFC 7323 §4.1).
                path.clear_backoff();
            }
        }
        self.measure(ack.now, &news, rtt, path, &mut outcome);

        let bare_duplicate = ack.sack.is_empty() && ack.duplicate_candidate && outcome.acknowledged == 0;
        let verdict = self.probe.acknowledged(ack.ack, blocks.duplicate, bare_duplicate);
        if verdict == Verdict::Needless
            && let Some(since) = self.probe.alone_since()
        {
            // The acknowledgement was held back for longer than was thought possible.
            path.delay_was_longer_than(nanos_since(ack.now, since));
        }
        if let Some((start, end)) = blocks.duplicate {
            outcome.duplicates = end - start;
        }
        self.reconsider(ack, &blocks, &news, verdict, path, cc, &mut outcome);
        self.conclude(ack.now, path, cc, &mut outcome);
        let found = if self.setup.sack {
            let recovering = matches!(self.phase, Phase::Recovery | Phase::Loss);
            self.rack.detect(&mut self.board, ack.now, recovering, path, rtt)
        } else {
            super::scoreboard::Found { lost: self.missing_without_sack(&outcome), ..Default::default() }
        };
        (outcome.lost, outcome.lost_again) = (found.lost, found.lost_again);
        self.respond(ack, verdict, in_flight, news.delivered, cc, &mut outcome);

        match self.phase {
            Phase::Reducing | Phase::Recovery => {
                let safe = outcome.acknowledged > 0 && found.lost == 0;
                self.prr.acknowledged(news.delivered, self.in_flight(), safe, self.mss());
            }
            Phase::Open | Phase::Disorder => self.phase = self.calm(),
            Phase::Loss => {}
        }
        let growing = matches!(self.phase, Phase::Open | Phase::Disorder | Phase::Loss);
        // RFC 5681 §3.2: the window does not grow while something is missing, unless things come out of order anyway.
        let progress = outcome.acknowledged > 0 || self.setup.sack && path.reordering_seen();
        let window_limited = growing
            && progress
            && !outcome.recovery_ended
            && !outcome.reduced
            && (was_limited || self.phase == Phase::Loss);
        if news.delivered > 0 && (window_limited || self.setup.exact_ecn) {
            cc.delivered(&Delivery {
                paced: false,
                now: ack.now,
                bytes: news.delivered,
                marked: if ack.ece { news.delivered } else { 0 },
                in_flight,
                window_limited,
                rtt: outcome.rtt(),
                smoothed_rtt: rtt.smoothed(),
                acknowledged: self.una().0,
                next: self.next().0,
            });
        }
        self.undo.expire(self.una(), !self.is_empty());
        self.keep_up();
        path.advise(rtt, limits);
        if self.is_empty() && had_backlog {
            // From here an empty flight waits for what may still be learnt.
            self.rto_base = ack.now;
        }
        outcome
    }

    /// Updates the scoreboard, and RACK's steps 2 and 3 (RFC 8985 §6.2).
    fn take_in(&mut self, ack: &Acknowledgement, blocks: &Blocks, path: &Path) -> News {
        let mut news = News::default();
        let (board, rack) = (&mut self.board, &mut self.rack);
        let minimum = path.min_rtt_nanos();
        let mut delivered = |news: &mut News, record: &Record| {
            let reordered = rack.delivered(record, ack.now, ack.echoed_timestamp, minimum);
            news.record(record, reordered);
        };
        if ack.ack.after(board.una()) {
            board.advance(ack.ack, |record| delivered(&mut news, record));
        }
        let cumulatively_retransmitted = news.retransmitted;
        for (start, end) in blocks.iter() {
            board.sack(start, end, |record| delivered(&mut news, record));
        }
        news.retransmitted = cumulatively_retransmitted;
        news
    }

    /// Without SACK each duplicate acknowledgement stands for a segment that arrived (RFC 9937 §6.2, RFC 3042).
    fn count_duplicates(&mut self, repeated: bool, acknowledged: u32, news: &mut News) {
        let mss = self.mss();
        if acknowledged > 0 {
            // The first segment was what was missing; what was acknowledged beyond it had been counted before.
            let counted = self.duplicated.min(acknowledged.saturating_sub(mss));
            self.duplicated = (self.duplicated - counted).min(self.board.in_flight());
            news.delivered -= counted.min(news.delivered);
            if self.phase != Phase::Recovery {
                self.duplicates = 0;
                self.duplicated = 0;
            }
        } else if repeated && !self.guarded {
            let possible = match self.phase {
                Phase::Recovery => self.prr.undelivered(),
                // Only of the new data that was sent after the time-out (RFC 5682 §2.1 step 2b).
                Phase::Loss if !self.next().after(self.recover) => return,
                Phase::Loss => (self.next() - self.recover).saturating_sub(self.duplicated),
                _ => mss,
            };
            let counted = mss.min(self.in_flight()).min(possible);
            self.duplicates = self.duplicates.saturating_add(1);
            self.duplicated += counted;
            news.delivered += counted;
        }
    }

    /// Measures the round trip (RFC 6298 §3: not of what was retransmitted), by what was sent first: the time that it waited
    /// for the acknowledgement belongs to the time-out. The minimum is measured by what was sent last.
    fn measure(&mut self, now: Instant, news: &News, rtt: &mut RttEstimator, path: &mut Path, outcome: &mut Outcome) {
        if news.retransmitted {
            return;
        }
        if let (Some(oldest), Some(newest)) = (news.oldest, news.newest) {
            let spread = (self.board.len() / 2).checked_ilog2().unwrap_or(0).min(4);
            outcome.rtt = nanos_since(now, oldest);
            rtt.sample_nanos(outcome.rtt, spread);
            path.measured_nanos(nanos_since(now, newest), now);
            self.probe.measured();
        }
    }

    /// Looks for evidence that a reduction was needless, and takes it back.
    #[allow(clippy::too_many_arguments, reason = "one step of examine, which it keeps readable")]
    fn reconsider<C: CongestionControl>(
        &mut self,
        ack: &Acknowledgement,
        blocks: &Blocks,
        news: &News,
        verdict: Verdict,
        path: &mut Path,
        cc: &mut C,
        outcome: &mut Outcome,
    ) {
        let mut evidence = None;
        if let Some((start, end)) = blocks.duplicate
            && verdict != Verdict::Needless
            && self.undo.covers(start, end)
        {
            if !self.undo.is_for_time_out() {
                // What was believed lost was late. RFC 8985 leaves it at widening the window, which has no effect while
                // reordering_seen is false: but this is reordering seen.
                path.saw_reordering();
            }
            self.rack.duplicate(self.una(), self.next(), path);
            if self.undo.duplicate(end - start) {
                evidence = Some(Evidence::Duplicates);
            }
        }
        if outcome.acknowledged > 0 && self.undo.original_arrived(ack.echoed_timestamp) {
            if !self.undo.is_for_time_out() {
                path.saw_reordering();
            }
            // After a fast retransmission others of its kind may have been needed: not before all are acknowledged.
            if self.phase == Phase::Loss || self.undo.is_behind(self.una()) {
                evidence = Some(Evidence::Timestamp);
            }
        }
        if self.phase == Phase::Loss && self.time_out_was_spurious(ack, news, outcome) {
            evidence = evidence.or(Some(Evidence::ForwardRto));
        }
        if let Some(evidence) = evidence {
            let time_out = self.undo.is_for_time_out();
            self.take_back(time_out, path, cc);
            outcome.undone = Some(Undone { time_out, evidence });
        }
    }

    /// The algorithm of RFC 5682, §3.1 with SACK and §2.1 without. Returns whether the time-out is declared spurious.
    fn time_out_was_spurious(&mut self, ack: &Acknowledgement, news: &News, outcome: &Outcome) -> bool {
        match self.forward_rto {
            ForwardRto::Off => false,
            ForwardRto::First { retransmitted } => {
                if outcome.acknowledged == 0 {
                    // Beyond the RFC, which waits here: data sent before the time-out and only now acknowledged
                    // selectively says the same as it does in step 3.
                    return news.original > 0 && !self.rack.forward().after(self.recover);
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
                let beyond = self.una().after(sent) || self.board.highest_sacked().is_some_and(|end| end.after(sent));
                if beyond || outcome.duplicate {
                    // Step 3a.
                    self.forward_rto = ForwardRto::Off;
                    return false;
                }
                // Step 3b.
                news.original > 0
            }
        }
    }

    /// Takes back the last reduction.
    fn take_back<C: CongestionControl>(&mut self, time_out: bool, path: &mut Path, cc: &mut C) {
        cc.undo();
        self.undo.finish();
        if time_out {
            path.time_out_was_spurious();
        }
        // Otherwise the recovery is over already.
        if matches!(self.phase, Phase::Recovery | Phase::Loss) {
            self.board.forgive();
            // The retransmissions, later than all that is in flight, must not make it appear lost.
            self.rack.forget();
            self.forward_rto = ForwardRto::Off;
            self.forced = false;
            self.duplicates = 0;
            self.duplicated = 0;
            self.recover = self.una();
            self.phase = self.calm();
        }
    }

    /// Ends what has reached its end.
    fn conclude<C: CongestionControl>(&mut self, now: Instant, path: &mut Path, cc: &mut C, outcome: &mut Outcome) {
        if self.una().before(self.recover) {
            return;
        }
        match self.phase {
            Phase::Open | Phase::Disorder => return,
            // Not before the segment with CWR, the first beyond, can have been seen by the receiver: until then it goes on
            // to echo (RFC 3168 §6.1.3).
            Phase::Reducing if self.una() == self.recover && !self.is_empty() => return,
            Phase::Reducing => {}
            Phase::Recovery | Phase::Loss => {
                path.recovered();
                self.undo.recovered(self.next());
                self.guarded = !self.setup.sack;
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
        self.phase = self.calm();
    }

    /// What is missing by the rules for peers that do not acknowledge selectively. Returns how many bytes.
    fn missing_without_sack(&mut self, outcome: &Outcome) -> u32 {
        match self.phase {
            // RFC 5681 §3.2.
            Phase::Open | Phase::Disorder | Phase::Reducing if self.duplicates >= DUPLICATE_THRESHOLD => {
                self.board.mark_first_segment_lost()
            }
            // RFC 6582 §3.2 step 3, partial acknowledgement.
            Phase::Recovery if outcome.acknowledged > 0 => self.board.mark_first_segment_lost(),
            _ => 0,
        }
    }

    /// Responds to losses and echoes of congestion, once per window.
    fn respond<C: CongestionControl>(
        &mut self,
        ack: &Acknowledgement,
        verdict: Verdict,
        in_flight: u32,
        delivered: u32,
        cc: &mut C,
        outcome: &mut Outcome,
    ) {
        let calm = matches!(self.phase, Phase::Open | Phase::Disorder);
        if self.board.lost() > 0 && (calm || self.phase == Phase::Reducing) {
            self.begin_recovery(ack.now, ack.ece, in_flight, delivered, cc);
            outcome.recovery_began = true;
            outcome.reduced |= calm;
        } else if !ack.ece || !self.una().after(self.recover) {
            // No echo, or one of the congestion that was responded to already.
        } else if calm && !self.setup.exact_ecn {
            // RFC 3168 §6.1.2, with PRR (RFC 9937 §4).
            cc.congested(Cause::EcnEcho, in_flight, ack.now);
            self.prr = Prr::start(self.recovery_flight(delivered), cc.slow_start_threshold());
            self.phase = Phase::Reducing;
            self.recover = self.next();
            self.undo.finish();
            outcome.reduced = true;
        } else if self.setup.exact_ecn {
            // Congestion control hears of the mark with the delivery; here only CWR, once per window (RFC 8257 §3.3).
            self.recover = self.next();
            outcome.reduced = true;
        }
        if verdict == Verdict::Repaired {
            outcome.probe_repaired = true;
            if matches!(self.phase, Phase::Open | Phase::Disorder) {
                outcome.reduced = true;
                self.repaired_by_probe(ack.now, cc);
            }
        }
    }

    /// A probe has repaired a loss: "a congestion control response equivalent to a fast recovery" (RFC 8985 §7.4.2), with
    /// nothing left to recover.
    pub(super) fn repaired_by_probe<C: CongestionControl>(&mut self, now: Instant, cc: &mut C) {
        cc.congested(Cause::Loss, self.in_flight().max(self.probe.in_flight()), now);
        cc.recovered(now);
    }

    /// RecoverFS (RFC 9937 §6.1) when an acknowledgement has just delivered `delivered` bytes.
    fn recovery_flight(&self, delivered: u32) -> u32 {
        (self.board.outstanding() - self.board.sacked()).saturating_sub(self.duplicated).saturating_add(delivered)
    }

    /// Fast recovery begins. `in_flight` is what was in flight before the loss was found, `delivered` what the
    /// acknowledgement delivered that found it.
    pub(super) fn begin_recovery<C: CongestionControl>(
        &mut self,
        now: Instant,
        ece: bool,
        in_flight: u32,
        delivered: u32,
        cc: &mut C,
    ) {
        let reduced = self.phase == Phase::Reducing;
        if !reduced {
            cc.congested(Cause::Loss, in_flight, now);
            self.prr = Prr::start(self.recovery_flight(delivered), cc.slow_start_threshold());
        }
        // A reduction that congestion was echoed for is not taken back, whatever becomes of the losses.
        self.undo = if reduced || ece { Undo::none(self.una()) } else { Undo::start(self.una(), false) };
        self.phase = Phase::Recovery;
        self.recover = self.next();
        self.partial = false;
        self.probe.forget();
    }
}
