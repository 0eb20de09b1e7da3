//! Inline commands: a line of words, as typed in telnet.

use std::ops::Range;

/// Splits `line`, which has no line end, into words. Appends them to `words`, and their ranges to `ranges`. Returns
/// `None` if a quote is not closed, or a closing quote is not followed by a space.
///
/// In double quotes `\xHH`, `\n`, `\r`, `\t`, `\b` and `\a` stand for a byte, and a backslash before another character
/// for that character. In single quotes only `\'` is special.
pub(super) fn split(line: &[u8], words: &mut Vec<u8>, ranges: &mut Vec<Range<usize>>) -> Option<()> {
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Some(());
        }
        let start = words.len();
        loop {
            match rest {
                [] => break,
                [space, ..] if space.is_ascii_whitespace() || *space == 0 => break,
                [b'"', quoted @ ..] => {
                    rest = double_quoted(quoted, words)?;
                    break;
                }
                [b'\'', quoted @ ..] => {
                    rest = single_quoted(quoted, words)?;
                    break;
                }
                [byte, more @ ..] => {
                    words.push(*byte);
                    rest = more;
                }
            }
        }
        ranges.push(start..words.len());
        if rest.first() == Some(&0) {
            // A NUL byte ends a string in Redis.
            return Some(());
        }
    }
}

/// Appends the quoted text to `word`. Returns the text after the closing quote.
fn double_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [b'\\', b'x', high, low, more @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let digit = |byte: &u8| (*byte as char).to_digit(16).map_or(0, |digit| digit as u8);
                word.push(digit(high) << 4 | digit(low));
                more
            }
            [b'\\', escaped, more @ ..] => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                more
            }
            [b'"', more @ ..] => return ends_a_word(more).then_some(more),
            [byte, more @ ..] => {
                word.push(*byte);
                more
            }
            [] => return None,
        };
    }
}

/// [`double_quoted`] for single quotes.
fn single_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [b'\\', b'\'', more @ ..] => {
                word.push(b'\'');
                more
            }
            [b'\'', more @ ..] => return ends_a_word(more).then_some(more),
            [byte, more @ ..] => {
                word.push(*byte);
                more
            }
            [] => return None,
        };
    }
}

fn ends_a_word(rest: &[u8]) -> bool {
    rest.first().is_none_or(|byte| byte.is_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    fn split(line: &str) -> Option<Vec<String>> {
        let (mut words, mut ranges) = (Vec::new(), Vec::new());
        super::split(line.as_bytes(), &mut words, &mut ranges)?;
        Some(ranges.into_iter().map(|range| words[range].escape_ascii().to_string()).collect())
    }

    #[test]
    fn words_are_separated_by_spaces() {
        assert_eq!(split("  set  a\tb "), Some(vec!["set".into(), "a".into(), "b".into()]));
        assert_eq!(split("   "), Some(vec![]));
        assert_eq!(split(""), Some(vec![]));
    }

    #[test]
    fn quotes_keep_spaces_and_escapes_stand_for_bytes() {
        assert_eq!(split(r#"set "a b" 'c d'"#), Some(vec!["set".into(), "a b".into(), "c d".into()]));
        assert_eq!(split(r#""\x00\n\r\t\b\a\\\"\q""#), Some(vec![r#"\x00\n\r\t\x08\x07\\\"q"#.into()]));
        assert_eq!(split(r#""\xaF\x7e""#), Some(vec![r"\xaf~".into()]));
        assert_eq!(split(r#""\xg1 \x1g \x1""#), Some(vec!["xg1 x1g x1".into()]));
        assert_eq!(split(r"'\n\''"), Some(vec![r"\\n\'".into()]));
        assert_eq!(split(r#"a"b c"d"#), None);
        assert_eq!(split(r#"a"b c""#), Some(vec!["ab c".into()]));
        assert_eq!(split(r#""" ''"#), Some(vec!["".into(), "".into()]));
    }

    #[test]
    fn unbalanced_quotes_are_rejected() {
        for line in ["\"abc", "'abc", "\"abc\\", "\"a\"b", "'a'b", "\"a\"\"b\""] {
            assert_eq!(split(line), None, "{line}");
        }
    }
}
