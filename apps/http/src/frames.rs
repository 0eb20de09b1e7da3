//! Frames of an HTTP/2 connection, and their limit.
//!
//! Frames that carry little cost the server more than the client: SETTINGS changes the window of each stream, and PING
//! and SETTINGS are acknowledged. hyper does not limit most of them.

use linerate_service::time::Instant;

/// Length of the header of a frame (RFC 9113 section 4.1).
const HEADER: usize = 9;

// Types of frames (RFC 9113 section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;

/// GOAWAY frame with the error ENHANCE_YOUR_CALM, which names no last stream (RFC 9113 sections 6.8 and 7).
pub(crate) const ENHANCE_YOUR_CALM: [u8; HEADER + 8] =
    [0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0xb];

/// Payload of a DATA frame that is worth its frame.
const USEFUL_DATA: usize = 64;
/// Cost of a SETTINGS frame, which applies to all streams.
const SETTINGS_COST: u32 = 32;
/// Frames that each frame of a response pays for.
const PAID_BY_FRAME: u32 = 4;
/// Bytes of a response that pay for one more frame.
const BYTES_PER_FRAME: usize = 256;
/// Frames that each second pays for.
const PAID_PER_SECOND: u64 = 100;
/// Unpaid frames after which a connection is closed.
const MAX_UNPAID: u32 = 1000;

/// Position in a sequence of frames.
#[derive(Debug, Default)]
struct Position {
    header: [u8; HEADER],
    /// Received bytes of `header`. The header of the current frame stays until its payload is complete.
    header_len: usize,
    /// Bytes of the payload that are missing.
    payload: usize,
}

impl Position {
    /// Skips `bytes`. Calls `on_frame` with the type and the payload length of each frame whose header is complete.
    fn advance(&mut self, mut bytes: &[u8], mut on_frame: impl FnMut(u8, usize)) {
        loop {
            let skipped = self.payload.min(bytes.len());
            self.payload -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return;
            }
            let start = self.header_len % HEADER;
            let n = bytes.len().min(HEADER - start);
            self.header[start..start + n].copy_from_slice(&bytes[..n]);
            self.header_len = start + n;
            bytes = &bytes[n..];
            if self.header_len == HEADER {
                let [a, b, c, kind, ..] = self.header;
                self.payload = u32::from_be_bytes([0, a, b, c]) as usize;
                on_frame(kind, self.payload);
            }
        }
    }

    /// Returns the type of the frame whose payload is incomplete.
    fn incomplete(&self) -> Option<u8> {
        (self.payload > 0).then_some(self.header[3])
    }
}

/// Frames in both directions.
#[derive(Debug)]
pub(crate) struct Frames {
    received: Position,
    sent: Position,
    /// Cost of the received frames, less those that responses or time have paid for.
    unpaid: u32,
    /// Time up to which time has paid.
    paid_until: Instant,
}

impl Frames {
    pub fn new(now: Instant) -> Self {
        Frames { received: Position::default(), sent: Position::default(), unpaid: 0, paid_until: now }
    }

    /// Counts the frames in received bytes.
    pub fn receive(&mut self, bytes: &[u8]) {
        let unpaid = &mut self.unpaid;
        self.received.advance(bytes, |kind, len| {
            let cost = match kind {
                SETTINGS => SETTINGS_COST,
                DATA if len >= USEFUL_DATA => 0,
                _ => 1,
            };
            *unpaid = unpaid.saturating_add(cost);
        });
    }

    /// Returns whether the client has sent too many frames for its responses.
    pub fn is_flood(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.unpaid > MAX_UNPAID {
            let now = now();
            let paid = now.since(self.paid_until).as_millis() as u64 * PAID_PER_SECOND / 1000;
            self.unpaid = self.unpaid.saturating_sub(u32::try_from(paid).unwrap_or(u32::MAX));
            self.paid_until = now;
        }
        self.unpaid > MAX_UNPAID
    }

    /// Returns whether the last sent byte ends a frame.
    pub fn has_sent_whole_frames(&self) -> bool {
        self.sent.payload == 0 && self.sent.header_len.is_multiple_of(HEADER)
    }

    /// Counts sent bytes. Returns whether a part of a response is among them.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        let is_response = |kind| matches!(kind, DATA | HEADERS | CONTINUATION);
        let mut progresses = self.sent.incomplete().is_some_and(is_response);
        let unpaid = &mut self.unpaid;
        self.sent.advance(bytes, |kind, len| {
            if is_response(kind) {
                progresses = true;
                *unpaid = unpaid.saturating_sub(PAID_BY_FRAME + (len / BYTES_PER_FRAME) as u32);
            }
        });
        progresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_service::time::Duration;

    const PING: u8 = 6;
    const WINDOW_UPDATE: u8 = 8;

    fn frame(kind: u8, len: usize) -> Vec<u8> {
        let [_, a, b, c] = (len as u32).to_be_bytes();
        [&[a, b, c, kind, 0, 0, 0, 0, 1][..], &vec![7; len]].concat()
    }

    fn frames() -> Frames {
        Frames::new(Instant::ZERO)
    }

    #[test]
    fn frames_are_found_in_parts_of_any_length() {
        let sequence = [(HEADERS, 5), (DATA, 0), (SETTINGS, 0), (DATA, 70_000), (PING, 8)];
        let bytes: Vec<u8> = sequence.iter().flat_map(|&(kind, len)| frame(kind, len)).collect();
        for part in [1, 2, 7, 9, 10, 4096, bytes.len()] {
            let (mut position, mut found) = (Position::default(), Vec::new());
            bytes.chunks(part).for_each(|part| position.advance(part, |kind, len| found.push((kind, len))));
            assert_eq!((found, position.incomplete()), (sequence.to_vec(), None), "{part}");
        }
    }

    #[test]
    fn only_responses_are_progress() {
        let mut frames = frames();
        for (kind, is_progress) in [(SETTINGS, false), (PING, false), (HEADERS, true), (3, false), (DATA, true)] {
            let bytes = frame(kind, 20);
            let (start, end) = bytes.split_at(10);
            assert_eq!((frames.send(start), frames.send(end)), (is_progress, is_progress), "{kind}");
        }
    }

    #[test]
    fn frames_are_paid_by_responses_and_time() {
        let mut frames = frames();
        let millis = |n| Instant::ZERO + Duration::from_millis(n);
        for _ in 0..MAX_UNPAID {
            frames.receive(&frame(WINDOW_UPDATE, 4));
        }
        assert!(!frames.is_flood(|| Instant::ZERO));
        frames.receive(&frame(DATA, 0));
        assert!(frames.is_flood(|| millis(9)));
        assert!(!frames.is_flood(|| millis(29)));
        let mut frames = Frames::new(Instant::ZERO);
        // A client with a small window: an update of the stream and of the connection for each frame of the response.
        for _ in 0..100 * MAX_UNPAID {
            frames.receive(&[frame(HEADERS, 9), frame(WINDOW_UPDATE, 4), frame(WINDOW_UPDATE, 4)].concat());
            assert!(!frames.is_flood(|| millis(29)));
            frames.send(&frame(DATA, 1));
        }
        // A download by a client that updates its windows for each 512 bytes.
        for _ in 0..MAX_UNPAID {
            (0..64).for_each(|_| frames.receive(&frame(WINDOW_UPDATE, 4)));
            frames.send(&frame(DATA, 16_384));
        }
        assert!(!frames.is_flood(|| millis(29)));
        // An upload.
        (0..10 * MAX_UNPAID).for_each(|_| frames.receive(&frame(DATA, USEFUL_DATA)));
        assert!(!frames.is_flood(|| millis(29)));
        // SETTINGS is not worth a response.
        for _ in 0..MAX_UNPAID {
            frames.receive(&[frame(HEADERS, 9), frame(SETTINGS, 6)].concat());
            frames.send(&[frame(HEADERS, 20), frame(DATA, 6)].concat());
        }
        assert!(frames.is_flood(|| millis(29)));
    }
}
