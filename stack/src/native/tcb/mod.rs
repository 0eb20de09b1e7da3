//! The control block of a connection (RFC 9293 §3.3.1): what every segment needs, in two cache lines.

pub(crate) mod cold;
pub(crate) mod conn_buffers;
mod tcp_info;

use crate::demux::demux_fast::field;
use crate::native::recovery::RttEstimator;
use crate::native::segment::options::{TIMESTAMP_HEAD, TIMESTAMP_LEN};
use crate::native::segment::seq::Seq;
use crate::native::timers::tick::Tick;
use crate::tcp::tuple::Tuple;
use std::ops::{BitAnd, BitOr, BitOrAssign};

/// The states of RFC 9293 §3.3.2. LISTEN has no control block; TIME-WAIT has one only while the service has not been told of
/// everything, beside the compact record that answers segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// No connection any more, or none yet.
    Closed,
    /// We have sent a SYN.
    SynSent,
    /// A SYN has come and ours is not acknowledged.
    SynReceived,
    /// Data flow.
    Established,
    /// We have finished sending, and our FIN is not acknowledged.
    FinWait1,
    /// We have finished sending, and the peer knows.
    FinWait2,
    /// The peer has finished sending.
    CloseWait,
    /// Both have finished, our FIN is not acknowledged, and the peer's came after ours.
    Closing,
    /// Both have finished, our FIN is not acknowledged, and the peer's came before ours.
    LastAck,
    /// Both have finished and know it.
    TimeWait,
}

impl State {
    /// Whether both ends have agreed on sequence numbers (RFC 9293 §3.5.2).
    #[inline]
    pub fn is_synchronized(self) -> bool {
        self >= State::Established
    }

    /// Whether data of ours may still be queued and sent.
    #[inline]
    pub fn may_send(self) -> bool {
        matches!(self, State::Established | State::CloseWait)
    }

    /// Whether the peer may still send data.
    #[inline]
    pub fn may_receive(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Whether the peer's FIN has been taken in.
    #[inline]
    pub fn peer_finished(self) -> bool {
        matches!(self, State::CloseWait | State::Closing | State::LastAck | State::TimeWait)
    }
}

/// What is true of a connection, a bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flags(u32);

impl Flags {
    /// In the engine's list of connections with news for the service.
    pub const NOTIFY: Flags = Flags(1);
    /// In the engine's list of connections with something to send.
    pub const TX_PENDING: Flags = Flags(1 << 1);
    /// The service knows the connection.
    pub const OPEN: Flags = Flags(1 << 2);
    /// The service has been told its end.
    pub const CLOSE_REPORTED: Flags = Flags(1 << 3);
    /// It was opened by us.
    pub const ACTIVE_OPEN: Flags = Flags(1 << 4);
    /// It has just been established, and the service is to be told.
    pub const NEWLY_OPEN: Flags = Flags(1 << 5);
    /// More has arrived than the service was told of.
    pub const READABLE: Flags = Flags(1 << 6);
    /// An operation found too little room.
    pub const WANTS_ROOM: Flags = Flags(1 << 7);
    /// The service has been told that the peer finished.
    pub const FIN_REPORTED: Flags = Flags(1 << 8);
    /// An acknowledgement is to be sent with the next flush.
    pub const ACK_NOW: Flags = Flags(1 << 9);
    /// The service has finished sending: a FIN follows what is queued.
    pub const FIN_QUEUED: Flags = Flags(1 << 10);
    /// The FIN has been sent, and SND.NXT counts it.
    pub const FIN_SENT: Flags = Flags(1 << 11);
    /// Timestamps were negotiated (RFC 7323 §3).
    pub const TIMESTAMPS: Flags = Flags(1 << 12);
    /// Selective acknowledgement was negotiated (RFC 2018).
    pub const SACK: Flags = Flags(1 << 13);
    /// Explicit congestion notification was negotiated (RFC 3168 §6.1.1).
    pub const ECN: Flags = Flags(1 << 14);
    /// Congestion was experienced and the peer is to be told (RFC 3168 §6.1.3).
    pub const ECN_ECHO: Flags = Flags(1 << 15);
    /// We have reduced our window, and the peer is to be told with the next data (RFC 3168 §6.1.2).
    pub const CWR: Flags = Flags(1 << 16);
    /// The last data segment was marked (RFC 8257 §3.2).
    pub const LAST_CE: Flags = Flags(1 << 17);
    /// A reset is to be sent with the next flush.
    pub const RESET: Flags = Flags(1 << 18);
    /// A tail loss probe is to be sent with the next flush.
    pub const TLP: Flags = Flags(1 << 19);
    /// The retransmission timer is probing a closed window (RFC 9293 §3.8.6.1).
    pub const PERSIST: Flags = Flags(1 << 20);
    /// One byte is to be sent into a closed window with the next flush.
    pub const WINDOW_PROBE: Flags = Flags(1 << 21);
    /// In the engine's list of connections whose window is held back while packets run low.
    pub const WINDOW_HELD: Flags = Flags(1 << 22);
    /// The service has consumed something since a window was offered.
    pub const CONSUMED: Flags = Flags(1 << 23);
    /// The peer reset it.
    pub const WAS_RESET: Flags = Flags(1 << 24);
    /// We aborted it.
    pub const WAS_ABORTED: Flags = Flags(1 << 25);
    /// The peer stopped answering.
    pub const TIMED_OUT: Flags = Flags(1 << 26);
    /// The tuple is in the table.
    pub const IN_TABLE: Flags = Flags(1 << 27);
    /// A keepalive probe is to be sent with the next flush.
    pub const KEEPALIVE: Flags = Flags(1 << 28);
    /// A duplicate was received, and the block in `ConnBuffers` says so in the next acknowledgement (RFC 2883).
    pub const DSACK: Flags = Flags(1 << 29);
    /// An ICMP error said that the peer cannot be reached.
    pub const UNREACHABLE: Flags = Flags(1 << 30);

    /// The address of ours that it was from is not ours any more. Both at once: it ends but once.
    pub const ADDRESS_LOST: Flags = Flags::TIMED_OUT.or(Flags::UNREACHABLE);

    /// The idle timeout has expired. Both at once, as above.
    pub const IDLE: Flags = Flags::TIMED_OUT.or(Flags::WAS_ABORTED);

    /// The slot is nobody's.
    pub const VACANT: Flags = Flags(1 << 31);

    /// What says that some list has the slot, whoever's it is.
    pub const LISTED: Flags = Flags::NOTIFY.or(Flags::TX_PENDING).or(Flags::WINDOW_HELD);

    /// These and those: `|` for constants.
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

    /// Clears `flags` and says whether any of them was set.
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

/// The place of a connection's buffers when it has none.
pub(crate) const NO_BUFFERS: u32 = u32::MAX;

/// The hot part of a connection's state.
#[repr(C, align(64))]
#[derive(Debug, Clone)]
pub(crate) struct Tcb {
    /// Whose it is.
    pub tuple: Tuple,
    /// SND.UNA: the oldest byte that is not acknowledged.
    pub una: Seq,
    /// SND.NXT: the next byte to send for the first time.
    pub nxt: Seq,
    /// RCV.NXT: the next byte expected.
    pub rcv_nxt: Seq,
    /// The right edge of the window that the peer has been offered. It never moves left.
    pub rcv_edge: Seq,
    /// Last.ACK.sent (RFC 7323 §4.3).
    pub rcv_acked: Seq,
    /// TS.Recent (RFC 7323 §4.3).
    pub ts_recent: u32,

    /// What our timestamps are ahead of the clock by.
    pub ts_offset: u32,
    /// SND.WND in bytes.
    pub snd_wnd: u32,
    /// SND.WL1: the sequence number of the segment that the window was last taken from.
    pub wl1: Seq,
    /// The congestion window, as congestion control last said.
    pub cwnd: u32,
    /// Round-trip time.
    pub rtt: RttEstimator,
    /// Bytes queued that have never been sent.
    pub unsent: u32,
    /// Bytes received that the service has not consumed.
    pub received: u32,
    /// The place of the buffers, or [`NO_BUFFERS`].
    pub buffers: u32,
    /// When the retransmission timer fires: loss detection, probes of the tail and of a closed window, the SYN.
    pub retransmit_at: Tick,
    /// When a delayed acknowledgement goes out.
    pub ack_at: Tick,
    /// When the wheel has this connection's entry come up; not after any deadline.
    pub wheel_at: Tick,
    /// What is true of it.
    pub flags: Flags,
    /// Which use of the slot this is.
    pub generation: u32,
    /// The most payload in one segment, options deducted.
    pub mss: u16,
    pub state: State,
    /// Bits that the windows are shifted by: the peer's in the low half, ours in the high one (RFC 7323 §2).
    pub wscale: u8,
    /// The window field that an empty receive queue is worth.
    pub full_window: u16,
    /// Segments with data that have come since the last acknowledgement was sent.
    pub segs_unacked: u8,
    /// Times that the SYN, or a probe of the closed window, has been sent since it was answered.
    pub attempts: u8,
}

const _: () = assert!(size_of::<Tcb>() == 128);

impl Tcb {
    /// Nobody's.
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

    /// Bits that the peer's window field is shifted by.
    #[inline]
    pub fn snd_scale(&self) -> u8 {
        self.wscale & 15
    }

    /// Bits that ours is shifted by.
    #[inline]
    pub fn rcv_scale(&self) -> u8 {
        self.wscale >> 4
    }

    /// Bytes sent and not acknowledged, SYN and FIN counted.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.nxt - self.una
    }

    /// Whether nothing waits to be sent or acknowledged, unless a FIN does.
    #[inline]
    pub fn has_sent_all(&self) -> bool {
        self.unsent == 0 && self.una == self.nxt
    }

    /// Bytes that the peer's window still has room for.
    #[inline]
    pub fn window_left(&self) -> u32 {
        let used = self.outstanding();
        self.snd_wnd.saturating_sub(used)
    }

    /// The window that the peer may use, in bytes.
    #[inline]
    pub fn rcv_window(&self) -> u32 {
        self.rcv_edge - self.rcv_nxt
    }

    /// The receive queue may hold `limit` bytes.
    #[inline]
    pub fn set_full_window(&mut self, limit: u32) {
        self.full_window = (limit >> self.rcv_scale()).min(65_535) as u16;
    }

    /// The window field of the next segment, the receive queue being empty, and the right edge moved to it; `None`, with
    /// nothing changed, if it is not as simple as that.
    #[inline(always)]
    pub fn offer_full_window(&mut self, has_pressure: bool) -> Option<u16> {
        let window = u32::from(self.full_window) << self.rcv_scale();
        if has_pressure || self.rcv_window() > window {
            return None;
        }
        self.rcv_edge = self.rcv_nxt + window;
        Some(self.full_window)
    }

    /// What the timestamp of a segment says of its sender's clock, if the timestamp is all that its `options` are and it is not
    /// old (PAWS, RFC 7323 §5.3).
    #[inline(always)]
    pub fn paws_ok(&self, options: &[u8; TIMESTAMP_LEN]) -> Option<u32> {
        let value = field(options, 4);
        let is_alone = field(options, 0) == u32::from_be_bytes(TIMESTAMP_HEAD);
        (is_alone && value.wrapping_sub(self.ts_recent) as i32 >= 0).then_some(value)
    }

    /// A segment that acknowledges everything has been sent.
    #[inline]
    pub fn note_ack_sent(&mut self) {
        self.flags.clear(Flags::ACK_NOW | Flags::DSACK);
        self.rcv_acked = self.rcv_nxt;
        self.segs_unacked = 0;
        self.ack_at = Tick::NONE;
    }

    /// Notes that the engine is to look at the connection in what `news` say. Returns whether it has to be put into the list of
    /// those that are looked at.
    #[inline(always)]
    pub fn mark_active(&mut self, news: Flags) -> bool {
        let is_listed = self.flags.has_any(Flags::NOTIFY | Flags::TX_PENDING);
        self.flags |= news;
        !is_listed
    }

    #[inline]
    pub fn has_buffers(&self) -> bool {
        self.buffers != NO_BUFFERS
    }

    /// The length of the TCP header of an ordinary segment.
    #[inline]
    pub fn header_len(&self) -> usize {
        if self.flags.has(Flags::TIMESTAMPS) { 32 } else { 20 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::segment::options::{Options, Timestamp, emit_timestamp};
    use proptest::prelude::*;

    proptest! {
        /// RFC 7323 §5.3 R1: a timestamp before TS.Recent is old.
        #[test]
        fn header_prediction_accepts_the_timestamp_that_the_parser_reads(
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
                // Any other layout is for the parser (RFC 7323 appendix A).
                None => prop_assert!(paws_ok.is_none() || damage.is_some_and(|(at, _)| at < 4)),
            }
        }
    }
}
