//! Statistics of a device.

/// Numbers of packets and events since the device was opened.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// Received packets with valid headers and ICRC.
    pub received: u64,
    /// Sent packets.
    pub sent: u64,
    /// Discarded packets with an invalid header or length.
    pub malformed: u64,
    /// Discarded packets with a wrong ICRC.
    pub icrc_errors: u64,
    /// Discarded packets for no queue pair, or for one in another state, from another address, or with another Q_Key.
    pub unexpected: u64,
    /// Received requests after a gap in the sequence.
    pub out_of_sequence: u64,
    /// Received requests that repeat earlier ones.
    pub duplicates: u64,
    /// Received requests that were refused: invalid, without access, or failed.
    pub refused: u64,
    /// Messages that found no receive buffer.
    pub not_ready: u64,
    /// Packets sent again because they may be lost.
    pub repeated: u64,
    /// Packets sent again to request an acknowledgement.
    pub probes: u64,
    /// Requests without an acknowledgement in time.
    pub timeouts: u64,
    /// Datagrams that found no receive buffer.
    pub datagrams_lost: u64,
}
