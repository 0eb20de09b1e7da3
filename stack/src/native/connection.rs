//! One connection with all that its segments and its service act on.

use crate::congestion::CongestionControl;
use crate::engine::{Event, EventBatch};
use crate::native::fair_share::Sweep;
use crate::native::flow_table::FlowTable;
use crate::native::handshake::isn::Secrets;
use crate::native::rr::RrPool;
use crate::native::send::tx_backlog::TxBacklog;
use crate::native::settings::Settings;
use crate::native::tcb::cold::TcbCold;
use crate::native::tcb::conn_buffers::BufferPool;
use crate::native::tcb::{Flags, State, Tcb};
use crate::native::time_wait::TimeWait;
use crate::native::timers::tick::Tick;
use crate::native::{Counters, milliseconds};
use crate::tcp::ephemeral_ports::EphemeralPorts;
use crate::tcp::per_source_limits::PerSourceLimits;
use crate::tcp::tuple::HashKey;
use crate::tcp::wheel::Wheel;
use hashbrown::HashMap;
use linerate_bypass::time::Instant;
use linerate_bypass::{CloseReason, ConnId, ConnIdSpace, ConnectError, Origin, Packet};
use std::collections::VecDeque;

/// What the connections of a worker share.
pub(crate) struct Shared<P> {
    pub names: ConnIdSpace,
    pub settings: Settings,
    /// Slots that are free, the one used last first: its cache lines may still be there.
    pub free: Vec<u32>,
    pub buffers: BufferPool<P>,
    /// What connections have instead of buffers whose ends take turns.
    pub rr: RrPool<P>,
    pub table: FlowTable,
    pub key: HashKey,
    pub time_wait: TimeWait,
    pub secrets: Secrets,
    /// The segment size that congestion control of a new connection is made for: that of most.
    pub common_mss: u16,
    pub ports: EphemeralPorts,
    /// A timer for each connection: the token is its slot.
    pub wheel: Wheel,
    /// When services asked to be called, by slot. Only connections of which that was asked have an entry.
    pub service_timers: HashMap<u32, Instant, foldhash::fast::FixedState>,
    /// When connections that were closed with something unacknowledged are reset, by slot.
    pub linger_deadlines: HashMap<u32, Instant, foldhash::fast::FixedState>,
    /// The tokens of connect calls that are under way.
    pub connect_tokens: HashMap<u32, u64, foldhash::fast::FixedState>,
    /// Connections that a peer has begun and not completed.
    pub half_open: usize,
    /// How many connections each source has, if that is limited.
    pub per_source: Option<Box<PerSourceLimits>>,
    /// When cookies were last sent: answers to them are believed for a while.
    pub cookies_sent: Option<Instant>,
    pub mbufs_held: MbufsHeld,
    /// Connections that were offered less window than they have room for, as packets ran low, the first to wait first.
    pub window_held: VecDeque<u32>,
    /// When the port's pool was last asked what is left in it.
    pub pool_checked_at: Instant,
    /// Search for connections that hold packets for too long or too many of them.
    pub sweep: Sweep,
    /// Connections with news for their service or something to send.
    pub active: Vec<u32>,
    /// Connections with something to send that the port did not take.
    pub tx_backlog: TxBacklog,
    /// What services are to be told.
    pub news: EventBatch,
    /// Connections whose service found no packet to write to, the first to be asked again first.
    pub alloc_blocked: VecDeque<u32>,
    /// The time of the worker's turn, and what follows from it: the clock that timestamps go by, and the soonest that timers
    /// of what is sent now can expire, where the path has nothing to say of that and where it has.
    pub now: Instant,
    pub milliseconds: u32,
    pub earliest_rto: [Tick; 2],
    pub counters: Counters,
}

impl<P> Shared<P> {
    /// A turn of the worker begins at `now`.
    pub fn set_now(&mut self, now: Instant) {
        self.now = now;
        self.milliseconds = milliseconds(now);
        self.earliest_rto = self.settings.limits.earliest_rto(now).map(Tick::at_or_after);
    }

    /// Lets the wheel's entry of `tcb`, the connection in `slot`, come up at `due` at the latest.
    #[inline(always)]
    pub fn arm_for(&mut self, slot: u32, tcb: &mut Tcb, due: Tick) {
        if due.before(tcb.wheel_at) {
            tcb.wheel_at = due;
            self.wheel.arm(slot, due.instant(self.now));
        }
    }

    /// The name of the connection of `tcb`, in `slot`.
    #[inline]
    pub fn id(&self, slot: u32, tcb: &Tcb) -> ConnId {
        self.names.conn_id(slot, tcb.generation)
    }

    /// Packets that were received and not consumed.
    pub fn unread(&self) -> usize {
        self.mbufs_held.all - self.mbufs_held.queued - self.rr.packets_in_flight()
    }
}

impl<P: Packet> Shared<P> {
    /// Takes the queues of `tcb` back, with what is in them.
    #[inline(always)]
    pub fn detach(&mut self, tcb: &mut Tcb) {
        if let Some(held) = self.buffers.detach(tcb) {
            self.mbufs_held.release(held);
        }
    }

    /// Both ends have finished and know it, and the service has had everything else: it is told so, and nothing is left to do.
    /// The tuple is out of the table.
    #[inline(always)]
    pub fn finish_close(&mut self, slot: u32, tcb: &mut Tcb) {
        self.detach(tcb);
        tcb.state = State::Closed;
        tcb.flags |= Flags::CLOSE_REPORTED;
        tcb.retransmit_at = Tick::NONE;
        tcb.ack_at = Tick::NONE;
        self.news.others.push(Event::Closed(self.id(slot, tcb), CloseReason::Finished));
    }

    /// Notes what is to be told of the connection of `tcb`, in `slot`.
    #[inline(always)]
    pub fn report_events(&mut self, slot: u32, tcb: &mut Tcb) {
        let had = tcb.flags;
        tcb.flags.clear(Flags::NOTIFY | Flags::NEWLY_OPEN | Flags::READABLE);
        if had.has_any(Flags::CLOSE_REPORTED | Flags::VACANT) {
            return;
        }
        let conn = self.id(slot, tcb);
        if had.has(Flags::NEWLY_OPEN) {
            self.report_opened(slot, tcb, conn);
        } else if !had.has(Flags::OPEN) {
            if tcb.state == State::Closed {
                self.report_connect_failed(slot, tcb);
            }
            return;
        }
        if had.has(Flags::READABLE) && tcb.received > 0 {
            self.news.readable.push(conn);
        }
        if had.has(Flags::WANTS_ROOM) && self.has_enough_room(tcb) {
            tcb.flags.clear(Flags::WANTS_ROOM);
            self.news.others.push(Event::Writable(conn));
        }
        if tcb.state.may_receive() {
            return;
        }
        if tcb.state.peer_finished() && tcb.received == 0 && !tcb.flags.has(Flags::FIN_REPORTED) {
            self.report_peer_closed(tcb, conn);
        }
        let over = match tcb.state {
            // Our last acknowledgement goes out first.
            State::TimeWait => tcb.flags.has(Flags::FIN_REPORTED) && !tcb.flags.has(Flags::ACK_NOW),
            // A reset goes out first.
            State::Closed => !tcb.flags.has(Flags::RESET),
            _ => false,
        };
        if over {
            self.report_closed(conn, tcb);
        }
    }

    /// The service knows the connection from now on.
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
        self.news.opened.push((conn, origin));
    }

    /// The peer has finished, and the service has had all that it sent.
    #[inline(always)]
    pub fn report_peer_closed(&mut self, tcb: &mut Tcb, conn: ConnId) {
        tcb.flags |= Flags::FIN_REPORTED;
        self.news.others.push(Event::PeerClosed(conn));
    }

    /// It is over, for the reason that the flags say.
    #[inline(never)]
    fn report_closed(&mut self, conn: ConnId, tcb: &mut Tcb) {
        tcb.flags |= Flags::CLOSE_REPORTED;
        let why = if tcb.flags.has(Flags::WAS_RESET) {
            CloseReason::Reset
        } else if tcb.flags.has(Flags::IDLE) {
            CloseReason::IdleTimeout
        } else if tcb.flags.has(Flags::WAS_ABORTED) {
            CloseReason::Aborted
        } else if tcb.flags.has(Flags::ADDRESS_LOST) {
            CloseReason::AddressLost
        } else if tcb.flags.has_any(Flags::TIMED_OUT | Flags::UNREACHABLE) {
            CloseReason::TimedOut
        } else {
            CloseReason::Finished
        };
        self.news.others.push(Event::Closed(conn, why));
    }

    /// It ended before the service knew it: news only if the service had asked for it.
    #[inline(never)]
    fn report_connect_failed(&mut self, slot: u32, tcb: &mut Tcb) {
        if let Some(token) = self.take_connect_token(slot, tcb) {
            self.counters.failed += 1;
            let error = if tcb.flags.has(Flags::WAS_RESET) {
                ConnectError::Refused
            } else if tcb.flags.has(Flags::ADDRESS_LOST) {
                ConnectError::NoLocalAddress
            } else if tcb.flags.has(Flags::UNREACHABLE) {
                ConnectError::Unreachable
            } else {
                ConnectError::TimedOut
            };
            self.news.others.push(Event::Failed(token, error));
        }
        self.remove(slot, tcb);
    }

    /// The token of the connect call that the connection of `tcb`, in `slot`, is of, which is answered now.
    #[inline]
    fn take_connect_token(&mut self, slot: u32, tcb: &Tcb) -> Option<u64> {
        if tcb.flags.has(Flags::ACTIVE_OPEN) { self.connect_tokens.remove(&slot) } else { None }
    }

    /// [`detach`](Self::detach), where there is seldom anything.
    #[inline(never)]
    fn give_back(&mut self, tcb: &mut Tcb) {
        self.detach(tcb);
    }

    #[inline(never)]
    fn remove_timers(&mut self, slot: u32) {
        self.service_timers.remove(&slot);
        self.linger_deadlines.remove(&slot);
    }

    /// Gives `slot` up, whose connection has ended, and all have been told.
    #[inline]
    pub fn remove(&mut self, slot: u32, tcb: &mut Tcb) {
        debug_assert!(!tcb.flags.has(Flags::IN_TABLE) && tcb.state != State::SynReceived);
        if tcb.has_buffers() {
            self.give_back(tcb);
        }
        if !self.service_timers.is_empty() || !self.linger_deadlines.is_empty() {
            self.remove_timers(slot);
        }
        if let Some(sources) = &mut self.per_source
            && !tcb.flags.has(Flags::ACTIVE_OPEN)
        {
            sources.remove(&tcb.tuple);
        }
        tcb.state = State::Closed;
        tcb.generation = tcb.generation.wrapping_add(1);
        // In the list of those to be looked at it is passed over.
        tcb.flags = tcb.flags & Flags::LISTED | Flags::VACANT;
        self.free.push(slot);
    }
}

/// Packets of the port that queues hold.
#[derive(Debug, Default)]
pub(crate) struct MbufsHeld {
    /// In queues of either kind.
    pub all: usize,
    /// Of them, those in send queues.
    pub queued: usize,
}

impl MbufsHeld {
    /// So many more are in send queues.
    #[inline(always)]
    pub fn queue(&mut self, packets: usize) {
        self.all += packets;
        self.queued += packets;
    }

    /// Queues have let go of what is counted in `these`.
    #[inline(always)]
    pub fn release(&mut self, these: MbufsHeld) {
        self.all -= these.all;
        self.queued -= these.queued;
    }

    /// Send queues have let go of so many.
    #[inline(always)]
    pub fn unqueue(&mut self, packets: usize) {
        self.all -= packets;
        self.queued -= packets;
    }
}

/// A connection, borrowed to be worked on.
pub(crate) struct Connection<'a, P, C> {
    pub slot: u32,
    pub tcb: &'a mut Tcb,
    pub cold: &'a mut TcbCold<C>,
    pub shared: &'a mut Shared<P>,
}

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Has the engine look at the connection in what `flags` say: [`NOTIFY`](Flags::NOTIFY) for news for the service,
    /// [`TX_PENDING`](Flags::TX_PENDING) for something to send.
    #[inline]
    pub fn activate(&mut self, flags: Flags) {
        if self.tcb.mark_active(flags) {
            self.shared.active.push(self.slot);
        }
    }

    /// Lets the connection be looked at in the next `collect`.
    #[inline]
    pub fn notify(&mut self) {
        self.activate(Flags::NOTIFY);
    }

    /// Lets the connection send in the next `flush`.
    #[inline]
    pub fn schedule_tx(&mut self) {
        self.activate(Flags::TX_PENDING);
    }

    /// Takes the tuple out of the table: segments on it are no longer for this connection.
    #[inline]
    pub fn remove_from_table(&mut self) {
        if self.tcb.flags.has(Flags::IN_TABLE) {
            let hash = self.tcb.tuple.hash_with(&self.shared.key);
            self.tcb.flags.clear(Flags::IN_TABLE);
            self.shared.table.remove(hash, self.slot);
        }
    }

    /// Takes the queues back, with what is in them.
    #[inline]
    pub fn detach(&mut self) {
        if self.tcb.has_buffers() {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        self.shared.detach(self.tcb);
        self.cold.idle_since = self.shared.milliseconds;
    }

    /// It is no longer half-open, if it was.
    pub fn leave_half_open(&mut self) {
        if self.tcb.state == State::SynReceived && !self.tcb.flags.has(Flags::ACTIVE_OPEN) {
            self.shared.half_open -= 1;
            if let Some(sources) = &mut self.shared.per_source {
                sources.establish(&self.tcb.tuple);
            }
        }
    }

    /// It is over: nothing more comes of it, and the service is to be told why by the flags.
    pub fn end(&mut self, why: Flags) {
        self.remove_from_table();
        self.leave_half_open();
        self.detach();
        let tcb = &mut *self.tcb;
        tcb.state = State::Closed;
        tcb.flags |= why;
        tcb.unsent = 0;
        tcb.received = 0;
        tcb.retransmit_at = Tick::NONE;
        tcb.ack_at = Tick::NONE;
        self.notify();
    }
}
