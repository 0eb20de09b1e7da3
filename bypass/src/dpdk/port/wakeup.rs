//! Descriptors by which a port wakes sleeping workers.

use super::dev_args::{PortKind, PortSpec};
use super::setup;
use crate::dpdk::log;
use dpdk_sys as sys;
use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Wake-up of a device's receive queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WakeupKind {
    /// No wake-up, as of the driver of memif (DPDK 22.11).
    None,
    /// Interrupt of the receive queue (`rte_eth_dev_rx_intr_enable`).
    Interrupt,
    /// The queue's AF_XDP socket. The driver has no interrupts, but creates the socket with the queue.
    XdpSocket,
}

impl WakeupKind {
    /// Returns the wake-up of the devices of `spec`.
    pub fn of(spec: &PortSpec) -> Self {
        match &spec.kind {
            PortKind::AfXdp(_) => WakeupKind::XdpSocket,
            _ if setup::is_memif(spec) => WakeupKind::None,
            _ => WakeupKind::Interrupt,
        }
    }
}

/// Returns whether the descriptor of a port of this kind stays readable while there are frames. The TAP driver receives
/// nothing before its signal has arrived, which may be after the descriptor became readable.
pub(crate) fn is_level(kind: &PortKind) -> bool {
    matches!(kind, PortKind::Tap(_))
}

/// Returns the descriptor of a receive queue with an interrupt.
pub(crate) fn interrupt(port: u16, queue: u16) -> Option<RawFd> {
    // SAFETY: there are no pointer arguments.
    log::reason(|| unsafe { sys::rte_eth_dev_rx_intr_ctl_q_get_fd(port, queue) }).ok()
}

/// Returns the AF_XDP sockets of this process.
pub(crate) fn xdp_sockets() -> BTreeSet<RawFd> {
    descriptors().filter(|fd| domain(*fd) == Some(libc::AF_XDP)).collect()
}

/// Returns the socket of this process that is connected to the socket `path`.
pub(crate) fn connected_to(path: &Path) -> Option<RawFd> {
    descriptors().find(|fd| {
        // SAFETY: a `sockaddr_un` consists of integers, for which zero is valid.
        let mut peer: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        let mut len = size_of_val(&peer) as libc::socklen_t;
        // SAFETY: the call writes at most `len` bytes. A closed descriptor is an error.
        let result = unsafe { libc::getpeername(*fd, (&raw mut peer).cast(), &mut len) };
        let name = peer.sun_path.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0);
        result == 0
            && i32::from(peer.sun_family) == libc::AF_UNIX
            && name.eq(path.as_os_str().as_bytes().iter().copied())
    })
}

/// Returns the descriptors of this process.
fn descriptors() -> impl Iterator<Item = RawFd> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the address family of a socket; `None` for other descriptors.
fn domain(fd: RawFd) -> Option<i32> {
    let mut domain = 0;
    let mut len = size_of_val(&domain) as libc::socklen_t;
    // SAFETY: the call writes at most `len` bytes. A closed descriptor is an error.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, (&raw mut domain).cast(), &mut len) };
    (result == 0).then_some(domain)
}
