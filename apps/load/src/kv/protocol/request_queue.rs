//! Queue of outstanding requests.

use super::request::Request;

/// Queue of bounded length. It restarts at its first slot when it becomes empty, so that a connection with depth 1 uses
/// one slot of memory.
#[derive(Debug)]
pub struct RequestQueue {
    /// Slots; their number is a power of two.
    slots: Box<[Request]>,
    first: usize,
    len: usize,
}

impl RequestQueue {
    /// Creates a queue of up to `most` requests.
    pub fn new(most: usize) -> Self {
        RequestQueue { slots: vec![Request::NONE; most.next_power_of_two()].into(), first: 0, len: 0 }
    }

    /// Returns the number of requests.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the request number `i`, counted from the oldest.
    #[inline]
    pub fn get(&self, i: usize) -> Option<&Request> {
        if i < self.len { self.slots.get((self.first + i) & (self.slots.len() - 1)) } else { None }
    }

    /// Returns the request number `i`, counted from the oldest.
    #[inline]
    pub fn get_mut(&mut self, i: usize) -> Option<&mut Request> {
        let at = (self.first + i) & (self.slots.len() - 1);
        if i < self.len { self.slots.get_mut(at) } else { None }
    }

    /// Appends `request`; the queue must not be full.
    #[inline]
    pub fn push(&mut self, request: Request) {
        debug_assert!(self.len < self.slots.len());
        let at = (self.first + self.len) & (self.slots.len() - 1);
        self.slots[at] = request;
        self.len += 1;
    }

    /// Removes the oldest request.
    #[inline]
    pub fn pop(&mut self) {
        debug_assert!(self.len > 0);
        self.len -= 1;
        self.first = if self.len == 0 { 0 } else { self.first + 1 };
    }

    /// Iterates over the requests, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Request> {
        (0..self.len).filter_map(|i| self.get(i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_leave_in_order_across_wrap_around() {
        let mut queue = RequestQueue::new(5);
        let (mut added, mut taken) = (0, 0);
        for round in 0..1000 {
            for _ in 0..(round * 7 % 6) {
                if queue.len() < 5 {
                    queue.push(Request { number: added, ..Request::NONE });
                    added += 1;
                }
            }
            assert!(queue.iter().map(|request| request.number).eq(taken..added));
            assert!(queue.get(queue.len()).is_none() && queue.get_mut(queue.len()).is_none());
            for _ in 0..(round * 5 % 4) {
                if queue.len() > 0 {
                    queue.pop();
                    taken += 1;
                }
            }
        }
        assert!(added > 1000);
    }
}
