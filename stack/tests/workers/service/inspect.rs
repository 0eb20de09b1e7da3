//! Introspection reports the actual state of a worker.

use crate::common::client::{Client, Close};
use crate::common::services::Echo;
use crate::common::{Host, SERVER, host, server};
use linerate_bypass::memory_nic::{Impairments, Link, LinkConfig, MemoryNic};
use linerate_service::AppSender;
use linerate_service::inspect::{ConnPage, ConnState, Snapshot, StatsQuery};
use linerate_service::time::{Duration, Instant};
use linerate_stack::{Config, Engine, Mailboxes, Worker};
use std::convert::Infallible;
use std::sync::mpsc::channel;

with_each_engine! {
    snapshot_lists_connections_and_counters,
    snapshot_shows_half_open_connection,
}

/// Client, and server that can be inspected.
struct Watched<A: Engine<MemoryNic>, B: Engine<MemoryNic>> {
    client: Host<Client, A>,
    server: Worker<MemoryNic, Echo, B>,
    app_sender: AppSender<Infallible>,
    link: Link,
}

impl<A: Engine<MemoryNic>, B: Engine<MemoryNic>> Watched<A, B> {
    fn new(config: &Config, client: Client) -> Self {
        Self::over(Impairments::default(), config, client)
    }

    fn over(impairments: Impairments, config: &Config, client: Client) -> Self {
        let (a, b) = Link::pair(LinkConfig { impairments, ..LinkConfig::default() });
        let link = a.link().clone();
        let mut client = Some(client);
        let client = Host::<_, A>::start(&host(1), vec![a], || client.take().unwrap());
        let mailboxes = Mailboxes::for_workers(1).pop().unwrap();
        let app_sender = mailboxes.app_sender();
        let server = Worker::new(config, mailboxes, b, |_| Echo::default(), Instant::ZERO);
        Watched { client, server, app_sender, link }
    }

    fn run(&mut self, milliseconds: usize) {
        for _ in 0..milliseconds {
            self.link.clock().advance(Duration::from_millis(1));
            self.client.workers[0].turn(self.link.clock().now());
            self.server.turn(self.link.clock().now());
        }
    }

    fn snapshot(&mut self) -> Snapshot {
        let (reply, answer) = channel();
        assert!(self.app_sender.query(0, StatsQuery::Counters { reply }));
        self.server.turn(self.link.clock().now());
        answer.try_recv().unwrap()
    }

    fn page(&mut self, from: usize, most: usize) -> ConnPage {
        let (reply, answer) = channel();
        assert!(self.app_sender.query(0, StatsQuery::Connections { from, most, reply }));
        self.server.turn(self.link.clock().now());
        answer.try_recv().unwrap()
    }
}

fn snapshot_lists_connections_and_counters<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let client = Client::new(SERVER, 5, 3000).closing(Close::Never);
    let mut net = Watched::<A, B>::new(&server(), client);
    assert_eq!(net.snapshot().gauges.connections, 0);
    assert_eq!(net.page(0, 100), ConnPage::default());
    net.run(300);

    let snapshot = net.snapshot();
    assert_eq!((snapshot.worker, snapshot.gauges.connections, snapshot.summary.accepted), (0, 5, 5));
    assert_eq!((snapshot.gauges.half_open, snapshot.gauges.time_wait), (Some(0), Some(0)));
    assert_eq!(snapshot.gauges.tx_queued, Some(0));
    assert!(snapshot.gauges.pool_left <= snapshot.gauges.pool_share.max(snapshot.gauges.pool_left));
    assert!(snapshot.gauges.pool_share.unwrap() > 0);
    assert!(snapshot.summary.rx_bytes > 5 * 3000 && snapshot.summary.tx_bytes > 5 * 3000, "{:?}", snapshot.summary);
    let counted = net.server.summary();
    assert_eq!((snapshot.summary.rx_frames, snapshot.summary.tx_frames), (counted.rx_frames, counted.tx_frames));

    // Pages of two, two and one, without repetition.
    let (mut infos, mut from) = (Vec::new(), Some(0));
    while let Some(slot) = from {
        let page = net.page(slot, 2);
        assert!(page.connections.len() <= 2);
        infos.extend(page.connections);
        from = page.next;
    }
    assert_eq!(infos.iter().map(|info| info.conn.slot()).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    for info in &infos {
        assert_eq!(info.local.unwrap().to_string(), "10.0.0.2:7");
        assert_eq!(info.remote.ip().to_string(), "10.0.0.1");
        assert_eq!(info.state, ConnState::Established);
        assert_eq!((info.unread, info.unsent), (0, 0));
    }
}

fn snapshot_shows_half_open_connection<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let mut net = Watched::<A, B>::new(&server(), Client::new(SERVER, 1, 10));
    // The client resolves the server's address, sends its SYN, and runs no further turn.
    while net.snapshot().gauges.half_open == Some(0) {
        net.link.clock().advance(Duration::from_millis(1));
        net.client.workers[0].turn(net.link.clock().now());
        net.server.turn(net.link.clock().now());
        assert!(net.link.clock().now() < Instant::ZERO + Duration::from_secs(5));
    }
    let page = net.page(0, 10);
    assert_eq!(page.connections.len(), 1);
    assert_eq!(page.connections[0].state, ConnState::SynReceived);
    assert_eq!(net.snapshot().summary.accepted, 0);
    net.run(300);
    assert_eq!(net.snapshot().gauges.half_open, Some(0));
    assert_eq!(net.snapshot().summary.accepted, 1);
}

#[test]
fn snapshot_of_native_engine_shows_windows_times_and_time_wait() {
    let config = Config { pacing: true, ..server() };
    let mut net = Watched::<crate::common::Native, crate::common::Native>::new(
        &config,
        Client::new(SERVER, 1, 100_000).closing(Close::Never),
    );
    net.run(500);
    let info = net.page(0, 1).connections.remove(0);
    let tcp = &info.tcp;
    assert_eq!(tcp.in_flight, Some(0));
    assert!(tcp.congestion_window.unwrap() >= 10 * u64::from(tcp.mss.unwrap()), "{info:?}");
    assert!(tcp.send_window.unwrap() > 0 && tcp.receive_window.unwrap() > 0, "{info:?}");
    let (rtt, rto) = (tcp.rtt.unwrap(), tcp.rto.unwrap());
    // The mean may be too low by one timer tick at first.
    let tick = Duration::from_micros(66);
    assert!(tcp.min_rtt.unwrap() <= rtt + tick && rtt < rto, "{info:?}");
    assert_eq!((tcp.time_outs, tcp.is_recovering, tcp.reorders), (Some(0), Some(false), Some(false)));
    assert!(tcp.pacing_rate.unwrap() > 0, "{info:?}");

    // Data that the peer does not read stays queued and is reported, as are unacknowledged segments.
    let mut net = Watched::<crate::common::Native, crate::common::Native>::new(&server(), Client::new(SERVER, 1, 1000));
    net.client.workers[0].turn(net.link.clock().now());
    net.run(300);
    // The client closes first and is in TIME-WAIT; the server keeps nothing.
    let snapshot = net.snapshot();
    assert_eq!((snapshot.gauges.connections, snapshot.gauges.time_wait, snapshot.summary.finished), (0, Some(0), 1));
    assert_eq!(snapshot.gauges.packets_held, Some(0));
    assert_eq!(net.page(0, 1), ConnPage::default());
}

#[test]
fn snapshot_of_native_engine_shows_rtt_and_retransmissions() {
    let delay = Duration::from_millis(5);
    let impairments = Impairments { delay, loss: 0.02, seed: 7, ..Impairments::default() };
    let client = Client::new(SERVER, 1, 1_000_000).closing(Close::Never);
    let mut net = Watched::<crate::common::Native, crate::common::Native>::over(impairments, &server(), client);
    assert_eq!(net.snapshot().summary.retransmitted, Some(0));
    net.run(5000);
    let info = net.page(0, 1).connections.remove(0);
    let tcp = &info.tcp;
    let (least, rtt) = (tcp.min_rtt.unwrap(), tcp.rtt.unwrap());
    // Turns are one millisecond apart at each end; times have a resolution of some tens of nanoseconds.
    assert!(least + Duration::from_nanos(64) >= 2 * delay && least < 2 * delay + Duration::from_millis(4), "{info:?}");
    assert!(rtt >= 2 * delay && tcp.slow_start_threshold.is_some(), "{info:?}");
    let again = net.snapshot().summary.retransmitted;
    assert!(again.unwrap() > 0);
    // There is only one connection.
    assert_eq!(tcp.retransmitted, again);
}
