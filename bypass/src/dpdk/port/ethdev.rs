//! One device of DPDK's: made, configured, started, and taken away again.

use super::dev_args::Device;
use crate::MacAddr;
use crate::dpdk::eal::log;
use crate::dpdk::mbuf::mempool::Mempool;
use dpdk_sys as sys;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Held while devices are made, started, and taken away: DPDK's lists of them are not for several threads at once.
static CONTROL: Mutex<()> = Mutex::new(());
/// A driver may wait for a peer without end while it holds [`CONTROL`], touching no list; others go on after this long.
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

/// A step that failed, and why in one line.
pub(crate) type Failure = (&'static str, String);

/// How a device is configured; the same when it has to be made again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setup {
    pub queues: u16,
    pub rx_descriptors: u16,
    pub tx_descriptors: u16,
    pub rx_offloads: u64,
    pub tx_offloads: u64,
    pub rss_types: u64,
    pub rss_key: Vec<u8>,
    pub reta_size: u16,
    pub mtu: u16,
    /// The longest frame that the device may merge segments to; 0 for what it likes.
    pub max_lro: u32,
    pub numa_node: i32,
}

/// DPDK's numbers of the ports that are open: a device that EAL made could be found twice.
static OPEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

fn open_ports() -> MutexGuard<'static, BTreeSet<u16>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device that exists, and that nobody else has. Dropping it stops it, closes it and removes it.
#[derive(Debug)]
pub(crate) struct Ethdev {
    port: u16,
    /// What to remove; `None` for what EAL found by itself.
    device: Option<(CString, CString)>,
    promiscuous: bool,
    /// It is a vhost port, and what its guests agree to is being noted.
    watched: bool,
}

impl Ethdev {
    /// Makes the device, or takes it if EAL has already.
    pub fn probe(device: &Device) -> Result<Ethdev, Failure> {
        let string = |text: &str| CString::new(text).map_err(|_| ("named", "a zero byte in its arguments".to_owned()));
        let (bus, name, arguments) = (string(device.bus)?, string(&device.name)?, string(&device.arguments)?);
        let _control = control();
        if let Some(port) = port_named(&name) {
            return Ethdev::take(port, None).ok_or(("opened", "this process has it open".to_owned()));
        }
        // SAFETY: three strings, which DPDK copies.
        log::reason(|| unsafe { sys::rte_eal_hotplug_add(bus.as_ptr(), name.as_ptr(), arguments.as_ptr()) })
            .map_err(|reason| ("made", reason))?;
        let port = port_named(&name).ok_or(("made", "DPDK made no port of it".to_owned()))?;
        Ethdev::take(port, Some((bus, name))).ok_or(("opened", "this process has it open".to_owned()))
    }

    /// The first device that EAL found and that is not open.
    pub fn first() -> Option<Ethdev> {
        const NO_OWNER: u64 = 0;
        // SAFETY: no pointers.
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
        info(self.port).map_err(|reason| ("asked what it can do", reason))
    }

    /// Rounds numbers of descriptors to what the device can have.
    pub fn descriptors(&self, mut rx: u16, mut tx: u16) -> Result<(u16, u16), Failure> {
        // SAFETY: both point to numbers of ours.
        log::reason(|| unsafe { sys::lr_port_descriptors(self.port, &mut rx, &mut tx) })
            .map_err(|reason| ("asked what it can do", reason))?;
        Ok((rx, tx))
    }

    /// Configures the stopped device and starts it; its packets come from `pool`.
    pub fn start(&self, setup: &Setup, pool: &Mempool) -> Result<(), Failure> {
        let _control = control();
        let port = self.port;
        let conf = sys::lr_port_conf {
            rx_offloads: setup.rx_offloads,
            tx_offloads: setup.tx_offloads,
            rss_types: setup.rss_types,
            rss_key: setup.rss_key.as_ptr(),
            rss_key_size: setup.rss_key.len() as u16,
            queues: setup.queues,
            mtu: setup.mtu,
            max_lro: setup.max_lro,
        };
        // SAFETY: the key lives during the call, which copies it.
        log::reason(|| unsafe { sys::lr_port_configure(port, &conf) }).map_err(|reason| ("configured", reason))?;
        for queue in 0..setup.queues {
            // SAFETY: the pool is valid until the process ends.
            log::reason(|| unsafe {
                sys::lr_rx_queue_setup(port, queue, setup.rx_descriptors, setup.numa_node, pool.raw())
            })
            .map_err(|reason| ("given a receive queue", reason))?;
            // SAFETY: no pointers.
            log::reason(|| unsafe { sys::lr_tx_queue_setup(port, queue, setup.tx_descriptors, setup.numa_node) })
                .map_err(|reason| ("given a transmit queue", reason))?;
        }
        log::forget_tx(port);
        // SAFETY: no pointers.
        log::reason(|| unsafe { sys::lr_port_start(port) }).map_err(|reason| ("started", reason))?;
        Ok(())
    }

    /// Returns whether the driver is virtio's, and transmits by a function for split virtqueues, since the device was started.
    /// DPDK has no call that tells, but the driver logs the function that it selects. Without the message, the answer is no.
    pub fn has_split_tx(&self) -> bool {
        log::has_split_tx(self.port)
    }

    /// Programs the redirection table; whether the device took it.
    pub fn spread(&self, setup: &Setup) -> bool {
        // SAFETY: no pointers.
        unsafe { sys::lr_port_spread(self.port, setup.reta_size, setup.queues) == 0 }
    }

    /// Tells the device its MTU, for those that make a kernel interface.
    pub fn set_mtu(&self, mtu: u16) -> Result<(), Failure> {
        // SAFETY: no pointers.
        log::reason(|| unsafe { sys::rte_eth_dev_set_mtu(self.port, mtu) })
            .map_err(|reason| ("given its MTU", reason))?;
        Ok(())
    }

    pub fn set_mac(&self, mac: MacAddr) -> Result<(), String> {
        // SAFETY: six bytes, which are copied.
        log::reason(|| unsafe { sys::lr_port_set_mac(self.port, mac.0.as_ptr()) }).map(|_| ())
    }

    /// Lets frames to all groups in; whether the device can.
    pub fn accept_multicast(&self) -> bool {
        // SAFETY: no pointers.
        unsafe { sys::rte_eth_allmulticast_enable(self.port) == 0 }
    }

    /// Lets all frames in; whether the device can.
    pub fn accept_all(&mut self) -> bool {
        // SAFETY: no pointers.
        self.promiscuous = unsafe { sys::rte_eth_promiscuous_enable(self.port) == 0 };
        self.promiscuous
    }

    pub fn link_up(&self) -> bool {
        // SAFETY: no pointers.
        unsafe { sys::lr_port_link_up(self.port) == 1 }
    }

    /// Has it noted what guests agree to that connect to this started vhost port.
    pub fn watch_guests(&mut self) {
        // SAFETY: no pointers.
        self.watched = unsafe { sys::lr_vhost_watch(self.port) == 0 };
    }

    /// Whether the guest of this vhost port takes frames longer than its MTU.
    pub fn guest_takes_large(&self) -> bool {
        // SAFETY: no pointers; the port is one of DPDK's.
        self.watched && unsafe { sys::lr_vhost_takes_large(self.port) != 0 }
    }

    pub fn stats(&self) -> Option<sys::lr_port_stats> {
        let mut stats = sys::lr_port_stats { rx_missed: 0, rx_errors: 0, rx_no_mbuf: 0, tx_errors: 0 };
        // SAFETY: it fills a structure of ours.
        (unsafe { sys::lr_port_stats(self.port, &mut stats) } == 0).then_some(stats)
    }
}

impl Drop for Ethdev {
    fn drop(&mut self) {
        let _control = control();
        // SAFETY: no queue pair uses the port: they keep the devices alive, or the gate is closed and quiet.
        unsafe {
            if self.watched {
                sys::lr_vhost_unwatch(self.port);
            }
            if self.promiscuous {
                // An interface of the kernel's would stay so.
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
    // SAFETY: a string, and a number of ours to fill.
    (unsafe { sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &mut port) } == 0).then_some(port)
}

fn info(port: u16) -> Result<sys::lr_port_info, String> {
    let mut info = std::mem::MaybeUninit::uninit();
    // SAFETY: it fills the structure, and returns 0 only then.
    log::reason(|| unsafe { sys::lr_port_info(port, info.as_mut_ptr()) })?;
    // SAFETY: it was filled.
    Ok(unsafe { info.assume_init() })
}
