//! Drop counters by cause.

use linerate_service::Summary;

macro_rules! causes {
    ($($(#[$doc:meta])* $cause:ident = $name:literal,)*) => {
        /// Reason for dropping a frame, segment or datagram.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum DropCause { $($(#[$doc])* $cause,)* }

        const NAMES: &[&str] = &[$($name),*];
    };
}

causes! {
    /// Frame shorter than its headers state.
    Truncated = "truncated frame",
    /// Frame for another station, or packet for an address that is not local.
    NotOurs = "not addressed to us",
    /// ARP or NDP message in which another station claims a local address (RFC 5227 §2.4, RFC 4862 §5.4.4).
    Claimed = "address of ours claimed by another station",
    /// Frame without the tag of the configured VLAN, with the tag of another VLAN, or with two tags (IEEE 802.1Q).
    Vlan = "frame of another VLAN",
    /// Invalid router advertisement (RFC 4861 §6.1.2).
    BadAdvertisement = "invalid router advertisement",
    /// Advertised router, on-link prefix or address beyond the number that is kept.
    Beyond = "router or prefix beyond those that are kept",
    /// EtherType other than IP and ARP.
    EtherType = "unknown EtherType",
    /// Source address that no packet on the link can have (RFC 1122 §3.2.1.3, RFC 6890, RFC 4291 §2.5, §2.7):
    /// multicast, broadcast, loopback, unspecified, reserved (0.0.0.0/8, 240.0.0.0/4), IPv4-mapped, or local.
    BadSource = "impossible source address",
    /// Wrong IPv4 header checksum.
    IpChecksum = "bad IPv4 checksum",
    /// Wrong TCP or UDP checksum.
    L4Checksum = "bad TCP or UDP checksum",
    /// IP fragment of any protocol (RFC 791 §3.2, RFC 8200 §4.5). The fast path does not reassemble.
    Fragment = "IP fragment",
    /// TCP after IPv6 extension headers (RFC 8200 §4), or a malformed header chain.
    ExtensionHeader = "TCP behind an extension header",
    /// Full mailbox of the owning worker.
    MailboxFull = "mailbox of the owning worker full",
    /// Segment to a listening port without SYN, RST or ACK (RFC 9293 §3.10.7.2), or with SYN and FIN.
    InvalidFlags = "segment to a listening port with invalid flags",
    /// SYN beyond the limit of half-open connections.
    HalfOpenFull = "too many half-open connections",
    /// SYN beyond the limit of connections.
    TooMany = "too many connections",
    /// SYN beyond the limit of half-open connections of its source.
    HalfOpenPerSource = "too many half-open connections of one source",
    /// SYN beyond the limit of connections of its source.
    TooManyPerSource = "too many connections of one source",
    /// Segment without the negotiated timestamp (RFC 7323 §3.2).
    NoTimestamp = "segment without the negotiated timestamp",
    /// SYN-ACK whose TSecr is not a TSval that was sent (RFC 7323 §3.2).
    BadEcho = "SYN-ACK that echoes a timestamp never sent",
    /// Unsolicited ARP or NDP message beyond the rate at which such messages create neighbour entries (RFC 6583 §6).
    UnsolicitedNeighbor = "unsolicited neighbour beyond the rate limit",
    /// Packet to an unknown neighbour while the neighbour table has no replaceable entry.
    NeighborTableFull = "neighbour table full",
    /// Packet without a route, or to a neighbour that does not reply.
    Unreachable = "no route or no neighbour",
    /// Datagram longer than the IPv6 MTU that routers advertise.
    TooLong = "datagram longer than the link's MTU",
    /// Reply without a free packet or transmit queue space.
    NoPacket = "no packet or queue space for a reply",
    /// Datagram for a service whose queue is full.
    DatagramQueue = "datagram queue full",
}

/// Counter for each [`DropCause`].
#[derive(Debug, Default, Clone)]
pub struct DropStats([u64; NAMES.len()]);

impl DropStats {
    /// Counts one drop.
    #[inline]
    pub fn count(&mut self, cause: DropCause) {
        self.0[cause as usize] += 1;
    }

    /// Returns the drops for `cause` so far.
    pub fn get(&self, cause: DropCause) -> u64 {
        self.0[cause as usize]
    }

    /// Adds all counters to a summary by name.
    pub fn summarize(&self, summary: &mut Summary) {
        for (name, n) in NAMES.iter().zip(self.0) {
            summary.drop_for(name, n);
        }
    }
}
