//! RACK: losses found by what was delivered that had been sent later (RFC 8985 §6).

use linerate_bypass::time::Instant;

use super::Seq;
use super::path::Path;
use super::rtt::RttEstimator;
use super::scoreboard::{LossScan, Scoreboard, TxRecord};

/// DupThresh: as many segments acknowledged selectively mean a loss on a path that does not reorder.
pub(crate) const DUPLICATE_THRESHOLD: u32 = 3;

/// Whether `a` comes before `b` as timestamps do (RFC 7323 §5.2).
#[inline]
pub(crate) fn timestamp_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// RACK's per-connection variables.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rack {
    /// RACK.xmit_ts: when the most recently sent of the delivered segments was sent; the origin of time if none.
    sent: Instant,
    /// RACK.end_seq: its end.
    end: Seq,
    /// RACK.rtt, nanoseconds; zero if there is none.
    rtt: u64,
    /// RACK.fack: the highest sequence number delivered.
    forward: Seq,
    /// RACK.dsack_round: the round trip, by its end, in which a duplicate was reported.
    duplicate_round: Option<Seq>,
    /// When the reordering timer is due, if there is something to wait for.
    deadline: Option<Instant>,
}

impl Rack {
    pub(crate) fn new(una: Seq) -> Self {
        Rack { sent: Instant::ZERO, end: una, rtt: 0, forward: una, duplicate_round: None, deadline: None }
    }

    /// When the reordering timer is due.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The highest sequence number delivered.
    pub(crate) fn forward(&self) -> Seq {
        self.forward
    }

    /// SND.UNA is `una` now, of another connection.
    #[inline]
    pub(crate) fn move_to(&mut self, una: Seq) {
        self.forward = una;
    }

    /// SND.UNA is `una`: everything before it was delivered.
    pub(crate) fn follow_una(&mut self, una: Seq) {
        self.forward = self.forward.max(una);
    }

    /// What was delivered last no longer says anything: it turned out that something had been sent needlessly.
    pub(crate) fn forget(&mut self) {
        self.sent = Instant::ZERO;
        self.rtt = 0;
        self.deadline = None;
        self.duplicate_round = None;
    }

    /// Steps 2 and 3: `record` was delivered, in order of the sequence space within an acknowledgement that arrived at
    /// `now` and echoed the timestamp `echo`. Returns whether it shows that the path reorders.
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
            // It may be the original that was delivered.
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

    /// Step 4, first half: the receiver reported a duplicate, of something that was retransmitted for good reason.
    pub(crate) fn duplicate(&mut self, una: Seq, next: Seq, path: &mut Path) {
        if self.duplicate_round.is_some_and(|round| una.at_or_after(round)) {
            self.duplicate_round = None;
        }
        if self.duplicate_round.is_none() {
            self.duplicate_round = Some(next);
            path.widen_reordering_window();
        }
    }

    /// Step 4, second half: the reordering window in nanoseconds, `recovering` being whether in fast or RTO recovery.
    fn window(&self, scoreboard: &Scoreboard, recovering: bool, path: &Path, rtt: &RttEstimator) -> u64 {
        let certain = || recovering || scoreboard.sacked_segments_reach(DUPLICATE_THRESHOLD);
        if !path.reordering_seen() && certain() { 0 } else { path.reordering_window(rtt.smoothed_nanos()) }
    }

    /// Step 5: marks what is lost, and sets the reordering timer.
    ///
    /// RFC 8985 sets the timer for when the last of the suspected segments will be overdue. Here it is set for when a
    /// segment sent together with the delivered one would be: no earlier than that, and later by no more than the time
    /// between the two transmissions. It need not look at all suspected segments for it.
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

    /// What of the flight is lost when the retransmission timer expires: RACK_mark_losses_on_RTO, RFC 8985 §6.3. Without a
    /// measured round trip everything is.
    pub(crate) fn time_out(
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
        scoreboard.time_out(|sent| sent.as_nanos().saturating_add(patience) <= now.as_nanos())
    }
}
