//! A look inside for whoever drives the engine with hostile input: numbers to aim at, and what must hold between the parts.

use crate::congestion::CongestionControl;
use crate::native::NativeEngine;
use crate::native::flow_table;
use crate::native::handshake::isn::Secrets;
use crate::native::tcb::conn_buffers::Buffers;
use crate::native::tcb::{Block, Flags, State};
use crate::native::timers::tick::Tick;
use crate::tcp::tuple::Tuple;
use linerate_bypass::{ConnId, Packet};
use std::collections::HashSet;

/// The sequence numbers of a connection that its service knows and that is not closed (RFC 9293 §3.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// SND.UNA.
    pub una: u32,
    /// SND.NXT.
    pub nxt: u32,
    /// Bytes queued that have never been sent.
    pub unsent: u32,
    /// RCV.NXT, the peer's FIN counted.
    pub rcv_nxt: u32,
    /// The right edge of the window offered.
    pub rcv_edge: u32,
    /// Bytes received in order that the service has not consumed.
    pub received: u32,
    /// The peer's FIN has been taken in.
    pub peer_finished: bool,
    /// Bits that the peer's window field is shifted by.
    pub snd_scale: u8,
    /// Bits that ours is shifted by.
    pub rcv_scale: u8,
    /// The most payload that we put into a segment.
    pub mss: u16,
}

/// Returns the TSval that header prediction accepts from `options`, on a connection whose TS.Recent is `ts_recent`.
pub(crate) fn predicted_timestamp(options: &[u8], ts_recent: u32) -> Option<u32> {
    let block = Block { ts_recent, ..Block::vacant(Tuple::received_v4(0, 0, 0)) };
    block.newer(options.try_into().ok()?)
}

/// Returns the part of the hash of `tuple` that the flow table keeps, in a worker whose configuration has the seed `seed`.
pub(crate) fn flow_tag(seed: u128, tuple: &Tuple) -> u32 {
    flow_table::tag_of(tuple.hash_with(&Secrets::from_seed(seed).table_key()))
}

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// The numbers of `conn`, if there is such a connection.
    #[doc(hidden)]
    pub fn numbers(&self, conn: ConnId) -> Option<Numbers> {
        let block = &self.blocks[self.find(conn)? as usize];
        (block.state != State::Closed).then(|| Numbers {
            una: block.una.0,
            nxt: block.nxt.0,
            unsent: block.unsent,
            rcv_nxt: block.rcv_nxt.0,
            rcv_edge: block.rcv_edge.0,
            received: block.received,
            peer_finished: block.state.peer_finished(),
            snd_scale: block.snd_scale(),
            rcv_scale: block.rcv_scale(),
            mss: block.mss,
        })
    }

    /// Whether the ends of `conn` take turns, and it has an exchange in place of buffers.
    #[doc(hidden)]
    pub fn is_exchanging(&self, conn: ConnId) -> bool {
        self.find(conn).is_some_and(|slot| self.blocks[slot as usize].is_exchanging())
    }

    /// Connections that a peer has begun and not completed.
    #[doc(hidden)]
    pub fn half_open(&self) -> usize {
        self.shared.half_open
    }

    /// Connections in TIME-WAIT.
    #[doc(hidden)]
    pub fn time_wait(&self) -> usize {
        self.shared.time_wait.len()
    }

    /// Checks what must hold after every turn: every packet that queues hold is counted, every slot and buffer is somebody's
    /// or free, queues are whole and within their limits, and whatever waits for a timer has one.
    ///
    /// # Panics
    ///
    /// If something does not.
    #[doc(hidden)]
    pub fn assert_consistent(&self) {
        let mut free = HashSet::new();
        self.shared.free.iter().for_each(|slot| assert!(free.insert(*slot), "slot {slot} is free twice"));
        let mut owned = HashSet::new();
        let (mut pinned, mut queued, mut half_open, mut tuples) = (0, 0, 0, 0);
        let (mut exchanges, mut ours) = (0, 0);
        for (slot, block) in self.blocks.iter().enumerate() {
            let slot = slot as u32;
            assert_eq!(
                free.contains(&slot),
                block.flags.has(Flags::VACANT) || block.flags == Flags::default(),
                "{block:?}"
            );
            if block.flags.has(Flags::IN_TABLE) {
                tuples += 1;
                let found = self.look_up(block.tuple.hash_with(&self.shared.key), &block.tuple);
                assert_eq!(found, Some(slot), "{block:?}");
            }
            half_open += usize::from(block.state == State::SynReceived && !block.flags.has(Flags::ACTIVE));
            match self.shared.buffers.of(block) {
                Some(buffers) => {
                    assert!(owned.insert(block.buffers), "buffers {} have two owners", block.buffers);
                    assert!(block.state != State::Closed, "a closed connection holds buffers: {block:?}");
                    pinned += buffers.pinned();
                    queued += buffers.queue.packets();
                    self.assert_queues(block, buffers);
                    let idle =
                        buffers.is_idle() && !block.flags.has(Flags::DIRTY) && !self.shared.waiting.contains(slot);
                    assert!(!idle, "an idle connection holds buffers: {block:?}");
                }
                None => match self.shared.exchanges.assert_consistent(block) {
                    Some((held, is_ours)) => {
                        exchanges += 1;
                        pinned += held.all;
                        queued += held.queued;
                        ours += usize::from(is_ours);
                    }
                    None => assert_eq!((block.received, block.unsent), (0, 0), "without buffers: {block:?}"),
                },
            }
            if !self.shared.waiting.contains(slot) {
                self.assert_timers(block);
            }
        }
        assert_eq!(pinned, self.shared.pinned.all, "packets that queues hold, and what was counted");
        assert_eq!(queued, self.shared.pinned.queued, "packets that send queues hold, and what was counted");
        assert_eq!(half_open, self.shared.half_open, "half-open connections, and what was counted");
        if let Some(sources) = &self.shared.sources {
            let accepted = |block: &&Block| !block.flags.has_any(Flags::VACANT | Flags::ACTIVE);
            let all = self.blocks.iter().enumerate().filter(|(slot, _)| !free.contains(&(*slot as u32)));
            let all = all.map(|(_, block)| block).filter(accepted).count();
            let (counted_half_open, counted, entries) = sources.totals();
            assert_eq!(
                (counted_half_open, counted),
                (half_open, all),
                "connections of all sources, and what was counted"
            );
            assert!(sources.are_within_limits(), "a source has more than it may have");
            assert!(entries <= all, "{entries} sources of {all} connections");
        }
        assert_eq!(tuples, self.shared.table.len(), "connections in the table, and entries");
        self.shared.buffers.assert_owned(&owned);
        self.shared.exchanges.assert_owned(exchanges, ours);
    }

    fn assert_queues(&self, block: &Block, buffers: &Buffers<P>) {
        let received: usize = buffers.received.iter().map(Packet::len).sum();
        assert_eq!(received, block.received as usize, "bytes received, and what was counted: {block:?}");
        assert!(buffers.received.iter().all(|packet| packet.data().len() == packet.len()), "a chain is in the queue");
        // Those behind a gap come on top when it is filled.
        let most = 2 * self.shared.settings.rx_packets;
        assert!(buffers.received_packets() <= most, "{} packets", buffers.received_packets());
        assert!(!block.rcv_nxt.after(block.rcv_edge), "RCV.NXT is beyond the window: {block:?}");
        buffers.reassembly.assert_in_order(block.rcv_nxt, block.rcv_edge);
        assert!(!block.una.after(block.nxt), "SND.UNA is beyond SND.NXT: {block:?}");
        let fin = u32::from(block.flags.has(Flags::FIN_SENT));
        let end = block.nxt - fin + block.unsent + buffers.reserved;
        if let Some((first, last)) = buffers.queue.assert_contiguous() {
            assert!(!first.after(block.una), "what is not acknowledged was let go: {block:?}");
            assert_eq!(last, end, "the end of the send queue: {block:?}");
        } else {
            assert_eq!(block.unsent, 0, "nothing is queued: {block:?}");
        }
        assert!((block.outstanding() + block.unsent) as usize <= self.shared.settings.tx_buffer + 1, "{block:?}");
    }

    /// What waits has a timer, and the wheel knows of it.
    fn assert_timers(&self, block: &Block) {
        if block.state == State::Closed || block.flags.has_any(Flags::VACANT | Flags::DIRTY) {
            return;
        }
        let waits = block.outstanding() > 0 && block.state != State::TimeWait;
        assert!(!waits || block.retransmit_at.is_some(), "nothing watches over what was sent: {block:?}");
        let probes = block.unsent > 0 && block.state.is_synchronized();
        assert!(!probes || block.retransmit_at.is_some(), "nothing sees to what is queued: {block:?}");
        let due = block.retransmit_at.earlier(block.ack_at);
        assert!(!due.before(block.wheel_at), "the wheel does not know: {block:?}");
        let burst = self.shared.buffers.of(block).and_then(|buffers| buffers.pace.waits_until());
        if let Some(at) = burst.map(Tick::at_or_after) {
            assert!(!at.before(block.wheel_at), "the wheel does not know of a burst: {block:?}");
        }
    }
}
