//! Words of a line, and numbers in them.

use crate::store::Expiry;

/// Limit of relative times in seconds. Larger values count from 1970.
const MONTH: i32 = 60 * 60 * 24 * 30;

/// Iterator over the space-separated words of a line.
#[derive(Debug, Default, Clone, Copy)]
pub struct Words<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let start = self.0.iter().position(|byte| *byte != b' ')?;
        let rest = &self.0[start..];
        let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        let word;
        (word, self.0) = rest.split_at(end);
        Some(word)
    }
}

/// Parses the number at the start of `text` as C does. Returns its sign and magnitude, or `None` if it exceeds 64 bits
/// or is followed by anything but white space.
fn number(text: &[u8]) -> Option<(bool, u64)> {
    let is_space = |byte: u8| byte.is_ascii_whitespace() || byte == 0x0b;
    let start = text.iter().position(|byte| !is_space(*byte)).unwrap_or(text.len());
    let (negative, digits) = match &text[start..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    if end == 0 {
        return None;
    }
    let value = digits[..end].iter().try_fold(0u64, |value, digit| {
        let digit = u64::from(digit - b'0');
        value.checked_mul(10)?.checked_add(digit)
    })?;
    let follows = digits.get(end).is_none_or(|byte| is_space(*byte) || *byte == 0);
    follows.then_some((negative, value))
}

/// Parses an unsigned 64-bit number. A negative one wraps around, unless the result would be negative as a signed
/// number.
pub(super) fn unsigned(text: &[u8]) -> Option<u64> {
    match number(text)? {
        (false, value) => Some(value),
        (true, value) => Some(value.wrapping_neg()).filter(|value| (*value as i64) >= 0),
    }
}

/// Parses a signed 64-bit number, of which memcached keeps the lower 32 bits.
pub(super) fn signed(text: &[u8]) -> Option<i32> {
    let value = match number(text)? {
        (false, value) => i64::try_from(value).ok()?,
        (true, value) => 0i64.checked_sub_unsigned(value)?,
    };
    Some(value as i32)
}

/// Parses the length of a data block. memcached accepts values up to 2³¹ - 3.
pub(super) fn length(text: &[u8]) -> Option<usize> {
    let value = signed(text)?;
    (0..=i32::MAX - 2).contains(&value).then_some(value as usize)
}

/// Time of a request.
#[derive(Debug, Clone, Copy)]
pub struct Time {
    /// Milliseconds on the server's clock: that of the wall clock when the server started, and the time since.
    pub now: u64,
    /// Milliseconds that the wall clock is ahead of `now`.
    pub wall_ahead: i64,
}

impl Time {
    /// Returns the time of the wall clock in seconds since 1970.
    pub(super) fn unix_seconds(self) -> u64 {
        self.now.saturating_add_signed(self.wall_ahead) / 1000
    }

    /// Returns the expiry for the `seconds` given by a client, as [`expires_at`](Self::expires_at) does.
    #[inline]
    pub(super) fn expiry(self, seconds: i32) -> Expiry {
        self.expires_at(seconds).map_or(Expiry::Never, Expiry::At)
    }

    /// Returns the expiry time for the `seconds` given by a client, or `None` for never.
    #[inline]
    pub(super) fn expires_at(self, seconds: i32) -> Option<u64> {
        match seconds {
            0 => None,
            ..0 => Some(self.now),
            1..=MONTH => Some(self.now + seconds as u64 * 1000),
            // 0 would be never.
            _ => Some((seconds as u64 * 1000).saturating_sub_signed(self.wall_ahead).max(1)),
        }
    }
}

/// Returns the seconds from `now` to `at`, rounded up.
pub(super) fn seconds_left(at: u64, now: u64) -> u64 {
    at.saturating_sub(now).div_ceil(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_separated_by_spaces() {
        let words = |line: &'static str| Words(line.as_bytes()).map(|word| str::from_utf8(word).unwrap());
        assert_eq!(words(" a  b\tc d ").collect::<Vec<_>>(), ["a", "b\tc", "d"]);
        assert_eq!(words("   ").count(), 0);
    }

    #[test]
    fn numbers_are_parsed_as_in_c() {
        let cases = [
            ("0", Some(0)),
            ("+7", Some(7)),
            ("007", Some(7)),
            (" 7", Some(7)),
            ("7\tx", Some(7)),
            ("7 x", Some(7)),
            ("7\0x", Some(7)),
            ("-0", Some(0)),
            ("-1", None),
            ("-18446744073709551615", Some(1)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("", None),
            ("x", None),
            ("+", None),
            ("7x", None),
            ("1.5", None),
            ("0x1", None),
            ("\t", None),
        ];
        for (text, value) in cases {
            assert_eq!(unsigned(text.as_bytes()), value, "{text:?}");
        }
        assert_eq!(signed(b"-1"), Some(-1));
        assert_eq!(signed(b"4294967297"), Some(1));
        assert_eq!(signed(b"-9223372036854775808"), Some(0));
        assert_eq!(signed(b"9223372036854775808"), None);
        assert_eq!(length(b"2147483645"), Some(2_147_483_645));
        assert_eq!(length(b"2147483646"), None);
        assert_eq!(length(b"-1"), None);
    }

    #[test]
    fn times_up_to_a_month_are_relative() {
        let now = 1_000_000_000_000;
        for wall_ahead in [0, 5000, -5000] {
            let time = Time { now, wall_ahead };
            assert_eq!(time.expires_at(0), None);
            assert_eq!(time.expires_at(-1), Some(now));
            assert_eq!(time.expires_at(30), Some(now + 30_000));
            assert_eq!(time.expires_at(MONTH), Some(now + 2_592_000_000));
            assert_eq!(time.expires_at(MONTH + 1), Some(2_592_001_000_u64.saturating_add_signed(-wall_ahead)));
        }
        assert_eq!(seconds_left(now + 30_000, now), 30);
        assert_eq!(seconds_left(now + 29_001, now), 30);
        assert_eq!(seconds_left(now, now + 5), 0);
    }
}
