//! The sizes that blocks come in.

/// Bytes in front of each block that say whose it is.
pub(super) const HEADER: usize = 16;
/// How many sizes there are.
pub(super) const CLASSES: usize = 4 + 13 * 8 + 1;

/// Up to here sizes grow in steps of 16 bytes; from here on in eight steps to the double.
const FINE: usize = 128;
const SMALLEST: usize = 64 + HEADER;

/// The class of the smallest blocks that have room for `len` bytes beside their header. At or above [`CLASSES`]
/// when there are none so large.
pub(super) fn class_of(len: usize) -> usize {
    let stride = len.saturating_add(HEADER).max(SMALLEST);
    if stride <= FINE {
        return (stride - SMALLEST).div_ceil(16);
    }
    let last = stride - 1;
    let doubling = (last.ilog2() - FINE.ilog2()) as usize;
    let step = (last >> (doubling + 4)) & 7;
    4 + doubling * 8 + step
}

/// How far the blocks of a class lie apart: their size with the header.
pub(super) const fn stride_of(class: usize) -> usize {
    if class < 4 {
        return SMALLEST + class * 16;
    }
    let (doubling, step) = ((class - 4) / 8, (class - 4) % 8);
    (8 + step + 1) << (doubling + 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "too many lengths for Miri, and no unsafe code")]
    fn every_length_gets_the_smallest_block_that_holds_it() {
        for len in (0..5_000).chain((5_000..=1 << 20).step_by(7)).chain([1 << 20]) {
            let class = class_of(len);
            assert!(class < CLASSES, "{len}");
            assert!(stride_of(class) >= len + HEADER, "{len}");
            assert!(class == 0 || stride_of(class - 1) < len + HEADER, "{len}");
        }
    }

    #[test]
    fn sizes_grow_by_an_eighth_at_most_above_the_finest() {
        for class in 4..CLASSES {
            let (smaller, larger) = (stride_of(class - 1), stride_of(class));
            assert!(smaller < larger && (larger - smaller) * 8 <= smaller && larger % 16 == 0, "{class}");
        }
    }

    #[test]
    fn what_no_block_holds_has_no_class() {
        assert!(class_of(stride_of(CLASSES - 1) - HEADER + 1) >= CLASSES);
        assert!(class_of(usize::MAX) >= CLASSES);
    }
}
