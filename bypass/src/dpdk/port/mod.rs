//! A network port: what one [`Via`] names, made of one or more of DPDK's devices.

mod claim;
mod dev_args;
pub(super) mod error;
mod ethdev;
mod interface;
pub(super) mod queue_pair;
mod quiesce;
mod setup;
mod supervisor;

use self::claim::Claim;
use self::dev_args::{Kind, Plan, Wish};
use self::error::OpenError;
use self::ethdev::{Ethdev, Failure};
use self::queue_pair::{FURTHER, QueuePair};
use self::quiesce::{Gate, Place};
use self::setup::Choice;
use self::supervisor::Supervisor;
use crate::dpdk::Eal;
use crate::dpdk::eal::peer_memory;
use crate::dpdk::eal::signals;
use crate::dpdk::mbuf::mempool::{Mempool, MempoolConfig};
use crate::{Capabilities, MacAddr, Via};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What is asked of a port. What is `None` is chosen from what the device reports.
#[derive(Debug, Clone)]
pub struct PortConfig {
    /// Queue pairs, one for each worker.
    pub queues: u16,
    /// Descriptors of a receive ring.
    pub rx_descriptors: Option<u16>,
    /// Descriptors of a transmit ring.
    pub tx_descriptors: Option<u16>,
    /// The largest IP packet in bytes.
    pub mtu: Option<u16>,
    /// The Ethernet address.
    pub mac: Option<MacAddr>,
    /// Packets in the port's pool; at least what its receive rings hold.
    pub pool_size: Option<u32>,
    /// The key of the RSS hash. With one, and several queues, flows are spread over the queues by the hash: entry `i`
    /// of the redirection table sends to queue `(i % 128) % queues`.
    pub rss_key: Option<[u8; 40]>,
    /// Frames have a VLAN tag, beside the MTU. The device takes it off and puts it in where it can
    /// ([`Capabilities::vlan`]).
    pub vlan: bool,
    /// Send a frame in several segments, if the driver takes them. Without, each is copied into one: for a device that does not do
    /// what its driver says, such as QEMU's packed rings, which take the buffer id of a chain from its first descriptor where virtio
    /// 1.1 (2.7.6) has it in the last.
    pub multi_segment: bool,
    /// Take an interface even if it carries the host's default route.
    pub force: bool,
    /// How long to wait for the other end of a link that this end connects to; `None` for as long as it takes.
    pub peer_timeout: Option<Duration>,
    /// Ends that wait when it becomes true.
    pub stop: Arc<AtomicBool>,
}

impl Default for PortConfig {
    fn default() -> Self {
        PortConfig {
            queues: 1,
            rx_descriptors: None,
            tx_descriptors: None,
            mtu: None,
            mac: None,
            pool_size: None,
            rss_key: None,
            vlan: false,
            multi_segment: true,
            force: false,
            peer_timeout: None,
            stop: Arc::new(AtomicBool::new(false)),
        }
    }
}

/// Frames that a port's devices lost, as they count them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Drops {
    /// Received and dropped because no worker took them in time.
    pub rx_missed: u64,
    /// Received in error.
    pub rx_errors: u64,
    /// Received and dropped because the pool was empty.
    pub rx_no_mbuf: u64,
    /// Sent in error.
    pub tx_errors: u64,
}

/// An open port. Its queue pairs keep its devices open; it itself watches over them.
///
/// Dropping it ends the watch. When the queue pairs are gone too, its devices are closed, and the sockets and interfaces
/// that they made are removed.
#[derive(Debug)]
pub struct Port {
    shared: Arc<Shared>,
    /// Dropped before `shared`'s last handle can be: see [`Port::drop`].
    supervisor: Option<Supervisor>,
    taken: AtomicBool,
}

/// What a port, its queue pairs and its supervisor have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub plan: Plan,
    pub choice: Choice,
    pub mac: MacAddr,
    pub gate: Gate,
    link: AtomicBool,
    /// The guest that is connected to this vhost port takes frames longer than its MTU.
    takes_large: AtomicBool,
    /// What the port can do for such a guest.
    for_large: Capabilities,
    devices: Mutex<Vec<Ethdev>>,
    /// Let go after the devices, as the next is.
    pub pool: Mempool,
    _claim: Option<Claim>,
}

impl Shared {
    /// The devices; none while the other end of a link is away. Held only by who controls them, never by a worker.
    pub fn devices(&self) -> MutexGuard<'_, Vec<Ethdev>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_link_up(&self) -> bool {
        self.link.load(Ordering::Relaxed)
    }

    /// What the port can do now.
    #[inline]
    pub fn capabilities(&self) -> &Capabilities {
        if self.takes_large.load(Ordering::Relaxed) { &self.for_large } else { &self.choice.capabilities }
    }

    /// Notes what the other end of the link takes, if that is for it to say.
    pub fn note_peer(&self) {
        if self.plan.kind == Kind::Vhost {
            let takes_large = self.devices().first().is_some_and(Ethdev::guest_takes_large);
            self.takes_large.store(takes_large, Ordering::Relaxed);
        }
    }

    /// Notes the state of the link; whether it has changed.
    pub fn set_link(&self, up: bool) -> bool {
        self.link.swap(up, Ordering::Relaxed) != up
    }
}

/// Frames that the kernel may have sent to a TAP interface before we take them. Its own 1000 overflow at once when many
/// connections send, which then wait for their time-outs.
const TAP_QUEUE: u16 = 16_384;

/// Pauses between attempts to reach the other end of a link.
const ATTEMPT: Duration = Duration::from_millis(50);
/// How long a peer that has been reached may take to answer, beyond the time in which it must be reached.
const SILENCE: Duration = Duration::from_secs(2);

/// Maximum time for which an AF_XDP socket is retried. When a process ends, the kernel releases its AF_XDP sockets from the
/// interface's queues after an RCU grace period and in deferred work (`xp_release_deferred` in `net/xdp/xsk_buff_pool.c`); until
/// then a bind to the queue fails with EBUSY, so that a server that is restarted at once would not start.
const XSK_RELEASE: Duration = Duration::from_secs(5);

/// Interval between two attempts to open an AF_XDP socket.
const XSK_RETRY: Duration = Duration::from_millis(20);

impl Port {
    /// Opens the network that `via` names. If it is the end of a link that connects, and nobody serves the link's
    /// socket yet, it waits, as `config` says how long.
    ///
    /// The driver of `memif:` frees the shared memory on a thread of EAL's when the other end goes away. It waits for
    /// nobody, so a worker that was interrupted within a burst at that moment faults. Such a port therefore takes SIGSEGV,
    /// leaves the burst, and loses the packets that the driver had in hand; faults elsewhere go to whoever had the signal
    /// before. The vhost library has no such moment.
    ///
    /// The other end of `vhost:` and `memif:` may truncate the memory that it shares. Such a port therefore takes SIGBUS and
    /// maps zeros in place of that memory; the link carries nothing until the other end connects again.
    ///
    /// The driver of `tap:` has the kernel send a signal for what arrives. The calling thread, and those that it starts
    /// later, block it, and EAL's thread takes it; in threads that were there before, system calls may be interrupted.
    pub fn open(eal: &Eal, via: &Via, config: PortConfig) -> Result<Port, OpenError> {
        let wish = Wish { queues: config.queues.max(1), mac: config.mac, force: config.force };
        let plan = dev_args::plan(via, wish)?;
        if matches!(plan.kind, Kind::Tap(_)) {
            signals::leave_to_eal();
        }
        if setup::is_memif(&plan) {
            signals::guard_bursts();
        }
        if setup::maps_peer_memory(&plan) {
            peer_memory::guard();
        }
        let began = Instant::now();
        let mut refusals = 0;
        let shared = loop {
            let error = match attempt(eal, &plan, &config, began) {
                Ok(shared) => break shared,
                Err(error) => error,
            };
            if is_busy_xsk(&error) && began.elapsed() < XSK_RELEASE && !config.stop.load(Ordering::Relaxed) {
                std::thread::sleep(XSK_RETRY);
                continue;
            }
            let Kind::Client { socket, peer } = &plan.kind else { return Err(error) };
            if matches!(error, OpenError::Stopped | OpenError::NoPeer { .. }) {
                return Err(error);
            }
            // The other end may be about to start, or to end; what it refuses twice more it means.
            let is_absent = !socket.exists() || is_no_connection(&error);
            refusals += u32::from(!is_absent);
            if refusals == 3 {
                return Err(error);
            }
            let waited = began.elapsed();
            if config.peer_timeout.is_some_and(|timeout| waited >= timeout) {
                return Err(OpenError::NoPeer { socket: socket.clone(), peer, waited });
            }
            if config.stop.load(Ordering::Relaxed) {
                return Err(OpenError::Stopped);
            }
            if waited < ATTEMPT {
                tracing::info!("{}: waiting for the other end ({peer})", plan.via);
            }
            std::thread::sleep(ATTEMPT);
        };
        let shared = Arc::new(shared);
        let supervisor = Some(Supervisor::start(&shared));
        Ok(Port { shared, supervisor, taken: AtomicBool::new(false) })
    }

    /// The queue pairs, in order; once. Later calls return none.
    pub fn take_queues(&self) -> Vec<QueuePair> {
        if self.taken.swap(true, Ordering::SeqCst) {
            return Vec::new();
        }
        (0..usize::from(self.shared.plan.queues)).map(|index| QueuePair::new(self.shared.clone(), index)).collect()
    }

    /// The number of queue pairs.
    pub fn queues(&self) -> u16 {
        self.shared.plan.queues
    }

    /// Its Ethernet address.
    pub fn mac(&self) -> MacAddr {
        self.shared.mac
    }

    /// What it can do: for a `vhost:` port, with the other end that is connected now, as of some 20 ms ago.
    pub fn capabilities(&self) -> &Capabilities {
        self.shared.capabilities()
    }

    /// The pool that its packets come from.
    pub fn mempool(&self) -> &Mempool {
        &self.shared.pool
    }

    /// Whether the link is up, as of some 20 ms ago.
    pub fn link_up(&self) -> bool {
        self.shared.is_link_up()
    }

    /// Frames that its devices lost. A device that is made again counts from zero.
    pub fn drops(&self) -> Drops {
        let mut drops = Drops::default();
        for stats in self.shared.devices().iter().filter_map(Ethdev::stats) {
            drops.rx_missed += stats.rx_missed;
            drops.rx_errors += stats.rx_errors;
            drops.rx_no_mbuf += stats.rx_no_mbuf;
            drops.tx_errors += stats.tx_errors;
        }
        drops
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // It ends before the devices can, so they are never closed by a thread that the process does not wait for.
        drop(self.supervisor.take());
    }
}

/// Returns true if the kernel refused an AF_XDP socket, as it does while another socket is bound to the queue. The driver's message
/// has no error number.
fn is_busy_xsk(error: &OpenError) -> bool {
    matches!(error, OpenError::Device { reason, .. } if reason.contains("Failed to create xsk socket"))
}

/// Whether the device failed because nobody accepted its connection.
pub(crate) fn is_no_connection(error: &OpenError) -> bool {
    matches!(error, OpenError::Device { reason, .. } if reason.contains("connect"))
}

fn failed(plan: &Plan) -> impl Fn(Failure) -> OpenError {
    |(step, reason)| OpenError::Device { via: plan.via.clone(), step, reason }
}

/// Makes the devices of the plan.
pub(crate) fn probe(plan: &Plan) -> Result<Vec<Ethdev>, OpenError> {
    if plan.devices.is_empty() {
        return Ok(vec![Ethdev::first().ok_or(OpenError::NoPort)?]);
    }
    plan.devices.iter().map(|device| Ethdev::probe(device).map_err(failed(plan))).collect()
}

/// Configures the devices and starts them.
pub(crate) fn start(plan: &Plan, choice: &Choice, devices: &[Ethdev], pool: &Mempool) -> Result<(), OpenError> {
    devices.iter().try_for_each(|device| device.start(&choice.setup, pool)).map_err(|(step, mut reason)| {
        if matches!(plan.kind, Kind::AfXdp(_)) {
            reason += " (is another program using AF_XDP on it? 'ulimit -l' must allow for the pool, too)";
        }
        failed(plan)((step, reason))
    })
}

/// Where each queue pair is: device by device.
pub(crate) fn places(plan: &Plan, choice: &Choice, devices: &[Ethdev]) -> Vec<Place> {
    devices
        .iter()
        .flat_map(|device| (0..choice.setup.queues).map(|queue| Place { port: device.port(), queue }))
        .take(plan.queues.into())
        .collect()
}

/// Opens the port's devices once. A peer that accepts a connection and then says nothing would keep the driver, and
/// us with it, for ever; so that is done by a thread that can be left behind.
fn attempt(eal: &Eal, plan: &Plan, config: &PortConfig, began: Instant) -> Result<Shared, OpenError> {
    let Kind::Client { socket, peer } = &plan.kind else { return open_once(eal, plan, config) };
    let opening = {
        let (eal, plan, config) = (eal.clone(), plan.clone(), config.clone());
        std::thread::spawn(move || open_once(&eal, &plan, &config))
    };
    while !opening.is_finished() {
        if config.stop.load(Ordering::Relaxed) {
            return Err(OpenError::Stopped);
        }
        let waited = began.elapsed();
        if config.peer_timeout.is_some_and(|timeout| waited >= timeout + SILENCE) {
            return Err(OpenError::NoPeer { socket: socket.clone(), peer, waited });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    opening.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn open_once(eal: &Eal, plan: &Plan, config: &PortConfig) -> Result<Shared, OpenError> {
    let failed = failed(plan);
    let claim = match &plan.kind {
        Kind::AfXdp(interface) => Some(Claim::new(interface)?),
        _ => None,
    };
    let mut devices = probe(plan)?;
    let first = &devices[0];
    let info = first.info().map_err(&failed)?;
    let (rx, tx) = setup::wanted_descriptors(config, &info);
    let descriptors = first.descriptors(rx, tx).map_err(&failed)?;
    let mut choice = setup::choose(plan, config, &info, descriptors)?;
    let pool = MempoolConfig {
        packets: choice.packets,
        data_room: choice.data_room + if choice.cold { FURTHER as u16 } else { 0 },
        numa_node: u16::try_from(info.numa_node).ok(),
        one_piece: choice.one_piece,
        in_front: choice.in_front,
    };
    let pool = Mempool::new(eal, pool)?;
    if matches!(plan.kind, Kind::AfXdp(_)) {
        // The driver never gives back what is in its fill ring.
        pool.taint();
    }
    start(plan, &choice, &devices, &pool)?;
    choice.note_virtqueues(devices.iter().all(Ethdev::has_split_tx));
    if choice.setup.rss_types != 0 {
        choice.capabilities.rss = devices.iter().all(|device| device.spread(&choice.setup));
    }
    if let Kind::Tap(name) = &plan.kind {
        devices.iter().try_for_each(|device| device.set_mtu(choice.setup.mtu)).map_err(&failed)?;
        if !interface::set_transmit_queue(name, TAP_QUEUE) {
            tracing::warn!(
                "{}: the kernel's queue stays short, and bursts may be lost: run 'ip link set dev {name} txqueuelen \
                 {TAP_QUEUE}'",
                plan.via
            );
        }
    }
    let mac = address(plan, &mut devices, MacAddr(info.mac))?;
    let gate = Gate::new(&places(plan, &choice, &devices));
    let link = AtomicBool::new(supervisor::is_link_up(plan, &devices));
    if plan.kind == Kind::Vhost {
        devices.iter_mut().for_each(Ethdev::watch_guests);
    }
    let can_large = choice.capabilities.tx_checksum.tcp;
    let for_large = Capabilities { tso: can_large.then_some(setup::TSO_PAYLOAD), ..choice.capabilities.clone() };
    let shared = Shared {
        plan: plan.clone(),
        choice,
        mac,
        gate,
        link,
        takes_large: AtomicBool::new(false),
        for_large,
        devices: Mutex::new(devices),
        pool,
        _claim: claim,
    };
    shared.note_peer();
    Ok(shared)
}

/// Settles the Ethernet address, and lets the frames in that are for it and for groups.
fn address(plan: &Plan, devices: &mut [Ethdev], own: MacAddr) -> Result<MacAddr, OpenError> {
    let filters = match &plan.kind {
        Kind::Other => true,
        Kind::AfXdp(name) => interface::driver(name).as_deref() != Some("veth"),
        // A frame that reaches one of these is for it.
        Kind::Tap(_) | Kind::Client { .. } | Kind::Vhost | Kind::MemifServer => false,
    };
    let Some(mac) = plan.mac.filter(|mac| *mac != own) else {
        if filters && !devices.iter().all(Ethdev::accept_multicast) {
            devices.iter_mut().for_each(|device| _ = device.accept_all());
        }
        return Ok(own);
    };
    for device in devices.iter_mut().filter(|_| filters) {
        if let Err(reason) = device.set_mac(mac)
            && !device.accept_all()
        {
            return Err(OpenError::Mac { via: plan.via.clone(), mac, reason });
        }
        device.accept_multicast();
    }
    Ok(mac)
}
