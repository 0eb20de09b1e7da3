//! Measurements grouped by the distance of the cores. A virtual machine's cores move, and two processes exchange data
//! faster between near cores, so only measurements at the same distance are compared.

use crate::transfer;
use linerate_harness::Error;

/// Maximum number of attempts until the cores keep their distance.
const ATTEMPTS: u32 = 4;
/// Maximum ratio of two comparable distances.
const COMPARABLE: f64 = 1.5;

/// Two cores of a measurement, also as arguments of programs.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Cores {
    /// Core of the servers
    #[arg(long = "server-core", value_name = "CORE", default_value_t = 0)]
    pub server: usize,

    /// Core of the loads
    #[arg(long = "load-core", value_name = "CORE", default_value_t = 1)]
    pub load: usize,
}

impl Cores {
    /// Returns the result of `measure` and the distance of the cores, as the mean transfer time of a cache line before
    /// and after, in nanoseconds. If these differ, the cores have moved, and the measurement is repeated a few times.
    /// Returns `None` if the cores keep moving.
    pub fn measure_stable<T>(&self, measure: impl Fn() -> Result<T, Error>) -> Result<Option<(f64, T)>, Error> {
        measure_stable(|| self.distance(), measure)
    }

    /// Returns the current transfer time of a cache line in nanoseconds.
    pub fn distance(&self) -> Result<f64, Error> {
        let measured = transfer::nanoseconds(self.server, self.load);
        measured.map_err(|error| Error::Start { program: "the two cores' threads".to_owned(), error })
    }
}

fn measure_stable<T>(
    distance: impl Fn() -> Result<f64, Error>,
    measure: impl Fn() -> Result<T, Error>,
) -> Result<Option<(f64, T)>, Error> {
    let mut before = distance()?;
    for _ in 0..ATTEMPTS {
        let measured = measure()?;
        let after = distance()?;
        if is_comparable(before, after) {
            return Ok(Some((before.max(after), measured)));
        }
        eprintln!("the cores moved: a cache line takes {after:.0} ns, not {before:.0}");
        before = after;
    }
    Ok(None)
}

/// Returns true if two transfer times indicate the same distance.
pub fn is_comparable(one: f64, other: f64) -> bool {
    one.max(other) <= one.min(other) * COMPARABLE
}

/// Groups `distances` by comparability to the first of each group, nearest first.
pub fn group_by_distance(mut distances: Vec<f64>) -> Vec<Vec<f64>> {
    distances.sort_by(f64::total_cmp);
    let mut group_by_distance: Vec<Vec<f64>> = Vec::new();
    for distance in distances {
        match group_by_distance.last_mut().filter(|alike| is_comparable(alike[0], distance)) {
            Some(alike) => alike.push(distance),
            None => group_by_distance.push(vec![distance]),
        }
    }
    group_by_distance
}

/// Returns the median of `values`, if there are any.
pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    #[test]
    fn distances_are_grouped() {
        assert_eq!(
            group_by_distance(vec![165.0, 30.0, 13.0, 44.0, 160.0]),
            [vec![13.0], vec![30.0, 44.0], vec![160.0, 165.0]]
        );
        assert!(group_by_distance(Vec::new()).is_empty());
        assert!(is_comparable(30.0, 45.0) && is_comparable(30.0, 20.0) && !is_comparable(30.0, 46.0));
    }

    #[test]
    fn measurement_is_repeated_if_cores_move() {
        let measured = |distances: &[f64]| {
            let (distances, times) = (RefCell::new(distances.iter().copied().cycle()), Cell::new(0));
            let measure = || {
                times.set(times.get() + 1);
                Ok(times.get())
            };
            measure_stable(|| Ok(distances.borrow_mut().next().unwrap()), measure).unwrap()
        };
        assert_eq!(measured(&[30.0, 31.0]), Some((31.0, 1)));
        assert_eq!(measured(&[30.0, 160.0, 161.0]), Some((161.0, 2)));
        assert_eq!(measured(&[30.0, 160.0]), None);
    }

    #[test]
    fn median_is_the_upper_middle() {
        assert_eq!((median([3.0, 1.0, 2.0].into_iter()), median([].into_iter())), (Some(2.0), None));
    }
}
