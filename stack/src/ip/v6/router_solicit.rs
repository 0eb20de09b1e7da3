//! Schedule of router solicitations: RFC 4861 §6.3.7, then with exponential backoff while there is no router (RFC
//! 7559).

use linerate_service::time::{Duration, Instant};

/// Maximum delay of the first solicitation (RFC 4861 §10: MAX_RTR_SOLICITATION_DELAY).
pub(super) const DELAY: Duration = Duration::from_secs(1);
/// Interval of the first solicitations, and their number (RFC 4861 §10: RTR_SOLICITATION_INTERVAL,
/// MAX_RTR_SOLICITATIONS).
const INTERVAL: Duration = Duration::from_secs(4);
const FIRST: u8 = 3;
/// Maximum interval (RFC 7559 §2: MRT).
const LONGEST: Duration = Duration::from_secs(3600);

/// Schedule of router solicitations.
#[derive(Debug, Default)]
pub(super) struct Solicitation {
    /// Time of the next solicitation.
    at: Option<Instant>,
    /// Solicitations since the start.
    sent: u8,
    interval: Duration,
    /// Time of the last solicitation, of this or an earlier start.
    last: Option<Instant>,
    /// True if a router has answered.
    answered: bool,
}

impl Solicitation {
    /// Starts soliciting after a random part of [`DELAY`], at least [`INTERVAL`] after the last solicitation.
    pub fn begin(&mut self, now: Instant, random: &mut fastrand::Rng) {
        let at = now + random_below(DELAY, random);
        let at = self.last.map_or(at, |last| at.max(last + INTERVAL));
        *self = Solicitation { at: Some(at), sent: 0, interval: INTERVAL, last: self.last, answered: false };
    }

    /// Stops soliciting: the link is down.
    pub fn end(&mut self) {
        self.at = None;
    }

    /// Records an advertisement. One solicitation is still sent, since an unsolicited advertisement may be incomplete.
    pub fn answered(&mut self) {
        self.answered = true;
        if self.sent > 0 {
            self.at = None;
        }
    }

    /// Returns whether a solicitation is due, and schedules the next.
    pub fn is_due(&mut self, now: Instant) -> bool {
        if self.at.is_none_or(|at| at > now) {
            return false;
        }
        self.sent = self.sent.saturating_add(1);
        self.last = Some(now);
        if self.sent >= FIRST {
            self.interval = (2 * self.interval).min(LONGEST);
        }
        self.at = (!self.answered).then_some(now + self.interval);
        true
    }

    /// Returns whether the last solicitation was the first one after MAX_RTR_SOLICITATIONS, which is worth a log line.
    pub fn is_unanswered(&self) -> bool {
        self.sent == FIRST + 1 && !self.answered
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.at
    }
}

/// Returns a random part of `most`.
pub(super) fn random_below(most: Duration, random: &mut fastrand::Rng) -> Duration {
    most.mul_f64(random.f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the times of solicitations within `time`, in seconds from the start.
    fn times(solicitation: &mut Solicitation, from: Instant, time: u64) -> Vec<f64> {
        let end = from + Duration::from_secs(time);
        let mut sent = Vec::new();
        while let Some(at) = solicitation.next_deadline().filter(|at| *at < end) {
            assert!(solicitation.is_due(at));
            sent.push(at.since(Instant::ZERO).as_secs_f64());
        }
        sent
    }

    #[test]
    fn solicitations_back_off_after_three() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut solicitation = Solicitation::default();
        assert_eq!(solicitation.next_deadline(), None);
        solicitation.begin(Instant::ZERO, &mut random);
        let sent = times(&mut solicitation, Instant::ZERO, 100_000);
        assert!(sent[0] < 1.0);
        let between: Vec<_> = sent.windows(2).map(|two| (two[1] - two[0]).round() as u64).collect();
        assert_eq!(between[..6], [4, 4, 8, 16, 32, 64]);
        assert_eq!(between.iter().max(), Some(&3600));
    }

    #[test]
    fn answer_ends_solicitation_after_the_first_one() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut solicitation = Solicitation::default();
        solicitation.begin(Instant::ZERO, &mut random);
        solicitation.answered();
        assert_eq!(times(&mut solicitation, Instant::ZERO, 100).len(), 1);
        // Link flaps and changing routers cause no flood.
        let now = Instant::ZERO + Duration::from_secs(1);
        for _ in 0..10 {
            solicitation.begin(now, &mut random);
        }
        let sent = times(&mut solicitation, now, 10);
        assert!(sent.len() == 2 && sent[0] >= 4.0, "{sent:?}");
        solicitation.answered();
        assert_eq!(solicitation.next_deadline(), None);
    }
}
