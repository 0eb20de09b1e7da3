//! Frames that are sent to be given back.

use super::probe::{Arrival, Probe, Stamp};
use crate::load::histogram_of_nanos;
use hdrhistogram::Histogram;
use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{BURST, MacAddr, Nic, Packet};

/// How long a frame may take before it counts as lost, and its place is free.
const LOST_AFTER: Duration = Duration::from_millis(100);
/// How often it is looked for such ones.
const LOOK: Duration = Duration::from_millis(5);
/// How long nothing may come back at the beginning.
const NO_ANSWER: Duration = Duration::from_secs(10);

/// What a load is to do.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Bytes of a frame's payload, behind its Ethernet header.
    pub size: usize,
    /// Frames on their way at a time.
    pub depth: usize,
    /// How long frames are sent before they count.
    pub warm_up: Duration,
    /// How long they count.
    pub duration: Duration,
}

/// What was counted.
#[derive(Debug, Clone, PartialEq)]
pub struct Counts {
    /// Frames that came back as they were sent.
    pub frames: u64,
    /// Frames that did not come back in 100 ms.
    pub lost: u64,
    /// Frames that came back with wrong bytes.
    pub corrupt: u64,
    /// Frames that came back after they had been given up, or more than once.
    pub late: u64,
    /// Round-trip times in nanoseconds.
    pub rtt_nanos: Histogram<u64>,
}

impl Counts {
    fn new() -> Self {
        Counts { frames: 0, lost: 0, corrupt: 0, late: 0, rtt_nanos: histogram_of_nanos() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Until the first frame has come back, there is one on its way.
    Calling {
        since: Option<Instant>,
    },
    /// Nothing counts yet.
    WarmingUp {
        until: Instant,
    },
    Measuring {
        from: Instant,
        until: Instant,
    },
    Over,
}

/// A closed loop: keeps a number of frames on their way, and sends the next when one has come back, or is lost.
///
/// A round trip is from the beginning of the turn in which a frame was handed to the port to the beginning of the turn in which it
/// was received.
pub struct Load<N: Nic> {
    nic: N,
    plan: Plan,
    probe: Probe,
    phase: Phase,
    /// What is on its way, by place.
    places: Vec<Option<Stamp>>,
    /// The places that are free, as many as may be used now.
    free: Vec<u32>,
    sequence: u64,
    received: Vec<N::Packet>,
    to_send: Vec<N::Packet>,
    looked: Instant,
    counts: Counts,
    measured: Duration,
    strange: u64,
}

impl<N: Nic> Load<N> {
    /// A load on `nic`, whose frames `run` tells from those of others.
    ///
    /// # Panics
    /// If the plan's depth is 0, or its size too small for a [`Probe`].
    pub fn new(nic: N, plan: Plan, run: u64) -> Self {
        assert!(plan.depth > 0);
        let probe = Probe::new(nic.mac(), plan.size, run);
        // Until one has come back, there is this place alone.
        let mut free = Vec::with_capacity(plan.depth);
        free.push(0);
        Load {
            nic,
            probe,
            phase: Phase::Calling { since: None },
            places: vec![None; plan.depth],
            free,
            plan,
            sequence: 0,
            received: Vec::with_capacity(BURST),
            to_send: Vec::with_capacity(BURST),
            looked: Instant::ZERO,
            counts: Counts::new(),
            measured: Duration::ZERO,
            strange: 0,
        }
    }

    /// Takes in what has come back, and sends what may be sent. Returns whether it goes on.
    pub fn turn(&mut self, now: Instant) -> bool {
        self.keep_time(now);
        if self.phase == Phase::Over {
            return false;
        }
        self.nic.rx_burst(&mut self.received);
        let mut received = std::mem::take(&mut self.received);
        received.drain(..).for_each(|frame| self.arrived(&frame, now));
        self.received = received;
        self.send(now);
        true
    }

    /// Ends it: what was measured until now counts.
    pub fn stop(&mut self, now: Instant) {
        if let Phase::Measuring { from, .. } = self.phase {
            self.measured = now.since(from);
        }
        self.phase = Phase::Over;
    }

    /// What was counted, and for how long; no time at all if nothing ever came back.
    pub fn result(&self) -> (&Counts, Duration) {
        (&self.counts, self.measured)
    }

    /// Frames that arrived and were not this load's.
    pub fn strange(&self) -> u64 {
        self.strange
    }

    /// The queue pair.
    pub fn nic(&self) -> &N {
        &self.nic
    }

    fn keep_time(&mut self, now: Instant) {
        match &mut self.phase {
            Phase::Calling { since } => {
                if now.since(*since.get_or_insert(now)) >= NO_ANSWER {
                    self.stop(now);
                }
            }
            Phase::WarmingUp { until } if now >= *until => {
                self.counts = Counts::new();
                self.phase = Phase::Measuring { from: now, until: now + self.plan.duration };
            }
            Phase::Measuring { until, .. } if now >= *until => self.stop(now),
            Phase::WarmingUp { .. } | Phase::Measuring { .. } | Phase::Over => {}
        }
        if now.since(self.looked) >= LOOK {
            self.looked = now;
            self.look_for_lost(now);
        }
    }

    #[cold]
    fn look_for_lost(&mut self, now: Instant) {
        for (place, stamp) in (0..).zip(&mut self.places) {
            if stamp.is_some_and(|stamp| now.since(stamp.sent) >= LOST_AFTER) {
                *stamp = None;
                self.free.push(place);
                self.counts.lost += 1;
            }
        }
    }

    #[inline]
    fn arrived(&mut self, frame: &N::Packet, now: Instant) {
        let stamp = match self.probe.read(frame.data()) {
            Arrival::Ours(stamp) => stamp,
            Arrival::Corrupt => return self.counts.corrupt += 1,
            Arrival::Strange => return self.strange += 1,
        };
        match self.places.get_mut(stamp.place as usize) {
            Some(place) if *place == Some(stamp) => *place = None,
            _ => return self.counts.late += 1,
        }
        self.counts.frames += 1;
        self.counts.rtt_nanos.saturating_record(now.since(stamp.sent).as_nanos() as u64);
        self.free.push(stamp.place);
        if let Phase::Calling { .. } = self.phase {
            self.answered(frame, now);
        }
    }

    /// The first frame has come back: who sent it is who is sent to, and all places can be used.
    #[cold]
    fn answered(&mut self, frame: &N::Packet, now: Instant) {
        if let Some(&[.., a, b, c, d, e, f]) = frame.data().first_chunk::<12>()
            && MacAddr([a, b, c, d, e, f]).is_unicast()
        {
            self.probe.address_to(MacAddr([a, b, c, d, e, f]));
        }
        self.free.extend(1..self.plan.depth as u32);
        self.phase = Phase::WarmingUp { until: now + self.plan.warm_up };
        tracing::info!("{}", if self.plan.warm_up.is_zero() { "measuring" } else { "warming up" });
    }

    /// Fills a burst with what may be sent, and hands it to the port.
    #[inline]
    fn send(&mut self, now: Instant) {
        while self.to_send.len() < BURST
            && let Some(place) = self.free.last().copied()
            && let Some(mut frame) = self.nic.allocate()
        {
            let Some(into) = frame.append(self.probe.len()) else { return };
            let stamp = Stamp { sequence: self.sequence, sent: now, place };
            self.probe.write(stamp, into);
            self.places[place as usize] = Some(stamp);
            self.free.pop();
            self.sequence += 1;
            self.to_send.push(frame);
        }
        if !self.to_send.is_empty() {
            self.nic.tx_burst(&mut self.to_send);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::Reflector;
    use linerate_bypass::memory::{End, Impairments, Link, LinkConfig, MemoryNic};

    const PLAN: Plan =
        Plan { size: 64, depth: 3, warm_up: Duration::from_millis(10), duration: Duration::from_millis(1000) };
    const STEP: Duration = Duration::from_micros(100);

    struct Rig {
        load: Load<MemoryNic>,
        reflector: Reflector<MemoryNic>,
        now: Instant,
    }

    impl Rig {
        fn new(plan: Plan, config: LinkConfig) -> Self {
            let (a, b) = Link::pair(config);
            Rig { load: Load::new(a, plan, 5), reflector: Reflector::new(b), now: Instant::from_nanos(1) }
        }

        /// Turns of both until the load is over.
        fn run(&mut self) -> (Counts, Duration) {
            while self.load.turn(self.now) {
                self.reflector.turn();
                self.now += STEP;
            }
            let (counts, measured) = self.load.result();
            (counts.clone(), measured)
        }
    }

    #[test]
    fn as_many_frames_as_the_depth_come_back_in_each_round_trip() {
        for depth in [1, 3, 100] {
            let mut rig = Rig::new(Plan { depth, ..PLAN }, LinkConfig::default());
            let (counts, measured) = rig.run();
            assert_eq!(measured, PLAN.duration);
            assert_eq!((counts.lost, counts.corrupt, counts.late, rig.load.strange()), (0, 0, 0, 0));
            // A turn each is a round trip; a turn moves a burst at most.
            let turns = (PLAN.duration.as_nanos() / STEP.as_nanos()) as u64;
            assert_eq!(counts.frames, depth.min(BURST) as u64 * turns);
            assert!(
                counts
                    .rtt_nanos
                    .equivalent(counts.rtt_nanos.max(), STEP.as_nanos() as u64 * depth.div_ceil(BURST) as u64)
                    || depth == 100
            );
            assert_eq!(counts.rtt_nanos.len(), counts.frames);
        }
    }

    #[test]
    fn nothing_is_sent_to_all_once_somebody_has_answered() {
        let mut rig = Rig::new(PLAN, LinkConfig::default());
        rig.load.turn(rig.now);
        rig.reflector.turn();
        rig.load.turn(rig.now + STEP);
        let mut frames = Vec::with_capacity(BURST);
        // The reflector's own port takes them in its stead.
        let mut nic = rig.reflector;
        nic.turn();
        rig.load.nic.rx_burst(&mut frames);
        assert_eq!(frames.len(), PLAN.depth);
        assert!(frames.iter().all(|frame| frame.data()[6..12] == nic.nic().mac().0));
    }

    #[test]
    fn a_lost_frame_is_counted_and_frees_its_place() {
        let mut rig = Rig::new(Plan { depth: 1, ..PLAN }, LinkConfig::default());
        while rig.load.result().0.frames < 5 || !matches!(rig.load.phase, Phase::Measuring { .. }) {
            rig.load.turn(rig.now);
            rig.reflector.turn();
            rig.now += STEP;
        }
        let link = rig.load.nic().link().clone();
        link.impair(End::A, Impairments { loss: 1.0, ..Impairments::default() });
        let lossy = rig.now;
        while rig.now.since(lossy) < Duration::from_millis(350) {
            rig.load.turn(rig.now);
            rig.reflector.turn();
            rig.now += STEP;
        }
        let lost = rig.load.result().0.lost;
        assert_eq!(lost, 3, "one each 100 ms");
        link.impair(End::A, Impairments::default());
        let before = rig.load.result().0.frames;
        let (counts, _) = rig.run();
        assert!(counts.frames > before + 4000, "{counts:?}");
        assert_eq!(counts.lost, lost + 1);
    }

    #[test]
    fn frames_that_come_back_twice_or_damaged_are_not_counted_as_answers() {
        let double = Impairments { duplication: 1.0, ..Impairments::default() };
        let mut rig = Rig::new(Plan { depth: 1, ..PLAN }, LinkConfig::default());
        rig.load.nic().link().impair(End::B, double);
        let (counts, _) = rig.run();
        assert_eq!((counts.lost, counts.corrupt, counts.frames, counts.late), (0, 0, 10_000, 10_000));
        let damage = Impairments { corruption: 0.1, ..Impairments::default() };
        let mut rig = Rig::new(PLAN, LinkConfig { impairments: damage, ..LinkConfig::default() });
        let (counts, _) = rig.run();
        assert!(counts.corrupt > 0 && counts.lost > 0 && counts.frames > 0, "{counts:?}");
    }

    #[test]
    fn a_load_that_nobody_answers_ends_and_has_measured_nothing() {
        let (a, _b) = Link::pair(LinkConfig::default());
        let mut load = Load::new(a, PLAN, 5);
        let mut now = Instant::from_nanos(1);
        while load.turn(now) {
            now += Duration::from_millis(10);
        }
        assert!(now >= Instant::ZERO + NO_ANSWER);
        assert_eq!((load.result().0.frames, load.result().1), (0, Duration::ZERO));
        // One each 100 ms, and not as many as the depth.
        assert!((95..=100).contains(&load.nic().stats().tx_frames));
    }

    #[test]
    fn no_packet_is_kept() {
        let mut rig = Rig::new(PLAN, LinkConfig::default());
        rig.run();
        for _ in 0..3 {
            rig.reflector.turn();
        }
        let mut left = Vec::with_capacity(64);
        while rig.load.nic.rx_burst(&mut left) > 0 {}
        drop(left);
        assert_eq!(rig.load.nic.pool_available(), rig.load.nic.pool_capacity());
    }
}
