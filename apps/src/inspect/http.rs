//! One page over HTTP/1.1: what its requests are answered.

use super::answering::Reaction;

/// Bytes of a request's head at most.
const HEAD: usize = 8 << 10;

/// What is made of what a client has said: the answer to its one request, with what `page` makes if it is GET /metrics.
pub fn react(heard: &[u8], page: impl Fn() -> String) -> Reaction {
    asked(heard).map_or(Reaction::Wait, |asked| Reaction::Last(answer(asked, page)))
}

/// What a request comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Page,
    Elsewhere,
    OtherMethod,
    TooLong,
    Nonsense,
}

/// What `head` asks for; `None` while it is not all there.
fn asked(head: &[u8]) -> Option<Asked> {
    let within = &head[..head.len().min(HEAD)];
    // RFC 9112 §2.2: a line feed alone ends a line, too.
    let ends = within.windows(4).any(|end| end == b"\r\n\r\n") || within.windows(2).any(|end| end == b"\n\n");
    if !ends {
        return (head.len() >= HEAD).then_some(Asked::TooLong);
    }
    let line = within.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target, version, more) = (words.next(), words.next(), words.next(), words.next());
    let (Some(method), Some(target), Some(b"HTTP/1.0" | b"HTTP/1.1"), None) = (method, target, version, more) else {
        return Some(Asked::Nonsense);
    };
    if method.is_empty() || !method.iter().all(u8::is_ascii_uppercase) {
        return Some(Asked::Nonsense);
    }
    Some(match (target.split(|byte| *byte == b'?').next(), method) {
        (Some(b"/metrics"), b"GET") => Asked::Page,
        (Some(b"/metrics"), _) => Asked::OtherMethod,
        _ => Asked::Elsewhere,
    })
}

/// The whole answer. The connection ends with it.
fn answer(asked: Asked, page: impl Fn() -> String) -> Vec<u8> {
    let (status, more, body) = match asked {
        // The type is that of Prometheus' text format.
        Asked::Page => ("200 OK", "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n", page()),
        Asked::Elsewhere => ("404 Not Found", PLAIN, "here is only /metrics\n".to_owned()),
        Asked::OtherMethod => {
            ("405 Method Not Allowed", "Allow: GET\r\nContent-Type: text/plain\r\n", "only GET\n".to_owned())
        }
        Asked::TooLong => ("431 Request Header Fields Too Large", PLAIN, "the request is too long\n".to_owned()),
        Asked::Nonsense => ("400 Bad Request", PLAIN, "this is no request of HTTP/1.1\n".to_owned()),
    };
    let length = body.len();
    format!("HTTP/1.1 {status}\r\n{more}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}").into_bytes()
}

const PLAIN: &str = "Content-Type: text/plain\r\n";

#[cfg(test)]
mod tests;
