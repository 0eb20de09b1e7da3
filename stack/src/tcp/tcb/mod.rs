//! Transmission control block (RFC 9293 §3.3.1): the state that every segment needs, in two cache lines.

pub(crate) mod cold;
pub(crate) mod conn_buffers;
pub(crate) mod rr_state;
pub(crate) mod tx_backlog;

use crate::tcp::clock::tick::Tick;
use crate::tcp::recovery::RttEstimator;
use crate::wire::tcp::field;
use crate::wire::tcp::options::{TIMESTAMP_HEAD, TIMESTAMP_LEN};
use crate::wire::tcp::seq::Seq;
use crate::wire::tuple::Tuple;
use linerate_service::ConnId;
use std::ops::{BitAnd, BitOr, BitOrAssign};

/// Connection states of RFC 9293 §3.3.2. LISTEN has no control block. In TIME-WAIT a compact record answers segments,
/// and a control block exists only until the service has received all events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    Closed,
    SynSent,
    /// SYN received; the local SYN is not acknowledged.
    SynReceived,
    /// Data transfer.
    Established,
    /// FIN sent or queued, and not acknowledged.
    FinWait1,
    /// FIN acknowledged.
    FinWait2,
    /// FIN received.
    CloseWait,
    /// FINs exchanged; the local FIN is not acknowledged, and the peer's FIN arrived after it was sent.
    Closing,
    /// FINs exchanged; the local FIN is not acknowledged, and was sent after the peer's FIN arrived.
    LastAck,
    /// FINs exchanged and acknowledged.
    TimeWait,
}

impl State {
    /// Returns whether the connection is synchronized (RFC 9293 §3.5.2).
    #[inline]
    pub fn is_synchronized(self) -> bool {
        self >= State::Established
    }

    /// Returns whether local data may be queued and sent.
    #[inline]
    pub fn may_send(self) -> bool {
        matches!(self, State::Established | State::CloseWait)
    }

    /// Returns whether the peer may send data.
    #[inline]
    pub fn may_receive(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Returns whether the peer's FIN was processed.
    #[inline]
    pub fn peer_finished(self) -> bool {
        matches!(self, State::CloseWait | State::Closing | State::LastAck | State::TimeWait)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flags(u32);

impl Flags {
    /// The connection is in the active list and has events for its service.
    pub const NOTIFY: Flags = Flags(1);
    /// The connection is in the active list and has something to send.
    pub const TX_PENDING: Flags = Flags(1 << 1);
    /// The service was notified that the connection is open.
    pub const OPEN: Flags = Flags(1 << 2);
    /// The service was notified that the connection is closed.
    pub const CLOSE_REPORTED: Flags = Flags(1 << 3);
    /// The connection was opened by the local end.
    pub const ACTIVE_OPEN: Flags = Flags(1 << 4);
    /// The connection was established, and the service is not yet notified.
    pub const NEWLY_OPEN: Flags = Flags(1 << 5);
    /// Data arrived that was not reported to the service.
    pub const READABLE: Flags = Flags(1 << 6);
    /// An operation of the service failed for lack of send buffer space.
    pub const WANTS_ROOM: Flags = Flags(1 << 7);
    /// The service was notified of the peer's FIN.
    pub const FIN_REPORTED: Flags = Flags(1 << 8);
    /// An acknowledgement is due at the next flush.
    pub const ACK_NOW: Flags = Flags(1 << 9);
    /// The service closed its end: a FIN follows the queued data.
    pub const FIN_QUEUED: Flags = Flags(1 << 10);
    /// The FIN was sent; SND.NXT includes it.
    pub const FIN_SENT: Flags = Flags(1 << 11);
    /// Timestamps were negotiated (RFC 7323 §3).
    pub const TIMESTAMPS: Flags = Flags(1 << 12);
    /// SACK was negotiated (RFC 2018).
    pub const SACK: Flags = Flags(1 << 13);
    /// ECN was negotiated (RFC 3168 §6.1.1).
    pub const ECN: Flags = Flags(1 << 14);
    /// Segments carry ECE (RFC 3168 §6.1.3).
    pub const ECN_ECHO: Flags = Flags(1 << 15);
    /// The next new data carries CWR: the congestion window was reduced (RFC 3168 §6.1.2).
    pub const CWR: Flags = Flags(1 << 16);
    /// The last data segment carried the CE mark (RFC 8257 §3.2).
    pub const LAST_CE: Flags = Flags(1 << 17);
    /// A RST is due at the next flush.
    pub const RESET: Flags = Flags(1 << 18);
    /// A tail loss probe is due at the next flush.
    pub const TLP: Flags = Flags(1 << 19);
    /// The retransmission timer probes a zero window (RFC 9293 §3.8.6.1).
    pub const PERSIST: Flags = Flags(1 << 20);
    /// A zero-window probe is due at the next flush.
    pub const WINDOW_PROBE: Flags = Flags(1 << 21);
    /// The connection is in the list of connections whose window update waits for free packets.
    pub const WINDOW_HELD: Flags = Flags(1 << 22);
    /// The service has consumed data since the last window update.
    pub const CONSUMED: Flags = Flags(1 << 23);
    /// The flow table contains the tuple.
    pub const IN_TABLE: Flags = Flags(1 << 24);
    /// A keepalive probe is due at the next flush.
    pub const KEEPALIVE: Flags = Flags(1 << 25);
    /// A duplicate was received; the next acknowledgement reports the range in
    /// [`ConnBuffers::dsack`](conn_buffers::ConnBuffers) (RFC 2883).
    pub const DSACK: Flags = Flags(1 << 26);
    /// The slot is free.
    pub const VACANT: Flags = Flags(1 << 27);
    /// Segments that are not full are withheld (TCP_CORK).
    pub const CORKED: Flags = Flags(1 << 28);

    /// Flags of membership in lists of slots. They belong to the slot, not to the connection.
    pub const LISTED: Flags = Flags::NOTIFY.or(Flags::TX_PENDING).or(Flags::WINDOW_HELD);

    /// Returns the union. `const` form of `|`.
    pub const fn or(self, flags: Flags) -> Flags {
        Flags(self.0 | flags.0)
    }

    #[inline]
    pub fn has(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }

    #[inline]
    pub fn has_any(self, flags: Flags) -> bool {
        self.0 & flags.0 != 0
    }

    #[inline]
    pub fn clear(&mut self, flags: Flags) {
        self.0 &= !flags.0;
    }

    /// Clears `flags`. Returns whether any of them was set.
    #[inline]
    pub fn take(&mut self, flags: Flags) -> bool {
        let had = self.has_any(flags);
        self.clear(flags);
        had
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    #[inline]
    fn bitor_assign(&mut self, other: Flags) {
        self.0 |= other.0;
    }
}

impl BitAnd for Flags {
    type Output = Flags;

    fn bitand(self, other: Flags) -> Flags {
        Flags(self.0 & other.0)
    }
}

// Four bits are free.
const _: () = assert!(Flags::VACANT.0.leading_zeros() >= 4);

/// Value of [`Tcb::buffers`] for a connection without buffers.
pub(crate) const NO_BUFFERS: u32 = u32::MAX;

/// Frequently used state of a connection.
#[repr(C, align(64))]
#[derive(Debug, Clone)]
pub(crate) struct Tcb {
    /// Addresses and ports.
    pub tuple: Tuple,
    /// SND.UNA: oldest unacknowledged sequence number.
    pub una: Seq,
    /// SND.NXT: next sequence number to send.
    pub nxt: Seq,
    /// RCV.NXT: next sequence number expected.
    pub rcv_nxt: Seq,
    /// Right edge of the advertised window. Never moves left.
    pub rcv_edge: Seq,
    /// Last.ACK.sent (RFC 7323 §4.3).
    pub rcv_acked: Seq,
    /// TS.Recent (RFC 7323 §4.3).
    pub ts_recent: u32,

    /// Offset of the local timestamps from the timestamp clock.
    pub ts_offset: u32,
    pub snd_wnd: u32,
    /// SND.WL1: sequence number of the segment used for the last window update.
    pub wl1: Seq,
    /// Congestion window of the last call to congestion control.
    pub cwnd: u32,
    /// Round-trip time estimator.
    pub rtt: RttEstimator,
    /// Bytes queued and never sent.
    pub unsent: u32,
    /// Bytes received and not consumed by the service.
    pub received: u32,
    /// Index of the buffers, or [`NO_BUFFERS`].
    pub buffers: u32,
    /// Deadline of the retransmission timer, which also serves tail loss probes, zero-window probes and SYNs.
    pub retransmit_at: Tick,
    /// Deadline of a delayed acknowledgement.
    pub ack_at: Tick,
    /// Deadline of the timer wheel entry; not later than any other deadline.
    pub wheel_at: Tick,
    pub flags: Flags,
    /// Number of connections that used the slot before.
    pub generation: u32,
    /// Largest payload of one segment, with options deducted.
    pub mss: u16,
    pub state: State,
    /// Window scale shifts (RFC 7323 §2): the peer's in the low half, the local one in the high half.
    pub wscale: u8,
    /// Window field advertised while the receive queue is empty.
    pub full_window: u16,
    /// Data segments received since the last acknowledgement was sent.
    pub segs_unacked: u8,
    /// Transmissions of the SYN or of zero-window and keepalive probes since the last response.
    pub attempts: u8,
}

const _: () = assert!(size_of::<Tcb>() == 128);

impl Tcb {
    /// Creates the control block of a free slot.
    pub fn vacant(tuple: Tuple) -> Self {
        Tcb {
            tuple,
            una: Seq(0),
            nxt: Seq(0),
            rcv_nxt: Seq(0),
            rcv_edge: Seq(0),
            rcv_acked: Seq(0),
            ts_recent: 0,
            ts_offset: 0,
            snd_wnd: 0,
            wl1: Seq(0),
            cwnd: 0,
            rtt: RttEstimator::default(),
            unsent: 0,
            received: 0,
            buffers: NO_BUFFERS,
            retransmit_at: Tick::NONE,
            ack_at: Tick::NONE,
            wheel_at: Tick::NONE,
            flags: Flags::default(),
            generation: 0,
            mss: 536,
            state: State::Closed,
            wscale: 0,
            full_window: 0,
            segs_unacked: 0,
            attempts: 0,
        }
    }

    /// Returns whether the control block belongs to `conn`, and the connection was reported to its service.
    #[inline(always)]
    pub fn is_open_as(&self, conn: ConnId) -> bool {
        self.generation == conn.generation() && self.flags.has(Flags::OPEN)
    }

    /// Returns the shift of the peer's window field.
    #[inline]
    pub fn snd_scale(&self) -> u8 {
        self.wscale & 15
    }

    /// Returns the shift of the local window field.
    #[inline]
    pub fn rcv_scale(&self) -> u8 {
        self.wscale >> 4
    }

    /// Returns RCV.NXT, SND.UNA and SND.NXT, which change with each progress of the connection.
    #[inline]
    pub fn numbers(&self) -> [Seq; 3] {
        [self.rcv_nxt, self.una, self.nxt]
    }

    /// Returns the unacknowledged sequence numbers, including SYN and FIN.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.nxt - self.una
    }

    /// Returns whether all queued data was sent and acknowledged. A queued FIN does not count.
    #[inline]
    pub fn has_sent_all(&self) -> bool {
        self.unsent == 0 && self.una == self.nxt
    }

    /// Returns the unused bytes of the peer's window.
    #[inline]
    pub fn window_left(&self) -> u32 {
        let used = self.outstanding();
        self.snd_wnd.saturating_sub(used)
    }

    /// Returns the advertised window in bytes.
    #[inline]
    pub fn rcv_window(&self) -> u32 {
        self.rcv_edge - self.rcv_nxt
    }

    /// Sets the window for a receive queue of at most `limit` bytes.
    #[inline]
    pub fn set_full_window(&mut self, limit: u32) {
        self.full_window = (limit >> self.rcv_scale()).min(65_535) as u16;
    }

    /// Returns the window field of the next segment if the receive queue is empty, and moves the right edge to it.
    /// Returns `None`, without effect, under memory pressure or if the edge would move left.
    #[inline(always)]
    pub fn offer_full_window(&mut self, has_pressure: bool) -> Option<u16> {
        let window = u32::from(self.full_window) << self.rcv_scale();
        if has_pressure || self.rcv_window() > window {
            return None;
        }
        self.rcv_edge = self.rcv_nxt + window;
        Some(self.full_window)
    }

    /// Returns TSval if `options` consist of a timestamp only and the timestamp passes PAWS (RFC 7323 §5.3).
    #[inline(always)]
    pub fn paws_ok(&self, options: &[u8; TIMESTAMP_LEN]) -> Option<u32> {
        let value = field(options, 4);
        let is_alone = field(options, 0) == u32::from_be_bytes(TIMESTAMP_HEAD);
        (is_alone && value.wrapping_sub(self.ts_recent) as i32 >= 0).then_some(value)
    }

    /// Updates the state after a segment that acknowledges all received data was sent.
    #[inline]
    pub fn note_ack_sent(&mut self) {
        self.flags.clear(Flags::ACK_NOW | Flags::DSACK);
        self.rcv_acked = self.rcv_nxt;
        self.segs_unacked = 0;
        self.ack_at = Tick::NONE;
    }

    /// Sets `flags` among [`NOTIFY`](Flags::NOTIFY), [`TX_PENDING`](Flags::TX_PENDING) and others. Returns whether the
    /// caller has to add the slot to the active list.
    #[inline(always)]
    pub fn mark_active(&mut self, events: Flags) -> bool {
        let is_listed = self.flags.has_any(Flags::NOTIFY | Flags::TX_PENDING);
        self.flags |= events;
        !is_listed
    }

    #[inline]
    pub fn has_buffers(&self) -> bool {
        self.buffers != NO_BUFFERS
    }

    /// Returns the TCP header length of a segment without SACK.
    #[inline]
    pub fn header_len(&self) -> usize {
        if self.flags.has(Flags::TIMESTAMPS) { 32 } else { 20 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tcp::options::{Options, Timestamp, emit_timestamp};
    use proptest::prelude::*;

    proptest! {
        /// RFC 7323 §5.3 R1: a timestamp before TS.Recent is old.
        #[test]
        fn paws_check_agrees_with_options_parser(
            value: u32, echo: u32, ahead in prop_oneof![-2i32..=2, Just(i32::MIN), Just(i32::MAX), any::<i32>()],
            damage in prop::option::of((0usize..TIMESTAMP_LEN, any::<u8>())),
        ) {
            let mut bytes = [0; TIMESTAMP_LEN];
            emit_timestamp(&mut bytes, Timestamp { value, echo });
            if let Some((at, byte)) = damage {
                bytes[at] = byte;
            }
            let tcb = Tcb { ts_recent: value.wrapping_sub(ahead as u32), ..Tcb::vacant(Tuple::received_v4(0, 0, 0)) };
            let alone = |timestamp| Options { timestamp: Some(timestamp), ..Options::default() };
            let read = Options::parse(&bytes);
            let paws_ok = read.timestamp.filter(|read| read.value.wrapping_sub(tcb.ts_recent) as i32 >= 0);
            match tcb.paws_ok(&bytes) {
                Some(accepted) => {
                    prop_assert_eq!(paws_ok.map(|paws_ok| paws_ok.value), Some(accepted));
                    prop_assert_eq!(read, alone(paws_ok.unwrap()));
                }
                // The parser handles any other layout (RFC 7323 appendix A).
                None => prop_assert!(paws_ok.is_none() || damage.is_some_and(|(at, _)| at < 4)),
            }
        }
    }
}
