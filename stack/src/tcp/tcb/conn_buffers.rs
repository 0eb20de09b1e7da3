//! Queues of a connection, attached while it has data in flight or unread.

use crate::tcp::buffers::mbufs_held::MbufsHeld;
use crate::tcp::buffers::queue::Queue;
use crate::tcp::buffers::reassembly::Reassembly;
use crate::tcp::buffers::send_queue::SendQueue;
use crate::tcp::buffers::slots::Slots;
use crate::tcp::congestion::initial_window;
use crate::tcp::recovery::{Flight, FlightConfig};
use crate::tcp::tcb::{Flags, NO_BUFFERS, Tcb};
use crate::wire::tcp::seq::Seq;
use linerate_bypass::Packet;
use linerate_service::time::Instant;
use std::collections::HashSet;

/// Packets for which a spare queue keeps memory. A queue that has grown beyond this is shrunk.
const RETAINED_CAPACITY: usize = 64;

/// Length of a receive queue at which short payloads are merged, so that each does not hold a packet.
pub(crate) const CROWDED: usize = 64;

/// Pacing schedule of a connection.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Pace {
    /// Time at which a whole burst may be sent. Each transmission moves it.
    pub full: Instant,
    /// True if transmission waits for that time.
    pub waits: bool,
}

impl Pace {
    /// Returns the time of the next burst if transmission waits for it.
    pub fn waits_until(&self) -> Option<Instant> {
        self.waits.then_some(self.full)
    }
}

/// Last progress of a connection in each direction, as seen by the sweep.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// SND.UNA, and when it was first seen. [`Instant::ZERO`] before the first visit.
    pub sent: (Seq, Instant),
    /// RCV.NXT, and when it was first seen.
    pub received: (Seq, Instant),
    /// Time at which unread data last returned from the heap, or [`Instant::ZERO`].
    pub restored_at: Instant,
}

/// Queues of both directions, and the retransmission state.
pub(crate) struct ConnBuffers<P> {
    /// Data received in order and not consumed. The packets contain payload only.
    pub received: Queue<P>,
    /// Data received out of order.
    pub reassembly: Reassembly<P>,
    /// Data queued or unacknowledged.
    pub queue: SendQueue<P>,
    /// Retransmission state of the unacknowledged data.
    pub flight: Flight,
    /// Range that a tail loss probe retransmits (RFC 8985 §7.3); `None` for new data.
    pub probe: Option<(Seq, u32)>,
    /// Time of the first of consecutive timeouts, or of the first unanswered zero-window probe; zero if there is none.
    pub stalled: Instant,
    /// Pacing schedule.
    pub pace: Pace,
    /// True if nothing was sent since the buffers were attached, and the congestion window is larger than the initial
    /// window. It may have to be reset (RFC 5681 §4.1).
    pub needs_restart: bool,
    /// True if the last received segment acknowledged the only segment in flight, and nothing was sent since.
    pub acked_lone: bool,
    /// Duplicate range that the next acknowledgement reports (RFC 2883).
    pub dsack: (Seq, Seq),
    /// [Numbers](Tcb::numbers) when the buffers were attached. Without progress since, the connection was idle.
    initial: [Seq; 3],
    /// Numbers as last seen by a timer, and when these values were first seen. Values left by a previous connection
    /// count as a change.
    pub seen: ([Seq; 3], Instant),
    /// Progress as seen by the fair-share sweep.
    pub progress: Progress,
    /// Bytes reserved by [`extend`](SendQueue::extend) and not yet committed by the service.
    pub reserved: u32,
}

impl<P: Packet> ConnBuffers<P> {
    fn new() -> Self {
        ConnBuffers {
            received: Queue::new(),
            reassembly: Reassembly::new(),
            queue: SendQueue::new(),
            flight: Flight::new(Seq(0), FlightConfig { mss: 536, sack: false, exact_ecn: false }),
            probe: None,
            stalled: Instant::ZERO,
            pace: Pace::default(),
            needs_restart: false,
            acked_lone: false,
            dsack: (Seq(0), Seq(0)),
            initial: [Seq(0); 3],
            seen: ([Seq(0); 3], Instant::ZERO),
            progress: Progress::default(),
            reserved: 0,
        }
    }

    /// Returns whether data was received in order, sent or acknowledged since the buffers were attached.
    pub fn has_progressed(&self, tcb: &Tcb) -> bool {
        self.initial != tcb.numbers()
    }

    /// Returns whether the buffers are empty.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.received.is_empty() && self.queue.is_empty() && self.flight.is_settled() && self.reassembly.is_empty()
    }

    /// Drops all data. Returns the memory released.
    #[cold]
    #[inline(never)]
    fn clear(&mut self) -> MbufsHeld {
        let held = MbufsHeld { all: self.mbufs_held(), queued: self.queue.packets(), heap_bytes: self.heap_bytes() };
        self.received.clear();
        self.reassembly.clear();
        self.queue.clear();
        held
    }

    /// Frees memory of queues that have grown.
    #[cold]
    #[inline(never)]
    fn shrink(&mut self) {
        self.received.shrink_to(RETAINED_CAPACITY);
        self.queue.shrink_to(RETAINED_CAPACITY);
    }

    /// Returns the packets held by the receive side.
    #[inline]
    pub fn received_packets(&self) -> usize {
        self.received.len() + self.reassembly.packets()
    }

    /// Returns the bytes of both sides on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.queue.heap_bytes() + self.reassembly.spilled()
    }

    /// Returns the packets held by both sides.
    #[inline]
    pub fn mbufs_held(&self) -> usize {
        self.received_packets() + self.queue.packets()
    }
}

/// Buffers of a worker. Their number is the peak number of connections with buffers.
pub(crate) struct ConnBufferPool<P> {
    buffers: Slots<ConnBuffers<P>>,
    /// True if congestion control responds to each ECN mark itself.
    handles_ecn_echo: bool,
}

impl<P: Packet> ConnBufferPool<P> {
    pub fn new(handles_ecn_echo: bool) -> Self {
        ConnBufferPool { buffers: Slots::new(), handles_ecn_echo }
    }

    /// Returns the buffers of `tcb`, and attaches buffers if there are none.
    #[inline(always)]
    pub fn attach(&mut self, tcb: &mut Tcb) -> &mut ConnBuffers<P> {
        if !tcb.has_buffers() {
            self.attach_new(tcb);
        }
        self.buffers.get_mut(tcb.buffers).expect("buffers were attached")
    }

    #[cold]
    #[inline(never)]
    fn attach_new(&mut self, tcb: &mut Tcb) {
        tcb.buffers = self.buffers.reuse_or_insert(ConnBuffers::new);
        let buffers = self.buffers.get_mut(tcb.buffers).expect("the index is in use");
        let sack = tcb.flags.has(Flags::SACK);
        buffers.flight.reset(tcb.una, FlightConfig { mss: tcb.mss, sack, exact_ecn: self.handles_ecn_echo });
        buffers.initial = tcb.numbers();
        buffers.probe = None;
        buffers.pace = Pace::default();
        buffers.acked_lone = false;
        buffers.progress = Progress::default();
        buffers.needs_restart = tcb.cwnd > initial_window(tcb.mss.into());
    }

    #[inline]
    pub fn of(&self, tcb: &Tcb) -> Option<&ConnBuffers<P>> {
        self.buffers.get(tcb.buffers)
    }

    #[inline]
    pub fn of_mut(&mut self, tcb: &Tcb) -> Option<&mut ConnBuffers<P>> {
        self.buffers.get_mut(tcb.buffers)
    }

    pub fn attached(&self) -> usize {
        self.buffers.in_use()
    }

    /// Panics unless all buffers are either spare and empty, or in `owned`.
    pub fn assert_owned(&self, owned: &HashSet<u32>) {
        assert_eq!(owned.len(), self.buffers.in_use(), "buffers owned or spare");
        for (index, buffers) in self.buffers.spare() {
            assert!(!owned.contains(&index), "buffers {index} are in use and spare");
            assert_eq!(buffers.mbufs_held(), 0, "spare buffers {index} hold packets");
        }
    }

    /// Detaches the buffers of `tcb` and drops their data. Returns the memory released, if any.
    #[inline(always)]
    pub fn detach(&mut self, tcb: &mut Tcb) -> Option<MbufsHeld> {
        let buffers = self.buffers.get_mut(tcb.buffers)?;
        let mut held = None;
        if !buffers.received.is_empty() || !buffers.queue.is_empty() || !buffers.reassembly.is_empty() {
            held = Some(buffers.clear());
        }
        if buffers.received.capacity() > RETAINED_CAPACITY || buffers.queue.capacity() > RETAINED_CAPACITY {
            buffers.shrink();
        }
        buffers.reserved = 0;
        // The duplicate range was part of the buffers.
        tcb.flags.clear(Flags::DSACK);
        buffers.flight.abandon();
        self.buffers.release(tcb.buffers);
        tcb.buffers = NO_BUFFERS;
        held
    }
}
