use super::*;
use crate::mailbox::mailbox;
use crate::time::Duration;
use crate::{Bytes, CloseReason, Datagram, Origin, Unsent, WriteError};
use std::net::{Ipv4Addr, SocketAddr};

/// Connection that receives counts of bytes.
struct Conn {
    life: Lifecycle,
    received: usize,
}

impl Tracked for Conn {
    fn life(&self) -> &Lifecycle {
        &self.life
    }

    fn life_mut(&mut self) -> &mut Lifecycle {
        &mut self.life
    }

    fn is_read(&self) -> bool {
        self.received == 0
    }
}

/// Transport whose peers the tests play.
struct Net {
    now: Instant,
    table: ConnTable<Conn>,
    /// True if the peers acknowledge at once.
    acknowledges: bool,
}

impl Net {
    fn receive(&mut self, id: ConnId, n: usize) {
        let conn = self.table.slots.get_mut(id).unwrap();
        conn.received += n;
        conn.life.pending.readable = n > 0;
        self.table.list(id);
    }

    fn finish(&mut self, id: ConnId) {
        self.table.life_mut(id).unwrap().receiving = Receiving::Ended;
        self.table.list(id);
    }
}

impl Transport for Net {
    fn now(&self) -> Instant {
        self.now
    }

    fn worker(&self) -> usize {
        0
    }

    fn local_addr(&self, _: ConnId) -> Option<SocketAddr> {
        None
    }

    fn peer_addr(&self, _: ConnId) -> Option<SocketAddr> {
        None
    }

    fn received(&self, id: ConnId) -> usize {
        self.table.slots.get(id).map_or(0, |conn| conn.received)
    }

    fn peek(&mut self, _: ConnId) -> &[u8] {
        &[]
    }

    fn consume(&mut self, id: ConnId, n: usize) {
        let Some(conn) = self.table.slots.get_mut(id) else { return };
        conn.received -= n.min(conn.received);
        self.table.list(id);
    }

    fn take(&mut self, _: ConnId, _: usize) -> Option<Bytes> {
        None
    }

    fn send_space(&mut self, id: ConnId) -> usize {
        usize::from(self.table.life_mut(id).is_some_and(|life| life.may_send()))
    }

    fn send(&mut self, _: ConnId, bytes: Bytes) -> Result<(), Unsent> {
        Err(Unsent { bytes, error: WriteError::Full })
    }

    fn reserve(&mut self, _: ConnId, _: usize) -> Result<&mut [u8], WriteError> {
        Err(WriteError::Full)
    }

    fn commit(&mut self, _: ConnId, _: usize) {}

    fn close(&mut self, id: ConnId) {
        if self.table.begin_close(id) && self.acknowledges {
            self.table.life_mut(id).unwrap().sending = Sending::Finished;
        }
    }

    fn lingering_close(&mut self, id: ConnId) {
        lingering_close(self, id);
    }

    fn abort(&mut self, id: ConnId) {
        self.table.silence(id);
        self.table.end(id, CloseReason::Aborted);
    }

    fn set_timer(&mut self, id: ConnId, delay: Option<Duration>) {
        self.table.set_service_timer(id, delay.map(|delay| self.now + delay));
    }

    fn connect(&mut self, _: SocketAddr, token: u64) {
        self.table.report_failed(token, crate::ConnectError::Refused);
    }

    fn send_datagram(&mut self, datagram: Datagram) -> Result<(), Datagram> {
        Err(datagram)
    }
}

impl HostedNet for Net {
    fn take_events(&mut self, events: &mut EventBatch) {
        self.table.take_events(events);
    }

    fn has_events(&self) -> bool {
        self.table.has_events()
    }

    fn flush(&mut self) {}

    fn silenced(&mut self) -> &mut Silenced {
        &mut self.table.silenced
    }

    fn is_open(&self, id: ConnId) -> bool {
        self.table.is_open(id)
    }

    fn is_delivered(&self, _: ConnId) -> bool {
        self.acknowledges
    }

    fn set_deadline(&mut self, id: ConnId, at: Instant) {
        self.table.set_timer(id, Some(at));
    }

    fn peer_closed_reported(&mut self, id: ConnId) {
        if self.table.peer_closed_reported(id) {
            self.table.end(id, CloseReason::Finished);
        }
    }

    fn release(&mut self, id: ConnId) {
        self.table.remove(id);
    }

    fn snapshot(&mut self) -> Snapshot {
        Snapshot::default()
    }

    fn slot_count(&self) -> usize {
        self.table.slots.slot_count()
    }

    fn conn_info(&self, _: usize) -> Option<ConnInfo> {
        None
    }
}

/// Service that records its events. It closes after its peer.
#[derive(Default)]
struct Recorder {
    lingers: bool,
    events: Vec<&'static str>,
    closed: Option<CloseReason>,
}

impl Service for Recorder {
    type Conn = ();
    type Message = ();

    fn opened(&mut self, _: &mut impl Transport, _: ConnId, _: Origin) {
        self.events.push("opened");
    }

    fn failed(&mut self, net: &mut impl Transport, token: u64, _: crate::ConnectError) {
        self.events.push("failed");
        net.connect((Ipv4Addr::LOCALHOST, 1).into(), token);
    }

    fn readable(&mut self, net: &mut impl Transport, id: ConnId, (): &mut ()) {
        self.events.push("readable");
        net.consume(id, usize::MAX);
        if self.lingers {
            net.lingering_close(id);
        }
    }

    fn writable(&mut self, _: &mut impl Transport, _: ConnId, (): &mut ()) {
        self.events.push("writable");
    }

    fn peer_closed(&mut self, net: &mut impl Transport, id: ConnId, (): &mut ()) {
        self.events.push("peer_closed");
        net.close(id);
    }

    fn timer(&mut self, _: &mut impl Transport, _: ConnId, (): &mut ()) {
        self.events.push("timer");
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), reason: CloseReason) {
        self.events.push("closed");
        self.closed = Some(reason);
    }
}

/// Returns a host with one connection, which is established.
fn host(lingers: bool, acknowledges: bool) -> (ServiceHost<Net, Recorder>, ConnId) {
    let mut table = ConnTable::new(0, 4);
    let id = table.slots.insert(Conn { life: Lifecycle::new(Stage::Open), received: 0 }).unwrap();
    table.report_opened(id, Origin::Accepted);
    let net = Net { now: Instant::ZERO, table, acknowledges };
    let service = Recorder { lingers, ..Recorder::default() };
    (ServiceHost::new(net, service, mailbox(1).1), id)
}

#[test]
fn events_occur_in_the_documented_order() {
    let (mut host, id) = host(false, true);
    host.net.set_timer(id, Some(Duration::ZERO));
    host.net.table.expire(Instant::ZERO);
    host.net.table.life_mut(id).unwrap().wants_room = true;
    host.net.table.offer_room(id);
    host.net.finish(id);
    host.deliver();
    assert_eq!(host.service.events, ["opened", "writable", "peer_closed", "timer", "closed"]);
    assert_eq!(host.service.closed, Some(CloseReason::Finished));
}

#[test]
fn end_of_connection_follows_unread_data_and_their_end() {
    let (mut host, id) = host(false, true);
    host.net.receive(id, 1);
    host.net.finish(id);
    host.net.table.end(id, CloseReason::Reset);
    host.deliver();
    assert_eq!(host.service.events, ["opened", "readable", "peer_closed", "closed"]);
}

#[test]
fn failures_within_a_turn_are_bounded() {
    let (mut host, _) = host(false, true);
    host.net.connect((Ipv4Addr::LOCALHOST, 1).into(), 0);
    host.deliver();
    assert_eq!(host.service.events.iter().filter(|event| **event == "failed").count(), EVENT_ROUNDS);
}

#[test]
fn lingering_close_is_bounded() {
    let second = Duration::from_secs(1);
    // Acknowledging peer, received bytes, whether the peer closes, and the end: its time and its reason.
    for (acknowledges, bytes, closes, (end, reason)) in [
        (true, LINGER_BYTES, true, (second, CloseReason::Finished)),
        (true, LINGER_BYTES + 1, true, (second, CloseReason::Aborted)),
        (true, LINGER_BYTES, false, (LINGER_TIME, CloseReason::Aborted)),
        (false, 0, false, (LINGER_LIMIT, CloseReason::Aborted)),
        (false, 0, true, (LINGER_LIMIT, CloseReason::Aborted)),
    ] {
        let (mut host, id) = host(true, acknowledges);
        // The expiry of the service's timer is no deadline of the lingering close.
        host.net.set_timer(id, Some(Duration::ZERO));
        host.net.table.expire(Instant::ZERO);
        host.net.receive(id, 1);
        host.deliver();
        while host.service.closed.is_none() {
            host.net.now += second;
            if host.net.now.since(Instant::ZERO) == second {
                host.net.receive(id, bytes);
                if closes {
                    host.net.finish(id);
                }
            }
            host.net.table.expire(host.net.now);
            host.deliver();
        }
        assert_eq!((host.net.now.since(Instant::ZERO), host.service.closed), (end, Some(reason)));
        assert_eq!(host.service.events, ["opened", "readable", "closed"]);
        assert!(host.net.silenced().is_empty());
    }
}
