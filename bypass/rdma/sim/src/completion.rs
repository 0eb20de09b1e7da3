//! Completion queues, and the descriptors that say that something is there.

use super::world::{World, errno};
use crate::calls::{AsyncEvent, Completed, Handle, QueuePairState, Status, WorkCompletion};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Events, and a descriptor that is readable while there are any.
pub(super) struct Bell<T> {
    fd: OwnedFd,
    events: VecDeque<T>,
}

impl<T> Bell<T> {
    pub fn new() -> Self {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        assert!(fd >= 0, "eventfd: {}", io::Error::last_os_error());
        // SAFETY: the descriptor is open, and nobody else's.
        Bell { fd: unsafe { OwnedFd::from_raw_fd(fd) }, events: VecDeque::new() }
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
    fn pair(self) -> Handle {
        match self {
            Place::Send(pair, _) | Place::Receive(pair) | Place::Shared(_, pair) => pair,
        }
    }
}

impl World {
    /// Adds a completion. A queue without room for it has an error, and so has every queue pair that uses it.
    pub fn complete(&mut self, queue: Handle, completion: WorkCompletion, place: Place) {
        let device = self.queues.device(queue);
        let object = &mut self.queues[queue];
        if object.is_overrun {
            return;
        }
        if object.completions.len() >= object.capacity as usize {
            object.is_overrun = true;
            self.devices[device].events.push(AsyncEvent::QueueError(queue));
            let users: Vec<_> =
                self.pairs.iter().filter(|(_, pair)| pair.uses(queue)).map(|(handle, _)| handle).collect();
            for pair in users {
                self.break_pair(pair, Some(AsyncEvent::PairFatal(pair)));
            }
            return;
        }
        object.completions.push_back((completion, place));
        if let Some(channel) = object.channel
            && std::mem::take(&mut object.is_armed)
        {
            self.channels[channel].events.push(queue);
        }
    }

    pub fn notify(&mut self, device: usize, queue: Handle) -> io::Result<()> {
        if self.is_vanished(device) {
            return Err(errno(libc::EIO));
        }
        self.handles.check(&self.queues, device, queue)?;
        self.queues[queue].is_armed = true;
        Ok(())
    }

    pub fn channel_event(&mut self, device: usize, channel: Handle) -> io::Result<bool> {
        if self.is_vanished(device) {
            return Err(errno(libc::EIO));
        }
        self.handles.check(&self.channels, device, channel)?;
        Ok(self.channels[channel].events.pop().is_some())
    }

    pub fn poll(&mut self, device: usize, queue: Handle, into: &mut Vec<WorkCompletion>) -> io::Result<usize> {
        if self.is_vanished(device) {
            return Err(errno(libc::EIO));
        }
        self.handles.check(&self.queues, device, queue)?;
        let room = into.capacity() - into.len();
        let count = room.min(self.queues[queue].completions.len());
        for _ in 0..count {
            let (completion, place) = self.queues[queue].completions.pop_front().expect("as many as were counted");
            self.free(place);
            let counters = self.counters.entry(completion.pair).or_default();
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
            Place::Send(pair, sequence) => {
                if let Some(pair) = self.pairs.get_mut(pair) {
                    pair.retired = pair.retired.max(sequence + 1);
                }
            }
            Place::Receive(pair) => {
                if let Some(pair) = self.pairs.get_mut(pair) {
                    pair.receives_held = pair.receives_held.saturating_sub(1);
                }
            }
            Place::Shared(shared, _) => {
                if let Some(shared) = self.shared.get_mut(shared) {
                    shared.held = shared.held.saturating_sub(1);
                }
            }
        }
    }

    /// Takes the completions of a queue pair that is reset or destroyed out of its queues, unless its driver leaves them.
    pub fn forget_completions(&mut self, pair: Handle) {
        if self.devices[self.pairs.device(pair)].config.keeps_completions {
            return;
        }
        let mut freed = Vec::new();
        for queue in [self.pairs[pair].config.send_queue, self.pairs[pair].config.receive_queue] {
            self.queues[queue].completions.retain(|&(_, place)| {
                let stays = place.pair() != pair;
                freed.extend((!stays).then_some(place));
                stays
            });
        }
        freed.into_iter().for_each(|place| self.free(place));
    }

    /// Ends the oldest of a queue pair's buffers with an error, or says that it had its last one of a shared queue.
    pub fn flush_receive(&mut self, pair: Handle) {
        let object = &mut self.pairs[pair];
        debug_assert_eq!(object.state, QueuePairState::Error);
        let Some(buffer) = object.receives.pop_front() else {
            object.is_last_told = true;
            let device = &mut self.devices[self.pairs.device(pair)];
            if device.config.tells_last {
                device.events.push(AsyncEvent::LastBuffer(pair));
            }
            return;
        };
        let (queue, number) = (object.config.receive_queue, object.number);
        let place = object.config.shared.map_or(Place::Receive(pair), |shared| Place::Shared(shared, pair));
        let completion = WorkCompletion {
            id: buffer.id,
            status: Status::Flushed,
            what: Completed::Receive,
            len: 0,
            pair: number,
            immediate: None,
            invalidated: None,
            source: 0,
            has_route: false,
        };
        self.complete(queue, completion, place);
    }

    /// A queue pair breaks while a message is coming, if its device is of that kind: it has a buffer for that.
    pub fn hold_shared(&mut self, pair: Handle) {
        if self.devices[self.pairs.device(pair)].config.holds_shared
            && let Some(shared) = self.pairs[pair].config.shared
        {
            let held = self.shared[shared].buffers.pop_front();
            self.pairs[pair].receives.extend(held);
        }
    }

    /// What a queue pair that is reset or destroyed has of a shared queue is gone, and its place there is free.
    pub fn forget_shared(&mut self, pair: Handle) {
        let Some(shared) = self.pairs[pair].config.shared else { return };
        for _ in std::mem::take(&mut self.pairs[pair].receives) {
            self.free(Place::Shared(shared, pair));
        }
    }
}
