//! Completion queues, and the descriptors that say that something is there.

use super::world::{World, errno};
use linerate_rdma_provider::{AsyncEvent, Handle, QpState, WcOpcode, WcStatus, WorkCompletion};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Events, and a descriptor that is readable while there are any.
pub(super) struct Waker<T> {
    fd: OwnedFd,
    events: VecDeque<T>,
}

impl<T> Waker<T> {
    pub fn new() -> Self {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        assert!(fd >= 0, "eventfd: {}", io::Error::last_os_error());
        // SAFETY: the descriptor is open, and nobody else's.
        Waker { fd: unsafe { OwnedFd::from_raw_fd(fd) }, events: VecDeque::new() }
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub fn push(&mut self, event: T) {
        self.events.push_back(event);
        if self.events.len() == 1 {
            let one = 1u64;
            // SAFETY: 8 bytes are read from `one`.
            let written = unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
            assert_eq!(written, 8, "eventfd: {}", io::Error::last_os_error());
        }
    }

    pub fn pop(&mut self) -> Option<T> {
        let event = self.events.pop_front()?;
        self.quiet();
        Some(event)
    }

    /// Those for which `keep` is false are gone.
    pub fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        if !self.events.is_empty() {
            self.events.retain(keep);
            self.quiet();
        }
    }

    fn quiet(&mut self) {
        if self.events.is_empty() {
            let mut count = 0u64;
            // SAFETY: 8 bytes are written to `count`.
            let read = unsafe { libc::read(self.fd(), (&raw mut count).cast(), 8) };
            assert_eq!(read, 8, "eventfd: {}", io::Error::last_os_error());
        }
    }
}

/// Whose place in which queue is free when a completion is polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Of the request with this number in the send queue of a pair, and of all before it.
    Send(Handle, u64),
    /// Of one buffer of a pair.
    Receive(Handle),
    /// Of one buffer of a shared queue, which a pair used.
    Shared(Handle, Handle),
}

impl Place {
    /// The queue pair whose completion it is.
    fn qp(self) -> Handle {
        match self {
            Place::Send(qp, _) | Place::Receive(qp) | Place::Shared(_, qp) => qp,
        }
    }
}

impl World {
    /// Adds a completion. A queue without room for it has an error, and so has every queue pair that uses it.
    pub fn complete(&mut self, cq: Handle, completion: WorkCompletion, place: Place) {
        let device = self.cqs.device(cq);
        let object = &mut self.cqs[cq];
        if object.is_overrun {
            return;
        }
        if object.completions.len() >= object.capacity as usize {
            object.is_overrun = true;
            self.devices[device].events.push(AsyncEvent::CqError(cq));
            let users: Vec<_> = self.qps.iter().filter(|(_, qp)| qp.uses(cq)).map(|(handle, _)| handle).collect();
            for qp in users {
                self.break_pair(qp, Some(AsyncEvent::QpFatal(qp)));
            }
            return;
        }
        object.completions.push_back((completion, place));
        if let Some(channel) = object.channel
            && std::mem::take(&mut object.is_armed)
        {
            self.channels[channel].events.push(cq);
        }
    }

    pub fn notify(&mut self, device: usize, cq: Handle) -> io::Result<()> {
        if self.is_vanished(device) {
            return Err(errno(libc::EIO));
        }
        self.handles.check(&self.cqs, device, cq)?;
        self.cqs[cq].is_armed = true;
        Ok(())
    }

    pub fn get_cq_event(&mut self, device: usize, channel: Handle) -> io::Result<bool> {
        if self.is_vanished(device) {
            return Err(errno(libc::EIO));
        }
        self.handles.check(&self.channels, device, channel)?;
        Ok(self.channels[channel].events.pop().is_some())
    }

    pub fn poll(&mut self, device: usize, cq: Handle, into: &mut Vec<WorkCompletion>) -> io::Result<usize> {
        if self.is_vanished(device) {
            return Err(errno(libc::EIO));
        }
        self.handles.check(&self.cqs, device, cq)?;
        let room = into.capacity() - into.len();
        let count = room.min(self.cqs[cq].completions.len());
        for _ in 0..count {
            let (completion, place) = self.cqs[cq].completions.pop_front().expect("as many as were counted");
            self.free(place);
            let counters = self.counters.entry(completion.qp).or_default();
            match place {
                Place::Send(..) => counters.sends_polled += 1,
                Place::Receive(_) | Place::Shared(..) => counters.receives_polled += 1,
            }
            into.push(completion);
        }
        Ok(count)
    }

    /// Room for requests is made by polling alone: a provider learns from nothing else how far the device is.
    fn free(&mut self, place: Place) {
        match place {
            Place::Send(qp, sequence) => {
                if let Some(qp) = self.qps.get_mut(qp) {
                    qp.retired = qp.retired.max(sequence + 1);
                }
            }
            Place::Receive(qp) => {
                if let Some(qp) = self.qps.get_mut(qp) {
                    qp.receives_held = qp.receives_held.saturating_sub(1);
                }
            }
            Place::Shared(srq, _) => {
                if let Some(srq) = self.srq.get_mut(srq) {
                    srq.held = srq.held.saturating_sub(1);
                }
            }
        }
    }

    /// Takes the completions of a queue pair that is reset or destroyed out of its queues, unless its driver leaves them.
    pub fn forget_completions(&mut self, qp: Handle) {
        if self.devices[self.qps.device(qp)].config.keeps_completions {
            return;
        }
        let mut freed = Vec::new();
        for cq in [self.qps[qp].config.send_cq, self.qps[qp].config.recv_cq] {
            self.cqs[cq].completions.retain(|&(_, place)| {
                let stays = place.qp() != qp;
                freed.extend((!stays).then_some(place));
                stays
            });
        }
        freed.into_iter().for_each(|place| self.free(place));
    }

    /// Ends the oldest of a queue pair's buffers with an error, or says that it had its last one of a shared queue.
    pub fn flush_receive(&mut self, qp: Handle) {
        let object = &mut self.qps[qp];
        debug_assert_eq!(object.state, QpState::Error);
        let Some(buffer) = object.receives.pop_front() else {
            object.is_last_told = true;
            let device = &mut self.devices[self.qps.device(qp)];
            if device.config.tells_last {
                device.events.push(AsyncEvent::LastWqeReached(qp));
            }
            return;
        };
        let (cq, number) = (object.config.recv_cq, object.number);
        let place = object.config.srq.map_or(Place::Receive(qp), |srq| Place::Shared(srq, qp));
        let completion = WorkCompletion {
            id: buffer.id,
            status: WcStatus::Flushed,
            opcode: WcOpcode::Receive,
            len: 0,
            qp: number,
            immediate: None,
            invalidated: None,
            source: 0,
            has_grh: false,
        };
        self.complete(cq, completion, place);
    }

    /// A queue pair breaks while a message is coming, if its device is of that kind: it has a buffer for that.
    pub fn hold_shared(&mut self, qp: Handle) {
        if self.devices[self.qps.device(qp)].config.holds_shared
            && let Some(srq) = self.qps[qp].config.srq
        {
            let held = self.srq[srq].buffers.pop_front();
            self.qps[qp].receives.extend(held);
        }
    }

    /// What a queue pair that is reset or destroyed has of a shared queue is gone, and its place there is free.
    pub fn forget_shared(&mut self, qp: Handle) {
        let Some(srq) = self.qps[qp].config.srq else { return };
        for _ in std::mem::take(&mut self.qps[qp].receives) {
            self.free(Place::Shared(srq, qp));
        }
    }
}
