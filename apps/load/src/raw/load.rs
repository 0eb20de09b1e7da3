//! Load of raw frames that a reflector returns.

use super::ETHERNET;
use crate::{Flight, FlightPlan, Probe, ProbeCheck};
use linerate_bypass::{BURST, MacAddr, Nic, Packet};
use linerate_service::time::Instant;

/// EtherType for local experiments (IEEE 802, clause 9.2.4).
const ETHERTYPE: [u8; 2] = 0x88b5_u16.to_be_bytes();
/// Smallest payload: Ethernet pads shorter ones.
pub const SMALLEST: usize = 46;

/// Closed loop of raw frames: keeps a number of frames outstanding, and sends the next when one returns or is lost.
/// Each is an Ethernet header and a [`Probe`].
///
/// A round trip is measured from the beginning of the turn that handed the frame to the port to the beginning of the
/// turn that received it.
pub struct Load<N: Nic> {
    nic: N,
    header: [u8; ETHERNET],
    probe: Probe,
    flight: Flight,
    received: Vec<N::Packet>,
    to_send: Vec<N::Packet>,
    foreign: u64,
}

impl<N: Nic> Load<N> {
    /// Creates a load on `nic`. `run` identifies this run's frames.
    ///
    /// # Panics
    /// If the plan has no slots, or its size is too small for a [`Probe`].
    pub fn new(nic: N, plan: FlightPlan, run: u64) -> Self {
        let mut header = [0xff; ETHERNET];
        header[6..12].copy_from_slice(&nic.mac().0);
        header[12..].copy_from_slice(&ETHERTYPE);
        Load {
            nic,
            header,
            probe: Probe::new(plan.size, run),
            flight: Flight::new(plan),
            received: Vec::with_capacity(BURST),
            to_send: Vec::with_capacity(BURST),
            foreign: 0,
        }
    }

    /// Receives and sends a burst; returns whether the load continues.
    pub fn turn(&mut self, now: Instant) -> bool {
        if !self.flight.turn(now) {
            return false;
        }
        self.nic.rx_burst(&mut self.received);
        let mut received = std::mem::take(&mut self.received);
        received.drain(..).for_each(|frame| self.arrived(&frame, now));
        self.received = received;
        self.send(now);
        true
    }

    /// Returns the outstanding frames and counters.
    pub fn flight(&mut self) -> &mut Flight {
        &mut self.flight
    }

    /// Returns the number of received frames that are not this load's.
    pub fn foreign(&self) -> u64 {
        self.foreign
    }

    /// Returns the queue pair.
    pub fn nic(&self) -> &N {
        &self.nic
    }

    #[inline]
    fn arrived(&mut self, frame: &N::Packet, now: Instant) {
        let Some((header, payload)) = frame.data().split_first_chunk::<ETHERNET>() else { return self.foreign += 1 };
        let arrival = if header[12..] == ETHERTYPE { self.probe.read(payload) } else { ProbeCheck::Foreign };
        match arrival {
            ProbeCheck::Valid(stamp) => {
                let &[.., a, b, c, d, e, f, _, _] = header;
                // The station that returned the first frame becomes the destination.
                if self.flight.record_answer(stamp, now) && MacAddr([a, b, c, d, e, f]).is_unicast() {
                    self.header[..6].copy_from_slice(&[a, b, c, d, e, f]);
                }
            }
            ProbeCheck::Corrupt => self.flight.corrupt_answer(),
            ProbeCheck::Foreign => self.foreign += 1,
        }
    }

    /// Fills a burst and hands it to the port.
    #[inline]
    fn send(&mut self, now: Instant) {
        while self.to_send.len() < BURST
            && let Some(stamp) = self.flight.next(now)
            && let Some(mut frame) = self.nic.allocate()
        {
            let space = frame.append(ETHERNET + self.probe.size());
            let Some((header, payload)) = space.and_then(|space| space.split_first_chunk_mut()) else { return };
            *header = self.header;
            self.probe.write(stamp, payload);
            self.flight.sent(stamp, now);
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
    use crate::{Counts, FIRST_ANSWER_TIMEOUT};
    use linerate_bypass::memory_nic::{End, Impairments, Link, LinkConfig, MemoryNic};
    use linerate_service::time::Duration;

    const PLAN: FlightPlan = FlightPlan {
        size: 64,
        slots: 3,
        warm_up: Duration::from_millis(10),
        duration: Duration::from_millis(1000),
        open: None,
    };
    const STEP: Duration = Duration::from_micros(100);

    struct Rig {
        load: Load<MemoryNic>,
        reflector: Reflector<MemoryNic>,
        now: Instant,
    }

    impl Rig {
        fn new(plan: FlightPlan, config: LinkConfig) -> Self {
            let (a, b) = Link::pair(config);
            Rig { load: Load::new(a, plan, 5), reflector: Reflector::new(b), now: Instant::from_nanos(1) }
        }

        /// Runs both ends until the load ends.
        fn run(&mut self) -> (Counts, Duration) {
            while self.load.turn(self.now) {
                self.reflector.turn();
                self.now += STEP;
            }
            let (counts, measured) = self.load.flight.result();
            (counts.clone(), measured)
        }
    }

    #[test]
    fn depth_frames_return_per_round_trip() {
        for depth in [1, 3, 100] {
            let mut rig = Rig::new(FlightPlan { slots: depth, ..PLAN }, LinkConfig::default());
            let (counts, measured) = rig.run();
            assert_eq!(measured, PLAN.duration);
            assert_eq!((counts.lost, counts.corrupt, counts.late, rig.load.foreign()), (0, 0, 0, 0));
            let rtt = counts.times.answered();
            // One turn of each end is a round trip; a turn moves at most one burst.
            let turns = (PLAN.duration.as_nanos() / STEP.as_nanos()) as u64;
            assert_eq!(counts.answered, depth.min(BURST) as u64 * turns);
            assert!(rtt.equivalent(rtt.max(), STEP.as_nanos() as u64 * depth.div_ceil(BURST) as u64) || depth == 100);
            assert_eq!(rtt.len(), counts.answered);
        }
    }

    #[test]
    fn first_answer_replaces_the_broadcast_destination() {
        let mut rig = Rig::new(PLAN, LinkConfig::default());
        rig.load.turn(rig.now);
        rig.reflector.turn();
        rig.load.turn(rig.now + STEP);
        let mut frames = Vec::with_capacity(BURST);
        // The reflector's port receives the frames in its place.
        let mut nic = rig.reflector;
        nic.turn();
        rig.load.nic.rx_burst(&mut frames);
        assert_eq!(frames.len(), PLAN.slots);
        assert!(frames.iter().all(|frame| frame.data()[6..12] == nic.nic().mac().0));
    }

    #[test]
    fn lost_frame_is_counted_and_frees_its_slot() {
        let mut rig = Rig::new(FlightPlan { slots: 1, ..PLAN }, LinkConfig::default());
        while rig.load.flight.result().0.answered < 5 || !rig.load.flight.is_measuring() {
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
        let lost = rig.load.flight.result().0.lost;
        assert_eq!(lost, 3, "one each 100 ms");
        link.impair(End::A, Impairments::default());
        let before = rig.load.flight.result().0.answered;
        let (counts, _) = rig.run();
        assert!(counts.answered > before + 4000, "{counts:?}");
        assert_eq!(counts.lost, lost + 1);
    }

    #[test]
    fn duplicate_and_corrupt_frames_are_no_answers() {
        let double = Impairments { duplication: 1.0, ..Impairments::default() };
        let mut rig = Rig::new(FlightPlan { slots: 1, ..PLAN }, LinkConfig::default());
        rig.load.nic().link().impair(End::B, double);
        let (counts, _) = rig.run();
        assert_eq!((counts.lost, counts.corrupt, counts.answered, counts.late), (0, 0, 10_000, 10_000));
        let damage = Impairments { corruption: 0.1, ..Impairments::default() };
        let mut rig = Rig::new(PLAN, LinkConfig { impairments: damage, ..LinkConfig::default() });
        let (counts, _) = rig.run();
        assert!(counts.corrupt > 0 && counts.lost > 0 && counts.answered > 0, "{counts:?}");
    }

    #[test]
    fn load_without_answers_ends_and_measures_nothing() {
        let (a, _b) = Link::pair(LinkConfig::default());
        let mut load = Load::new(a, PLAN, 5);
        let mut now = Instant::from_nanos(1);
        while load.turn(now) {
            now += Duration::from_millis(10);
        }
        assert!(now >= Instant::ZERO + FIRST_ANSWER_TIMEOUT);
        assert_eq!((load.flight.result().0.answered, load.flight.result().1), (0, Duration::ZERO));
        // One frame per 100 ms, independent of the depth.
        assert!((95..=100).contains(&load.nic().stats().tx_frames));
    }

    #[test]
    fn packets_are_returned_to_the_pool() {
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
