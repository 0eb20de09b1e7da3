//! Single ethdev: creation, configuration, start and removal.

use super::dev_args::DevArgs;
use super::wakeup::{self, WakeupKind};
use crate::dpdk::log;
use crate::dpdk::mbuf::mempool::Mempool;
use crate::{MacAddr, Waker};
use dpdk_sys as sys;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Lock of device creation, start and removal: DPDK's device lists are not thread-safe.
static CONTROL: Mutex<()> = Mutex::new(());
/// Maximum wait for [`CONTROL`], after which a thread proceeds without the lock: a driver that waits for a peer may
/// hold it without end, but changes no list while it waits.
const STUCK: Duration = Duration::from_secs(3);

fn control() -> Option<MutexGuard<'static, ()>> {
    let began = Instant::now();
    loop {
        match CONTROL.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(guard)) => return Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) if began.elapsed() > STUCK => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Failed step, and the reason in one line.
pub(crate) type Failure = (&'static str, String);

/// Configuration of an ethdev, also used when it is created again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EthConf {
    pub queues: u16,
    pub rx_descriptors: u16,
    pub tx_descriptors: u16,
    pub rx_offloads: u64,
    pub tx_offloads: u64,
    pub rss_types: u64,
    pub rss_key: Vec<u8>,
    pub reta_size: u16,
    pub mtu: u16,
    /// Maximum length of a frame to which the device may merge segments; 0 for the device's choice.
    pub max_lro: u32,
    pub numa_node: i32,
    pub wakeup: WakeupKind,
}

/// DPDK port numbers that are open. Prevents opening a device of EAL twice.
static OPEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

fn open_ports() -> MutexGuard<'static, BTreeSet<u16>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Exclusively owned ethdev. Dropping it stops, closes and removes it.
#[derive(Debug)]
pub(crate) struct Ethdev {
    port: u16,
    /// Bus and name for removal; `None` for a device that EAL found.
    device: Option<(CString, CString)>,
    promiscuous: bool,
    /// True if the ethdev is a vhost port whose guests' features are recorded.
    watched: bool,
}

impl Ethdev {
    /// Creates the device, or takes it if EAL has already created it.
    pub fn probe(device: &DevArgs) -> Result<Ethdev, Failure> {
        let string = |text: &str| CString::new(text).map_err(|_| ("named", "a zero byte in its arguments".to_owned()));
        let (bus, name, arguments) = (string(device.bus)?, string(&device.name)?, string(&device.arguments)?);
        let _control = control();
        if let Some(port) = port_named(&name) {
            return Ethdev::take(port, None).ok_or(("opened", "this process already uses it".to_owned()));
        }
        // SAFETY: three strings, which DPDK copies.
        log::reason(|| unsafe { sys::rte_eal_hotplug_add(bus.as_ptr(), name.as_ptr(), arguments.as_ptr()) })
            .map_err(|reason| ("created", reason))?;
        let port = port_named(&name).ok_or(("created", "DPDK created no port".to_owned()))?;
        Ethdev::take(port, Some((bus, name))).ok_or(("opened", "this process already uses it".to_owned()))
    }

    /// Takes the first device that EAL found and that is not open.
    pub fn first() -> Option<Ethdev> {
        const NO_OWNER: u64 = 0;
        // SAFETY: there are no pointer arguments.
        let next = |port: u16| unsafe { sys::rte_eth_find_next_owned_by(port, NO_OWNER) };
        let port = |found: u64| u16::try_from(found).ok().filter(|port| u32::from(*port) < sys::LR_MAX_PORTS);
        let mut ports = std::iter::successors(port(next(0)), |last| port(next(last + 1)));
        ports.find_map(|port| Ethdev::take(port, None))
    }

    fn take(port: u16, device: Option<(CString, CString)>) -> Option<Ethdev> {
        open_ports().insert(port).then(|| Ethdev { port, device, promiscuous: false, watched: false })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn info(&self) -> Result<sys::lr_port_info, Failure> {
        info(self.port).map_err(|reason| ("queried", reason))
    }

    /// Rounds numbers of descriptors to values that the device supports.
    pub fn descriptors(&self, mut rx: u16, mut tx: u16) -> Result<(u16, u16), Failure> {
        // SAFETY: both pointers are valid.
        log::reason(|| unsafe { sys::lr_port_descriptors(self.port, &mut rx, &mut tx) })
            .map_err(|reason| ("queried", reason))?;
        Ok((rx, tx))
    }

    /// Configures the stopped device and starts it, with packets from `pool`. Returns the descriptors by which its
    /// receive queues wake workers.
    pub fn start(&self, ethconf: &EthConf, pool: &Mempool) -> Result<Vec<Option<RawFd>>, Failure> {
        let _control = control();
        if ethconf.wakeup != WakeupKind::Interrupt {
            return self.start_with(ethconf, pool);
        }
        self.start_with(ethconf, pool).or_else(|(step, reason)| {
            tracing::debug!("no interrupts of receive queues: the device cannot be {step}: {reason}");
            self.start_with(&EthConf { wakeup: WakeupKind::None, ..ethconf.clone() }, pool)
        })
    }

    fn start_with(&self, ethconf: &EthConf, pool: &Mempool) -> Result<Vec<Option<RawFd>>, Failure> {
        let port = self.port;
        let conf = sys::lr_port_conf {
            rx_offloads: ethconf.rx_offloads,
            tx_offloads: ethconf.tx_offloads,
            rss_types: ethconf.rss_types,
            rss_key: ethconf.rss_key.as_ptr(),
            rss_key_size: ethconf.rss_key.len() as u16,
            queues: ethconf.queues,
            mtu: ethconf.mtu,
            max_lro: ethconf.max_lro,
            rx_interrupts: (ethconf.wakeup == WakeupKind::Interrupt).into(),
        };
        let mut wakeups = Vec::new();
        // SAFETY: the key lives during the call, which copies it.
        log::reason(|| unsafe { sys::lr_port_configure(port, &conf) }).map_err(|reason| ("configured", reason))?;
        for queue in 0..ethconf.queues {
            let is_xdp = ethconf.wakeup == WakeupKind::XdpSocket;
            let before = if is_xdp { wakeup::xdp_sockets() } else { BTreeSet::new() };
            // SAFETY: the pool is valid until the process exits.
            log::reason(|| unsafe {
                sys::lr_rx_queue_setup(port, queue, ethconf.rx_descriptors, ethconf.numa_node, pool.raw())
            })
            .map_err(|reason| ("given a receive queue", reason))?;
            if is_xdp {
                wakeups.push(wakeup::xdp_sockets().difference(&before).next().copied());
            }
            // SAFETY: there are no pointer arguments.
            log::reason(|| unsafe { sys::lr_tx_queue_setup(port, queue, ethconf.tx_descriptors, ethconf.numa_node) })
                .map_err(|reason| ("given a transmit queue", reason))?;
        }
        log::forget_tx(port);
        // SAFETY: there are no pointer arguments.
        log::reason(|| unsafe { sys::lr_port_start(port) }).map_err(|reason| ("started", reason))?;
        if ethconf.wakeup == WakeupKind::Interrupt {
            wakeups.extend((0..ethconf.queues).map(|queue| wakeup::interrupt(port, queue)));
        }
        Ok(wakeups)
    }

    /// Returns whether the driver is virtio's and transmits by a function for split virtqueues since the last start.
    /// DPDK has no such call, but the driver logs its function. Without the message, the result is `false`.
    pub fn has_split_tx(&self) -> bool {
        log::has_split_tx(self.port)
    }

    /// Programs the redirection table. Returns whether the device accepted it.
    pub fn spread(&self, ethconf: &EthConf) -> bool {
        // SAFETY: there are no pointer arguments.
        unsafe { sys::lr_port_spread(self.port, ethconf.reta_size, ethconf.queues) == 0 }
    }

    /// Sets the MTU of a device that creates a kernel interface.
    pub fn set_mtu(&self, mtu: u16) -> Result<(), Failure> {
        // SAFETY: there are no pointer arguments.
        log::reason(|| unsafe { sys::rte_eth_dev_set_mtu(self.port, mtu) })
            .map_err(|reason| ("given its MTU", reason))?;
        Ok(())
    }

    pub fn set_mac(&self, mac: MacAddr) -> Result<(), String> {
        // SAFETY: six bytes, which are copied.
        log::reason(|| unsafe { sys::lr_port_set_mac(self.port, mac.0.as_ptr()) }).map(|_| ())
    }

    /// Enables reception of all group addresses. Returns whether the device supports it.
    pub fn accept_multicast(&self) -> bool {
        // SAFETY: there are no pointer arguments.
        unsafe { sys::rte_eth_allmulticast_enable(self.port) == 0 }
    }

    /// Enables promiscuous mode. Returns whether the device supports it.
    pub fn accept_all(&mut self) -> bool {
        // SAFETY: there are no pointer arguments.
        self.promiscuous = unsafe { sys::rte_eth_promiscuous_enable(self.port) == 0 };
        self.promiscuous
    }

    pub fn link_up(&self) -> bool {
        // SAFETY: there are no pointer arguments.
        unsafe { sys::lr_port_link_up(self.port) == 1 }
    }

    /// Starts to record the features that guests of this started vhost port negotiate, and to signal `waker` when a
    /// guest connects or leaves. The waker must outlive the device.
    pub fn watch_guests(&mut self, waker: &Waker) {
        // SAFETY: there are no pointer arguments. A closed descriptor is an error.
        self.watched = unsafe { sys::lr_vhost_watch(self.port, waker.as_fd().as_raw_fd()) == 0 };
    }

    /// Returns whether the guest of this vhost port accepts frames longer than its MTU.
    pub fn guest_takes_large(&self) -> bool {
        // SAFETY: there are no pointer arguments; the port is one of DPDK's.
        self.watched && unsafe { sys::lr_vhost_takes_large(self.port) != 0 }
    }

    /// Returns the number of guests of this vhost port that replaced one which was still connected.
    pub fn replaced_guests(&self) -> u32 {
        // SAFETY: there are no pointer arguments; the port is one of DPDK's.
        if self.watched { unsafe { sys::lr_vhost_replaced(self.port) } } else { 0 }
    }

    pub fn stats(&self) -> Option<sys::lr_port_stats> {
        let mut stats = sys::lr_port_stats { rx_missed: 0, rx_errors: 0, rx_no_mbuf: 0, tx_errors: 0 };
        // SAFETY: the call fills the structure.
        (unsafe { sys::lr_port_stats(self.port, &mut stats) } == 0).then_some(stats)
    }
}

impl Drop for Ethdev {
    fn drop(&mut self) {
        let _control = control();
        // SAFETY: no queue pair uses the port: queue pairs keep the devices alive, or the port is quiescent.
        unsafe {
            if self.watched {
                sys::lr_vhost_unwatch(self.port);
            }
            if self.promiscuous {
                // A kernel interface would stay promiscuous.
                sys::rte_eth_promiscuous_disable(self.port);
            }
            sys::rte_eth_dev_stop(self.port);
            sys::rte_eth_dev_close(self.port);
        }
        log::forget_tx(self.port);
        open_ports().remove(&self.port);
        if let Some((bus, name)) = &self.device {
            // SAFETY: two strings.
            if let Err(reason) = log::reason(|| unsafe { sys::rte_eal_hotplug_remove(bus.as_ptr(), name.as_ptr()) }) {
                tracing::debug!("{}: {reason}", name.to_string_lossy());
            }
        }
    }
}

fn port_named(name: &CString) -> Option<u16> {
    let mut port = 0;
    // SAFETY: a string, and a pointer to a local.
    (unsafe { sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &mut port) } == 0).then_some(port)
}

fn info(port: u16) -> Result<sys::lr_port_info, String> {
    let mut info = std::mem::MaybeUninit::uninit();
    // SAFETY: the call fills the structure, and returns 0 only then.
    log::reason(|| unsafe { sys::lr_port_info(port, info.as_mut_ptr()) })?;
    // SAFETY: the call filled it.
    Ok(unsafe { info.assume_init() })
}
