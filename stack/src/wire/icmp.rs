//! ICMP errors.

/// Error that an ICMP message reports for a sent segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IcmpError {
    /// The destination is unreachable.
    Unreachable,
    /// The packet exceeds the path MTU, which is `mtu` bytes (RFC 1191 §4, RFC 8201 §4).
    TooBig {
        /// MTU as in the message, not validated.
        mtu: u16,
    },
}
