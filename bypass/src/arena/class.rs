//! Size classes of blocks.

/// Length of a block's header.
pub(super) const HEADER: usize = 16;
pub(super) const CLASSES: usize = 4 + 13 * 8 + 1;

/// Size up to which classes are 16 bytes apart. Above, there are eight classes per doubling.
const FINE: usize = 128;
const SMALLEST: usize = 64 + HEADER;

/// Returns the smallest class whose blocks have room for `len` bytes after their header, or a number of at least
/// [`CLASSES`] if there is none.
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

/// Returns the distance between blocks of a class: their length with the header.
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
    fn class_of_returns_the_smallest_class_that_fits() {
        for len in (0..5_000).chain((5_000..=1 << 20).step_by(7)).chain([1 << 20]) {
            let class = class_of(len);
            assert!(class < CLASSES, "{len}");
            assert!(stride_of(class) >= len + HEADER, "{len}");
            assert!(class == 0 || stride_of(class - 1) < len + HEADER, "{len}");
        }
    }

    #[test]
    fn classes_grow_by_an_eighth_at_most() {
        for class in 4..CLASSES {
            let (smaller, larger) = (stride_of(class - 1), stride_of(class));
            assert!(smaller < larger && (larger - smaller) * 8 <= smaller && larger % 16 == 0, "{class}");
        }
    }

    #[test]
    fn class_of_an_excessive_length_is_out_of_range() {
        assert!(class_of(stride_of(CLASSES - 1) - HEADER + 1) >= CLASSES);
        assert!(class_of(usize::MAX) >= CLASSES);
    }
}
