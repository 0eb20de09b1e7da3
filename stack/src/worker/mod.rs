//! Worker: one queue pair, one engine and one service, run to completion.

mod demux;
pub(crate) mod host_control;
mod ingress;
pub(crate) mod inter_worker;

mod housekeeping;
mod transport;

use crate::config::{Config, Idle};
use crate::engine::{Engine, Event, EventBatch};
use crate::ip::addresses::Addresses;
use crate::ip::egress::Egress;
use crate::ip::v6::Ipv6Control;
use crate::ip::v6::dad::{Dad, DuplicateAddress};
use crate::rng;
use crate::slow_path::SlowPath;
use crate::tcp::NativeEngine;
use crate::wire::ethernet::ETHERNET_HEADER;
use crate::worker::ingress::Ingress;
use crate::worker::inter_worker::{Mailboxes, WorkerMsg};
use linerate_bypass::{BURST, Nic};
use linerate_service::inspect::{ConnInfo, Gauges, Inspect, Shortages, Snapshot};
use linerate_service::mailbox::Receiver;
use linerate_service::time::{Clock, Duration, Instant};
use linerate_service::{AppMsg, Drain, Service, Stop, Summary, WorkerCtx};
use transport::{Core, Silenced, addresses_of};

/// Bursts received in one turn while each is full. Data that accumulated for a connection then reach its service
/// together and need one reply segment, which saves segments under load.
const BURSTS_PER_TURN: usize = 8;
/// Minimum room in the transmit queue for another receive burst, so that replies to it fit.
const MIN_TX_ROOM: usize = 4 * BURST;
/// Event rounds in one turn: a service call may cause further events.
const EVENT_ROUNDS: usize = 4;
/// Mailbox messages processed in one turn.
const MESSAGES_PER_TURN: usize = 4 * BURST;
/// Time for connections to close at shutdown.
const GRACE: Duration = Duration::from_millis(250);
/// Time that a worker keeps polling after its last connection has closed. On a shared-memory link, frames that were not
/// read when the port closes are lost, and with them the last acknowledgement.
const FINAL_POLL_TIME: Duration = Duration::from_millis(50);
/// Pause between turns during [`FINAL_POLL_TIME`].
const FINAL_POLL_PAUSE: Duration = Duration::from_micros(50);
/// Turns without work before a worker with [`Idle::Backoff`] sleeps.
const IDLE_TURNS: u32 = 1000;
/// Shortest and longest sleep.
const SLEEP: std::ops::RangeInclusive<Duration> = Duration::from_micros(1)..=Duration::from_millis(1);

/// Worker of the stack on the queue pair `N` with the service `S` and the engine `E`.
pub struct Worker<N: Nic, S: Service, E: Engine<N> = NativeEngine<<N as Nic>::Packet>> {
    core: Core<N, E>,
    ingress: Ingress<N::Packet>,
    service: S,
    states: Vec<Option<S::Conn>>,
    config: Config,
    inbox: Receiver<WorkerMsg<N::Packet>>,
    messages: Receiver<AppMsg<S::Message>>,
    started: bool,
    /// Latest time of the next [`Service::turn`].
    poll_at: Option<Instant>,
    received: Vec<N::Packet>,
    /// Turns so far, turns with work, and receive bursts.
    turns: u64,
    busy_turns: u64,
    bursts: u64,
    events: EventBatch,
    /// Link state at the last check.
    link_up: Option<bool>,
    link_checked: Instant,
    /// Start of the period in which the port has taken no waiting frame, and whether the warning was logged.
    stuck_since: Option<Instant>,
    stuck_logged: bool,
}

impl<N: Nic, S: Service, E: Engine<N>> Worker<N, S, E> {
    /// Creates a worker on `nic`. `service` creates its service. No turn precedes `now`.
    pub fn new(
        config: &Config,
        mailboxes: Mailboxes<N::Packet, S::Message>,
        nic: N,
        service: impl FnOnce(WorkerCtx<S::Message>) -> S,
        now: Instant,
    ) -> Self {
        let (worker, workers) = (mailboxes.worker, mailboxes.workers());
        let capabilities = nic.capabilities();
        let port_mtu = usize::from(capabilities.mtu).min(capabilities.data_room - ETHERNET_HEADER);
        let mtu = config.mtu.map_or(port_mtu, |mtu| port_mtu.min(mtu.into()));
        let mac = config.mac.or(config.host_mac()).unwrap_or_else(|| nic.mac());
        let first = Addresses::initial(config, mac);
        // The host's kernel has verified its addresses.
        let probes = if config.host.is_some() { 0 } else { config.dad_transmits };
        let dad = Dad::new(&first, probes);
        let is_verified = dad.is_none();
        let addresses = if is_verified { &first } else { &addresses_of(config, None, None, false, mac) };
        let mut egress = Egress::new(nic, addresses.clone(), mac, mtu, rng::draw(config.seed, "neighbors", worker));
        egress.set_vlan(config.vlan);
        egress.resolve_by_host(mailboxes.host_requests);
        if workers > 1 {
            egress.track_resolving();
        }
        let engine = E::new(config, worker, workers, &mut egress, now);
        let mut slow = SlowPath::new(config, &mut egress, worker == 0, now);
        let has_ipv6_control = worker == 0 && config.host.is_none();
        if let Some(ipv6) = Ipv6Control::new(config, &first, dad, &egress, now).filter(|_| has_ipv6_control) {
            slow.set_ipv6(ipv6);
        }
        let mut ingress = Ingress::new(worker, mailboxes.others, config);
        ingress.dad_running = !is_verified;
        Worker {
            core: Core {
                worker,
                now,
                engine,
                egress,
                slow,
                lease: None,
                network: None,
                is_verified,
                stopping: false,
                silenced: Silenced::default(),
            },
            ingress,
            service: service(WorkerCtx { worker, workers, app_sender: mailboxes.app_sender }),
            states: Vec::new(),
            config: config.clone(),
            inbox: mailboxes.inbox,
            messages: mailboxes.messages,
            started: false,
            poll_at: None,
            received: Vec::with_capacity(BURST),
            turns: 0,
            busy_turns: 0,
            bursts: 0,
            events: EventBatch::default(),
            link_up: None,
            link_checked: now,
            stuck_since: None,
            stuck_logged: false,
        }
    }

    /// Runs one turn: receives frames, delivers events, sends. Returns the number of frames, messages and events.
    pub fn turn(&mut self, now: Instant) -> usize {
        self.core.now = now;
        let mut work = self.process_mailboxes();
        for _ in 0..BURSTS_PER_TURN {
            let frames = self.core.egress.nic().rx_burst(&mut self.received);
            self.bursts += u64::from(frames > 0);
            work += frames;
            let Core { engine, egress, slow, .. } = &mut self.core;
            if let Some(vlan) = egress.vlan() {
                self.ingress.enter_vlan(&mut self.received, vlan, egress);
            }
            self.ingress.rx_burst(&mut self.received, egress, engine, slow, now);
            self.ingress.end_burst(egress, engine, now);
            if frames < BURST || egress.room() < MIN_TX_ROOM {
                break;
            }
        }
        self.core.silenced.timers_pending = true;
        self.run_due();
        if !self.started && self.may_start() {
            self.started = true;
            self.service.start(&mut self.core);
        }
        self.poll_at = self.service.turn(&mut self.core).map(|rest| now + rest);
        work += self.deliver();
        self.core.egress.flush();
        if self.core.engine.connections() == 0 {
            self.core.egress.release_reserved();
        }
        self.turns += 1;
        self.busy_turns += u64::from(work > 0);
        work
    }

    /// Returns whether the service can start: there is an address, or there will be one when the link is up. The link
    /// may depend on this end being ready.
    fn may_start(&self) -> bool {
        let own = self.core.egress.addresses();
        if !self.core.is_verified {
            // Router advertisements do not arrive while the link is down.
            self.link_up == Some(false) && !self.config.addresses.is_empty()
        } else {
            // A link-local address alone serves no peer, unless it is configured.
            own.has_routable() || !self.config.slaac && !own.own().is_empty()
        }
    }

    /// Returns a local IPv6 address for which DAD found a duplicate before first use. Such an address stays unused.
    pub fn duplicate(&self) -> Option<DuplicateAddress> {
        self.core.slow.duplicate
    }

    /// Returns the time of the next work if nothing arrives.
    pub fn next_deadline(&self) -> Option<Instant> {
        let Core { engine, egress, slow, .. } = &self.core;
        let deadlines = [engine.next_deadline(), egress.next_deadline(), slow.next_deadline(), self.poll_at];
        deadlines.into_iter().flatten().min()
    }

    /// Returns whether the service has started. It starts in the first turn with an address, which may come from DHCP.
    pub fn has_started(&self) -> bool {
        self.started
    }

    /// Stops accepting connections: a SYN is answered with a reset. A half-open connection may still be established,
    /// except by SYN cookie. Datagrams are not affected.
    pub fn stop_listening(&mut self) {
        self.core.engine.stop_listening();
    }

    /// Runs until `stop`, then closes all connections and returns the service and the counters. While draining, it
    /// reports the number of remaining connections. It calls `ready` when the service has started.
    ///
    /// A [duplicate](Self::duplicate) address ends it with an error.
    pub fn run(mut self, clock: &Clock, stop: &Stop, ready: impl FnOnce()) -> Result<(S, Summary), DuplicateAddress> {
        let mut ready = Some(ready);
        let mut drain = Drain::default();
        let mut idle_turns = 0;
        let mut sleep = *SLEEP.start();
        while !stop.is_stopped() {
            let work = self.turn(clock.now());
            if self.duplicate().is_some() {
                break;
            }
            if stop.is_draining() {
                if drain.is_listening() {
                    self.stop_listening();
                }
                drain.report(stop, self.core.engine.connections());
            }
            if ready.is_some()
                && self.started
                && let Some(ready) = ready.take()
            {
                ready();
            }
            if work > 0 {
                idle_turns = 0;
                sleep = *SLEEP.start();
            } else if self.config.idle == Idle::Backoff {
                idle_turns += 1;
                if idle_turns > IDLE_TURNS {
                    let until_due = self.next_deadline().map_or(sleep, |at| at.since(clock.now()));
                    std::thread::sleep(sleep.min(until_due));
                    sleep = (sleep * 2).min(*SLEEP.end());
                }
            } else {
                std::hint::spin_loop();
            }
        }
        self.shut_down(clock);
        let summary = self.summary();
        match self.duplicate() {
            Some(duplicate) => Err(duplicate),
            None => Ok((self.service, summary)),
        }
    }

    /// Closes all connections, after the grace period by reset.
    fn shut_down(&mut self, clock: &Clock) {
        self.core.stopping = true;
        self.core.engine.close_all();
        let until = clock.now() + GRACE;
        while self.core.engine.connections() > 0 && clock.now() < until {
            self.turn(clock.now());
        }
        self.core.engine.abort_all();
        let had_connections = !self.states.is_empty();
        let until = clock.now() + if had_connections { FINAL_POLL_TIME } else { Duration::ZERO };
        self.turn(clock.now());
        self.turn(clock.now());
        while clock.now() < until {
            // A peer on the same core needs the pause to read the last frames. A yield loop would only give way to
            // threads of the same scheduling group, and disturbs the fair scheduler of some kernels (Linux 6.18) for
            // seconds.
            std::thread::sleep(FINAL_POLL_PAUSE);
            self.turn(clock.now());
        }
    }

    /// Returns the counters so far.
    pub fn summary(&mut self) -> Summary {
        let Core { engine, egress, .. } = &mut self.core;
        let mut summary = Summary::default();
        let port = egress.nic().stats();
        summary.rx_frames = port.rx_frames;
        summary.rx_bytes = port.rx_bytes;
        summary.turns = self.turns;
        summary.busy_turns = self.busy_turns;
        summary.bursts = self.bursts;
        summary.tx_frames = port.tx_frames;
        summary.tx_bytes = port.tx_bytes;
        summary.misdirected = self.ingress.misdirected();
        summary.copied_bytes = port.copied_bytes + egress.copied_bytes();
        summary.drop_for("too long for the port", port.tx_dropped);
        egress.drops().summarize(&mut summary);
        engine.summarize(&mut summary);
        summary
    }

    /// Returns the number of received frames that were forwarded to the owning worker.
    pub fn misdirected(&self) -> u64 {
        self.ingress.misdirected()
    }

    /// Returns the queue pair.
    pub fn nic(&mut self) -> &mut N {
        self.core.egress.nic()
    }

    /// Returns the engine.
    pub fn engine(&self) -> &E {
        &self.core.engine
    }

    /// Returns the queue pair and drops all connections without notice to their peers.
    pub fn into_nic(self) -> N {
        self.core.egress.into_nic()
    }

    /// Returns the service.
    pub fn service(&self) -> &S {
        &self.service
    }

    /// Returns the service, for changes between turns.
    pub fn service_mut(&mut self) -> &mut S {
        &mut self.service
    }

    fn process_mailboxes(&mut self) -> usize {
        let now = self.core.now;
        let mut read = 0;
        while read < MESSAGES_PER_TURN {
            let Some(message) = self.inbox.receive() else { break };
            read += 1;
            let Core { engine, egress, slow, .. } = &mut self.core;
            match message {
                WorkerMsg::Frame(frame) => self.ingress.rx_frame(frame, true, egress, engine, slow, now),
                WorkerMsg::Neighbor(learnt) => egress.learn(learnt.ip, learnt.mac, learnt.may_create, now),
                WorkerMsg::NeighborFailed(ip) => egress.give_up(ip),
                WorkerMsg::HostNetwork(network) => {
                    self.config.host = Some(network);
                    self.core.update_addresses(&self.config);
                }
                WorkerMsg::Resolving(ip) => self.ingress.note_resolving(ip, now),
                WorkerMsg::Lease(lease) => self.core.set_lease(&self.config, lease),
                WorkerMsg::AddressesVerified => self.verified(),
                WorkerMsg::RouterInfo(network) => self.core.set_router_info(&self.config, *network),
                WorkerMsg::NeighborUnreachable(ip) => _ = slow.ipv6().map(|ipv6| ipv6.neighbor_unreachable(ip, now)),
            }
        }
        while read < MESSAGES_PER_TURN {
            let Some(message) = self.messages.receive() else { break };
            read += 1;
            match message {
                AppMsg::Query(look) => look.answer(self),
                AppMsg::Message { to: None, message } => self.service.message(&mut self.core, message),
                AppMsg::Message { to: Some(conn), message } => {
                    if self.core.engine.local_addr(conn).is_some()
                        && !self.core.silenced.has(conn)
                        && let Some(Some(state)) = self.states.get_mut(conn.slot())
                    {
                        self.service.conn_message(&mut self.core, conn, state, message);
                    }
                }
            }
        }
        read
    }

    /// Delivers events and lets the engine send until there are no more events, at most [`EVENT_ROUNDS`] times.
    fn deliver(&mut self) -> usize {
        let mut delivered = if self.ingress.datagrams.is_empty() { 0 } else { self.deliver_datagrams() };
        for _ in 0..EVENT_ROUNDS {
            self.core.engine.take_events(&mut self.events);
            let events = self.events.len();
            delivered += events;
            if events > 0 {
                self.dispatch();
            }
            let Core { engine, egress, now, .. } = &mut self.core;
            engine.flush(egress, *now);
            if events == 0 || !engine.has_events() {
                break;
            }
        }
        self.core.silenced.end_timers();
        delivered
    }

    /// Delivers as many datagrams as the transmit queue has room for, so that each can be answered.
    #[inline(never)]
    fn deliver_datagrams(&mut self) -> usize {
        let most = self.ingress.datagrams.len().min(self.core.egress.room());
        for datagram in self.ingress.datagrams.drain(..most) {
            self.service.datagram(&mut self.core, datagram);
        }
        most
    }

    /// Delivers events in the order that [`Service`] defines.
    fn dispatch(&mut self) {
        let Worker { core: net, service, states, events, .. } = self;
        let is_plain = events.readable.len() == events.len();
        if !is_plain {
            for &(conn, origin) in &events.opened {
                let state = service.opened(net, conn, origin);
                if states.len() <= conn.slot() {
                    states.resize_with(conn.slot() + 1, || None);
                }
                states[conn.slot()] = Some(state);
            }
            // `opened` may have consumed the received data.
            events.readable.retain(|conn| net.engine.received(*conn) > 0);
        }
        if !net.silenced.is_empty() {
            events.readable.retain(|conn| net.delivers_readable(*conn));
        }
        let served = if events.readable.is_empty() { 0 } else { service.burst(net, &events.readable) };
        for &conn in events.readable.iter().skip(served) {
            if !net.silenced.is_empty() && !net.delivers_readable(conn) {
                continue;
            }
            if let Some(Some(state)) = states.get_mut(conn.slot()) {
                service.readable(net, conn, state);
            }
        }
        if !is_plain {
            self.dispatch_others();
        }
        self.events.clear();
    }

    /// Delivers events other than `opened` and `readable`.
    fn dispatch_others(&mut self) {
        let Worker { core: net, service, states, events, .. } = self;
        // `closed` is the last event of a connection and releases its slot, so it follows the timers.
        let is_closed = |event: &&Event| matches!(event, Event::Closed(..));
        for event in events.others.iter().filter(|event| !is_closed(event)) {
            match *event {
                // No `writable` after `close`, or when the room has been used since.
                Event::Writable(conn) if !net.silenced.has(conn) && net.engine.send_space(conn) > 0 => {
                    if let Some(Some(state)) = states.get_mut(conn.slot()) {
                        service.writable(net, conn, state);
                    }
                }
                Event::PeerClosed(conn) if !net.silenced.has(conn) => {
                    if let Some(Some(state)) = states.get_mut(conn.slot()) {
                        service.peer_closed(net, conn, state);
                    }
                }
                Event::Failed(token, error) => service.failed(net, token, error),
                Event::Writable(_) | Event::PeerClosed(_) | Event::Closed(..) => {}
            }
        }
        for &conn in &events.timers {
            if net.delivers_timer(conn)
                && let Some(Some(state)) = states.get_mut(conn.slot())
            {
                service.timer(net, conn, state);
            }
        }
        for event in events.others.iter().filter(is_closed) {
            let Event::Closed(conn, why) = *event else { continue };
            net.silenced.forget(conn);
            net.engine.release(conn, net.now);
            if let Some(state) = states.get_mut(conn.slot()).and_then(Option::take) {
                service.closed(net, conn, state, why);
            }
        }
    }
}

impl<N: Nic, S: Service, E: Engine<N>> Inspect for Worker<N, S, E> {
    fn snapshot(&mut self) -> Snapshot {
        let summary = self.summary();
        let Core { worker, engine, egress, .. } = &mut self.core;
        let mut gauges = Gauges {
            tx_queued: Some(egress.queued() as u64),
            pool_left: egress.nic().pool_left().map(|left| left as u64),
            pool_share: Some(egress.capabilities().pool as u64),
            ..Gauges::default()
        };
        engine.fill_gauges(&mut gauges);
        let port = egress.nic().stats();
        let shortages = Some(Shortages { tx_full: port.tx_full, pool_empty: port.pool_empty });
        let (worker, service) = (*worker, self.service.metrics());
        // The owner of the port adds its other values.
        Snapshot { worker, summary, gauges, shortages, service, ..Snapshot::default() }
    }

    fn slots(&self) -> usize {
        self.core.engine.slot_count()
    }

    fn connection(&self, slot: usize) -> Option<ConnInfo> {
        self.core.engine.conn_info(slot)
    }
}
