//! What a connection holds while bytes are on their way through it, and gives back when it is idle.

use crate::congestion::initial_window;
use crate::native::connection::MbufsHeld;
use crate::native::fair_share::Progress;
use crate::native::queue::Queue;
use crate::native::receive::reassembly::Reassembly;
use crate::native::recovery::{Flight, FlightConfig};
use crate::native::segment::seq::Seq;
use crate::native::send::pacing::Pace;
use crate::native::send::send_queue::SendQueue;
use crate::native::tcb::{Flags, NO_BUFFERS, Tcb};
use linerate_bypass::Packet;
use linerate_bypass::time::Instant;
use std::collections::HashSet;

/// Packets that queues of spare buffers keep room for; one that has had to hold more gives the memory back.
const KEPT: usize = 64;

/// Packets in a receive queue beyond which short payloads are put together, so that they do not pin a buffer each.
pub(crate) const CROWDED: usize = 64;

/// Queues of both directions, and what is in flight.
pub(crate) struct ConnBuffers<P> {
    /// Received in order and not consumed: each packet's data are payload.
    pub received: Queue<P>,
    /// Received out of order.
    pub reassembly: Reassembly<P>,
    /// Queued and unacknowledged.
    pub queue: SendQueue<P>,
    /// What the unacknowledged part has come to.
    pub flight: Flight,
    /// What a tail loss probe is to send again (RFC 8985 §7.3), if not new data.
    pub probe: Option<(Seq, u32)>,
    /// When the first time-out in a row came, or the first probe of a closed window that has not been answered was sent;
    /// zero while all were.
    pub stalled: Instant,
    /// When what is to be sent may go, if it is paced.
    pub pace: Pace,
    /// Nothing has been sent since they were attached: the connection was idle before, and its window is larger than that of
    /// a new one, which it may have to be again (RFC 5681 §4.1).
    pub idle: bool,
    /// What was received last has acknowledged the single segment that had been sent, and nothing has been sent since.
    pub turned: bool,
    /// A duplicate to be reported in the next acknowledgement (RFC 2883).
    pub duplicate: (Seq, Seq),
    /// RCV.NXT, SND.UNA and SND.NXT as a timer last found them, and when it first did: for the time since which no data moved. What
    /// another connection has left there is taken for movement.
    pub seen: ([Seq; 3], Instant),
    /// Progress as the search for connections that hold packets for too long has seen it.
    pub progress: Progress,
    /// The place of [`extend`](SendQueue::extend) that the service has not committed yet, in bytes.
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
            idle: false,
            turned: false,
            duplicate: (Seq(0), Seq(0)),
            seen: ([Seq(0); 3], Instant::ZERO),
            progress: Progress::default(),
            reserved: 0,
        }
    }

    /// Whether there is nothing in them.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.received.is_empty() && self.queue.is_empty() && self.flight.is_settled() && self.reassembly.is_empty()
    }

    /// Lets go of everything. Returns the packets that were.
    #[cold]
    #[inline(never)]
    fn clear(&mut self) -> MbufsHeld {
        let held = MbufsHeld { all: self.mbufs_held(), queued: self.queue.packets() };
        self.received.clear();
        self.reassembly.clear();
        self.queue.clear();
        held
    }

    /// Gives memory back that queues have had for many packets.
    #[cold]
    #[inline(never)]
    fn shrink(&mut self) {
        self.received.shrink_to(KEPT);
        self.queue.shrink_to(KEPT);
    }

    /// Packets of the port that the receiving side holds.
    #[inline]
    pub fn received_packets(&self) -> usize {
        self.received.len() + self.reassembly.packets()
    }

    /// Packets that both sides hold.
    #[inline]
    pub fn mbufs_held(&self) -> usize {
        self.received_packets() + self.queue.packets()
    }
}

/// All buffers of a worker: as many as there have ever been connections with bytes in them at one time.
pub(crate) struct BufferPool<P> {
    buffers: Vec<ConnBuffers<P>>,
    spare: Vec<u32>,
    /// Congestion control answers every mark by itself.
    handles_ecn_echo: bool,
}

impl<P: Packet> BufferPool<P> {
    pub fn new(handles_ecn_echo: bool) -> Self {
        BufferPool { buffers: Vec::new(), spare: Vec::new(), handles_ecn_echo }
    }

    /// The buffers of `tcb`, which gets some if it has none.
    #[inline(always)]
    pub fn attach(&mut self, tcb: &mut Tcb) -> &mut ConnBuffers<P> {
        if !tcb.has_buffers() {
            self.give(tcb);
        }
        &mut self.buffers[tcb.buffers as usize]
    }

    #[cold]
    #[inline(never)]
    fn give(&mut self, tcb: &mut Tcb) {
        let place = self.spare.pop().unwrap_or_else(|| {
            self.buffers.push(ConnBuffers::new());
            self.buffers.len() as u32 - 1
        });
        tcb.buffers = place;
        let buffers = &mut self.buffers[place as usize];
        let sack = tcb.flags.has(Flags::SACK);
        buffers.flight.reset(tcb.una, FlightConfig { mss: tcb.mss, sack, exact_ecn: self.handles_ecn_echo });
        buffers.probe = None;
        buffers.pace = Pace::default();
        buffers.turned = false;
        buffers.progress = Progress::default();
        buffers.idle = tcb.cwnd > initial_window(tcb.mss.into());
    }

    /// The buffers of `tcb`, if it has some.
    #[inline]
    pub fn of(&self, tcb: &Tcb) -> Option<&ConnBuffers<P>> {
        self.buffers.get(tcb.buffers as usize)
    }

    /// The buffers of `tcb`, if it has some.
    #[inline]
    pub fn of_mut(&mut self, tcb: &Tcb) -> Option<&mut ConnBuffers<P>> {
        self.buffers.get_mut(tcb.buffers as usize)
    }

    /// Returns the number of connections that have buffers.
    pub fn attached(&self) -> usize {
        self.buffers.len() - self.spare.len()
    }

    /// Panics unless each of the buffers is either spare, and empty, or in `owned`.
    pub fn assert_owned(&self, owned: &HashSet<u32>) {
        assert_eq!(owned.len() + self.spare.len(), self.buffers.len(), "buffers owned or spare");
        for place in &self.spare {
            assert!(!owned.contains(place), "buffers {place} are in use and spare");
            assert_eq!(self.buffers[*place as usize].mbufs_held(), 0, "spare buffers {place} hold packets");
        }
    }

    /// Takes the buffers of `tcb` back with whatever is in them. Returns the packets that were, if there were any.
    #[inline(always)]
    pub fn detach(&mut self, tcb: &mut Tcb) -> Option<MbufsHeld> {
        let buffers = self.buffers.get_mut(tcb.buffers as usize)?;
        let mut held = None;
        if !buffers.received.is_empty() || !buffers.queue.is_empty() || !buffers.reassembly.is_empty() {
            held = Some(buffers.clear());
        }
        if buffers.received.capacity() > KEPT || buffers.queue.capacity() > KEPT {
            buffers.shrink();
        }
        buffers.reserved = 0;
        // What it was went with them.
        tcb.flags.clear(Flags::DSACK);
        buffers.flight.abandon();
        self.spare.push(tcb.buffers);
        tcb.buffers = NO_BUFFERS;
        held
    }
}
