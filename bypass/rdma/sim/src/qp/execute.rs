//! Pending events of a fabric, and the choice among them.

use super::{Answer, Pair};
use crate::device::Health;
use crate::fabric::{Mode, RETRY_STEPS};
use crate::world::World;
use linerate_rdma_provider::{Handle, QpState, WcStatus};

/// Event that can occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    /// Execution of a queue pair's next request.
    Launch(Handle),
    /// Response to a queue pair's oldest request.
    Answer(Handle),
    /// Time-out of a queue pair's oldest request.
    GiveUp(Handle),
    /// Flush of the oldest request.
    FlushSend(Handle),
    /// Flush of the oldest buffer.
    FlushReceive(Handle),
    /// Next connection manager message of an identifier.
    Connect(Handle),
    /// Transmission of the next datagram.
    Emit(Handle),
    /// Arrival of a datagram, by its index among those in flight.
    Arrive(usize),
}

/// Events that can occur now, and the time of the next one otherwise.
#[derive(Default)]
struct Pending {
    now: Vec<Action>,
    later: Option<u64>,
}

impl Pending {
    fn at(&mut self, time: u64, now: u64, action: Action) {
        if time <= now {
            self.now.push(action);
        } else {
            self.later = Some(self.later.map_or(time, |later| later.min(time)));
        }
    }
}

impl World {
    /// Performs one event. If none is possible now, time advances to the next one.
    pub fn step(&mut self) -> bool {
        let mut pending = self.pending();
        if pending.now.is_empty() {
            let Some(later) = pending.later else { return false };
            self.now = later;
            pending = self.pending();
        }
        self.now += 1;
        self.choose(&pending)
    }

    /// Performs all events that are possible now.
    pub fn settle(&mut self) {
        while !self.active.is_empty() || !self.air.is_empty() {
            let pending = self.pending();
            if !self.choose(&pending) {
                return;
            }
        }
    }

    fn choose(&mut self, pending: &Pending) -> bool {
        if pending.now.is_empty() {
            return false;
        }
        let chosen = pending.now[self.random.usize(0..pending.now.len())];
        match chosen {
            Action::Launch(qp) => self.launch(qp),
            Action::Answer(qp) => self.answer(qp),
            Action::GiveUp(qp) => self.end_send(qp, WcStatus::RetryExceeded),
            Action::FlushSend(qp) => self.end_send(qp, WcStatus::Flushed),
            Action::FlushReceive(qp) => self.flush_receive(qp),
            Action::Connect(id) => self.connect_step(id),
            Action::Emit(qp) => self.emit(qp),
            Action::Arrive(index) => self.arrive(index),
        }
        true
    }

    fn pending(&mut self) -> Pending {
        let mut pending = Pending::default();
        let active: Vec<_> = self.active.iter().copied().map(Handle).collect();
        for handle in active {
            if self.qps.get(handle).is_some() {
                if self.is_frozen(handle) {
                    self.active.remove(&handle.0);
                    continue;
                }
                self.pending_of_qp(handle, &mut pending);
            } else if let Some(id) = self.cm_ids.get(handle) {
                let carries = self.devices[self.cm_ids.device(handle)].carries(self.port_of(handle));
                match id.next(carries) {
                    Some((_, due)) => pending.at(due, self.now, Action::Connect(handle)),
                    None if id.is_idle() => _ = self.active.remove(&handle.0),
                    None => {}
                }
            } else {
                self.active.remove(&handle.0);
            }
        }
        for (index, due) in self.next_datagrams() {
            pending.at(due, self.now, Action::Arrive(index));
        }
        pending
    }

    /// Returns true if the queue pair is of a failed device that completes nothing.
    fn is_frozen(&self, qp: Handle) -> bool {
        let device = &self.devices[self.qps.device(qp)];
        device.health == Health::Fatal && !device.config.flushes_on_fatal
    }

    fn pending_of_qp(&mut self, handle: Handle, pending: &mut Pending) {
        let qp = &self.qps[handle];
        match qp.state {
            QpState::Error => {
                let is_last = qp.config.srq.is_some() && !qp.is_last_reported;
                let (sends, receives) = (!qp.sends.is_empty(), !qp.receives.is_empty() || is_last);
                pending.now.extend(sends.then_some(Action::FlushSend(handle)));
                pending.now.extend(receives.then_some(Action::FlushReceive(handle)));
                if !sends && !receives {
                    self.active.remove(&handle.0);
                }
            }
            QpState::Rts if qp.datagrams.is_some() && !qp.sends.is_empty() => {
                pending.now.push(Action::Emit(handle));
            }
            QpState::Rts if !qp.sends.is_empty() => {
                let now = self.now;
                let answer = qp.sends[0].answer;
                let can_launch = self.can_launch(qp);
                let can_answer = match answer {
                    Some(Answer::Done(_) | Answer::Was(_)) => self.devices[self.qps.device(handle)].carries(qp.port),
                    Some(Answer::ReadDue) => self.reachable(handle).is_some(),
                    None => false,
                };
                let is_ready = qp.sends.get(qp.launched).is_none_or(|next| next.is_local())
                    || qp.is_stopped
                    || self.reachable(handle).is_some();
                if can_answer {
                    pending.now.push(Action::Answer(handle));
                }
                if can_launch && is_ready {
                    let waits_for_ever = qp.sending.is_some_and(|sending| sending.rnr_retries == 7);
                    // Endless retries would never let the fabric settle; only a buffer changes their result.
                    let buffer_from = if qp.not_ready > 0 { self.peer_buffer_from(handle) } else { None };
                    if qp.not_ready == 0 || !waits_for_ever || buffer_from.is_some() {
                        // Time does not advance while threads sleep.
                        let due = buffer_from.filter(|_| self.config.mode == Mode::Auto).unwrap_or(qp.not_ready_until);
                        pending.at(due, now, Action::Launch(handle));
                    }
                }
                if (answer.is_some() && !can_answer) || (can_launch && !is_ready) {
                    self.await_peer(handle, pending);
                } else {
                    self.qps[handle].deadline = None;
                }
            }
            _ => _ = self.active.remove(&handle.0),
        }
    }

    /// Checks the time-out of the oldest request (IBA 9.7.6.1.3).
    fn await_peer(&mut self, handle: Handle, pending: &mut Pending) {
        let now = self.now;
        let qp = &mut self.qps[handle];
        let Some(sending) = qp.sending.filter(|sending| sending.timeout > 0) else { return };
        let deadline = *qp.deadline.get_or_insert(now + RETRY_STEPS * (u64::from(sending.retries) + 1));
        pending.at(deadline, now, Action::GiveUp(handle));
    }

    /// Returns true if the next request may start: READs and atomic operations are limited.
    fn can_launch(&self, qp: &Pair) -> bool {
        let Some(next) = qp.sends.get(qp.launched) else { return false };
        let reads = qp.reads_outstanding();
        let depth = qp.sending.map_or(0, |sending| usize::from(sending.initiator_depth));
        !qp.is_stopped && (!next.fetches() || reads < depth.max(1))
    }

    /// Returns the peer's queue pair, if packets reach it and are accepted: number, address and PSN match at both
    /// ends.
    pub fn reachable(&self, handle: Handle) -> Option<Handle> {
        let peer = self.peer_of(handle)?;
        let (own_device, peer_device) = (&self.devices[self.qps.device(handle)], &self.devices[self.qps.device(peer)]);
        let (qp, other) = (&self.qps[handle], &self.qps[peer]);
        let (sending, receiving) = (qp.sending?, other.receiving?);
        let is_connected_to_us =
            qp.partition == other.partition && receiving.qp == qp.number && own_device.has_gid(qp.port, receiving.gid);
        let takes = other.receives() && is_connected_to_us && receiving.psn == sending.psn;
        (own_device.carries(qp.port) && peer_device.carries(other.port) && takes).then_some(peer)
    }

    /// Returns the time from which on the peer's device sees its next receive buffer, if there is one.
    fn peer_buffer_from(&self, handle: Handle) -> Option<u64> {
        let peer = &self.qps[self.reachable(handle)?];
        let buffers = peer.config.srq.map_or(&peer.receives, |srq| &self.srq[srq].buffers);
        Some(buffers.front()?.from)
    }
}
