//! What was not delivered or not sent, by cause.

use linerate_bypass::Summary;

macro_rules! causes {
    ($($(#[$doc:meta])* $cause:ident = $name:literal,)*) => {
        /// Why a frame, segment or datagram was dropped.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum DropCause { $($(#[$doc])* $cause,)* }

        const NAMES: &[&str] = &[$($name),*];
    };
}

causes! {
    /// Shorter than its headers say.
    Truncated = "truncated frame",
    /// For another station, or for an address that is not ours.
    NotOurs = "not addressed to us",
    /// ARP or neighbour discovery by which another station says that it has an address of ours (RFC 5227 §2.4, RFC 4862 §5.4.4).
    Claimed = "address of ours claimed by another station",
    /// A frame without the tag of our VLAN, with that of another, or with two (IEEE 802.1Q).
    Vlan = "frame of another VLAN",
    /// A router advertisement that is not valid (RFC 4861 §6.1.2).
    BadAdvertisement = "invalid router advertisement",
    /// A router, a prefix on the link or an address that a router advertised beyond those that are kept.
    Beyond = "router or prefix beyond those that are kept",
    /// Neither IP nor ARP.
    EtherType = "unknown EtherType",
    /// A source that no packet on the link can have (RFC 1122 §3.2.1.3, RFC 6890, RFC 4291 §2.5, §2.7): multicast, broadcast,
    /// loopback, unspecified, reserved (0.0.0.0/8, 240.0.0.0/4), IPv4-mapped, or an address of ours.
    BadSource = "impossible source address",
    /// The IPv4 header's checksum is wrong.
    IpChecksum = "bad IPv4 checksum",
    /// The TCP or UDP checksum is wrong.
    L4Checksum = "bad TCP or UDP checksum",
    /// A fragment of an IP packet (RFC 791 §3.2, RFC 8200 §4.5), of whatever protocol: nothing is put together here.
    Fragment = "IP fragment",
    /// TCP behind IPv6 extension headers (RFC 8200 §4), or headers that cannot be followed to their end.
    ExtensionHeader = "TCP behind an extension header",
    /// The owner's mailbox was full.
    MailboxFull = "mailbox of the owning worker full",
    /// A segment to a listening port without SYN, RST or ACK (RFC 9293 §3.10.7.2), or with SYN and FIN.
    InvalidFlags = "segment to a listening port with invalid flags",
    /// A SYN beyond the limit of half-open connections.
    HalfOpenFull = "too many half-open connections",
    /// A SYN beyond the limit of connections.
    TooMany = "too many connections",
    /// A SYN beyond the limit of half-open connections of its source.
    HalfOpenPerSource = "too many half-open connections of one source",
    /// A SYN beyond the limit of connections of its source.
    TooManyPerSource = "too many connections of one source",
    /// A segment without the timestamp that was negotiated (RFC 7323 §3.2).
    NoTimestamp = "segment without the negotiated timestamp",
    /// A SYN-ACK whose TSecr is not a TSval that was sent (RFC 7323 §3.2).
    BadEcho = "SYN-ACK that echoes a timestamp never sent",
    /// An unsolicited message of ARP or neighbour discovery beyond the rate at which such messages create entries in the
    /// neighbour table (RFC 6583 §6).
    UnsolicitedNeighbor = "unsolicited neighbour beyond the rate limit",
    /// A packet to a neighbour that is not in the neighbour table, which has no entry left that can be replaced.
    NeighborTableFull = "neighbour table full",
    /// Nothing to send from: no route, or the neighbour did not answer.
    Unreachable = "no route or no neighbour",
    /// A datagram that is longer than what the link takes over IPv6, by what routers say.
    TooLong = "datagram longer than the link's MTU",
    /// A reply that found no packet or no place in the transmit queue.
    NoPacket = "no packet or queue space for a reply",
    /// A datagram for which the service's queue had no room.
    DatagramQueue = "datagram queue full",
}

/// A counter for each [`DropCause`].
#[derive(Debug, Default, Clone)]
pub struct DropStats([u64; NAMES.len()]);

impl DropStats {
    /// Counts one drop.
    #[inline]
    pub fn count(&mut self, cause: DropCause) {
        self.0[cause as usize] += 1;
    }

    /// Drops for `cause` so far.
    pub fn get(&self, cause: DropCause) -> u64 {
        self.0[cause as usize]
    }

    /// Adds all counters to a summary, by their names.
    pub fn summarize(&self, summary: &mut Summary) {
        for (name, n) in NAMES.iter().zip(self.0) {
            summary.drop_for(name, n);
        }
    }
}
