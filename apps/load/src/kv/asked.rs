//! Requests that wait for their answers.

use super::request::Request;

/// A queue of bounded length. What was the last one begins at its first place again, so that a connection with one request
/// at a time keeps to one place of memory.
#[derive(Debug)]
pub struct Asked {
    /// A power of two of them.
    places: Box<[Request]>,
    first: usize,
    len: usize,
}

impl Asked {
    /// A queue of up to `most` requests.
    pub fn new(most: usize) -> Self {
        Asked { places: vec![Request::NONE; most.next_power_of_two()].into(), first: 0, len: 0 }
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The oldest but `i`, if there are so many.
    #[inline]
    pub fn get(&self, i: usize) -> Option<&Request> {
        if i < self.len { self.places.get((self.first + i) & (self.places.len() - 1)) } else { None }
    }

    /// The oldest but `i`, if there are so many.
    #[inline]
    pub fn get_mut(&mut self, i: usize) -> Option<&mut Request> {
        let at = (self.first + i) & (self.places.len() - 1);
        if i < self.len { self.places.get_mut(at) } else { None }
    }

    /// Adds `request`, for which there is a place.
    #[inline]
    pub fn push(&mut self, request: Request) {
        debug_assert!(self.len < self.places.len());
        let at = (self.first + self.len) & (self.places.len() - 1);
        self.places[at] = request;
        self.len += 1;
    }

    /// Takes the oldest out.
    #[inline]
    pub fn pop(&mut self) {
        debug_assert!(self.len > 0);
        self.len -= 1;
        self.first = if self.len == 0 { 0 } else { self.first + 1 };
    }

    /// All of them, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Request> {
        (0..self.len).filter_map(|i| self.get(i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_first_comes_first_however_often_around() {
        let mut asked = Asked::new(5);
        let (mut added, mut taken) = (0, 0);
        for round in 0..1000 {
            for _ in 0..(round * 7 % 6) {
                if asked.len() < 5 {
                    asked.push(Request { number: added, ..Request::NONE });
                    added += 1;
                }
            }
            assert!(asked.iter().map(|request| request.number).eq(taken..added));
            assert!(asked.get(asked.len()).is_none() && asked.get_mut(asked.len()).is_none());
            for _ in 0..(round * 5 % 4) {
                if asked.len() > 0 {
                    asked.pop();
                    taken += 1;
                }
            }
        }
        assert!(added > 1000);
    }
}
