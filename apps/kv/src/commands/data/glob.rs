//! Glob patterns of keys.

/// Length limit of a pattern. It bounds the time of a match.
pub const LONGEST: usize = 256;

/// Returns true if `text` matches `pattern` and adds the number of steps to `steps`. `*` matches any bytes, `?` one
/// byte, `[a-c]` a byte of a class, `[^a]` a byte outside, and a backslash makes the next byte ordinary.
///
/// After a mismatch only the last star is retried at the next position, so the time is at most the product of the
/// lengths.
pub fn is_match(pattern: &[u8], text: &[u8], steps: &mut usize) -> bool {
    is_match_by(pattern, text, |byte| byte, steps)
}

pub fn is_match_ignoring_case(pattern: &[u8], text: &[u8]) -> bool {
    is_match_by(pattern, text, |byte| byte.to_ascii_lowercase(), &mut 0)
}

fn is_match_by(mut pattern: &[u8], mut text: &[u8], as_one: impl Fn(u8) -> u8, steps: &mut usize) -> bool {
    if text.is_empty() {
        // In Redis not even `*` matches the empty text. Redis commands handle a pattern of a single `*` separately.
        return pattern.is_empty();
    }
    // Pattern after the last star, and the text from which it is tried.
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        // A class may extend to the end of the pattern.
        *steps += if pattern.first() == Some(&b'[') { pattern.len() } else { 1 };
        let step = match (pattern, text) {
            ([b'*', rest @ ..], _) => {
                retry = Some((rest, text));
                pattern = rest;
                continue;
            }
            ([], []) => return true,
            (_, []) => return false,
            ([], _) => None,
            (_, [byte, ..]) => one(pattern, *byte, &as_one),
        };
        match (step, retry) {
            (Some(rest), _) => (pattern, text) = (rest, &text[1..]),
            (None, Some((rest, from))) => {
                let from = &from[1..];
                retry = Some((rest, from));
                (pattern, text) = (rest, from);
            }
            (None, None) => return false,
        }
    }
}

/// Matches `byte` against the first element of `pattern`, which is not a star. Returns the rest of the pattern on
/// success.
fn one<'a>(pattern: &'a [u8], byte: u8, as_one: &impl Fn(u8) -> u8) -> Option<&'a [u8]> {
    let byte = as_one(byte);
    match pattern {
        [b'?', rest @ ..] => Some(rest),
        [b'[', b'^', class @ ..] => {
            let (is_in, rest) = class_has(class, byte, as_one);
            (!is_in).then_some(rest)
        }
        [b'[', class @ ..] => {
            let (is_in, rest) = class_has(class, byte, as_one);
            is_in.then_some(rest)
        }
        [b'\\', same, rest @ ..] | [same, rest @ ..] => (as_one(*same) == byte).then_some(rest),
        [] => None,
    }
}

/// Returns true if `byte` is in the class that `class` starts with, and the pattern after its closing bracket.
fn class_has<'a>(mut class: &'a [u8], byte: u8, as_one: &impl Fn(u8) -> u8) -> (bool, &'a [u8]) {
    let mut is_in = false;
    loop {
        class = match class {
            [] => return (is_in, class),
            [b'\\', same, rest @ ..] => {
                is_in |= as_one(*same) == byte;
                rest
            }
            [b']', rest @ ..] => return (is_in, rest),
            [from, b'-', to, rest @ ..] => {
                let (from, to) = (as_one(*from), as_one(*to));
                is_in |= (from.min(to)..=from.max(to)).contains(&byte);
                rest
            }
            [same, rest @ ..] => {
                is_in |= as_one(*same) == byte;
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_stars_match_in_bounded_time() {
        let pattern = b"*a".repeat(1000);
        assert!(!is_match(&[&pattern[..], b"b"].concat(), &[b'a'; 5000], &mut 0));
    }

    #[test]
    fn match_takes_at_most_product_of_lengths() {
        let text = [b'a'; 500];
        for pattern in [&b"*aaaaaaaaaaaaaaab"[..], b"*a*a*a*a*a*a*a*b", b"*[b-z][b-z][b-z]", b"a", b"*"] {
            let mut steps = 0;
            is_match(pattern, &text, &mut steps);
            assert!((1..=(pattern.len() + 1) * (text.len() + 1)).contains(&steps), "{steps} steps");
        }
    }
}
