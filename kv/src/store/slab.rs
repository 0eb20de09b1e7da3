//! Things by number.

/// Things in a piece: what grows, grows by one, and nothing is moved.
const PIECE: usize = 512;

/// Things that are found by a number that they get.
pub(crate) struct Slab<T> {
    pieces: Vec<Vec<Option<T>>>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Slab<T> {
    pub fn new() -> Self {
        Slab { pieces: Vec::new(), free: Vec::new(), len: 0 }
    }

    /// Things that there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        self.pieces.len() * PIECE * size_of::<Option<T>>() + self.free.capacity() * size_of::<u32>()
    }

    /// Puts `thing` in. Returns its number.
    pub fn insert(&mut self, thing: T) -> u32 {
        self.len += 1;
        if let Some(number) = self.free.pop() {
            self.pieces[number as usize / PIECE][number as usize % PIECE] = Some(thing);
            return number;
        }
        if self.pieces.last().is_none_or(|last| last.len() == PIECE) {
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        let last = self.pieces.len() - 1;
        self.pieces[last].push(Some(thing));
        (last * PIECE + self.pieces[last].len() - 1) as u32
    }

    pub fn get(&self, number: u32) -> Option<&T> {
        self.pieces.get(number as usize / PIECE)?.get(number as usize % PIECE)?.as_ref()
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.pieces.get_mut(number as usize / PIECE)?.get_mut(number as usize % PIECE)?.as_mut()
    }

    /// Takes the thing with `number` out.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let thing = self.pieces.get_mut(number as usize / PIECE)?.get_mut(number as usize % PIECE)?.take()?;
        self.len -= 1;
        self.free.push(number);
        if self.len == 0 {
            (self.pieces, self.free) = (Vec::new(), Vec::new());
        }
        Some(thing)
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
                match step {
                    Some(which) if n % 3 == 0 && !model.is_empty() => {
                        let number = *model.keys().nth(which.index(model.len())).unwrap();
                        prop_assert_eq!(slab.remove(number), model.remove(&number));
                        prop_assert_eq!(slab.remove(number), None);
                    }
                    _ => prop_assert!(model.insert(slab.insert(n), n).is_none()),
                }
                prop_assert_eq!(slab.len(), model.len());
            }
            for (number, thing) in &model {
                prop_assert_eq!(slab.get(*number), Some(thing));
                prop_assert_eq!(slab.get_mut(*number).copied(), Some(*thing));
            }
        }
    }
}
