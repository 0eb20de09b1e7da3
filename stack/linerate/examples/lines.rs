//! Line protocol: each line is a number, and the reply is the sum of the numbers of the connection so far.
//!
//! `cargo run --example lines`, and from another shell `nc 127.0.0.1 7007`.

use linerate::{ConnId, Network, Origin, Service, Transport};
use std::convert::Infallible;
use std::error::Error;

/// Longest line in bytes, without its end.
const LONGEST: usize = 64;

/// Service that sums up the numbers of each connection.
pub struct Sum;

#[derive(Default)]
pub struct Conn {
    sum: i64,
    /// Received part of an incomplete line.
    line: Vec<u8>,
    /// Unsent part of a reply, which waits for send space.
    reply: Vec<u8>,
    /// Set after an error: further input is discarded.
    refused: bool,
    /// Set when the peer has finished sending.
    peer_closed: bool,
}

impl Conn {
    /// Moves bytes of the next line into `line`. Returns whether the line is complete or too long, or `None` if the
    /// receive queue is empty.
    fn read(&mut self, net: &mut impl Transport, conn: ConnId) -> Option<bool> {
        // A line may be in several slices, and a slice may have several lines.
        let bytes = net.peek(conn);
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let n = end.map_or(bytes.len(), |at| at + 1).min(LONGEST + 1 - self.line.len());
        if n == 0 {
            return None;
        }
        self.line.extend_from_slice(&bytes[..n]);
        net.consume(conn, n);
        Some(self.line.ends_with(b"\n") || self.line.len() > LONGEST)
    }

    /// Executes the line in `line`, and leaves the reply in `reply`.
    fn execute(&mut self) {
        let line = self.line.strip_suffix(b"\n").and_then(|line| std::str::from_utf8(line).ok());
        let number = line.and_then(|line| line.trim_end().parse::<i64>().ok());
        match number.and_then(|number| self.sum.checked_add(number)) {
            Some(sum) => {
                self.sum = sum;
                self.reply = format!("{sum}\n").into_bytes();
            }
            None => {
                self.reply = b"error: not a number, or the sum is too large\n".to_vec();
                self.refused = true;
            }
        }
        self.line.clear();
    }

    /// Replies to the received lines. A line is read only after the reply to the last one is sent, so a peer that does
    /// not read holds one line and one reply.
    fn serve(&mut self, net: &mut impl Transport, conn: ConnId) {
        loop {
            let sent = net.write(conn, &self.reply);
            self.reply.drain(..sent);
            if !self.reply.is_empty() {
                return; // `writable` continues.
            }
            if self.refused {
                // A reset would destroy the error before the peer has read it.
                return net.lingering_close(conn);
            }
            match self.read(net, conn) {
                Some(true) => self.execute(),
                Some(false) => {}
                None => break,
            }
        }
        if self.peer_closed {
            net.close(conn);
        }
    }
}

impl Service for Sum {
    type Conn = Conn;
    type Message = Infallible;

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) -> Conn {
        Conn::default()
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        state.serve(net, conn);
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        state.serve(net, conn);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, state: &mut Conn) {
        state.peer_closed = true;
        state.serve(net, conn);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    Network::builder().listen("127.0.0.1:7007".parse()?).build()?.run(|_| Sum)?;
    Ok(())
}
