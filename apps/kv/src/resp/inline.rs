//! Requests as a person types them: one line of words.

/// The words of `line`, which has no line end; `None` if a quote is not closed, or a closing one is followed by more.
///
/// In double quotes `\xHH`, `\n`, `\r`, `\t`, `\b` and `\a` stand for the byte, and a backslash for whatever else it is before;
/// in single quotes only `\'` is special.
pub(super) fn words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return Some(words);
        }
        let mut word = Vec::new();
        loop {
            match rest {
                [] => break,
                [space, ..] if space.is_ascii_whitespace() || *space == 0 => break,
                [b'"', quoted @ ..] => {
                    rest = double_quoted(quoted, &mut word)?;
                    break;
                }
                [b'\'', quoted @ ..] => {
                    rest = single_quoted(quoted, &mut word)?;
                    break;
                }
                [byte, more @ ..] => {
                    word.push(*byte);
                    rest = more;
                }
            }
        }
        words.push(word);
        if rest.first() == Some(&0) {
            // A string ends there for Redis.
            return Some(words);
        }
    }
}

/// Puts what is quoted into `word`; returns what follows the closing quote.
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

/// As [`double_quoted`].
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
    use super::*;

    fn split(line: &str) -> Option<Vec<String>> {
        let text = |word: Vec<u8>| word.escape_ascii().to_string();
        Some(words(line.as_bytes())?.into_iter().map(text).collect())
    }

    #[test]
    fn words_are_what_lies_between_spaces() {
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
    fn a_quote_that_is_not_closed_or_runs_on_is_no_line() {
        for line in ["\"abc", "'abc", "\"abc\\", "\"a\"b", "'a'b", "\"a\"\"b\""] {
            assert_eq!(split(line), None, "{line}");
        }
    }
}
