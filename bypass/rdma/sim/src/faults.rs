//! Fault injection.

use super::cm::Action;
use super::completion::QueueSlot;
use super::device::{Health, SimDevice};
use super::fabric::Fabric;
use super::world::{World, errno};
use linerate_rdma_provider::{AsyncEvent, CmEventKind, Handle, WcOpcode, WcStatus, WorkCompletion};
use std::io;
use std::net::IpAddr;

/// Call that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "named like the calls")]
pub enum Call {
    AllocDomain,
    AllocThread,
    AllocParent,
    Register,
    AllocWindow,
    CreateAddress,
    CreateChannel,
    CreateQueue,
    CreateShared,
    CreatePair,
    Modify,
    PostSend,
    PostReceive,
    PostShared,
    CmCreateChannel,
    CmCreate,
    CmListen,
    CmResolveAddress,
    CmResolveRoute,
    CmConnect,
    CmEstablish,
    CmAccept,
    CmReject,
    CmDisconnect,
}

/// Scheduled failure of a call.
#[derive(Debug)]
pub(super) struct CallFault {
    call: Call,
    /// Calls that succeed before.
    after: u64,
    errno: i32,
}

/// Faults of datagrams in flight. By default, all datagrams arrive, and the datagrams of one queue pair in order.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct DatagramFaults {
    /// Percentage of lost datagrams, chosen with the fabric's seed.
    pub lost_percent: u32,
    /// Maximum delay in steps, chosen with the fabric's seed, which may reorder datagrams. With
    /// [`Mode::Auto`](super::Mode::Auto), calls advance the steps.
    pub delay_steps: u64,
}

/// Statistics of datagrams on the whole fabric.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct DatagramCounts {
    pub sent: u64,
    /// Longer than the port's MTU.
    pub too_long: u64,
    /// Lost in flight: by [`DatagramFaults`], or because a port or device was down.
    pub lost: u64,
    /// For a queue pair that did not exist, was not ready to receive, or had another address.
    pub unknown: u64,
    /// With a wrong Q_Key.
    pub wrong_key: u64,
    /// Without a buffer.
    pub no_buffer: u64,
    /// For a buffer that was too short.
    pub short_buffer: u64,
    pub received: u64,
}

impl Fabric {
    /// Sets the faults of datagrams sent from now on.
    pub fn set_datagram_faults(&self, faults: DatagramFaults) {
        self.world().datagram_faults = faults;
    }

    pub fn datagram_counts(&self) -> DatagramCounts {
        self.world().datagram_counts
    }

    /// Makes a call of a device fail once with `errno`, after `after` successful ones.
    pub fn fail_call(&self, sim: &SimDevice, call: Call, after: u64, errno: i32) {
        self.world().devices[sim.index].call_faults.push(CallFault { call, after, errno });
    }

    /// Makes a request of the queue pair with this number fail, after `after` successful ones. Does nothing without
    /// such a queue pair.
    pub fn fail_request(&self, qp: u32, after: u64, status: WcStatus) {
        let mut world = self.world();
        if let Some(&handle) = world.numbers.get(&qp) {
            world.qps[handle].faults.push((after, status));
        }
    }

    /// Kills the process of a device: its objects are gone, and every call fails, except calls that destroy objects.
    /// With `is_announced` its kernel ends the connections, and peers receive [`CmEventKind::Disconnected`]; otherwise
    /// the whole machine is gone, and their requests end with [`WcStatus::RetryExceeded`].
    pub fn vanish(&self, sim: &SimDevice, is_announced: bool) {
        self.world().vanish(sim.index, is_announced);
    }

    /// Takes port 1 down until [`port_up`](Self::port_up). Requests wait as long as their queue pairs retry.
    pub fn port_down(&self, sim: &SimDevice) {
        self.take_down(sim, 1);
    }

    /// Takes port 1 up again.
    pub fn port_up(&self, sim: &SimDevice) {
        self.take_up(sim, 1);
    }

    /// Takes a port down, like [`port_down`](Self::port_down).
    pub fn take_down(&self, sim: &SimDevice, port: u8) {
        let mut world = self.world();
        let device = &mut world.devices[sim.index];
        device.down.insert(port);
        device.events.push(AsyncEvent::PortError(port));
    }

    /// Takes a port up again.
    pub fn take_up(&self, sim: &SimDevice, port: u8) {
        let mut world = self.world();
        let device = &mut world.devices[sim.index];
        device.down.remove(&port);
        device.events.push(AsyncEvent::PortActive(port));
    }

    /// Reports a change of a port's GID table that leaves the GIDs of connections in it, such as an address added to
    /// its interface.
    pub fn gid_event(&self, sim: &SimDevice, port: u8) {
        self.world().devices[sim.index].events.push(AsyncEvent::GidChange(port));
    }

    /// Makes a queue pair fail.
    pub fn pair_fatal(&self, qp: u32) {
        let mut world = self.world();
        if let Some(&handle) = world.numbers.get(&qp) {
            world.break_pair(handle, Some(AsyncEvent::QpFatal(handle)));
        }
    }

    /// Moves the addresses of a device to another network card, as a bond or a virtual machine does: address handles
    /// that exist no longer reach it.
    pub fn fail_over(&self, sim: &SimDevice) {
        self.world().devices[sim.index].mac += 1;
    }

    /// Makes all completion queues of a device overrun.
    pub fn overrun(&self, sim: &SimDevice) {
        let mut world = self.world();
        for cq in world.cqs.of(sim.index) {
            world.overrun(cq);
        }
    }

    /// Adds `count` completions of a queue pair that does not exist to all completion queues of a device.
    pub fn flood(&self, sim: &SimDevice, count: usize) {
        let mut world = self.world();
        let stray = WorkCompletion::new(0, WcStatus::Flushed, WcOpcode::Send, 0, (1 << 24) - 1);
        for cq in world.cqs.of(sim.index) {
            (0..count).for_each(|_| world.complete(cq, stray, QueueSlot::Receive(Handle(0))));
        }
    }

    /// Makes a device fail or removes it: its queue pairs enter `Error`, without completions unless it
    /// [flushes](super::DeviceConfig::flushes_on_fatal); its identifiers receive [`CmEventKind::Removed`]; and every
    /// call fails with `EIO`, except calls that destroy objects or take completions and events.
    pub fn fatal(&self, sim: &SimDevice) {
        let mut world = self.world();
        let device = sim.index;
        world.devices[device].events.push(AsyncEvent::DeviceFatal);
        for qp in world.qps.of(device) {
            world.break_pair(qp, None);
        }
        for id in world.cm_ids.of(device) {
            world.act(id, Action::Event { kind: CmEventKind::Removed, status: 0 });
        }
        world.devices[device].health = Health::Fatal;
    }

    /// Changes the address of port 1. Peers that use the old one receive no response; identifiers of the port receive
    /// [`CmEventKind::AddressChanged`].
    pub fn gids_changed(&self, sim: &SimDevice, address: IpAddr) {
        self.change_address(sim, 1, address);
    }

    /// Changes the address of a port, like [`gids_changed`](Self::gids_changed).
    pub fn change_address(&self, sim: &SimDevice, port: u8, address: IpAddr) {
        let mut world = self.world();
        let ids: Vec<_> = world.cm_ids.of(sim.index).into_iter().filter(|&id| world.port_of(id) == port).collect();
        let device = &mut world.devices[sim.index];
        device.set_address(port, address);
        device.events.push(AsyncEvent::GidChange(port));
        for id in ids {
            if world.cm_ids[id].is_on_device() {
                world.act(id, Action::Event { kind: CmEventKind::AddressChanged, status: 0 });
            }
        }
    }

    /// Makes addresses resolve to another device of the process, so that
    /// [`cm_is_on_device`](linerate_rdma_provider::Provider::cm_is_on_device) returns false.
    pub fn resolve_elsewhere(&self, sim: &SimDevice, is_elsewhere: bool) {
        self.world().devices[sim.index].is_elsewhere = is_elsewhere;
    }
}

impl World {
    /// Checks the state of the device, and scheduled failures, at the start of a call.
    pub fn enter(&mut self, device: usize, call: Call) -> io::Result<()> {
        let device = &mut self.devices[device];
        if device.health != Health::Well {
            return Err(errno(libc::EIO));
        }
        let mut failed = None;
        device.call_faults.retain_mut(|fault| {
            if fault.call != call {
                return true;
            }
            if fault.after == 0 && failed.is_none() {
                failed = Some(fault.errno);
                return false;
            }
            fault.after = fault.after.saturating_sub(1);
            true
        });
        failed.map_or(Ok(()), |number| Err(errno(number)))
    }

    /// Returns the scheduled failure of the request being executed. If the failure is a refusal by the peer, the peer
    /// fails as well.
    pub fn due_fault(&mut self, qp: Handle) -> Option<WcStatus> {
        let faults = &mut self.qps[qp].faults;
        let due = faults.iter().position(|&(after, _)| after == 0);
        let status = due.map(|index| faults.remove(index).1);
        faults.iter_mut().for_each(|(after, _)| *after = after.saturating_sub(1));
        let event: Option<fn(Handle) -> AsyncEvent> = match status? {
            WcStatus::RemoteAccess => Some(AsyncEvent::QpAccessError),
            WcStatus::RemoteInvalidRequest => Some(AsyncEvent::QpRequestError),
            WcStatus::RemoteOperation | WcStatus::RemoteAborted => Some(AsyncEvent::QpFatal),
            _ => None,
        };
        if let (Some(event), Some(peer)) = (event, self.reachable(qp)) {
            self.break_pair(peer, Some(event(peer)));
        }
        status
    }

    fn vanish(&mut self, device: usize, is_announced: bool) {
        for id in self.cm_ids.of(device) {
            if is_announced {
                self.tear(id);
            } else {
                self.silence(id);
            }
            self.active.remove(&id.0);
            self.cm_ids.take(id);
        }
        for qp in self.qps.of(device) {
            let number = self.qps[qp].number;
            self.qps.take(qp);
            self.forget_pair(device, qp, number);
        }
        self.mws.remove_of(device);
        self.mrs.remove_of(device);
        self.addresses.remove_of(device);
        self.srq.remove_of(device);
        self.cqs.remove_of(device);
        self.channels.remove_of(device);
        self.cm_channels.remove_of(device);
        self.pds.remove_of(device);
        self.tds.remove_of(device);
        self.devices[device].keys.clear();
        self.devices[device].health = Health::Vanished;
    }
}
