//! HTTP/1.1 server side of `--metrics`: one page, one request per connection.

use super::server::Reaction;

/// Maximum length of a request head in bytes.
const MAX_HEAD: usize = 8 << 10;

/// Handles the bytes received so far from a client: waits for a complete request head, then sends one response. Calls
/// `page` for a GET or HEAD of `/metrics`.
pub fn react(received: &[u8], page: impl Fn() -> String) -> Reaction {
    parse(received).map_or(Reaction::Incomplete, |request| Reaction::FinalReply(respond(request, page)))
}

/// A parsed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Request {
    response: Response,
    /// The method is HEAD: the response has no content (RFC 9110 §9.3.2).
    head_only: bool,
}

/// Response to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Response {
    Page,
    NotFound,
    MethodNotAllowed,
    TooLong,
    BadRequest,
}

impl From<Response> for Request {
    fn from(response: Response) -> Self {
        Request { response, head_only: false }
    }
}

/// Parses a request head. Returns `None` while it is incomplete.
fn parse(head: &[u8]) -> Option<Request> {
    let within = &head[..head.len().min(MAX_HEAD)];
    // RFC 9112 §2.2: a bare line feed also ends a line.
    let ends = within.windows(4).any(|end| end == b"\r\n\r\n") || within.windows(2).any(|end| end == b"\n\n");
    if !ends {
        return (head.len() >= MAX_HEAD).then_some(Response::TooLong.into());
    }
    let line = within.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target, version, more) = (words.next(), words.next(), words.next(), words.next());
    let (Some(method), Some(target), Some(b"HTTP/1.0" | b"HTTP/1.1"), None) = (method, target, version, more) else {
        return Some(Response::BadRequest.into());
    };
    if method.is_empty() || !method.iter().all(u8::is_ascii_uppercase) {
        return Some(Response::BadRequest.into());
    }
    let response = match (target.split(|byte| *byte == b'?').next(), method) {
        (Some(b"/metrics"), b"GET" | b"HEAD") => Response::Page,
        (Some(b"/metrics"), _) => Response::MethodNotAllowed,
        _ => Response::NotFound,
    };
    Some(Request { response, head_only: method == b"HEAD" })
}

/// Returns the complete response, after which the connection is closed.
fn respond(request: Request, page: impl Fn() -> String) -> Vec<u8> {
    let (status, fields, content) = match request.response {
        // Media type of the Prometheus text format.
        Response::Page => ("200 OK", "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n", page()),
        Response::NotFound => ("404 Not Found", PLAIN, "the only page is /metrics\n".to_owned()),
        Response::MethodNotAllowed => (
            "405 Method Not Allowed",
            "Allow: GET, HEAD\r\nContent-Type: text/plain\r\n",
            "the methods are GET and HEAD\n".to_owned(),
        ),
        Response::TooLong => ("431 Request Header Fields Too Large", PLAIN, "the request is too long\n".to_owned()),
        Response::BadRequest => ("400 Bad Request", PLAIN, "not an HTTP/1.1 request\n".to_owned()),
    };
    let length = content.len();
    let mut response =
        format!("HTTP/1.1 {status}\r\n{fields}Content-Length: {length}\r\nConnection: close\r\n\r\n").into_bytes();
    if !request.head_only {
        response.extend_from_slice(content.as_bytes());
    }
    response
}

const PLAIN: &str = "Content-Type: text/plain\r\n";

#[cfg(test)]
mod tests;
