//! TCP options (RFC 9293 §3.1 and §3.2): parser with a fast case for common layouts, and writer.
//!
//! Written options are padded to four bytes by leading NOPs, which aligns the numbers.

use crate::wire::tcp::seq::Seq;
use std::ops::Deref;

/// Maximum length of the options: the data offset counts up to 15 words, of which five are fixed.
pub(crate) const MAX_LEN: usize = 40;

/// Length of a padded timestamps option.
pub(crate) const TIMESTAMP_LEN: usize = 12;

/// Maximum window scale shift (RFC 7323 §2.3).
pub(crate) const MAX_WINDOW_SCALE: u8 = 14;

/// Maximum number of SACK blocks in a segment (RFC 2018 §3).
pub(crate) const MAX_SACK_BLOCKS: usize = 4;

pub(crate) const MAX_SACK_BLOCKS_WITH_TIMESTAMP: usize = 3;

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMP: u8 = 8;

/// Head of a timestamps option with the padding recommended by RFC 7323 appendix A.
pub(crate) const TIMESTAMP_HEAD: [u8; 4] = [NOP, NOP, TIMESTAMP, 10];

/// Head of a timestamps option where SACK-permitted replaces the padding, as in nearly every SYN.
const SACK_PERMITTED_AND_TIMESTAMP_HEAD: [u8; 4] = [SACK_PERMITTED, 2, TIMESTAMP, 10];

/// Heads of the MSS option and of the padded window scale option.
const MSS_HEAD: u32 = (MSS as u32) << 8 | 4;
const WINDOW_SCALE_HEAD: u32 = (NOP as u32) << 16 | (WINDOW_SCALE as u32) << 8 | 3;

/// Timestamps option (RFC 7323 §3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timestamp {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the receiver's clock as last seen by the sender. Valid only with ACK.
    pub echo: u32,
}

impl Timestamp {
    #[inline]
    fn read(numbers: [u8; 8]) -> Self {
        let numbers = u64::from_be_bytes(numbers);
        Timestamp { value: (numbers >> 32) as u32, echo: numbers as u32 }
    }
}

/// SACK block (RFC 2018 §3) as sent by the peer: `right` may precede `left`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SackBlock {
    /// First sequence number of the block.
    pub left: Seq,
    /// Sequence number after the last one of the block.
    pub right: Seq,
}

/// Up to four SACK blocks, in the order of transmission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SackBlocks {
    blocks: [SackBlock; MAX_SACK_BLOCKS],
    len: u8,
}

impl SackBlocks {
    /// Appends `block` if there is room.
    pub fn push(&mut self, block: SackBlock) {
        if let Some(slot) = self.blocks.get_mut(usize::from(self.len)) {
            *slot = block;
            self.len += 1;
        }
    }
}

impl Deref for SackBlocks {
    type Target = [SackBlock];

    #[inline]
    fn deref(&self) -> &[SackBlock] {
        self.blocks.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// Options of a received segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Options {
    /// MSS: maximum payload that the sender accepts (RFC 9293 §3.7.1). Any value.
    pub mss: Option<u16>,
    /// Shift of the sender's window field (RFC 7323 §2.2), at most [`MAX_WINDOW_SCALE`].
    pub window_scale: Option<u8>,
    /// True if the sender accepts SACK blocks (RFC 2018 §2).
    pub sack_permitted: bool,
    pub timestamp: Option<Timestamp>,
    /// SACK blocks (RFC 2018, RFC 2883).
    pub sack: SackBlocks,
}

impl Options {
    /// Parses `bytes`, the TCP header after its first 20 bytes.
    ///
    /// Unknown options and known options of an unexpected length are skipped (RFC 9293 §3.1, MUST-6). An impossible
    /// length ends parsing, because the start of the next option is unknown; preceding options remain valid (MUST-7).
    /// If an option occurs twice, the last one is used, as in most systems.
    ///
    /// Common layouts are parsed in whole words, and the rest byte by byte.
    pub fn parse(mut bytes: &[u8]) -> Options {
        if let Some(options) = Options::parse_common_syn(bytes) {
            return options;
        }
        let mut options = Options::default();
        while let Some((&head, rest)) = bytes.split_first_chunk::<4>() {
            let with_sack = head == SACK_PERMITTED_AND_TIMESTAMP_HEAD;
            if (with_sack || head == TIMESTAMP_HEAD)
                && let Some((numbers, rest)) = rest.split_first_chunk()
            {
                options.sack_permitted |= with_sack;
                options.timestamp = Some(Timestamp::read(*numbers));
                bytes = rest;
                continue;
            }
            let word = u32::from_be_bytes(head);
            if word >> 16 == MSS_HEAD {
                options.mss = Some(word as u16);
            } else if word >> 8 == WINDOW_SCALE_HEAD {
                // RFC 7323 §2.3: a larger shift is replaced by the maximum.
                options.window_scale = Some((word as u8).min(MAX_WINDOW_SCALE));
            } else {
                break;
            }
            bytes = rest;
        }
        if bytes.is_empty() { options } else { options.parse_bytewise(bytes) }
    }

    /// Parses the options of a SYN in the order used by Linux and [`SynOptions`], if all of them are present.
    #[inline(always)]
    pub fn parse_common_syn(bytes: &[u8]) -> Option<Options> {
        let (&[mss, head, value, echo, scale], []) = bytes.as_chunks::<4>() else { return None };
        let [mss, value, echo, scale] = [mss, value, echo, scale].map(u32::from_be_bytes);
        let is_common =
            head == SACK_PERMITTED_AND_TIMESTAMP_HEAD && mss >> 16 == MSS_HEAD && scale >> 8 == WINDOW_SCALE_HEAD;
        is_common.then(|| Options {
            mss: Some(mss as u16),
            window_scale: Some((scale as u8).min(MAX_WINDOW_SCALE)),
            sack_permitted: true,
            timestamp: Some(Timestamp { value, echo }),
            sack: SackBlocks::default(),
        })
    }

    /// Continues [`parse`](Self::parse) byte by byte.
    #[inline(never)]
    fn parse_bytewise(mut self, mut bytes: &[u8]) -> Options {
        loop {
            bytes = match *bytes {
                [NOP, ref rest @ ..] => rest,
                [END, ..] | [] | [_] => return self,
                [kind, len, ..] => {
                    let len = usize::from(len);
                    let (Some(value), Some(rest)) = (bytes.get(2..len), bytes.get(len..)) else { return self };
                    self.read(kind, value);
                    rest
                }
            };
        }
    }

    fn read(&mut self, kind: u8, value: &[u8]) {
        match (kind, value) {
            (MSS, &[high, low]) => self.mss = Some(u16::from_be_bytes([high, low])),
            // RFC 7323 §2.3: a larger shift is replaced by the maximum.
            (WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift.min(MAX_WINDOW_SCALE)),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (TIMESTAMP, _) => {
                if let Ok(numbers) = value.try_into() {
                    self.timestamp = Some(Timestamp::read(numbers));
                }
            }
            (SACK, _) => {
                if let (edges, []) = value.as_chunks::<4>()
                    && let (pairs, []) = edges.as_chunks::<2>()
                {
                    self.sack = SackBlocks::default();
                    for &[left, right] in pairs {
                        let edge = |bytes| Seq(u32::from_be_bytes(bytes));
                        self.sack.push(SackBlock { left: edge(left), right: edge(right) });
                    }
                }
            }
            _ => {}
        }
    }
}

/// Options of an outgoing SYN or SYN-ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SynOptions {
    /// Maximum payload that the local end accepts; always sent (RFC 9293 §3.7.1, SHLD-5).
    pub mss: u16,
    /// Shift of the local window field, if offered or accepted.
    pub window_scale: Option<u8>,
    /// True if the local end accepts SACK blocks.
    pub sack_permitted: bool,
    /// Timestamps, if offered or accepted.
    pub timestamp: Option<Timestamp>,
}

impl SynOptions {
    /// Maximum encoded length.
    pub const MAX_LEN: usize = 20;

    /// Returns the encoded length in bytes, a multiple of four.
    #[inline]
    pub fn len(&self) -> usize {
        // SACK-permitted replaces the padding of the timestamps option.
        let timestamp = if self.timestamp.is_some() { TIMESTAMP_LEN } else { 0 };
        let sack = if self.sack_permitted && self.timestamp.is_none() { 4 } else { 0 };
        let scale = if self.window_scale.is_some() { 4 } else { 0 };
        4 + sack + timestamp + scale
    }

    /// Encodes the options at the beginning of `out`. Returns their length.
    ///
    /// # Panics
    ///
    /// If `out` is shorter than [`len`](Self::len).
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let mut writer = Writer::new(out);
        let [high, low] = self.mss.to_be_bytes();
        writer.put([MSS, 4, high, low]);
        match (self.sack_permitted, self.timestamp) {
            (true, Some(timestamp)) => {
                writer.put([SACK_PERMITTED, 2, TIMESTAMP, 10]);
                writer.timestamp(timestamp);
            }
            (false, Some(timestamp)) => {
                writer.put(TIMESTAMP_HEAD);
                writer.timestamp(timestamp);
            }
            (true, None) => writer.put([NOP, NOP, SACK_PERMITTED, 2]),
            (false, None) => {}
        }
        if let Some(shift) = self.window_scale {
            writer.put([NOP, WINDOW_SCALE, 3, shift]);
        }
        writer.len()
    }
}

/// Encodes a padded timestamps option.
#[inline]
pub(crate) fn emit_timestamp(out: &mut [u8; TIMESTAMP_LEN], timestamp: Timestamp) {
    let mut writer = Writer::new(out);
    writer.put(TIMESTAMP_HEAD);
    writer.timestamp(timestamp);
}

/// Returns the length of a SACK option with `blocks` blocks as written by [`emit_sack`]: a multiple of four, 0 for
/// none.
#[inline]
#[cfg(test)]
pub(crate) const fn sack_len(blocks: usize) -> usize {
    match blocks {
        0 => 0,
        1..MAX_SACK_BLOCKS => 4 + 8 * blocks,
        _ => 4 + 8 * MAX_SACK_BLOCKS,
    }
}

/// Encodes the first four of `blocks` at the beginning of `out`. Returns the length, 0 for no blocks. With a
/// timestamp only [three](MAX_SACK_BLOCKS_WITH_TIMESTAMP) fit into a header.
///
/// # Panics
///
/// If `out` is shorter than the encoding.
pub(crate) fn emit_sack(out: &mut [u8], blocks: &[SackBlock]) -> usize {
    let blocks = &blocks[..blocks.len().min(MAX_SACK_BLOCKS)];
    let mut writer = Writer::new(out);
    if !blocks.is_empty() {
        writer.put([NOP, NOP, SACK, 2 + 8 * blocks.len() as u8]);
    }
    for block in blocks {
        writer.put(block.left.0.to_be_bytes());
        writer.put(block.right.0.to_be_bytes());
    }
    writer.len()
}

/// Writes options word by word.
struct Writer<'a> {
    words: &'a mut [[u8; 4]],
    at: usize,
}

impl<'a> Writer<'a> {
    #[inline]
    fn new(out: &'a mut [u8]) -> Self {
        Writer { words: out.as_chunks_mut().0, at: 0 }
    }

    #[inline]
    fn put(&mut self, word: [u8; 4]) {
        self.words[self.at] = word;
        self.at += 1;
    }

    #[inline]
    fn timestamp(&mut self, timestamp: Timestamp) {
        self.put(timestamp.value.to_be_bytes());
        self.put(timestamp.echo.to_be_bytes());
    }

    #[inline]
    fn len(&self) -> usize {
        4 * self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use smoltcp::wire::TcpOption;

    fn block(left: u32, right: u32) -> SackBlock {
        SackBlock { left: Seq(left), right: Seq(right) }
    }

    fn timestamps() -> impl Strategy<Value = Timestamp> {
        any::<(u32, u32)>().prop_map(|(value, echo)| Timestamp { value, echo })
    }

    fn syn_options() -> impl Strategy<Value = SynOptions> {
        (any::<u16>(), prop::option::of(0..=MAX_WINDOW_SCALE), any::<bool>(), prop::option::of(timestamps())).prop_map(
            |(mss, window_scale, sack_permitted, timestamp)| SynOptions {
                mss,
                window_scale,
                sack_permitted,
                timestamp,
            },
        )
    }

    fn sack_blocks(most: usize) -> impl Strategy<Value = Vec<SackBlock>> {
        prop::collection::vec(any::<(u32, u32)>().prop_map(|(left, right)| block(left, right)), 0..=most)
    }

    fn parse_by_smoltcp(mut bytes: &[u8]) -> Options {
        let mut options = Options::default();
        while !bytes.is_empty() {
            let (rest, option) = TcpOption::parse(bytes).unwrap();
            match option {
                TcpOption::EndOfList => break,
                TcpOption::NoOperation | TcpOption::Unknown { .. } => {}
                TcpOption::MaxSegmentSize(mss) => options.mss = Some(mss),
                TcpOption::WindowScale(shift) => options.window_scale = Some(shift.min(14)),
                TcpOption::SackPermitted => options.sack_permitted = true,
                TcpOption::SackRange(ranges) => {
                    options.sack = SackBlocks::default();
                    ranges.iter().flatten().for_each(|(left, right)| options.sack.push(block(*left, *right)));
                }
                TcpOption::TimeStamp { tsval, tsecr } => {
                    options.timestamp = Some(Timestamp { value: tsval, echo: tsecr });
                }
            }
            bytes = rest;
        }
        options
    }

    /// Generates a well-formed option. SACK has as many blocks as smoltcp parses; experimental kinds are excluded.
    fn valid_option() -> impl Strategy<Value = Vec<u8>> {
        let with = |kind: u8| move |value: Vec<u8>| [&[kind, 2 + value.len() as u8], &value[..]].concat();
        let bytes = |len| prop::collection::vec(any::<u8>(), len);
        prop_oneof![
            Just(vec![NOP]),
            bytes(2).prop_map(with(MSS)),
            bytes(1).prop_map(with(WINDOW_SCALE)),
            Just(vec![SACK_PERMITTED, 2]),
            bytes(8).prop_map(with(TIMESTAMP)),
            (1usize..=3)
                .prop_flat_map(move |blocks| prop::collection::vec(any::<u8>(), 8 * blocks))
                .prop_map(with(SACK)),
            (9u8..=255, prop::collection::vec(any::<u8>(), 0..10)).prop_map(move |(kind, value)| with(kind)(value)),
        ]
    }

    proptest! {
        /// RFC 9293 §3.1, MUST-7.
        #[test]
        fn arbitrary_bytes_are_parsed(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let options = Options::parse(&bytes);
            prop_assert!(options.sack.len() <= MAX_SACK_BLOCKS);
            prop_assert!(options.window_scale.is_none_or(|shift| shift <= MAX_WINDOW_SCALE));
        }

        #[test]
        fn syn_options_round_trip(sent in syn_options()) {
            let mut bytes = [0xaa; 20 + 4];
            let len = sent.emit(&mut bytes);
            prop_assert_eq!(len, sent.len());
            prop_assert!(len % 4 == 0 && len <= 20);
            prop_assert!(bytes[len..].iter().all(|byte| *byte == 0xaa));
            let SynOptions { mss, window_scale, sack_permitted, timestamp } = sent;
            let expected =
                Options { mss: Some(mss), window_scale, sack_permitted, timestamp, sack: SackBlocks::default() };
            prop_assert_eq!(Options::parse(&bytes[..len]), expected);
            prop_assert_eq!(parse_by_smoltcp(&bytes[..len]), expected);
        }

        /// RFC 2018 §3: three blocks fit with a timestamp, four without.
        #[test]
        fn sack_blocks_round_trip_in_order(
            timestamp in prop::option::of(timestamps()), blocks in sack_blocks(MAX_SACK_BLOCKS)
        ) {
            let fit = if timestamp.is_some() { MAX_SACK_BLOCKS_WITH_TIMESTAMP } else { MAX_SACK_BLOCKS };
            let blocks = &blocks[..blocks.len().min(fit)];
            let mut bytes = [0; MAX_LEN];
            let at = timestamp.map_or(0, |timestamp| {
                emit_timestamp(bytes.first_chunk_mut().unwrap(), timestamp);
                TIMESTAMP_LEN
            });
            let len = emit_sack(&mut bytes[at..], blocks);
            prop_assert_eq!(len, sack_len(blocks.len()));
            let options = Options::parse(&bytes[..at + len]);
            prop_assert_eq!((&options.sack[..], options.timestamp), (blocks, timestamp));
        }

        #[test]
        fn parser_agrees_with_smoltcp(options in prop::collection::vec(valid_option(), 0..8), ended: bool) {
            let mut bytes = options.concat();
            if ended {
                bytes.extend([END, 2, MSS, 4, 5, 0xb4]);
            }
            prop_assert_eq!(Options::parse(&bytes), parse_by_smoltcp(&bytes));
        }

        /// RFC 9293 §3.1, MUST-6.
        #[test]
        fn unknown_option_is_skipped(kind in 9u8..=255, value in prop::collection::vec(any::<u8>(), 0..16)) {
            let bytes = [&[kind, value.len() as u8 + 2], &value[..], &[MSS, 4, 5, 0xb4]].concat();
            prop_assert_eq!(Options::parse(&bytes), Options { mss: Some(1460), ..Options::default() });
        }
    }

    /// RFC 9293 §3.1, MUST-7.
    #[test]
    fn impossible_length_ends_parsing() {
        let read = Options { mss: Some(1460), ..Options::default() };
        for wrong in
            [&[WINDOW_SCALE, 0, 7][..], &[WINDOW_SCALE, 1, 7], &[WINDOW_SCALE, 4, 7], &[WINDOW_SCALE], &[99, 255]]
        {
            let bytes = [&[MSS, 4, 5, 0xb4], wrong].concat();
            assert_eq!(Options::parse(&bytes), read, "{wrong:?}");
        }
    }

    #[test]
    fn known_option_of_wrong_length_is_skipped() {
        for wrong in [&[MSS, 3, 1][..], &[WINDOW_SCALE, 4, 1, 1], &[SACK_PERMITTED, 3, 0], &[TIMESTAMP, 6, 1, 2, 3, 4]]
        {
            let bytes = [wrong, &[SACK, 6, 1, 2, 3, 4, SACK, 2, WINDOW_SCALE, 3, 7]].concat();
            assert_eq!(Options::parse(&bytes), Options { window_scale: Some(7), ..Options::default() }, "{wrong:?}");
        }
    }

    /// RFC 9293 §3.2: the bytes after the end of the list are padding.
    #[test]
    fn end_of_list_ends_parsing() {
        assert_eq!(Options::parse(&[NOP, END, 2, MSS, 4, 5, 0xb4]), Options::default());
    }

    /// RFC 7323 §2.3.
    #[test]
    fn window_scale_above_14_becomes_14() {
        for (sent, read) in [(13, 13), (14, 14), (15, 14), (255, 14)] {
            assert_eq!(Options::parse(&[WINDOW_SCALE, 3, sent]).window_scale, Some(read));
            assert_eq!(Options::parse(&[NOP, WINDOW_SCALE, 3, sent]).window_scale, Some(read));
            let syn =
                [&[MSS, 4, 5, 0xb4, SACK_PERMITTED, 2, TIMESTAMP, 10], &[0; 8][..], &[NOP, WINDOW_SCALE, 3, sent]];
            assert_eq!(Options::parse(&syn.concat()).window_scale, Some(read));
        }
    }

    #[test]
    fn last_of_repeated_options_is_used() {
        let bytes = [MSS, 4, 0, 1, MSS, 4, 0, 2, WINDOW_SCALE, 3, 1, WINDOW_SCALE, 3, 2];
        let options = Options::parse(&bytes);
        assert_eq!((options.mss, options.window_scale), (Some(2), Some(2)));
        let blocks = [&[SACK, 18][..], &[1; 16], &[SACK, 10], &[2; 8]].concat();
        assert_eq!(&Options::parse(&blocks).sack[..], [block(0x0202_0202, 0x0202_0202)]);
    }

    #[test]
    fn sack_blocks_after_the_fourth_are_ignored() {
        let blocks: Vec<_> = (0..6).map(|i| block(i, i + 1)).collect();
        let mut bytes = [0; MAX_LEN];
        assert_eq!(emit_sack(&mut bytes, &blocks), sack_len(6));
        assert_eq!(&Options::parse(&bytes).sack[..], &blocks[..4]);
        let six = [&[SACK, 50][..], &(0..6u8).flat_map(|i| [0, 0, 0, i, 0, 0, 0, i + 1]).collect::<Vec<_>>()].concat();
        assert_eq!(&Options::parse(&six).sack[..], &blocks[..4]);
    }
}
