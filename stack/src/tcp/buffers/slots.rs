//! Values at stable indices, which are reused after their release.

/// Values by index. A released value keeps its memory until its index is reused.
pub(crate) struct Slots<T> {
    values: Vec<T>,
    spare: Vec<u32>,
}

impl<T> Slots<T> {
    pub const fn new() -> Self {
        Slots { values: Vec::new(), spare: Vec::new() }
    }

    /// Stores `value` and returns its index.
    #[inline]
    pub fn insert(&mut self, value: T) -> u32 {
        match self.spare.pop() {
            Some(index) => {
                self.values[index as usize] = value;
                index
            }
            None => self.push(value),
        }
    }

    /// Returns the index of a released value, or of a new one if there is none.
    #[inline]
    pub fn reuse_or_insert(&mut self, new: impl FnOnce() -> T) -> u32 {
        self.spare.pop().unwrap_or_else(|| self.push(new()))
    }

    fn push(&mut self, value: T) -> u32 {
        self.values.push(value);
        self.values.len() as u32 - 1
    }

    /// Makes `index`, which is in use, available to later values.
    #[inline(always)]
    pub fn release(&mut self, index: u32) {
        self.spare.push(index);
    }

    #[inline(always)]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.values.get(index as usize)
    }

    #[inline(always)]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.values.get_mut(index as usize)
    }

    pub fn in_use(&self) -> usize {
        self.values.len() - self.spare.len()
    }

    /// Returns the released values and their indices.
    pub fn spare(&self) -> impl Iterator<Item = (u32, &T)> {
        self.spare.iter().map(|&index| (index, &self.values[index as usize]))
    }
}
