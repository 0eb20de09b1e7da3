//! Loss detection and recovery of the sender: data in flight, lost data, permission to send, and timers.
//!
//! The module handles sequence ranges, times and acknowledgements, but neither packets nor payload. The engine keeps
//! the payload, builds the segments and makes these calls:
//!
//! ```text
//! established:   Path::default(), RttEstimator::default() with the handshake's sample in both
//! first data:    Flight taken from a pool, reset(una, config)
//! to send:       while flight.allowance(cc.window()) > 0:
//!                    flight.retransmission(allowance) → build it, flight.retransmitted(…)
//!                    or new data                      → build it, flight.sent(…)
//! ACK:           flight.acknowledge(…) → Outcome, then send; flight.is_settled() → back to the pool
//! timer:         flight.deadline(…); when due flight.expire(…) → action
//! ```
//!
//! It implements RACK-TLP (RFC 8985) with SACK (RFC 2018, RFC 2883), and NewReno (RFC 6582) with limited transmit (RFC
//! 3042) without SACK; proportional rate reduction (RFC 9937) for losses and for ECE; the retransmission timeout of RFC
//! 6298 with a floor adapted to the peer (see [`Path`]); and undo of unnecessary reductions by timestamps (RFC 3522),
//! F-RTO (RFC 5682) and DSACK. Deviations from an RFC are documented where they occur.
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

use linerate_service::time::{Duration, Instant};

use crate::config::Config;
use crate::tcp::congestion::{CongestionControl, CongestionSignal, Delivery};
use crate::wire::tcp::seq::Seq;

pub(crate) use acknowledge::AckReport;
pub(crate) use flight::{Flight, FlightConfig, Phase};
pub(crate) use path::Path;
pub(crate) use rtt::RttEstimator;

/// Limits of the retransmission timer. Times are in nanoseconds, because every segment uses them.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    rto_floor: u64,
    learnt_floor: u64,
    max_rto: u64,
    max_retransmissions: u8,
    /// True if transmission is paced.
    paced: bool,
}

/// Maximum retransmission timeout (RFC 6298 §2.5 permits a limit of 60 s or more).
const MAX_RTO: Duration = Duration::from_secs(60);

impl Default for Limits {
    /// Returns the limits for unknown peers: a floor of 200 ms, or of 5 ms once the peer is known; 60 s at most; 15
    /// consecutive timeouts.
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
    pub(crate) fn of(config: &Config) -> Self {
        let defaults = Limits::default();
        let learnt = config.rto_floor.min(Duration::from_nanos(defaults.learnt_floor));
        let limits = defaults.with_rto_floor(config.rto_floor).with_learnt_floor(learnt);
        Limits { paced: config.pacing, ..limits }
    }

    /// Returns the limits for peers within a data centre, which do not delay acknowledgements: a floor of 5 ms from the
    /// start.
    #[cfg(test)]
    pub(crate) fn datacenter() -> Self {
        Limits::default().with_rto_floor(Duration::from_millis(5))
    }

    /// Returns the earliest expiry of the timer of a lone segment sent at `now`: if the estimator does not [consult the
    /// path](RttEstimator::consults_path), and if it does. At that time the flight decides whether the timer has
    /// expired.
    pub(crate) fn earliest_rto(&self, now: Instant) -> [Instant; 2] {
        [self.rto_floor, self.learnt_floor].map(|floor| Instant::from_nanos(now.as_nanos().saturating_add(floor)))
    }

    /// Sets the floor of the RTO's margin above the RTT, in effect until the peer's acknowledgement delay is known.
    pub(crate) fn with_rto_floor(self, floor: Duration) -> Self {
        Limits { rto_floor: rtt::nanos(floor.min(MAX_RTO)), ..self }
    }

    /// Sets the floor in effect once the delay is known, unless the delay requires more (see [`Path`]).
    pub(crate) fn with_learnt_floor(self, floor: Duration) -> Self {
        Limits { learnt_floor: rtt::nanos(floor.min(MAX_RTO)), ..self }
    }

    /// Sets the maximum number of consecutive timeouts (R2 of RFC 9293 §3.8.3).
    #[cfg(test)]
    pub(crate) fn with_max_retransmissions(self, max: u8) -> Self {
        Limits { max_retransmissions: max, ..self }
    }
}

/// Fields of an acknowledgement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acknowledgement<'a> {
    /// SEG.ACK. The engine has checked that it is acceptable (RFC 5961 §5). A number beyond SND.NXT is ignored.
    pub(crate) ack: Seq,
    /// Blocks of the SACK option, not yet validated.
    pub(crate) sack: &'a [(Seq, Seq)],
    /// TSecr, if timestamps are in use.
    pub(crate) echoed_timestamp: Option<u32>,
    /// ECE, if ECN is in use.
    pub(crate) ece: bool,
    /// True if the segment has no data, SYN or FIN, and an unchanged window (RFC 5681 §2, "duplicate acknowledgment").
    /// The conditions on outstanding data and SEG.ACK are checked here.
    pub(crate) duplicate_candidate: bool,
    /// True if the segment has no data, SYN or FIN.
    pub(crate) pure: bool,
    /// True if the engine has unsent data within the peer's window.
    pub(crate) unsent: bool,
    pub(crate) now: Instant,
}

/// Evidence for an unnecessary window reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// The acknowledgement echoed a timestamp older than the first retransmission (Eifel, RFC 3522).
    Timestamp,
    /// Data that was not retransmitted was acknowledged after the timeout (F-RTO, RFC 5682).
    ForwardRto,
    /// The receiver reported every retransmission as a duplicate (RFC 2883).
    Duplicates,
}

/// Window reduction that was undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Undone {
    /// True if a timeout caused it, as opposed to a fast retransmission.
    pub(crate) by_timeout: bool,
    pub(crate) evidence: Evidence,
}

/// Effects of an acknowledgement.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outcome {
    /// Sequence numbers by which SND.UNA advanced.
    pub(crate) acknowledged: u32,
    /// Bytes newly acknowledged, cumulatively or selectively.
    pub(crate) delivered: u32,
    /// Bytes newly marked lost.
    pub(crate) lost: u32,
    /// Part of [`lost`](Self::lost) that had been retransmitted before.
    pub(crate) lost_again: u32,
    /// Bytes that the receiver reports as duplicates.
    pub(crate) duplicates: u32,
    /// SACK blocks that are invalid and were ignored.
    pub(crate) invalid_blocks: u8,
    /// True if the acknowledgement counted as a duplicate, or with SACK contained no new information.
    pub(crate) duplicate: bool,
    /// True if a fast recovery began.
    pub(crate) recovery_began: bool,
    /// True if a recovery, fast or after a timeout, ended.
    pub(crate) recovery_ended: bool,
    /// True if the window was reduced: with ECN the next new data carries CWR (RFC 3168 §6.1.2).
    pub(crate) reduced: bool,
    /// Window reduction that was undone.
    pub(crate) undone: Option<Undone>,
    /// True if congestion control was called, so that its window may have changed.
    pub(crate) window_changed: bool,
    /// True if a tail loss probe repaired the loss of the last segment.
    pub(crate) probe_repaired: bool,
    /// RTT sample in nanoseconds; zero if there is none.
    rtt: u64,
}

impl Outcome {
    /// Returns the RTT sample of the acknowledgement.
    pub(crate) fn rtt(&self) -> Option<Duration> {
        (self.rtt != 0).then(|| Duration::from_nanos(self.rtt))
    }
}

/// Result of a timer expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expired {
    /// The timer is not due. The caller reads the deadline again.
    Nothing,
    /// The reordering timer expired: data is lost and may be retransmitted within the allowance.
    Reordering {
        /// Bytes newly marked lost.
        lost: u32,
        /// True if a fast recovery began and reduced the window (CWR).
        recovery_began: bool,
    },
    /// A tail loss probe has to be sent regardless of the allowance: the given range, or one segment of new data.
    Probe(Option<(Seq, u32)>),
    /// The retransmission timer expired: lost data may be retransmitted within the allowance, at least one segment. The
    /// window was reduced (CWR).
    Timeout {
        /// Bytes newly marked lost.
        lost: u32,
        /// True if the receiver discarded selectively acknowledged data, or may have (RFC 2018 §8).
        reneged: bool,
    },
    /// No data is in flight, and the expected information did not arrive: the flight is settled.
    Settled {
        /// True if a probe is presumed to have repaired a loss, which reduced the window (CWR).
        reduced: bool,
    },
    /// The maximum number of consecutive timeouts is reached: the connection is dead. Nothing has changed.
    GiveUp,
}
