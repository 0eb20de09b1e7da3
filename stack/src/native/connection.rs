//! One connection with all that its segments and its service act on.

use crate::congestion::CongestionControl;
use crate::engine::{Event, News};
use crate::native::fair_share::Sweep;
use crate::native::flow_table::FlowTable;
use crate::native::handshake::isn::Secrets;
use crate::native::rr::Exchanges;
use crate::native::send::tx_backlog::Waiting;
use crate::native::settings::Settings;
use crate::native::tcb::cold::Cold;
use crate::native::tcb::conn_buffers::Pool;
use crate::native::tcb::{Block, Flags, State};
use crate::native::time_wait::TimeWait;
use crate::native::timers::tick::Tick;
use crate::native::{Counts, milliseconds};
use crate::tcp::ephemeral_ports::Ports;
use crate::tcp::per_source_limits::Sources;
use crate::tcp::tuple::HashKey;
use crate::tcp::wheel::Wheel;
use hashbrown::HashMap;
use linerate_bypass::time::Instant;
use linerate_bypass::{CloseReason, ConnId, ConnectError, Names, Origin, Packet};
use std::collections::VecDeque;

/// What the connections of a worker share.
pub(crate) struct Shared<P> {
    pub names: Names,
    pub settings: Settings,
    /// Slots that are free, the one used last first: its cache lines may still be there.
    pub free: Vec<u32>,
    pub buffers: Pool<P>,
    /// What connections have instead of buffers whose ends take turns.
    pub exchanges: Exchanges<P>,
    pub table: FlowTable,
    pub key: HashKey,
    pub time_wait: TimeWait,
    pub secrets: Secrets,
    /// The segment size that congestion control of a new connection is made for: that of most.
    pub usual_mss: u16,
    pub ports: Ports,
    /// A timer for each connection: the token is its slot.
    pub wheel: Wheel,
    /// When services asked to be called, by slot. Only connections of which that was asked have an entry.
    pub service_timers: HashMap<u32, Instant, foldhash::fast::FixedState>,
    /// When connections that were closed with something unacknowledged are reset, by slot.
    pub lingering: HashMap<u32, Instant, foldhash::fast::FixedState>,
    /// The tokens of connect calls that are under way.
    pub connecting: HashMap<u32, u64, foldhash::fast::FixedState>,
    /// Connections that a peer has begun and not completed.
    pub half_open: usize,
    /// How many connections each source has, if that is limited.
    pub sources: Option<Box<Sources>>,
    /// When cookies were last sent: answers to them are believed for a while.
    pub cookies_sent: Option<Instant>,
    pub pinned: Pinned,
    /// Connections that were offered less window than they have room for, as packets ran low, the first to wait first.
    pub held_back: VecDeque<u32>,
    /// When the port's pool was last asked what is left in it.
    pub pool_asked: Instant,
    /// Search for connections that hold packets for too long or too many of them.
    pub sweep: Sweep,
    /// Connections with news for their service or something to send.
    pub active: Vec<u32>,
    /// Connections with something to send that the port did not take.
    pub waiting: Waiting,
    /// What services are to be told.
    pub news: News,
    /// Connections whose service found no packet to write to, the first to be asked again first.
    pub starved: VecDeque<u32>,
    /// The time of the worker's turn, and what follows from it: the clock that timestamps go by, and the soonest that timers
    /// of what is sent now can expire, where the path has nothing to say of that and where it has.
    pub now: Instant,
    pub milliseconds: u32,
    pub soonest: [Tick; 2],
    pub counts: Counts,
}

impl<P> Shared<P> {
    /// A turn of the worker begins at `now`.
    pub fn set_now(&mut self, now: Instant) {
        self.now = now;
        self.milliseconds = milliseconds(now);
        self.soonest = self.settings.limits.soonest(now).map(Tick::at_or_after);
    }

    /// Lets the wheel's entry of `block`, the connection in `slot`, come up at `due` at the latest.
    #[inline(always)]
    pub fn arm_for(&mut self, slot: u32, block: &mut Block, due: Tick) {
        if due.before(block.wheel_at) {
            block.wheel_at = due;
            self.wheel.arm(slot, due.instant(self.now));
        }
    }

    /// The name of the connection of `block`, in `slot`.
    #[inline]
    pub fn id(&self, slot: u32, block: &Block) -> ConnId {
        self.names.name(slot, block.generation)
    }

    /// Packets that were received and not consumed.
    pub fn unread(&self) -> usize {
        self.pinned.all - self.pinned.queued - self.exchanges.sent()
    }
}

impl<P: Packet> Shared<P> {
    /// Takes the queues of `block` back, with what is in them.
    #[inline(always)]
    pub fn detach(&mut self, block: &mut Block) {
        if let Some(held) = self.buffers.detach(block) {
            self.pinned.release(held);
        }
    }

    /// Both ends have finished and know it, and the service has had everything else: it is told so, and nothing is left to do.
    /// The tuple is out of the table.
    #[inline(always)]
    pub fn conclude(&mut self, slot: u32, block: &mut Block) {
        self.detach(block);
        block.state = State::Closed;
        block.flags |= Flags::GONE;
        block.retransmit_at = Tick::NONE;
        block.ack_at = Tick::NONE;
        self.news.others.push(Event::Closed(self.id(slot, block), CloseReason::Finished));
    }

    /// Notes what is to be told of the connection of `block`, in `slot`.
    #[inline(always)]
    pub fn look(&mut self, slot: u32, block: &mut Block) {
        let had = block.flags;
        block.flags.clear(Flags::TOUCHED | Flags::NEWLY_OPEN | Flags::READABLE);
        if had.has_any(Flags::GONE | Flags::VACANT) {
            return;
        }
        let conn = self.id(slot, block);
        if had.has(Flags::NEWLY_OPEN) {
            self.tell_opened(slot, block, conn);
        } else if !had.has(Flags::OPEN) {
            if block.state == State::Closed {
                self.never_opened(slot, block);
            }
            return;
        }
        if had.has(Flags::READABLE) && block.received > 0 {
            self.news.readable.push(conn);
        }
        if had.has(Flags::WANTS_ROOM) && self.has_enough_room(block) {
            block.flags.clear(Flags::WANTS_ROOM);
            self.news.others.push(Event::Writable(conn));
        }
        if block.state.may_receive() {
            return;
        }
        if block.state.peer_finished() && block.received == 0 && !block.flags.has(Flags::END_TOLD) {
            self.tell_peer_closed(block, conn);
        }
        let over = match block.state {
            // Our last acknowledgement goes out first.
            State::TimeWait => block.flags.has(Flags::END_TOLD) && !block.flags.has(Flags::ACK_NOW),
            // A reset goes out first.
            State::Closed => !block.flags.has(Flags::RESET),
            _ => false,
        };
        if over {
            self.tell_end(conn, block);
        }
    }

    /// The service knows the connection from now on.
    #[inline(always)]
    fn tell_opened(&mut self, slot: u32, block: &mut Block, conn: ConnId) {
        block.flags |= Flags::OPEN;
        let origin = match self.take_token(slot, block) {
            Some(token) => {
                self.counts.connected += 1;
                Origin::Connected(token)
            }
            None => {
                self.counts.accepted += 1;
                Origin::Accepted
            }
        };
        self.news.opened.push((conn, origin));
    }

    /// The peer has finished, and the service has had all that it sent.
    #[inline(always)]
    pub fn tell_peer_closed(&mut self, block: &mut Block, conn: ConnId) {
        block.flags |= Flags::END_TOLD;
        self.news.others.push(Event::PeerClosed(conn));
    }

    /// It is over, for the reason that the flags say.
    #[inline(never)]
    fn tell_end(&mut self, conn: ConnId, block: &mut Block) {
        block.flags |= Flags::GONE;
        let why = if block.flags.has(Flags::WAS_RESET) {
            CloseReason::Reset
        } else if block.flags.has(Flags::IDLE) {
            CloseReason::IdleTimeout
        } else if block.flags.has(Flags::WAS_ABORTED) {
            CloseReason::Aborted
        } else if block.flags.has(Flags::ADDRESS_LOST) {
            CloseReason::AddressLost
        } else if block.flags.has_any(Flags::TIMED_OUT | Flags::UNREACHABLE) {
            CloseReason::TimedOut
        } else {
            CloseReason::Finished
        };
        self.news.others.push(Event::Closed(conn, why));
    }

    /// It ended before the service knew it: news only if the service had asked for it.
    #[inline(never)]
    fn never_opened(&mut self, slot: u32, block: &mut Block) {
        if let Some(token) = self.take_token(slot, block) {
            self.counts.failed += 1;
            let error = if block.flags.has(Flags::WAS_RESET) {
                ConnectError::Refused
            } else if block.flags.has(Flags::ADDRESS_LOST) {
                ConnectError::NoLocalAddress
            } else if block.flags.has(Flags::UNREACHABLE) {
                ConnectError::Unreachable
            } else {
                ConnectError::TimedOut
            };
            self.news.others.push(Event::Failed(token, error));
        }
        self.remove(slot, block);
    }

    /// The token of the connect call that the connection of `block`, in `slot`, is of, which is answered now.
    #[inline]
    fn take_token(&mut self, slot: u32, block: &Block) -> Option<u64> {
        if block.flags.has(Flags::ACTIVE) { self.connecting.remove(&slot) } else { None }
    }

    /// [`detach`](Self::detach), where there is seldom anything.
    #[inline(never)]
    fn give_back(&mut self, block: &mut Block) {
        self.detach(block);
    }

    #[inline(never)]
    fn forget_times(&mut self, slot: u32) {
        self.service_timers.remove(&slot);
        self.lingering.remove(&slot);
    }

    /// Gives `slot` up, whose connection has ended, and all have been told.
    #[inline]
    pub fn remove(&mut self, slot: u32, block: &mut Block) {
        debug_assert!(!block.flags.has(Flags::IN_TABLE) && block.state != State::SynReceived);
        if block.has_buffers() {
            self.give_back(block);
        }
        if !self.service_timers.is_empty() || !self.lingering.is_empty() {
            self.forget_times(slot);
        }
        if let Some(sources) = &mut self.sources
            && !block.flags.has(Flags::ACTIVE)
        {
            sources.leave(&block.tuple);
        }
        block.state = State::Closed;
        block.generation = block.generation.wrapping_add(1);
        // In the list of those to be looked at it is passed over.
        block.flags = block.flags & Flags::LISTED | Flags::VACANT;
        self.free.push(slot);
    }
}

/// Packets of the port that queues hold.
#[derive(Debug, Default)]
pub(crate) struct Pinned {
    /// In queues of either kind.
    pub all: usize,
    /// Of them, those in send queues.
    pub queued: usize,
}

impl Pinned {
    /// So many more are in send queues.
    #[inline(always)]
    pub fn queue(&mut self, packets: usize) {
        self.all += packets;
        self.queued += packets;
    }

    /// Queues have let go of what is counted in `these`.
    #[inline(always)]
    pub fn release(&mut self, these: Pinned) {
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
    pub block: &'a mut Block,
    pub cold: &'a mut Cold<C>,
    pub shared: &'a mut Shared<P>,
}

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Has the engine look at the connection in what `flags` say: [`TOUCHED`](Flags::TOUCHED) for news for the service,
    /// [`DIRTY`](Flags::DIRTY) for something to send.
    #[inline]
    pub fn activate(&mut self, flags: Flags) {
        if self.block.list(flags) {
            self.shared.active.push(self.slot);
        }
    }

    /// Lets the connection be looked at in the next `collect`.
    #[inline]
    pub fn touch(&mut self) {
        self.activate(Flags::TOUCHED);
    }

    /// Lets the connection send in the next `flush`.
    #[inline]
    pub fn dirty(&mut self) {
        self.activate(Flags::DIRTY);
    }

    /// Takes the tuple out of the table: segments on it are no longer for this connection.
    #[inline]
    pub fn forget_tuple(&mut self) {
        if self.block.flags.has(Flags::IN_TABLE) {
            let hash = self.block.tuple.hash_with(&self.shared.key);
            self.block.flags.clear(Flags::IN_TABLE);
            self.shared.table.remove(hash, self.slot);
        }
    }

    /// Takes the queues back, with what is in them.
    #[inline]
    pub fn detach(&mut self) {
        if self.block.has_buffers() {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        self.shared.detach(self.block);
        self.cold.idle_since = self.shared.milliseconds;
    }

    /// It is no longer half-open, if it was.
    pub fn leave_half_open(&mut self) {
        if self.block.state == State::SynReceived && !self.block.flags.has(Flags::ACTIVE) {
            self.shared.half_open -= 1;
            if let Some(sources) = &mut self.shared.sources {
                sources.complete(&self.block.tuple);
            }
        }
    }

    /// It is over: nothing more comes of it, and the service is to be told why by the flags.
    pub fn end(&mut self, why: Flags) {
        self.forget_tuple();
        self.leave_half_open();
        self.detach();
        let block = &mut *self.block;
        block.state = State::Closed;
        block.flags |= why;
        block.unsent = 0;
        block.received = 0;
        block.retransmit_at = Tick::NONE;
        block.ack_at = Tick::NONE;
        self.touch();
    }
}
