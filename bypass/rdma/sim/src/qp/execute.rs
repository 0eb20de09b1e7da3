//! Pending events of a fabric, and the choice among them.

use super::{Answer, Pair};
use crate::fabric::{Mode, RETRY_STEPS};
use crate::world::World;
use linerate_rdma_provider::{Handle, QpState, WcStatus};

/// Event that can occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thing {
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
struct Things {
    now: Vec<Thing>,
    later: Option<u64>,
}

impl Things {
    fn at(&mut self, time: u64, now: u64, thing: Thing) {
        if time <= now {
            self.now.push(thing);
        } else {
            self.later = Some(self.later.map_or(time, |later| later.min(time)));
        }
    }
}

impl World {
    /// Performs one event. If none is possible now, time advances to the next one.
    pub fn step(&mut self) -> bool {
        let mut things = self.things();
        if things.now.is_empty() {
            let Some(later) = things.later else { return false };
            self.now = later;
            things = self.things();
        }
        self.now += 1;
        self.choose(&things)
    }

    /// Performs all events that are possible now.
    pub fn settle(&mut self) {
        while !self.active.is_empty() || !self.air.is_empty() {
            let things = self.things();
            if !self.choose(&things) {
                return;
            }
        }
    }

    fn choose(&mut self, things: &Things) -> bool {
        if things.now.is_empty() {
            return false;
        }
        let chosen = things.now[self.random.usize(0..things.now.len())];
        match chosen {
            Thing::Launch(qp) => self.launch(qp),
            Thing::Answer(qp) => self.answer(qp),
            Thing::GiveUp(qp) => self.end_send(qp, WcStatus::RetryExceeded),
            Thing::FlushSend(qp) => self.end_send(qp, WcStatus::Flushed),
            Thing::FlushReceive(qp) => self.flush_receive(qp),
            Thing::Connect(id) => self.connect_step(id),
            Thing::Emit(qp) => self.emit(qp),
            Thing::Arrive(place) => self.arrive(place),
        }
        true
    }

    fn things(&mut self) -> Things {
        let mut things = Things::default();
        let active: Vec<_> = self.active.iter().copied().map(Handle).collect();
        for handle in active {
            if self.qps.get(handle).is_some() {
                self.things_of_pair(handle, &mut things);
            } else if let Some(id) = self.cm_ids.get(handle) {
                let carries = self.devices[self.cm_ids.device(handle)].carries();
                match id.next(carries) {
                    Some((_, due)) => things.at(due, self.now, Thing::Connect(handle)),
                    None if id.is_idle() => _ = self.active.remove(&handle.0),
                    None => {}
                }
            } else {
                self.active.remove(&handle.0);
            }
        }
        for (place, due) in self.next_datagrams() {
            things.at(due, self.now, Thing::Arrive(place));
        }
        things
    }

    fn things_of_pair(&mut self, handle: Handle, things: &mut Things) {
        let qp = &self.qps[handle];
        match qp.state {
            QpState::Error => {
                let is_last = qp.config.srq.is_some() && !qp.is_last_told;
                let (sends, receives) = (!qp.sends.is_empty(), !qp.receives.is_empty() || is_last);
                things.now.extend(sends.then_some(Thing::FlushSend(handle)));
                things.now.extend(receives.then_some(Thing::FlushReceive(handle)));
                if !sends && !receives {
                    self.active.remove(&handle.0);
                }
            }
            QpState::Rts if qp.datagrams.is_some() && !qp.sends.is_empty() => {
                things.now.push(Thing::Emit(handle));
            }
            QpState::Rts if !qp.sends.is_empty() => {
                let now = self.now;
                let answer = qp.sends[0].answer;
                let can_launch = self.can_launch(qp);
                let can_answer = match answer {
                    Some(Answer::Done(_) | Answer::Was(_)) => self.devices[self.qps.device(handle)].carries(),
                    Some(Answer::ReadDue) => self.reachable(handle).is_some(),
                    None => false,
                };
                let hears = qp.sends.get(qp.launched).is_none_or(|next| next.is_local())
                    || qp.is_stopped
                    || self.reachable(handle).is_some();
                if can_answer {
                    things.now.push(Thing::Answer(handle));
                }
                if can_launch && hears {
                    let waits_for_ever = qp.sending.is_some_and(|sending| sending.rnr_retries == 7);
                    // Endless retries would never let the fabric settle; only a buffer changes their result.
                    let has_buffer = qp.not_ready > 0 && self.peer_has_buffer(handle);
                    if qp.not_ready == 0 || !waits_for_ever || has_buffer {
                        // Time does not advance while threads sleep.
                        let is_due = has_buffer && self.config.mode == Mode::Auto;
                        let due = if is_due { now } else { qp.not_ready_until };
                        things.at(due, now, Thing::Launch(handle));
                    }
                }
                if (answer.is_some() && !can_answer) || (can_launch && !hears) {
                    self.await_peer(handle, things);
                } else {
                    self.qps[handle].deadline = None;
                }
            }
            _ => _ = self.active.remove(&handle.0),
        }
    }

    /// Checks the time-out of the oldest request (IBA 9.7.6.1.3).
    fn await_peer(&mut self, handle: Handle, things: &mut Things) {
        let now = self.now;
        let qp = &mut self.qps[handle];
        let Some(sending) = qp.sending.filter(|sending| sending.timeout > 0) else { return };
        let deadline = *qp.deadline.get_or_insert(now + RETRY_STEPS * (u64::from(sending.retries) + 1));
        things.at(deadline, now, Thing::GiveUp(handle));
    }

    /// Returns true if the next request may start: READs and atomic operations are limited.
    fn can_launch(&self, qp: &Pair) -> bool {
        let Some(next) = qp.sends.get(qp.launched) else { return false };
        let reads = qp.reads_under_way();
        let depth = qp.sending.map_or(0, |sending| usize::from(sending.initiator_depth));
        !qp.is_stopped && (!next.fetches() || reads < depth.max(1))
    }

    /// Returns the peer's queue pair, if packets reach it and are accepted: number, address and PSN match at both
    /// ends.
    pub fn reachable(&self, handle: Handle) -> Option<Handle> {
        let peer = self.peer_of(handle)?;
        let (ours, theirs) = (&self.devices[self.qps.device(handle)], &self.devices[self.qps.device(peer)]);
        let (qp, other) = (&self.qps[handle], &self.qps[peer]);
        let (sending, receiving) = (qp.sending?, other.receiving?);
        let knows_us = receiving.qp == qp.number && ours.has_gid(receiving.gid);
        let takes = other.receives() && knows_us && receiving.psn == sending.psn;
        (ours.carries() && theirs.carries() && takes).then_some(peer)
    }

    fn peer_has_buffer(&self, handle: Handle) -> bool {
        self.reachable(handle).is_some_and(|peer| {
            let peer = &self.qps[peer];
            peer.config.srq.map_or(!peer.receives.is_empty(), |srq| !self.srq[srq].buffers.is_empty())
        })
    }
}
