//! Capture files for tcpdump and Wireshark: a subset of the pcapng format, draft-ietf-opsawg-pcapng, "PCAP Next
//! Generation Capture File Format".

use super::capture::{Direction, Record};
use std::io::{self, Write};
use std::time::Duration;

/// Size of an Enhanced Packet Block without the frame.
const AROUND_FRAME: usize = 32 + 8 + 4;
/// Size of the Interface Statistics Block of each interface, which ends a file.
const STATISTICS: usize = 20 + 2 * 12 + 4 + 4;

/// Capture interface: a queue pair of a port.
pub struct Interface<'a> {
    /// Interface name.
    pub name: &'a str,
    /// Largest number of bytes captured of each frame.
    pub snap: usize,
    /// Capture filter in pcap-filter(7) syntax.
    pub filter: Option<&'a str>,
}

/// File of bounded size that is being written.
pub struct File<W> {
    out: W,
    /// Bytes left for frames.
    left: u64,
    block: Vec<u8>,
}

impl<W: Write> File<W> {
    /// Begins a file of at most `most` bytes in `out`. Frames refer to `interfaces` by index.
    pub fn begin(out: W, most: u64, interfaces: &[Interface<'_>]) -> io::Result<Self> {
        let mut file =
            File { out, left: most.saturating_sub((interfaces.len() * STATISTICS) as u64), block: Vec::new() };
        let program = concat!("linerate ", env!("CARGO_PKG_VERSION"));
        file.block(0x0a0d_0d0a, |block| {
            block.extend(0x1a2b_3c4d_u32.to_le_bytes());
            block.extend([1, 0, 0, 0]);
            // Section length: unknown.
            block.extend((-1_i64).to_le_bytes());
            option(block, 4, program.as_bytes());
            end_of_options(block);
        })?;
        for interface in interfaces {
            file.block(1, |block| {
                // LINKTYPE_ETHERNET
                block.extend([1, 0, 0, 0]);
                block.extend(word(interface.snap).to_le_bytes());
                option(block, 2, interface.name.as_bytes());
                // Timestamp resolution: nanoseconds.
                option(block, 9, &[9]);
                if let Some(filter) = interface.filter {
                    option(block, 11, &[&[0], filter.as_bytes()].concat());
                }
                end_of_options(block);
            })?;
        }
        Ok(file)
    }

    /// Writes `record` of interface number `interface`; returns `false` if the file has no room for it.
    pub fn frame(&mut self, interface: usize, record: &Record) -> io::Result<bool> {
        let bytes = record.bytes();
        if ((AROUND_FRAME + bytes.len().next_multiple_of(4)) as u64) > self.left {
            return Ok(false);
        }
        self.block(6, |block| {
            block.extend(word(interface).to_le_bytes());
            time(block, record.at);
            block.extend(word(bytes.len()).to_le_bytes());
            block.extend(word(record.len).to_le_bytes());
            padded(block, bytes);
            let direction: u32 = match record.direction {
                Direction::Received => 1,
                Direction::Sent => 2,
            };
            option(block, 2, &direction.to_le_bytes());
            end_of_options(block);
        })?;
        Ok(true)
    }

    /// Writes the numbers of frames of `interface` that were captured, and missed because the buffer was full, until
    /// `at`.
    pub fn counters(&mut self, interface: usize, at: Duration, kept: u64, missed: u64) -> io::Result<()> {
        // `begin` reserved the room.
        self.left += STATISTICS as u64;
        self.block(5, |block| {
            block.extend(word(interface).to_le_bytes());
            time(block, at);
            option(block, 4, &(kept + missed).to_le_bytes());
            option(block, 5, &missed.to_le_bytes());
            end_of_options(block);
        })
    }

    /// Flushes the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn block(&mut self, kind: u32, body: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.block.clear();
        self.block.extend(kind.to_le_bytes());
        self.block.extend([0; 4]);
        body(&mut self.block);
        let len = self.block.len() + 4;
        self.block.extend(word(len).to_le_bytes());
        self.block[4..8].copy_from_slice(&word(len).to_le_bytes());
        self.left = self.left.saturating_sub(len as u64);
        self.out.write_all(&self.block)
    }
}

/// Converts a size, which the format limits to 32 bits.
fn word(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn time(block: &mut Vec<u8>, at: Duration) {
    // Sufficient until the year 2554.
    let nanos = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
    block.extend(((nanos >> 32) as u32).to_le_bytes());
    block.extend((nanos as u32).to_le_bytes());
}

fn padded(block: &mut Vec<u8>, bytes: &[u8]) {
    block.extend(bytes);
    block.extend(&[0; 3][..bytes.len().next_multiple_of(4) - bytes.len()]);
}

fn option(block: &mut Vec<u8>, code: u16, value: &[u8]) {
    // A name or filter of 64 KB and more is truncated.
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    block.extend(code.to_le_bytes());
    block.extend((value.len() as u16).to_le_bytes());
    padded(block, value);
}

fn end_of_options(block: &mut Vec<u8>) {
    block.extend([0; 4]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::capture;
    use crate::memory_nic::{Link, LinkConfig};
    use crate::{Nic, Packet};

    /// Returns the types and bodies of a file's blocks, and checks that both length fields of each agree.
    fn blocks(mut file: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut blocks = Vec::new();
        while !file.is_empty() {
            let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
            let len = word(4) as usize;
            assert!(len.is_multiple_of(4) && word(len - 4) as usize == len, "{len}");
            blocks.push((word(0), file[8..len - 4].to_vec()));
            file = &file[len..];
        }
        blocks
    }

    fn write(most: u64, frames: &[&[u8]]) -> (Vec<u8>, usize) {
        let mut out = Vec::new();
        let interfaces = [Interface { name: "queue 0", snap: 5, filter: Some("tcp") }];
        let mut file = File::begin(&mut out, most, &interfaces).unwrap();
        let mut nic = Link::pair(LinkConfig::default()).0;
        let (mut keeps, mut reader) = capture(100, 5, None);
        let mut written = 0;
        for bytes in frames {
            let mut frame = nic.allocate().unwrap();
            frame.append(bytes.len()).unwrap().copy_from_slice(bytes);
            keeps.sending(&[frame]);
            keeps.sent(1);
            let fits = reader.read(|record| file.frame(0, record).unwrap()).unwrap();
            written += usize::from(fits);
        }
        file.counters(0, Duration::from_nanos(1 << 32 | 7), written as u64, 2).unwrap();
        (out, written)
    }

    #[test]
    fn file_has_section_interface_frames_and_counters() {
        let (file, _) = write(10_000, &[b"abc", b"123456789"]);
        let blocks = blocks(&file);
        assert_eq!(blocks.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [0x0a0d_0d0a, 1, 6, 6, 5]);
        assert_eq!(blocks[0].1[..8], [0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0]);
        let interface = [
            &[1, 0, 0, 0, 5, 0, 0, 0, 2, 0, 7, 0][..],
            b"queue 0\0",
            &[9, 0, 1, 0, 9, 0, 0, 0, 11, 0, 4, 0, 0],
            b"tcp",
            &[0; 4],
        ];
        assert_eq!(blocks[1].1, interface.concat());
        // The padded prefix of five bytes, and the original length.
        assert_eq!(blocks[3].1[12..28], *b"\x05\0\0\0\x09\0\0\x0012345\0\0\0");
        assert_eq!(blocks[3].1[28..], [2, 0, 4, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(blocks[4].1[..12], [0, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!(blocks[4].1[16..24], 4_u64.to_le_bytes());
    }

    #[test]
    fn file_is_bounded_and_ends_with_its_counters() {
        let frames: Vec<&[u8]> = vec![b"frame"; 50];
        for most in [400, 401, 402, 403, 404, 1000] {
            let (file, written) = write(most, &frames);
            assert!(file.len() as u64 <= most && file.len() as u64 + 60 > most, "{} of {most}", file.len());
            assert_eq!(blocks(&file).len(), written + 3);
        }
    }
}
