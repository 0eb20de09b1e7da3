//! Independent random numbers from one seed.
//!
//! A number for one purpose reveals neither the seed nor numbers for other purposes. Observers see some numbers: IP
//! identifications of smoltcp and ports come from generators that can be run backwards.

use siphasher::sip::SipHasher24;
use std::hash::Hasher;

/// Returns the `n`th number from `seed` for the purpose `name`, by SipHash-2-4.
pub(crate) fn draw(seed: u128, name: &str, n: usize) -> u64 {
    let mut hash = SipHasher24::new_with_keys(seed as u64, (seed >> 64) as u64);
    hash.write(name.as_bytes());
    hash.write(&(n as u64).to_le_bytes());
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn draws_differ_by_seed_purpose_and_index() {
        let seeds = [0, 1, 1 << 63, 1 << 64, 1 << 127];
        let uses = [("", 0), ("isn", 0), ("isn", 1), ("isn", 256), ("cookies", 0), ("cookies", 1)];
        let drawn: HashSet<_> = seeds.iter().flat_map(|seed| uses.map(|(name, n)| draw(*seed, name, n))).collect();
        assert_eq!(drawn.len(), seeds.len() * uses.len());
    }
}
