//! A look into a running worker: what outsiders may ask it, and what it answers.
//!
//! A question is a letter as any other: a worker reads it in its next turn, between what it does for its connections, and answers
//! through a channel of the asker's. Nothing is counted or kept for the sake of questions, so that a turn without one costs what it
//! would cost if there were none. What a letter asks for is bounded: a turn with one does not take long either.

mod summary;
mod tcp_info;

pub use summary::{Summary, Verbs};
pub use tcp_info::tcp_info;

use crate::ConnId;
use std::fmt;
use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// Slots that a worker looks at for one letter at most: some ten microseconds.
pub const SLOTS_PER_LOOK: usize = 256;

/// A question to a worker. It is answered once; an asker that has gone is no error, and a worker that has ended drops the question
/// and with it the way to answer.
#[derive(Debug)]
pub enum Look {
    /// What it has counted, and what there is.
    Counters {
        /// To whom.
        reply: Sender<Snapshot>,
    },
    /// Its connections, a slice of them.
    Connections {
        /// The slot to begin with: 0, and then the [`next`](Page::next) of the last answer.
        from: usize,
        /// Slots to look at, of which many may be empty: no more than the worker's [`SLOTS_PER_LOOK`](Inspect::SLOTS_PER_LOOK) are.
        most: usize,
        /// To whom.
        reply: Sender<Page>,
    },
}

/// What can be seen of a worker, on its own thread.
pub trait Inspect {
    /// Slots that are looked at for one letter at most: fewer than [`SLOTS_PER_LOOK`] where to look at one takes long.
    const SLOTS_PER_LOOK: usize = SLOTS_PER_LOOK;

    /// What it has counted so far, and what there is now.
    fn snapshot(&mut self) -> Snapshot;

    /// Slots that connections are in or have been in: all are below.
    fn slots(&self) -> usize;

    /// The connection in `slot`, if there is one.
    fn connection(&self, slot: usize) -> Option<ConnInfo>;
}

impl Look {
    /// Answers it for `worker`.
    #[cold]
    #[inline(never)]
    pub fn answer(self, worker: &mut impl Inspect) {
        // Who has gone needs no answer.
        let _gone = match self {
            Look::Counters { reply } => reply.send(worker.snapshot()).is_err(),
            Look::Connections { from, most, reply } => reply.send(Page::of(worker, from, most)).is_err(),
        };
    }
}

/// What a worker has counted, and what there is at the moment.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The number of the worker, counted from 0.
    pub worker: usize,
    /// Its counters so far.
    pub summary: Summary,
    /// What there is.
    pub levels: Levels,
    /// Times that the port took less than was to be sent, and that its packet pool was empty; `None` where there is no port of ours.
    pub shortages: Option<Shortages>,
    /// Requests that its service has done: [`Service::requests`](crate::Service::requests).
    pub requests: Option<u64>,
    /// Requests that held the worker for long: [`Service::slow_requests`](crate::Service::slow_requests).
    pub slow_requests: Option<u64>,
}

/// How often a port could not do what it was asked.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Shortages {
    /// Transmit bursts after which frames stayed behind: the ring was full.
    pub tx_full: u64,
    /// Requests for a packet that found the pool empty.
    pub pool_empty: u64,
}

/// How much there is of something at the moment. `None` is what a transport does not have, or does not know.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Levels {
    /// Connections, in whatever state, but for those in TIME-WAIT that services are done with.
    pub connections: u64,
    /// Connections that peers have begun and not completed.
    pub half_open: Option<u64>,
    /// Connections in TIME-WAIT.
    pub time_wait: Option<u64>,
    /// Packets of the port that the queues of connections hold.
    pub packets_held: Option<u64>,
    /// Packets free in the pool that frames are received into, which several workers may share.
    pub pool_left: Option<u64>,
    /// Packets that this worker may hold at a time: its share of the pool.
    pub pool_share: Option<u64>,
    /// Frames that wait for the port.
    pub tx_queued: Option<u64>,
}

/// Some connections of a worker.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Page {
    /// Those in the slots that were looked at, in the order of their slots.
    pub connections: Vec<ConnInfo>,
    /// The slot to go on with; `None` after the last.
    pub next: Option<usize>,
}

impl Page {
    /// Those of `worker` in `most` slots, no more than its [`SLOTS_PER_LOOK`](Inspect::SLOTS_PER_LOOK) and one at least, beginning
    /// with `from`.
    pub fn of<W: Inspect>(worker: &W, from: usize, most: usize) -> Self {
        let slots = worker.slots();
        let end = from.saturating_add(most.clamp(1, W::SLOTS_PER_LOOK)).min(slots);
        let connections = (from..end).filter_map(|slot| worker.connection(slot)).collect();
        Page { connections, next: (end < slots).then_some(end) }
    }
}

/// What is known of one connection. `None` is what a transport does not have, does not know, or has not measured yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnInfo {
    /// Its name. The service may not know it yet, or no longer.
    pub conn: ConnId,
    /// Our address.
    pub local: Option<SocketAddr>,
    /// The peer's address.
    pub remote: SocketAddr,
    /// How far it has come.
    pub state: ConnState,
    /// Bytes received that the service has not consumed.
    pub unread: u64,
    /// Bytes that the service has sent and that have not left: for the peer, or for the kernel.
    pub unsent: u64,
    /// What TCP knows beside.
    pub tcp: TcpInfo,
}

/// What TCP, ours or the kernel's, knows of a connection. `None` is what it does not tell or has not measured yet.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct TcpInfo {
    /// The most payload in one segment, in bytes, options deducted.
    pub mss: Option<u16>,
    /// Bytes sent and not acknowledged.
    pub in_flight: Option<u64>,
    /// The peer's receive window in bytes, as it last offered it.
    pub send_window: Option<u64>,
    /// The window that the peer may use, in bytes.
    pub receive_window: Option<u64>,
    /// The congestion window in bytes.
    pub congestion_window: Option<u64>,
    /// The slow-start threshold in bytes; `None` also before anything was lost or marked.
    pub slow_start_threshold: Option<u64>,
    /// The smoothed round-trip time (RFC 6298).
    pub rtt: Option<Duration>,
    /// Its variation.
    pub rtt_variation: Option<Duration>,
    /// The smallest round-trip time of the last minutes.
    pub min_rtt: Option<Duration>,
    /// The retransmission time-out, back-off included.
    pub rto: Option<Duration>,
    /// Retransmission time-outs in a row, since anything was acknowledged.
    pub time_outs: Option<u32>,
    /// Segments that were sent again, since the connection was begun.
    pub retransmitted: Option<u64>,
    /// Whether something was lost that is being repaired.
    pub is_recovering: Option<bool>,
    /// Whether the path has been seen to reorder.
    pub reorders: Option<bool>,
    /// What is sent in a second, in bytes, if it is paced.
    pub pacing_rate: Option<u64>,
}

/// How far a connection has come: the states of RFC 9293 §3.3.2, which other transports have as far as they apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnState {
    /// Over, and the service has still to be told.
    Closed,
    /// We have begun it.
    SynSent,
    /// A peer has begun it.
    SynReceived,
    /// Both ends may send.
    Established,
    /// We have finished, and the peer does not know yet.
    FinWait1,
    /// We have finished, and the peer knows.
    FinWait2,
    /// The peer has finished.
    CloseWait,
    /// Both have finished, we first, and the peer does not know.
    Closing,
    /// Both have finished, the peer first, and it does not know.
    LastAck,
    /// Both have finished and know it.
    TimeWait,
}

impl ConnState {
    /// All of them.
    pub const ALL: [ConnState; 10] = [
        ConnState::Closed,
        ConnState::SynSent,
        ConnState::SynReceived,
        ConnState::Established,
        ConnState::FinWait1,
        ConnState::FinWait2,
        ConnState::CloseWait,
        ConnState::Closing,
        ConnState::LastAck,
        ConnState::TimeWait,
    ];

    /// Its name, as tools of Linux write it: `ESTAB` is `established` here.
    pub fn name(self) -> &'static str {
        match self {
            ConnState::Closed => "closed",
            ConnState::SynSent => "syn-sent",
            ConnState::SynReceived => "syn-received",
            ConnState::Established => "established",
            ConnState::FinWait1 => "fin-wait-1",
            ConnState::FinWait2 => "fin-wait-2",
            ConnState::CloseWait => "close-wait",
            ConnState::Closing => "closing",
            ConnState::LastAck => "last-ack",
            ConnState::TimeWait => "time-wait",
        }
    }

    /// That of an established connection of a transport that knows no more than which ends have finished.
    pub fn of_ends(peer_finished: bool, we_finished: bool) -> Self {
        match (peer_finished, we_finished) {
            (false, false) => ConnState::Established,
            (false, true) => ConnState::FinWait1,
            (true, false) => ConnState::CloseWait,
            (true, true) => ConnState::LastAck,
        }
    }
}

impl fmt::Display for ConnState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// A worker with a connection in every third slot.
    struct Every3rd(usize);

    impl Inspect for Every3rd {
        fn snapshot(&mut self) -> Snapshot {
            Snapshot { worker: 7, ..Snapshot::default() }
        }

        fn slots(&self) -> usize {
            self.0
        }

        fn connection(&self, slot: usize) -> Option<ConnInfo> {
            assert!(slot < self.0, "{slot}");
            slot.is_multiple_of(3).then(|| ConnInfo {
                conn: ConnId::new(7, slot, 0),
                local: None,
                remote: ([10, 0, 0, 1], 1000).into(),
                state: ConnState::Established,
                unread: 0,
                unsent: 0,
                tcp: TcpInfo::default(),
            })
        }
    }

    fn all(worker: &mut Every3rd, most: usize) -> (Vec<usize>, usize) {
        let (mut slots, mut letters, mut from) = (Vec::new(), 0, Some(0));
        while let Some(slot) = from {
            let (reply, page) = channel();
            Look::Connections { from: slot, most, reply }.answer(worker);
            let page = page.recv().unwrap();
            slots.extend(page.connections.iter().map(|info| info.conn.slot()));
            (letters, from) = (letters + 1, page.next);
        }
        (slots, letters)
    }

    #[test]
    fn every_connection_is_told_once_in_bounded_slices() {
        for (slots, most, letters) in
            [(0, 10, 1), (9, 10, 1), (10, 10, 1), (11, 10, 2), (1000, usize::MAX, 4), (5, 0, 5)]
        {
            let (told, sent) = all(&mut Every3rd(slots), most);
            assert_eq!((told, sent), ((0..slots).step_by(3).collect(), letters), "{slots} slots, {most} at most");
        }
    }

    #[test]
    fn a_slice_behind_the_last_slot_is_empty() {
        assert_eq!(Page::of(&Every3rd(4), 100, 10), Page::default());
        assert_eq!(Page::of(&Every3rd(4), usize::MAX, 10), Page::default());
    }

    #[test]
    fn an_asker_that_has_gone_is_no_error() {
        let (reply, _) = channel();
        Look::Counters { reply }.answer(&mut Every3rd(1));
    }

    #[test]
    fn names_of_states_can_be_lined_up() {
        assert_eq!(format!("{:>12}|", ConnState::FinWait1), "  fin-wait-1|");
    }
}
