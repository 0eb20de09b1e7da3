//! Time per operation, with interleaved rounds so that a temporary disturbance affects all alike.

use crate::client::BenchError;
use serde::Serialize;
use std::time::Duration;

/// Work that can be divided and timed.
pub trait Bench {
    /// Performs `operations` and returns the time that the server spent on them.
    fn run(&mut self, operations: usize) -> Result<Duration, BenchError>;
}

impl Bench for Box<dyn Bench> {
    fn run(&mut self, operations: usize) -> Result<Duration, BenchError> {
        (**self).run(operations)
    }
}

/// Cost of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cost {
    /// Operations measured, in all rounds.
    pub operations: usize,
    /// Median of the rounds in nanoseconds per operation.
    pub ns: f64,
    /// Fastest round in nanoseconds per operation.
    pub best_ns: f64,
}

/// Measures `operations` of each bench in `rounds` parts, interleaved between the benches.
///
/// # Panics
/// If there are no operations or no rounds.
pub fn measure(benches: &mut [impl Bench], operations: usize, rounds: usize) -> Result<Vec<Cost>, BenchError> {
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
        fn run(&mut self, operations: usize) -> Result<Duration, BenchError> {
            Ok(Duration::from_nanos(self.0.remove(0) * operations as u64))
        }
    }

    #[test]
    fn median_and_fastest_round_are_reported() {
        let mut benches = [Costing(vec![3, 9, 1]), Costing(vec![30, 10, 20])];
        let costs = measure(&mut benches, 12, 3).unwrap();
        assert_eq!(costs[0], Cost { operations: 12, ns: 3.0, best_ns: 1.0 });
        assert_eq!(costs[1], Cost { operations: 12, ns: 20.0, best_ns: 10.0 });
    }

    #[test]
    fn rounds_do_not_exceed_operations() {
        let costs = measure(&mut [Costing(vec![5])], 1, 9).unwrap();
        assert_eq!(costs[0], Cost { operations: 1, ns: 5.0, best_ns: 5.0 });
    }
}
