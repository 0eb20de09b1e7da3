//! Integers in the format of Redis.

use std::ops::Deref;

/// Parses an integer in the canonical format of Redis: no plus sign, no leading zeros, no spaces.
///
/// ```
/// use linerate_kv::resp::number::parse;
/// assert_eq!(parse(b"-42"), Some(-42));
/// assert_eq!(parse(b"+42"), None);
/// assert_eq!(parse(b"042"), None);
/// ```
pub fn parse(digits: &[u8]) -> Option<i64> {
    let (negative, magnitude) = match digits {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, digits),
    };
    match magnitude {
        [] => return None,
        [b'0'] if !negative => return Some(0),
        [b'0', ..] => return None,
        _ => {}
    }
    // Accumulate the negated number, because the minimum has no positive counterpart.
    let number = magnitude.iter().try_fold(0i64, |number, digit| {
        let digit = digit.wrapping_sub(b'0');
        (digit <= 9).then_some(())?;
        number.checked_mul(10)?.checked_sub(digit.into())
    })?;
    if negative { Some(number) } else { number.checked_neg() }
}

/// Decimal digits of an integer.
///
/// ```
/// use linerate_kv::resp::number::Digits;
/// assert_eq!(&*Digits::new(-42), b"-42");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Digits {
    bytes: [u8; LONGEST],
    from: u8,
}

/// Length of the longest number with its sign.
pub(super) const LONGEST: usize = 20;

impl Digits {
    #[inline]
    pub fn new(number: i64) -> Self {
        let mut bytes = [0; LONGEST];
        let from = write(number, &mut bytes);
        Digits { bytes, from: from as u8 }
    }
}

impl Deref for Digits {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[self.from.into()..]
    }
}

/// Writes `number` to the end of `bytes`. Returns its start.
#[inline]
pub(super) fn write(number: i64, bytes: &mut [u8]) -> usize {
    let mut left = number.unsigned_abs();
    let mut from = bytes.len();
    loop {
        from -= 1;
        bytes[from] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if number < 0 {
        from -= 1;
        bytes[from] = b'-';
    }
    from
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn digits_equal_those_of_the_standard_library(number in any::<i64>(), shift in 0..64u32) {
            let number = number >> shift;
            prop_assert_eq!(Digits::new(number).to_vec(), number.to_string().into_bytes());
        }

        #[test]
        fn formatted_number_is_parsed(number in any::<i64>()) {
            prop_assert_eq!(parse(number.to_string().as_bytes()), Some(number));
        }

        #[test]
        fn only_canonical_format_is_parsed(bytes in "[-+ 0-9a]{0,22}") {
            if let Some(number) = parse(bytes.as_bytes()) {
                prop_assert_eq!(number.to_string(), bytes);
            }
        }
    }

    #[test]
    fn extreme_numbers_are_formatted() {
        for number in [0, i64::MAX, i64::MIN] {
            assert_eq!(&*Digits::new(number), number.to_string().as_bytes());
        }
    }

    #[test]
    fn extreme_numbers_are_parsed_and_larger_ones_are_rejected() {
        assert_eq!(parse(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(parse(b"9223372036854775808"), None);
        assert_eq!(parse(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse(b"-9223372036854775809"), None);
        for wrong in ["", "-", "-0", "00", "1 ", " 1", "1.0", "0x1", "99999999999999999999999"] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong:?}");
        }
    }
}
