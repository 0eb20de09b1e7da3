//! Record of the frames sent over a link.

use super::link::End;
use linerate_service::time::Instant;
use std::io::{self, Write};

/// Frame as it was sent, before impairments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Time of sending.
    pub at: Instant,
    /// Sending end.
    pub from: End,
    /// Queue to which the frame was sent.
    pub queue: usize,
    /// Bytes of the frame, from the Ethernet header on.
    pub bytes: Vec<u8>,
}

/// Writes `frames` as a capture file for tcpdump and Wireshark: libpcap format with nanoseconds, link type Ethernet.
pub fn write_pcap(out: &mut impl Write, frames: &[Frame]) -> io::Result<()> {
    const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
    const VERSION: u32 = 4 << 16 | 2;
    const ETHERNET: u32 = 1;
    let longest = frames.iter().map(|frame| frame.bytes.len()).max().unwrap_or(0).max(65_535);
    for word in [MAGIC_NANOSECONDS, VERSION, 0, 0, word(longest)?, ETHERNET] {
        out.write_all(&word.to_le_bytes())?;
    }
    for frame in frames {
        let (seconds, nanos) = (frame.at.as_nanos() / 1_000_000_000, frame.at.as_nanos() % 1_000_000_000);
        let len = word(frame.bytes.len())?;
        for word in [seconds as u32, nanos as u32, len, len] {
            out.write_all(&word.to_le_bytes())?;
        }
        out.write_all(&frame.bytes)?;
    }
    Ok(())
}

fn word(n: usize) -> io::Result<u32> {
    u32::try_from(n).map_err(|_| io::Error::other("a frame of 4 GiB does not fit into a pcap file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capture_file_has_a_header_and_every_frame() {
        let frame = Frame { at: Instant::from_nanos(3_000_000_007), from: End::A, queue: 0, bytes: vec![0xee; 61] };
        let mut file = Vec::new();
        write_pcap(&mut file, &[frame.clone(), frame]).unwrap();
        assert_eq!(file.len(), 24 + 2 * (16 + 61));
        assert_eq!(file[..8], [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0]);
        assert_eq!(file[20..24], [1, 0, 0, 0]);
        assert_eq!(file[24..40], [3, 0, 0, 0, 7, 0, 0, 0, 61, 0, 0, 0, 61, 0, 0, 0]);
        assert!(file[40..101].iter().all(|byte| *byte == 0xee));
    }
}
