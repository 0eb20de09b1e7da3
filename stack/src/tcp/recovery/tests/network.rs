//! Sender, receiver and link.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::super::*;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const MSS: u32 = 1000;
/// First sequence number: the sequence space wraps in every test.
pub(crate) const FIRST: Seq = Seq(u32::MAX - 4_999);

/// Creates an acknowledgement without data that may count as a duplicate.
pub(crate) fn ack_at(ack: Seq, sack: &[(Seq, Seq)], now: Instant) -> Acknowledgement<'_> {
    Acknowledgement {
        ack,
        sack,
        echoed_timestamp: None,
        ece: false,
        duplicate_candidate: true,
        pure: true,
        unsent: false,
        now,
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Reno {
    pub(crate) window: u32,
    pub(crate) threshold: u32,
    saved: Option<(u32, u32)>,
    pub(crate) reductions: Vec<(CongestionSignal, u32)>,
    pub(crate) timeouts: Vec<u32>,
    pub(crate) undone: u32,
    pub(crate) recovered: u32,
    pub(crate) deliveries: Vec<Delivery>,
}

impl Reno {
    pub(crate) fn new(window: u32) -> Self {
        Reno {
            window,
            threshold: u32::MAX,
            saved: None,
            reductions: Vec::new(),
            timeouts: Vec::new(),
            undone: 0,
            recovered: 0,
            deliveries: Vec::new(),
        }
    }
}

impl CongestionControl for Reno {
    fn new(_: &crate::Config, mss: u32) -> Self {
        Reno::new(10 * mss)
    }

    fn idle(&mut self, _: Duration, _: Duration) {}

    fn set_mss(&mut self, _: u32) {}

    fn window(&self) -> u32 {
        self.window
    }

    fn slow_start_threshold(&self) -> u32 {
        self.threshold
    }

    fn delivered(&mut self, delivery: &Delivery) {
        self.deliveries.push(*delivery);
        if delivery.window_limited {
            let growth = if self.window < self.threshold {
                delivery.bytes
            } else {
                (u64::from(MSS) * u64::from(delivery.bytes) / u64::from(self.window)) as u32
            };
            self.window = self.window.saturating_add(growth).min(1 << 24);
        }
    }

    fn congested(&mut self, cause: CongestionSignal, in_flight: u32, _: Instant) {
        self.saved = Some((self.window, self.threshold));
        self.reductions.push((cause, in_flight));
        self.threshold = (in_flight / 2).max(2 * MSS);
        self.window = self.threshold;
    }

    fn recovered(&mut self, _: Instant) {
        self.recovered += 1;
        self.window = self.threshold;
    }

    fn timed_out(&mut self, in_flight: u32, _: Instant) {
        self.saved = Some((self.window, self.threshold));
        self.timeouts.push(in_flight);
        self.threshold = (in_flight / 2).max(2 * MSS);
        self.window = MSS;
    }

    fn undo(&mut self) {
        self.undone += 1;
        if let Some((window, threshold)) = self.saved.take() {
            (self.window, self.threshold) = (self.window.max(window), threshold);
        }
    }
}

/// Segment on the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Packet {
    /// Offset of its data from the first byte of the connection.
    pub(crate) offset: u32,
    pub(crate) len: u32,
    /// Number of earlier transmissions of this offset.
    pub(crate) nth: u32,
    timestamp: u32,
}

/// Treatment of a packet by the link.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fate {
    Deliver,
    Drop,
    /// The packet arrives later by this time, and others overtake it.
    Late(Duration),
    /// The link holds the packet and all later ones until this time.
    Hold(Instant),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Data(Packet),
    Ack { ack: u32, sack: Vec<(u32, u32)>, echo: u32 },
    Delayed,
}

/// Parameters of a network.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) window: u32,
    pub(crate) rtt: Duration,
    /// Interval of two packets on the link.
    pub(crate) spacing: Duration,
    pub(crate) sack: bool,
    pub(crate) duplicate_reports: bool,
    pub(crate) timestamps: bool,
    /// Acknowledgement delay of the receiver; `None` to acknowledge each segment.
    pub(crate) delay: Option<Duration>,
    /// Maximum bytes of a record.
    pub(crate) burst: u32,
    pub(crate) limits: Limits,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            window: 30 * MSS,
            rtt: 20 * MS,
            spacing: MS / 10,
            sack: true,
            duplicate_reports: true,
            timestamps: false,
            delay: None,
            burst: MSS,
            limits: Limits::default(),
        }
    }
}

#[derive(Debug, Default)]
struct Receiver {
    next: u32,
    /// Out-of-order data, most recent first (RFC 2018 §4).
    held: Vec<(u32, u32)>,
    duplicate: Option<(u32, u32)>,
    recent_timestamp: u32,
    last_ack: u32,
    waiting: u32,
}

impl Receiver {
    /// Processes a packet. Returns whether it has to be acknowledged at once.
    fn receive(&mut self, packet: Packet) -> bool {
        let (start, end) = (packet.offset, packet.offset + packet.len);
        // RFC 7323 §4.3.
        if start <= self.last_ack {
            self.recent_timestamp = self.recent_timestamp.max(packet.timestamp);
        }
        let known = end <= self.next || self.held.iter().any(|&(from, to)| from <= start && end <= to);
        if known {
            self.duplicate = Some((start, end));
            return true;
        }
        let mut merged = (start, end);
        self.held.retain(|&(from, to)| {
            let touches = from <= merged.1 && merged.0 <= to;
            if touches {
                merged = (merged.0.min(from), merged.1.max(to));
            }
            !touches
        });
        if merged.0 <= self.next {
            let in_order = start == self.next && self.held.is_empty() && merged.1 == end;
            self.next = merged.1;
            !in_order
        } else {
            self.held.insert(0, merged);
            true
        }
    }
}

/// Decides the treatment of a packet, or of an acknowledgement by its number.
type FateFn<T> = Box<dyn FnMut(&T, Instant) -> Fate>;
type Observer = Box<dyn FnMut(&Flight, &Reno)>;

/// Transfer over a link in virtual time.
pub(crate) struct Network {
    pub(crate) now: Instant,
    pub(crate) flight: Flight,
    pub(crate) rtt: RttEstimator,
    pub(crate) path: Path,
    pub(crate) cc: Reno,
    pub(crate) options: Options,
    pub(crate) fate: FateFn<Packet>,
    pub(crate) ack_fate: FateFn<u32>,
    /// Unsent bytes of the application.
    pub(crate) unsent: u32,
    /// All segments sent.
    pub(crate) log: Vec<(Instant, Packet)>,
    pub(crate) outcomes: Vec<(Instant, Outcome)>,
    pub(crate) expired: Vec<(Instant, Expired)>,
    /// Callback after every event.
    pub(crate) observe: Observer,
    receiver: Receiver,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    count: u64,
    link_free: Instant,
    delayed_at: Option<Instant>,
}

impl Network {
    pub(crate) fn new(options: Options) -> Self {
        let start = Instant::ZERO + Duration::from_secs(1);
        let config = FlightConfig { mss: MSS as u16, sack: options.sack, exact_ecn: false };
        let (mut rtt, mut path) = (RttEstimator::default(), Path::default());
        // Established connection with a settled estimate.
        for _ in 0..50 {
            rtt.sample(options.rtt);
        }
        path.measured(options.rtt, start);
        Network {
            now: start,
            flight: Flight::new(FIRST, config),
            rtt,
            path,
            cc: Reno::new(options.window),
            options,
            fate: Box::new(|_, _| Fate::Deliver),
            ack_fate: Box::new(|_, _| Fate::Deliver),
            unsent: 0,
            log: Vec::new(),
            outcomes: Vec::new(),
            expired: Vec::new(),
            observe: Box::new(|_, _| {}),
            receiver: Receiver::default(),
            events: BinaryHeap::new(),
            count: 0,
            link_free: start,
            delayed_at: None,
        }
    }

    /// Drops the given transmissions, as pairs of offset and number of the transmission.
    pub(crate) fn drop_packets(&mut self, drops: &[(u32, u32)]) {
        let mut drops = drops.to_vec();
        self.fate = Box::new(move |packet, _| {
            let hit = drops.iter().position(|&drop| drop == (packet.offset, packet.nth));
            hit.map_or(Fate::Deliver, |index| {
                drops.swap_remove(index);
                Fate::Drop
            })
        });
    }

    /// Sends `bytes` and runs until everything is acknowledged. Panics after an hour.
    pub(crate) fn transfer(&mut self, bytes: u32) {
        self.unsent += bytes;
        self.pump();
        let end = self.now + Duration::from_secs(3600);
        while self.unsent > 0 || !self.flight.is_empty() {
            assert!(self.step() && self.now < end, "the transfer stalls at {:?}", self.flight);
        }
        assert_eq!(self.receiver.next, self.flight.una() - FIRST);
        assert_eq!(self.receiver.held, []);
    }

    /// Runs until there are no more events, or until `end`.
    pub(crate) fn run(&mut self, end: Instant) {
        self.pump();
        while self.next_time().is_some_and(|at| at <= end) {
            self.step();
        }
        self.now = self.now.max(end);
    }

    pub(crate) fn process(&mut self, acknowledgement: &Acknowledgement) -> Outcome {
        let limits = &self.options.limits;
        self.flight.acknowledge(acknowledgement, &mut self.rtt, &mut self.path, &mut self.cc, limits)
    }

    /// Processes an acknowledgement at the current time. `ack` and `sack` count segments from the first.
    pub(crate) fn acknowledge_segments(&mut self, ack: u32, sack: &[(u32, u32)], ece: bool) -> Outcome {
        let sack: Vec<_> = sack.iter().map(|&(start, end)| (FIRST + start * MSS, FIRST + end * MSS)).collect();
        let outcome =
            self.process(&Acknowledgement { ece, unsent: true, ..ack_at(FIRST + ack * MSS, &sack, self.now) });
        self.flight.check();
        outcome
    }

    /// Sends `segments` segments of new data now, regardless of the window.
    pub(crate) fn send_segments(&mut self, segments: u32) {
        for _ in 0..segments {
            self.flight.sent(MSS, self.now, self.cc.window);
        }
    }

    /// Retransmits the permitted segments, and returns their numbers.
    pub(crate) fn retransmit_segments(&mut self) -> Vec<u32> {
        let mut sent = Vec::new();
        while let Some((seq, len)) = self.flight.retransmission(self.flight.allowance(self.cc.window).min(MSS)) {
            self.flight.retransmitted(seq, len, self.now, 0);
            sent.push((seq - FIRST) / MSS);
        }
        sent
    }

    /// Expires the timer at its deadline.
    pub(crate) fn expire(&mut self) -> Expired {
        let limits = &self.options.limits;
        if let Some(at) = self.flight.deadline(&self.rtt, &self.path, limits) {
            self.now = self.now.max(at);
        }
        let expired = self.flight.expire(self.now, false, &mut self.rtt, &mut self.path, &mut self.cc, limits);
        self.flight.check();
        expired
    }

    /// Runs for `time`.
    pub(crate) fn pause(&mut self, time: Duration) {
        self.run(self.now + time);
    }

    fn deadline(&self) -> Option<Instant> {
        self.flight.deadline(&self.rtt, &self.path, &self.options.limits)
    }

    fn next_time(&self) -> Option<Instant> {
        let event = self.events.peek().map(|Reverse((at, ..))| *at);
        event.into_iter().chain(self.deadline()).min()
    }

    fn step(&mut self) -> bool {
        let Some(at) = self.next_time() else { return false };
        self.now = self.now.max(at);
        if self.events.peek().is_some_and(|Reverse((event, ..))| *event <= at) {
            let Some(Reverse((_, _, event))) = self.events.pop() else { return false };
            self.handle_event(event);
        } else {
            let (unsent, before) = (self.unsent > 0, self.deadline());
            let (rtt, path, limits) = (&mut self.rtt, &mut self.path, &self.options.limits);
            let expired = self.flight.expire(self.now, unsent, rtt, path, &mut self.cc, limits);
            if expired == Expired::Nothing {
                assert_ne!(self.deadline(), before, "an expired timer moves on");
            } else {
                self.expired.push((self.now, expired));
            }
            match expired {
                Expired::Probe(None) => {
                    let len = self.unsent.min(MSS);
                    self.send_new(len);
                }
                Expired::Probe(Some((seq, len))) => self.send_again(seq, len),
                Expired::GiveUp => panic!("given up at {:?}", self.now),
                _ => {}
            }
        }
        self.pump();
        self.flight.check();
        (self.observe)(&self.flight, &self.cc);
        true
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Data(packet) => {
                let now = self.receiver.receive(packet);
                self.receiver.waiting += 1;
                match self.options.delay {
                    Some(delay) if !now && self.receiver.waiting < 2 => {
                        self.delayed_at = Some(self.now + delay);
                        self.schedule(self.now + delay, Event::Delayed);
                    }
                    _ => self.acknowledge(),
                }
            }
            Event::Delayed => {
                if self.delayed_at == Some(self.now) {
                    self.acknowledge();
                }
            }
            Event::Ack { ack, sack, echo } => {
                let sack: Vec<_> = sack.iter().map(|&(start, end)| (FIRST + start, FIRST + end)).collect();
                let acknowledgement = Acknowledgement {
                    ack: FIRST + ack,
                    sack: &sack,
                    echoed_timestamp: self.options.timestamps.then_some(echo),
                    ece: false,
                    duplicate_candidate: true,
                    pure: true,
                    unsent: self.unsent > 0,
                    now: self.now,
                };
                let outcome = self.process(&acknowledgement);
                self.outcomes.push((self.now, outcome));
            }
        }
    }

    fn acknowledge(&mut self) {
        self.delayed_at = None;
        let receiver = &mut self.receiver;
        receiver.waiting = 0;
        receiver.last_ack = receiver.next;
        let mut sack = Vec::new();
        if self.options.sack {
            if let Some(duplicate) = receiver.duplicate.take().filter(|_| self.options.duplicate_reports) {
                sack.push(duplicate);
            }
            let room = if self.options.timestamps { 3 } else { 4 } - sack.len();
            sack.extend(receiver.held.iter().take(room));
        }
        let (ack, echo) = (receiver.next, receiver.recent_timestamp);
        let late = match (self.ack_fate)(&ack, self.now) {
            Fate::Deliver => Duration::ZERO,
            Fate::Drop => return,
            Fate::Late(late) => late,
            Fate::Hold(until) => until.since(self.now),
        };
        self.schedule(self.now + self.options.rtt / 2 + late, Event::Ack { ack, sack, echo });
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    /// Sends everything permitted.
    pub(crate) fn pump(&mut self) {
        loop {
            let allowance = self.flight.allowance(self.cc.window);
            let burst = allowance.min(self.options.burst);
            if let Some((seq, len)) = self.flight.retransmission(burst) {
                self.send_again(seq, len);
                continue;
            }
            let len = if burst >= self.unsent { self.unsent } else { burst - burst % MSS };
            if len == 0 {
                break;
            }
            self.send_new(len);
        }
    }

    fn send_new(&mut self, len: u32) {
        let offset = self.flight.next() - FIRST;
        self.unsent -= len;
        self.flight.sent(len, self.now, self.cc.window);
        self.transmit(offset, len);
    }

    fn send_again(&mut self, seq: Seq, len: u32) {
        let timestamp = self.timestamp();
        self.flight.retransmitted(seq, len, self.now, timestamp);
        self.transmit(seq - FIRST, len);
    }

    fn timestamp(&self) -> u32 {
        (self.now.as_micros() / 1000) as u32
    }

    fn transmit(&mut self, offset: u32, len: u32) {
        for at in (offset..offset + len).step_by(MSS as usize) {
            let nth = self.log.iter().filter(|(_, packet)| packet.offset == at).count() as u32;
            let packet = Packet { offset: at, len: MSS.min(offset + len - at), nth, timestamp: self.timestamp() };
            self.log.push((self.now, packet));
            self.link_free = self.link_free.max(self.now) + self.options.spacing;
            let late = match (self.fate)(&packet, self.now) {
                Fate::Deliver => Duration::ZERO,
                Fate::Drop => continue,
                Fate::Late(late) => late,
                Fate::Hold(until) => {
                    self.link_free = self.link_free.max(until + self.options.spacing);
                    Duration::ZERO
                }
            };
            self.schedule(self.link_free + self.options.rtt / 2 + late, Event::Data(packet));
        }
    }

    /// Returns the offsets of all segments sent more than once.
    pub(crate) fn retransmissions(&self) -> Vec<u32> {
        self.log.iter().filter(|(_, packet)| packet.nth > 0).map(|(_, packet)| packet.offset).collect()
    }

    pub(crate) fn timeouts(&self) -> usize {
        self.expired.iter().filter(|(_, expired)| matches!(expired, Expired::Timeout { .. })).count()
    }

    pub(crate) fn probes(&self) -> usize {
        self.expired.iter().filter(|(_, expired)| matches!(expired, Expired::Probe(_))).count()
    }

    pub(crate) fn undone(&self) -> Vec<Undone> {
        self.outcomes.iter().filter_map(|(_, outcome)| outcome.undone).collect()
    }

    /// Returns the number of fast recoveries.
    pub(crate) fn recoveries(&self) -> usize {
        let by_ack = self.outcomes.iter().filter(|(_, outcome)| outcome.recovery_began).count();
        let by_timer = self
            .expired
            .iter()
            .filter(|(_, expired)| matches!(expired, Expired::Reordering { recovery_began: true, .. }));
        by_ack + by_timer.count()
    }
}
