//! Reliability over datagrams, which may be lost: one end of a session, without a device.
//!
//! Each end numbers its messages, keeps them until the other has them, and sends them again when they may be lost. What comes is
//! delivered once, in its order: the numbers that have come are the table by which nothing is executed twice, however often a peer
//! asks because it had no answer. Datagrams are as small as Kalia, Kaminsky and Andersen's in "FaSST" (OSDI 2016) and in "Datacenter
//! RPCs can be General and Fast" (NSDI 2019, eRPC), on the same kind of queue pair; what is sent again is found by time-outs, as
//! there, and by what came after it (RFC 9002, 6.1.1).

use crate::verbs::Message;
use crate::wire::Senseless;
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
/// How long what has come may go without being acknowledged where there is nothing to send.
const ACK_WITHIN: Duration = Duration::from_micros(200);

/// What each datagram begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DatagramHeader {
    /// What the receiver calls the session.
    pub session: u64,
    /// The number of its message; of the next, if it has none.
    pub number: u32,
    /// Whether there is one.
    pub has_message: bool,
    /// The number of the first message that has not come to the sender.
    pub expected: u32,
    /// For how many messages from that one on the sender has room.
    pub room: u8,
    /// Those behind it that have: bit 0 is the one after it.
    pub early: u32,
}

impl DatagramHeader {
    /// Bytes of it.
    pub const LEN: usize = 24;
    /// The first bytes: whose it is, and which version.
    const MAGIC: [u8; 2] = *b"l\x01";

    pub fn write(&self, place: &mut [u8; Self::LEN]) {
        place[..2].copy_from_slice(&Self::MAGIC);
        place[2..4].copy_from_slice(&[self.has_message.into(), self.room]);
        place[4..12].copy_from_slice(&self.session.to_be_bytes());
        place[12..16].copy_from_slice(&self.number.to_be_bytes());
        place[16..20].copy_from_slice(&self.expected.to_be_bytes());
        place[20..].copy_from_slice(&self.early.to_be_bytes());
    }

    pub fn read(datagram: &[u8]) -> Result<Self, Senseless> {
        let (head, rest) = datagram.split_first_chunk::<{ Self::LEN }>().ok_or(Senseless)?;
        let (magic, head) = head.split_at(2);
        let (&[has_message @ (0 | 1), room], head) = head.split_first_chunk().ok_or(Senseless)? else {
            return Err(Senseless);
        };
        let (session, head) = head.split_first_chunk().ok_or(Senseless)?;
        let (number, head) = head.split_first_chunk().ok_or(Senseless)?;
        let (expected, early) = head.split_first_chunk().ok_or(Senseless)?;
        let header = DatagramHeader {
            session: u64::from_be_bytes(*session),
            number: u32::from_be_bytes(*number),
            has_message: has_message == 1,
            expected: u32::from_be_bytes(*expected),
            room,
            early: u32::from_be_bytes(*early.first_chunk().ok_or(Senseless)?),
        };
        let is_sensible = magic == Self::MAGIC && header.has_message != rest.is_empty();
        is_sensible.then_some(header).ok_or(Senseless)
    }
}

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
    /// One that the peer calls `theirs`.
    pub fn new(theirs: u64) -> Self {
        Session {
            theirs,
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
    pub fn under_way(&self) -> usize {
        self.sent.len()
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
    pub fn receive(&mut self, header: &DatagramHeader, message: Bytes, now: Instant) -> Result<(), Senseless> {
        self.acknowledged(header, now)?;
        if !header.has_message {
            return Ok(());
        }
        let ahead = header.number.wrapping_sub(self.expected);
        if ahead >= WINDOW {
            // It came before, and its acknowledgement was lost; or it makes no sense.
            let is_old = is_before(header.number, self.expected);
            self.ack_now |= is_old;
            return if is_old { Ok(()) } else { Err(Senseless) };
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
        (WINDOW as usize).saturating_sub(self.ready.len())
    }

    fn acknowledged(&mut self, header: &DatagramHeader, now: Instant) -> Result<(), Senseless> {
        let count = header.expected.wrapping_sub(self.first) as usize;
        if count > self.sent.len() {
            // An old datagram that was overtaken tells of fewer than are known.
            let is_old = is_before(header.expected, self.first);
            return if is_old { Ok(()) } else { Err(Senseless) };
        }
        for sent in self.sent.drain(..count) {
            // What was sent more than once does not tell which of them was heard (Karn's algorithm, RFC 6298, 3).
            if let (Some(at), 1) = (sent.at, sent.times) {
                measure(&mut self.round_trip, now.since(at));
            }
        }
        if count > 0 {
            self.backoff = 0;
        }
        self.first = header.expected;
        self.their_room = header.room.into();
        let mut behind = 0;
        for (place, sent) in self.sent.iter_mut().enumerate().skip(1) {
            // Only what was sent can have come.
            sent.has_come |= sent.at.is_some() && place <= 32 && header.early >> (place - 1) & 1 == 1;
        }
        for sent in self.sent.iter_mut().rev() {
            if sent.has_come {
                behind += 1;
            } else if behind >= THRESHOLD && sent.times == 1 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_bypass::Arena;
    use linerate_bypass::arena::ArenaConfig;
    use proptest::prelude::*;
    use std::sync::LazyLock;

    const SESSION: u64 = 0x0123_4567_89ab_cdef;

    /// Of an arena for all tests, so that theirs are not made by the thousand.
    fn bytes(text: &[u8]) -> Bytes {
        static ARENA: LazyLock<Arena> =
            LazyLock::new(|| Arena::new(ArenaConfig { bytes: 16 << 20, hugepages: false }).unwrap());
        let mut block = ARENA.alloc(text.len()).unwrap();
        block.copy_from_slice(text);
        block.freeze()
    }

    fn message(text: u32) -> Message {
        let mut message = Message::new();
        message.push(bytes(&text.to_be_bytes())).unwrap();
        message
    }

    fn text(message: &Message) -> Bytes {
        bytes(&message.pieces().flat_map(|piece| piece.to_vec()).collect::<Vec<_>>())
    }

    #[test]
    fn headers_are_read_as_they_were_written() {
        for has_message in [false, true] {
            let header = DatagramHeader {
                session: SESSION,
                number: 0xfedc_ba98,
                has_message,
                expected: 0x7654_3210,
                room: 31,
                early: 0x8000_0001,
            };
            let mut bytes = [0; DatagramHeader::LEN];
            header.write(&mut bytes);
            assert_eq!(DatagramHeader::read(&bytes).is_ok(), !has_message);
            let with_message = [&bytes[..], b"x"].concat();
            assert_eq!(DatagramHeader::read(&with_message).is_ok(), has_message);
            let datagram = if has_message { &with_message } else { &bytes.to_vec() };
            assert_eq!(DatagramHeader::read(datagram), Ok(header));
            assert!(DatagramHeader::read(&datagram[..DatagramHeader::LEN - 1]).is_err());
        }
    }

    /// Both ends, what is on its way to each, and how far they have come.
    struct Pair {
        ends: [Session; 2],
        on_way: [Vec<(DatagramHeader, Bytes)>; 2],
        to_send: [u32; 2],
        taken: [u32; 2],
        now: Instant,
    }

    impl Pair {
        fn new(start: u32, to_send: [u32; 2]) -> Self {
            let session = || Session { first: start, expected: start, ..Session::new(SESSION) };
            let ends = [session(), session()];
            Pair { ends, on_way: Default::default(), to_send, taken: [0; 2], now: Instant::from_nanos(1) }
        }

        /// One end sends what is due; `keeps` says what becomes of each datagram: how many copies arrive.
        fn send(&mut self, from: usize, mut copies: impl FnMut() -> usize) {
            let queued = 1000 - self.to_send[from];
            for at in 0..self.to_send[from].min(self.ends[from].room() as u32) {
                self.ends[from].push(message(queued + at));
                self.to_send[from] -= 1;
            }
            let (way, now) = (&mut self.on_way[1 - from], self.now);
            self.ends[from].send(now, |header, message| {
                for _ in 0..copies() {
                    way.push((*header, message.map(text).unwrap_or_default()));
                }
                true
            });
        }

        fn receive(&mut self, at: usize, which: usize) {
            if !self.on_way[at].is_empty() {
                let which = which % self.on_way[at].len();
                let (header, message) = self.on_way[at].remove(which);
                self.ends[at].receive(&header, message, self.now).unwrap();
            }
        }

        fn take(&mut self, at: usize, start: u32) {
            if let Some(message) = self.ends[at].take() {
                assert_eq!(message[..], (start + self.taken[at]).to_be_bytes(), "twice, lost or out of order");
                self.taken[at] += 1;
            }
        }
    }

    proptest! {
        /// Whatever is lost, comes twice, or is overtaken, each message is delivered once and in order, and all in the end.
        #[test]
        fn every_message_is_delivered_once_and_in_order(
            loads in (0u32..200, 0u32..200),
            start in prop_oneof![Just(0), Just(u32::MAX - 20), any::<u32>()],
            loss in 0u32..60,
            seed: u64,
        ) {
            let mut random = fastrand::Rng::with_seed(seed);
            let loads = [loads.0, loads.1];
            let mut pair = Pair::new(start, loads);
            let begins = loads.map(|load| 1000 - load);
            for turn in 0..400_000 {
                let (end, which) = (random.usize(..2), random.usize(..));
                match random.u8(..4) {
                    0 => {
                        let mut dice = random.fork();
                        pair.send(end, || match dice.u32(..100) {
                            n if n < loss => 0,
                            n if n > 95 => 2,
                            _ => 1,
                        });
                    }
                    // Mostly in order.
                    1 => pair.receive(end, if which % 4 == 0 { which } else { 0 }),
                    2 => pair.take(end, begins[1 - end]),
                    _ => pair.now += Duration::from_micros(random.u64(..3000)),
                }
                prop_assert!(pair.ends.iter().all(|end| end.under_way() <= 32 && end.ready.len() + end.early.len() <= 64));
                if turn % 64 == 0 && pair.taken == [loads[1], loads[0]] {
                    break;
                }
            }
            prop_assert_eq!(pair.taken, [loads[1], loads[0]]);
        }

        #[test]
        fn whatever_a_peer_sends_is_read_or_refused(datagrams in prop::collection::vec((any::<[u8; 22]>(), 0usize..9), 1..50)) {
            let mut session = Session::new(SESSION);
            (0..10).for_each(|n| session.push(message(n)));
            session.send(Instant::from_nanos(1), |_, _| true);
            for (at, (noise, len)) in datagrams.into_iter().enumerate() {
                let datagram = [&DatagramHeader::MAGIC[..], &noise, &vec![0; len]].concat();
                if let Ok(header) = DatagramHeader::read(&datagram) {
                    // Near what is expected, or nothing would be looked at.
                    let near = DatagramHeader { number: header.number % 100, expected: header.expected % 12, ..header };
                    let _ = session.receive(&near, bytes(b"x"), Instant::from_nanos(at as u64));
                    prop_assert!(session.ready.len() + session.early.len() <= 64);
                }
            }
        }
    }

    /// Sends all that is due, and returns the numbers of messages; those that `arrive` says get to the other end.
    fn exchange(pair: &mut Pair, arrive: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut numbers = Vec::new();
        pair.send(0, || 1);
        for (header, message) in std::mem::take(&mut pair.on_way[1]) {
            numbers.extend(header.has_message.then_some(header.number));
            if arrive(header.number) {
                pair.ends[1].receive(&header, message, pair.now).unwrap();
            }
        }
        pair.send(1, || 1);
        while !pair.on_way[0].is_empty() {
            pair.receive(0, 0);
        }
        numbers
    }

    #[test]
    fn what_three_later_ones_have_overtaken_is_sent_again_at_once() {
        let mut pair = Pair::new(0, [4, 0]);
        assert_eq!(exchange(&mut pair, |number| number > 0), [0, 1, 2, 3]);
        // No time has passed.
        assert_eq!(exchange(&mut pair, |_| true), [0]);
        assert_eq!(pair.ends[0].under_way(), 0);
    }

    #[test]
    fn what_only_two_have_overtaken_waits_for_its_time() {
        let mut pair = Pair::new(0, [3, 0]);
        assert_eq!(exchange(&mut pair, |number| number > 0), [0, 1, 2]);
        assert_eq!(exchange(&mut pair, |_| true), [0u32; 0]);
        assert_eq!(pair.ends[0].due(), Some(pair.now + FIRST_WAIT));
        pair.now += FIRST_WAIT;
        assert_eq!(exchange(&mut pair, |_| false), [0]);
        // The next time is twice as far.
        assert_eq!(pair.ends[0].due(), Some(pair.now + 2 * FIRST_WAIT));
    }

    #[test]
    fn what_came_before_is_acknowledged_again_and_not_delivered() {
        let mut pair = Pair::new(0, [1, 0]);
        assert_eq!(exchange(&mut pair, |_| true), [0]);
        pair.take(1, 999);
        let header = DatagramHeader { session: SESSION, number: 0, has_message: true, expected: 0, room: 32, early: 0 };
        pair.ends[1].receive(&header, bytes(b"x"), pair.now).unwrap();
        assert!(pair.ends[1].take().is_none());
        assert_eq!(pair.ends[1].due(), Some(Instant::ZERO));
    }

    #[test]
    fn who_has_no_room_is_asked_now_and_then_and_says_when_there_is_some() {
        let mut pair = Pair::new(0, [100, 0]);
        assert_eq!(exchange(&mut pair, |_| true).len(), 32);
        pair.now += ACK_WITHIN;
        pair.send(1, || 1);
        pair.receive(0, 0);
        // Nobody has taken any: one asks, at its time.
        assert_eq!(exchange(&mut pair, |_| true), [32]);
        assert_eq!(exchange(&mut pair, |_| true), [0u32; 0]);
        pair.take(1, 900);
        pair.send(1, || 1);
        pair.receive(0, 0);
        assert_eq!(pair.ends[0].their_room, 1);
        pair.now += LONGEST_WAIT;
        assert_eq!(exchange(&mut pair, |_| true), [32]);
    }
}
