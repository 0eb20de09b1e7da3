//! What is told of a running worker from outside is what is the case.

use crate::common::client::{Client, Close};
use crate::common::services::Echo;
use crate::common::{Host, SERVER, host, server};
use linerate_bypass::AppSender;
use linerate_bypass::inspect::{ConnPage, ConnState, Snapshot, StatsQuery};
use linerate_bypass::memory_nic::{Impairments, Link, LinkConfig, MemoryNic};
use linerate_bypass::time::{Duration, Instant};
use linerate_stack::{Config, Engine, Mailboxes, Worker};
use std::convert::Infallible;
use std::sync::mpsc::channel;

with_each_engine! {
    connections_and_counters_are_told_as_they_are,
    a_connection_begun_by_a_peer_that_goes_away_is_told_as_half_open,
}

/// A client, and a server that can be asked.
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

fn connections_and_counters_are_told_as_they_are<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let client = Client::new(SERVER, 5, 3000).closing(Close::Never);
    let mut net = Watched::<A, B>::new(&server(), client);
    assert_eq!(net.snapshot().gauges.connections, 0);
    assert_eq!(net.page(0, 100), ConnPage::default());
    net.run(300);

    let told = net.snapshot();
    assert_eq!((told.worker, told.gauges.connections, told.summary.accepted), (0, 5, 5));
    assert_eq!((told.gauges.half_open, told.gauges.time_wait), (Some(0), Some(0)));
    assert_eq!(told.gauges.tx_queued, Some(0));
    assert!(told.gauges.pool_left <= told.gauges.pool_share.max(told.gauges.pool_left));
    assert!(told.gauges.pool_share.unwrap() > 0);
    assert!(told.summary.rx_bytes > 5 * 3000 && told.summary.tx_bytes > 5 * 3000, "{:?}", told.summary);
    let counted = net.server.summary();
    assert_eq!((told.summary.rx_frames, told.summary.tx_frames), (counted.rx_frames, counted.tx_frames));

    // Two and two and one, each once.
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

fn a_connection_begun_by_a_peer_that_goes_away_is_told_as_half_open<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let mut net = Watched::<A, B>::new(&server(), Client::new(SERVER, 1, 10));
    // The client asks for the server's address and sends its SYN, and has no turn after that.
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
fn the_native_engine_tells_of_windows_times_and_time_wait() {
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
    // The mean begins up to a tick of the timers too short.
    let tick = Duration::from_micros(66);
    assert!(tcp.min_rtt.unwrap() <= rtt + tick && rtt < rto, "{info:?}");
    assert_eq!((tcp.time_outs, tcp.is_recovering, tcp.reorders), (Some(0), Some(false), Some(false)));
    assert!(tcp.pacing_rate.unwrap() > 0, "{info:?}");

    // What the peer does not take stays, is told, and so is that nothing is acknowledged.
    let mut net = Watched::<crate::common::Native, crate::common::Native>::new(&server(), Client::new(SERVER, 1, 1000));
    net.client.workers[0].turn(net.link.clock().now());
    net.run(300);
    // Who closes first, the client, has it in TIME-WAIT; here nothing is left.
    let told = net.snapshot();
    assert_eq!((told.gauges.connections, told.gauges.time_wait, told.summary.finished), (0, Some(0), 1));
    assert_eq!(told.gauges.packets_held, Some(0));
    assert_eq!(net.page(0, 1), ConnPage::default());
}

#[test]
fn the_native_engine_tells_the_round_trip_time_of_the_path_and_of_segments_that_it_sent_again() {
    let delay = Duration::from_millis(5);
    let way = Impairments { delay, loss: 0.02, seed: 7, ..Impairments::default() };
    let client = Client::new(SERVER, 1, 1_000_000).closing(Close::Never);
    let mut net = Watched::<crate::common::Native, crate::common::Native>::over(way, &server(), client);
    assert_eq!(net.snapshot().summary.retransmitted, Some(0));
    net.run(5000);
    let info = net.page(0, 1).connections.remove(0);
    let tcp = &info.tcp;
    let (least, rtt) = (tcp.min_rtt.unwrap(), tcp.rtt.unwrap());
    // Turns are a millisecond apart, at either end; times are kept to some tens of nanoseconds.
    assert!(least + Duration::from_nanos(64) >= 2 * delay && least < 2 * delay + Duration::from_millis(4), "{info:?}");
    assert!(rtt >= 2 * delay && tcp.slow_start_threshold.is_some(), "{info:?}");
    let again = net.snapshot().summary.retransmitted;
    assert!(again.unwrap() > 0);
    // There is one connection only.
    assert_eq!(tcp.retransmitted, again);
}
