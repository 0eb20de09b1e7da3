//! Fault injection.

use super::call::{Call, CallFault};
use super::device::{Health, SimDevice};
use super::{Fabric, World};
use crate::path::Path;
use linerate_rdma_provider::{AsyncEvent, Handle, Provider, QpState, WcOpcode, WcStatus, WorkCompletion};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// Faults of packets in flight, as probabilities in percent, drawn by the fabric's seed. By default, all packets
/// arrive, and those between two addresses in order.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// The packet is lost.
    pub lost: u8,
    /// The packet arrives twice.
    pub twice: u8,
    /// The packet overtakes others.
    pub late: u8,
}

impl Fabric {
    /// Sets the faults of packets sent from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.world().network.faults = faults;
    }

    /// Makes a call of a device fail once with `errno`, after `after` successful ones.
    pub fn fail_call(&self, sim: &SimDevice, call: Call, after: u64, errno: i32) {
        self.world().sites[sim.index].call_faults.push(CallFault { call, after, errno });
    }

    /// Makes a request that is posted to the queue pair with this number fail, after `after` successful ones. A request
    /// of a UD queue pair fails with [`WcStatus::LocalQp`]. Does nothing without such a queue pair.
    pub fn fail_request(&self, qp: u32, after: u64, status: WcStatus) {
        let mut world = self.world();
        if let Some((index, handle)) = world.find(qp) {
            world.sites[index].qps.entry(handle.0).or_default().faults.push((after, status));
        }
    }

    /// Makes a queue pair fail.
    pub fn pair_fatal(&self, qp: u32) {
        let mut world = self.world();
        if let Some((index, handle)) = world.find(qp) {
            world.fail(index, handle, Some(AsyncEvent::QpFatal(handle)));
        }
    }

    /// Kills the process of a device: its objects are gone, and every call fails, except calls that destroy objects.
    /// With `is_announced` its kernel ends the connections; otherwise the whole machine is gone.
    pub fn vanish(&self, sim: &SimDevice, is_announced: bool) {
        let mut world = self.world();
        if is_announced {
            let ids = sim.device.driver().engine.cm.ids();
            for id in ids {
                // SAFETY: the identifier is live, unless it was destroyed with its listener, which the device detects.
                _ = unsafe { sim.device.cm_destroy_id(id) };
            }
            world.follow_up(sim.index);
            while world.transmit(sim.index) {}
        }
        let site = &mut world.sites[sim.index];
        site.health = Health::Vanished;
        site.qps.clear();
        site.late.clear();
    }

    /// Takes a port down until [`take_up`](Self::take_up). Requests wait as long as their queue pairs retry.
    pub fn take_down(&self, sim: &SimDevice, port: u8) {
        let site = &mut self.world().sites[sim.index];
        site.down.insert(port);
        site.events.push(AsyncEvent::PortError(port));
    }

    /// Takes a port up again.
    pub fn take_up(&self, sim: &SimDevice, port: u8) {
        let site = &mut self.world().sites[sim.index];
        site.down.remove(&port);
        site.events.push(AsyncEvent::PortActive(port));
    }

    /// Reports a change of a port's GID table that leaves the GIDs of connections in it, such as an address added to
    /// its interface.
    pub fn gid_event(&self, sim: &SimDevice, port: u8) {
        self.world().sites[sim.index].events.push(AsyncEvent::GidChange(port));
    }

    /// Changes the address of a port. Peers that use the old one receive no response.
    pub fn change_address(&self, sim: &SimDevice, port: u8, address: IpAddr) {
        let mut world = self.world();
        let site = &mut world.sites[sim.index];
        site.set_address(port, address);
        site.events.push(AsyncEvent::GidChange(port));
        sim.device.driver().engine.set_addresses(&site.config.prefixes());
        world.follow_up(sim.index);
    }

    /// Moves the addresses of a device to another network card, as a bond or a virtual machine does: address handles
    /// that exist no longer reach it.
    pub fn fail_over(&self, sim: &SimDevice) {
        let world = self.world();
        let moved = &world.sites[sim.index];
        for site in &world.sites {
            for ah in site.device.driver().engine.parts().1.addresses.values_mut() {
                if moved.port_of(ah.path.remote.ip()).is_some() {
                    // An address that no device has (RFC 5737).
                    let lost = Ipv4Addr::new(192, 0, 2, 1).into();
                    ah.path = Path::new([ah.path.local.ip(), lost], ah.path.traffic_class);
                }
            }
        }
    }

    /// Makes all completion queues of a device overrun.
    pub fn overrun(&self, sim: &SimDevice) {
        let mut world = self.world();
        sim.device.driver().engine.overrun();
        world.follow_up(sim.index);
    }

    /// Adds `count` completions of a queue pair that does not exist to all completion queues of a device.
    pub fn flood(&self, sim: &SimDevice, count: usize) {
        let mut driver = sim.device.driver();
        let completions = driver.engine.completions();
        let stray = WorkCompletion::new(0, WcStatus::Flushed, WcOpcode::Send, 0, (1 << 24) - 1);
        let cqs: Vec<_> = completions.cqs.iter().map(|(handle, _)| handle).collect();
        for cq in cqs {
            (0..count).for_each(|_| completions.add(cq, stray));
        }
    }

    /// Makes a device fail or removes it: its queue pairs enter ERROR, without completions unless it
    /// [flushes](super::DeviceConfig::flushes_on_fatal); its identifiers receive
    /// [`Removed`](linerate_rdma_provider::CmEventKind::Removed); and every call fails with `EIO`, except calls that
    /// destroy objects or take completions and events.
    pub fn fatal(&self, sim: &SimDevice) {
        let mut world = self.world();
        let site = &mut world.sites[sim.index];
        site.events.push(AsyncEvent::DeviceFatal);
        site.health = Health::Fatal;
        let flushes = site.config.flushes_on_fatal;
        let mut driver = sim.device.driver();
        let (qps, objects) = driver.engine.parts();
        for qp in qps.values_mut() {
            if flushes {
                qp.fail(None, None, objects);
            } else {
                qp.state = QpState::Error;
                qp.requester.reset();
                qp.receives.clear();
            }
        }
        driver.engine.cm.notify_removed();
        drop(driver);
        world.follow_up(sim.index);
    }
}

impl World {
    /// Returns the device and the handle of the queue pair with this number.
    fn find(&self, number: u32) -> Option<(usize, Handle)> {
        self.sites.iter().enumerate().find_map(|(index, site)| Some((index, site.qp_by_number(number)?)))
    }

    /// Makes a queue pair fail, with an event unless the program requested it.
    pub fn fail(&mut self, index: usize, qp: Handle, event: Option<AsyncEvent>) {
        let device = Arc::clone(&self.sites[index].device);
        let mut driver = device.driver();
        let (qps, objects) = driver.engine.parts();
        if let Ok(qp) = qps.get_mut(qp) {
            qp.fail(None, event, objects);
        }
        drop(driver);
        self.follow_up(index);
    }

    /// Fails the peers of queue pairs whose scheduled failure is a refusal by the peer.
    pub(super) fn fail_peers(&mut self, index: usize) {
        let site = &mut self.sites[index];
        let mut peers = Vec::new();
        for (&handle, sim) in site.qps.iter_mut().filter(|(_, sim)| sim.peer_event.is_some()) {
            let mut driver = site.device.driver();
            if let Ok(qp) = driver.engine.parts().0.get(Handle(handle))
                && qp.state == QpState::Error
            {
                peers.extend(qp.path.map(|path| path.remote.ip()).zip(Some(qp.peer)).zip(sim.peer_event.take()));
            }
        }
        for ((remote, number), event) in peers {
            let found = self.sites.iter().enumerate().rev().find(|(_, site)| site.carries(remote));
            let peer = found.and_then(|(index, site)| Some((index, site.qp_by_number(number)?)));
            if let Some((index, peer)) = peer {
                self.fail(index, peer, Some(event(peer)));
            }
        }
    }
}
