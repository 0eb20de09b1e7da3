//! Payload of the client: bytes that identify their connection and position.

/// Bytes of one message, without repetition within reach.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pattern(u64);

impl Pattern {
    /// Returns the message of connection `flow` that begins at `sequence`.
    pub fn new(flow: usize, sequence: u32) -> Self {
        Pattern((flow as u64) << 32 | u64::from(sequence))
    }

    /// Returns the `n`th eight bytes.
    fn word(self, n: usize) -> [u8; 8] {
        let mixed = self.0.wrapping_add((n as u64).wrapping_mul(0xd6e8_feb8_6659_fd93));
        mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
    }

    /// Writes the bytes from `offset` of the message.
    pub fn fill(self, offset: usize, bytes: &mut [u8]) {
        let begin = bytes.len().min(offset.wrapping_neg() % 8);
        let (first, rest) = bytes.split_at_mut(begin);
        if !first.is_empty() {
            let within = offset % 8;
            first.copy_from_slice(&self.word(offset / 8)[within..within + begin]);
        }
        let whole = (offset + begin) / 8;
        for (n, part) in rest.chunks_mut(8).enumerate() {
            part.copy_from_slice(&self.word(whole + n)[..part.len()]);
        }
    }

    /// Returns true if `bytes` are those from `offset` of the message.
    pub fn matches(self, offset: usize, bytes: &[u8]) -> bool {
        let (first, rest) = bytes.split_at(bytes.len().min(offset.wrapping_neg() % 8));
        let within = offset % 8;
        if !first.is_empty() && *first != self.word(offset / 8)[within..within + first.len()] {
            return false;
        }
        let whole = (offset + first.len()) / 8;
        rest.chunks(8).enumerate().all(|(n, part)| *part == self.word(whole + n)[..part.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_the_same_for_any_segmentation() {
        let pattern = Pattern::new(7, 1000);
        let mut whole = [0; 100];
        pattern.fill(0, &mut whole);
        for begin in 0..100 {
            for end in begin..100 {
                let mut part = vec![0; end - begin];
                pattern.fill(begin, &mut part);
                assert_eq!(part, whole[begin..end]);
                assert!(pattern.matches(begin, &part));
            }
        }
    }

    #[test]
    fn other_bytes_positions_and_messages_do_not_match() {
        let pattern = Pattern::new(7, 1000);
        let mut bytes = [0; 64];
        pattern.fill(0, &mut bytes);
        assert!(!pattern.matches(8, &bytes[..56]));
        assert!(!pattern.matches(0, &bytes[1..]));
        assert!(!Pattern::new(8, 1000).matches(0, &bytes));
        assert!(!Pattern::new(7, 1064).matches(0, &bytes));
        for at in 0..64 {
            bytes[at] ^= 1;
            assert!(!pattern.matches(0, &bytes));
            bytes[at] ^= 1;
        }
    }
}
