//! Reliable, ordered sessions over unreliable datagrams: one end, without a device.
//!
//! Each end numbers its messages, keeps them until they are acknowledged, and retransmits lost ones. Received messages
//! are delivered once and in order, so that no request is executed twice. The design follows Kalia, Kaminsky and
//! Andersen, "FaSST" (OSDI 2016) and "Datacenter RPCs can be General and Fast" (eRPC, NSDI 2019): single-packet
//! datagrams on UD queue pairs. Losses are detected by time-out, as in these papers, and by the acknowledgement of
//! later messages (RFC 9002 §6.1.1).

mod congestion;
mod header;
pub mod measuring;
#[cfg(test)]
mod tests;

pub(crate) use header::DatagramHeader;

use crate::verbs::Message;
use crate::wire::Malformed;
use congestion::Congestion;
use linerate_service::Bytes;
use linerate_service::inspect::TcpInfo;
use linerate_service::time::{Duration, Instant};
use std::collections::VecDeque;

/// Maximum unacknowledged messages of an end, and maximum out-of-order messages kept: the number that a header can
/// acknowledge.
pub(crate) const WINDOW: u32 = 32;
/// Later acknowledged messages after which a message counts as lost (RFC 9002 §6.1.1).
const THRESHOLD: usize = 3;
/// Minimum retransmission time-out: peers that share a core must be scheduled first.
const LEAST_WAIT: Duration = Duration::from_millis(1);
/// Retransmission time-out before the first round-trip measurement.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// Maximum retransmission time-out.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Maximum transmissions of a message. With the time-out doubling, they take several seconds.
const MOST_TIMES: u32 = 16;
/// Doublings of the time-out after which a new path is requested.
const PATH_AFTER: u32 = 3;
/// Maximum delay of an acknowledgement without data to send.
const ACK_WITHIN: Duration = Duration::from_micros(200);

/// Unacknowledged message.
struct Sent {
    message: Message,
    /// Time of the last transmission; `None` if another one is due.
    at: Option<Instant>,
    /// Number of transmissions.
    times: u32,
    /// Acknowledged out of order.
    has_come: bool,
}

impl Sent {
    fn is_in_flight(&self) -> bool {
        self.at.is_some() && !self.has_come
    }
}

pub(crate) struct Session {
    peer_number: u64,
    /// Maximum received messages that are not yet taken, including out-of-order ones.
    window: usize,
    /// Unacknowledged messages, in order, and the number of the first.
    sent: VecDeque<Sent>,
    first: u32,
    /// Number of messages that the peer can accept.
    their_room: usize,
    /// Limit of the messages in flight.
    congestion: Congestion,
    /// Messages received in order and not yet taken.
    ready: VecDeque<Bytes>,
    /// Number of the first missing message, and the messages received after it; entry 0 is the missing message.
    expected: u32,
    early: VecDeque<Option<Bytes>>,
    /// Time of the first unacknowledged message received.
    ack_since: Option<Instant>,
    /// Acknowledge at once: a message is missing or was received twice.
    ack_now: bool,
    /// Smoothed round-trip time and its variation (RFC 6298).
    round_trip: Option<(Duration, Duration)>,
    /// Number of doublings of the time-out.
    backoff: u32,
    /// Number of messages sent again.
    resent: u64,
    /// Number of requests for a new path since the last acknowledgement.
    paths_requested: u32,
}

impl Session {
    /// Creates a session that the peer numbers `peer_number`, with a receive window of `window` untaken messages.
    pub fn new(peer_number: u64, window: u16) -> Self {
        Session {
            peer_number,
            window: (WINDOW as usize).min(window.into()),
            sent: VecDeque::new(),
            first: 0,
            their_room: WINDOW as usize,
            congestion: Congestion::default(),
            ready: VecDeque::new(),
            expected: 0,
            early: VecDeque::new(),
            ack_since: None,
            ack_now: false,
            round_trip: None,
            backoff: 0,
            resent: 0,
            paths_requested: 0,
        }
    }

    /// Returns the number of messages that can be added.
    pub fn room(&self) -> usize {
        (WINDOW as usize).saturating_sub(self.sent.len())
    }

    /// Returns the details that a session with messages of up to `bytes` has in common with TCP.
    pub fn tcp_info(&self, bytes: usize) -> TcpInfo {
        let in_bytes = |messages: usize| Some((messages * bytes) as u64);
        TcpInfo {
            in_flight: in_bytes(self.in_flight()),
            congestion_window: in_bytes(self.congestion.window()),
            slow_start_threshold: in_bytes(self.congestion.threshold()),
            rtt: self.round_trip.map(|(rtt, _)| rtt),
            rtt_variation: self.round_trip.map(|(_, variation)| variation),
            rto: Some(self.wait()),
            time_outs: Some(self.backoff),
            retransmitted: Some(self.resent),
            ..TcpInfo::default()
        }
    }

    pub fn unacked(&self) -> usize {
        self.sent.len()
    }

    /// Returns true if a message was transmitted too often without an acknowledgement.
    pub fn is_given_up(&self) -> bool {
        self.sent.front().is_some_and(|sent| sent.times > MOST_TIMES)
    }

    /// Returns the number of messages sent again.
    pub fn resent(&self) -> u64 {
        self.resent
    }

    /// Returns true at every third doubling of the time-out: the peer may have moved to another port.
    pub fn requests_path(&mut self) -> bool {
        let due = self.backoff / PATH_AFTER;
        let is_due = due > self.paths_requested;
        self.paths_requested = due;
        is_due
    }

    /// Requests an immediate acknowledgement.
    pub fn acknowledge(&mut self) {
        self.ack_now = true;
    }

    /// Adds a message. The caller has checked [`room`](Self::room).
    pub fn push(&mut self, message: Message) {
        debug_assert!(self.room() > 0);
        self.sent.push_back(Sent { message, at: None, times: 0, has_come: false });
    }

    /// Returns the number of messages that were sent and are neither acknowledged nor lost.
    fn in_flight(&self) -> usize {
        self.sent.iter().filter(|sent| sent.is_in_flight()).count()
    }

    /// Returns the time of the next transmission, unless a datagram is received before.
    pub fn due(&self) -> Option<Instant> {
        let wait = self.wait();
        let mut waiting = self.sent.iter().take(self.their_room.max(1)).filter(|sent| sent.at.is_none());
        let resend = if self.in_flight() < self.congestion.window() && waiting.any(|sent| !sent.has_come) {
            Some(Instant::ZERO)
        } else {
            let in_flight = self.sent.iter().filter(|sent| sent.is_in_flight());
            in_flight.filter_map(|sent| sent.at).min().map(|at| at + wait)
        };
        let ack = if self.ack_now { Some(Instant::ZERO) } else { self.ack_since.map(|since| since + ACK_WITHIN) };
        [resend, ack].into_iter().flatten().min()
    }

    /// Passes the datagrams that are due at `now` to `send` until it returns false for lack of room. Accepted
    /// datagrams count as sent.
    pub fn send(&mut self, now: Instant, mut send: impl FnMut(&DatagramHeader, Option<&Message>) -> bool) {
        self.expire(now);
        let mut in_flight = self.in_flight();
        // Without room at the peer, the first message is still retransmitted as a window probe.
        for index in 0..self.sent.len().min(self.their_room.max(1)) {
            let header = self.header(self.first.wrapping_add(index as u32), true);
            let sent = &mut self.sent[index];
            if sent.has_come || sent.at.is_some() {
                continue;
            }
            if in_flight >= self.congestion.window() || !send(&header, Some(&sent.message)) {
                break;
            }
            in_flight += 1;
            self.resent += u64::from(sent.times > 0);
            (sent.at, sent.times) = (Some(now), sent.times.saturating_add(1));
            (self.ack_since, self.ack_now) = (None, false);
        }
        self.congestion.sent(in_flight);
        let is_due = self.ack_now || self.ack_since.is_some_and(|since| since + ACK_WITHIN <= now);
        if is_due && send(&self.header(self.first.wrapping_add(self.sent.len() as u32), false), None) {
            (self.ack_since, self.ack_now) = (None, false);
        }
    }

    /// Marks the messages with an expired time-out as lost.
    fn expire(&mut self, now: Instant) {
        let wait = self.wait();
        let mut is_late = false;
        for sent in self.sent.iter_mut().filter(|sent| sent.is_in_flight()) {
            if sent.at.is_some_and(|at| at + wait <= now) {
                (sent.at, is_late) = (None, true);
            }
        }
        if is_late {
            self.congestion.timed_out(self.backoff == 0);
            self.backoff += 1;
        }
    }

    /// Processes a datagram with its message, if any. [`take`](Self::take) then returns the messages that are in order.
    pub fn receive(&mut self, header: &DatagramHeader, message: Bytes, now: Instant) -> Result<(), Malformed> {
        self.acknowledged(header, now)?;
        if !header.has_message {
            return Ok(());
        }
        let ahead = header.number.wrapping_sub(self.expected);
        if ahead >= WINDOW {
            // Duplicate whose acknowledgement was lost, or an invalid number.
            let is_old = is_before(header.number, self.expected);
            self.ack_now |= is_old;
            return if is_old { Ok(()) } else { Err(Malformed) };
        }
        self.ack_since.get_or_insert(now);
        let index = ahead as usize;
        if index >= self.room_for_more() {
            self.ack_now = true;
            return Ok(());
        }
        if self.early.len() <= index {
            self.early.resize(index + 1, None);
        }
        // A gap exists, or was just filled (RFC 5681 §4.2).
        self.ack_now |= self.early.len() > 1;
        self.early[index].get_or_insert(message);
        while let Some(message) = self.early.front_mut().and_then(Option::take) {
            self.early.pop_front();
            self.expected = self.expected.wrapping_add(1);
            self.ready.push_back(message);
        }
        Ok(())
    }

    /// Returns the next message in order.
    pub fn take(&mut self) -> Option<Bytes> {
        let message = self.ready.pop_front()?;
        // A peer that was refused room must be notified of new room.
        self.ack_now |= self.room_for_more() == 1;
        Some(message)
    }

    /// Returns the number of messages from `expected` on that can be accepted.
    fn room_for_more(&self) -> usize {
        self.window.saturating_sub(self.ready.len())
    }

    fn acknowledged(&mut self, header: &DatagramHeader, now: Instant) -> Result<(), Malformed> {
        let count = header.expected.wrapping_sub(self.first) as usize;
        if count > self.sent.len() {
            // A delayed datagram acknowledges less than is already known.
            let is_old = is_before(header.expected, self.first);
            return if is_old { Ok(()) } else { Err(Malformed) };
        }
        let mut acked = 0;
        let mut acknowledge = |sent: &Sent| {
            acked += usize::from(!sent.has_come);
            // A retransmitted message gives no round-trip sample (Karn's algorithm, RFC 6298 §3).
            if let (Some(at), 1, false) = (sent.at, sent.times, sent.has_come) {
                measure(&mut self.round_trip, now.since(at));
            }
            self.backoff = 0;
        };
        self.sent.drain(..count).for_each(|sent| acknowledge(&sent));
        self.first = header.expected;
        self.their_room = header.room.into();
        for (index, sent) in self.sent.iter_mut().enumerate().skip(1) {
            // Only transmitted messages can be acknowledged.
            if sent.times > 0 && index <= 32 && header.early >> (index - 1) & 1 == 1 {
                acknowledge(sent);
                sent.has_come = true;
            }
        }
        self.congestion.acknowledged(acked);
        self.congestion.advanced(self.first);
        // With few messages in flight, the threshold is lower (RFC 5827).
        let unacked = self.sent.iter().filter(|sent| sent.times > 0).count();
        let threshold = THRESHOLD.min(unacked.saturating_sub(1)).max(1);
        let next = self.first.wrapping_add(unacked as u32);
        let mut later = 0;
        for sent in self.sent.iter_mut().rev() {
            if sent.has_come {
                later += 1;
            } else if later >= threshold && sent.times == 1 && sent.at.is_some() {
                sent.at = None;
                self.congestion.lost(next);
            }
        }
        Ok(())
    }

    fn header(&self, number: u32, has_message: bool) -> DatagramHeader {
        let bits = self.early.iter().skip(1).take(32).enumerate();
        let early = bits.fold(0, |bits, (index, message)| bits | u32::from(message.is_some()) << index);
        let room = self.room_for_more() as u8;
        DatagramHeader { session: self.peer_number, number, has_message, expected: self.expected, room, early }
    }

    /// Returns the retransmission time-out (RFC 6298 §2).
    fn wait(&self) -> Duration {
        let wait = self.round_trip.map_or(FIRST_WAIT, |(smoothed, variation)| smoothed + 4 * variation + ACK_WITHIN);
        (wait.clamp(LEAST_WAIT, LONGEST_WAIT) * (1 << self.backoff.min(16))).min(LONGEST_WAIT)
    }
}

/// Returns true if `number` precedes `other`, modulo 2³².
fn is_before(number: u32, other: u32) -> bool {
    (1..1 << 31).contains(&other.wrapping_sub(number))
}

/// Adds a round-trip sample (RFC 6298 §2.2 and §2.3).
fn measure(round_trip: &mut Option<(Duration, Duration)>, took: Duration) {
    let (smoothed, variation) = round_trip.get_or_insert((took, took / 2));
    *variation = (*variation * 3 + smoothed.abs_diff(took)) / 4;
    *smoothed = (*smoothed * 7 + took) / 8;
}
