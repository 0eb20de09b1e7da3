//! Things by number.

/// Things in a piece: what grows, grows by one, and nothing is moved.
const PIECE: usize = 512;

/// Things that are found by a number that they get.
pub(crate) struct Slab<T> {
    pieces: Vec<Vec<Place<T>>>,
    /// The first free place.
    free: Option<u32>,
    len: usize,
}

enum Place<T> {
    Taken(T),
    /// It leads to the next that is free, so that giving one back takes no memory.
    Free(Option<u32>),
}

impl<T> Slab<T> {
    const PIECE_BYTES: usize = PIECE * size_of::<Place<T>>();

    pub fn new() -> Self {
        Slab { pieces: Vec::new(), free: None, len: 0 }
    }

    /// Things that there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        self.pieces.len() * Self::PIECE_BYTES
    }

    /// Bytes by which it grows at most when `count` things are put in.
    pub fn growth(&self, count: usize) -> usize {
        let room = self.pieces.len() * PIECE - self.len;
        count.saturating_sub(room).div_ceil(PIECE) * Self::PIECE_BYTES
    }

    /// Puts `thing` in. Returns its number.
    pub fn insert(&mut self, thing: T) -> u32 {
        self.len += 1;
        if let Some(number) = self.free {
            let place = &mut self.pieces[number as usize / PIECE][number as usize % PIECE];
            if let Place::Free(next) = std::mem::replace(place, Place::Taken(thing)) {
                self.free = next;
            }
            return number;
        }
        if self.pieces.last().is_none_or(|last| last.len() == PIECE) {
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        let last = self.pieces.len() - 1;
        self.pieces[last].push(Place::Taken(thing));
        (last * PIECE + self.pieces[last].len() - 1) as u32
    }

    pub fn get(&self, number: u32) -> Option<&T> {
        match self.pieces.get(number as usize / PIECE)?.get(number as usize % PIECE)? {
            Place::Taken(thing) => Some(thing),
            Place::Free(_) => None,
        }
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        match self.place_mut(number)? {
            Place::Taken(thing) => Some(thing),
            Place::Free(_) => None,
        }
    }

    /// Takes the thing with `number` out.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        self.get(number)?;
        let free = Place::Free(self.free);
        let Place::Taken(thing) = std::mem::replace(self.place_mut(number)?, free) else { return None };
        self.len -= 1;
        self.free = Some(number);
        if self.len == 0 {
            (self.pieces, self.free) = (Vec::new(), None);
        }
        Some(thing)
    }

    fn place_mut(&mut self, number: u32) -> Option<&mut Place<T>> {
        self.pieces.get_mut(number as usize / PIECE)?.get_mut(number as usize % PIECE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn things_are_found_by_their_numbers(steps in prop::collection::vec(prop::option::of(any::<prop::sample::Index>()), 1..3000)) {
            let mut slab = Slab::new();
            let mut model = BTreeMap::new();
            for (n, step) in steps.into_iter().enumerate() {
                let (growth, before) = (slab.growth(1), slab.bytes());
                match step {
                    Some(which) if n % 3 == 0 && !model.is_empty() => {
                        let number = *model.keys().nth(which.index(model.len())).unwrap();
                        prop_assert_eq!(slab.remove(number), model.remove(&number));
                        prop_assert_eq!(slab.remove(number), None);
                    }
                    _ => prop_assert!(model.insert(slab.insert(n), n).is_none()),
                }
                prop_assert_eq!(slab.len(), model.len());
                prop_assert!(slab.bytes() <= before + growth);
            }
            for (number, thing) in &model {
                prop_assert_eq!(slab.get(*number), Some(thing));
                prop_assert_eq!(slab.get_mut(*number).copied(), Some(*thing));
            }
        }
    }

    #[test]
    fn growth_is_that_of_whole_pieces() {
        let mut slab = Slab::new();
        let piece = Slab::<u64>::PIECE_BYTES;
        assert_eq!([0, 1, PIECE, PIECE + 1].map(|count| slab.growth(count)), [0, piece, piece, 2 * piece]);
        for n in 0..PIECE as u64 + 3 {
            slab.insert(n);
        }
        assert_eq!(slab.bytes(), 2 * piece);
        assert_eq!([PIECE - 3, PIECE - 2, 2 * PIECE].map(|count| slab.growth(count)), [0, piece, 2 * piece]);
        (0..PIECE as u32 + 3).for_each(|number| assert_eq!(slab.remove(number), Some(number.into())));
        assert_eq!((slab.bytes(), slab.growth(1)), (0, piece));
    }
}
