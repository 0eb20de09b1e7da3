//! Queue optimised for a single element.

use std::collections::VecDeque;

/// Queue that stores its first element inline. A queue of a single element, as of a connection with requests and
/// responses, touches no other memory and takes few instructions.
#[derive(Debug, Default)]
pub(crate) struct Queue<T> {
    /// First element; `None` only if `rest` is empty.
    first: Option<T>,
    rest: VecDeque<T>,
}

impl<T> Queue<T> {
    /// Creates an empty queue.
    pub fn new() -> Self {
        Queue { first: None, rest: VecDeque::new() }
    }

    #[inline(always)]
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Returns the element, if there is exactly one.
    #[inline(always)]
    pub fn only(&self) -> Option<&T> {
        if self.rest.is_empty() { self.first.as_ref() } else { None }
    }

    /// Returns the element, if there is exactly one.
    #[inline(always)]
    pub fn only_mut(&mut self) -> Option<&mut T> {
        if self.rest.is_empty() { self.first.as_mut() } else { None }
    }

    /// Takes the element, if there is exactly one.
    #[inline(always)]
    pub fn take_only(&mut self) -> Option<T> {
        if self.rest.is_empty() { self.first.take() } else { None }
    }

    /// Drops the element, if there is exactly one.
    #[inline(always)]
    pub fn drop_only(&mut self) {
        if self.rest.is_empty() {
            self.first = None;
        }
    }

    #[inline(always)]
    pub fn front(&self) -> Option<&T> {
        self.first.as_ref()
    }

    #[inline(always)]
    pub fn front_mut(&mut self) -> Option<&mut T> {
        self.first.as_mut()
    }

    #[inline]
    pub fn back(&self) -> Option<&T> {
        self.rest.back().or(self.first.as_ref())
    }

    #[inline]
    pub fn back_mut(&mut self) -> Option<&mut T> {
        self.rest.back_mut().or(self.first.as_mut())
    }

    #[inline]
    pub fn get(&self, at: usize) -> Option<&T> {
        match at.checked_sub(1) {
            None => self.first.as_ref(),
            Some(at) => self.rest.get(at),
        }
    }

    #[inline]
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        match at.checked_sub(1) {
            None => self.first.as_mut(),
            Some(at) => self.rest.get_mut(at),
        }
    }

    #[inline(always)]
    pub fn push_back(&mut self, element: T) {
        if self.first.is_some() {
            return self.rest.push_back(element);
        }
        // The old value is `None`, which the compiler cannot prove.
        std::mem::forget(self.first.replace(element));
    }

    /// Puts an element into an empty queue.
    #[inline(always)]
    pub fn put(&mut self, element: T) {
        debug_assert!(self.is_empty());
        // The old value is `None`, which the compiler cannot prove.
        std::mem::forget(self.first.replace(element));
    }

    /// Inserts an element before element number `at`, which is not the first.
    ///
    /// # Panics
    ///
    /// If `at` is zero or beyond the end.
    pub fn insert(&mut self, at: usize, element: T) {
        assert!(at > 0 && self.first.is_some(), "insertion before the first element");
        self.rest.insert(at - 1, element);
    }

    #[inline(always)]
    pub fn pop_front(&mut self) -> Option<T> {
        let next = if self.rest.is_empty() { None } else { self.rest.pop_front() };
        std::mem::replace(&mut self.first, next)
    }

    #[inline]
    pub fn pop_back(&mut self) -> Option<T> {
        self.rest.pop_back().or_else(|| self.first.take())
    }

    #[inline]
    pub fn clear(&mut self) {
        self.first = None;
        self.rest.clear();
    }

    /// Returns the number of elements for which memory is allocated.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.rest.capacity()
    }

    /// Frees memory for more than `most` elements.
    pub fn shrink_to(&mut self, most: usize) {
        self.rest.shrink_to(most);
    }

    /// Returns the index of the first element for which `is_before` is false. Elements for which it is true precede all
    /// others.
    pub fn partition_point(&self, is_before: impl Fn(&T) -> bool) -> usize {
        match &self.first {
            Some(first) if is_before(first) => 1 + self.rest.partition_point(is_before),
            _ => 0,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.rest)
    }

    /// Iterates over the elements from number `at` on.
    pub fn iter_from(&self, at: usize) -> impl Iterator<Item = &T> {
        let first = if at == 0 { self.first.as_ref() } else { None };
        first.into_iter().chain(self.rest.iter().skip(at.saturating_sub(1)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().chain(&mut self.rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Push,
        PopFront,
        PopBack,
        TakeOnly,
        DropOnly,
        Insert(usize),
        Set(usize),
        Clear,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Push),
            2 => Just(Step::PopFront),
            1 => Just(Step::PopBack),
            1 => Just(Step::TakeOnly),
            1 => Just(Step::DropOnly),
            1 => (1usize..8).prop_map(Step::Insert),
            1 => (0usize..8).prop_map(Step::Set),
            1 => Just(Step::Clear),
        ]
    }

    proptest! {
        #[test]
        fn queue_behaves_like_a_deque(steps in prop::collection::vec(step(), 0..60)) {
            let (mut queue, mut deque) = (Queue::new(), VecDeque::new());
            for (number, step) in steps.into_iter().enumerate() {
                let number = number as u32 * 10;
                match step {
                    Step::Push => {
                        queue.push_back(number);
                        deque.push_back(number);
                    }
                    Step::PopFront => prop_assert_eq!(queue.pop_front(), deque.pop_front()),
                    Step::PopBack => prop_assert_eq!(queue.pop_back(), deque.pop_back()),
                    Step::TakeOnly => {
                        let expected = if deque.len() == 1 { deque.pop_front() } else { None };
                        prop_assert_eq!(queue.take_only(), expected);
                    }
                    Step::DropOnly => {
                        queue.drop_only();
                        if deque.len() == 1 {
                            deque.clear();
                        }
                    }
                    Step::Insert(at) if at <= deque.len() => {
                        queue.insert(at, number);
                        deque.insert(at, number);
                    }
                    Step::Set(at) => {
                        let (one, other) = (queue.get_mut(at), deque.get_mut(at));
                        prop_assert_eq!(&one, &other);
                        one.into_iter().chain(other).for_each(|element| *element = number);
                    }
                    Step::Insert(_) => {}
                    Step::Clear => {
                        queue.clear();
                        deque.clear();
                    }
                }
                prop_assert_eq!((queue.len(), queue.is_empty()), (deque.len(), deque.is_empty()));
                prop_assert_eq!((queue.front(), queue.back()), (deque.front(), deque.back()));
                prop_assert_eq!(queue.back_mut().copied(), deque.back().copied());
                prop_assert!(queue.iter().eq(deque.iter()));
                prop_assert!(queue.iter_mut().eq(deque.iter_mut()));
                for at in 0..9 {
                    prop_assert_eq!(queue.get(at), deque.get(at));
                    prop_assert!(queue.iter_from(at).eq(deque.iter().skip(at)));
                }
                let only = if deque.len() == 1 { deque.front() } else { None };
                prop_assert_eq!(queue.only(), only);
                prop_assert_eq!(queue.only_mut().copied(), only.copied());
            }
            deque.make_contiguous().sort_unstable();
            let mut sorted = Queue::new();
            deque.iter().for_each(|element| sorted.push_back(*element));
            for bound in (0..700).step_by(7) {
                prop_assert_eq!(sorted.partition_point(|at| *at < bound), deque.partition_point(|at| *at < bound));
            }
        }
    }
}
