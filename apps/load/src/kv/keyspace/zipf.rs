//! Zipf-distributed ranks: the k-th most popular of N has a probability proportional to k^-θ.
//!
//! The ranks are divided into cells: each of the first ranks is a cell, later cells are a 32nd as long as their start.
//! Some hundreds of cells cover any N. A draw selects a cell by an alias table (Walker, "An Efficient Method for
//! Generating Discrete Random Variables with General Distributions", 1977; constructed as by Vose, 1991), then a rank
//! of the cell uniformly, and accepts it with probability p(rank) / p(first rank of the cell). The distribution is
//! exact for any θ ≥ 0. The acceptance bound of the cell's last rank nearly always decides, so that a power is rarely
//! computed.

use fastrand::Rng;

/// A cell that starts at rank k (from 0) has length k / 32.
const FINENESS: u64 = 32;

/// Distribution of ranks, the most popular first, counted from 0.
#[derive(Debug)]
pub struct Zipf {
    cells: Box<[Cell]>,
    theta: f64,
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    start: u64,
    width: u64,
    /// Number of 2³² draws of this cell that stay; the rest go to the cell `other`.
    stay: u32,
    other: u32,
    /// Least number of 2³² draws of a rank that are accepted for every rank of the cell.
    sure: u32,
}

impl Zipf {
    /// Creates the distribution of `n` ranks with exponent `theta`; 0 is uniform.
    ///
    /// # Panics
    /// If `n` is 0, or `theta` is negative or NaN.
    pub fn new(n: u64, theta: f64) -> Self {
        assert!(n > 0 && theta >= 0.0);
        let mut cells = Vec::new();
        let mut weights = Vec::new();
        let mut start = 0;
        while start < n {
            // A uniform distribution needs one cell.
            let width = if theta == 0.0 { n } else { (start / FINENESS).clamp(1, n - start) };
            let sure = to_32_bits(ratio(start, start + width - 1, theta));
            cells.push(Cell { start, width, stay: u32::MAX, other: cells.len() as u32, sure });
            weights.push(width as f64 * ratio(0, start, theta));
            start += width;
        }
        share_out(&mut cells, &weights);
        Zipf { cells: cells.into(), theta }
    }

    /// Draws a rank.
    #[inline]
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        loop {
            let bits = rng.u64(..);
            let mut cell = &self.cells[(((bits >> 32) * self.cells.len() as u64) >> 32) as usize];
            if bits as u32 >= cell.stay {
                cell = &self.cells[cell.other as usize];
            }
            if cell.width == 1 {
                return cell.start;
            }
            // The upper half of the product is uniform over the cell; the lower half is uniform for each value of the
            // upper.
            let product = u128::from(rng.u64(..)) * u128::from(cell.width);
            let (rank, chance) = (cell.start + (product >> 64) as u64, (product >> 32) as u32);
            if chance < cell.sure || self.keeps(cell, rank, chance) {
                return rank;
            }
        }
    }

    #[cold]
    fn keeps(&self, cell: &Cell, rank: u64, chance: u32) -> bool {
        f64::from(chance) < ratio(cell.start, rank, self.theta) * TWO_TO_32
    }
}

const TWO_TO_32: f64 = 4_294_967_296.0;

fn to_32_bits(probability: f64) -> u32 {
    // 2³² saturates to 2³² − 1, which the slow path corrects.
    (probability * TWO_TO_32) as u32
}

/// Returns the probability of `rank` relative to that of `first`.
fn ratio(first: u64, rank: u64, theta: f64) -> f64 {
    ((first + 1) as f64 / (rank + 1) as f64).powf(theta)
}

/// Builds the alias table of `cells`: cells below the average weight are filled from heavier ones.
fn share_out(cells: &mut [Cell], weights: &[f64]) {
    let total: f64 = weights.iter().sum();
    let mut left: Vec<f64> = weights.iter().map(|weight| weight / total * cells.len() as f64).collect();
    let (mut light, mut heavy): (Vec<usize>, Vec<usize>) = (0..cells.len()).partition(|i| left[*i] < 1.0);
    while let (Some(small), Some(&large)) = (light.pop(), heavy.last()) {
        cells[small].stay = to_32_bits(left[small]);
        cells[small].other = large as u32;
        left[large] -= 1.0 - left[small];
        if left[large] < 1.0 {
            heavy.pop();
            light.push(large);
        }
    }
    // The remaining cells are full except for rounding, and keep themselves as `other`.
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 2_000_000;

    /// Returns Pearson's χ² of `DRAWS` draws over `groups` of ranks, each given by its first rank.
    fn chi_square(n: u64, theta: f64, groups: &[u64]) -> f64 {
        let zipf = Zipf::new(n, theta);
        let mut rng = Rng::with_seed(42);
        let mut seen = vec![0.0; groups.len()];
        for _ in 0..DRAWS {
            let rank = zipf.draw(&mut rng);
            assert!(rank < n);
            seen[groups.partition_point(|first| *first <= rank) - 1] += 1.0;
        }
        let weight = |from: u64, to: u64| (from..to).map(|rank| ratio(0, rank, theta)).sum::<f64>();
        let ends = groups[1..].iter().copied().chain([n]);
        let weights: Vec<f64> = groups.iter().zip(ends).map(|(from, to)| weight(*from, to)).collect();
        let total: f64 = weights.iter().sum();
        let expected = weights.iter().map(|weight| weight / total * DRAWS as f64);
        seen.iter().zip(expected).map(|(seen, expected)| (seen - expected) * (seen - expected) / expected).sum()
    }

    /// Returns a bound that χ² exceeds less than once in a million runs.
    fn bound(groups: usize) -> f64 {
        let freedom = (groups - 1) as f64;
        freedom + 5.0 * (2.0 * freedom).sqrt() + 10.0
    }

    #[test]
    fn ranks_follow_the_distribution() {
        let ranks: Vec<u64> = (0..1000).collect();
        for theta in [0.0, 0.5, 0.99, 1.0, 1.2] {
            let chi = chi_square(1000, theta, &ranks);
            assert!(chi < bound(1000), "θ {theta}: {chi}");
        }
    }

    #[test]
    fn test_distinguishes_close_exponents() {
        let ranks: Vec<u64> = (0..1000).collect();
        let zipf = Zipf::new(1000, 1.0);
        let mut rng = Rng::with_seed(42);
        let mut seen = vec![0.0; 1000];
        (0..DRAWS).for_each(|_| seen[zipf.draw(&mut rng) as usize] += 1.0);
        let total: f64 = ranks.iter().map(|rank| ratio(0, *rank, 0.99)).sum();
        let expected = |rank| ratio(0, rank, 0.99) / total * DRAWS as f64;
        let chi: f64 = ranks.iter().map(|&rank| (seen[rank as usize] - expected(rank)).powi(2) / expected(rank)).sum();
        assert!(chi > bound(1000), "{chi}");
    }

    #[test]
    fn tail_of_many_ranks_has_its_share() {
        // Boundaries that coincide with no cell's.
        let groups: Vec<u64> = std::iter::successors(Some(1u64), |first| Some(first * 7 / 4 + 1))
            .take_while(|first| *first < 3_000_000)
            .collect();
        let groups: Vec<u64> = std::iter::once(0).chain(groups).collect();
        for theta in [0.3, 0.99, 1.0, 1.5, 3.0] {
            // Groups that are rarely drawn have no significance.
            let last = if theta > 2.0 { 5 } else { groups.len() };
            let chi = chi_square(3_000_000, theta, &groups[..last]);
            assert!(chi < bound(last), "θ {theta}: {chi}");
        }
    }

    #[test]
    fn table_is_small_for_any_number_of_ranks() {
        for (n, most) in [(1, 1), (2, 2), (1_000_000, 500), (1 << 48, 1200)] {
            let zipf = Zipf::new(n, 0.99);
            assert!(zipf.cells.len() <= most, "{n}: {}", zipf.cells.len());
            let last = zipf.cells[zipf.cells.len() - 1];
            assert_eq!(last.start + last.width, n);
            assert!(zipf.draw(&mut Rng::with_seed(1)) < n);
        }
        assert_eq!(Zipf::new(1 << 48, 0.0).cells.len(), 1);
    }
}
