//! Echo load over UDP: datagrams that the server must return unchanged, and that may be lost.

use super::flight::{Counts, Flight, FlightPlan, RETRY_DELAY, SEND_BATCH};
use super::probe::{Probe, ProbeCheck};
use crate::Pace;
use linerate_service::time::Duration;
use linerate_service::{ConnId, Datagram, Origin, Service, Stop, Transport};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Echo load over UDP, in a closed or an open loop. Each connection is a local port, from which its share of the
/// requests is sent. An answer is valid only with the source and destination addresses of its request reversed.
///
/// A round trip is measured from the beginning of the event that sent the datagram, or from the due time in an open
/// loop, to the beginning of the event that received the answer.
pub struct UdpEchoLoad {
    remote: SocketAddr,
    local: IpAddr,
    /// First local port.
    first: u16,
    /// Slots of each port.
    depth: usize,
    probe: Probe,
    flight: Flight,
    interrupted: Stop,
    over: Arc<AtomicBool>,
    foreign: u64,
}

impl UdpEchoLoad {
    /// Creates a load of requests to `remote` from the address `local` and successive ports from `first` on, with
    /// `depth` outstanding from each. `run` identifies this run's requests. `interrupted` ends the load; the load sets
    /// `over` at its end.
    pub fn new(
        remote: SocketAddr,
        (local, first): (IpAddr, u16),
        depth: usize,
        plan: FlightPlan,
        run: u64,
        (interrupted, over): (Stop, Arc<AtomicBool>),
    ) -> Self {
        let (probe, flight) = (Probe::new(plan.size, run), Flight::new(plan));
        UdpEchoLoad { remote, local, first, depth: depth.max(1), probe, flight, interrupted, over, foreign: 0 }
    }

    /// Returns the counters and the measured duration, which is zero if there was no answer.
    pub fn result(&self) -> (&Counts, Duration) {
        self.flight.result()
    }

    /// Returns the pace of an open loop.
    pub fn pace(&self) -> Option<&Pace> {
        self.flight.pace()
    }

    /// Returns the number of received datagrams that are no answers to this load.
    pub fn foreign(&self) -> u64 {
        self.foreign
    }

    fn address_of(&self, slot: u32) -> SocketAddr {
        SocketAddr::new(self.local, self.first.wrapping_add((slot as usize / self.depth) as u16))
    }

    /// Sends as much as possible; returns whether the transport accepted all of it.
    fn send(&mut self, net: &mut impl Transport) -> bool {
        for _ in 0..SEND_BATCH {
            let now = net.now();
            let Some(stamp) = self.flight.next(now) else { return true };
            let (local, size) = (self.address_of(stamp.slot), self.probe.size());
            if !net.write_datagram(local, self.remote, size, |block| self.probe.write(stamp, block)) {
                return false;
            }
            self.flight.sent(stamp, now);
        }
        false
    }
}

impl Service for UdpEchoLoad {
    type Conn = ();
    type Message = Infallible;

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        net.abort(conn);
    }

    fn turn(&mut self, net: &mut impl Transport) -> Option<Duration> {
        if self.interrupted.is_stopped() {
            self.flight.stop(net.now());
        }
        if !self.flight.turn(net.now()) {
            self.over.store(true, Ordering::Relaxed);
            return None;
        }
        let took_all = self.send(net);
        Some(if took_all { self.flight.rest(net.now()) } else { RETRY_DELAY })
    }

    fn datagram(&mut self, net: &mut impl Transport, datagram: Datagram) {
        match self.probe.read(&datagram.payload) {
            ProbeCheck::Valid(stamp)
                if datagram.payload.len() == self.probe.size()
                    && datagram.remote == self.remote
                    && datagram.local.port() == self.address_of(stamp.slot).port() =>
            {
                self.flight.record_answer(stamp, net.now());
                self.send(net);
            }
            ProbeCheck::Valid(_) | ProbeCheck::Foreign => self.foreign += 1,
            ProbeCheck::Corrupt => self.flight.corrupt_answer(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeTransport;
    use crate::{Arrivals, OpenLoop};

    const PLAN: FlightPlan =
        FlightPlan { size: 64, slots: 6, warm_up: Duration::ZERO, duration: Duration::from_secs(1), open: None };

    fn load() -> UdpEchoLoad {
        load_of(PLAN)
    }

    fn load_of(plan: FlightPlan) -> UdpEchoLoad {
        let (remote, local) = ("10.0.0.2:7".parse().unwrap(), [10, 0, 0, 1].into());
        UdpEchoLoad::new(remote, (local, 9000), 2, plan, 5, Default::default())
    }

    /// Answers the sent datagrams.
    fn answer(net: &mut FakeTransport<()>, load: &mut UdpEchoLoad) -> usize {
        let sent = std::mem::take(&mut net.datagrams);
        let n = sent.len();
        for datagram in sent {
            load.datagram(net, datagram);
        }
        n
    }

    #[test]
    fn first_answer_raises_outstanding_requests_to_the_depth() {
        let (mut net, mut load) = (FakeTransport::<()>::new(1000), load());
        load.turn(&mut net);
        assert_eq!(answer(&mut net, &mut load), 1);
        load.turn(&mut net);
        let mut ports: Vec<u16> = net.datagrams.iter().map(|datagram| datagram.local.port()).collect();
        ports.sort_unstable();
        assert_eq!(ports, [9000, 9000, 9001, 9001, 9002, 9002]);
        assert_eq!(answer(&mut net, &mut load), 6);
        load.turn(&mut net);
        net.now += PLAN.duration;
        load.turn(&mut net);
        assert!(load.over.load(Ordering::Relaxed));
        assert_eq!(load.result().1, PLAN.duration);
    }

    #[test]
    fn open_loop_requests_are_sent_when_due_and_timed_from_then() {
        let open = Some(OpenLoop { rate: 1000.0, arrivals: Arrivals::Even });
        let (mut net, mut load) = (FakeTransport::<()>::new(1000), load_of(FlightPlan { open, ..PLAN }));
        load.turn(&mut net);
        assert_eq!(answer(&mut net, &mut load), 1);
        let from = net.now;
        // The first is due at once, and the others at intervals of a millisecond.
        assert_eq!(load.turn(&mut net), Some(Duration::from_millis(1)));
        assert_eq!(answer(&mut net, &mut load), 1);
        net.now = from + Duration::from_millis(3);
        load.turn(&mut net);
        assert_eq!(net.datagrams.len(), 3, "due requests do not depend on answers");
        net.now = from + Duration::from_millis(20);
        load.turn(&mut net);
        assert_eq!(net.datagrams.len(), 6, "all slots are in use");
        answer(&mut net, &mut load);
        let longest = load.result().0.times.answered().max();
        assert!((18_900_000..19_100_000).contains(&longest), "{longest}");
        net.now = from + PLAN.duration;
        load.turn(&mut net);
        let pace = load.pace().unwrap();
        assert!(load.over.load(Ordering::Relaxed) && (999..=1001).contains(&pace.due()), "{}", pace.due());
        let (Counts { answered, lost, times, .. }, _) = load.result();
        let left_out = pace.due() - lost - times.all().len();
        assert!(left_out < 20, "{left_out}: only the last have waited less than 20 ms; {answered} were answered");
        assert!(times.stalled() > 400 && times.all().max() > 900_000_000, "{}", times.stalled());
    }

    #[test]
    fn answer_with_wrong_address_port_or_length_does_not_count() {
        let (mut net, mut load) = (FakeTransport::<()>::new(1000), load());
        load.turn(&mut net);
        let Datagram { local, remote, payload } = net.datagrams.remove(0);
        let elsewhere = Datagram { local, remote: "10.0.0.3:7".parse().unwrap(), payload: payload.clone() };
        let other_port = Datagram { local: "10.0.0.1:9001".parse().unwrap(), remote, payload: payload.clone() };
        let longer = [&payload[..], b"x"].concat();
        let longer = Datagram { local, remote, payload: longer.into() };
        for wrong in [elsewhere, other_port, longer] {
            load.datagram(&mut net, wrong);
        }
        assert_eq!((load.foreign(), load.result().0.answered), (3, 0));
        load.datagram(&mut net, Datagram { local, remote, payload: payload.clone() });
        assert_eq!(load.result().0.answered, 1);
        load.datagram(&mut net, Datagram { local, remote, payload });
        assert_eq!((load.result().0.answered, load.result().0.late), (1, 1));
    }

    #[test]
    fn lost_request_frees_its_slot() {
        let (mut net, mut load) = (FakeTransport::<()>::new(1000), load());
        load.turn(&mut net);
        net.datagrams.clear();
        net.now += Duration::from_millis(99);
        load.turn(&mut net);
        assert_eq!((net.datagrams.len(), load.result().0.lost), (0, 0));
        net.now += Duration::from_millis(6);
        load.turn(&mut net);
        assert_eq!((net.datagrams.len(), load.result().0.lost), (1, 1));
    }
}
