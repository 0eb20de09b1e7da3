//! Reliability over datagrams, which may be lost: one end of a session, without a device.
//!
//! Each end numbers its messages, keeps them until the other has them, and sends them again when they may be lost. What comes is
//! delivered once, in its order: the numbers that have come are the table by which nothing is executed twice, however often a peer
//! asks because it had no answer. Datagrams are as small as Kalia, Kaminsky and Andersen's in "FaSST" (OSDI 2016) and in "Datacenter
//! RPCs can be General and Fast" (NSDI 2019, eRPC), on the same kind of queue pair; what is sent again is found by time-outs, as
//! there, and by what came after it (RFC 9002, 6.1.1).

mod header;
#[cfg(test)]
mod tests;

pub(crate) use header::DatagramHeader;

use crate::connection::wire::Malformed;
use crate::verbs::Message;
use linerate_bypass::Bytes;
use linerate_bypass::time::{Duration, Instant};
use std::collections::VecDeque;

/// Messages of one end that the other may not have: so many are kept of what came out of order, too.
pub(crate) const WINDOW: u32 = 32;
/// Messages behind one that have come, until that one counts as lost (RFC 9002, 6.1.1).
const THRESHOLD: usize = 3;
/// The shortest time until a message counts as lost: peers that share a core have to come to their turn.
const LEAST_WAIT: Duration = Duration::from_millis(1);
/// What it is before a round trip has been measured.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// The longest.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// How often a message is sent at most: as the wait is doubled up to its longest, that takes some seconds.
const MOST_TIMES: u32 = 16;
/// How long what has come may go without being acknowledged where there is nothing to send.
const ACK_WITHIN: Duration = Duration::from_micros(200);

/// A message that the peer may not have.
struct Sent {
    message: Message,
    /// When it was last sent; `None` if it has to be.
    at: Option<Instant>,
    /// How often it was sent.
    times: u32,
    /// The peer has it, and lacks one before.
    has_come: bool,
}

/// See the file's head.
pub(crate) struct Session {
    /// What the peer calls it.
    theirs: u64,
    /// Messages that have come and are not taken, or come too early, at most.
    mw: usize,
    /// What the peer may not have, in order, and the number of the first.
    sent: VecDeque<Sent>,
    first: u32,
    /// For how many of them it has room.
    their_room: usize,
    /// What has come in order, and nobody has taken.
    ready: VecDeque<Bytes>,
    /// The number of the first message that has not come, and those behind it that have; the first place is its own.
    expected: u32,
    early: VecDeque<Option<Bytes>>,
    /// When something came that has not been acknowledged.
    ack_since: Option<Instant>,
    /// An acknowledgement is to be sent at once: something is missing, or came twice.
    ack_now: bool,
    /// The round trip, smoothed, and its variation (RFC 6298).
    round_trip: Option<(Duration, Duration)>,
    /// How often the wait has been doubled.
    backoff: u32,
}

impl Session {
    /// One that the peer calls `theirs`, and may send so many messages to that have not been taken.
    pub fn new(theirs: u64, mw: u16) -> Self {
        Session {
            theirs,
            mw: (WINDOW as usize).min(mw.into()),
            sent: VecDeque::new(),
            first: 0,
            their_room: WINDOW as usize,
            ready: VecDeque::new(),
            expected: 0,
            early: VecDeque::new(),
            ack_since: None,
            ack_now: false,
            round_trip: None,
            backoff: 0,
        }
    }

    /// Messages that may be added.
    pub fn room(&self) -> usize {
        (WINDOW as usize).saturating_sub(self.sent.len())
    }

    /// Messages that the peer may not have.
    pub fn unacked(&self) -> usize {
        self.sent.len()
    }

    /// Whether so much has been sent so often in vain that the peer is gone.
    pub fn is_given_up(&self) -> bool {
        self.sent.front().is_some_and(|sent| sent.times > MOST_TIMES)
    }

    /// What has come is to be acknowledged at once.
    pub fn acknowledge(&mut self) {
        self.ack_now = true;
    }

    /// Adds a message, for which there is room.
    pub fn push(&mut self, message: Message) {
        debug_assert!(self.room() > 0);
        self.sent.push_back(Sent { message, at: None, times: 0, has_come: false });
    }

    /// When something is to be sent, if nothing comes before.
    pub fn due(&self) -> Option<Instant> {
        let wait = self.wait();
        let sent = self.sent.iter().take(self.their_room.max(1)).filter(|sent| !sent.has_come);
        let resend = sent.map(|sent| sent.at.map_or(Instant::ZERO, |at| at + wait)).min();
        let ack = if self.ack_now { Some(Instant::ZERO) } else { self.ack_since.map(|since| since + ACK_WITHIN) };
        [resend, ack].into_iter().flatten().min()
    }

    /// Gives `send` what is to be sent at `now`, in datagrams, until it returns false: there is no room for it. What it takes counts
    /// as sent.
    pub fn send(&mut self, now: Instant, mut send: impl FnMut(&DatagramHeader, Option<&Message>) -> bool) {
        let wait = self.wait();
        let mut is_late = false;
        // Without room, the first asks whether there is some again.
        for place in 0..self.sent.len().min(self.their_room.max(1)) {
            let header = self.header(self.first.wrapping_add(place as u32), true);
            let sent = &mut self.sent[place];
            let is_due = !sent.has_come && sent.at.is_none_or(|at| at + wait <= now);
            if !is_due {
                continue;
            }
            if !send(&header, Some(&sent.message)) {
                break;
            }
            is_late |= sent.at.is_some();
            (sent.at, sent.times) = (Some(now), sent.times.saturating_add(1));
            (self.ack_since, self.ack_now) = (None, false);
        }
        if is_late {
            self.backoff += 1;
        }
        let is_due = self.ack_now || self.ack_since.is_some_and(|since| since + ACK_WITHIN <= now);
        if is_due && send(&self.header(self.first.wrapping_add(self.sent.len() as u32), false), None) {
            (self.ack_since, self.ack_now) = (None, false);
        }
    }

    /// A datagram has come, with `message` behind its header if it has one. What can be [taken](Self::take) then is in order.
    pub fn receive(&mut self, header: &DatagramHeader, message: Bytes, now: Instant) -> Result<(), Malformed> {
        self.acknowledged(header, now)?;
        if !header.has_message {
            return Ok(());
        }
        let ahead = header.number.wrapping_sub(self.expected);
        if ahead >= WINDOW {
            // It came before, and its acknowledgement was lost; or it makes no sense.
            let is_old = is_before(header.number, self.expected);
            self.ack_now |= is_old;
            return if is_old { Ok(()) } else { Err(Malformed) };
        }
        self.ack_since.get_or_insert(now);
        let place = ahead as usize;
        if place >= self.room_for_more() {
            self.ack_now = true;
            return Ok(());
        }
        if self.early.len() <= place {
            self.early.resize(place + 1, None);
        }
        // Something is missing, or was until now (RFC 5681, 4.2).
        self.ack_now |= self.early.len() > 1;
        self.early[place].get_or_insert(message);
        while let Some(message) = self.early.front_mut().and_then(Option::take) {
            self.early.pop_front();
            self.expected = self.expected.wrapping_add(1);
            self.ready.push_back(message);
        }
        Ok(())
    }

    /// The next message of the peer's, if it has come.
    pub fn take(&mut self) -> Option<Bytes> {
        let message = self.ready.pop_front()?;
        // Who was told that there is no room has to hear that there is some.
        self.ack_now |= self.room_for_more() == 1;
        Some(message)
    }

    /// Messages from the expected one on that there is room for.
    fn room_for_more(&self) -> usize {
        self.mw.saturating_sub(self.ready.len())
    }

    fn acknowledged(&mut self, header: &DatagramHeader, now: Instant) -> Result<(), Malformed> {
        let count = header.expected.wrapping_sub(self.first) as usize;
        if count > self.sent.len() {
            // An old datagram that was overtaken tells of fewer than are known.
            let is_old = is_before(header.expected, self.first);
            return if is_old { Ok(()) } else { Err(Malformed) };
        }
        let mut heard = |sent: &Sent| {
            // What was sent more than once does not tell which of them was heard (Karn's algorithm, RFC 6298, 3).
            if let (Some(at), 1, false) = (sent.at, sent.times, sent.has_come) {
                measure(&mut self.round_trip, now.since(at));
            }
            self.backoff = 0;
        };
        self.sent.drain(..count).for_each(|sent| heard(&sent));
        self.first = header.expected;
        self.their_room = header.room.into();
        for (place, sent) in self.sent.iter_mut().enumerate().skip(1) {
            // Only what was sent can have come.
            if sent.at.is_some() && place <= 32 && header.early >> (place - 1) & 1 == 1 {
                heard(sent);
                sent.has_come = true;
            }
        }
        // Few may never have so many behind them (RFC 5827).
        let unacked = self.sent.iter().filter(|sent| sent.times > 0).count();
        let threshold = THRESHOLD.min(unacked.saturating_sub(1)).max(1);
        let mut behind = 0;
        for sent in self.sent.iter_mut().rev() {
            if sent.has_come {
                behind += 1;
            } else if behind >= threshold && sent.times == 1 {
                sent.at = None;
            }
        }
        Ok(())
    }

    fn header(&self, number: u32, has_message: bool) -> DatagramHeader {
        let bits = self.early.iter().skip(1).take(32).enumerate();
        let early = bits.fold(0, |bits, (place, message)| bits | u32::from(message.is_some()) << place);
        let room = self.room_for_more() as u8;
        DatagramHeader { session: self.theirs, number, has_message, expected: self.expected, room, early }
    }

    /// How long an acknowledgement may take (RFC 6298, 2).
    fn wait(&self) -> Duration {
        let wait = self.round_trip.map_or(FIRST_WAIT, |(smoothed, variation)| smoothed + 4 * variation + ACK_WITHIN);
        (wait.clamp(LEAST_WAIT, LONGEST_WAIT) * (1 << self.backoff.min(16))).min(LONGEST_WAIT)
    }
}

/// Whether `number` is before `other`, as numbers go that begin again after the last.
fn is_before(number: u32, other: u32) -> bool {
    (1..1 << 31).contains(&other.wrapping_sub(number))
}

/// A round trip took so long (RFC 6298, 2.2 and 2.3).
fn measure(round_trip: &mut Option<(Duration, Duration)>, took: Duration) {
    let (smoothed, variation) = round_trip.get_or_insert((took, took / 2));
    *variation = (*variation * 3 + smoothed.abs_diff(took)) / 4;
    *smoothed = (*smoothed * 7 + took) / 8;
}
