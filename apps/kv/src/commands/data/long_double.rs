//! Numbers of INCRBYFLOAT.
//!
//! Redis computes with `long double`, which on x86-64 has a mantissa of 64 bits, and writes 17 decimal places. 10.5 and
//! 0.1 give 10.6 there, while `double` would give 10.59999999999999964. This module implements that format as far as
//! parsing, addition and formatting need it, so that replies are the same.

use std::cmp::Ordering;

/// Length limit of a number in characters.
const LONGEST: usize = 5 * 1024 - 1;
/// Finite numbers are below two to this power.
const MAX_EXPONENT: i64 = 16_384;
/// Two to this power is less than half of the smallest number.
const MIN_EXPONENT: i64 = -16_446;
/// Decimal places written.
const PLACES: usize = 17;

/// Number with a mantissa of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LongDouble {
    /// `mantissa` times two to the `exponent`. The highest bit of the mantissa is set unless it is 0.
    Finite { is_negative: bool, mantissa: u64, exponent: i64 },
    /// Infinity or not a number.
    NotFinite,
}

use LongDouble::{Finite, NotFinite};

impl LongDouble {
    /// Returns the number nearest to `text`, if C's `strtold` accepts it.
    pub fn parse(text: &[u8]) -> Option<LongDouble> {
        if text.len() > LONGEST {
            return None;
        }
        let (is_negative, magnitude) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] | rest => (false, rest),
        };
        if magnitude.eq_ignore_ascii_case(b"inf") || magnitude.eq_ignore_ascii_case(b"infinity") {
            return Some(NotFinite);
        }
        match magnitude {
            [b'0', b'x' | b'X', digits @ ..] => parse_digits::<16>(is_negative, digits),
            digits => parse_digits::<10>(is_negative, digits),
        }
    }

    /// Returns the number nearest to the sum.
    pub fn add(self, other: LongDouble) -> LongDouble {
        let (Finite { mantissa: a, exponent: x, .. }, Finite { mantissa: b, exponent: y, .. }) = (self, other) else {
            return NotFinite;
        };
        if b == 0 || (a != 0 && x >= y) { self.add_smaller(other) } else { other.add_smaller(self) }
    }

    /// [`add`](Self::add) where `other` is 0 or its exponent is not larger.
    fn add_smaller(self, other: LongDouble) -> LongDouble {
        let (
            Finite { is_negative, mantissa: a, exponent: x },
            Finite { is_negative: is_other_negative, mantissa: b, exponent: y },
        ) = (self, other)
        else {
            return NotFinite;
        };
        if b == 0 {
            return self;
        }
        let (a, b, shift) = (u128::from(a) << 62, u128::from(b) << 62, x - y);
        let (b, is_cut) = match u32::try_from(shift) {
            Ok(shift @ 0..128) => (b >> shift, b & ((1 << shift) - 1) != 0),
            _ => (0, true),
        };
        if is_negative == is_other_negative {
            return round(is_negative, a + b, is_cut, x - 62);
        }
        match a.cmp(&b) {
            Ordering::Equal if !is_cut => Finite { is_negative: false, mantissa: 0, exponent: 0 },
            Ordering::Less => round(is_other_negative, b - a, is_cut, x - 62),
            _ => round(is_negative, a - b - u128::from(is_cut), is_cut, x - 62),
        }
    }

    /// Formats the number as Redis does: without exponent and trailing zeros. Returns `None` if it is not finite.
    pub fn write(self) -> Option<Vec<u8>> {
        let Finite { is_negative, mantissa, exponent } = self else { return None };
        let magnitude = if exponent >= 0 {
            let mut number = Big::from(mantissa.into());
            number.shift_left(exponent as usize);
            number.into_decimal()
        } else {
            // Below 2¹²¹.
            let scaled = u128::from(mantissa) * 10u128.pow(PLACES as u32);
            let rounded = match u32::try_from(-exponent) {
                Ok(shift @ 0..128) => {
                    let (quotient, rest, half) = (scaled >> shift, scaled & ((1 << shift) - 1), 1 << (shift - 1));
                    quotient + u128::from(rest > half || (rest == half && quotient & 1 == 1))
                }
                _ => 0,
            };
            let digits = format!("{rounded:0width$}", width = PLACES + 1);
            let (whole, places) = digits.split_at(digits.len() - PLACES);
            let places = places.trim_end_matches('0');
            if places.is_empty() { whole.to_owned() } else { format!("{whole}.{places}") }
        };
        let sign = if is_negative && magnitude != "0" { "-" } else { "" };
        Some(format!("{sign}{magnitude}").into_bytes())
    }
}

/// Parses `digits` to the base 10 or 16, with an optional point and exponent.
fn parse_digits<const BASE: u32>(is_negative: bool, digits: &[u8]) -> Option<LongDouble> {
    let mut number = Big::from(0);
    let (mut seen, mut places, mut has_point) = (false, 0i64, false);
    let mut rest = digits;
    while let [byte, more @ ..] = rest {
        if let Some(digit) = (*byte as char).to_digit(BASE) {
            number.multiply_add(BASE, digit);
            seen = true;
            places += i64::from(has_point);
        } else if *byte == b'.' && !has_point {
            has_point = true;
        } else {
            break;
        }
        rest = more;
    }
    if !seen {
        return None;
    }
    let exponent = match rest {
        [] => 0,
        [b'e' | b'E', exponent @ ..] if BASE == 10 => parse_exponent(exponent)?,
        [b'p' | b'P', exponent @ ..] if BASE == 16 => parse_exponent(exponent)?,
        _ => return None,
    };
    if number.is_zero() {
        return Some(Finite { is_negative, mantissa: 0, exponent: 0 });
    }
    let found = if BASE == 16 {
        number.rounded(is_negative, exponent.saturating_sub(4 * places))
    } else {
        let exponent = exponent.saturating_sub(places);
        // Skip the computation for numbers far out of range.
        let size = number.bits() as i64 * 3 / 10;
        if exponent.saturating_add(size) > 5000 || exponent.saturating_add(size) < -5100 {
            return None;
        }
        let mut power = Big::from(1);
        (0..exponent.unsigned_abs()).for_each(|_| power.multiply_add(10, 0));
        if exponent >= 0 { number.times(&power).rounded(is_negative, 0) } else { number.divided(power, is_negative) }
    };
    match found {
        Finite { exponent, .. } if exponent + 64 > MIN_EXPONENT => Some(found),
        _ => None,
    }
}

fn parse_exponent(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] | rest => (false, rest),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let magnitude = digits.iter().fold(0i64, |sum, digit| sum.saturating_mul(10).saturating_add((digit - b'0').into()));
    Some(if is_negative { -magnitude } else { magnitude })
}

/// Returns the number nearest to `bits` times two to the `exponent`; ties go to the even number. If `is_cut`, a
/// fraction below one was cut off `bits`, which then has more than 64 bits.
fn round(is_negative: bool, bits: u128, is_cut: bool, exponent: i64) -> LongDouble {
    let len = 128 - bits.leading_zeros();
    let (mantissa, exponent) = if len <= 64 {
        ((bits as u64) << (64 - len), exponent - i64::from(64 - len))
    } else {
        let drop = len - 64;
        let (kept, rest, half) = ((bits >> drop) as u64, bits & ((1 << drop) - 1), 1u128 << (drop - 1));
        let is_up = rest > half || (rest == half && (is_cut || kept & 1 == 1));
        match kept.checked_add(is_up.into()) {
            Some(kept) => (kept, exponent + i64::from(drop)),
            None => (1 << 63, exponent + i64::from(drop) + 1),
        }
    };
    if exponent + 64 > MAX_EXPONENT {
        return NotFinite;
    }
    Finite { is_negative, mantissa, exponent }
}

/// Natural number of any size, lowest digits first.
#[derive(Debug, Clone)]
struct Big(Vec<u32>);

impl Big {
    fn from(number: u128) -> Self {
        let mut big = Big((0..4).map(|digit| (number >> (32 * digit)) as u32).collect());
        big.trim();
        big
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    fn bits(&self) -> usize {
        self.0.last().map_or(0, |top| 32 * self.0.len() - top.leading_zeros() as usize)
    }

    fn multiply_add(&mut self, factor: u32, summand: u32) {
        let mut carry = u64::from(summand);
        for digit in &mut self.0 {
            carry += u64::from(*digit) * u64::from(factor);
            *digit = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    fn times(&self, other: &Big) -> Big {
        let mut product = vec![0u32; self.0.len() + other.0.len()];
        for (at, a) in self.0.iter().enumerate() {
            let mut carry = 0u64;
            for (digit, b) in product[at..].iter_mut().zip(other.0.iter().chain([&0])) {
                carry += u64::from(*digit) + u64::from(*a) * u64::from(*b);
                *digit = carry as u32;
                carry >>= 32;
            }
        }
        let mut product = Big(product);
        product.trim();
        product
    }

    fn shift_left(&mut self, bits: usize) {
        if self.is_zero() {
            return;
        }
        self.multiply_add(1 << (bits % 32), 0);
        self.0.splice(0..0, std::iter::repeat_n(0, bits / 32));
    }

    /// Subtracts `other` if it is not larger. Returns false if it is.
    fn take(&mut self, other: &Big) -> bool {
        let is_less = match self.0.len().cmp(&other.0.len()) {
            Ordering::Equal => self.0.iter().rev().lt(other.0.iter().rev()),
            unequal => unequal.is_lt(),
        };
        if is_less {
            return false;
        }
        let mut borrow = false;
        for (at, digit) in self.0.iter_mut().enumerate() {
            let (less, first) = digit.overflowing_sub(other.0.get(at).copied().unwrap_or(0));
            let (less, second) = less.overflowing_sub(borrow.into());
            *digit = less;
            borrow = first || second;
        }
        self.trim();
        true
    }

    /// Returns the number nearest to this one times two to the `exponent`.
    fn rounded(&self, is_negative: bool, exponent: i64) -> LongDouble {
        let digit = |from_top: usize| self.0.len().checked_sub(from_top).map_or(0, |at| u128::from(self.0[at]));
        let bits = (1..=4).fold(0, |bits, from_top| bits << 32 | digit(from_top));
        let below = self.0.len() as i64 - 4;
        let is_cut = below > 0 && self.0[..below as usize].iter().any(|digit| *digit != 0);
        round(is_negative, bits, is_cut, exponent.saturating_add(32 * below))
    }

    /// Returns the number nearest to the quotient by `divisor`. Neither is 0.
    fn divided(mut self, mut divisor: Big, is_negative: bool) -> LongDouble {
        const STEPS: i64 = 67;
        let shift = divisor.bits() as i64 - self.bits() as i64;
        if shift > 0 {
            self.shift_left(shift as usize)
        } else {
            divisor.shift_left(-shift as usize)
        }
        let mut quotient = 0u128;
        for _ in 0..STEPS {
            quotient = quotient << 1 | u128::from(self.take(&divisor));
            self.shift_left(1);
        }
        round(is_negative, quotient, !self.is_zero(), 1 - STEPS - shift)
    }

    fn into_decimal(mut self) -> String {
        const PART: u64 = 1_000_000_000;
        let mut parts = Vec::new();
        while !self.is_zero() {
            let mut rest = 0u64;
            for digit in self.0.iter_mut().rev() {
                rest = rest << 32 | u64::from(*digit);
                *digit = (rest / PART) as u32;
                rest %= PART;
            }
            self.trim();
            parts.push(rest);
        }
        let mut text = parts.pop().unwrap_or(0).to_string();
        parts.iter().rev().for_each(|part| text += &format!("{part:09}"));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(a: &str, b: &str) -> Option<String> {
        let [a, b] = [a, b].map(|text| LongDouble::parse(text.as_bytes()).unwrap());
        Some(String::from_utf8(a.add(b).write()?).unwrap())
    }

    fn read(text: &str) -> Option<String> {
        Some(String::from_utf8(LongDouble::parse(text.as_bytes())?.write()?).unwrap())
    }

    #[test]
    fn sums_equal_those_of_redis() {
        for (a, b, expected) in [
            ("10.50", "0.1", "10.6"),
            ("10.6", "-5", "5.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("0.1", "0.2", "0.3"),
            ("1", "-1", "0"),
            ("-1", "0.5", "-0.5"),
            ("3", "1e-17", "3.00000000000000001"),
            ("3", "1e-18", "3"),
            ("0", "-0.0", "0"),
            ("1e20", "1", "100000000000000000000"),
            ("1e17", "0.1", "100000000000000000.1015625"),
            ("1e25", "-1e25", "0"),
            ("0x10", "0x.8", "16.5"),
            ("9223372036854775807", "1", "9223372036854775808"),
            ("18446744073709551615", "1", "18446744073709551616"),
            // 2⁶⁴ + 1 is between two numbers and is rounded to the even one.
            ("18446744073709551616", "1", "18446744073709551616"),
        ] {
            assert_eq!(sum(a, b).as_deref(), Some(expected), "{a} {b}");
            assert_eq!(sum(b, a).as_deref(), Some(expected), "{b} {a}");
        }
        assert_eq!(sum("inf", "1"), None);
        assert_eq!(sum("1.18e4932", "1.18e4932"), None);
    }

    #[test]
    fn parse_rejects_invalid_numbers() {
        for text in ["", " 1", "1 ", "a", "1e", "1e+", "--1", ".", "nan", "0x", "1.2.3", "1e5000", "1e-5000", "1\0"] {
            assert_eq!(LongDouble::parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(LongDouble::parse(&[b'1'; LONGEST + 1]), None);
        assert_eq!(LongDouble::parse(b"-Infinity"), Some(NotFinite));
        for (text, expected) in
            [(".5", "0.5"), ("5.", "5"), ("+3", "3"), ("1E2", "100"), ("-0", "0"), ("0e9999999", "0")]
        {
            assert_eq!(read(text).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn numbers_with_many_digits_are_exact() {
        let long = read("1e4000").unwrap();
        assert!(long.len() == 4000 && long.starts_with("999999999999999999996546387309962378493249258350695763130150"));
        assert!(long.ends_with("72729951206648276349901340672"));
        assert_eq!(read(&format!("0.{}1e3001", "0".repeat(3000))).as_deref(), Some("1"));
        let rounded = read(&format!("{}.5", "9".repeat(30)));
        assert_eq!(rounded.as_deref(), Some("1000000000000000000024696061952"));
    }
}
