//! Payload that is cheap to generate and to check: an endless pseudo-random stream from a table.

use crate::payload::copy_to_arena;
use linerate_service::{Bytes, ConnId, Transport};

/// Period of the stream: a prime, so that bytes lost or repeated in units of segments, requests or powers of two are
/// detected, and small enough for a core's cache.
pub const PERIOD: usize = 65_521;
/// Largest contiguous chunk.
const CHUNK: usize = 32 << 10;
/// Length from which sending by reference is faster than copying.
pub const LONG: usize = 2 << 10;

static TABLE: [u8; PERIOD + CHUNK] = table();

/// Returns pseudo-random bytes (SplitMix64), with the beginning repeated after the end.
const fn table() -> [u8; PERIOD + CHUNK] {
    let mut table = [0; PERIOD + CHUNK];
    let (mut i, mut state, mut word) = (0, 0x6c69_6e65_7261_7465_u64, 0);
    while i < table.len() {
        if i % 8 == 0 {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            word = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^= word >> 31;
        }
        table[i] = if i < PERIOD { (word >> (i % 8 * 8)) as u8 } else { table[i - PERIOD] };
        i += 1;
    }
    table
}

thread_local! {
    /// The table in memory that this thread sends from.
    static TO_SEND: Bytes = copy_to_arena(&TABLE);
}

/// Position in the stream.
#[derive(Debug, Clone, Copy)]
pub struct Position {
    /// Offset below the period. A u32, so that the per-connection state of a load fits a cache line.
    at: u32,
}

impl Position {
    /// Returns the start of the stream of connection `index`: distinct for up to 65 521 connections.
    pub fn of_connection(index: usize) -> Self {
        // Successive connections start far apart, so that misdirected bytes are detected at once.
        Position { at: (index % PERIOD * 40_503 % PERIOD) as u32 }
    }

    /// Returns the position at offset `at`, which is less than the period.
    #[inline]
    pub fn at(at: usize) -> Self {
        debug_assert!(at < PERIOD);
        Position { at: at as u32 }
    }

    /// Returns the next bytes, at most `max`; at least one unless `max` is 0.
    fn chunk(&self, max: usize) -> &'static [u8] {
        let at = self.at as usize;
        &TABLE[at..at + max.min(CHUNK)]
    }

    /// Skips `n` bytes.
    pub fn advance(&mut self, n: usize) {
        self.at = ((self.at as usize + n) % PERIOD) as u32;
    }

    /// Fills `buffer` with the next bytes and advances.
    #[inline]
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for part in buffer.chunks_mut(CHUNK) {
            part.copy_from_slice(self.chunk(part.len()));
            self.advance(part.len());
        }
    }

    /// Returns whether `bytes` are the next bytes of the stream. If so, advances.
    pub fn matches(&mut self, bytes: &[u8]) -> bool {
        for chunk in bytes.chunks(CHUNK) {
            if chunk != self.chunk(chunk.len()) {
                return false;
            }
            self.advance(chunk.len());
        }
        true
    }

    /// Sends the next bytes, at most `max`, advances, and returns the number that the transport accepted.
    pub fn send(&mut self, net: &mut impl Transport, conn: ConnId, max: usize) -> usize {
        let mut sent = 0;
        while sent < max {
            let chunk = self.chunk(max - sent);
            let n = if chunk.len() < LONG {
                net.write(conn, chunk)
            } else {
                let n = net.send_space(conn).min(chunk.len());
                let at = self.at as usize;
                let bytes = || TO_SEND.with(|table| table.slice(at..at + n));
                if n > 0 && net.send(conn, bytes()).is_ok() { n } else { 0 }
            };
            // `writable` follows only a call that found no room at all.
            if n == 0 {
                break;
            }
            self.advance(n);
            sent += n;
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::Discard;
    use crate::testing::FakeTransport;

    fn sent(max: usize, room: usize) -> Vec<u8> {
        let mut net = FakeTransport::new(room);
        let conn = net.accept(&mut Discard::default());
        assert_eq!(Position::of_connection(3).send(&mut net, conn, max), max.min(room));
        net.sent(conn)
    }

    #[test]
    fn stream_matches_in_pieces_of_any_size() {
        let stream = sent(1_000_000, usize::MAX);
        for cut in [1, 7, 1448, PERIOD - 1, PERIOD, CHUNK + 1, 1_000_000] {
            let mut position = Position::of_connection(3);
            assert!(stream.chunks(cut).all(|part| position.matches(part)), "{cut}");
        }
    }

    #[test]
    fn filled_bytes_equal_sent_bytes() {
        let stream = sent(200_000, usize::MAX);
        for cut in [1, 7, CHUNK, PERIOD + 1, 200_000] {
            let (mut position, mut filled) = (Position::of_connection(3), vec![0; 200_000]);
            filled.chunks_mut(cut).for_each(|part| position.fill(part));
            assert!(filled == stream, "{cut}");
        }
    }

    #[test]
    fn sending_stops_at_the_room() {
        for (max, room) in [(100, 64), (LONG, LONG - 1), (3 * CHUNK, CHUNK + 9), (10, 0), (0, 10)] {
            assert_eq!(sent(max, room), sent(1_000_000, usize::MAX)[..max.min(room)]);
        }
    }

    #[test]
    fn changed_lost_and_repeated_bytes_do_not_match() {
        let stream = sent(100_000, usize::MAX);
        let matches = |bytes: &[u8]| Position::of_connection(3).matches(bytes);
        assert!(matches(&stream));
        for at in [0, 1, PERIOD, 99_998] {
            let mut changed = stream.clone();
            changed[at] ^= 0x80;
            assert!(!matches(&changed), "{at} changed");
        }
        for lost in [1, 64, 1448, 65_536] {
            assert!(!matches(&[&stream[..1000], &stream[1000 + lost..]].concat()), "{lost} lost");
            assert!(!matches(&[&stream[..70_000], &stream[70_000 - lost..]].concat()), "{lost} repeated");
        }
    }

    #[test]
    fn bytes_of_other_connections_do_not_match() {
        let stream = sent(64, 64);
        assert!((0..PERIOD).filter(|i| *i != 3).all(|i| !Position::of_connection(i).matches(&stream)));
    }
}
