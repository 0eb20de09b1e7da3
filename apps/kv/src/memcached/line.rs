//! Reply lines.

/// Limit of a line: a key of 250 bytes, an opaque token of 31, and a number for each of the other flags.
const LONGEST: usize = 512;

/// Buffer that assembles a line, so that it is written in one part.
pub(super) struct Line {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Line {
    #[inline]
    pub fn new(start: &[u8]) -> Self {
        let mut line = Line { bytes: [0; LONGEST], len: 0 };
        line.put(start);
        line
    }

    /// Appends `bytes` as far as there is room.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> &mut Self {
        let room = &mut self.bytes[self.len..];
        debug_assert!(bytes.len() <= room.len(), "a line of more than {LONGEST} bytes");
        let n = bytes.len().min(room.len());
        room[..n].copy_from_slice(&bytes[..n]);
        self.len += n;
        self
    }

    #[inline]
    pub fn number(&mut self, number: u64) -> &mut Self {
        self.put(digits(number, &mut [0; DIGITS]))
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Digits of the largest number.
pub(super) const DIGITS: usize = 20;

#[inline]
pub(super) fn digits(mut number: u64, room: &mut [u8; DIGITS]) -> &[u8] {
    let mut from = DIGITS;
    loop {
        from -= 1;
        room[from] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &room[from..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_decimal() {
        for number in [0, 9, 10, 12_345, u64::MAX] {
            assert_eq!(Line::new(b"").number(number).bytes(), number.to_string().as_bytes());
        }
    }
}
