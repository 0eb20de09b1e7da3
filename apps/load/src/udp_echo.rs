//! The echo load over UDP: datagrams that must come back as they are, or are lost.

use super::flight::{AGAIN, AT_ONCE, Counts, Flight, FlightPlan};
use super::pace::Pace;
use super::probe::{Arrival, Probe};
use linerate_bypass::time::Duration;
use linerate_bypass::{BufferPool, ConnId, Datagram, Origin, Service, Transport};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A load over UDP, in a closed loop or an open one. Each connection is a port of ours that the datagrams of its share of the places are sent from; an answer
/// counts only if it comes from where the request went to, to where it came from.
///
/// A round trip is from the beginning of the event in which a datagram was sent, or in an open loop from when it was due, to that of the
/// event in which it came back.
pub struct UdpEchoLoad {
    remote: SocketAddr,
    local: IpAddr,
    /// The first of the ports.
    first: u16,
    /// Places of each of them.
    depth: usize,
    probe: Probe,
    flight: Flight,
    memory: BufferPool,
    interrupted: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    strange: u64,
}

impl UdpEchoLoad {
    /// Requests to `remote` from our address `local`, from ports from `first` on, `depth` on the way from each. `run` tells them from
    /// those of others. `interrupted` ends it; `over` is set in the end.
    pub fn new(
        remote: SocketAddr,
        (local, first): (IpAddr, u16),
        depth: usize,
        plan: FlightPlan,
        run: u64,
        (interrupted, over): (Arc<AtomicBool>, Arc<AtomicBool>),
    ) -> Self {
        let (probe, flight) = (Probe::new(plan.size, run), Flight::new(plan));
        // Those that are sent have been copied, or are in the port's hands for a moment.
        let memory = BufferPool::new(plan.size, plan.places.min(1024), 2 * plan.places + 1024);
        UdpEchoLoad { remote, local, first, depth: depth.max(1), probe, flight, memory, interrupted, over, strange: 0 }
    }

    /// What was counted, and for how long; no time at all if nothing ever came back.
    pub fn result(&self) -> (&Counts, Duration) {
        self.flight.result()
    }

    /// How the requests of an open loop were sent.
    pub fn pace(&self) -> Option<&Pace> {
        self.flight.pace()
    }

    /// Datagrams that arrived and were no answers of this load's.
    pub fn strange(&self) -> u64 {
        self.strange
    }

    fn address_of(&self, place: u32) -> SocketAddr {
        SocketAddr::new(self.local, self.first.wrapping_add((place as usize / self.depth) as u16))
    }

    /// Sends what may be sent. Returns whether the transport took all of it.
    fn send(&mut self, net: &mut impl Transport) -> bool {
        for _ in 0..AT_ONCE {
            let now = net.now();
            let Some(stamp) = self.flight.next(now) else { return true };
            let Some(mut block) = self.memory.take() else { return false };
            self.probe.write(stamp, &mut block[..self.probe.size()]);
            let payload = block.freeze(self.probe.size());
            let datagram = Datagram { local: self.address_of(stamp.place), remote: self.remote, payload };
            if net.send_datagram(datagram).is_err() {
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

    fn poll(&mut self, net: &mut impl Transport) -> Option<Duration> {
        if self.interrupted.load(Ordering::Relaxed) {
            self.flight.stop(net.now());
        }
        if !self.flight.turn(net.now()) {
            self.over.store(true, Ordering::Relaxed);
            return None;
        }
        let took_all = self.send(net);
        Some(if took_all { self.flight.rest(net.now()) } else { AGAIN })
    }

    fn datagram(&mut self, net: &mut impl Transport, datagram: Datagram) {
        match self.probe.read(&datagram.payload) {
            Arrival::Ours(stamp)
                if datagram.payload.len() == self.probe.size()
                    && datagram.remote == self.remote
                    && datagram.local.port() == self.address_of(stamp.place).port() =>
            {
                self.flight.came_back(stamp, net.now());
                self.send(net);
            }
            Arrival::Ours(_) | Arrival::Strange => self.strange += 1,
            Arrival::Corrupt => self.flight.came_back_corrupt(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Fake;
    use crate::{Arrivals, OpenLoop};

    const PLAN: FlightPlan =
        FlightPlan { size: 64, places: 6, warm_up: Duration::ZERO, duration: Duration::from_secs(1), open: None };

    fn load() -> UdpEchoLoad {
        load_of(PLAN)
    }

    fn load_of(plan: FlightPlan) -> UdpEchoLoad {
        let (remote, local) = ("10.0.0.2:7".parse().unwrap(), [10, 0, 0, 1].into());
        UdpEchoLoad::new(remote, (local, 9000), 2, plan, 5, Default::default())
    }

    /// What was sent is answered.
    fn answer(net: &mut Fake<()>, load: &mut UdpEchoLoad) -> usize {
        let sent = std::mem::take(&mut net.datagrams);
        let n = sent.len();
        for datagram in sent {
            load.datagram(net, datagram);
        }
        n
    }

    #[test]
    fn one_request_goes_first_and_then_as_many_from_each_port_as_the_depth() {
        let (mut net, mut load) = (Fake::<()>::new(1000), load());
        load.poll(&mut net);
        assert_eq!(answer(&mut net, &mut load), 1);
        load.poll(&mut net);
        let mut ports: Vec<u16> = net.datagrams.iter().map(|datagram| datagram.local.port()).collect();
        ports.sort_unstable();
        assert_eq!(ports, [9000, 9000, 9001, 9001, 9002, 9002]);
        assert_eq!(answer(&mut net, &mut load), 6);
        load.poll(&mut net);
        net.now += PLAN.duration;
        load.poll(&mut net);
        assert!(load.over.load(Ordering::Relaxed));
        assert_eq!(load.result().1, PLAN.duration);
    }

    #[test]
    fn requests_of_an_open_loop_go_when_they_are_due_and_count_from_then() {
        let open = Some(OpenLoop { rate: 1000.0, arrivals: Arrivals::Even });
        let (mut net, mut load) = (Fake::<()>::new(1000), load_of(FlightPlan { open, ..PLAN }));
        load.poll(&mut net);
        assert_eq!(answer(&mut net, &mut load), 1);
        let from = net.now;
        // The first is due at once, and the others a millisecond apart.
        assert_eq!(load.poll(&mut net), Some(Duration::from_millis(1)));
        assert_eq!(answer(&mut net, &mut load), 1);
        net.now = from + Duration::from_millis(3);
        load.poll(&mut net);
        assert_eq!(net.datagrams.len(), 3, "they are due, whatever has come back");
        net.now = from + Duration::from_millis(20);
        load.poll(&mut net);
        assert_eq!(net.datagrams.len(), 6, "there are no more places");
        answer(&mut net, &mut load);
        let longest = load.result().0.rtt_nanos.max();
        assert!((18_900_000..19_100_000).contains(&longest), "{longest}");
        net.now = from + PLAN.duration;
        load.poll(&mut net);
        let pace = load.pace().unwrap();
        assert!(load.over.load(Ordering::Relaxed) && (999..=1001).contains(&pace.due()), "{}", pace.due());
    }

    #[test]
    fn an_answer_from_elsewhere_or_to_another_port_or_with_more_bytes_does_not_count() {
        let (mut net, mut load) = (Fake::<()>::new(1000), load());
        load.poll(&mut net);
        let Datagram { local, remote, payload } = net.datagrams.remove(0);
        let elsewhere = Datagram { local, remote: "10.0.0.3:7".parse().unwrap(), payload: payload.clone() };
        let other_port = Datagram { local: "10.0.0.1:9001".parse().unwrap(), remote, payload: payload.clone() };
        let longer = [&payload[..], b"x"].concat();
        let longer = Datagram { local, remote, payload: longer.into() };
        for wrong in [elsewhere, other_port, longer] {
            load.datagram(&mut net, wrong);
        }
        assert_eq!((load.strange(), load.result().0.answered), (3, 0));
        load.datagram(&mut net, Datagram { local, remote, payload: payload.clone() });
        assert_eq!(load.result().0.answered, 1);
        load.datagram(&mut net, Datagram { local, remote, payload });
        assert_eq!((load.result().0.answered, load.result().0.late), (1, 1));
    }

    #[test]
    fn a_lost_request_frees_its_place() {
        let (mut net, mut load) = (Fake::<()>::new(1000), load());
        load.poll(&mut net);
        net.datagrams.clear();
        net.now += Duration::from_millis(99);
        load.poll(&mut net);
        assert_eq!((net.datagrams.len(), load.result().0.lost), (0, 0));
        net.now += Duration::from_millis(6);
        load.poll(&mut net);
        assert_eq!((net.datagrams.len(), load.result().0.lost), (1, 1));
    }
}
