//! Test rig: two workers, each on a simulated device, and their services.

mod peer;

pub use peer::Peer;

use super::contract::Hosted;
use crate::connection::conn_transport::{ConnTransport, FIRST_SESSION};
use crate::connector::UdQpHandle;
use crate::provider::{AhAttr, Provider, Transition, TransportKind};
use crate::queues::Queues;
use crate::session::Session;
use crate::verbs::{Ah, Cq, CqHandle, Message, Mr, Mw, Pd, Qp, QpConfig};
use crate::wire::EndParams;
use crate::{
    Config, ConnCore, Connect, Connector, ConnectorEvent, ConnectorRequest, IdleWait, Listeners, Mode, Parts, Worker,
    WorkerChannels, WorkerHandle,
};
use linerate_bypass::arena::ArenaConfig;
use linerate_bypass::{Arena, Waker};
use linerate_roce::testing::{DeviceConfig, Fabric, FabricConfig, Live, SimDevice};
use linerate_service::mailbox::{Receiver, Sender, mailbox};
use linerate_service::time::{Duration, Instant};
use linerate_service::{AppMsg, CloseReason, Origin, Service, Timer};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

pub const WINDOWS: usize = 8;

pub struct End<S: Service = Peer> {
    pub device: Arc<SimDevice>,
    pub worker: Worker<SimDevice, S>,
    pub arena: Arena,
    pub buffers: Arena,
    config: Config,
    mr: Mr<SimDevice>,
    cqs: Vec<CqHandle<SimDevice>>,
    srq: Option<crate::verbs::SrqHandle<SimDevice>>,
    pub datagrams: Option<UdQpHandle>,
    events: Sender<ConnectorEvent<SimDevice>>,
    connector_requests: Sender<ConnectorRequest<SimDevice>>,
    commands: Option<Receiver<ConnectorRequest<SimDevice>>>,
    pub connector: Option<Connector<SimDevice>>,
    _app_sender: Sender<AppMsg<()>>,
}

/// Configuration of both ends.
#[derive(Clone)]
pub struct Setup {
    pub seed: u64,
    /// Network part of the ends' addresses.
    pub network: [u8; 3],
    pub config: Config,
    pub offers: bool,
    pub narrow: bool,
    pub atomics: bool,
    pub inline: u32,
    /// Memory of an end in bytes.
    pub memory: usize,
    /// Changes to the device configuration.
    pub device: fn(&mut DeviceConfig),
}

impl Default for Setup {
    fn default() -> Self {
        let reuse_after = Duration::from_micros(10);
        let config =
            Config { buffers: 4, buffer: 256, sends: 8, signal_every: 3, list: 4, reuse_after, ..Config::default() };
        Setup {
            seed: 1,
            network: [10, 0, 0],
            config,
            offers: true,
            narrow: false,
            atomics: true,
            inline: 64,
            memory: 16 << 20,
            // Like hardware: completions of a destroyed queue pair are removed.
            device: |device| device.holds_shared = true,
        }
    }
}

impl Setup {
    fn greeting(&self) -> EndParams {
        let Config { buffers, .. } = self.config;
        EndParams { buffer: self.config.message() as u32, credits: buffers, takes_offers: self.offers }
    }
}

/// Returns a message of `bytes`, in memory of `arena`.
pub fn message(arena: &Arena, bytes: &[u8]) -> Message {
    let mut block = arena.alloc(bytes.len()).unwrap();
    block.copy_from_slice(bytes);
    let mut message = Message::new();
    message.push(block.freeze()).unwrap();
    message
}

/// Addresses of ends connected without a connector.
const ADDRESSES: [SocketAddr; 2] = [address(1, 1000), address(2, 7)];

const fn address(number: u8, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, number)), port)
}

pub struct Rig<S: Service = Peer> {
    pub fabric: Fabric,
    pub ends: [End<S>; 2],
    pub random: fastrand::Rng,
    pub now: u64,
    /// Nanoseconds per step.
    pub tick: u64,
}

impl<S: Hosted> End<S> {
    fn new(fabric: &Fabric, number: u8, setup: &Setup, config: &Config, peer: S) -> Self {
        let [a, b, c] = setup.network;
        let mut device = DeviceConfig::roce([a, b, c, number].into());
        device.inline = setup.inline;
        (setup.device)(&mut device);
        let device = fabric.device(&format!("model{number}"), device);
        let config = Config { inline: setup.inline, ..config.clone() };
        let arena = Arena::new(ArenaConfig { bytes: setup.memory, hugepages: false }).unwrap();
        let buffers = Arena::new(ArenaConfig { bytes: 1 << 20, hugepages: false }).unwrap();
        let arenas = [arena.clone(), buffers.clone()];
        let is_iwarp = device.limits().unwrap().transport == TransportKind::Iwarp;
        let sink = is_iwarp.then(|| Arena::new(ArenaConfig { bytes: 1 << 20, hugepages: false }).unwrap());
        let mr = Mr::new(&Pd::new(&device).unwrap(), &arenas, sink).unwrap();
        let rest = config.rests.then(|| IdleWait::new(&device).unwrap());
        let limits = device.limits().unwrap();
        let channel = rest.as_ref().map(IdleWait::channel);
        let Queues { cqs, srq, datagrams } = Queues::new(&config, &limits, &mr, &buffers, channel, 0).unwrap();
        let datagram_handle = datagrams.as_ref().map(UdQpHandle::of);
        let mws = (0..if setup.offers { WINDOWS } else { 0 }).map(|_| Mw::new(&mr).unwrap()).collect();
        let handles: Vec<_> = cqs.iter().map(|cq| cq.handle().clone()).collect();
        let srq_handle = srq.as_ref().map(|srq| srq.handle().clone());
        let parts = Parts {
            cqs,
            srq,
            datagrams,
            mr: mr.clone(),
            arena: arena.clone(),
            buffers: buffers.clone(),
            mws,
            narrow: setup.narrow,
            atomics: setup.atomics,
        };
        let (app_sender, messages) = mailbox(16);
        let (events, received) = mailbox(64);
        let (requests, commands) = mailbox(64);
        let connector_requests = requests.clone();
        let channels = WorkerChannels { messages, events: received, commands: requests, rest };
        let worker = Worker::new(0, config.clone(), parts, channels, peer.with_arena(&arena));
        let (commands, connector, datagrams) = (Some(commands), None, datagram_handle);
        End {
            device,
            worker,
            arena,
            buffers,
            config,
            mr,
            cqs: handles,
            srq: srq_handle,
            datagrams,
            events,
            connector_requests,
            commands,
            connector,
            _app_sender: app_sender,
        }
    }

    /// Adds a connector that listens on `listen`. Returns the addresses.
    pub fn connects(&mut self, listen: &[SocketAddr]) -> Vec<SocketAddr> {
        let handle = WorkerHandle {
            cqs: self.cqs.clone(),
            srq: self.srq.clone(),
            datagrams: self.datagrams,
            channel: None,
            events: self.events.clone(),
        };
        let commands = self.commands.take().unwrap();
        let listeners = match self.config.connect {
            Connect::Manager => Listeners::open(&self.device, listen).unwrap(),
            Connect::Exchange => Listeners::by_exchange(&self.device, listen, &self.config).unwrap(),
        };
        let listening = listeners.addresses();
        let made = Connector::new(
            &self.config,
            listeners,
            &self.mr,
            &self.buffers,
            vec![handle],
            commands,
            Waker::new().unwrap(),
        );
        let mut connector = made.unwrap();
        connector.begin(Vec::new(), Vec::new()).unwrap();
        self.connector = Some(connector);
        listening
    }

    fn qp(&self) -> Qp<SimDevice, crate::verbs::Init> {
        let Config { sends, buffers, inline, signal_every, list, .. } = self.config;
        let config = QpConfig { sends: sends.into(), receives: buffers.into(), inline, signal_every, list };
        let qp = Qp::new(&self.mr, &self.cq(), self.srq.as_ref(), &config).unwrap();
        let mut qp = qp.with_counters().init(1).unwrap();
        qp.post(
            (0..if self.srq.is_some() { 0 } else { buffers }).map(|_| self.buffers.alloc(self.config.buffer).unwrap()),
        )
        .unwrap();
        qp
    }

    fn ready(
        &self,
        qp: Qp<SimDevice, crate::verbs::Init>,
        (gid, number): ([u8; 16], u32),
    ) -> Qp<SimDevice, crate::verbs::Rts> {
        let own = self.device.gids(1).unwrap()[0];
        let receive = Transition::Rtr {
            mtu: crate::provider::Mtu::Mtu1024,
            qp: number,
            psn: 0,
            responder_resources: 4,
            min_rnr_timer: 1,
            path: AhAttr::to(gid, 0, &own),
        };
        // No retries: every message must find a buffer.
        let send = Transition::Rts { psn: 0, timeout: 14, retries: 7, rnr_retries: 0, initiator_depth: 4 };
        qp.to_rtr(&receive).unwrap().to_rts(&send).unwrap()
    }

    fn name(&self, qp: u32) -> ([u8; 16], u32) {
        (self.device.gids(1).unwrap()[0].raw, qp)
    }

    /// Directs completions of later queue pairs to `cq` instead of the worker.
    pub fn completes_to(&mut self, cq: &Cq<SimDevice>) {
        self.cqs = vec![cq.handle().clone()];
    }

    /// Returns the first completion queue.
    pub fn cq(&self) -> CqHandle<SimDevice> {
        self.cqs[0].clone()
    }

    /// Returns the queue pairs of each completion queue.
    pub fn qps(&self) -> Vec<usize> {
        self.cqs.iter().map(CqHandle::qps).collect()
    }

    /// Restores the completion queue.
    pub fn completes_by(&mut self, cq: CqHandle<SimDevice>) {
        self.cqs = vec![cq];
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> &Pd<SimDevice> {
        self.mr.pd()
    }

    /// Returns the live objects and the used memory.
    pub fn holds(&self, fabric: &Fabric) -> (Live, usize) {
        (fabric.live_of(&self.device), self.arena.stats().used + self.buffers.stats().used)
    }

    /// Releases the queues of the worker, which its connector replaces.
    pub fn forgets_queues(&mut self) {
        (self.cqs, self.srq) = (Vec::new(), None);
    }

    /// Notifies the worker that the connection with this number is lost.
    pub fn loses(&mut self, number: u64, reason: CloseReason) {
        assert!(self.events.send(ConnectorEvent::Lost(number, reason)).is_ok());
    }

    /// Drops connections that the worker has released.
    pub fn retire(&mut self) {
        while self.commands.as_mut().is_some_and(|commands| commands.receive().is_some()) {}
    }
}

impl<S: Hosted> Rig<S> {
    /// Creates two unconnected ends with the configuration of `setup`.
    pub fn new(setup: &Setup, peers: [S; 2]) -> Self {
        Rig::with(setup, &[setup.config.clone(), setup.config.clone()], peers)
    }

    /// Like [`new`](Self::new), with a configuration for each end.
    pub fn with(setup: &Setup, configs: &[Config; 2], peers: [S; 2]) -> Self {
        let fabric = Fabric::new(FabricConfig { seed: setup.seed, ..FabricConfig::default() });
        let [a, b] = peers;
        let ends = [End::new(&fabric, 1, setup, &configs[0], a), End::new(&fabric, 2, setup, &configs[1], b)];
        Rig { fabric, ends, random: fastrand::Rng::with_seed(setup.seed), now: 0, tick: 1000 }
    }

    /// Connects both ends.
    pub fn connect(&mut self, setup: &Setup) {
        if setup.config.mode == Mode::Ud {
            return self.make_session(setup);
        }
        let local = ConnTransport::Rc(self.half(setup));
        let local = ConnCore::new(local, None, ADDRESSES, &setup.greeting(), &setup.greeting());
        assert!(self.ends[0].events.send(ConnectorEvent::Made(local, Origin::Connected(1))).is_ok());
    }

    /// Connects the first end's returned queue pair to the second end.
    pub fn half(&mut self, setup: &Setup) -> Qp<SimDevice, crate::verbs::Rts> {
        let [a, b] = &self.ends;
        let [local, remote] = [a.qp(), b.qp()];
        let names = [a.name(local.number()), b.name(remote.number())];
        let [local, remote] = [(a, local, names[1]), (b, remote, names[0])].map(|(end, qp, name)| end.ready(qp, name));
        let greeting = setup.greeting();
        let remote = ConnTransport::Rc(remote);
        let remote = ConnCore::new(remote, None, [ADDRESSES[1], ADDRESSES[0]], &greeting, &greeting);
        assert!(self.ends[1].events.send(ConnectorEvent::Made(remote, Origin::Accepted)).is_ok());
        local
    }

    /// Creates a session between both ends.
    fn make_session(&mut self, setup: &Setup) {
        for (at, origin) in [Origin::Connected(1), Origin::Accepted].into_iter().enumerate() {
            let peer = &self.ends[1 - at];
            let (datagram_handle, gid) = (peer.datagrams.unwrap(), peer.device.gids(1).unwrap()[0].raw);
            let [local, remote] = [at as u64, 1 - at as u64].map(|number| FIRST_SESSION + number);
            self.half_session(setup, (at, local, origin), (gid, datagram_handle.qp, datagram_handle.q_key, remote));
        }
    }

    /// Creates one end of a session, numbered `local`, with a peer at `gid` that numbers it `remote`.
    pub fn half_session(
        &mut self,
        setup: &Setup,
        (at, local, origin): (usize, u64, Origin),
        (gid, qp, q_key, remote): ([u8; 16], u32, u32, u64),
    ) {
        let end = &self.ends[at];
        let to = AhAttr::to(gid, 0, &end.device.gids(1).unwrap()[0]);
        let transport = ConnTransport::Ud(Box::new(crate::connection::conn_transport::UdPeer {
            session: Session::new(remote, setup.config.buffers),
            local_number: local,
            ah: Ah::new(end.mr.pd(), &to).unwrap(),
            path: to,
            qp,
            q_key,
            handle: end.datagrams.unwrap().handle,
            timer: Timer::default(),
        }));
        let greeting = setup.greeting();
        let link = ConnCore::new(transport, None, [ADDRESSES[at], ADDRESSES[1 - at]], &greeting, &greeting);
        assert!(end.events.send(ConnectorEvent::Made(link, origin)).is_ok());
    }

    /// Replaces an end by a new process with a new device.
    pub fn replace(&mut self, which: usize, setup: &Setup, peer: S) {
        self.ends[which] = End::new(&self.fabric, which as u8 + 1, setup, &setup.config, peer);
    }

    /// Steps until an end holds no more than `before`.
    #[track_caller]
    pub fn run_until_holds(&mut self, which: usize, before: (Live, usize)) {
        for _ in 0..200_000 {
            // The statistics of an arena take longer than a step.
            let end = &self.ends[which];
            if self.fabric.live_of(&end.device) == before.0 && end.holds(&self.fabric) == before {
                return;
            }
            self.step();
        }
        panic!("holds {:?} instead of {before:?}", self.ends[which].holds(&self.fabric));
    }

    /// Adds connectors to both ends. The second one listens on `address`. Returns the actual address.
    pub fn listens(&mut self, address: SocketAddr) -> SocketAddr {
        self.ends[0].connects(&[]);
        self.ends[1].connects(&[address])[0]
    }

    /// Drops both ends, which leaves no object behind and no memory in use.
    #[track_caller]
    pub fn end(mut self) {
        self.ends.iter_mut().for_each(End::retire);
        let (fabric, arenas) = (self.fabric.clone(), self.ends.each_ref().map(|end| end.arena.clone()));
        drop(self);
        assert_eq!(fabric.live(), Live::default());
        assert_eq!(arenas.map(|arena| arena.stats().used), [0; 2]);
    }

    /// Connects the first end's connector to `remote`.
    pub fn connect_to(&mut self, remote: SocketAddr) {
        assert!(
            self.ends[0].connector_requests.send(ConnectorRequest::Connect { worker: 0, remote, token: 7 }).is_ok()
        );
    }

    /// Performs one random event.
    pub fn step(&mut self) {
        self.now += self.tick;
        let now = Instant::from_nanos(self.now);
        match self.random.u8(..6) {
            0 => _ = self.ends[0].worker.turn(now),
            1 => _ = self.ends[1].worker.turn(now),
            which @ 2..=3 => {
                if let Some(connector) = &mut self.ends[usize::from(which) - 2].connector {
                    connector.turn(now).unwrap();
                }
            }
            _ => (0..self.random.u8(1..20)).for_each(|_| _ = self.fabric.step()),
        }
    }

    /// Steps until `done`.
    #[track_caller]
    pub fn run_until(&mut self, done: impl Fn(&[End<S>; 2]) -> bool) {
        for _ in 0..200_000 {
            if done(&self.ends) {
                return;
            }
            self.step();
        }
        let states = |end: &End<S>| format!("{:?}", end.worker.service());
        panic!("condition not reached: {:#?}", self.ends.each_ref().map(states));
    }
}
