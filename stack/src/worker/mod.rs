//! Worker: one queue pair, one engine and one service, run to completion.

mod demux;
pub(crate) mod host_control;
mod ingress;
pub(crate) mod inter_worker;

mod housekeeping;
mod idle;
mod transport;

use crate::config::Config;
use crate::engine::Engine;
use crate::ip::addresses::Addresses;
use crate::ip::egress::Egress;
use crate::ip::v6::Ipv6Control;
use crate::ip::v6::dad::{Dad, DuplicateAddress};
use crate::rng;
use crate::slow_path::SlowPath;
use crate::tcp::NativeEngine;
use crate::wire::ethernet::ETHERNET_HEADER;
use crate::worker::idle::Polling;
use crate::worker::ingress::Ingress;
use crate::worker::inter_worker::{Mailboxes, WorkerMsg};
use linerate_bypass::{BURST, CpuTime, Nic, Packet, Sleeper};
use linerate_service::mailbox::Receiver;
use linerate_service::time::{Clock, Duration, Instant};
use linerate_service::{Drain, Service, ServiceHost, Silenced, Stop, Summary, Transport, WorkerCtx};
use std::net::{IpAddr, SocketAddr};
use transport::{Core, addresses_of};

/// Bursts received in one turn while each is full. Data that accumulated for a connection then reach its service
/// together and need one reply segment, which saves segments under load.
const BURSTS_PER_TURN: usize = 8;
/// Minimum room in the transmit queue for another receive burst, so that replies to it fit.
const MIN_TX_ROOM: usize = 4 * BURST;
/// Messages of other workers processed in one turn.
const MESSAGES_PER_TURN: usize = 4 * BURST;
/// Time for connections to close at shutdown.
const GRACE: Duration = Duration::from_millis(250);
/// Time that a worker keeps polling after its last connection has closed. On a shared-memory link, frames that were not
/// read when the port closes are lost, and with them the last acknowledgement.
const FINAL_POLL_TIME: Duration = Duration::from_millis(50);
/// Pause between turns during [`FINAL_POLL_TIME`].
const FINAL_POLL_PAUSE: Duration = Duration::from_micros(50);

/// Worker of the stack on the queue pair `N` with the service `S` and the engine `E`.
pub struct Worker<N: Nic, S: Service, E: Engine<N> = NativeEngine<<N as Nic>::Packet>> {
    host: ServiceHost<Core<N, E>, S>,
    config: Config,
    inbox: Receiver<WorkerMsg<N::Packet>>,
    /// Latest time of the next [`Service::turn`].
    poll_at: Option<Instant>,
    received: Vec<N::Packet>,
    /// Link state at the last check.
    link_up: Option<bool>,
    link_checked: Instant,
    /// Start of the period in which the port has taken no waiting frame, and whether the warning was logged.
    stuck_since: Option<Instant>,
    stuck_logged: bool,
    /// Present if the worker sleeps without work.
    sleeper: Option<Sleeper>,
    polling: Polling,
    /// Failed allocations before the last sleep.
    pool_empty: u64,
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
        let net = Core {
            worker,
            now,
            engine,
            egress,
            ingress,
            slow,
            lease: None,
            network: None,
            is_verified,
            stopping: false,
            silenced: Silenced::default(),
            turns: 0,
            busy_turns: 0,
            bursts: 0,
            sleeps: 0,
            wakeups: 0,
        };
        let service = service(WorkerCtx { worker, workers, app_sender: mailboxes.app_sender });
        Worker {
            host: ServiceHost::new(net, service, mailboxes.messages),
            config: config.clone(),
            inbox: mailboxes.inbox,
            poll_at: None,
            received: Vec::with_capacity(BURST),
            link_up: None,
            link_checked: now,
            stuck_since: None,
            stuck_logged: false,
            sleeper: mailboxes.sleeper,
            polling: Polling::new(now),
            pool_empty: 0,
        }
    }

    /// Runs one turn: receives frames, delivers events, sends. Returns the number of frames, messages and events.
    pub fn turn(&mut self, now: Instant) -> usize {
        self.host.net.now = now;
        let mut work = self.process_mailboxes();
        let Core { engine, egress, ingress, slow, bursts, .. } = &mut self.host.net;
        for _ in 0..BURSTS_PER_TURN {
            let frames = egress.nic().rx_burst(&mut self.received);
            *bursts += u64::from(frames > 0);
            work += frames;
            if let Some(vlan) = egress.vlan() {
                ingress.enter_vlan(&mut self.received, vlan, egress);
            }
            ingress.rx_burst(&mut self.received, egress, engine, slow, now);
            ingress.end_burst(egress, engine, now);
            if frames < BURST || egress.room() < MIN_TX_ROOM {
                break;
            }
        }
        self.host.net.silenced.begin_timers();
        self.run_due();
        if !self.host.has_started() && self.may_start() {
            self.host.start();
        }
        if !self.host.net.ingress.raw.is_empty() {
            work += self.deliver_raw_datagrams();
        }
        let ServiceHost { net, service, .. } = &mut self.host;
        self.poll_at = service.turn(net).map(|rest| now + rest);
        if !net.ingress.datagrams.is_empty() {
            work += self.deliver_datagrams();
        }
        work += self.host.deliver();
        let Core { engine, egress, turns, busy_turns, .. } = &mut self.host.net;
        egress.flush();
        if engine.connections() == 0 {
            egress.release_reserved();
        }
        *turns += 1;
        if work > 0 {
            *busy_turns += 1;
            self.polling.end_gap(now, work);
        }
        work
    }

    /// Returns whether the service can start: there is an address, or there will be one when the link is up. The link
    /// may depend on this end being ready.
    fn may_start(&self) -> bool {
        let own = self.host.net.egress.addresses();
        if !self.host.net.is_verified {
            // Router advertisements do not arrive while the link is down.
            self.link_up == Some(false) && !self.config.addresses.is_empty()
        } else {
            // A link-local address alone serves no peer, unless it is configured.
            own.has_routable() || !self.config.slaac && !own.own().is_empty()
        }
    }

    /// Returns a local IPv6 address for which DAD found a duplicate before first use. Such an address stays unused.
    pub fn duplicate(&self) -> Option<DuplicateAddress> {
        self.host.net.slow.duplicate
    }

    /// Returns the time of the next work if nothing arrives.
    pub fn next_deadline(&self) -> Option<Instant> {
        let Core { engine, egress, slow, .. } = &self.host.net;
        let deadlines = [engine.next_deadline(), egress.next_deadline(), slow.next_deadline(), self.poll_at];
        deadlines.into_iter().flatten().min()
    }

    /// Returns whether the service has started. It starts in the first turn with an address, which may come from DHCP.
    pub fn has_started(&self) -> bool {
        self.host.has_started()
    }

    /// Stops accepting connections: a SYN is answered with a reset. A half-open connection may still be established,
    /// except by SYN cookie. Datagrams are not affected.
    pub fn stop_listening(&mut self) {
        self.host.net.engine.stop_listening();
    }

    /// Runs until `stop`, then closes all connections and returns the service and the counters. While draining, it
    /// reports the number of remaining connections. It calls `ready` when the service has started.
    ///
    /// A [duplicate](Self::duplicate) address ends it with an error.
    pub fn run(mut self, clock: &Clock, stop: &Stop, ready: impl FnOnce()) -> Result<(S, Summary), DuplicateAddress> {
        let mut ready = Some(ready);
        let mut drain = Drain::default();
        if let Some(sleeper) = &self.sleeper {
            sleeper.begin();
            let longest = stop.wake_by(sleeper.wake()).unwrap_or(self.polling.longest);
            self.polling.longest = self.polling.longest.min(longest);
        }
        while !stop.is_stopped() {
            let now = clock.now();
            let work = self.turn(now);
            if self.duplicate().is_some() {
                break;
            }
            if stop.is_draining() {
                if drain.is_listening() {
                    self.stop_listening();
                }
                drain.report(stop, self.host.net.engine.connections());
            }
            if ready.is_some()
                && self.host.has_started()
                && let Some(ready) = ready.take()
            {
                ready();
            }
            if work > 0 {
                continue;
            }
            let Some(time) = self.about_to_sleep(clock) else {
                std::hint::spin_loop();
                continue;
            };
            if let Some(sleeper) = &self.sleeper {
                sleeper.sleep(time);
            }
            self.awake(clock);
        }
        self.shut_down(clock);
        let summary = Summary { cpu_us: CpuTime::of_thread().micros(), ..self.summary() };
        match self.duplicate() {
            Some(duplicate) => Err(duplicate),
            None => Ok((self.host.service, summary)),
        }
    }

    /// Closes all connections, after the grace period by reset.
    pub fn shut_down(&mut self, clock: &Clock) {
        self.host.net.stopping = true;
        self.host.net.engine.close_all();
        let until = clock.now() + GRACE;
        while self.host.net.engine.connections() > 0 && clock.now() < until {
            self.turn(clock.now());
        }
        self.host.net.engine.abort_all();
        let had_connections = self.host.has_had_connections();
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
        self.host.net.summary()
    }

    /// Returns the number of received frames that were forwarded to the owning worker.
    pub fn misdirected(&self) -> u64 {
        self.host.net.ingress.misdirected()
    }

    /// Returns the queue pair.
    pub fn nic(&mut self) -> &mut N {
        self.host.net.egress.nic()
    }

    /// Returns the engine.
    pub fn engine(&self) -> &E {
        &self.host.net.engine
    }

    /// Returns the queue pair and drops all connections without notice to their peers.
    pub fn into_nic(self) -> N {
        self.host.net.egress.into_nic()
    }

    /// Returns the service.
    pub fn service(&self) -> &S {
        &self.host.service
    }

    /// Returns the service, for changes between turns.
    pub fn service_mut(&mut self) -> &mut S {
        &mut self.host.service
    }

    /// Returns the service and its transport, for operations between turns. The next turn sends what they queue.
    pub fn parts(&mut self) -> (&mut S, &mut impl Transport) {
        (&mut self.host.service, &mut self.host.net)
    }

    /// Returns whether `ip` is an address of this host.
    pub fn is_local(&self, ip: IpAddr) -> bool {
        self.host.net.egress.addresses().is_local(ip)
    }

    /// Returns whether there is a route to the host `ip`.
    pub fn has_route(&self, ip: IpAddr) -> bool {
        let addresses = self.host.net.egress.addresses();
        addresses.can_be_remote(ip) && addresses.next_hop(ip).is_some()
    }

    fn process_mailboxes(&mut self) -> usize {
        let now = self.host.net.now;
        let mut read = 0;
        while read < MESSAGES_PER_TURN {
            let Some(message) = self.inbox.receive() else { break };
            read += 1;
            let Core { engine, egress, ingress, slow, .. } = &mut self.host.net;
            match message {
                WorkerMsg::Frame(frame) => ingress.rx_frame(frame, true, egress, engine, slow, now),
                WorkerMsg::Neighbor(learnt) => egress.learn(learnt.ip, learnt.mac, learnt.may_create, now),
                WorkerMsg::NeighborFailed(ip) => egress.give_up(ip),
                WorkerMsg::HostNetwork(network) => {
                    self.config.host = Some(network);
                    self.host.net.update_addresses(&self.config);
                }
                WorkerMsg::Resolving(ip) => ingress.note_resolving(ip, now),
                WorkerMsg::Lease(lease) => self.host.net.set_lease(&self.config, lease),
                WorkerMsg::AddressesVerified => self.verified(),
                WorkerMsg::RouterInfo(network) => self.host.net.set_router_info(&self.config, *network),
                WorkerMsg::NeighborUnreachable(ip) => _ = slow.ipv6().map(|ipv6| ipv6.neighbor_unreachable(ip, now)),
            }
        }
        read + self.host.deliver_messages()
    }

    /// Delivers the datagrams of a protocol with its own integrity check. The service answers them in its turn, as far
    /// as the transmit queue has room.
    #[inline(never)]
    fn deliver_raw_datagrams(&mut self) -> usize {
        let ServiceHost { net, service, .. } = &mut self.host;
        let mut received = std::mem::take(&mut net.ingress.raw);
        let count = received.len();
        for (frame, end) in received.drain(..) {
            service.raw_datagram(net, &frame.data()[ETHERNET_HEADER..end]);
        }
        net.ingress.raw = received;
        count
    }

    /// Delivers as many datagrams as the transmit queue has room for, so that each can be answered.
    #[inline(never)]
    fn deliver_datagrams(&mut self) -> usize {
        let ServiceHost { net, service, .. } = &mut self.host;
        let most = net.ingress.datagrams.len().min(net.egress.room());
        for _ in 0..most {
            let Some(datagram) = net.ingress.datagrams.pop_front() else { break };
            service.datagram(net, datagram);
        }
        most
    }
}

impl<N: Nic, S: Service, E: Engine<N>> Worker<N, S, E> {
    /// Begins to receive datagrams to `address`, in addition to [`Config::listen_udp`].
    pub fn listen_udp(&mut self, address: SocketAddr) {
        self.host.net.slow.listen_udp(address);
    }

    /// Stops receiving datagrams to `address`.
    pub fn unlisten_udp(&mut self, address: SocketAddr) {
        self.host.net.slow.unlisten_udp(address);
    }
}

impl<N: Nic, S: Service> Worker<N, S> {
    /// Begins to accept connections to `address`, in addition to [`Config::listen`].
    pub fn listen(&mut self, address: SocketAddr) {
        self.host.net.engine.listen(address);
    }

    /// Stops accepting connections to `address`.
    pub fn unlisten(&mut self, address: SocketAddr) {
        self.host.net.engine.unlisten(address);
    }
}
