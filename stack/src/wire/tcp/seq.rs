//! Sequence numbers: 32 bits that wrap (RFC 9293 §3.4).

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// Sequence number. Comparison uses the signed distance, which is correct within 2 GB. Windows of at most 1 GB (RFC
/// 7323 §2.3) ensure this for all acceptable numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Seq(pub u32);

impl Seq {
    /// Returns the signed distance from `other` to `self`: positive if `self` is after `other`.
    #[inline]
    pub fn distance(self, other: Seq) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    #[inline]
    pub fn before(self, other: Seq) -> bool {
        self.distance(other) < 0
    }

    #[inline]
    pub fn after(self, other: Seq) -> bool {
        self.distance(other) > 0
    }

    #[inline]
    pub fn at_or_after(self, other: Seq) -> bool {
        self.distance(other) >= 0
    }

    #[inline]
    pub fn max(self, other: Seq) -> Seq {
        if self.before(other) { other } else { self }
    }

    #[inline]
    pub fn min(self, other: Seq) -> Seq {
        if self.after(other) { other } else { self }
    }
}

impl Add<u32> for Seq {
    type Output = Seq;

    #[inline]
    fn add(self, bytes: u32) -> Seq {
        Seq(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for Seq {
    #[inline]
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl Sub<u32> for Seq {
    type Output = Seq;

    #[inline]
    fn sub(self, bytes: u32) -> Seq {
        Seq(self.0.wrapping_sub(bytes))
    }
}

/// Number of bytes from `other` to `self`, modulo 2³². Meaningful if `self` is not before `other`.
impl Sub for Seq {
    type Output = u32;

    #[inline]
    fn sub(self, other: Seq) -> u32 {
        self.0.wrapping_sub(other.0)
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        let (before, after) = (Seq(u32::MAX - 1), Seq(3));
        assert!(before.before(after) && after.after(before) && after.at_or_after(after));
        assert_eq!((after - before, after.distance(before), before.distance(after)), (5, 5, -5));
        assert_eq!((before + 5, after - 5), (after, before));
        assert_eq!((before.max(after), before.min(after)), (after, before));
    }
}
