//! Numbers as Redis reads them.

/// The number that `digits` are, in the one way in which Redis would write it: no sign but a minus, no zeros in front, nothing
/// around it.
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
    // Downwards, where there is one number more.
    let number = magnitude.iter().try_fold(0i64, |number, digit| {
        let digit = digit.wrapping_sub(b'0');
        (digit <= 9).then_some(())?;
        number.checked_mul(10)?.checked_sub(digit.into())
    })?;
    if negative { Some(number) } else { number.checked_neg() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(number in any::<i64>()) {
            prop_assert_eq!(parse(number.to_string().as_bytes()), Some(number));
        }

        #[test]
        fn what_is_read_is_how_it_is_written(bytes in "[-+ 0-9a]{0,22}") {
            if let Some(number) = parse(bytes.as_bytes()) {
                prop_assert_eq!(number.to_string(), bytes);
            }
        }
    }

    #[test]
    fn the_ends_of_the_range_are_numbers_and_what_lies_beyond_is_not() {
        assert_eq!(parse(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(parse(b"9223372036854775808"), None);
        assert_eq!(parse(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse(b"-9223372036854775809"), None);
        for wrong in ["", "-", "-0", "00", "1 ", " 1", "1.0", "0x1", "99999999999999999999999"] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong:?}");
        }
    }
}
