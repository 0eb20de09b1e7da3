//! Statistics of a device.

use crate::cm;
use linerate_rdma_provider::PacketCounts;

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
    /// Received packets that routers marked: congestion experienced.
    pub marked: u64,
    /// Notifications of congestion (CNP) received and sent.
    pub notifications_received: u64,
    /// See [`notifications_received`](Self::notifications_received).
    pub notifications_sent: u64,
    /// Messages of the connection manager that had no effect.
    pub cm: cm::Counters,
}

impl From<Counters> for PacketCounts {
    fn from(counters: Counters) -> Self {
        let dropped = vec![
            ("invalid header of RoCEv2", counters.malformed),
            ("wrong ICRC", counters.icrc_errors),
            ("no queue pair that expects the packet", counters.unexpected),
            ("packet after a gap in the sequence", counters.out_of_sequence),
            ("duplicate request", counters.duplicates),
            ("refused request", counters.refused),
            ("no receive buffer", counters.not_ready + counters.datagrams_lost),
            ("invalid message of the connection manager", counters.cm.malformed + counters.cm.unsupported),
            ("message of no connection, or a duplicate", counters.cm.ignored),
            ("connection request beyond a limit", counters.cm.over_limit),
            ("too many messages of the connection manager to send", counters.cm.unsent),
        ];
        let congestion = vec![
            ("marked packet received", counters.marked),
            ("notification received", counters.notifications_received),
            ("notification sent", counters.notifications_sent),
        ];
        PacketCounts { repeated: counters.repeated, dropped, congestion }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discarded_packets_have_a_cause() {
        let cm = cm::Counters { malformed: 16, unsupported: 32, over_limit: 64, ..cm::Counters::default() };
        let counters =
            Counters { icrc_errors: 1, not_ready: 2, datagrams_lost: 4, repeated: 8, cm, ..Counters::default() };
        let PacketCounts { repeated, dropped, .. } = counters.into();
        let dropped: Vec<_> = dropped.into_iter().filter(|(_, n)| *n > 0).collect();
        let expected = [
            ("wrong ICRC", 1),
            ("no receive buffer", 6),
            ("invalid message of the connection manager", 48),
            ("connection request beyond a limit", 64),
        ];
        assert_eq!((repeated, &dropped[..]), (8, &expected[..]));
    }
}
