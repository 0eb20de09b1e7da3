//! Offload requests and receive metadata of a frame.

use crate::{RxChecksum, RxInfo, TxOffload};

/// Requests to the sending port and findings of the receiving port, in one word.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(in crate::memory_nic) struct Port(u64);

// Findings: two bits per checksum, zero for "unknown".
const IPV4_GOOD: u64 = 1;
const L4_GOOD: u64 = 1 << 2;
/// Distance from good to bad.
const BAD: u32 = 1;
/// An RSS hash is present.
const HASHED: u64 = 1 << 4;
/// A VLAN tag has been stripped, and replaces the hash.
const VLAN_STRIPPED: u64 = 1 << 5;
const FOUND: u64 = 0xff;

/// Distance from a finding to a request: a request that makes a checksum good has the bit of "good".
const REQUEST_SHIFT: u32 = 8;
const REQUEST_L4_CHECKSUM: u64 = 1 << 9;
const REQUEST_TSO: u64 = 1 << 11;
const REQUESTS: u64 = 1 << 12;
const REQUEST_VLAN: u64 = 1 << 13;

const L2_LEN: u32 = 16;
const L4_LEN: u32 = 24;
const L3_LEN: u32 = 32;
// No header exceeds the range of the length fields.
const MAX_L2: u64 = 0xff;
const MAX_L4: u64 = 0xff;
const MAX_L3: u64 = 0xffff;
const TSO_SHIFT: u32 = 48;

impl Port {
    /// Sets the request `offload`. Findings are kept.
    #[inline(always)]
    pub(super) fn request_offload(&mut self, offload: &TxOffload) {
        let TxOffload { l2_len, l3_len, l4_len, ipv4_checksum, l4_checksum, tso, .. } = *offload;
        let flag = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
        let found = self.0 & FOUND;
        let requests = REQUESTS
            | flag(ipv4_checksum, IPV4_GOOD << REQUEST_SHIFT)
            | flag(l4_checksum.is_some() || tso.is_some(), L4_GOOD << REQUEST_SHIFT)
            | flag(l4_checksum.is_some(), REQUEST_L4_CHECKSUM)
            | flag(tso.is_some(), REQUEST_TSO);
        // A longer length is stored as the maximum.
        let field = |len: usize, most: u64, at: u32| (len as u64).min(most) << at;
        let headers = field(l2_len, MAX_L2, L2_LEN) | field(l3_len, MAX_L3, L3_LEN) | field(l4_len, MAX_L4, L4_LEN);
        self.0 = found | requests | headers | u64::from(tso.unwrap_or(0)) << TSO_SHIFT;
    }

    /// Requests insertion of a VLAN tag.
    pub(super) fn request_vlan(&mut self) {
        self.0 |= REQUEST_VLAN;
    }

    /// Adds `n` bytes to the length of the Ethernet header.
    pub(super) fn lengthen(&mut self, n: usize) {
        if self.has_request() {
            let l2_len = (self.0 >> L2_LEN & MAX_L2).saturating_add(n as u64).min(MAX_L2);
            self.0 = self.0 & !(MAX_L2 << L2_LEN) | l2_len << L2_LEN;
        }
    }

    /// Returns the requests as a number, equal for equal requests.
    #[inline]
    pub(in crate::memory_nic) fn requests(self) -> u64 {
        self.0 >> REQUEST_SHIFT
    }

    #[inline]
    pub(in crate::memory_nic) fn has_request(self) -> bool {
        self.0 & REQUESTS != 0
    }

    pub(in crate::memory_nic) fn requests_checksum(self) -> bool {
        self.0 & (IPV4_GOOD << REQUEST_SHIFT | REQUEST_L4_CHECKSUM) != 0
    }

    /// Returns the length of the Ethernet header, and of the IP and transport headers. Returns `None` for maximum
    /// lengths.
    pub(in crate::memory_nic) fn headers(self) -> Option<(usize, usize)> {
        let field = |at: u32, most: u64| Some(self.0 >> at & most).filter(|len| *len < most).map(|len| len as usize);
        Some((field(L2_LEN, MAX_L2)?, field(L3_LEN, MAX_L3)? + field(L4_LEN, MAX_L4)?))
    }

    /// Returns the requested payload per segment.
    pub(in crate::memory_nic) fn segment_payload(self) -> Option<u16> {
        (self.0 & REQUEST_TSO != 0).then_some((self.0 >> TSO_SHIFT) as u16)
    }

    /// Updates the word on sending: the receiver's port will find requested checksums good. Others are unknown, because
    /// no header is parsed here.
    #[inline]
    pub(super) fn send(&mut self, is_hashed: bool) {
        let good = self.0 >> REQUEST_SHIFT & (IPV4_GOOD | L4_GOOD);
        let rest = match (self.0 & REQUEST_VLAN != 0, is_hashed) {
            (true, _) => VLAN_STRIPPED,
            (false, true) => HASHED,
            (false, false) => 0,
        };
        self.0 = self.0 & !FOUND | good | rest;
    }

    /// Updates the word after damage: checksums computed by the sending port are then bad at the receiver.
    pub(super) fn damage(&mut self) {
        let good = self.0 & (IPV4_GOOD | L4_GOOD);
        self.0 = self.0 & !good | good << BAD;
    }

    /// Clears the requests on arrival.
    #[inline]
    pub(super) fn receive(&mut self) {
        self.0 &= FOUND;
    }

    /// Returns the findings. `word` is the RSS hash or the tag, if there is one.
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
            vlan: (self.0 & VLAN_STRIPPED != 0).then(|| word() as u16),
        }
    }
}
