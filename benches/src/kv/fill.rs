//! Sets the keys for redis-benchmark, which itself sets only random keys.

use linerate_harness::Error;
use linerate_harness::interrupt::is_interrupted;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// SETs per batch of awaited replies.
const BATCH: u64 = 500;
const OK: &[u8] = b"+OK\r\n";
/// Maximum time of a reply, and interval of checks for interruption.
const PATIENCE: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(100);

/// Sets the keys from `key:000000000000`, each with a value of `size` bytes.
pub(super) fn fill(address: SocketAddr, keys: u64, size: usize) -> io::Result<()> {
    let mut server = TcpStream::connect_timeout(&address, PATIENCE)?;
    server.set_nodelay(true)?;
    server.set_write_timeout(Some(PATIENCE))?;
    server.set_read_timeout(Some(TICK))?;
    let (value, mut requests) = ("x".repeat(size), Vec::new());
    for first in (0..keys).step_by(BATCH as usize) {
        let numbers = first..(first + BATCH).min(keys);
        let answers = OK.repeat(numbers.clone().count());
        requests.clear();
        for number in numbers {
            write!(requests, "*3\r\n$3\r\nSET\r\n$16\r\nkey:{number:012}\r\n${size}\r\n{value}\r\n")?;
        }
        server.write_all(&requests)?;
        expect(&mut server, &answers)?;
    }
    Ok(())
}

fn expect(server: &mut TcpStream, answers: &[u8]) -> io::Result<()> {
    let (mut received, mut until) = (vec![0; answers.len()], Instant::now() + PATIENCE);
    let mut at = 0;
    while at < received.len() {
        match server.read(&mut received[at..]) {
            Ok(0) => return Err(io::Error::other("the server closed while it was being filled")),
            Ok(n) => {
                at += n;
                until = Instant::now() + PATIENCE;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                if is_interrupted() || Instant::now() > until {
                    return Err(ErrorKind::TimedOut.into());
                }
            }
            Err(error) => return Err(error),
        }
    }
    if received == answers {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&received);
    let wrong = text.lines().find(|line| *line != "+OK").unwrap_or_default();
    Err(io::Error::other(format!("the server answered a SET with {wrong}")))
}

/// Returns the error for failed filling.
pub(super) fn failed(error: io::Error) -> Error {
    if is_interrupted() {
        return Error::Interrupted;
    }
    Error::Start { program: "redis-benchmark (setting its keys)".to_owned(), error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_harness::interrupt::interrupt;
    use std::net::TcpListener;
    use std::thread;

    /// Runs a server that replies `answer` after receiving `len` bytes.
    fn answering(
        len: usize,
        answer: &[u8],
        filled: impl FnOnce(SocketAddr) -> io::Result<()>,
    ) -> (String, io::Result<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        thread::scope(|scope| {
            let address = listener.local_addr().unwrap();
            let server = scope.spawn(move || {
                let (mut client, _) = listener.accept().unwrap();
                let mut received = vec![0; len];
                client.read_exact(&mut received).unwrap();
                client.write_all(answer).unwrap();
                String::from_utf8(received).unwrap()
            });
            let filled = filled(address);
            (server.join().unwrap(), filled)
        })
    }

    const TWO: &str = "*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000000\r\n$3\r\nxxx\r\n\
                       *3\r\n$3\r\nSET\r\n$16\r\nkey:000000000001\r\n$3\r\nxxx\r\n";

    #[test]
    fn every_key_is_set() {
        let (received, filled) = answering(TWO.len(), b"+OK\r\n+OK\r\n", |address| fill(address, 2, 3));
        assert_eq!(received, TWO);
        filled.unwrap();
    }

    #[test]
    fn error_reply_is_reported() {
        let (_, filled) = answering(TWO.len(), b"-OOM no\r\n\r\n", |address| fill(address, 2, 3));
        assert!(filled.unwrap_err().to_string().contains("-OOM"));
    }

    #[test]
    fn interruption_ends_wait_for_replies() {
        linerate_harness::rerun::alone(|| {
            interrupt();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let error = fill(listener.local_addr().unwrap(), 2, 3).unwrap_err();
            assert!(matches!(failed(error), Error::Interrupted));
        });
    }
}
