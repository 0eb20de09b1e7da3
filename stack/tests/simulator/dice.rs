//! Random choices from a seed.

use linerate_service::time::Duration;

/// Random generator of a scenario.
pub struct Dice(pub fastrand::Rng);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(fastrand::Rng::with_seed(seed))
    }

    pub fn chance(&mut self, probability: f64) -> bool {
        self.0.f64() < probability
    }

    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.0.usize(..choices.len())].clone()
    }

    pub fn weighted<T: Clone>(&mut self, choices: &[(u32, T)]) -> T {
        let all: u32 = choices.iter().map(|(weight, _)| weight).sum();
        let mut at = self.0.u32(..all);
        for (weight, choice) in choices {
            match at.checked_sub(*weight) {
                None => return choice.clone(),
                Some(rest) => at = rest,
            }
        }
        unreachable!("the weights sum up")
    }

    /// Returns a number from `least` to `most`, logarithmically distributed.
    pub fn log_uniform(&mut self, least: u64, most: u64) -> u64 {
        let (low, high) = ((least.max(1) as f64).ln(), (most.max(1) as f64).ln());
        let number = (low + self.0.f64() * (high - low)).exp().round() as u64;
        if least == 0 && self.chance(0.1) { 0 } else { number.clamp(least, most) }
    }

    /// Returns a time, logarithmically distributed.
    pub fn time(&mut self, least: Duration, most: Duration) -> Duration {
        Duration::from_nanos(self.log_uniform(least.as_nanos() as u64, most.as_nanos() as u64))
    }
}
