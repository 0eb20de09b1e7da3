//! What the ports at both ends of a link have to do with a frame.

use crate::{RxChecksum, RxInfo, TxOffload};

/// What the sending port is asked to do, and what the receiving port finds, in one word.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(in crate::memory_nic) struct Port(u64);

// What was found: two bits for each checksum, zero for "unknown".
const IPV4_GOOD: u64 = 1;
const L4_GOOD: u64 = 1 << 2;
/// From good to bad.
const BAD: u32 = 1;
/// There is an RSS hash.
const HASHED: u64 = 1 << 4;
/// A VLAN tag was taken off, and is where the hash would be.
const UNTAGGED: u64 = 1 << 5;
const FOUND: u64 = 0xff;

/// From what was found to what is asked: where something is asked that makes a checksum good, it has the same bit.
const ASKED: u32 = 8;
const ASKS_L4_CHECKSUM: u64 = 1 << 9;
const ASKS_CUT: u64 = 1 << 11;
const ASKS: u64 = 1 << 12;
const ASKS_TAG: u64 = 1 << 13;

const L2_LEN: u32 = 16;
const L4_LEN: u32 = 24;
const L3_LEN: u32 = 32;
// No header is as long as what fits.
const MAX_L2: u64 = 0xff;
const MAX_L4: u64 = 0xff;
const MAX_L3: u64 = 0xffff;
const CUT: u32 = 48;

impl Port {
    /// Asks for `offload`; what was found stays.
    #[inline(always)]
    pub(super) fn ask(&mut self, offload: &TxOffload) {
        let TxOffload { l2_len, l3_len, l4_len, ipv4_checksum, l4_checksum, tso, .. } = *offload;
        let flag = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
        let found = self.0 & FOUND;
        let asked = ASKS
            | flag(ipv4_checksum, IPV4_GOOD << ASKED)
            | flag(l4_checksum.is_some() || tso.is_some(), L4_GOOD << ASKED)
            | flag(l4_checksum.is_some(), ASKS_L4_CHECKSUM)
            | flag(tso.is_some(), ASKS_CUT);
        // The most that fits stands for all that is longer.
        let field = |len: usize, most: u64, at: u32| (len as u64).min(most) << at;
        let headers = field(l2_len, MAX_L2, L2_LEN) | field(l3_len, MAX_L3, L3_LEN) | field(l4_len, MAX_L4, L4_LEN);
        self.0 = found | asked | headers | u64::from(tso.unwrap_or(0)) << CUT;
    }

    /// Asks for a VLAN tag.
    pub(super) fn ask_tag(&mut self) {
        self.0 |= ASKS_TAG;
    }

    /// The Ethernet header is `n` bytes longer than what was asked for said.
    pub(super) fn lengthen(&mut self, n: usize) {
        if self.asks() {
            let l2_len = (self.0 >> L2_LEN & MAX_L2).saturating_add(n as u64).min(MAX_L2);
            self.0 = self.0 & !(MAX_L2 << L2_LEN) | l2_len << L2_LEN;
        }
    }

    /// What is asked for, as a number: equal for those who ask for the same.
    #[inline]
    pub(in crate::memory_nic) fn asked(self) -> u64 {
        self.0 >> ASKED
    }

    /// Whether anything is asked for.
    #[inline]
    pub(in crate::memory_nic) fn asks(self) -> bool {
        self.0 & ASKS != 0
    }

    /// Whether a checksum is asked for.
    pub(in crate::memory_nic) fn asks_checksum(self) -> bool {
        self.0 & (IPV4_GOOD << ASKED | ASKS_L4_CHECKSUM) != 0
    }

    /// The lengths of the Ethernet header, and of the IP and the transport header; `None` if no headers are that long.
    pub(in crate::memory_nic) fn headers(self) -> Option<(usize, usize)> {
        let field = |at: u32, most: u64| Some(self.0 >> at & most).filter(|len| *len < most).map(|len| len as usize);
        Some((field(L2_LEN, MAX_L2)?, field(L3_LEN, MAX_L3)? + field(L4_LEN, MAX_L4)?))
    }

    /// Into segments of how many bytes the payload is to be cut, if it is.
    pub(in crate::memory_nic) fn cut(self) -> Option<u16> {
        (self.0 & ASKS_CUT != 0).then_some((self.0 >> CUT) as u16)
    }

    /// The frame leaves: the receiver's port will find good what the sender's was asked for. Of other checksums it will
    /// say nothing, since nothing here reads a header.
    #[inline]
    pub(super) fn send(&mut self, is_hashed: bool) {
        let good = self.0 >> ASKED & (IPV4_GOOD | L4_GOOD);
        let rest = match (self.0 & ASKS_TAG != 0, is_hashed) {
            (true, _) => UNTAGGED,
            (false, true) => HASHED,
            (false, false) => 0,
        };
        self.0 = self.0 & !FOUND | good | rest;
    }

    /// A checksum that the port computed before the frame was damaged is found wrong by the port at the other end.
    pub(super) fn damage(&mut self) {
        let good = self.0 & (IPV4_GOOD | L4_GOOD);
        self.0 = self.0 & !good | good << BAD;
    }

    /// The frame arrives: what was asked of the sender's port is no more.
    #[inline]
    pub(super) fn receive(&mut self) {
        self.0 &= FOUND;
    }

    /// What was found; `word` is the RSS hash or the tag if there is one.
    #[inline(always)]
    pub(super) fn found(self, word: impl Fn() -> u32) -> RxInfo {
        let checksum = |good: u64| match self.0 & (good | good << BAD) {
            0 => RxChecksum::Unknown,
            found if found == good => RxChecksum::Good,
            _ => RxChecksum::Bad,
        };
        RxInfo {
            ipv4_checksum: checksum(IPV4_GOOD),
            l4_checksum: checksum(L4_GOOD),
            rss_hash: (self.0 & HASHED != 0).then(&word),
            vlan: (self.0 & UNTAGGED != 0).then(|| word() as u16),
        }
    }
}
