//! TCP: the native engine, and the parts that both engines use ([`clock`], [`tables`]).
//!
//! The native engine processes packets in the mbufs of the port without copying them.
//!
//! A connection is a control block ([`tcb`]) of two cache lines in a slab, found through a hash table keyed by the
//! 4-tuple. Rarely used state is stored separately, and queues are attached only while data is in flight or unread.
//! Received payload stays in its packet until the service has consumed it. Sent payload stays where the service put it
//! until it is acknowledged; headers are written in front of it in place.
//!
//! [`receive`] processes each segment, and [`send`] transmits the result once per burst. [`fast_path`] handles the
//! common cases.

mod buffers;
pub(crate) mod clock;
pub mod congestion;
mod connection;
mod fast_path;
mod handshake;
pub(crate) mod native;
mod receive;
mod recovery;
mod send;
pub(crate) mod tables;
mod tcb;
mod timers;

use crate::tcp::clock::wheel::Wheel;
use crate::tcp::congestion::{Builtin, CongestionControl};
use crate::wire::tuple::Tuple;
use connection::{Cold, Connection, Shared};
use linerate_bypass::Packet;
use linerate_service::ConnId;
use tables::flow_table::FlowTable;
use tcb::cold::TcbCold;
use tcb::{Flags, Tcb};

/// Segments that a connection sends before the next connection is served.
const SEGMENTS_PER_TURN: usize = 32;

/// Memory of an idle connection in bytes. The service may store its own state in addition.
const IDLE_CONNECTION: usize = size_of::<Tcb>() + size_of::<TcbCold<Builtin>>() + Wheel::TIMER + FlowTable::ENTRY;

// A million idle connections take 256 MB, including one word for each service.
const _: () = assert!(IDLE_CONNECTION + size_of::<u32>() <= 256);

/// Native engine of one worker, for packets `P`, with congestion control `C`.
pub struct NativeEngine<P, C = Builtin> {
    tcbs: Vec<Tcb>,
    cold: Vec<TcbCold<C>>,
    /// Congestion control state that a new connection starts with.
    initial_control: C,
    shared: Shared<P>,
    /// Tokens of expired timers. Kept to reuse the memory.
    expired: Vec<u32>,
    /// Empty list that replaces `shared.active` during a flush.
    spare_active: Vec<u32>,
}

#[derive(Default)]
struct Counters {
    accepted: u64,
    connected: u64,
    failed: u64,
    finished: u64,
    broken: u64,
    /// Data segments retransmitted.
    retransmitted: u64,
    /// Payload bytes copied.
    copied: u64,
    /// Segments discarded because a receive queue was full.
    pruned: u64,
    /// Connections ended by the FIN-WAIT-2 timeout.
    fin_timeouts: u64,
    /// Connections ended by the idle timeout.
    idle_timeouts: u64,
    /// Connections ended by the stall timeout.
    stalled: u64,
    /// Connections reset because they held many packets, or data without room on the heap, and made no progress.
    shed: u64,
    /// Out-of-order segments discarded after they were queued.
    discarded: u64,
}

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Borrows the connection in `slot`, if there is such a slot.
    #[inline(always)]
    fn connection(&mut self, slot: u32) -> Option<Connection<'_, P, C>> {
        let tcb = self.tcbs.get_mut(slot as usize)?;
        Some(Connection { slot, tcb, cold: Cold { slot, all: &mut self.cold }, shared: &mut self.shared })
    }

    /// Borrows connection `conn`, if it still exists.
    #[inline(always)]
    fn open_connection(&mut self, conn: ConnId) -> Option<Connection<'_, P, C>> {
        self.tcb(conn)?;
        self.connection(self.shared.conn_ids.slot(conn) as u32)
    }

    /// Returns the control block of `conn`, if the connection still exists.
    #[inline]
    fn tcb(&self, conn: ConnId) -> Option<&Tcb> {
        self.tcbs.get(self.shared.conn_ids.slot(conn)).filter(|tcb| tcb.is_open_as(conn))
    }

    /// Returns the slot of the connection with `tuple`.
    #[inline]
    fn lookup(&self, hash: u64, tuple: &Tuple) -> Option<u32> {
        let tcbs = &self.tcbs;
        self.shared.table.find(hash, |slot| tcbs[slot as usize].tuple == *tuple)
    }

    /// Returns the number of connections in any state.
    fn len(&self) -> usize {
        self.tcbs.len() - self.shared.free.len()
    }

    /// Adds a connection with the given control block. `hash` is the hash of its tuple.
    #[inline(always)]
    fn insert(&mut self, hash: u64, tcb: Tcb) -> Option<Connection<'_, P, C>> {
        let slot = match self.shared.free.pop() {
            Some(slot) => slot,
            None => self.grow()?,
        };
        if self.shared.table.insert(hash, slot).is_err() {
            self.shared.free.push(slot);
            return None;
        }
        let entry = self.tcbs.get_mut(slot as usize)?;
        let mut cold = Cold { slot, all: &mut self.cold };
        *cold = TcbCold::new(self.initial_control.clone(), self.shared.settings.rx_initial);
        // These fields outlive the connections that use the slot.
        let Tcb { generation, wheel_at, flags, .. } = *entry;
        *entry = tcb;
        (entry.generation, entry.wheel_at) = (generation, wheel_at);
        entry.flags |= flags & Flags::LISTED | Flags::IN_TABLE;
        Some(Connection { slot, tcb: entry, cold, shared: &mut self.shared })
    }

    /// Adds a slot, unless the connection limit is reached.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> Option<u32> {
        if self.tcbs.len() >= self.shared.settings.connections {
            return None;
        }
        let unused = Tuple::received_v4(0, 0, 0);
        self.tcbs.push(Tcb { flags: Flags::VACANT, ..Tcb::vacant(unused) });
        self.cold.push(TcbCold::new(self.initial_control.clone(), self.shared.settings.rx_initial));
        Some(self.tcbs.len() as u32 - 1)
    }

    fn for_each(&mut self, mut f: impl FnMut(&mut Connection<'_, P, C>)) {
        for slot in 0..self.tcbs.len() as u32 {
            if let Some(mut connection) = self.connection(slot)
                && !connection.tcb.flags.has(Flags::VACANT)
            {
                f(&mut connection);
            }
        }
    }
}
