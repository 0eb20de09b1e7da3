//! Parser of RESP replies of both versions.

/// Limit of nesting.
const DEPTH: usize = 8;

/// Returns the replies in `bytes`, or `None` if they are invalid or incomplete.
pub fn all(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (reply, rest) = bytes.split_at(len(bytes, DEPTH)?);
        all.push(reply);
        bytes = rest;
    }
    Some(all)
}

/// Returns the length of the reply at the start of `bytes`.
fn len(bytes: &[u8], depth: usize) -> Option<usize> {
    let line = bytes.windows(2).position(|end| end == b"\r\n")?;
    let start = line + 2;
    let number = || std::str::from_utf8(&bytes[1..line]).ok()?.parse::<i64>().ok();
    match bytes[0] {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => Some(start),
        b'$' | b'=' => match usize::try_from(number()?) {
            // Null.
            Err(_) => Some(start),
            Ok(len) => bytes.get(start + len..start + len + 2).filter(|end| *end == b"\r\n").map(|_| start + len + 2),
        },
        kind @ (b'*' | b'~' | b'%' | b'>') => {
            let count = usize::try_from(number()?).unwrap_or(0) * if kind == b'%' { 2 } else { 1 };
            let mut at = start;
            for _ in 0..count {
                at += len(&bytes[at..], depth.checked_sub(1)?)?;
            }
            Some(at)
        }
        _ => None,
    }
}
