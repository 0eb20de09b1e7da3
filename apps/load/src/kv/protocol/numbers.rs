//! Answers of a Redis-protocol server that consist of numbers, such as addresses.

/// Largest line in bytes.
const LINE: usize = 1024;

/// Parsed answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NumbersReply<const N: usize> {
    /// An array of numbers.
    Numbers([u64; N]),
    Null,
    /// An error message.
    Error(String),
}

/// Error of an answer in any other form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// Returns the line of `bytes` that begins at `at`, and the position after it, if the line is complete.
fn line(bytes: &[u8], at: usize) -> Result<Option<(&str, usize)>, Malformed> {
    let rest = bytes.get(at..).unwrap_or_default();
    let Some(len) = rest.windows(2).position(|two| two == b"\r\n") else {
        return if rest.len() > LINE { Err(Malformed) } else { Ok(None) };
    };
    let text = std::str::from_utf8(&rest[..len]).map_err(|_| Malformed)?;
    Ok(Some((text, at + len + 2)))
}

/// Parses the answer at the beginning of `bytes`; returns it and its length, if it is complete.
pub fn parse<const N: usize>(bytes: &[u8]) -> Result<Option<(NumbersReply<N>, usize)>, Malformed> {
    let Some((first, mut at)) = line(bytes, 0)? else { return Ok(None) };
    if let Some(error) = first.strip_prefix('-') {
        return Ok(Some((NumbersReply::Error(error.to_owned()), at)));
    }
    if matches!(first, "$-1" | "_") {
        return Ok(Some((NumbersReply::Null, at)));
    }
    if first.strip_prefix('*').and_then(|count| count.parse().ok()) != Some(N) {
        return Err(Malformed);
    }
    let mut numbers = [0; N];
    for number in &mut numbers {
        let Some((len, from)) = line(bytes, at)? else { return Ok(None) };
        let Some((digits, next)) = line(bytes, from)? else { return Ok(None) };
        if len.strip_prefix('$').and_then(|len| len.parse().ok()) != Some(digits.len()) {
            return Err(Malformed);
        }
        *number = digits.parse().map_err(|_| Malformed)?;
        at = next;
    }
    Ok(Some((NumbersReply::Numbers(numbers), at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_parsed_when_complete() {
        let answer = b"*2\r\n$20\r\n18446744073709551615\r\n$1\r\n7\r\n";
        for end in 0..answer.len() {
            assert_eq!(parse::<2>(&answer[..end]), Ok(None), "{end}");
        }
        let twice = [&answer[..], answer].concat();
        assert_eq!(parse(&twice), Ok(Some((NumbersReply::Numbers([u64::MAX, 7]), answer.len()))));
        assert_eq!(parse::<2>(b"-ERR no\r\n+"), Ok(Some((NumbersReply::Error("ERR no".to_owned()), 9))));
        assert_eq!(parse::<2>(b"$-1\r\n"), Ok(Some((NumbersReply::Null, 5))));
        for nonsense in [
            &b"+OK\r\n"[..],
            b"*3\r\n",
            b"*2\r\n$1\r\nx\r\n",
            b"*2\r\n$2\r\n7\r\n",
            b"*2\r\n:1\r\n7\r\n",
            b"*2\r\n$21\r\n118446744073709551615\r\n",
            b"\xff\r\n",
            &[b'x'; LINE + 1],
        ] {
            assert_eq!(parse::<2>(nonsense), Err(Malformed), "{}", nonsense.escape_ascii());
        }
    }

    #[test]
    fn random_input_terminates() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..100_000 {
            let bytes: Vec<u8> =
                (0..random.usize(..40)).map(|_| *random.choice(b"*$-_0129\r\n\r\nx\xff").unwrap()).collect();
            if let Ok(Some((_, len))) = parse::<1>(&bytes) {
                assert!(len > 0 && len <= bytes.len());
            }
        }
    }
}
