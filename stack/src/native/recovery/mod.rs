//! Loss detection and recovery of the sender: what is in flight, what is lost, what may be sent, and when to worry.
//!
//! It knows ranges of sequence numbers, times and acknowledgements; no packets and no payload. The engine keeps the
//! payload, builds segments and calls this:
//!
//! ```text
//! established:   Path::default(), RttEstimator::default() with the handshake's sample in both
//! first data:    Flight taken from a pool, reset(una, setup)
//! to send:       while flight.allowance(cc.window()) > 0:
//!                  flight.retransmission(allowance) → build it, flight.retransmitted(…)
//!                  or new data                      → build it, flight.sent(…)
//! ACK:           flight.acknowledge(…) → Outcome, then send; flight.is_settled() → back to the pool
//! timer:         flight.deadline(…); when due flight.expire(…) → what to do
//! ```
//!
//! What it implements: RACK-TLP (RFC 8985) where the peer selectively acknowledges (RFC 2018, RFC 2883), NewReno (RFC 6582)
//! with limited transmit (RFC 3042) where it does not; proportional rate reduction (RFC 9937) for both and for echoes of
//! congestion; the retransmission time-out of RFC 6298 with a floor that follows the peer (see [`Path`]); and undoing what
//! was needless by timestamps (RFC 3522), F-RTO (RFC 5682) and reports of duplicates. Where it differs from an RFC, the item
//! says so and why.
//!
//! Time must not run backwards from one call to the next.

mod acknowledge;
mod flight;
mod path;
mod probe;
mod prr;
mod rack;
mod respond;
mod rtt;
mod scoreboard;
mod timers;
mod undo;

#[cfg(test)]
mod tests;

use linerate_bypass::time::{Duration, Instant};

use crate::config::Config;
use crate::congestion::{CongestionControl, CongestionSignal, Delivery};
use crate::native::segment::seq::Seq;

pub(crate) use acknowledge::AckReport;
pub(crate) use flight::{Flight, FlightConfig, Phase};
pub(crate) use path::Path;
pub(crate) use rtt::RttEstimator;

/// What bounds the retransmission timer. Times are kept in nanoseconds, as they are used for every segment.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    rto_floor: u64,
    learnt_floor: u64,
    max_rto: u64,
    max_retransmissions: u8,
    /// What is sent is spread over the round trip.
    paced: bool,
}

/// The longest time-out there may be (RFC 6298 §2.5 allows a limit of 60 s or more).
const MAX_RTO: Duration = Duration::from_secs(60);

impl Default for Limits {
    /// For unknown peers: a floor of 200 ms, of 5 ms once the peer is known; 60 s at most; 15 time-outs in a row.
    fn default() -> Self {
        Limits {
            rto_floor: 200_000_000,
            learnt_floor: 5_000_000,
            max_rto: rtt::nanos(MAX_RTO),
            max_retransmissions: 15,
            paced: false,
        }
    }
}

impl Limits {
    /// As the configuration has them.
    pub(crate) fn of(config: &Config) -> Self {
        let defaults = Limits::default();
        let learnt = config.rto_floor.min(Duration::from_nanos(defaults.learnt_floor));
        let limits = defaults.with_rto_floor(config.rto_floor).with_learnt_floor(learnt);
        Limits { paced: config.pacing, ..limits }
    }

    /// For peers within a data centre, which do not delay acknowledgements: 5 ms from the start.
    #[cfg(test)]
    pub(crate) fn datacenter() -> Self {
        Limits::default().with_rto_floor(Duration::from_millis(5))
    }

    /// When the timer of one segment that is sent at `now`, alone, may expire at the earliest: where the estimator does not
    /// [consult the path](RttEstimator::consults_path), and where it does. Asked then, the flight says whether it has.
    pub(crate) fn earliest_rto(&self, now: Instant) -> [Instant; 2] {
        [self.rto_floor, self.learnt_floor].map(|floor| Instant::from_nanos(now.as_nanos().saturating_add(floor)))
    }

    /// With another floor of the time-out's margin above the round trip, until the peer's acknowledgement delay has been
    /// learnt.
    pub(crate) fn with_rto_floor(self, floor: Duration) -> Self {
        Limits { rto_floor: rtt::nanos(floor.min(MAX_RTO)), ..self }
    }

    /// With another floor once it has been learnt, unless the delay demands more (see [`Path`]).
    pub(crate) fn with_learnt_floor(self, floor: Duration) -> Self {
        Limits { learnt_floor: rtt::nanos(floor.min(MAX_RTO)), ..self }
    }

    /// With another number of time-outs in a row after which the connection is given up (R2 of RFC 9293 §3.8.3).
    #[cfg(test)]
    pub(crate) fn with_max_retransmissions(self, max: u8) -> Self {
        Limits { max_retransmissions: max, ..self }
    }
}

/// What recovery needs to know of a received segment that acknowledges.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acknowledgement<'a> {
    /// SEG.ACK. The engine has checked that it is acceptable (RFC 5961 §5); one beyond SND.NXT is ignored here.
    pub(crate) ack: Seq,
    /// The blocks of the SACK option, as they are in the segment; validated here.
    pub(crate) sack: &'a [(Seq, Seq)],
    /// TSecr, if timestamps are in use.
    pub(crate) echoed_timestamp: Option<u32>,
    /// The ECE flag, if ECN is in use.
    pub(crate) ece: bool,
    /// No data, no SYN, no FIN, and the window is the one advertised before (RFC 5681 §2, "duplicate acknowledgment"; that
    /// data is outstanding and SEG.ACK is SND.UNA is found out here).
    pub(crate) duplicate_candidate: bool,
    /// No data, no SYN, no FIN.
    pub(crate) pure: bool,
    /// The engine has data that was never sent and that the peer's window has room for.
    pub(crate) unsent: bool,
    /// When the segment arrived.
    pub(crate) now: Instant,
}

/// Why it is believed that a reduction of the window was needless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// The acknowledgement echoed a timestamp older than the first retransmission (Eifel, RFC 3522).
    Timestamp,
    /// Data that had not been retransmitted was acknowledged after the time-out (F-RTO, RFC 5682).
    ForwardRto,
    /// The receiver reported every retransmission as a duplicate (RFC 2883).
    Duplicates,
}

/// A reduction of the window that was taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Undone {
    /// Whether a time-out had caused it, and not a fast retransmission.
    pub(crate) time_out: bool,
    /// What showed it.
    pub(crate) evidence: Evidence,
}

/// What an acknowledgement did.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outcome {
    /// Bytes of sequence space by which SND.UNA advanced.
    pub(crate) acknowledged: u32,
    /// Bytes newly known to have arrived, cumulatively or selectively.
    pub(crate) delivered: u32,
    /// Bytes newly believed lost.
    pub(crate) lost: u32,
    /// How many of them had been retransmitted before.
    pub(crate) lost_again: u32,
    /// Bytes that the receiver reports to have got twice.
    pub(crate) duplicates: u32,
    /// SACK blocks that could not be and were ignored.
    pub(crate) invalid_blocks: u8,
    /// It counted as a duplicate acknowledgement, or, with SACK, brought nothing new.
    pub(crate) duplicate: bool,
    /// A fast recovery began.
    pub(crate) recovery_began: bool,
    /// A fast recovery, or one after a time-out, ended.
    pub(crate) recovery_ended: bool,
    /// The window was reduced: the next segment with new data carries CWR if ECN is in use (RFC 3168 §6.1.2).
    pub(crate) reduced: bool,
    /// A reduction was taken back.
    pub(crate) undone: Option<Undone>,
    /// Congestion control was asked, so its window may be another.
    pub(crate) window_changed: bool,
    /// A tail loss probe repaired the loss of the last segment.
    pub(crate) probe_repaired: bool,
    /// The round trip measured, in nanoseconds; zero if none was.
    rtt: u64,
}

impl Outcome {
    /// The round trip that the acknowledgement measured.
    pub(crate) fn rtt(&self) -> Option<Duration> {
        (self.rtt != 0).then(|| Duration::from_nanos(self.rtt))
    }
}

/// What the timer's expiry means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expired {
    /// Nothing: it is not due. Ask for the deadline again.
    Nothing,
    /// The reordering timer: some data is lost and may be retransmitted as far as the allowance goes.
    Reordering {
        /// Bytes newly believed lost.
        lost: u32,
        /// A fast recovery began: the window was reduced (CWR).
        recovery_began: bool,
    },
    /// Send a tail loss probe now, whatever the allowance: this range again, or if there is none one segment of new data.
    Probe(Option<(Seq, u32)>),
    /// The retransmission timer: what is lost may be retransmitted as far as the allowance goes, at least one segment. The
    /// window was reduced (CWR).
    TimeOut {
        /// Bytes newly believed lost.
        lost: u32,
        /// The receiver had discarded what it had acknowledged selectively, or may have (RFC 2018 §8).
        reneged: bool,
    },
    /// Nothing is in flight, and what was waited for did not come: the flight is settled now.
    Settled {
        /// A probe was presumed to have repaired a loss: the window was reduced (CWR).
        reduced: bool,
    },
    /// There were as many time-outs in a row as there may be: the connection is dead. Nothing has changed.
    GiveUp,
}
