//! RACK: loss detection by the delivery of segments sent later (RFC 8985 §6).

use linerate_service::time::Instant;

use super::Seq;
use super::path::Path;
use super::rtt::RttEstimator;
use super::scoreboard::{LossScan, Scoreboard, TxRecord};

/// DupThresh: number of selectively acknowledged segments that indicate a loss on a path that does not reorder.
pub(crate) const DUPLICATE_THRESHOLD: u32 = 3;

/// Returns whether timestamp `a` is before `b` (RFC 7323 §5.2).
#[inline]
pub(crate) fn timestamp_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// RACK's per-connection variables.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rack {
    /// RACK.xmit_ts: transmission time of the most recently sent segment among those delivered; the origin of time if
    /// there is none.
    sent: Instant,
    /// RACK.end_seq: its end.
    end: Seq,
    /// RACK.rtt in nanoseconds; zero if there is none.
    rtt: u64,
    /// RACK.fack: highest sequence number delivered.
    forward: Seq,
    /// RACK.dsack_round: end of the round trip in which a duplicate was reported.
    duplicate_round: Option<Seq>,
    /// Deadline of the reordering timer, if it is armed.
    deadline: Option<Instant>,
}

impl Rack {
    pub(crate) fn new(una: Seq) -> Self {
        Rack { sent: Instant::ZERO, end: una, rtt: 0, forward: una, duplicate_round: None, deadline: None }
    }

    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the highest sequence number delivered.
    pub(crate) fn forward(&self) -> Seq {
        self.forward
    }

    /// Resets the state for a connection whose SND.UNA is `una`.
    #[inline]
    pub(crate) fn move_to(&mut self, una: Seq) {
        self.forward = una;
    }

    /// Moves the state along with SND.UNA.
    pub(crate) fn follow_una(&mut self, una: Seq) {
        self.forward = self.forward.max(una);
    }

    /// Forgets the last delivery, and cancels the reordering timer.
    pub(crate) fn forget(&mut self) {
        self.sent = Instant::ZERO;
        self.rtt = 0;
        self.deadline = None;
        self.duplicate_round = None;
    }

    /// Performs steps 2 and 3 for the delivery of `record`. The records of an acknowledgement are passed in sequence
    /// order. The acknowledgement arrived at `now` and echoed timestamp `echo`. Returns whether the delivery indicates
    /// reordering.
    #[inline]
    pub(crate) fn delivered(
        &mut self,
        record: &TxRecord,
        now: Instant,
        echo: Option<u32>,
        min_rtt: Option<u64>,
    ) -> bool {
        let end = record.end();
        let reordered = if end.after(self.forward) {
            self.forward = end;
            false
        } else {
            end != self.forward && !record.is_retransmitted()
        };
        let rtt = now.as_nanos().saturating_sub(record.sent.as_nanos()).max(1);
        if record.is_retransmitted() {
            // The original may have been delivered instead of the retransmission.
            let original = echo.is_some_and(|echo| timestamp_before(echo, record.timestamp));
            if original || min_rtt.is_some_and(|minimum| rtt < minimum) {
                return reordered;
            }
        }
        self.rtt = rtt;
        if record.sent > self.sent || record.sent == self.sent && end.after(self.end) {
            self.sent = record.sent;
            self.end = end;
        }
        reordered
    }

    /// Performs the first half of step 4: processes a reported duplicate of a retransmission.
    pub(crate) fn duplicate(&mut self, una: Seq, next: Seq, path: &mut Path) {
        if self.duplicate_round.is_some_and(|round| una.at_or_after(round)) {
            self.duplicate_round = None;
        }
        if self.duplicate_round.is_none() {
            self.duplicate_round = Some(next);
            path.widen_reordering_window();
        }
    }

    /// Performs the second half of step 4: returns the reordering window in nanoseconds. `recovering`: in fast or RTO
    /// recovery.
    fn window(&self, scoreboard: &Scoreboard, recovering: bool, path: &Path, rtt: &RttEstimator) -> u64 {
        let certain = || recovering || scoreboard.sacked_segments_reach(DUPLICATE_THRESHOLD);
        if !path.reordering_seen() && certain() { 0 } else { path.reordering_window(rtt.smoothed_nanos()) }
    }

    /// Performs step 5: marks lost segments, and arms the reordering timer.
    ///
    /// RFC 8985 sets the timer for the time when the last suspected segment becomes overdue. Here it is set for the
    /// time when a segment sent together with the delivered one would become overdue. This is later by at most the
    /// interval between the two transmissions, and does not require a pass over all suspected segments.
    pub(crate) fn detect(
        &mut self,
        scoreboard: &mut Scoreboard,
        now: Instant,
        recovering: bool,
        path: &Path,
        rtt: &RttEstimator,
    ) -> LossScan {
        self.deadline = None;
        if self.rtt == 0 {
            return LossScan::default();
        }
        let patience = self.rtt.saturating_add(self.window(scoreboard, recovering, path, rtt));
        let due = |sent: Instant| sent.as_nanos().saturating_add(patience);
        let (rack_sent, rack_end) = (self.sent, self.end);
        let found = scoreboard.find_lost(
            |sent, end| sent < rack_sent || sent == rack_sent && end.before(rack_end),
            |sent| due(sent) <= now.as_nanos(),
        );
        if found.waiting {
            self.deadline = Some(Instant::from_nanos(due(self.sent)));
        }
        found
    }

    /// Marks lost segments when the retransmission timer expires: RACK_mark_losses_on_RTO, RFC 8985 §6.3. Without an
    /// RTT sample all are lost.
    pub(crate) fn mark_lost_on_rto(
        &mut self,
        scoreboard: &mut Scoreboard,
        now: Instant,
        recovering: bool,
        path: &Path,
        rtt: &RttEstimator,
    ) -> u32 {
        self.deadline = None;
        let round_trip = if self.rtt == 0 { rtt.smoothed_nanos() } else { self.rtt };
        let patience = round_trip.saturating_add(self.window(scoreboard, recovering, path, rtt));
        scoreboard.mark_lost_on_rto(|sent| sent.as_nanos().saturating_add(patience) <= now.as_nanos())
    }
}
