//! What a server of Redis' clients answers to commands that tell where something is: some numbers.

/// The most bytes of a line.
const LINE: usize = 1024;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said<const N: usize> {
    /// The numbers.
    Numbers([u64; N]),
    /// There are none.
    Nothing,
    /// An error.
    Error(String),
}

/// An answer that is something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nonsense;

/// The line of `bytes` that begins at `at`, and where the next does, once it is whole.
fn line(bytes: &[u8], at: usize) -> Result<Option<(&str, usize)>, Nonsense> {
    let rest = bytes.get(at..).unwrap_or_default();
    let Some(len) = rest.windows(2).position(|two| two == b"\r\n") else {
        return if rest.len() > LINE { Err(Nonsense) } else { Ok(None) };
    };
    let text = std::str::from_utf8(&rest[..len]).map_err(|_| Nonsense)?;
    Ok(Some((text, at + len + 2)))
}

/// The answer that `bytes` begin with, and how long it is, once it is whole.
pub fn parse<const N: usize>(bytes: &[u8]) -> Result<Option<(Said<N>, usize)>, Nonsense> {
    let Some((first, mut at)) = line(bytes, 0)? else { return Ok(None) };
    if let Some(error) = first.strip_prefix('-') {
        return Ok(Some((Said::Error(error.to_owned()), at)));
    }
    if matches!(first, "$-1" | "_") {
        return Ok(Some((Said::Nothing, at)));
    }
    if first.strip_prefix('*').and_then(|count| count.parse().ok()) != Some(N) {
        return Err(Nonsense);
    }
    let mut numbers = [0; N];
    for number in &mut numbers {
        let Some((len, from)) = line(bytes, at)? else { return Ok(None) };
        let Some((digits, next)) = line(bytes, from)? else { return Ok(None) };
        if len.strip_prefix('$').and_then(|len| len.parse().ok()) != Some(digits.len()) {
            return Err(Nonsense);
        }
        *number = digits.parse().map_err(|_| Nonsense)?;
        at = next;
    }
    Ok(Some((Said::Numbers(numbers), at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_understood_once_it_is_whole() {
        let answer = b"*2\r\n$20\r\n18446744073709551615\r\n$1\r\n7\r\n";
        for end in 0..answer.len() {
            assert_eq!(parse::<2>(&answer[..end]), Ok(None), "{end}");
        }
        let twice = [&answer[..], answer].concat();
        assert_eq!(parse(&twice), Ok(Some((Said::Numbers([u64::MAX, 7]), answer.len()))));
        assert_eq!(parse::<2>(b"-ERR no\r\n+"), Ok(Some((Said::Error("ERR no".to_owned()), 9))));
        assert_eq!(parse::<2>(b"$-1\r\n"), Ok(Some((Said::Nothing, 5))));
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
            assert_eq!(parse::<2>(nonsense), Err(Nonsense), "{}", nonsense.escape_ascii());
        }
    }

    #[test]
    fn whatever_is_answered_it_ends() {
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
