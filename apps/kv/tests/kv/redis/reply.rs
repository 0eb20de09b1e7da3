//! Parser of replies.

use std::io::{self, BufRead};

/// Reply of either protocol.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    Null,
    NullArray,
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(String),
    Verbatim(String),
    Array(Vec<Value>),
    Set(Vec<Value>),
    /// Keys and values alternating.
    Map(Vec<Value>),
}

impl Value {
    /// Reads the next reply.
    pub fn read(from: &mut impl BufRead) -> io::Result<Value> {
        let mut line = Vec::new();
        from.read_until(b'\n', &mut line)?;
        let wrong = |line: &[u8]| io::Error::other(format!("{:?} is no reply", line.escape_ascii().to_string()));
        let Some([kind, text @ ..]) = line.strip_suffix(b"\r\n") else { return Err(wrong(&line)) };
        let text = text.escape_ascii().to_string();
        let number = text.parse::<i64>();
        Ok(match (kind, number) {
            (b'+', _) => Value::Simple(text),
            (b'-', _) => Value::Error(text),
            (b':', Ok(number)) => Value::Integer(number),
            (b'_', _) | (b'$', Ok(-1)) => Value::Null,
            (b'*', Ok(-1)) => Value::NullArray,
            (b'$', Ok(len)) => Value::Bulk(bulk(from, len)?),
            (b'=', Ok(len)) => Value::Verbatim(bulk(from, len)?),
            (b'*', Ok(len)) => Value::Array(several(from, len)?),
            (b'~', Ok(len)) => Value::Set(several(from, len)?),
            (b'%', Ok(len)) => Value::Map(several(from, 2 * len)?),
            _ => return Err(wrong(&line)),
        })
    }

    /// Returns the elements of an aggregate.
    pub fn parts(&self) -> &[Value] {
        match self {
            Value::Array(parts) | Value::Set(parts) | Value::Map(parts) => parts,
            _ => &[],
        }
    }

    /// Returns the text of a string or error.
    pub fn text(&self) -> &str {
        match self {
            Value::Simple(text) | Value::Error(text) | Value::Bulk(text) | Value::Verbatim(text) => text,
            _ => "",
        }
    }

    /// Returns the reply with groups of `step` elements sorted.
    pub fn sorted(mut self, step: usize) -> Value {
        if let Value::Array(parts) | Value::Set(parts) | Value::Map(parts) = &mut self {
            let mut groups: Vec<Vec<Value>> = parts.chunks(step).map(<[Value]>::to_vec).collect();
            groups.sort();
            *parts = groups.concat();
        }
        self
    }
}

fn bulk(from: &mut impl BufRead, len: i64) -> io::Result<String> {
    let mut bytes = vec![0; len as usize + 2];
    from.read_exact(&mut bytes)?;
    assert!(bytes.ends_with(b"\r\n"), "a bulk string is longer than its length says");
    Ok(bytes[..len as usize].escape_ascii().to_string())
}

fn several(from: &mut impl BufRead, len: i64) -> io::Result<Vec<Value>> {
    (0..len).map(|_| Value::read(from)).collect()
}
