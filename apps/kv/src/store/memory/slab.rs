//! Slab: values by number.

/// Values per chunk. Growth adds a chunk and moves nothing.
const CHUNK: usize = 512;

/// Slab whose growth is bounded and counted in bytes. `ConnSlab` and the `slab` crate double one vector, which moves
/// all values and exceeds the memory limit of the store for the time of the move.
pub(crate) struct Slab<T> {
    chunks: Vec<Vec<Entry<T>>>,
    free: Option<u32>,
    len: usize,
}

enum Entry<T> {
    Taken(T),
    /// Free entry with the number of the next free one, so that a removal allocates nothing.
    Free(Option<u32>),
}

impl<T> Slab<T> {
    const CHUNK_BYTES: usize = CHUNK * size_of::<Entry<T>>();

    pub fn new() -> Self {
        Slab { chunks: Vec::new(), free: None, len: 0 }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn bytes(&self) -> usize {
        self.chunks.len() * Self::CHUNK_BYTES
    }

    /// Returns an upper bound of the bytes added by `count` values.
    pub fn growth(&self, count: usize) -> usize {
        let room = self.chunks.len() * CHUNK - self.len;
        count.saturating_sub(room).div_ceil(CHUNK) * Self::CHUNK_BYTES
    }

    pub fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        if let Some(number) = self.free {
            let entry = &mut self.chunks[number as usize / CHUNK][number as usize % CHUNK];
            if let Entry::Free(next) = std::mem::replace(entry, Entry::Taken(value)) {
                self.free = next;
            }
            return number;
        }
        if self.chunks.last().is_none_or(|last| last.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let last = self.chunks.len() - 1;
        self.chunks[last].push(Entry::Taken(value));
        (last * CHUNK + self.chunks[last].len() - 1) as u32
    }

    pub fn get(&self, number: u32) -> Option<&T> {
        match self.chunks.get(number as usize / CHUNK)?.get(number as usize % CHUNK)? {
            Entry::Taken(value) => Some(value),
            Entry::Free(_) => None,
        }
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        match self.entry_mut(number)? {
            Entry::Taken(value) => Some(value),
            Entry::Free(_) => None,
        }
    }

    pub fn remove(&mut self, number: u32) -> Option<T> {
        self.get(number)?;
        let free = Entry::Free(self.free);
        let Entry::Taken(value) = std::mem::replace(self.entry_mut(number)?, free) else { return None };
        self.len -= 1;
        self.free = Some(number);
        if self.len == 0 {
            (self.chunks, self.free) = (Vec::new(), None);
        }
        Some(value)
    }

    fn entry_mut(&mut self, number: u32) -> Option<&mut Entry<T>> {
        self.chunks.get_mut(number as usize / CHUNK)?.get_mut(number as usize % CHUNK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn slab_agrees_with_model(steps in prop::collection::vec(prop::option::of(any::<prop::sample::Index>()), 1..3000)) {
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
            for (number, value) in &model {
                prop_assert_eq!(slab.get(*number), Some(value));
                prop_assert_eq!(slab.get_mut(*number).copied(), Some(*value));
            }
        }
    }

    #[test]
    fn growth_is_in_whole_chunks() {
        let mut slab = Slab::new();
        let chunk = Slab::<u64>::CHUNK_BYTES;
        assert_eq!([0, 1, CHUNK, CHUNK + 1].map(|count| slab.growth(count)), [0, chunk, chunk, 2 * chunk]);
        for n in 0..CHUNK as u64 + 3 {
            slab.insert(n);
        }
        assert_eq!(slab.bytes(), 2 * chunk);
        assert_eq!([CHUNK - 3, CHUNK - 2, 2 * CHUNK].map(|count| slab.growth(count)), [0, chunk, 2 * chunk]);
        (0..CHUNK as u32 + 3).for_each(|number| assert_eq!(slab.remove(number), Some(number.into())));
        assert_eq!((slab.bytes(), slab.growth(1)), (0, chunk));
    }
}
