//! Checks of the recorded outcomes.

use crate::ledger::{Ledger, SeenEvent};
use crate::scenario::EngineKind;
use linerate_bypass::memory_nic::End;
use linerate_service::{CloseReason, ConnectError};

/// Checks the ends of every connection against each other. `complete` means that all are over. Returns the number of
/// connections that finished at both ends.
///
/// # Panics
/// If an outcome is not permitted.
pub fn check(ledger: &Ledger, complete: bool) -> usize {
    let mut finished = 0;
    for (n, plan) in ledger.scenario.connections.iter().enumerate() {
        let ends = [plan.from, plan.from.other()];
        let [client, server] = ends.map(|end| ledger.of(n, end));
        let verdict =
            ends.iter().try_for_each(|end| check_end(ledger, n, *end)).and_then(|()| check_whole(ledger, n, complete));
        if let Err(wrong) = verdict {
            panic!("{wrong}\n{}", ledger.describe(n));
        }
        finished += usize::from([client, server].iter().all(|end| end.ended == Some(CloseReason::Finished)));
    }
    finished
}

/// Outcome of a connection at one end, as its service saw it. It must not depend on the engines of the two ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndOutcome {
    /// Events in order. [`Actor`](crate::service::Actor) has compared the bytes with the peer's.
    pub events: Vec<SeenEvent>,
    pub sent: u64,
    pub received: u64,
}

/// Returns the outcome of both ends of every connection.
///
/// A reset after both ends have closed counts as finished. smoltcp accepts a reset in TIME-WAIT (RFC 1337), and its
/// service then loses unread data, all of which was acknowledged.
pub fn outcomes(ledger: &Ledger) -> Vec<[EndOutcome; 2]> {
    let outcome = |n, end: End| {
        let record = ledger.of(n, end);
        let (mut events, mut received) = (record.events.clone(), record.received);
        if is_late(ledger, n, end) {
            events.retain(|event| *event != SeenEvent::Ended(CloseReason::Reset));
            if ledger.scenario.host(end).engine == EngineKind::Smoltcp && !record.peer_closed {
                events.push(SeenEvent::PeerClosed);
                received = ledger.of(n, end.other()).sent;
            }
            events.push(SeenEvent::Ended(CloseReason::Finished));
        }
        EndOutcome { events, sent: record.sent, received }
    };
    (0..ledger.scenario.connections.len()).map(|n| [End::A, End::B].map(|end| outcome(n, end))).collect()
}

/// Checks that `own` ended in a permitted way.
fn check_end(ledger: &Ledger, n: usize, end: End) -> Result<(), &'static str> {
    let scenario = &ledger.scenario;
    let (own, peer) = (ledger.of(n, end), ledger.of(n, end.other()));
    let fault = |wrong: bool, fault| if wrong { Err(fault) } else { Ok(()) };
    match own.ended {
        Some(CloseReason::Finished) => {
            fault(!own.closed || !own.peer_closed, "finished without a close of both ends")?;
            fault(own.received != peer.sent, "finished with missing data")?;
            let lost = !peer.is_broken() && peer.is_finished() && peer.received != own.sent;
            fault(lost, "finished with undelivered data")
        }
        Some(CloseReason::Aborted) => fault(!own.aborted, "aborted without an abort of the service"),
        Some(CloseReason::Reset) => {
            let cause = peer.is_broken()
                || !peer.opened && !scenario.is_lossless()
                || scenario.may_time_out()
                || scenario.may_reset(end.other())
                || is_late(ledger, n, end);
            fault(!cause, "reset without a reset of the peer")
        }
        Some(CloseReason::TimedOut) => {
            fault(!scenario.may_time_out() && !peer.is_broken() && peer.opened, "timed out over a working link")
        }
        Some(_) => Err("closed for an unknown reason"),
        None => match own.failed {
            Some(ConnectError::TimedOut | ConnectError::Unreachable) => {
                fault(scenario.is_lossless(), "failed to connect over a lossless link")
            }
            Some(ConnectError::Refused) => fault(!scenario.restarts(), "refused by a listener"),
            Some(_) => Err("failed to connect for an unknown reason"),
            None => {
                // Only an end that waits for a lost peer without probing it may remain open.
                let host = scenario.host(end);
                let probes = host.engine == EngineKind::Native && host.config.keepalive.is_some();
                let peer_lost = peer.is_broken() || !peer.opened && !scenario.is_lossless();
                let is_open = own.opened && !own.lost;
                fault(is_open && (!peer_lost || probes), "open without any progress")
            }
        },
    }
}

/// Returns true if `end` may have been reset because its peer has no state left: the peer's TIME-WAIT expired before
/// the retransmitted FIN arrived, or the peer answers a stray ACK and smoltcp accepts the reset in TIME-WAIT (RFC
/// 1337).
fn is_late(ledger: &Ledger, n: usize, end: End) -> bool {
    let scenario = &ledger.scenario;
    let (own, peer) = (ledger.of(n, end), ledger.of(n, end.other()));
    own.ended == Some(CloseReason::Reset)
        && own.closed
        && peer.ended == Some(CloseReason::Finished)
        && peer.received == own.sent
        && (!scenario.is_lossless() || scenario.host(end).engine == EngineKind::Smoltcp)
}

/// Checks that a connection without a reason to fail finished.
fn check_whole(ledger: &Ledger, n: usize, complete: bool) -> Result<(), &'static str> {
    let from = ledger.scenario.connections[n].from;
    let (client, server) = (ledger.of(n, from), ledger.of(n, from.other()));
    let ends = [client, server];
    let denied = ledger.scenario.may_reset(from.other()) && client.ended == Some(CloseReason::Reset);
    let late = [End::A, End::B].iter().any(|end| is_late(ledger, n, *end));
    let disturbed = ends.iter().any(|end| end.aborted || end.lost);
    let unfinished = ends.iter().any(|end| end.ended != Some(CloseReason::Finished));
    if ledger.scenario.is_lossless() && !disturbed && !denied && !late && unfinished {
        return Err("not finished over a lossless link");
    }
    // Unless connections with lost peers occupy all slots.
    if !client.opened && !client.is_finished() && !ledger.has_open_from(from) {
        return Err("never opened");
    }
    if complete && ends.iter().any(|end| end.opened && !end.is_finished()) {
        return Err("complete but not over");
    }
    Ok(())
}
