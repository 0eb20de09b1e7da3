//! Maximum inline size, which devices report only when a queue pair is created.

use super::RdmaCore;
use crate::provider::{Provider, QpCap, QpInitAttr};
use std::io;

/// Upper bound of inline sizes.
const MOST: u32 = 1 << 14;

impl RdmaCore {
    /// Determines the maximum inline size of a request with one element by creating queue pairs.
    ///
    /// # Errors
    /// Failures to create queue pairs.
    pub fn inline_limit(&self) -> io::Result<u32> {
        let pd = self.alloc_pd()?;
        // SAFETY: each object is live, destroyed once, and has no dependents left.
        unsafe {
            let limit = self.create_cq(16, None, 0).and_then(|cq| {
                let limit = largest(|inline| {
                    let cap = QpCap { sends: 1, receives: 1, send_sges: 1, recv_sges: 1, inline };
                    let made = self.create_qp(pd, &QpInitAttr { send_cq: cq, recv_cq: cq, srq: None, cap });
                    made.and_then(|(qp, _, cap)| self.destroy_qp(qp).map(|()| cap.inline))
                });
                self.destroy_cq(cq).and(limit)
            });
            self.dealloc_pd(pd).and(limit)
        }
    }
}

/// Returns the largest size that `attempt` grants. `attempt` refuses larger sizes; its failure at size 0 has another
/// cause and is returned.
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
    fn largest_size_is_found_with_any_rounding() {
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
        // A device that grants more than requested at any size.
        assert_eq!(largest(|_| Ok(u32::MAX)).unwrap(), MOST);
        assert!(largest(|_| Err(io::ErrorKind::OutOfMemory.into())).is_err());
    }
}
