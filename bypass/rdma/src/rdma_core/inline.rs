//! How much a request can carry inline: devices do not say, but when a queue pair is made.

use super::{Native, objects, pair};
use crate::calls::{Capacities, Handle, QueuePairConfig};
use std::io;

/// More than any device carries.
const MOST: u32 = 1 << 14;

impl Native {
    /// The most bytes that a request with one segment can carry inline, found by making queue pairs.
    ///
    /// # Errors
    /// What keeps queue pairs from being made.
    pub fn inline_limit(&self) -> io::Result<u32> {
        let domain = objects::alloc_domain(self)?;
        // SAFETY: each is live, destroyed once, and nothing that was made of it is left.
        unsafe {
            let limit = objects::create_queue(self, 1, None).and_then(|queue| {
                let limit = largest(|inline| try_inline(domain, queue, inline));
                objects::destroy_queue(queue).and(limit)
            });
            objects::dealloc_domain(domain).and(limit)
        }
    }
}

/// Makes a queue pair that carries `inline` bytes, and destroys it. Returns how much it would have carried.
///
/// # Safety
/// The domain and the queue are live.
unsafe fn try_inline(domain: Handle, queue: Handle, inline: u32) -> io::Result<u32> {
    let capacities = Capacities { sends: 1, receives: 1, send_segments: 1, receive_segments: 1, inline };
    let config = QueuePairConfig { send_queue: queue, receive_queue: queue, shared: None, capacities };
    // SAFETY: the domain and the queue are live; the queue pair is destroyed at once.
    unsafe {
        let (made, _, capacities) = pair::create(domain, &config)?;
        pair::destroy(made)?;
        Ok(capacities.inline)
    }
}

/// The most that `attempt` gives: all that is no more than it is given, and what is more is refused. A queue pair that
/// carries nothing can be made, or the error is another one.
fn largest(attempt: impl Fn(u32) -> io::Result<u32>) -> io::Result<u32> {
    let (mut most, mut refused) = (attempt(0)?.min(MOST), MOST + 1);
    while most + 1 < refused {
        let middle = most + (refused - most) / 2;
        match attempt(middle) {
            Ok(given) => most = given.clamp(middle, refused - 1),
            Err(_) => refused = middle,
        }
    }
    Ok(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_found_however_devices_round() {
        for limit in [0, 1, 60, 220, 956, MOST] {
            for step in [1, 16, 64] {
                let attempt = |inline: u32| {
                    if inline > limit {
                        Err(io::ErrorKind::InvalidInput.into())
                    } else {
                        Ok(inline.next_multiple_of(step).min(limit))
                    }
                };
                assert_eq!(largest(attempt).unwrap(), limit, "by {step}");
            }
        }
        // One that promises more than it was asked for, whatever it is asked.
        assert_eq!(largest(|_| Ok(u32::MAX)).unwrap(), MOST);
        assert!(largest(|_| Err(io::ErrorKind::OutOfMemory.into())).is_err());
    }
}
