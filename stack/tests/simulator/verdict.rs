//! Whether what became of the connections is what had to.

use crate::ledger::{Ledger, SeenEvent};
use crate::scenario::EngineKind;
use linerate_bypass::memory_nic::End;
use linerate_bypass::{CloseReason, ConnectError};

/// Checks the ends of every connection against each other. `complete`: all are over. Returns how many finished at both ends.
///
/// # Panics
/// If something is as it must not be.
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
    /// The events in their order. [`Actor`](crate::service::Actor) has compared the bytes and their order with what the peer sent.
    pub events: Vec<SeenEvent>,
    pub sent: u64,
    pub received: u64,
}

/// Returns the outcome of both ends of every connection.
///
/// A reset after both ends have finished counts as the end of the connection. smoltcp takes a reset in TIME-WAIT for one (RFC 1337), and
/// its service loses what it has not read by then: the peer has finished, so all of it was acknowledged.
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

/// Whether the way that `own` ended is one that it can end by.
fn check_end(ledger: &Ledger, n: usize, end: End) -> Result<(), &'static str> {
    let scenario = &ledger.scenario;
    let (own, peer) = (ledger.of(n, end), ledger.of(n, end.other()));
    let fault = |wrong: bool, what| if wrong { Err(what) } else { Ok(()) };
    match own.ended {
        Some(CloseReason::Finished) => {
            fault(!own.closed || !own.peer_closed, "finished, and not closed at both ends")?;
            fault(own.received != peer.sent, "finished, and not everything has been received")?;
            let lost = !peer.is_broken() && peer.is_over() && peer.received != own.sent;
            fault(lost, "finished, and not everything has been delivered")
        }
        Some(CloseReason::Aborted) => fault(!own.aborted, "aborted by nobody"),
        Some(CloseReason::Reset) => {
            let cause = peer.is_broken()
                || !peer.opened && !scenario.is_lossless()
                || scenario.may_time_out()
                || scenario.may_deny(end.other())
                || is_late(ledger, n, end);
            fault(!cause, "reset, and the peer did not")
        }
        Some(CloseReason::TimedOut) => {
            fault(!scenario.may_time_out() && !peer.is_broken() && peer.opened, "given up, and the link is not so bad")
        }
        Some(_) => Err("ended for no known reason"),
        None => match own.failed {
            Some(ConnectError::TimedOut | ConnectError::Unreachable) => {
                fault(scenario.is_lossless(), "could not connect over a link without loss")
            }
            Some(ConnectError::Refused) => fault(!scenario.restarts(), "refused, and somebody listens"),
            Some(_) => Err("could not connect for no good reason"),
            None => {
                // Nobody may be left hanging but who waits for a peer that is gone, without asking for it.
                let host = scenario.host(end);
                let asks = host.engine == EngineKind::Native && host.config.keepalive.is_some();
                let gone = peer.is_broken() || !peer.opened && !scenario.is_lossless();
                let hangs = own.opened && !own.lost;
                fault(hangs && (!gone || asks), "still there, and nothing happens any more")
            }
        },
    }
}

/// Whether `end` may have been reset because its peer is through with it: either the peer's TIME-WAIT was over before our FIN
/// reached it again, or the peer answers a stray acknowledgement, and smoltcp believes a reset in TIME-WAIT (RFC 1337).
fn is_late(ledger: &Ledger, n: usize, end: End) -> bool {
    let scenario = &ledger.scenario;
    let (own, peer) = (ledger.of(n, end), ledger.of(n, end.other()));
    own.ended == Some(CloseReason::Reset)
        && own.closed
        && peer.ended == Some(CloseReason::Finished)
        && peer.received == own.sent
        && (!scenario.is_lossless() || scenario.host(end).engine == EngineKind::Smoltcp)
}

/// Whether a connection that had no reason to end badly ended well.
fn check_whole(ledger: &Ledger, n: usize, complete: bool) -> Result<(), &'static str> {
    let from = ledger.scenario.connections[n].from;
    let (client, server) = (ledger.of(n, from), ledger.of(n, from.other()));
    let ends = [client, server];
    let denied = ledger.scenario.may_deny(from.other()) && client.ended == Some(CloseReason::Reset);
    let late = [End::A, End::B].iter().any(|end| is_late(ledger, n, *end));
    let disturbed = ends.iter().any(|end| end.aborted || end.lost);
    let unfinished = ends.iter().any(|end| end.ended != Some(CloseReason::Finished));
    if ledger.scenario.is_lossless() && !disturbed && !denied && !late && unfinished {
        return Err("the link loses nothing, and it did not finish");
    }
    // Unless its turn has not come, as others are still there whose peers are gone.
    if !client.opened && !client.is_over() && !ledger.is_waited_for(from) {
        return Err("a connection was not made");
    }
    if complete && ends.iter().any(|end| end.opened && !end.is_over()) {
        return Err("complete, and not over");
    }
    Ok(())
}
