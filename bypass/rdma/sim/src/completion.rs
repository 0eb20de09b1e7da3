//! Completion queues, and the eventfds that signal events.

use super::world::World;
use linerate_rdma_provider::{AsyncEvent, Handle, QpState, WcOpcode, WcStatus, WorkCompletion};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Event queue with a file descriptor that is readable while it is not empty.
pub(super) struct Waker<T> {
    fd: OwnedFd,
    events: VecDeque<T>,
}

impl<T> Waker<T> {
    pub fn new() -> Self {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        assert!(fd >= 0, "eventfd: {}", io::Error::last_os_error());
        // SAFETY: the descriptor is open and owned by nothing else.
        Waker { fd: unsafe { OwnedFd::from_raw_fd(fd) }, events: VecDeque::new() }
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub fn push(&mut self, event: T) {
        self.events.push_back(event);
        if self.events.len() == 1 {
            let one = 1u64;
            // SAFETY: reads 8 bytes from `one`.
            let written = unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
            assert_eq!(written, 8, "eventfd: {}", io::Error::last_os_error());
        }
    }

    pub fn pop(&mut self) -> Option<T> {
        let event = self.events.pop_front()?;
        self.quiet();
        Some(event)
    }

    /// Removes the events for which `keep` returns false.
    pub fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        if !self.events.is_empty() {
            self.events.retain(keep);
            self.quiet();
        }
    }

    fn quiet(&mut self) {
        if self.events.is_empty() {
            let mut count = 0u64;
            // SAFETY: writes 8 bytes to `count`.
            let read = unsafe { libc::read(self.fd(), (&raw mut count).cast(), 8) };
            assert_eq!(read, 8, "eventfd: {}", io::Error::last_os_error());
        }
    }
}

/// Queue slot that becomes free when a completion is polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueueSlot {
    /// Slots of the send request with this number and of all earlier requests.
    Send(Handle, u64),
    Receive(Handle),
    /// Slot of one shared receive buffer, used by a queue pair.
    Shared(Handle, Handle),
}

impl QueueSlot {
    /// Returns the queue pair of the completion.
    fn qp(self) -> Handle {
        match self {
            QueueSlot::Send(qp, _) | QueueSlot::Receive(qp) | QueueSlot::Shared(_, qp) => qp,
        }
    }
}

impl World {
    /// Adds a completion. An overrun breaks the queue and all queue pairs that use it.
    pub fn complete(&mut self, cq: Handle, completion: WorkCompletion, slot: QueueSlot) {
        let object = &mut self.cqs[cq];
        if object.is_overrun {
            return;
        }
        if object.completions.len() >= object.capacity as usize {
            return self.overrun(cq);
        }
        object.completions.push_back((completion, slot));
        if let Some(channel) = object.channel
            && std::mem::take(&mut object.is_armed)
        {
            self.channels[channel].events.push(cq);
        }
    }

    /// Breaks a completion queue and all queue pairs that use it.
    pub fn overrun(&mut self, cq: Handle) {
        self.cqs[cq].is_overrun = true;
        let device = self.cqs.device(cq);
        self.devices[device].events.push(AsyncEvent::CqError(cq));
        let users: Vec<_> = self.qps.iter().filter(|(_, qp)| qp.uses(cq)).map(|(handle, _)| handle).collect();
        for qp in users {
            self.break_pair(qp, Some(AsyncEvent::QpFatal(qp)));
        }
    }

    pub fn req_notify_cq(&mut self, device: usize, cq: Handle) -> io::Result<()> {
        self.handles.check(&self.cqs, device, cq)?;
        self.cqs[cq].is_armed = true;
        Ok(())
    }

    pub fn get_cq_event(&mut self, device: usize, channel: Handle) -> io::Result<bool> {
        self.handles.check(&self.channels, device, channel)?;
        Ok(self.channels[channel].events.pop().is_some())
    }

    pub fn poll_cq(&mut self, device: usize, cq: Handle, into: &mut Vec<WorkCompletion>) -> io::Result<usize> {
        self.handles.check(&self.cqs, device, cq)?;
        let room = into.capacity() - into.len();
        let count = room.min(self.cqs[cq].completions.len());
        for _ in 0..count {
            let (completion, slot) = self.cqs[cq].completions.pop_front().expect("counted before");
            self.free(slot);
            let counters = self.counters.entry(completion.qp).or_default();
            match slot {
                QueueSlot::Send(..) => counters.sends_polled += 1,
                QueueSlot::Receive(_) | QueueSlot::Shared(..) => counters.receives_polled += 1,
            }
            into.push(completion);
        }
        Ok(count)
    }

    /// Frees the slot of a polled completion. Only polling frees slots, because a provider has no other information on
    /// the device's progress.
    fn free(&mut self, slot: QueueSlot) {
        match slot {
            QueueSlot::Send(qp, sequence) => {
                if let Some(qp) = self.qps.get_mut(qp) {
                    qp.retired = qp.retired.max(sequence + 1);
                }
            }
            QueueSlot::Receive(qp) => {
                if let Some(qp) = self.qps.get_mut(qp) {
                    qp.receives_held = qp.receives_held.saturating_sub(1);
                }
            }
            QueueSlot::Shared(srq, _) => {
                if let Some(srq) = self.srq.get_mut(srq) {
                    srq.held = srq.held.saturating_sub(1);
                }
            }
        }
    }

    /// Removes the completions of a queue pair that is reset or destroyed, unless its driver keeps them.
    pub fn forget_completions(&mut self, qp: Handle) {
        if self.devices[self.qps.device(qp)].config.keeps_completions {
            return;
        }
        let mut freed = Vec::new();
        for cq in [self.qps[qp].config.send_cq, self.qps[qp].config.recv_cq] {
            self.cqs[cq].completions.retain(|&(_, slot)| {
                let stays = slot.qp() != qp;
                freed.extend((!stays).then_some(slot));
                stays
            });
        }
        freed.into_iter().for_each(|slot| self.free(slot));
    }

    /// Flushes the oldest buffer of a queue pair, or reports its last shared buffer.
    pub fn flush_receive(&mut self, qp: Handle) {
        let object = &mut self.qps[qp];
        debug_assert_eq!(object.state, QpState::Error);
        let Some(buffer) = object.receives.pop_front() else {
            object.is_last_reported = true;
            let device = &mut self.devices[self.qps.device(qp)];
            if device.config.reports_last_wqe {
                device.events.push(AsyncEvent::LastWqeReached(qp));
            }
            return;
        };
        let (cq, number) = (object.config.recv_cq, object.number);
        let slot = object.config.srq.map_or(QueueSlot::Receive(qp), |srq| QueueSlot::Shared(srq, qp));
        let completion = WorkCompletion::new(buffer.id, WcStatus::Flushed, WcOpcode::Receive, 0, number);
        self.complete(cq, completion, slot);
    }

    /// Lets a failing queue pair hold a shared buffer for a message in progress, if `holds_shared` is set.
    pub fn hold_shared(&mut self, qp: Handle) {
        if self.devices[self.qps.device(qp)].config.holds_shared
            && let Some(srq) = self.qps[qp].config.srq
        {
            let held = self.srq[srq].buffers.pop_front();
            self.qps[qp].receives.extend(held);
        }
    }

    /// Releases the shared buffers of a queue pair that is reset or destroyed.
    pub fn forget_shared(&mut self, qp: Handle) {
        let Some(srq) = self.qps[qp].config.srq else { return };
        for _ in std::mem::take(&mut self.qps[qp].receives) {
            self.free(QueueSlot::Shared(srq, qp));
        }
    }
}
