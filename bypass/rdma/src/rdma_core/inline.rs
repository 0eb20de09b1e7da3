//! How much a request can carry inline: devices do not say, but when a queue pair is made.

use super::{RdmaCore, objects, qp};
use crate::provider::{Handle, QpCap, QpInitAttr};
use std::io;

/// More than any device carries.
const MOST: u32 = 1 << 14;

impl RdmaCore {
    /// The most bytes that a request with one segment can carry inline, found by making queue pairs.
    ///
    /// # Errors
    /// What keeps queue pairs from being made.
    pub fn inline_limit(&self) -> io::Result<u32> {
        let pd = objects::alloc_pd(self)?;
        // SAFETY: each is live, destroyed once, and nothing that was made of it is left.
        unsafe {
            let limit = objects::create_cq(self, 1, None).and_then(|cq| {
                let limit = largest(|inline| try_inline(pd, cq, inline));
                objects::destroy_cq(cq).and(limit)
            });
            objects::dealloc_pd(pd).and(limit)
        }
    }
}

/// Makes a queue pair that carries `inline` bytes, and destroys it. Returns how much it would have carried.
///
/// # Safety
/// The domain and the queue are live.
unsafe fn try_inline(pd: Handle, cq: Handle, inline: u32) -> io::Result<u32> {
    let cap = QpCap { sends: 1, receives: 1, send_sges: 1, recv_sges: 1, inline };
    let config = QpInitAttr { send_cq: cq, recv_cq: cq, srq: None, cap };
    // SAFETY: the domain and the queue are live; the queue pair is destroyed at once.
    unsafe {
        let (made, _, cap) = qp::create(pd, &config)?;
        qp::destroy(made)?;
        Ok(cap.inline)
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
