//! Character generator (RFC 864): sends lines of printing characters for as long as the peer reads them.

use linerate_bypass::{Bytes, ConnId, Origin, Service, Transport};
use linerate_net::copy_to_arena;
use std::convert::Infallible;

/// Printing ASCII characters, the space included.
const CHARACTERS: usize = 95;
/// RFC 864's popular pattern: 72 characters and a line end, each line beginning one character further on.
const LINE: usize = 74;
/// The lines repeat after this many bytes. The block has a few rounds of them, to be sent in large pieces.
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
    /// What this thread sends of.
    static TO_SEND: Bytes = copy_to_arena(&BLOCK);
}

/// The chargen service, for measuring bulk send: as fast as the peer's window allows. What the peer sends is
/// thrown away. TCP only: over UDP the service answers a short datagram with a longer one to whoever the sender
/// claims to be, which is of use only to attackers.
#[derive(Debug, Default)]
pub struct Chargen;

/// A connection of [`Chargen`].
#[derive(Debug, Default)]
pub struct Stream {
    /// How far into the block we are.
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
    use crate::testing::Fake;

    #[test]
    fn the_pattern_is_that_of_the_rfc_from_the_first_line_to_beyond_the_block() {
        let mut net = Fake::new(10_000);
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
    fn it_sends_no_more_than_there_is_room_for_and_goes_on_when_there_is() {
        let mut net = Fake::new(100);
        let conn = net.accept(&mut Chargen);
        assert_eq!(net.sent(conn), &BLOCK[..100]);
        assert_eq!(net.drain(&mut Chargen, conn), &BLOCK[..100]);
        assert_eq!(net.sent(conn), &BLOCK[100..200]);
    }

    #[test]
    fn input_is_thrown_away_and_its_end_ends_the_output() {
        let mut net = Fake::new(100);
        let conn = net.accept(&mut Chargen);
        net.arrive(&mut Chargen, conn, b"anything");
        assert_eq!(net.received(conn), 0);
        net.end(&mut Chargen, conn);
        assert!(net.is_closed(conn));
        assert_eq!(net.drain(&mut Chargen, conn).len(), 100);
        assert_eq!(net.sent(conn), b"");
    }
}
