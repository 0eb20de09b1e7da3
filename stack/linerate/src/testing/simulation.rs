//! Two hosts on a link, and their virtual time.

use super::Impairments;
use super::peer::{Peer, PeerConn};
use linerate_bypass::memory_nic::{End, Link, LinkConfig, MemoryNic};
use linerate_service::time::{Duration, Instant};
use linerate_service::{CloseReason, ConnectError, Datagram, Service, WorkerCtx};
use linerate_stack::{Config, Mailboxes, Worker};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Address of the host of the service.
pub const SERVICE_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// Address of the host of the peer.
pub const PEER_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
/// Limit of virtual time of an operation that waits, such as [`Simulation::run_until`].
pub const TIME_LIMIT: Duration = Duration::from_secs(1800);
/// Time within which a worker notices a change of the link.
const LINK_TIME: Duration = Duration::from_millis(100);
/// Smallest step of the clock. The last turn may have woken a task that is due at the same time.
const SMALLEST_STEP: Duration = Duration::from_micros(1);

type Host<S> = Worker<MemoryNic, S>;

/// Network of two hosts in virtual time: a service under test, and its peer.
///
/// Both hosts listen on the same ports, so that the service can connect to its peer, too. Operations that wait panic
/// after [`TIME_LIMIT`] of virtual time.
pub struct Simulation<S: Service, P: Service = Peer> {
    service: Host<S>,
    peer: Host<P>,
    link: Link,
    /// Time at which the hosts notice the last change of the link.
    link_due: Instant,
}

/// Creates the host with the `last` byte of an address.
fn host<S: Service>(
    last: u8,
    nic: MemoryNic,
    ports: &[u16],
    make: impl FnOnce(WorkerCtx<S::Message>) -> S,
    now: Instant,
) -> Host<S> {
    let listen: Vec<SocketAddr> = ports.iter().map(|port| (Ipv4Addr::UNSPECIFIED, *port).into()).collect();
    let config = Config {
        addresses: vec![format!("10.0.0.{last}/24").parse().expect("an address with its prefix")],
        mac: Some(format!("02:00:00:00:00:{last:02x}").parse().expect("an Ethernet address")),
        listen_udp: listen.clone(),
        listen,
        seed: last.into(),
        ..Config::default()
    };
    Worker::new(&config, Mailboxes::for_workers(1).remove(0), nic, make, now)
}

impl<S: Service, P: Service> Simulation<S, P> {
    /// Creates a network whose hosts listen on TCP and UDP `ports`. `service` creates the service at [`SERVICE_IP`],
    /// and `peer` the service at [`PEER_IP`].
    pub fn with_peer(
        ports: &[u16],
        service: impl FnOnce(WorkerCtx<S::Message>) -> S,
        peer: impl FnOnce(WorkerCtx<P::Message>) -> P,
    ) -> Self {
        let (a, b) = Link::pair(LinkConfig::default());
        let link = a.link().clone();
        let now = link.clock().now();
        Simulation { peer: host(1, a, ports, peer, now), service: host(2, b, ports, service, now), link, link_due: now }
    }

    /// Sets the impairments of the link in both directions.
    pub fn impair(&mut self, impairments: &Impairments) {
        for end in [End::A, End::B] {
            self.link.impair(end, impairments.clone());
        }
    }

    /// Sets the state of the link. Frames that are sent while it is down are lost.
    pub fn set_link_up(&mut self, up: bool) {
        self.link.set_up(up);
        self.link_due = self.now() + LINK_TIME;
    }

    /// Returns the virtual time, which begins at [`Instant::ZERO`].
    pub fn now(&self) -> Instant {
        self.link.clock().now()
    }

    /// Returns the service.
    pub fn service(&self) -> &S {
        self.service.service()
    }

    /// Returns the service.
    pub fn service_mut(&mut self) -> &mut S {
        self.service.service_mut()
    }

    /// Returns the service of the peer.
    pub fn peer(&self) -> &P {
        self.peer.service()
    }

    /// Returns the service of the peer.
    pub fn peer_mut(&mut self) -> &mut P {
        self.peer.service_mut()
    }

    /// Runs both hosts for `duration`.
    pub fn run_for(&mut self, duration: Duration) {
        let end = self.now() + duration;
        while self.now() < end {
            if !self.turn() {
                self.advance(end);
            }
        }
    }

    /// Runs both hosts until `done`, which is checked after each turn. The clock advances from event to event:
    /// [`run_for`](Self::run_for) waits for a time.
    ///
    /// # Panics
    /// If it is not done within [`TIME_LIMIT`].
    #[track_caller]
    pub fn run_until(&mut self, mut done: impl FnMut(&Self) -> bool) {
        let end = self.now() + TIME_LIMIT;
        while !done(self) {
            assert!(self.now() < end, "not done within {TIME_LIMIT:?} of virtual time");
            if !self.turn() && !done(self) {
                self.advance(end);
            }
        }
    }

    /// Runs a turn of each host. Returns whether one of them had work.
    fn turn(&mut self) -> bool {
        let now = self.now();
        self.peer.turn(now) + self.service.turn(now) > 0
    }

    /// Advances the clock to the next event, at most to `end`.
    fn advance(&mut self, end: Instant) {
        let Simulation { service, peer, link, link_due } = self;
        let now = link.clock().now();
        let deadlines = [peer.next_deadline(), service.next_deadline()];
        let arrivals = [peer.nic().next_arrival(), service.nic().next_arrival()];
        let link_due = Some(*link_due).filter(|at| *at > now);
        let next = deadlines.into_iter().chain(arrivals).chain([link_due]).flatten().min().unwrap_or(end);
        link.clock().advance_to(next.max(now + SMALLEST_STEP).min(end));
    }
}

impl<S: Service> Simulation<S> {
    /// Creates a network whose hosts listen on TCP and UDP `ports`: `service` creates the service at [`SERVICE_IP`],
    /// and the test controls its peer.
    pub fn new(ports: &[u16], service: impl FnOnce(WorkerCtx<S::Message>) -> S) -> Self {
        Simulation::with_peer(ports, service, |_| Peer::default())
    }

    /// Starts a connection of the peer to `port` of the service. Bytes can be sent at once: they follow the handshake.
    pub fn connect(&mut self, port: u16) -> PeerConn {
        self.peer_mut().connect(SocketAddr::new(SERVICE_IP, port))
    }

    /// Waits for a connection of the service to the peer, and returns the first one that no earlier call has returned.
    ///
    /// # Panics
    /// If the service does not connect within [`TIME_LIMIT`].
    #[track_caller]
    pub fn accept(&mut self) -> PeerConn {
        self.run_until(|sim| sim.peer().has_waiting());
        self.peer_mut().accept().expect("a connection waits")
    }

    /// Sends `bytes` from the peer.
    pub fn send(&mut self, conn: PeerConn, bytes: &[u8]) {
        self.peer_mut().send(conn, bytes);
    }

    /// Waits until the peer has received `n` bytes that no earlier call has returned, and returns them.
    ///
    /// # Panics
    /// If they do not arrive within [`TIME_LIMIT`].
    #[track_caller]
    pub fn receive(&mut self, conn: PeerConn, n: usize) -> Vec<u8> {
        self.run_until(|sim| sim.received(conn).len() >= n);
        self.peer_mut().take(conn, n)
    }

    /// Waits until the service has closed its side, and returns the bytes that no earlier call has returned.
    ///
    /// # Panics
    /// If it does not close within [`TIME_LIMIT`].
    #[track_caller]
    pub fn receive_to_end(&mut self, conn: PeerConn) -> Vec<u8> {
        self.run_until(|sim| sim.peer().has_end(conn));
        let n = self.received(conn).len();
        self.peer_mut().take(conn, n)
    }

    /// Returns the bytes that the peer has received and no call has returned.
    pub fn received(&self, conn: PeerConn) -> &[u8] {
        self.peer().received(conn)
    }

    /// Sets whether the peer reads; it does by default. While it does not, its window closes, and the service
    /// eventually has no space to send.
    pub fn set_reading(&mut self, conn: PeerConn, reading: bool) {
        self.peer_mut().set_reading(conn, reading);
    }

    /// Closes the side of the peer, after all bytes sent so far.
    pub fn close(&mut self, conn: PeerConn) {
        self.peer_mut().close(conn);
    }

    /// Resets the connection from the side of the peer.
    pub fn abort(&mut self, conn: PeerConn) {
        self.peer_mut().abort(conn);
    }

    /// Returns the peer's close reason of a connection; `None` unless the connection has ended.
    pub fn close_reason(&self, conn: PeerConn) -> Option<CloseReason> {
        self.peer().close_reason(conn)
    }

    /// Returns the error of a connection attempt of the peer; `None` unless the attempt has failed.
    pub fn connect_error(&self, conn: PeerConn) -> Option<ConnectError> {
        self.peer().connect_error(conn)
    }

    /// Sends a datagram from `port` of the peer to the same port of the service.
    pub fn send_datagram(&mut self, port: u16, payload: &[u8]) {
        let (local, remote) = (SocketAddr::new(PEER_IP, port), SocketAddr::new(SERVICE_IP, port));
        self.peer_mut().send_datagram(Datagram { local, remote, payload: payload.to_vec().into() });
    }

    /// Waits for a datagram that no earlier call has returned.
    ///
    /// # Panics
    /// If none arrives within [`TIME_LIMIT`].
    #[track_caller]
    pub fn receive_datagram(&mut self) -> Datagram {
        self.run_until(|sim| sim.peer().has_datagram());
        self.peer_mut().take_datagram().expect("a datagram has arrived")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_service::{ConnId, Origin, Transport};

    /// Counter of turns.
    #[derive(Default)]
    struct Turns(usize);

    impl Service for Turns {
        type Conn = ();
        type Message = ();

        fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {}

        fn turn(&mut self, _: &mut impl Transport) -> Option<std::time::Duration> {
            self.0 += 1;
            None
        }
    }

    #[test]
    fn hours_without_events_take_few_turns() {
        const HOUR: Duration = Duration::from_secs(3600);
        let mut sim = Simulation::new(&[7], |_| Turns::default());
        sim.run_for(10 * HOUR);
        assert_eq!(sim.now(), Instant::ZERO + 10 * HOUR);
        let turns = sim.service().0;
        assert!(turns < 100, "{turns} turns");
        // The hosts see the link go down and up.
        for up in [false, true] {
            let before = sim.service().0;
            sim.set_link_up(up);
            sim.run_for(HOUR);
            let turns = sim.service().0 - before;
            assert!((2..100).contains(&turns), "{turns} turns");
        }
        sim.run_until(|sim| sim.service().0 > turns);
    }
}
