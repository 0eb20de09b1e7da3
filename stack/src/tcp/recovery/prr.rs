//! Proportional rate reduction (RFC 9937): bytes that may be sent for each acknowledgement while the window shrinks.

/// State of an episode: a fast recovery, or a round trip after ECE.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Prr {
    /// RecoverFS: bytes that may be delivered during the episode.
    flight: u32,
    /// prr_delivered: bytes delivered since its start.
    delivered: u32,
    /// prr_out: bytes sent since its start.
    out: u32,
    /// ssthresh: the target window.
    threshold: u32,
    /// Rest of SndCnt: bytes that may be sent now.
    quota: u32,
}

impl Prr {
    /// Starts an episode (§6.1). `flight` is SND.NXT − SND.UNA without selectively acknowledged bytes, but with the
    /// bytes delivered by the acknowledgement that started the episode.
    pub(crate) fn start(flight: u32, threshold: u32) -> Self {
        Prr { flight, delivered: 0, out: 0, threshold, quota: 0 }
    }

    #[inline]
    pub(crate) fn quota(&self) -> u32 {
        self.quota
    }

    /// Returns the bytes that may still count as delivered in this episode without SACK ("disallows incrementing
    /// DeliveredData when the total … would exceed" RecoverFS, §6.2).
    pub(crate) fn undelivered(&self) -> u32 {
        self.flight.saturating_sub(self.delivered)
    }

    /// Processes an acknowledgement that does not end the episode (§6.2).
    ///
    /// `delivered` is the number of bytes it delivered, `in_flight` the bytes now in flight, and `mss` the segment
    /// size. `safe`: SND.UNA advanced and no further loss was found.
    pub(crate) fn acknowledged(&mut self, delivered: u32, in_flight: u32, safe: bool, mss: u32) {
        if delivered > 0 {
            self.delivered = self.delivered.saturating_add(delivered);
            self.quota = if in_flight > self.threshold {
                // Proportional part (RFC 6937 §3.1), rounded up to a whole segment: a remainder below one MSS would
                // wait for another acknowledgement.
                let sent = u64::from(self.delivered) * u64::from(self.threshold);
                let sent = sent.div_ceil(u64::from(self.flight.max(1))).next_multiple_of(u64::from(mss.max(1)));
                u32::try_from(sent).unwrap_or(u32::MAX).saturating_sub(self.out)
            } else {
                // Packet conservation, or one segment more if the recovery progresses; never above the threshold.
                let conserving = self.delivered.saturating_sub(self.out).max(delivered);
                let count = conserving.saturating_add(if safe { mss } else { 0 });
                count.min(self.threshold - in_flight)
            };
        }
        // A fast retransmission is sent at once (§6.2): room for one whole segment, because bytes are counted here.
        if self.out == 0 || in_flight == 0 {
            self.quota = self.quota.max(mss);
        }
    }

    /// Records the transmission of `len` bytes, new or retransmitted (§6.3).
    #[inline]
    pub(crate) fn sent(&mut self, len: u32) {
        self.out = self.out.saturating_add(len);
        self.quota = self.quota.saturating_sub(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    /// Sends as many whole segments as the quota permits.
    fn send(prr: &mut Prr) -> u32 {
        let mut segments = 0;
        while prr.quota() >= MSS {
            prr.sent(MSS);
            segments += 1;
        }
        segments
    }

    #[test]
    fn single_loss_spreads_reduction_over_a_round_trip() {
        // RFC 9937 §8, figure 1: 20 segments in flight, the first lost, Reno. The third duplicate starts the episode,
        // with 22 sent.
        let mut prr = Prr::start((22 - 3 + 1) * MSS, 10 * MSS);
        let (mut in_flight, mut sent) = (18, Vec::new());
        for _ in 3..=21 {
            prr.acknowledged(MSS, in_flight * MSS, false, MSS);
            let segments = send(&mut prr);
            sent.push(segments);
            in_flight = in_flight + segments - 1;
        }
        // A retransmission, then one segment for every second acknowledgement; the episode ends with ten in flight.
        // (The figure shows the penultimate segment one acknowledgement earlier, where the algorithm of §6.2 already
        // has ten in flight.)
        assert_eq!(sent, [1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 1, 1]);
        assert_eq!(in_flight + 1, 10);
    }

    #[test]
    fn heavy_loss_is_repaired_packet_by_packet() {
        // RFC 9937 §8, figure 2: the first 15 of 20 lost; two more were sent; the third duplicate reveals the loss.
        let mut prr = Prr::start((22 - 3 + 1) * MSS, 10 * MSS);
        let mut in_flight = 22 - 3 - 15;
        for _ in 0..3 {
            prr.acknowledged(MSS, in_flight * MSS, false, MSS);
            assert_eq!(send(&mut prr), 1);
        }
        // §7: one segment more for each cumulative acknowledgement of retransmissions.
        in_flight = 4;
        prr.acknowledged(MSS, (in_flight - 1) * MSS, true, MSS);
        assert_eq!(send(&mut prr), 2);
    }

    #[test]
    fn quota_stays_below_the_threshold() {
        let mut prr = Prr::start(20 * MSS, 10 * MSS);
        prr.acknowledged(8 * MSS, 9 * MSS, true, MSS);
        assert_eq!(prr.quota(), MSS);
    }

    #[test]
    fn first_retransmission_is_forced() {
        let mut prr = Prr::start(2 * MSS, MSS);
        prr.acknowledged(0, 5 * MSS, false, MSS);
        assert_eq!(send(&mut prr), 1);
        prr.acknowledged(0, 5 * MSS, false, MSS);
        assert_eq!(send(&mut prr), 0);
    }

    #[test]
    fn quota_is_one_segment_with_nothing_in_flight() {
        // All retransmissions were lost again: without one more, only the timeout remains.
        let mut prr = Prr::start(20 * MSS, 10 * MSS);
        prr.sent(5 * MSS);
        prr.acknowledged(0, 0, false, MSS);
        assert_eq!(send(&mut prr), 1);
    }

    #[test]
    fn quota_stays_where_nothing_is_delivered() {
        // RFC 9937 §6.2: an acknowledgement that delivers nothing permits no transmission.
        let mut prr = Prr::start(20 * MSS, 10 * MSS);
        prr.acknowledged(MSS, 5 * MSS, false, MSS);
        assert_eq!(prr.quota(), MSS);
        prr.acknowledged(0, 5 * MSS, true, MSS);
        assert_eq!(prr.quota(), MSS);
        prr.sent(MSS);
        prr.acknowledged(0, 5 * MSS, true, MSS);
        assert_eq!(prr.quota(), 0);
    }
}
