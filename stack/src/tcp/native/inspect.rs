//! Hooks for fuzzers and tests: sequence numbers of connections, and consistency checks.

use crate::tcp::NativeEngine;
use crate::tcp::clock::tick::Tick;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::secrets::Secrets;
use crate::tcp::tables::flow_table;
use crate::tcp::tcb::conn_buffers::ConnBuffers;
use crate::tcp::tcb::{Flags, State, Tcb};
use crate::wire::tuple::Tuple;
use linerate_bypass::Packet;
use linerate_service::ConnId;
use std::collections::HashSet;

/// Sequence numbers of an open connection (RFC 9293 §3.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// SND.UNA.
    pub una: u32,
    /// SND.NXT.
    pub nxt: u32,
    /// Bytes queued and never sent.
    pub unsent: u32,
    /// RCV.NXT, including the peer's FIN.
    pub rcv_nxt: u32,
    /// Right edge of the advertised window.
    pub rcv_edge: u32,
    /// Bytes received in order and not consumed.
    pub received: u32,
    /// True if the peer's FIN was processed.
    pub peer_finished: bool,
    /// Shift of the peer's window field.
    pub snd_scale: u8,
    /// Shift of the local window field.
    pub rcv_scale: u8,
    /// Maximum payload of an outgoing segment.
    pub mss: u16,
}

/// Returns the TSval that header prediction accepts from `options` with TS.Recent `ts_recent`.
pub(crate) fn predicted_timestamp(options: &[u8], ts_recent: u32) -> Option<u32> {
    let tcb = Tcb { ts_recent, ..Tcb::vacant(Tuple::received_v4(0, 0, 0)) };
    tcb.paws_ok(options.try_into().ok()?)
}

/// Returns the part of the hash of `tuple` that the flow table stores, in a worker with the seed `seed`.
pub(crate) fn flow_tag(seed: u128, tuple: &Tuple) -> u32 {
    flow_table::tag_of(tuple.hash_with(&Secrets::from_seed(seed).table_key()))
}

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Returns the sequence numbers of `conn`, if it exists.
    #[doc(hidden)]
    pub fn numbers(&self, conn: ConnId) -> Option<Numbers> {
        let tcb = self.tcb(conn)?;
        (tcb.state != State::Closed).then(|| Numbers {
            una: tcb.una.0,
            nxt: tcb.nxt.0,
            unsent: tcb.unsent,
            rcv_nxt: tcb.rcv_nxt.0,
            rcv_edge: tcb.rcv_edge.0,
            received: tcb.received,
            peer_finished: tcb.state.peer_finished(),
            snd_scale: tcb.snd_scale(),
            rcv_scale: tcb.rcv_scale(),
            mss: tcb.mss,
        })
    }

    /// Returns whether `conn` is in request-response mode.
    #[doc(hidden)]
    pub fn in_rr_mode(&self, conn: ConnId) -> bool {
        self.tcb(conn).is_some_and(Tcb::in_rr_mode)
    }

    /// Returns the number of half-open connections opened by peers.
    #[doc(hidden)]
    pub fn half_open(&self) -> usize {
        self.shared.listener.half_open
    }

    #[doc(hidden)]
    pub fn time_wait(&self) -> usize {
        self.shared.time_wait.len()
    }

    /// Checks the invariants that hold after every turn: packets in queues are counted, every slot and buffer is in use
    /// or free, queues are contiguous and within their limits, and pending work has a timer.
    ///
    /// # Panics
    ///
    /// If an invariant is violated.
    #[doc(hidden)]
    pub fn assert_consistent(&self) {
        let mut free = HashSet::new();
        self.shared.free.iter().for_each(|slot| assert!(free.insert(*slot), "slot {slot} is free twice"));
        let mut owned = HashSet::new();
        let (mut mbufs_held, mut queued, mut heap_bytes, mut half_open, mut tuples) = (0, 0, 0, 0, 0);
        let (mut rr, mut local_turns) = (0, 0);
        for (slot, tcb) in self.tcbs.iter().enumerate() {
            let slot = slot as u32;
            assert_eq!(free.contains(&slot), tcb.flags.has(Flags::VACANT) || tcb.flags == Flags::default(), "{tcb:?}");
            if tcb.flags.has(Flags::IN_TABLE) {
                tuples += 1;
                let found = self.lookup(tcb.tuple.hash_with(&self.shared.key), &tcb.tuple);
                assert_eq!(found, Some(slot), "{tcb:?}");
            }
            half_open += usize::from(tcb.state == State::SynReceived && !tcb.flags.has(Flags::ACTIVE_OPEN));
            match self.shared.buffers.of(tcb) {
                Some(buffers) => {
                    assert!(owned.insert(tcb.buffers), "buffers {} have two owners", tcb.buffers);
                    assert!(tcb.state != State::Closed, "a closed connection holds buffers: {tcb:?}");
                    mbufs_held += buffers.mbufs_held();
                    queued += buffers.queue.packets();
                    heap_bytes += buffers.heap_bytes();
                    self.assert_queues(tcb, buffers);
                    let idle = buffers.is_idle()
                        && !tcb.flags.has(Flags::TX_PENDING)
                        && !self.shared.tx_backlog.contains(slot);
                    assert!(!idle, "an idle connection holds buffers: {tcb:?}");
                }
                None => match self.shared.rr.assert_consistent(tcb) {
                    Some((held, is_local_turn)) => {
                        rr += 1;
                        mbufs_held += held.all;
                        queued += held.queued;
                        local_turns += usize::from(is_local_turn);
                    }
                    None => assert_eq!((tcb.received, tcb.unsent), (0, 0), "without buffers: {tcb:?}"),
                },
            }
            if !self.shared.tx_backlog.contains(slot) {
                self.assert_timers(tcb);
            }
        }
        assert_eq!(mbufs_held, self.shared.mbufs_held.all, "packets held, and their counter");
        assert_eq!(queued, self.shared.mbufs_held.queued, "packets in send queues, and their counter");
        assert_eq!(heap_bytes, self.shared.mbufs_held.heap_bytes, "bytes of queues on the heap, and their counter");
        assert_eq!(half_open, self.shared.listener.half_open, "half-open connections, and their counter");
        if let Some(sources) = &self.shared.listener.per_source {
            let accepted = |tcb: &&Tcb| !tcb.flags.has_any(Flags::VACANT | Flags::ACTIVE_OPEN);
            let all = self.tcbs.iter().enumerate().filter(|(slot, _)| !free.contains(&(*slot as u32)));
            let all = all.map(|(_, tcb)| tcb).filter(accepted).count();
            let (counted_half_open, counted, entries) = sources.totals();
            assert_eq!(
                (counted_half_open, counted),
                (half_open, all),
                "connections of all sources, and their counters"
            );
            assert!(sources.are_within_limits(), "a source exceeds its limit");
            assert!(entries <= all, "{entries} sources of {all} connections");
        }
        assert_eq!(tuples, self.shared.table.len(), "connections in the table, and entries");
        self.shared.buffers.assert_owned(&owned);
        self.shared.rr.assert_owned(rr, local_turns);
    }

    fn assert_queues(&self, tcb: &Tcb, buffers: &ConnBuffers<P>) {
        let received: usize = buffers.received.iter().map(Packet::len).sum();
        assert_eq!(received, tcb.received as usize, "bytes received, and their counter: {tcb:?}");
        assert!(buffers.received.iter().all(|packet| packet.data().len() == packet.len()), "a chain is in the queue");
        // Data beyond a gap is added when the gap is filled.
        let most = 2 * self.shared.settings.rx_packets;
        assert!(buffers.received_packets() <= most, "{} packets", buffers.received_packets());
        assert!(!tcb.rcv_nxt.after(tcb.rcv_edge), "RCV.NXT is beyond the window: {tcb:?}");
        buffers.reassembly.assert_in_order(tcb.rcv_nxt, tcb.rcv_edge);
        assert!(!tcb.una.after(tcb.nxt), "SND.UNA is beyond SND.NXT: {tcb:?}");
        let fin = u32::from(tcb.flags.has(Flags::FIN_SENT));
        let end = tcb.nxt - fin + tcb.unsent + buffers.reserved;
        if let Some((first, last)) = buffers.queue.assert_contiguous() {
            assert!(!first.after(tcb.una), "unacknowledged data was dropped: {tcb:?}");
            assert_eq!(last, end, "the end of the send queue: {tcb:?}");
        } else {
            assert_eq!(tcb.unsent, 0, "unsent data is not queued: {tcb:?}");
        }
        assert!((tcb.outstanding() + tcb.unsent) as usize <= self.shared.settings.tx_buffer_max + 1, "{tcb:?}");
    }

    /// Checks that pending work has a deadline, and that the timer wheel expires no later.
    fn assert_timers(&self, tcb: &Tcb) {
        if tcb.state == State::Closed || tcb.flags.has_any(Flags::VACANT | Flags::TX_PENDING) {
            return;
        }
        let waits = tcb.outstanding() > 0 && tcb.state != State::TimeWait;
        assert!(!waits || tcb.retransmit_at.is_some(), "data in flight without a timer: {tcb:?}");
        let probes = tcb.unsent > 0 && tcb.state.is_synchronized();
        assert!(!probes || tcb.retransmit_at.is_some(), "queued data without a timer: {tcb:?}");
        let due = tcb.retransmit_at.earlier(tcb.ack_at);
        assert!(!due.before(tcb.wheel_at), "a deadline is before the wheel entry: {tcb:?}");
        let burst = self.shared.buffers.of(tcb).and_then(|buffers| buffers.pace.waits_until());
        if let Some(at) = burst.map(Tick::at_or_after) {
            assert!(!at.before(tcb.wheel_at), "a paced burst is before the wheel entry: {tcb:?}");
        }
    }
}
