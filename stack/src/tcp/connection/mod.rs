//! State shared by all connections, and a borrowed connection.

pub(super) mod fair_share;
pub(super) mod secrets;
pub(super) mod settings;

use crate::tcp::Counters;
use crate::tcp::buffers::mbufs_held::MbufsHeld;
use crate::tcp::clock::tick::Tick;
use crate::tcp::clock::timestamps::timestamp_clock;
use crate::tcp::clock::wheel::Wheel;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::tables::ephemeral_ports::EphemeralPorts;
use crate::tcp::tables::flow_table::FlowTable;
use crate::tcp::tables::per_source_limits::PerSourceLimits;
use crate::tcp::tables::time_wait::TimeWait;
use crate::tcp::tcb::cold::{EndReason, TcbCold};
use crate::tcp::tcb::conn_buffers::ConnBufferPool;
use crate::tcp::tcb::rr_state::RrPool;
use crate::tcp::tcb::tx_backlog::TxBacklog;
use crate::tcp::tcb::{Flags, State, Tcb};
use crate::wire::tuple::HashKey;
use fair_share::Sweep;
use hashbrown::HashMap;
use linerate_bypass::Packet;
use linerate_service::time::{Duration, Instant};
use linerate_service::{CloseReason, ConnId, ConnIdSpace, Event, EventBatch, Keepalive, Origin};
use secrets::Secrets;
use settings::Settings;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

/// Time of the worker's turn, and values derived from it.
pub(crate) struct Clock {
    pub now: Instant,
    pub timestamp_ms: u32,
    /// Earliest expiry of a retransmission timer started now, without and with a path-specific floor.
    pub earliest_rto: [Tick; 2],
}

pub(crate) struct Timers {
    /// Timer wheel with one timer per connection. The token is the slot.
    pub wheel: Wheel,
    /// Service timers by slot. Connections without a service timer have no entry.
    pub service: HashMap<u32, Instant, foldhash::fast::FixedState>,
    /// Deadlines of closed connections with unacknowledged data, by slot. The connection is reset at the deadline.
    pub linger: HashMap<u32, Instant, foldhash::fast::FixedState>,
    /// Times that differ from the settings, by slot.
    pub overrides: HashMap<u32, TimerOverrides, foldhash::fast::FixedState>,
}

/// Times of a connection in place of the settings.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TimerOverrides {
    /// Keepalive, which may be off.
    pub keepalive: Option<Option<Keepalive>>,
    pub user_timeout: Option<Duration>,
}

/// State of connections that peers open.
pub(crate) struct Listener {
    /// Connections in SYN-RECEIVED that were opened by a peer.
    pub half_open: usize,
    /// Connection limits per source address, if configured.
    pub per_source: Option<Box<PerSourceLimits>>,
    /// Time of the last SYN cookie sent. Cookies are checked only for a while after it.
    pub cookies_sent: Option<Instant>,
}

/// State shared by the connections of a worker.
pub(crate) struct Shared<P> {
    pub conn_ids: ConnIdSpace,
    pub settings: Settings,
    /// Free slots, most recently used last. Its cache lines may still be present.
    pub free: Vec<u32>,
    pub buffers: ConnBufferPool<P>,
    /// State of connections in request-response mode, which replaces their buffers.
    pub rr: RrPool<P>,
    pub table: FlowTable,
    pub key: HashKey,
    pub time_wait: TimeWait,
    pub secrets: Secrets,
    /// Segment size that congestion control of a new connection is created for: the most common one.
    pub common_mss: u16,
    pub ports: EphemeralPorts,
    pub timers: Timers,
    /// Tokens of pending connect calls, by slot.
    pub connect_tokens: HashMap<u32, u64, foldhash::fast::FixedState>,
    pub listener: Listener,
    pub mbufs_held: MbufsHeld,
    /// Connections whose window update waits for free packets, in order of arrival.
    pub window_held: VecDeque<u32>,
    /// Time of the last reading of the port's free packets.
    pub pool_checked_at: Instant,
    /// Sweep that enforces fair shares of packets.
    pub sweep: Sweep,
    /// Connections with events for their service or something to send.
    pub active: Vec<u32>,
    /// Connections with data that the port did not accept.
    pub tx_backlog: TxBacklog,
    pub events: EventBatch,
    /// Connections whose service found no free packet, in order of arrival.
    pub alloc_blocked: VecDeque<u32>,
    pub clock: Clock,
    pub counters: Counters,
}

impl<P> Shared<P> {
    /// Sets the time at the beginning of a turn.
    pub fn set_now(&mut self, now: Instant) {
        self.clock.now = now;
        self.clock.timestamp_ms = timestamp_clock(now);
        self.clock.earliest_rto = self.settings.limits.earliest_rto(now).map(Tick::at_or_after);
    }

    /// Makes the timer of the connection in `slot` expire at `due` at the latest.
    #[inline(always)]
    pub fn arm_for(&mut self, slot: u32, tcb: &mut Tcb, due: Tick) {
        if due.before(tcb.wheel_at) {
            tcb.wheel_at = due;
            self.timers.wheel.arm(slot, due.instant(self.clock.now));
        }
    }

    #[inline]
    pub fn id(&self, slot: u32, tcb: &Tcb) -> ConnId {
        self.conn_ids.conn_id(slot, tcb.generation)
    }

    /// Returns the packets received and not consumed.
    pub fn unread(&self) -> usize {
        self.mbufs_held.all - self.mbufs_held.queued - self.rr.packets_in_flight()
    }
}

impl<P: Packet> Shared<P> {
    /// Detaches the buffers of `tcb` and drops their data.
    #[inline(always)]
    pub fn detach(&mut self, tcb: &mut Tcb) {
        if let Some(held) = self.buffers.detach(tcb) {
            self.mbufs_held.release(held);
        }
    }

    /// Completes a connection whose FINs are acknowledged and whose service has received all other events. The tuple is
    /// not in the table.
    #[inline(always)]
    pub fn finish_close(&mut self, slot: u32, tcb: &mut Tcb) {
        self.detach(tcb);
        tcb.state = State::Closed;
        tcb.flags |= Flags::CLOSE_REPORTED;
        tcb.retransmit_at = Tick::NONE;
        tcb.ack_at = Tick::NONE;
        self.events.others.push(Event::Closed(self.id(slot, tcb), CloseReason::Finished));
    }

    #[inline(always)]
    fn report_opened(&mut self, slot: u32, tcb: &mut Tcb, conn: ConnId) {
        tcb.flags |= Flags::OPEN;
        let origin = match self.take_connect_token(slot, tcb) {
            Some(token) => {
                self.counters.connected += 1;
                Origin::Connected(token)
            }
            None => {
                self.counters.accepted += 1;
                Origin::Accepted
            }
        };
        self.events.opened.push((conn, origin));
    }

    /// Reports that the peer has finished and that all its data was consumed.
    #[inline(always)]
    pub fn report_peer_closed(&mut self, tcb: &mut Tcb, conn: ConnId) {
        tcb.flags |= Flags::FIN_REPORTED;
        self.events.others.push(Event::PeerClosed(conn));
    }

    /// Removes and returns the token of the connect call that opened the connection in `slot`.
    #[inline]
    fn take_connect_token(&mut self, slot: u32, tcb: &Tcb) -> Option<u64> {
        if tcb.flags.has(Flags::ACTIVE_OPEN) { self.connect_tokens.remove(&slot) } else { None }
    }

    /// Returns the keepalive of the connection in `slot`.
    pub fn keepalive(&self, slot: u32) -> Option<Keepalive> {
        self.timers.overrides.get(&slot).and_then(|times| times.keepalive).unwrap_or(self.settings.keepalive)
    }

    /// Returns the time for which the connection in `slot` waits for acknowledgements.
    pub fn user_timeout(&self, slot: u32) -> Duration {
        self.timers.overrides.get(&slot).and_then(|times| times.user_timeout).unwrap_or(self.settings.user_timeout)
    }

    /// Performs [`detach`](Self::detach) out of line: buffers are rarely attached here.
    #[inline(never)]
    fn detach_cold(&mut self, tcb: &mut Tcb) {
        self.detach(tcb);
    }

    #[inline(never)]
    fn remove_timers(&mut self, slot: u32) {
        self.timers.service.remove(&slot);
        self.timers.linger.remove(&slot);
        self.timers.overrides.remove(&slot);
    }

    /// Frees `slot` after its connection has ended and its service has received all events.
    #[inline]
    pub fn remove(&mut self, slot: u32, tcb: &mut Tcb) {
        debug_assert!(!tcb.flags.has(Flags::IN_TABLE) && tcb.state != State::SynReceived);
        if tcb.has_buffers() {
            self.detach_cold(tcb);
        }
        if !self.timers.service.is_empty() || !self.timers.linger.is_empty() || !self.timers.overrides.is_empty() {
            self.remove_timers(slot);
        }
        if let Some(sources) = &mut self.listener.per_source
            && !tcb.flags.has(Flags::ACTIVE_OPEN)
        {
            sources.remove(&tcb.tuple);
        }
        tcb.state = State::Closed;
        tcb.generation = tcb.generation.wrapping_add(1);
        // The active list skips vacant slots.
        tcb.flags = tcb.flags & Flags::LISTED | Flags::VACANT;
        self.free.push(slot);
    }
}

/// A connection, borrowed from its engine. [`demote`](Self::demote) precedes operations of the general path, unless the
/// connection cannot be in request-response mode.
pub(crate) struct Connection<'a, P, C> {
    pub slot: u32,
    pub tcb: &'a mut Tcb,
    pub cold: Cold<'a, C>,
    pub shared: &'a mut Shared<P>,
}

/// Rarely used state of a connection. The slot is looked up on use, which saves the fast paths the access.
pub(crate) struct Cold<'a, C> {
    pub slot: u32,
    pub all: &'a mut Vec<TcbCold<C>>,
}

impl<C> Deref for Cold<'_, C> {
    type Target = TcbCold<C>;

    #[inline(always)]
    fn deref(&self) -> &TcbCold<C> {
        &self.all[self.slot as usize]
    }
}

impl<C> DerefMut for Cold<'_, C> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut TcbCold<C> {
        &mut self.all[self.slot as usize]
    }
}

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Borrows the connection again. An argument passed by value leaves the original in registers.
    #[inline(always)]
    pub fn reborrow(&mut self) -> Connection<'_, P, C> {
        let cold = Cold { slot: self.slot, all: self.cold.all };
        Connection { slot: self.slot, tcb: self.tcb, cold, shared: self.shared }
    }

    #[inline(always)]
    pub fn report_events(&mut self) {
        let tcb = &mut *self.tcb;
        let had = tcb.flags;
        tcb.flags.clear(Flags::NOTIFY | Flags::NEWLY_OPEN | Flags::READABLE);
        if had.has_any(Flags::CLOSE_REPORTED | Flags::VACANT) {
            return;
        }
        let conn = self.shared.id(self.slot, tcb);
        if had.has(Flags::NEWLY_OPEN) {
            self.shared.report_opened(self.slot, tcb, conn);
        } else if !had.has(Flags::OPEN) {
            if tcb.state == State::Closed {
                self.reborrow().report_connect_failed();
            }
            return;
        }
        if had.has(Flags::READABLE) && tcb.received > 0 {
            self.shared.events.readable.push(conn);
        }
        if had.has(Flags::WANTS_ROOM) && self.shared.has_enough_room(tcb) {
            tcb.flags.clear(Flags::WANTS_ROOM);
            self.shared.events.others.push(Event::Writable(conn));
        }
        if tcb.state.may_receive() {
            return;
        }
        if tcb.state.peer_finished() && tcb.received == 0 && !tcb.flags.has(Flags::FIN_REPORTED) {
            self.shared.report_peer_closed(tcb, conn);
        }
        let over = match tcb.state {
            // The last acknowledgement is sent first.
            State::TimeWait => tcb.flags.has(Flags::FIN_REPORTED) && !tcb.flags.has(Flags::ACK_NOW),
            // The RST is sent first.
            State::Closed => !tcb.flags.has(Flags::RESET),
            _ => false,
        };
        if over {
            self.reborrow().report_closed();
        }
    }

    #[inline(never)]
    fn report_closed(self) {
        self.tcb.flags |= Flags::CLOSE_REPORTED;
        let conn = self.shared.id(self.slot, self.tcb);
        self.shared.events.others.push(Event::Closed(conn, self.cold.end_reason.into()));
    }

    /// Reports a failed connect call. A connection opened by the peer ends without an event.
    #[inline(never)]
    fn report_connect_failed(self) {
        if let Some(token) = self.shared.take_connect_token(self.slot, self.tcb) {
            self.shared.counters.failed += 1;
            self.shared.events.others.push(Event::Failed(token, self.cold.end_reason.into()));
        }
        self.shared.remove(self.slot, self.tcb);
    }

    /// Sets `flags` and adds the connection to the active list: [`NOTIFY`](Flags::NOTIFY) for events,
    /// [`TX_PENDING`](Flags::TX_PENDING) for something to send.
    #[inline]
    pub fn activate(&mut self, flags: Flags) {
        if self.tcb.mark_active(flags) {
            self.shared.active.push(self.slot);
        }
    }

    /// Schedules the report of the connection's events to its service.
    #[inline]
    pub fn notify(&mut self) {
        self.activate(Flags::NOTIFY);
    }

    /// Schedules transmission on the connection.
    #[inline]
    pub fn schedule_tx(&mut self) {
        self.activate(Flags::TX_PENDING);
    }

    /// Removes the tuple from the flow table, so that segments no longer reach this connection.
    #[inline]
    pub fn remove_from_table(&mut self) {
        if self.tcb.flags.has(Flags::IN_TABLE) {
            let hash = self.tcb.tuple.hash_with(&self.shared.key);
            self.tcb.flags.clear(Flags::IN_TABLE);
            self.shared.table.remove(hash, self.slot);
        }
    }

    /// Detaches the buffers and drops their data.
    #[inline]
    pub fn detach(&mut self) {
        if self.tcb.has_buffers() {
            self.detach_cold();
        }
    }

    fn detach_cold(&mut self) {
        let active_at = self.last_activity(self.shared.clock.now);
        self.cold.idle_since = timestamp_clock(active_at);
        self.shared.detach(self.tcb);
    }

    /// Updates the counters of half-open connections when the connection leaves SYN-RECEIVED.
    pub fn leave_half_open(&mut self) {
        if self.tcb.state == State::SynReceived && !self.tcb.flags.has(Flags::ACTIVE_OPEN) {
            self.shared.listener.half_open -= 1;
            if let Some(sources) = &mut self.shared.listener.per_source {
                sources.establish(&self.tcb.tuple);
            }
        }
    }

    /// Ends the connection at once.
    pub fn end(&mut self, reason: EndReason) {
        self.remove_from_table();
        self.leave_half_open();
        self.detach();
        self.cold.end_reason = reason;
        let tcb = &mut *self.tcb;
        tcb.state = State::Closed;
        tcb.unsent = 0;
        tcb.received = 0;
        tcb.retransmit_at = Tick::NONE;
        tcb.ack_at = Tick::NONE;
        self.notify();
    }
}
