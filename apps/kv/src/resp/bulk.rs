//! Short bulk strings.

/// Length limit of the values that [`write_bulk`] writes.
pub const LONGEST: usize = 9999;

/// The two digits of each number below a hundred.
const DIGITS: [[u8; 2]; 100] = {
    let mut digits = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        digits[number] = [b'0' + number as u8 / 10, b'0' + number as u8 % 10];
        number += 1;
    }
    digits
};

/// Returns the length of a bulk string with a value of `len` bytes, at most [`LONGEST`].
#[inline(always)]
pub fn bulk_len(len: usize) -> usize {
    // Most lengths have two digits.
    let digits = if (10..100).contains(&len) {
        2
    } else {
        1 + usize::from(len > 9) + usize::from(len > 99) + usize::from(len > 999)
    };
    1 + digits + 2 + len + 2
}

/// Writes the bulk string of `value` into `out`, whose length is [`bulk_len`].
#[inline(always)]
pub fn write_bulk(value: &[u8], out: &mut [u8]) {
    const LINE: u64 = u64::from_le_bytes(*b"$\0\0\r\n\0\0\0");
    // Most lengths have two digits. The last bytes of this word are overwritten by the value.
    if let (10..100, Some(line)) = (value.len(), out.first_chunk_mut()) {
        *line = (LINE | u64::from(u16::from_le_bytes(DIGITS[value.len()])) << 8).to_le_bytes();
        let (out, end) = out[5..].split_at_mut(value.len());
        out.copy_from_slice(value);
        end.copy_from_slice(b"\r\n");
    } else {
        write_any_bulk(value, out);
    }
}

/// [`write_bulk`] for a value whose length does not have two digits.
#[inline(never)]
fn write_any_bulk(value: &[u8], out: &mut [u8]) {
    let (line, rest) = out.split_at_mut(out.len() - value.len() - 2);
    if let [dollar, digits @ .., cr, lf] = line {
        [*dollar, *cr, *lf] = *b"$\r\n";
        let len = value.len();
        match digits {
            [a] => *a = b'0' + len as u8,
            [a, b, c] => [*a, *b, *c] = [b'0' + (len / 100) as u8, DIGITS[len % 100][0], DIGITS[len % 100][1]],
            [a, b, c, d] => ([*a, *b], [*c, *d]) = (DIGITS[len / 100], DIGITS[len % 100]),
            _ => {}
        }
    }
    let (out, end) = rest.split_at_mut(value.len());
    out.copy_from_slice(value);
    end.copy_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_string_starts_with_decimal_length() {
        for len in [0, 7, 10, 99, 100, 999, 1000, LONGEST] {
            let mut out = vec![0; bulk_len(len)];
            write_bulk(&vec![b'x'; len], &mut out);
            assert_eq!(out, format!("${len}\r\n{}\r\n", "x".repeat(len)).as_bytes());
        }
    }
}
