//! Single query to a server.

use super::numbers::Malformed;
use linerate_service::{CloseReason, ConnId, ConnectError, Origin, Service, Transport};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Largest answer in bytes.
const ANSWER: usize = 1024;

/// Parser of an answer; returns `None` while the answer is incomplete.
type Parse<T> = fn(&[u8]) -> Result<Option<T>, Malformed>;

/// Client in the Redis protocol that sends one query and ends.
#[derive(Debug)]
pub struct Query<T> {
    remote: SocketAddr,
    question: &'static [u8],
    parse: Parse<T>,
    is_over: Arc<AtomicBool>,
    answer: Vec<u8>,
    outcome: Result<T, Option<ConnectError>>,
}

impl<T> Query<T> {
    /// Creates a query to the server at `remote`; sets `is_over` when the answer arrived or the query failed.
    pub(in crate::kv) fn new(
        remote: SocketAddr,
        question: &'static [u8],
        parse: Parse<T>,
        is_over: Arc<AtomicBool>,
    ) -> Self {
        Query { remote, question, parse, is_over, answer: Vec::new(), outcome: Err(None) }
    }

    /// Returns the parsed answer, or an error if there was none.
    pub fn outcome(self) -> Result<T, Option<ConnectError>> {
        self.outcome
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }
}

impl Query<Option<Duration>> {
    /// Queries the processor time of the server at `remote`; a server need not report it.
    pub fn cpu_time(remote: SocketAddr, is_over: Arc<AtomicBool>) -> Self {
        Query::new(remote, b"*2\r\n$4\r\nINFO\r\n$3\r\nCPU\r\n", cpu_time, is_over)
    }
}

/// Parses an answer to `INFO CPU`: the sum of user and system time.
fn cpu_time(answer: &[u8]) -> Result<Option<Option<Duration>>, Malformed> {
    let text = std::str::from_utf8(answer).map_err(|_| Malformed)?;
    let Some((head, rest)) = text.split_once("\r\n") else { return Ok(None) };
    let len = match head.strip_prefix('$') {
        Some("-1") => return Ok(Some(None)),
        Some(len) => len.parse::<usize>().map_err(|_| Malformed)?,
        None if head.starts_with('-') => return Ok(Some(None)),
        None => return Err(Malformed),
    };
    let Some(info) = rest.get(..len) else { return Ok(None) };
    let of = |name: &str| {
        let seconds = info.split("\r\n").find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Duration::try_from_secs_f64(seconds.parse().ok()?).ok()
    };
    Ok(Some(of("used_cpu_sys").zip(of("used_cpu_user")).and_then(|(system, user)| system.checked_add(user))))
}

impl<T: Send + 'static> Service for Query<T> {
    type Conn = ();
    type Message = Infallible;

    fn start(&mut self, net: &mut impl Transport) {
        net.connect(self.remote, 0);
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        net.write(conn, self.question);
    }

    fn failed(&mut self, _: &mut impl Transport, _: u64, error: ConnectError) {
        self.outcome = Err(Some(error));
        self.end();
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        while net.received(conn) > 0 {
            let bytes = net.peek(conn);
            let n = bytes.len();
            self.answer.extend_from_slice(&bytes[..n.min(2 * ANSWER - self.answer.len().min(2 * ANSWER))]);
            net.consume(conn, n);
        }
        match (self.parse)(&self.answer) {
            Ok(None) if self.answer.len() <= ANSWER => return,
            Ok(Some(info)) => self.outcome = Ok(info),
            Ok(None) | Err(Malformed) => {}
        }
        net.close(conn);
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), _: CloseReason) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_parsed_from_a_complete_answer() {
        let answer = b"$55\r\n# CPU\r\nused_cpu_sys:0.250000\r\nused_cpu_user:12.500000\r\n\r\n";
        for end in 0..answer.len() - 2 {
            assert_eq!(cpu_time(&answer[..end]), Ok(None), "{end}");
        }
        assert_eq!(cpu_time(answer), Ok(Some(Some(Duration::from_millis(12_750)))));
    }

    #[test]
    fn missing_or_malformed_processor_time_is_handled() {
        for silent in ["$0\r\n\r\n", "$-1\r\n", "-ERR unknown\r\n", "$18\r\nused_cpu_sys:1.0\r\n\r\n"] {
            assert_eq!(cpu_time(silent.as_bytes()), Ok(Some(None)), "{silent}");
        }
        for time in ["-1", "NaN", "1e300", ""] {
            let info = format!("used_cpu_sys:{time}\r\nused_cpu_user:1\r\n");
            assert_eq!(cpu_time(format!("${}\r\n{info}", info.len()).as_bytes()), Ok(Some(None)), "{time}");
        }
        for nonsense in ["*1\r\n", "$x\r\n", "$99999999999999999999\r\n"] {
            assert_eq!(cpu_time(nonsense.as_bytes()), Err(Malformed), "{nonsense}");
        }
        assert_eq!(cpu_time(b"\xff"), Err(Malformed));
    }
}
