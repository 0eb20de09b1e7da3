//! Character generator (RFC 864): sends lines of printing characters for as long as the peer reads them.

use crate::payload::copy_to_arena;
use linerate_service::{Bytes, ConnId, Origin, Service, Transport};
use std::convert::Infallible;

/// Printing ASCII characters, the space included.
const CHARACTERS: usize = 95;
/// Line length of RFC 864's pattern: 72 characters and a line end; each line begins one character later than the one
/// before.
const LINE: usize = 74;
/// Period of the pattern. The block holds several periods, so that large chunks can be sent.
const ROUND: usize = CHARACTERS * LINE;

static BLOCK: [u8; 9 * ROUND] = block();

const fn block() -> [u8; 9 * ROUND] {
    let mut block = [0; 9 * ROUND];
    let mut i = 0;
    while i < block.len() {
        let (line, column) = (i / LINE, i % LINE);
        block[i] = match column {
            72 => b'\r',
            73 => b'\n',
            _ => b' ' + ((line + column) % CHARACTERS) as u8,
        };
        i += 1;
    }
    block
}

thread_local! {
    /// The block in memory that this thread sends from.
    static TO_SEND: Bytes = copy_to_arena(&BLOCK);
}

/// Chargen service for measurements of bulk sending: sends as fast as the peer's window allows, and discards received
/// data. TCP only: over UDP, chargen amplifies datagrams with a forged source address.
#[derive(Debug, Default)]
pub struct Chargen;

/// A connection of [`Chargen`].
#[derive(Debug, Default)]
pub struct Stream {
    /// Offset in the block.
    at: usize,
    closed: bool,
}

impl Chargen {
    fn generate(net: &mut impl Transport, conn: ConnId, stream: &mut Stream) {
        while !stream.closed {
            let n = net.send_space(conn).min(BLOCK.len() - stream.at);
            let bytes = || TO_SEND.with(|block| block.slice(stream.at..stream.at + n));
            if n == 0 || net.send(conn, bytes()).is_err() {
                break;
            }
            stream.at = (stream.at + n) % BLOCK.len();
        }
    }
}

impl Service for Chargen {
    type Conn = Stream;
    type Message = Infallible;

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) -> Stream {
        let mut stream = Stream::default();
        Self::generate(net, conn, &mut stream);
        stream
    }

    fn readable(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut Stream) {
        net.consume(conn, usize::MAX);
    }

    fn writable(&mut self, net: &mut impl Transport, conn: ConnId, stream: &mut Stream) {
        Self::generate(net, conn, stream);
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, stream: &mut Stream) {
        stream.closed = true;
        net.close(conn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeTransport;

    #[test]
    fn pattern_follows_rfc_864_beyond_the_block() {
        let mut net = FakeTransport::new(10_000);
        let conn = net.accept(&mut Chargen);
        let mut stream = Vec::new();
        while stream.len() < 2 * BLOCK.len() {
            stream.extend(net.drain(&mut Chargen, conn));
        }
        let lines: Vec<&[u8]> = stream.chunks_exact(LINE).collect();
        assert!(lines[0].starts_with(b" !\"#$%&'()") && lines[0].ends_with(b"efg\r\n"));
        assert!(lines[94].starts_with(b"~ !"));
        for (n, line) in lines.iter().enumerate() {
            assert_eq!(*line, lines[n % CHARACTERS], "line {n}");
            assert!(line[..72].iter().all(|c| (b' '..=b'~').contains(c)));
            assert_eq!(line[..72].windows(2).filter(|w| w[1] != w[0] + 1).count(), usize::from(n % 95 > 23));
        }
    }

    #[test]
    fn sending_stops_without_room_and_continues_with_it() {
        let mut net = FakeTransport::new(100);
        let conn = net.accept(&mut Chargen);
        assert_eq!(net.sent(conn), &BLOCK[..100]);
        assert_eq!(net.drain(&mut Chargen, conn), &BLOCK[..100]);
        assert_eq!(net.sent(conn), &BLOCK[100..200]);
    }

    #[test]
    fn input_is_discarded_and_its_end_ends_the_output() {
        let mut net = FakeTransport::new(100);
        let conn = net.accept(&mut Chargen);
        net.arrive(&mut Chargen, conn, b"anything");
        assert_eq!(net.received(conn), 0);
        net.end(&mut Chargen, conn);
        assert!(net.is_closed(conn));
        assert_eq!(net.drain(&mut Chargen, conn).len(), 100);
        assert_eq!(net.sent(conn), b"");
    }
}
