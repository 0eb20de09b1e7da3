//! Measurements with the cores at one distance: a virtual machine's are moved about, and what two processes exchange over
//! memory goes faster between near ones. Only what was measured at the same distance is compared.

use crate::external::process::Error;
use crate::transfer;

/// How often something is measured at most until the cores hold still.
const ATTEMPTS: u32 = 4;
/// How much further from each other cores may be for one figure than for the other.
const COMPARABLE: f64 = 1.5;

/// The two cores that everything runs on.
#[derive(Debug, Clone, Copy)]
pub struct Cores {
    /// The core of the servers.
    pub server: usize,
    /// The core of the loads.
    pub load: usize,
}

impl Cores {
    /// What `measure` returns, and how far the cores were from each other meanwhile, in the nanoseconds that a cache line
    /// takes: as before and afterwards. If that differs, they moved, and it is measured again; a few times at most, then there
    /// is nothing to be said.
    pub fn held<T>(&self, measure: impl Fn() -> Result<T, Error>) -> Result<Option<(f64, T)>, Error> {
        held(|| self.distance(), measure)
    }

    /// Nanoseconds that a cache line takes from one to the other now.
    pub fn distance(&self) -> Result<f64, Error> {
        let measured = transfer::nanoseconds(self.server, self.load);
        measured.map_err(|error| Error::Start { program: "the two cores' threads".to_owned(), error })
    }
}

fn held<T>(
    distance: impl Fn() -> Result<f64, Error>,
    measure: impl Fn() -> Result<T, Error>,
) -> Result<Option<(f64, T)>, Error> {
    let mut before = distance()?;
    for _ in 0..ATTEMPTS {
        let measured = measure()?;
        let after = distance()?;
        if is_alike(before, after) {
            return Ok(Some((before.max(after), measured)));
        }
        eprintln!("the cores moved: a cache line takes {after:.0} ns, not {before:.0}");
        before = after;
    }
    Ok(None)
}

/// Whether cores that a cache line takes so many nanoseconds to get across were as far from each other both times.
pub fn is_alike(one: f64, other: f64) -> bool {
    one.max(other) <= one.min(other) * COMPARABLE
}

/// The `distances` that there were: each is alike to the first of its own, and those of the nearest cores come first.
pub fn apart(mut distances: Vec<f64>) -> Vec<Vec<f64>> {
    distances.sort_by(f64::total_cmp);
    let mut apart: Vec<Vec<f64>> = Vec::new();
    for distance in distances {
        match apart.last_mut().filter(|alike| is_alike(alike[0], distance)) {
            Some(alike) => alike.push(distance),
            None => apart.push(vec![distance]),
        }
    }
    apart
}

/// Those of `samples`, each with its distance, that are of one of the distances `alike`.
pub fn of<'a, T>(alike: &'a [f64], samples: &'a [(f64, T)]) -> impl Iterator<Item = &'a T> {
    samples.iter().filter(|(distance, _)| alike.contains(distance)).map(|(_, sample)| sample)
}

/// The median of `figures`, if there are any.
pub fn median(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    #[test]
    fn distances_fall_apart_where_they_differ_by_half() {
        assert_eq!(apart(vec![165.0, 30.0, 13.0, 44.0, 160.0]), [vec![13.0], vec![30.0, 44.0], vec![160.0, 165.0]]);
        assert!(apart(Vec::new()).is_empty());
        assert!(is_alike(30.0, 45.0) && is_alike(30.0, 20.0) && !is_alike(30.0, 46.0));
    }

    #[test]
    fn what_was_measured_while_the_cores_moved_is_measured_again() {
        let measured = |distances: &[f64]| {
            let (distances, times) = (RefCell::new(distances.iter().copied().cycle()), Cell::new(0));
            let measure = || {
                times.set(times.get() + 1);
                Ok(times.get())
            };
            held(|| Ok(distances.borrow_mut().next().unwrap()), measure).unwrap()
        };
        assert_eq!(measured(&[30.0, 31.0]), Some((31.0, 1)));
        assert_eq!(measured(&[30.0, 160.0, 161.0]), Some((161.0, 2)));
        assert_eq!(measured(&[30.0, 160.0]), None);
    }

    #[test]
    fn samples_are_found_by_their_distance() {
        let samples = [(30.0, 'a'), (160.0, 'b'), (31.0, 'c')];
        assert_eq!(of(&[30.0, 31.0], &samples).collect::<String>(), "ac");
        assert_eq!((median([3.0, 1.0, 2.0].into_iter()), median([].into_iter())), (Some(2.0), None));
    }
}
