//! Responses of an HTTP/1.1 server to GET requests.

use std::fmt;

/// Maximum length of the head of a response.
const MAX_HEAD: usize = 64 << 10;
/// Maximum number of fields of a head.
const MAX_FIELDS: usize = 64;

/// Reason why a response cannot be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvalidResponse {
    /// The head is malformed or too long.
    Head,
    /// The head does not state the length of the body.
    NoLength,
    /// The server sent bytes that are no response to a request.
    Surplus,
}

impl fmt::Display for InvalidResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InvalidResponse::Head => "the head of a response is malformed or longer than 64 KiB",
            InvalidResponse::NoLength => "a response without Content-Length, which this load needs",
            InvalidResponse::Surplus => "the server sent more than the responses",
        })
    }
}

/// Result of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Length of the body.
    pub length: u64,
}

/// Head of the most recent response. Most heads equal their predecessor, which is found by one comparison.
#[derive(Debug, Default)]
pub struct KnownHead {
    bytes: Vec<u8>,
    response: Option<Response>,
}

/// Reader of the responses of one connection.
#[derive(Debug, Default)]
pub struct ResponseReader {
    /// Received part of an incomplete head.
    head: Vec<u8>,
    /// Response whose body is being received, and the bytes of its body that are missing.
    body: Option<(Response, u64)>,
}

impl ResponseReader {
    /// Reads the beginning of `bytes`, up to the end of a response. Returns the number of bytes read, and the response
    /// that ends there, if one does.
    ///
    /// # Errors
    /// [`InvalidResponse`].
    pub fn read(&mut self, bytes: &[u8], known: &mut KnownHead) -> Result<(usize, Option<Response>), InvalidResponse> {
        let mut read = 0;
        if self.body.is_none() {
            let (response, n) = match self.read_head(bytes, known)? {
                Some(found) => found,
                None => return Ok((bytes.len(), None)),
            };
            read = n;
            self.body = Some((response, response.length));
        }
        let Some((response, missing)) = &mut self.body else { return Ok((read, None)) };
        let n = (*missing).min((bytes.len() - read) as u64);
        *missing -= n;
        let complete = (*missing == 0).then_some(*response);
        if complete.is_some() {
            self.body = None;
        }
        Ok((read + n as usize, complete))
    }

    /// Reads a head, or adds all of `bytes` to it and returns `None`. Returns the length of the part in `bytes`.
    fn read_head(&mut self, bytes: &[u8], known: &mut KnownHead) -> Result<Option<(Response, usize)>, InvalidResponse> {
        if self.head.is_empty() {
            if let Some(response) = known.response.filter(|_| bytes.starts_with(&known.bytes)) {
                return Ok(Some((response, known.bytes.len())));
            }
            if let Some((response, n)) = parse(bytes)? {
                known.bytes.clear();
                known.bytes.extend_from_slice(&bytes[..n]);
                known.response = Some(response);
                return Ok(Some((response, n)));
            }
        }
        let before = self.head.len();
        self.head.extend_from_slice(&bytes[..bytes.len().min(MAX_HEAD - before)]);
        match parse(&self.head)? {
            Some((response, n)) => {
                self.head.clear();
                Ok(Some((response, n - before)))
            }
            None if self.head.len() == MAX_HEAD => Err(InvalidResponse::Head),
            None => Ok(None),
        }
    }
}

/// Parses the head at the beginning of `bytes`. Returns its length; `None` if it is incomplete.
fn parse(bytes: &[u8]) -> Result<Option<(Response, usize)>, InvalidResponse> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut head = httparse::Response::new(&mut fields);
    let Ok(parsed) = head.parse(bytes) else { return Err(InvalidResponse::Head) };
    let httparse::Status::Complete(n) = parsed else { return Ok(None) };
    let status = head.code.unwrap_or_default();
    let field = |name: &str| head.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
    if field("transfer-encoding").is_some() {
        return Err(InvalidResponse::NoLength);
    }
    let length = field("content-length").map(|field| std::str::from_utf8(field.value).ok()?.trim().parse().ok());
    let length = match (status, length) {
        // RFC 9110 section 8.6: these have no body.
        (204 | 304, _) => 0,
        (200.., Some(Some(length))) => length,
        (200.., None) => return Err(InvalidResponse::NoLength),
        _ => return Err(InvalidResponse::Head),
    };
    Ok(Some((Response { status, length }, n)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-length: 5\r\ndate: now\r\n\r\nhello";

    /// Reads `bytes` in slices of `size` bytes. Returns the responses.
    fn responses(bytes: &[u8], size: usize) -> Result<Vec<Response>, InvalidResponse> {
        let (mut reader, mut known, mut responses) = (ResponseReader::default(), KnownHead::default(), Vec::new());
        for mut slice in bytes.chunks(size) {
            while !slice.is_empty() {
                let (n, response) = reader.read(slice, &mut known)?;
                slice = &slice[n..];
                responses.extend(response);
            }
        }
        Ok(responses)
    }

    #[test]
    fn responses_are_found_however_they_are_divided() {
        let missing = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
        let unchanged = b"HTTP/1.1 304 Not Modified\r\n\r\n";
        let bytes = [OK, OK, missing, OK, unchanged, OK].concat();
        let expected = [(200, 5), (200, 5), (404, 0), (200, 5), (304, 0), (200, 5)];
        let expected = expected.map(|(status, length)| Response { status, length });
        for size in 1..=bytes.len() {
            assert_eq!(responses(&bytes, size).unwrap(), expected, "{size}");
        }
    }

    #[test]
    fn responses_without_a_length_or_a_valid_head_are_errors() {
        let read = |text: &str| responses(text.as_bytes(), text.len()).unwrap_err();
        for text in ["HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"] {
            assert_eq!(read(text), InvalidResponse::NoLength, "{text}");
        }
        for text in
            ["SSH-2.0-OpenSSH", "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\n"]
        {
            assert_eq!(read(text), InvalidResponse::Head, "{text}");
        }
    }

    #[test]
    fn head_is_bounded() {
        let long = [b"HTTP/1.1 200 OK\r\na: ".to_vec(), vec![b'x'; MAX_HEAD]].concat();
        for size in [1000, long.len()] {
            assert_eq!(responses(&long, size), Err(InvalidResponse::Head));
        }
    }
}
