//! When routers are asked to advertise: RFC 4861 §6.3.7, and ever more rarely for as long as there is none (RFC 7559).

use linerate_bypass::time::{Duration, Instant};

/// Before the first question at most (RFC 4861 §10: MAX_RTR_SOLICITATION_DELAY).
pub(super) const DELAY: Duration = Duration::from_secs(1);
/// Between the first ones, and how many these are (RFC 4861 §10: RTR_SOLICITATION_INTERVAL, MAX_RTR_SOLICITATIONS).
const INTERVAL: Duration = Duration::from_secs(4);
const FIRST: u8 = 3;
/// Between the last ones (RFC 7559 §2: MRT).
const LONGEST: Duration = Duration::from_secs(3600);

/// What is to be asked, and when.
#[derive(Debug, Default)]
pub(super) struct Solicitation {
    /// When to ask next; not at all if `None`.
    at: Option<Instant>,
    /// Questions since it began.
    asked: u8,
    /// The time from one to the next.
    interval: Duration,
    /// The last question, of whatever beginning.
    last: Option<Instant>,
    /// A router has answered.
    answered: bool,
}

impl Solicitation {
    /// Asks from now on, after a part of [`DELAY`] by chance; never sooner than [`INTERVAL`] after the last question.
    pub fn begin(&mut self, now: Instant, random: &mut fastrand::Rng) {
        let at = now + by_chance(DELAY, random);
        let at = self.last.map_or(at, |last| at.max(last + INTERVAL));
        *self = Solicitation { at: Some(at), asked: 0, interval: INTERVAL, last: self.last, answered: false };
    }

    /// Asks no more: the link is down.
    pub fn end(&mut self) {
        self.at = None;
    }

    /// A router has advertised itself. One question is asked all the same: what comes unasked need not tell everything.
    pub fn answered(&mut self) {
        self.answered = true;
        if self.asked > 0 {
            self.at = None;
        }
    }

    /// Whether to ask now.
    pub fn is_due(&mut self, now: Instant) -> bool {
        if self.at.is_none_or(|at| at > now) {
            return false;
        }
        self.asked = self.asked.saturating_add(1);
        self.last = Some(now);
        if self.asked >= FIRST {
            self.interval = (2 * self.interval).min(LONGEST);
        }
        self.at = (!self.answered).then_some(now + self.interval);
        true
    }

    /// Whether the last question was the first after those that all hosts ask: somebody should know.
    pub fn is_in_vain(&self) -> bool {
        self.asked == FIRST + 1 && !self.answered
    }

    /// When to ask next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.at
    }
}

/// A part of `most`.
pub(super) fn by_chance(most: Duration, random: &mut fastrand::Rng) -> Duration {
    most.mul_f64(random.f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When questions are asked within `time`, in seconds from the start.
    fn questions(solicitation: &mut Solicitation, from: Instant, time: u64) -> Vec<f64> {
        let end = from + Duration::from_secs(time);
        let mut asked = Vec::new();
        while let Some(at) = solicitation.next_deadline().filter(|at| *at < end) {
            assert!(solicitation.is_due(at));
            asked.push(at.since(Instant::ZERO).as_secs_f64());
        }
        asked
    }

    #[test]
    fn three_questions_four_seconds_apart_and_then_ever_fewer() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut solicitation = Solicitation::default();
        assert_eq!(solicitation.next_deadline(), None);
        solicitation.begin(Instant::ZERO, &mut random);
        let asked = questions(&mut solicitation, Instant::ZERO, 100_000);
        assert!(asked[0] < 1.0);
        let between: Vec<_> = asked.windows(2).map(|two| (two[1] - two[0]).round() as u64).collect();
        assert_eq!(between[..6], [4, 4, 8, 16, 32, 64]);
        assert_eq!(between.iter().max(), Some(&3600));
    }

    #[test]
    fn an_answer_ends_it_but_for_the_first_question() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut solicitation = Solicitation::default();
        solicitation.begin(Instant::ZERO, &mut random);
        solicitation.answered();
        assert_eq!(questions(&mut solicitation, Instant::ZERO, 100).len(), 1);
        // A link that goes up and down, or a router that comes and goes, makes no flood.
        let now = Instant::ZERO + Duration::from_secs(1);
        for _ in 0..10 {
            solicitation.begin(now, &mut random);
        }
        let asked = questions(&mut solicitation, now, 10);
        assert!(asked.len() == 2 && asked[0] >= 4.0, "{asked:?}");
        solicitation.answered();
        assert_eq!(solicitation.next_deadline(), None);
    }
}
