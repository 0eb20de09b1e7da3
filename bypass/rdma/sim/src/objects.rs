//! Objects that do nothing by themselves: how they are made, and destroyed when nothing needs them any more.

use super::completion::{Bell, Place};
use super::device::Health;
use super::faults::Call;
use super::pair::Buffer;
use super::world::{World, errno, require};
use crate::calls::{Access, AsyncEvent, Handle, Keys, Path, SharedConfig, WorkCompletion};
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

/// A protection domain.
pub(super) struct Domain;

/// A memory region (IBA 10.6).
pub(super) struct Region {
    pub domain: Handle,
    pub start: usize,
    pub len: usize,
    pub access: Access,
    pub key: u32,
}

/// A memory window of type 2B.
pub(super) struct Window {
    pub domain: Handle,
    pub index: u32,
    pub key: u32,
    pub bound: Option<Bound>,
}

/// What a window opens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub pair: Handle,
    pub region: Handle,
    pub address: u64,
    pub len: u64,
    pub access: Access,
}

/// A completion channel: the queues that have an event.
pub(super) struct Channel {
    pub events: Bell<Handle>,
}

/// A completion queue.
pub(super) struct Queue {
    pub channel: Option<Handle>,
    pub capacity: u32,
    pub completions: VecDeque<(WorkCompletion, Place)>,
    pub is_armed: bool,
    pub is_overrun: bool,
}

/// The way to a port.
pub(super) struct Address {
    pub domain: Handle,
    pub path: Path,
}

/// A shared receive queue.
pub(super) struct Shared {
    pub domain: Handle,
    pub capacity: u32,
    pub segments: u32,
    pub buffers: VecDeque<Buffer>,
    /// Places taken: by buffers, and by completions of them that were not polled.
    pub held: u32,
    /// Fewer buffers than these are worth an event, once.
    pub limit: u32,
}

impl World {
    pub fn is_vanished(&self, device: usize) -> bool {
        self.devices[device].health == Health::Vanished
    }

    pub fn alloc_domain(&mut self, device: usize) -> io::Result<Handle> {
        self.enter(device, Call::AllocDomain)?;
        let limit = self.devices[device].config.limits.domains;
        require(self.domains.count(Some(device)) < limit as usize, libc::ENOMEM)?;
        Ok(self.handles.add(&mut self.domains, device, Domain))
    }

    pub fn dealloc_domain(&mut self, device: usize, domain: Handle) -> io::Result<()> {
        if self.is_vanished(device) {
            return Ok(());
        }
        self.handles.check(&self.domains, device, domain)?;
        let is_used = self.regions.values().any(|region| region.domain == domain)
            || self.windows.values().any(|window| window.domain == domain)
            || self.addresses.values().any(|address| address.domain == domain)
            || self.shared.values().any(|shared| shared.domain == domain)
            || self.pairs.values().any(|pair| pair.domain == domain);
        require(!is_used, libc::EBUSY)?;
        self.handles.remove(&mut self.domains, domain);
        Ok(())
    }

    pub fn register(
        &mut self,
        device: usize,
        domain: Handle,
        start: *mut u8,
        len: usize,
        access: Access,
    ) -> io::Result<(Handle, Keys)> {
        self.enter(device, Call::Register)?;
        self.handles.check(&self.domains, device, domain)?;
        let limits = &self.devices[device].config.limits;
        // What a peer may write, we must be able to (ibv_reg_mr(3)).
        let is_open = access.remote_write || access.remote_atomic;
        require(len > 0 && len as u64 <= limits.region_bytes && (!is_open || access.local_write), libc::EINVAL)?;
        require(self.regions.count(Some(device)) < limits.regions as usize, libc::ENOMEM)?;
        let tag = self.random.u32(0..256);
        let region = Region { domain, start: start.expose_provenance(), len, access, key: 0 };
        let handle = self.handles.add(&mut self.regions, device, region);
        let key = self.devices[device].new_index(handle) << 8 | tag;
        self.regions[handle].key = key;
        Ok((handle, Keys { local: key, remote: key }))
    }

    pub fn deregister(&mut self, device: usize, region: Handle) -> io::Result<()> {
        if self.is_vanished(device) {
            return Ok(());
        }
        self.handles.check(&self.regions, device, region)?;
        let is_bound = self.windows.values().any(|window| window.bound.is_some_and(|bound| bound.region == region));
        require(!is_bound, libc::EBUSY)?;
        let region = self.handles.remove(&mut self.regions, region);
        self.devices[device].keys.remove(&(region.key >> 8));
        Ok(())
    }

    pub fn alloc_window(&mut self, device: usize, domain: Handle) -> io::Result<(Handle, u32)> {
        self.enter(device, Call::AllocWindow)?;
        self.handles.check(&self.domains, device, domain)?;
        let limits = &self.devices[device].config.limits;
        require(limits.windows_type_2, libc::EOPNOTSUPP)?;
        require(self.windows.count(Some(device)) < limits.windows as usize, libc::ENOMEM)?;
        let tag = self.random.u32(0..256);
        let handle = self.handles.add(&mut self.windows, device, Window { domain, index: 0, key: 0, bound: None });
        let index = self.devices[device].new_index(handle);
        let window = &mut self.windows[handle];
        (window.index, window.key) = (index, index << 8 | tag);
        Ok((handle, window.key))
    }

    /// A bound window is unbound by this.
    pub fn dealloc_window(&mut self, device: usize, window: Handle) -> io::Result<()> {
        if self.is_vanished(device) {
            return Ok(());
        }
        self.handles.check(&self.windows, device, window)?;
        let window = self.handles.remove(&mut self.windows, window);
        self.devices[device].keys.remove(&window.index);
        Ok(())
    }

    pub fn create_address(&mut self, device: usize, domain: Handle, path: &Path) -> io::Result<Handle> {
        self.enter(device, Call::CreateAddress)?;
        self.handles.check(&self.domains, device, domain)?;
        require(path.port == 1, libc::EINVAL)?;
        Ok(self.handles.add(&mut self.addresses, device, Address { domain, path: *path }))
    }

    pub fn destroy_address(&mut self, device: usize, address: Handle) -> io::Result<()> {
        if self.is_vanished(device) {
            return Ok(());
        }
        self.handles.check(&self.addresses, device, address)?;
        self.handles.remove(&mut self.addresses, address);
        Ok(())
    }

    pub fn create_channel(&mut self, device: usize) -> io::Result<(Handle, RawFd)> {
        self.enter(device, Call::CreateChannel)?;
        let events = Bell::new();
        let fd = events.fd();
        Ok((self.handles.add(&mut self.channels, device, Channel { events }), fd))
    }

    pub fn destroy_channel(&mut self, device: usize, channel: Handle) -> io::Result<()> {
        if self.is_vanished(device) {
            return Ok(());
        }
        self.handles.check(&self.channels, device, channel)?;
        require(!self.queues.values().any(|queue| queue.channel == Some(channel)), libc::EBUSY)?;
        self.handles.remove(&mut self.channels, channel);
        Ok(())
    }

    pub fn create_queue(&mut self, device: usize, entries: u32, channel: Option<Handle>) -> io::Result<Handle> {
        self.enter(device, Call::CreateQueue)?;
        if let Some(channel) = channel {
            self.handles.check(&self.channels, device, channel)?;
        }
        let limits = &self.devices[device].config.limits;
        require((1..=limits.completions).contains(&entries), libc::EINVAL)?;
        require(self.queues.count(Some(device)) < limits.queues as usize, libc::ENOMEM)?;
        let completions = VecDeque::new();
        let queue = Queue { channel, capacity: entries, completions, is_armed: false, is_overrun: false };
        Ok(self.handles.add(&mut self.queues, device, queue))
    }

    /// Events of the queue that were not taken are gone.
    pub fn destroy_queue(&mut self, device: usize, queue: Handle) -> io::Result<()> {
        if self.is_vanished(device) {
            return Ok(());
        }
        self.handles.check(&self.queues, device, queue)?;
        require(!self.pairs.values().any(|pair| pair.uses(queue)), libc::EBUSY)?;
        let object = self.handles.remove(&mut self.queues, queue);
        if let Some(channel) = object.channel {
            self.channels[channel].events.retain(|&of| of != queue);
        }
        self.devices[device].events.retain(|&event| event != AsyncEvent::QueueError(queue));
        Ok(())
    }

    pub fn create_shared(&mut self, device: usize, domain: Handle, config: &SharedConfig) -> io::Result<Handle> {
        self.enter(device, Call::CreateShared)?;
        self.handles.check(&self.domains, device, domain)?;
        let limits = &self.devices[device].config.limits;
        let fits = (1..=limits.shared_buffers).contains(&config.buffers) && config.segments <= limits.shared_segments;
        require(fits, libc::EINVAL)?;
        require(self.shared.count(Some(device)) < limits.shared as usize, libc::ENOMEM)?;
        let shared = Shared {
            domain,
            capacity: config.buffers,
            segments: config.segments,
            buffers: VecDeque::new(),
            held: 0,
            limit: 0,
        };
        Ok(self.handles.add(&mut self.shared, device, shared))
    }

    /// The event comes when a buffer is taken and fewer are left, not when there are fewer already (ibv_modify_srq(3)).
    pub fn limit_shared(&mut self, device: usize, shared: Handle, limit: u32) -> io::Result<()> {
        self.enter(device, Call::LimitShared)?;
        self.handles.check(&self.shared, device, shared)?;
        let object = &mut self.shared[shared];
        require(limit <= object.capacity, libc::EINVAL)?;
        object.limit = limit;
        Ok(())
    }

    pub fn destroy_shared(&mut self, device: usize, shared: Handle) -> io::Result<()> {
        if self.is_vanished(device) {
            return Ok(());
        }
        self.handles.check(&self.shared, device, shared)?;
        require(!self.pairs.values().any(|pair| pair.config.shared == Some(shared)), libc::EBUSY)?;
        self.handles.remove(&mut self.shared, shared);
        let is_its = |event: &AsyncEvent| matches!(event, AsyncEvent::SharedLimit(of) | AsyncEvent::SharedError(of) if *of == shared);
        self.devices[device].events.retain(|event| !is_its(event));
        Ok(())
    }

    /// The next asynchronous event of a device.
    pub fn async_event(&mut self, device: usize) -> io::Result<Option<AsyncEvent>> {
        if self.is_vanished(device) {
            return Err(errno(libc::EIO));
        }
        Ok(self.devices[device].events.pop())
    }
}
