//! Ports: one or more ethdevs behind one [`Via`].

mod dev_args;
pub(super) mod error;
mod ethdev;
pub(super) mod interface;
pub(super) mod port_lock;
pub(super) mod queue_pair;
mod quiesce;
mod setup;
pub(super) mod state;
mod supervisor;
mod wakeup;
pub(super) mod xdp_interface;

use self::dev_args::{PortKind, PortRequest, PortSpec};
use self::error::OpenError;
use self::ethdev::{Ethdev, Failure};
use self::port_lock::PortLock;
use self::queue_pair::{EXTRA_HEADROOM, QueuePair};
use self::quiesce::{QueueId, Quiesce};
use self::setup::PortSettings;
use self::state::PortState;
use self::supervisor::Supervisor;
use self::xdp_interface::XdpInterface;
use crate::dpdk::Eal;
use crate::dpdk::eal::peer_memory;
use crate::dpdk::eal::signals;
use crate::dpdk::mbuf::mempool::{Mempool, MempoolConfig};
use crate::xdp::{Endpoints, SharedInterface};
use crate::{Capabilities, MacAddr, Via, Waker};
use linerate_service::{Sleepers, Stop};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Configuration of a port. `None` selects a value from the device's capabilities.
#[derive(Debug, Clone)]
pub struct PortConfig {
    /// Number of queue pairs, one per worker.
    pub queues: u16,
    /// Descriptors per receive ring.
    pub rx_descriptors: Option<u16>,
    /// Descriptors per transmit ring.
    pub tx_descriptors: Option<u16>,
    /// MTU: the longest IP packet in bytes.
    pub mtu: Option<u16>,
    /// Ethernet address.
    pub mac: Option<MacAddr>,
    /// Packets in the port's pool; at least as many as its receive rings hold.
    pub pool_size: Option<u32>,
    /// Minimum packets that the owner of each queue pair may hold, unless `pool_size` is given. Without a larger value,
    /// 16 384, or fewer if packets are long.
    pub held: u32,
    /// Key of the RSS hash. With a key and several queues, flows are distributed over the queues by the hash: entry `i`
    /// of the redirection table selects queue `(i % 128) % queues`.
    pub rss_key: Option<[u8; 40]>,
    /// True if frames have a VLAN tag, in addition to the MTU. The device strips and inserts it where it can
    /// ([`Capabilities::vlan`]).
    pub vlan: bool,
    /// True if frames are sent in several segments where the driver accepts them. Otherwise each frame is copied into
    /// one segment, for a device that does not support what its driver reports: QEMU's packed rings take the buffer id
    /// of a chain from its first descriptor, but virtio 1.1 (2.7.6) specifies the last.
    pub multi_segment: bool,
    /// Addresses of the port's owner. A port on a shared interface receives frames to these addresses only.
    pub addresses: Vec<IpAddr>,
    /// Endpoints whose frames the port receives, if it shares an interface and [`addresses`](Self::addresses) are the
    /// kernel's own.
    pub endpoints: Option<Endpoints>,
    /// Interface that is prepared for the port, one of several on it.
    pub interface: Option<Arc<XdpInterface>>,
    /// Permits an interface that carries the host's default route.
    pub force: bool,
    /// Maximum time to wait for the other end of a link to which this end connects; `None` for no limit.
    pub peer_timeout: Option<Duration>,
    /// Flag that ends the wait for the other end.
    pub stop: Stop,
    /// Prepares the port to wake sleeping workers ([`Nic::arm`](crate::Nic::arm)).
    pub wakes: bool,
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
            held: 0,
            rss_key: None,
            vlan: false,
            multi_segment: true,
            addresses: Vec::new(),
            endpoints: None,
            interface: None,
            force: false,
            peer_timeout: None,
            stop: Stop::default(),
            wakes: false,
        }
    }
}

impl PortConfig {
    /// Returns the memory in MB that a port with this configuration needs at most on usual devices, EAL's included.
    pub fn memory_mb(&self) -> u32 {
        setup::memory_mb(self)
    }
}

/// Frames that a port's devices lost, by their counters.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Drops {
    /// Received frames dropped because no worker received them in time.
    pub rx_missed: u64,
    /// Frames received in error.
    pub rx_errors: u64,
    /// Received frames dropped because the pool was empty.
    pub rx_no_mbuf: u64,
    /// Frames sent in error.
    pub tx_errors: u64,
}

/// Open port. It supervises its link; its queue pairs keep its devices open.
///
/// Dropping it ends the supervision. When the queue pairs have been dropped, too, the devices are closed, and the
/// sockets and interfaces that they created are removed.
#[derive(Debug)]
pub struct Port {
    shared: Arc<SharedPort>,
    /// Supervisor, dropped before the last handle of `shared`: see [`Port::drop`].
    supervisor: Option<Supervisor>,
    taken: AtomicBool,
}

/// State shared by a port, its queue pairs and its supervisor.
#[derive(Debug)]
pub(crate) struct SharedPort {
    pub spec: PortSpec,
    pub settings: PortSettings,
    pub mac: MacAddr,
    pub quiesce: Quiesce,
    pub state: Arc<PortState>,
    /// Descriptor by which each queue pair wakes its worker, or -1.
    wakeups: Box<[AtomicI32]>,
    interface: Option<NonZeroU32>,
    /// True if the guest connected to this vhost port accepts frames longer than its MTU.
    guest_takes_large: AtomicBool,
    /// Capabilities of the port with such a guest.
    large_capabilities: Capabilities,
    devices: Mutex<Vec<Ethdev>>,
    /// Pool, dropped after the devices, as the next fields are.
    pub pool: Mempool,
    /// Waker of the supervisor.
    waker: Waker,
    /// Workers that sleep.
    sleepers: Sleepers,
    xdp: Option<Arc<XdpInterface>>,
    _lock: Option<PortLock>,
}

impl SharedPort {
    /// Returns the devices; none while the peer of a link is disconnected. Locked by control paths only, never by
    /// workers.
    pub fn devices(&self) -> MutexGuard<'_, Vec<Ethdev>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub fn capabilities(&self) -> &Capabilities {
        if self.guest_takes_large.load(Ordering::Relaxed) {
            &self.large_capabilities
        } else {
            &self.settings.capabilities
        }
    }

    /// Sets the descriptors by which queue pairs wake their workers, while no device may be used.
    pub fn set_wakeups(&self, wakeups: &[Option<RawFd>]) {
        for (queue, wakeup) in self.wakeups.iter().enumerate() {
            wakeup.store(wakeups.get(queue).copied().flatten().unwrap_or(-1), Ordering::Relaxed);
        }
    }

    /// Returns the descriptor by which a queue pair wakes its worker, as of the last even epoch.
    pub fn wakeup(&self, queue: usize) -> Option<RawFd> {
        Some(self.wakeups[queue].load(Ordering::Relaxed)).filter(|fd| *fd >= 0)
    }

    /// Updates the capabilities from the features that a vhost guest negotiated.
    pub fn update_guest_features(&self) {
        if self.spec.kind == PortKind::Vhost {
            let guest_takes_large = self.devices().first().is_some_and(Ethdev::guest_takes_large);
            self.guest_takes_large.store(guest_takes_large, Ordering::Relaxed);
        }
    }
}

/// Transmit queue length of a TAP interface in frames. The default of 1000 overflows when many connections send at
/// once, which then wait for their retransmission timeouts.
const TAP_QUEUE: u16 = 16_384;

/// Interval between attempts to reach the other end of a link.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Time after which the wait for the other end of a link is reported.
const NOTICE_DELAY: Duration = Duration::from_secs(2);
/// Time within which a peer must reply after it has accepted the connection, in addition to
/// [`PortConfig::peer_timeout`].
const PEER_REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum time for which an AF_XDP socket is retried. When a process ends, the kernel releases its AF_XDP sockets from
/// the interface's queues after an RCU grace period and in deferred work (`xp_release_deferred` in
/// `net/xdp/xsk_buff_pool.c`). Until then a bind to the queue fails with EBUSY, and a server that is restarted at once
/// would not start.
const XSK_RELEASE: Duration = Duration::from_secs(5);

/// Interval between two attempts to open an AF_XDP socket.
const XSK_RETRY: Duration = Duration::from_millis(20);

impl Port {
    /// Opens the network that `via` names. If this end of a link connects and the link's socket is not served yet,
    /// waits as `config` states.
    ///
    /// The driver of `memif:` unmaps the shared memory on an EAL thread when the other end leaves, without regard to
    /// workers, so a worker within a burst at that moment faults. Such a port therefore handles SIGSEGV, leaves the
    /// burst, and loses the packets that the driver had in hand. Other faults go to the previous handler. The vhost
    /// library has no such race.
    ///
    /// The other end of `vhost:` and `memif:` may truncate the memory that it shares. Such a port therefore handles
    /// SIGBUS and maps zeros in place of that memory. The link carries nothing until the other end connects again.
    ///
    /// The driver of `tap:` makes the kernel send a signal for received frames. The calling thread, and threads that it
    /// starts later, block the signal, which an EAL thread receives. In earlier threads, system calls may be
    /// interrupted.
    pub fn open(eal: &Eal, via: &Via, config: PortConfig) -> Result<Port, OpenError> {
        let request = PortRequest { queues: config.queues.max(1), mac: config.mac, force: config.force };
        let spec = dev_args::port_spec(via, request)?;
        if matches!(spec.kind, PortKind::Tap(_)) {
            signals::leave_to_eal();
        }
        if setup::is_memif(&spec) {
            signals::guard_bursts();
        }
        if setup::maps_peer_memory(&spec) {
            peer_memory::guard();
        }
        let began = Instant::now();
        let mut refusals = 0;
        let mut noticed = false;
        let shared = loop {
            let error = match open_with_timeout(eal, &spec, &config, began) {
                Ok(shared) => break shared,
                Err(error) => error,
            };
            if is_busy_xsk(&error) && began.elapsed() < XSK_RELEASE && !config.stop.is_ending() {
                std::thread::sleep(XSK_RETRY);
                continue;
            }
            let PortKind::Client { socket, peer } = &spec.kind else { return Err(error) };
            if matches!(error, OpenError::Stopped | OpenError::NoPeer { .. }) {
                return Err(error);
            }
            // The other end may be starting or ending. The third refusal is final.
            let is_absent = !socket.exists() || is_no_connection(&error);
            refusals += u32::from(!is_absent);
            if refusals == 3 {
                return Err(error);
            }
            let waited = began.elapsed();
            if config.peer_timeout.is_some_and(|timeout| waited >= timeout) {
                return Err(OpenError::NoPeer { socket: socket.clone(), peer, waited });
            }
            if config.stop.is_ending() {
                return Err(OpenError::Stopped);
            }
            if waited < RETRY_INTERVAL {
                tracing::info!("{}: waiting for the other end ({peer})", spec.via);
            }
            if waited >= NOTICE_DELAY && !std::mem::replace(&mut noticed, true) {
                tracing::warn!("waiting for a process that serves the socket '{}' ({peer})", socket.display());
            }
            std::thread::sleep(RETRY_INTERVAL);
        };
        let shared = Arc::new(shared);
        let supervisor = Some(Supervisor::start(&shared));
        Ok(Port { shared, supervisor, taken: AtomicBool::new(false) })
    }

    /// Returns the queue pairs, in order. Later calls return none.
    pub fn take_queues(&self) -> Vec<QueuePair> {
        if self.taken.swap(true, Ordering::SeqCst) {
            return Vec::new();
        }
        (0..usize::from(self.shared.spec.queues)).map(|index| QueuePair::new(self.shared.clone(), index)).collect()
    }

    /// Returns the number of queue pairs.
    pub fn queues(&self) -> u16 {
        self.shared.spec.queues
    }

    /// Returns the Ethernet address.
    pub fn mac(&self) -> MacAddr {
        self.shared.mac
    }

    /// Returns the capabilities. Those of a `vhost:` port depend on the connected guest, with a delay of about 20 ms.
    pub fn capabilities(&self) -> &Capabilities {
        self.shared.capabilities()
    }

    /// Returns the packet pool.
    pub fn mempool(&self) -> &Mempool {
        &self.shared.pool
    }

    /// Returns whether the link is up, with a delay of about 20 ms.
    pub fn link_up(&self) -> bool {
        self.shared.state.link_up()
    }

    /// Returns the state of the port, which does not keep its devices open.
    pub fn state(&self) -> &Arc<PortState> {
        &self.shared.state
    }

    /// Returns the interface that the port shares with the kernel.
    pub fn shared_interface(&self) -> Option<&Arc<SharedInterface>> {
        self.shared.xdp.as_ref()?.shared()
    }

    /// Returns the frames that the devices lost. A device that is created again counts from zero.
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
        // The supervisor ends first. Otherwise its thread could drop the last reference and close the devices, and the
        // process does not wait for that thread.
        drop(self.supervisor.take());
    }
}

/// Returns whether the kernel rejected an AF_XDP socket, as it does while another socket is bound to the queue. The
/// driver's message has no error number.
fn is_busy_xsk(error: &OpenError) -> bool {
    matches!(error, OpenError::Device { reason, .. } if reason.contains("Failed to create xsk socket"))
}

/// Returns whether the device failed because its connection was not accepted.
pub(crate) fn is_no_connection(error: &OpenError) -> bool {
    matches!(error, OpenError::Device { reason, .. } if reason.contains("connect"))
}

fn failed(spec: &PortSpec) -> impl Fn(Failure) -> OpenError {
    |(step, reason)| OpenError::Device { via: spec.via.clone(), step, reason }
}

pub(crate) fn probe(spec: &PortSpec) -> Result<Vec<Ethdev>, OpenError> {
    if spec.devices.is_empty() {
        return Ok(vec![Ethdev::first().ok_or(OpenError::NoPort)?]);
    }
    spec.devices.iter().map(|device| Ethdev::probe(device).map_err(failed(spec))).collect()
}

pub(crate) fn start(
    spec: &PortSpec,
    settings: &PortSettings,
    devices: &[Ethdev],
    pool: &Mempool,
) -> Result<Vec<Option<RawFd>>, OpenError> {
    let started = devices.iter().map(|device| device.start(&settings.conf, pool)).collect::<Result<Vec<_>, _>>();
    started.map(|wakeups| wakeups.concat()).map_err(|(step, mut reason)| {
        if matches!(spec.kind, PortKind::AfXdp(_)) {
            reason += " (is another program using AF_XDP on it? 'ulimit -l' must allow for the pool, too)";
        }
        failed(spec)((step, reason))
    })
}

/// Returns the DPDK queue of each queue pair, device by device.
pub(crate) fn queue_ids(spec: &PortSpec, settings: &PortSettings, devices: &[Ethdev]) -> Vec<QueueId> {
    devices
        .iter()
        .flat_map(|device| (0..settings.conf.queues).map(|queue| QueueId { port: device.port(), queue }))
        .take(spec.queues.into())
        .collect()
}

/// Opens the port's devices once. A peer that accepts a connection and sends nothing would block the driver for ever,
/// so a client opens them on a thread that can be abandoned.
fn open_with_timeout(eal: &Eal, spec: &PortSpec, config: &PortConfig, began: Instant) -> Result<SharedPort, OpenError> {
    let PortKind::Client { socket, peer } = &spec.kind else { return open_once(eal, spec, config) };
    let opening = {
        let (eal, spec, config) = (eal.clone(), spec.clone(), config.clone());
        std::thread::spawn(move || open_once(&eal, &spec, &config))
    };
    while !opening.is_finished() {
        if config.stop.is_ending() {
            return Err(OpenError::Stopped);
        }
        let waited = began.elapsed();
        if config.peer_timeout.is_some_and(|timeout| waited >= timeout + PEER_REPLY_TIMEOUT) {
            return Err(OpenError::NoPeer { socket: socket.clone(), peer, waited });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    opening.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn open_once(eal: &Eal, spec: &PortSpec, config: &PortConfig) -> Result<SharedPort, OpenError> {
    let failed = failed(spec);
    let xdp = match (&config.interface, &spec.kind) {
        (Some(prepared), _) => Some(prepared.clone()),
        (None, PortKind::AfXdp(interface)) => Some(Arc::new(XdpInterface::open(interface, spec, config)?)),
        _ => None,
    };
    let lock = match &spec.kind {
        // A memif server refuses a second client itself.
        PortKind::Client { socket, .. } if !setup::is_memif(spec) => Some(PortLock::of_client(socket)?),
        _ => None,
    };
    let mut devices = probe(spec)?;
    let first = &devices[0];
    let info = first.info().map_err(&failed)?;
    let (rx, tx) = setup::wanted_descriptors(config, &info);
    let descriptors = first.descriptors(rx, tx).map_err(&failed)?;
    let mut settings = setup::derive(spec, config, &info, descriptors)?;
    let pool = MempoolConfig {
        packets: settings.packets,
        data_room: settings.data_room + if settings.rx_uncached { EXTRA_HEADROOM as u16 } else { 0 },
        numa_node: u16::try_from(info.numa_node).ok(),
        contiguous: settings.contiguous,
        device_header: settings.device_header,
    };
    let pool = Mempool::new(eal, pool)?;
    if matches!(spec.kind, PortKind::AfXdp(_)) {
        // The driver never returns the packets of its fill ring.
        pool.exclude_from_reuse();
    }
    let wakeups = start(spec, &settings, &devices, &pool)?;
    settings.set_virtqueues(devices.iter().all(Ethdev::has_split_tx));
    if settings.conf.rss_types != 0 {
        settings.capabilities.rss = devices.iter().all(|device| device.spread(&settings.conf));
    }
    if let PortKind::Tap(name) = &spec.kind {
        devices.iter().try_for_each(|device| device.set_mtu(settings.conf.mtu)).map_err(&failed)?;
        if !interface::set_transmit_queue(name, TAP_QUEUE) {
            tracing::warn!(
                "{}: the kernel's queue stays short, and bursts may be lost: run 'ip link set dev {name} txqueuelen \
                 {TAP_QUEUE}'",
                spec.via
            );
        }
    }
    let mac = configure_mac(spec, &mut devices, MacAddr(info.mac))?;
    let quiesce = Quiesce::new(&queue_ids(spec, &settings, &devices));
    let is_up = supervisor::is_link_up(spec, &devices);
    let waker = Waker::new().map_err(|error| failed(("supervised", error.to_string())))?;
    let (name, interface) = match &spec.kind {
        PortKind::AfXdp(name) | PortKind::Tap(name) => (name.clone(), interface::index(name)),
        _ => (spec.via.clone(), None),
    };
    if let PortKind::AfXdp(name) = &spec.kind
        && !is_up
    {
        tracing::warn!(
            "{}: interface '{name}' is down or has no carrier, and receives nothing: run 'ip link set dev {name} up', \
             or check the other end",
            spec.via
        );
    }
    if spec.kind == PortKind::Vhost {
        devices.iter_mut().for_each(|device| device.watch_guests(&waker));
    }
    let can_large = settings.capabilities.tx_checksum.tcp;
    let large_capabilities =
        Capabilities { tso: can_large.then_some(setup::TSO_PAYLOAD), ..settings.capabilities.clone() };
    let shared = SharedPort {
        spec: spec.clone(),
        settings,
        mac,
        quiesce,
        state: Arc::new(PortState::new(name, is_up)),
        wakeups: (0..spec.queues).map(|_| AtomicI32::new(-1)).collect(),
        interface,
        guest_takes_large: AtomicBool::new(false),
        large_capabilities,
        devices: Mutex::new(devices),
        pool,
        waker,
        sleepers: Sleepers::default(),
        xdp,
        _lock: lock,
    };
    shared.set_wakeups(&wakeups);
    if config.wakes && wakeups.iter().flatten().count() < usize::from(spec.queues) {
        tracing::warn!(
            "{}: this network cannot wake a sleeping worker, which wakes up by itself each millisecond",
            spec.via
        );
    }
    shared.update_guest_features();
    Ok(shared)
}

/// Sets the Ethernet address, and accepts frames for it and for groups.
fn configure_mac(spec: &PortSpec, devices: &mut [Ethdev], own: MacAddr) -> Result<MacAddr, OpenError> {
    let filters = match &spec.kind {
        PortKind::Other => true,
        // The kernel sets the filters of its interface.
        PortKind::AfXdp(_) if spec.shared => false,
        PortKind::AfXdp(name) => interface::driver(name).as_deref() != Some("veth"),
        // These devices receive only frames for this port.
        PortKind::Tap(_) | PortKind::Client { .. } | PortKind::Vhost | PortKind::MemifServer => false,
    };
    let Some(mac) = spec.mac.filter(|mac| *mac != own) else {
        if filters && !devices.iter().all(Ethdev::accept_multicast) {
            devices.iter_mut().for_each(|device| _ = device.accept_all());
        }
        return Ok(own);
    };
    for device in devices.iter_mut().filter(|_| filters) {
        if let Err(reason) = device.set_mac(mac)
            && !device.accept_all()
        {
            return Err(OpenError::Mac { via: spec.via.clone(), mac, reason });
        }
        device.accept_multicast();
    }
    Ok(mac)
}
