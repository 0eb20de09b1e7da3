//! Callbacks of a service other than network events: messages of other threads, timers, and `poll`.

use crate::common::client::{Client, Close};
use crate::common::{Host, Net, SERVER, host, server};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic};
use linerate_service::time::{Duration, Instant};
use linerate_service::{AppSender, CloseReason, ConnId, Origin, Service, Transport, WorkerCtx};
use linerate_stack::{Engine, Mailboxes, Worker};

const SECOND: Duration = Duration::from_secs(1);

with_all_engine_pairs! {
    messages_timers_and_aborts_reach_their_connection,
}

/// Service that answers each connection with the message of another thread and records its callbacks.
struct Deferred {
    app_sender: AppSender<&'static str>,
    messages: Vec<&'static str>,
    /// Time of the last `poll`, and the sleep time that it permits.
    polled: Instant,
    rest: Option<Duration>,
    answered: Vec<(ConnId, &'static str)>,
    ticks: Vec<Instant>,
    conns: Vec<ConnId>,
    closed: Vec<CloseReason>,
}

impl Deferred {
    fn new(ctx: WorkerCtx<&'static str>) -> Self {
        let polled = Instant::ZERO;
        let app_sender = ctx.app_sender;
        Deferred {
            app_sender,
            messages: vec![],
            polled,
            rest: None,
            answered: vec![],
            ticks: vec![],
            conns: vec![],
            closed: vec![],
        }
    }
}

impl Service for Deferred {
    type Conn = u32;
    type Message = &'static str;

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) -> u32 {
        net.set_timer(conn, Some(SECOND));
        self.conns.push(conn);
        let app_sender = self.app_sender.clone();
        std::thread::spawn(move || app_sender.send_to_conn(conn, "later").unwrap()).join().unwrap();
        0
    }

    fn conn_message(&mut self, net: &mut impl Transport, conn: ConnId, _: &mut u32, message: &'static str) {
        assert_eq!(net.write(conn, message.as_bytes()), message.len());
        self.answered.push((conn, message));
    }

    fn message(&mut self, _: &mut impl Transport, message: &'static str) {
        self.messages.push(message);
    }

    fn turn(&mut self, net: &mut impl Transport) -> Option<Duration> {
        self.polled = net.now();
        self.rest
    }

    fn timer(&mut self, net: &mut impl Transport, conn: ConnId, ticks: &mut u32) {
        self.ticks.push(net.now());
        *ticks += 1;
        if *ticks < 3 {
            net.set_timer(conn, Some(SECOND));
        } else {
            net.abort(conn);
        }
    }

    fn closed(&mut self, net: &mut impl Transport, conn: ConnId, ticks: u32, reason: CloseReason) {
        assert_eq!((ticks, net.peer_addr(conn)), (3, None));
        self.closed.push(reason);
    }
}

fn messages_timers_and_aborts_reach_their_connection<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let (a, b) = Link::pair(LinkConfig::default());
    let link = a.link().clone();
    let mut client = Host::<_, A>::start(&host(1), vec![a], || Client::new(SERVER, 1, 0).closing(Close::Never));
    let mailboxes = Mailboxes::for_workers(1).pop().unwrap();
    let app_sender = mailboxes.app_sender();
    let mut worker: Worker<_, Deferred, B> = Worker::new(&server(), mailboxes, b, Deferred::new, Instant::ZERO);
    for _ in 0..5000 {
        link.clock().advance(Duration::from_millis(1));
        client.workers[0].turn(link.clock().now());
        worker.turn(link.clock().now());
    }
    let service = worker.service();
    let conn = service.conns[0];
    assert_eq!(service.answered, [(conn, "later")]);
    assert_eq!(service.ticks.len(), 3);
    assert!(service.ticks.windows(2).all(|w| (SECOND..SECOND * 11 / 10).contains(&w[1].since(w[0]))));
    assert_eq!(service.closed, [CloseReason::Aborted]);
    assert_eq!(client.service().outcomes[0].closed, Some(CloseReason::Reset));
    // The connection id is invalid now.
    app_sender.send_to_conn(conn, "too late").unwrap();
    worker.turn(link.clock().now());
    assert_eq!(worker.service().answered.len(), 1);
    // The service continues and is polled in every turn.
    app_sender.send_to_worker(0, "all of you").unwrap();
    assert_eq!(worker.next_deadline(), None);
    worker.service_mut().rest = Some(SECOND);
    link.clock().advance(SECOND);
    let now = link.clock().now();
    worker.turn(now);
    let service = worker.service();
    assert_eq!((&service.messages[..], service.polled, service.answered.len()), (&["all of you"][..], now, 1));
    assert_eq!(worker.next_deadline(), Some(now + SECOND));
}

/// Service that sets a timer of one hour and replaces it by a timer of `after`.
struct Alarm {
    after: Duration,
    rung: Vec<Instant>,
}

impl Service for Alarm {
    type Conn = ();
    type Message = ();

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        net.set_timer(conn, Some(Duration::from_secs(3600)));
        net.set_timer(conn, Some(self.after));
    }

    fn timer(&mut self, net: &mut impl Transport, _: ConnId, _: &mut ()) {
        self.rung.push(net.now());
    }
}

/// The wheel covers 39 hours. smoltcp's sockets time a silent peer out long before.
#[test]
fn timer_of_several_days_expires_once() {
    const DAYS: Duration = Duration::from_secs(5 * 86_400);
    let client = || Client::new(SERVER, 1, 0).closing(Close::Never);
    let alarm = || Alarm { after: DAYS, rung: Vec::new() };
    let mut net = Net::new(LinkConfig::default(), client, alarm);
    net.run_until(DAYS - SECOND, |_| false);
    assert_eq!(net.b.service().rung, []);
    net.run_until(DAYS, |_| false);
    assert_eq!(net.b.service().rung.len(), 1);
}
