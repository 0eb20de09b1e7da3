//! Passive objects: creation and destruction.

use super::completion::{QueueSlot, Waker};
use super::device::{Device, Health};
use super::faults::Call;
use super::qp::Buffer;
use super::world::{World, require};
use linerate_rdma_provider::{Access, AhAttr, AsyncEvent, Handle, Keys, SrqInitAttr, WorkCompletion};
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

/// Protection domain.
pub(super) struct Pd {
    /// Protection domain and thread domain of a parent domain.
    pub parent_of: Option<(Handle, Handle)>,
}

/// Thread domain.
pub(super) struct Td;

/// Memory region (IBA 10.6).
pub(super) struct Mr {
    pub pd: Handle,
    pub start: usize,
    pub len: usize,
    pub access: Access,
    pub key: u32,
}

/// Type 2B memory window.
pub(super) struct Mw {
    pub pd: Handle,
    pub index: u32,
    pub key: u32,
    pub bound: Option<Bound>,
}

/// Memory that a window opens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub qp: Handle,
    pub mr: Handle,
    pub address: u64,
    pub len: u64,
    pub access: Access,
}

/// Completion channel, with the queues that have an event.
pub(super) struct Channel {
    pub events: Waker<Handle>,
}

/// Completion queue.
pub(super) struct Queue {
    pub vector: u32,
    pub channel: Option<Handle>,
    pub capacity: u32,
    pub completions: VecDeque<(WorkCompletion, QueueSlot)>,
    pub is_armed: bool,
    pub is_overrun: bool,
}

pub(super) struct Address {
    pub pd: Handle,
    pub path: AhAttr,
    /// Ethernet address of the destination when the address handle was created.
    pub mac: Option<u32>,
}

/// Shared receive queue.
pub(super) struct SharedReceiveQueue {
    pub pd: Handle,
    pub capacity: u32,
    pub sges: u32,
    pub buffers: VecDeque<Buffer>,
    /// Used slots: posted buffers and unpolled completions.
    pub held: u32,
}

impl World {
    pub fn is_vanished(&self, device: usize) -> bool {
        self.devices[device].health == Health::Vanished
    }

    pub fn alloc_pd(&mut self, device: usize) -> io::Result<Handle> {
        self.enter(device, Call::AllocDomain)?;
        let limit = self.devices[device].config.limits.pds;
        require(self.pds.count(Some(device)) < limit as usize, libc::ENOMEM)?;
        Ok(self.handles.add(&mut self.pds, device, Pd { parent_of: None }))
    }

    pub fn alloc_td(&mut self, device: usize) -> io::Result<Handle> {
        self.enter(device, Call::AllocThread)?;
        require(self.devices[device].config.thread_domains, libc::EOPNOTSUPP)?;
        Ok(self.handles.add(&mut self.tds, device, Td))
    }

    pub fn dealloc_td(&mut self, device: usize, td: Handle) -> io::Result<()> {
        self.handles.check(&self.tds, device, td)?;
        let is_used = self.pds.values().any(|pd| pd.parent_of.is_some_and(|(_, of)| of == td));
        require(!is_used, libc::EBUSY)?;
        self.handles.remove(&mut self.tds, td);
        Ok(())
    }

    pub fn alloc_parent_domain(&mut self, device: usize, pd: Handle, td: Handle) -> io::Result<Handle> {
        self.enter(device, Call::AllocParent)?;
        self.handles.check(&self.pds, device, pd)?;
        self.handles.check(&self.tds, device, td)?;
        require(self.pds[pd].parent_of.is_none(), libc::EINVAL)?;
        Ok(self.handles.add(&mut self.pds, device, Pd { parent_of: Some((pd, td)) }))
    }

    /// Returns the protection domain of an object that is created with `pd`, which may be a parent domain.
    pub fn base_pd(&self, pd: Handle) -> Handle {
        self.pds[pd].parent_of.map_or(pd, |(pd, _)| pd)
    }

    pub fn dealloc_pd(&mut self, device: usize, pd: Handle) -> io::Result<()> {
        self.handles.check(&self.pds, device, pd)?;
        let is_used = self.mrs.values().any(|mr| mr.pd == pd)
            || self.mws.values().any(|mw| mw.pd == pd)
            || self.addresses.values().any(|address| address.pd == pd)
            || self.srq.values().any(|srq| srq.pd == pd)
            || self.qps.values().any(|qp| qp.pd == pd || qp.parent == Some(pd))
            || self.pds.values().any(|parent| parent.parent_of.is_some_and(|(of, _)| of == pd));
        require(!is_used, libc::EBUSY)?;
        self.handles.remove(&mut self.pds, pd);
        Ok(())
    }

    pub fn reg_mr(
        &mut self,
        device: usize,
        pd: Handle,
        start: *mut u8,
        len: usize,
        access: Access,
    ) -> io::Result<(Handle, Keys)> {
        self.enter(device, Call::Register)?;
        self.handles.check(&self.pds, device, pd)?;
        let pd = self.base_pd(pd);
        let limits = &self.devices[device].config.limits;
        // Remote write access requires local write access (ibv_reg_mr(3)).
        let is_open = access.remote_write || access.remote_atomic;
        require(len > 0 && len as u64 <= limits.mr_bytes && (!is_open || access.local_write), libc::EINVAL)?;
        require(self.mrs.count(Some(device)) < limits.mrs as usize, libc::ENOMEM)?;
        let tag = self.random.u32(0..256);
        let mr = Mr { pd, start: start.expose_provenance(), len, access, key: 0 };
        let handle = self.handles.add(&mut self.mrs, device, mr);
        let key = self.devices[device].new_index(handle) << 8 | tag;
        self.mrs[handle].key = key;
        Ok((handle, Keys { local: key, remote: key }))
    }

    pub fn dereg_mr(&mut self, device: usize, mr: Handle) -> io::Result<()> {
        self.handles.check(&self.mrs, device, mr)?;
        let is_bound = self.mws.values().any(|mw| mw.bound.is_some_and(|bound| bound.mr == mr));
        require(!is_bound, libc::EBUSY)?;
        let mr = self.handles.remove(&mut self.mrs, mr);
        self.devices[device].keys.remove(&(mr.key >> 8));
        Ok(())
    }

    pub fn alloc_mw(&mut self, device: usize, pd: Handle) -> io::Result<(Handle, u32)> {
        self.enter(device, Call::AllocWindow)?;
        self.handles.check(&self.pds, device, pd)?;
        let pd = self.base_pd(pd);
        let limits = &self.devices[device].config.limits;
        let is_possible = limits.mw_type_2 && self.devices[device].config.allocates_windows;
        require(is_possible, libc::EOPNOTSUPP)?;
        require(self.mws.count(Some(device)) < limits.mws as usize, libc::ENOMEM)?;
        let tag = self.random.u32(0..256);
        let handle = self.handles.add(&mut self.mws, device, Mw { pd, index: 0, key: 0, bound: None });
        let index = self.devices[device].new_index(handle);
        let mw = &mut self.mws[handle];
        (mw.index, mw.key) = (index, index << 8 | tag);
        Ok((handle, mw.key))
    }

    /// Unbinds a bound window.
    pub fn dealloc_mw(&mut self, device: usize, mw: Handle) -> io::Result<()> {
        self.handles.check(&self.mws, device, mw)?;
        let mw = self.handles.remove(&mut self.mws, mw);
        self.devices[device].keys.remove(&mw.index);
        Ok(())
    }

    pub fn create_ah(&mut self, device: usize, pd: Handle, path: &AhAttr) -> io::Result<Handle> {
        self.enter(device, Call::CreateAddress)?;
        self.handles.check(&self.pds, device, pd)?;
        require(self.devices[device].has_port(path.port), libc::EINVAL)?;
        let (pd, mac) = (self.base_pd(pd), self.mac_of(path.gid));
        Ok(self.handles.add(&mut self.addresses, device, Address { pd, path: *path, mac }))
    }

    /// Returns the Ethernet address of the device with this GID.
    pub fn mac_of(&self, gid: [u8; 16]) -> Option<u32> {
        let has_gid = |device: &&Device| (1..=device.config.limits.ports).any(|port| device.has_gid(port, gid));
        let live = self.devices.iter().rev().filter(|device| device.health != Health::Vanished);
        live.clone().find(has_gid).map(|device| device.mac)
    }

    pub fn destroy_ah(&mut self, device: usize, address: Handle) -> io::Result<()> {
        self.handles.check(&self.addresses, device, address)?;
        self.handles.remove(&mut self.addresses, address);
        Ok(())
    }

    pub fn create_comp_channel(&mut self, device: usize) -> io::Result<(Handle, RawFd)> {
        self.enter(device, Call::CreateChannel)?;
        let events = Waker::new();
        let fd = events.fd();
        Ok((self.handles.add(&mut self.channels, device, Channel { events }), fd))
    }

    pub fn destroy_comp_channel(&mut self, device: usize, channel: Handle) -> io::Result<()> {
        self.handles.check(&self.channels, device, channel)?;
        require(!self.cqs.values().any(|cq| cq.channel == Some(channel)), libc::EBUSY)?;
        self.handles.remove(&mut self.channels, channel);
        Ok(())
    }

    pub fn create_cq(
        &mut self,
        device: usize,
        entries: u32,
        channel: Option<Handle>,
        vector: u32,
    ) -> io::Result<Handle> {
        require(vector < self.devices[device].config.comp_vectors, libc::EINVAL)?;
        self.enter(device, Call::CreateQueue)?;
        if let Some(channel) = channel {
            self.handles.check(&self.channels, device, channel)?;
        }
        let limits = &self.devices[device].config.limits;
        require((1..=limits.cqes).contains(&entries), libc::EINVAL)?;
        require(self.cqs.count(Some(device)) < limits.cqs as usize, libc::ENOMEM)?;
        let completions = VecDeque::new();
        let cq = Queue { channel, vector, capacity: entries, completions, is_armed: false, is_overrun: false };
        Ok(self.handles.add(&mut self.cqs, device, cq))
    }

    /// Discards pending events of the queue.
    pub fn destroy_cq(&mut self, device: usize, cq: Handle) -> io::Result<()> {
        self.handles.check(&self.cqs, device, cq)?;
        require(!self.qps.values().any(|qp| qp.uses(cq)), libc::EBUSY)?;
        let object = self.handles.remove(&mut self.cqs, cq);
        if let Some(channel) = object.channel {
            self.channels[channel].events.retain(|&of| of != cq);
        }
        self.devices[device].events.retain(|&event| event != AsyncEvent::CqError(cq));
        Ok(())
    }

    pub fn create_srq(&mut self, device: usize, pd: Handle, config: &SrqInitAttr) -> io::Result<Handle> {
        self.enter(device, Call::CreateShared)?;
        self.handles.check(&self.pds, device, pd)?;
        let pd = self.base_pd(pd);
        let limits = &self.devices[device].config.limits;
        let fits = (1..=limits.srq_wrs).contains(&config.buffers) && config.sges <= limits.srq_sges;
        require(fits, libc::EINVAL)?;
        require(self.srq.count(Some(device)) < limits.srqs as usize, libc::ENOMEM)?;
        let srq =
            SharedReceiveQueue { pd, capacity: config.buffers, sges: config.sges, buffers: VecDeque::new(), held: 0 };
        Ok(self.handles.add(&mut self.srq, device, srq))
    }

    pub fn destroy_srq(&mut self, device: usize, srq: Handle) -> io::Result<()> {
        self.handles.check(&self.srq, device, srq)?;
        require(!self.qps.values().any(|qp| qp.config.srq == Some(srq)), libc::EBUSY)?;
        self.handles.remove(&mut self.srq, srq);
        self.devices[device].events.retain(|&event| event != AsyncEvent::SrqError(srq));
        Ok(())
    }
}
