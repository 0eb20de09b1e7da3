use super::*;
use linerate_bypass::Arena;
use linerate_bypass::arena::ArenaConfig;
use proptest::prelude::*;
use std::sync::LazyLock;

const SESSION: u64 = 0x0123_4567_89ab_cdef;

/// Allocates from one arena for all tests, which saves thousands of arenas.
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
    bytes(&message.chunks().flat_map(|chunk| chunk.to_vec()).collect::<Vec<_>>())
}

/// Both ends, with the datagrams in flight to each.
struct Pair {
    ends: [Session; 2],
    in_flight: [Vec<(DatagramHeader, Bytes)>; 2],
    to_send: [u32; 2],
    taken: [u32; 2],
    now: Instant,
}

impl Pair {
    fn new(start: u32, to_send: [u32; 2]) -> Self {
        let session = || Session { first: start, expected: start, ..Session::new(SESSION, 32) };
        let ends = [session(), session()];
        Pair { ends, in_flight: Default::default(), to_send, taken: [0; 2], now: Instant::from_nanos(1) }
    }

    /// Sends all due datagrams of one end, each in the number of copies that `copies` returns.
    fn send(&mut self, from: usize, mut copies: impl FnMut() -> usize) {
        let queued = 1000 - self.to_send[from];
        for at in 0..self.to_send[from].min(self.ends[from].room() as u32) {
            self.ends[from].push(message(queued + at));
            self.to_send[from] -= 1;
        }
        let (in_flight_to_peer, now) = (&mut self.in_flight[1 - from], self.now);
        self.ends[from].send(now, |header, message| {
            for _ in 0..copies() {
                in_flight_to_peer.push((*header, message.map(text).unwrap_or_default()));
            }
            true
        });
    }

    fn receive(&mut self, at: usize, which: usize) {
        if !self.in_flight[at].is_empty() {
            let which = which % self.in_flight[at].len();
            let (header, message) = self.in_flight[at].remove(which);
            self.ends[at].receive(&header, message, self.now).unwrap();
        }
    }

    fn take(&mut self, at: usize, start: u32) {
        if let Some(message) = self.ends[at].take() {
            assert_eq!(message[..], (start + self.taken[at]).to_be_bytes(), "duplicated, lost or out of order");
            self.taken[at] += 1;
        }
    }
}

proptest! {
    /// With loss, duplication and reordering, every message is delivered once and in order.
    #[test]
    fn every_message_is_delivered_once_and_in_order(
        loads in (0u32..200, 0u32..200),
        start in prop_oneof![Just(0), Just(u32::MAX - 20), any::<u32>()],
        loss in 0u32..40,
        seed: u64,
    ) {
        let mut random = fastrand::Rng::with_seed(seed);
        let loads = [loads.0, loads.1];
        let mut qp = Pair::new(start, loads);
        let begins = loads.map(|load| 1000 - load);
        for turn in 0..400_000 {
            let (end, which) = (random.usize(..2), random.usize(..));
            match random.u8(..4) {
                0 => {
                    let mut dice = random.fork();
                    qp.send(end, || match dice.u32(..100) {
                        n if n < loss => 0,
                        n if n > 95 => 2,
                        _ => 1,
                    });
                }
                // Mostly in order.
                1 => qp.receive(end, if which % 4 == 0 { which } else { 0 }),
                2 => qp.take(end, begins[1 - end]),
                _ => qp.now += Duration::from_micros(random.u64(..3000)),
            }
            prop_assert!(qp.ends.iter().all(|end| end.unacked() <= 32 && end.ready.len() + end.early.len() <= 64));
            if turn % 64 == 0 && qp.taken == [loads[1], loads[0]] {
                break;
            }
        }
        prop_assert_eq!(qp.taken, [loads[1], loads[0]]);
    }

    #[test]
    fn arbitrary_input_is_processed_or_rejected(datagrams in prop::collection::vec((any::<[u8; 22]>(), 0usize..9), 1..50)) {
        let mut session = Session::new(SESSION, 32);
        (0..10).for_each(|n| session.push(message(n)));
        session.send(Instant::from_nanos(1), |_, _| true);
        for (at, (noise, len)) in datagrams.into_iter().enumerate() {
            let datagram = [&DatagramHeader::MAGIC[..], &noise, &vec![0; len]].concat();
            if let Ok(header) = DatagramHeader::read(&datagram) {
                // Near the expected number, so that most datagrams are not discarded at once.
                let near = DatagramHeader { number: header.number % 100, expected: header.expected % 12, ..header };
                let _ = session.receive(&near, bytes(b"x"), Instant::from_nanos(at as u64));
                prop_assert!(session.ready.len() + session.early.len() <= 64);
            }
        }
    }
}

/// Sends all due datagrams and returns the message numbers. The messages that `arrive` selects reach the other end.
fn exchange(qp: &mut Pair, arrive: impl Fn(u32) -> bool) -> Vec<u32> {
    let mut numbers = Vec::new();
    qp.send(0, || 1);
    for (header, message) in std::mem::take(&mut qp.in_flight[1]) {
        numbers.extend(header.has_message.then_some(header.number));
        if arrive(header.number) {
            qp.ends[1].receive(&header, message, qp.now).unwrap();
        }
    }
    qp.send(1, || 1);
    while !qp.in_flight[0].is_empty() {
        qp.receive(0, 0);
    }
    numbers
}

#[test]
fn message_overtaken_by_three_is_retransmitted_at_once() {
    let mut qp = Pair::new(0, [4, 0]);
    assert_eq!(exchange(&mut qp, |number| number > 0), [0, 1, 2, 3]);
    // The clock has not advanced.
    assert_eq!(exchange(&mut qp, |_| true), [0]);
    assert_eq!(qp.ends[0].unacked(), 0);
}

#[test]
fn message_overtaken_by_two_waits_for_timeout() {
    let mut qp = Pair::new(0, [4, 0]);
    assert_eq!(exchange(&mut qp, |number| number == 1 || number == 2), [0, 1, 2, 3]);
    assert_eq!(exchange(&mut qp, |_| true), [0u32; 0]);
    let wait = qp.ends[0].wait();
    assert_eq!(qp.ends[0].due(), Some(qp.now + wait));
    qp.now += wait;
    assert_eq!(exchange(&mut qp, |_| false), [0]);
    // The time-out is doubled.
    assert_eq!(qp.ends[0].due(), Some(qp.now + 2 * wait));
    qp.now += 2 * wait;
    assert_eq!(exchange(&mut qp, |_| true), [0]);
    assert_eq!(exchange(&mut qp, |_| true), [3]);
    assert_eq!(qp.ends[1].expected, 4);
}

#[test]
fn loss_threshold_shrinks_with_few_messages() {
    for count in [2, 3] {
        let mut qp = Pair::new(0, [count, 0]);
        assert_eq!(exchange(&mut qp, |number| number > 0).len(), count as usize);
        assert_eq!(exchange(&mut qp, |_| true), [0]);
        assert_eq!(qp.ends[0].unacked(), 0);
    }
}

#[test]
fn acknowledgement_delayed_by_loss_is_no_rtt_sample() {
    let mut qp = Pair::new(0, [3, 0]);
    exchange(&mut qp, |number| number == 1);
    let wait = qp.ends[0].wait();
    for _ in 0..3 {
        qp.now += LONGEST_WAIT;
        exchange(&mut qp, |_| false);
    }
    qp.now += LONGEST_WAIT;
    for _ in 0..3 {
        exchange(&mut qp, |_| true);
        qp.now += ACK_WITHIN;
    }
    assert_eq!((qp.ends[0].unacked(), qp.ends[0].wait()), (0, wait));
}

#[test]
fn duplicate_is_acknowledged_but_not_delivered() {
    let mut qp = Pair::new(0, [1, 0]);
    assert_eq!(exchange(&mut qp, |_| true), [0]);
    qp.take(1, 999);
    let header = DatagramHeader { session: SESSION, number: 0, has_message: true, expected: 0, room: 32, early: 0 };
    qp.ends[1].receive(&header, bytes(b"x"), qp.now).unwrap();
    assert!(qp.ends[1].take().is_none());
    assert_eq!(qp.ends[1].due(), Some(Instant::ZERO));
}

#[test]
fn sender_probes_zero_window_and_receiver_reopens_it() {
    let mut qp = Pair::new(0, [100, 0]);
    let mut sent = 0;
    while sent < 32 {
        sent += exchange(&mut qp, |_| true).len();
        qp.now += ACK_WITHIN;
        qp.send(1, || 1);
        qp.receive(0, 0);
    }
    assert_eq!(sent, 32);
    // No message was taken: one probe follows after the time-out.
    assert_eq!(exchange(&mut qp, |_| true), [32]);
    assert_eq!(exchange(&mut qp, |_| true), [0u32; 0]);
    qp.take(1, 900);
    qp.send(1, || 1);
    qp.receive(0, 0);
    assert_eq!(qp.ends[0].their_room, 1);
    qp.now += LONGEST_WAIT;
    assert_eq!(exchange(&mut qp, |_| true), [32]);
}

/// Runs four sessions over a shared link for 30 ms. The link queues up to 40 messages and forwards one every 10 µs.
/// Returns the number of delivered messages of each session, and the number of retransmissions of all sessions.
fn share_link(has_fixed_window: bool) -> ([u32; 4], u64) {
    const ROOM: usize = 40;
    const STEP: Duration = Duration::from_micros(10);
    const DELAY: Duration = Duration::from_micros(20);
    let mut pairs = [(); 4].map(|()| Pair::new(0, [1000, 0]));
    let mut link = VecDeque::new();
    let mut delayed: [[VecDeque<(Instant, DatagramHeader, Bytes)>; 2]; 4] =
        [(); 4].map(|()| [VecDeque::new(), VecDeque::new()]);
    let mut now = Instant::from_nanos(1);
    for step in 0..3000 {
        now += STEP;
        // Each session is the first one in turn.
        for at in (0..4).map(|at| (at + step) % 4) {
            let (pair, delayed) = (&mut pairs[at], &mut delayed[at]);
            pair.now = now;
            for (end, delayed) in pair.ends.iter_mut().zip(&mut *delayed) {
                while delayed.front().is_some_and(|(due, ..)| *due <= now)
                    && let Some((_, header, message)) = delayed.pop_front()
                {
                    end.receive(&header, message, now).unwrap();
                }
            }
            (0..WINDOW).for_each(|_| pair.take(1, 0));
            if has_fixed_window {
                pair.ends[0].congestion = Congestion::fixed();
            }
            (0..2).for_each(|end| pair.send(end, || 1));
            delayed[0].extend(pair.in_flight[0].drain(..).map(|(header, message)| (now + DELAY, header, message)));
            for (header, message) in pair.in_flight[1].drain(..) {
                if link.len() < ROOM {
                    link.push_back((at, header, message));
                }
            }
        }
        if let Some((at, header, message)) = link.pop_front() {
            delayed[at][1].push_back((now + DELAY, header, message));
        }
    }
    (pairs.each_ref().map(|pair| pair.taken[1]), pairs.iter().map(|pair| pair.ends[0].resent()).sum())
}

#[test]
fn sessions_share_a_link_with_few_losses() {
    let (delivered, resent) = share_link(false);
    let all: u32 = delivered.iter().sum();
    let (fixed, fixed_resent) = share_link(true);
    // The link can deliver 3000 messages.
    assert!(all > 2700, "{delivered:?}");
    assert!(delivered.iter().all(|one| *one > all / 8), "{delivered:?}");
    assert!(resent < u64::from(all) / 10, "{resent} of {all}");
    // Without congestion control, some sessions displace others.
    assert!(fixed.iter().min() < delivered.iter().min() && fixed_resent > resent, "{fixed:?}, {fixed_resent} resent");
}
