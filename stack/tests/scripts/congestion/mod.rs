//! Congestion control and loss recovery.

use crate::harness::*;

mod cwnd;
mod ecn;
mod loss_recovery;
mod pacing;
mod rto;

const RTT: Duration = ms(100);

/// Returns a connection with an RTT of [`RTT`] whose service has written `segments` segments. At most the initial
/// window is in flight.
fn in_flight(peer: Peer, segments: Rel) -> Script {
    let mut s = Script::accepted(peer.rtt(RTT));
    s.write(segments * SEG).expect_flight(1, segments.min(INITIAL_WINDOW));
    s
}

/// As [`in_flight`], one round trip later: the first acknowledgement is due.
fn in_flight_for_rtt(peer: Peer, segments: Rel) -> Script {
    let mut s = in_flight(peer, segments);
    s.expect_nothing_for(RTT);
    s
}
