//! Whether what became of the connections is what had to.

use crate::ledger::{Ledger, Record};
use crate::scenario::EngineKind;
use linerate_bypass::memory::End;
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
        let verdict = ends
            .iter()
            .try_for_each(|end| check_end(ledger, n, *end))
            .and_then(|()| check_whole(ledger, client, server, complete));
        if let Err(wrong) = verdict {
            panic!("{wrong}\n{}", ledger.describe(n));
        }
        finished += usize::from([client, server].iter().all(|end| end.ended == Some(CloseReason::Finished)));
    }
    finished
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
            // The peer is through with it, and answers a stray acknowledgement with a reset, which smoltcp believes in
            // TIME-WAIT (RFC 1337).
            let assassinated = scenario.host(end).engine == EngineKind::Smoltcp
                && own.closed
                && peer.ended == Some(CloseReason::Finished);
            let cause =
                peer.is_broken() || !peer.opened && !scenario.is_lossless() || scenario.may_time_out() || assassinated;
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

/// Whether a connection that had no reason to end badly ended well.
fn check_whole(ledger: &Ledger, client: &Record, server: &Record, complete: bool) -> Result<(), &'static str> {
    let ends = [client, server];
    let disturbed = ends.iter().any(|end| end.aborted || end.lost);
    let unfinished = ends.iter().any(|end| end.ended != Some(CloseReason::Finished));
    if ledger.scenario.is_lossless() && !disturbed && unfinished {
        return Err("the link loses nothing, and it did not finish");
    }
    if !client.opened && !client.is_over() {
        return Err("a connection was not made");
    }
    if complete && ends.iter().any(|end| end.opened && !end.is_over()) {
        return Err("complete, and not over");
    }
    Ok(())
}
