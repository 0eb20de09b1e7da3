//! Time per operation, measured so that what disturbs the machine for a while disturbs all alike.

use crate::client::Wrong;
use serde::Serialize;
use std::time::Duration;

/// Work that can be done in parts and timed.
pub trait Bench {
    /// Does `operations` and returns the time that the server spent on them.
    fn run(&mut self, operations: usize) -> Result<Duration, Wrong>;
}

/// What one operation costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cost {
    /// Operations measured, in all rounds.
    pub operations: usize,
    /// Nanoseconds per operation: the median of the rounds.
    pub ns: f64,
    /// The fastest round.
    pub best_ns: f64,
}

/// Measures `operations` of each bench in `rounds` parts, the benches taking turns.
///
/// # Panics
/// If there are no operations or no rounds.
pub fn measure(benches: &mut [impl Bench], operations: usize, rounds: usize) -> Result<Vec<Cost>, Wrong> {
    let rounds = rounds.min(operations);
    let part = operations / rounds;
    let mut all = vec![Vec::with_capacity(rounds); benches.len()];
    for _ in 0..rounds {
        for (bench, costs) in benches.iter_mut().zip(&mut all) {
            costs.push(bench.run(part)?.as_nanos() as f64 / part as f64);
        }
    }
    let cost = |mut costs: Vec<f64>| {
        costs.sort_by(f64::total_cmp);
        Cost { operations: part * rounds, ns: costs[costs.len() / 2], best_ns: costs[0] }
    };
    Ok(all.into_iter().map(cost).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Costing(Vec<u64>);

    impl Bench for Costing {
        fn run(&mut self, operations: usize) -> Result<Duration, Wrong> {
            Ok(Duration::from_nanos(self.0.remove(0) * operations as u64))
        }
    }

    #[test]
    fn the_median_and_the_fastest_of_the_rounds_are_told() {
        let mut benches = [Costing(vec![3, 9, 1]), Costing(vec![30, 10, 20])];
        let costs = measure(&mut benches, 12, 3).unwrap();
        assert_eq!(costs[0], Cost { operations: 12, ns: 3.0, best_ns: 1.0 });
        assert_eq!(costs[1], Cost { operations: 12, ns: 20.0, best_ns: 10.0 });
    }

    #[test]
    fn there_are_no_more_rounds_than_operations() {
        let costs = measure(&mut [Costing(vec![5])], 1, 9).unwrap();
        assert_eq!(costs[0], Cost { operations: 1, ns: 5.0, best_ns: 5.0 });
    }
}
