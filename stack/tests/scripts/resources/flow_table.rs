//! Flow table: connections with the same hash do not receive each other's segments.

use crate::harness::*;
use linerate_stack::Tuple;
use linerate_stack::fuzzing::flow_tag;
use std::collections::HashMap;

/// Returns a seed and two ports of the peer whose connections have the same tag in the flow table, so that a lookup of
/// one encounters the other.
fn colliding() -> (u128, [u16; 2]) {
    let local = "10.0.0.2:7".parse().unwrap();
    let find = |seed: u128| {
        let mut ports = HashMap::new();
        let mut ports_from = 1024..=u16::MAX;
        ports_from.find_map(|port| {
            let tag = flow_tag(seed, &Tuple::new(local, std::net::SocketAddr::from(([10, 0, 0, 1], port))));
            ports.insert(tag, port).map(|earlier| (seed, [earlier, port]))
        })
    };
    (1..100).find_map(find).expect("one seed in two has such ports")
}

/// Returns two echoing connections with the same tag, by the peer's ports.
fn pair(peer: Peer) -> (Script, [u16; 2]) {
    let (seed, ports) = colliding();
    let mut s = Script::listen(peer, |config| config.seed = seed);
    for port in ports {
        s.on_port(port).handshake();
        s.echo();
    }
    (s, ports)
}

#[test]
fn connections_with_same_hash_receive_own_segments() {
    // RFC 9293 §3.3.1: a connection is identified by both sockets.
    for peer in [peer(), peer().sack().timestamps().window_scale(2)] {
        let (mut s, ports) = pair(peer);
        for n in 0..4 {
            for port in ports {
                s.on_port(port).inject(data(1 + n * 100, 100).ack(1 + n * 100).push());
                s.expect(data(1 + n * 100, 100).ack(101 + n * 100).push());
            }
        }
        for port in ports {
            s.on_port(port).expect_delivered(400);
            s.inject(fin(401, 401)).expect(ack(401, 402));
            s.expect_peer_closed();
            s.finish(401, 402);
        }
    }
}

#[test]
fn segment_valid_for_connection_with_same_hash_is_rejected() {
    // RFC 9293 §3.3.1; RFC 5961 §5.2: on its own connection it acknowledges unsent data.
    for (turns, latest, forged) in [0, 1, 3].into_iter().flat_map(|turns| {
        [false, true]
            .into_iter()
            .flat_map(move |latest| [(turns, latest, data(0, 50).junk()), (turns, latest, fin(0, 0))])
    }) {
        let (mut s, mut ports) = pair(peer());
        // The lookup of one connection encounters the other first; the reverse lookup does not.
        if latest {
            ports.reverse();
        }
        let [target, other] = ports;
        let [target_isn, other_isn] = ports.map(|port| s.on_port(port).flow().worker_isn.unwrap());
        s.on_port(target);
        let mut at = 1;
        for _ in 0..turns {
            s.inject(data(at, 100).ack(at).push()).expect(data(at, 100).ack(at + 100).push());
            at += 100;
        }
        // The other connection has received as many bytes from the peer.
        s.on_port(other);
        if at > 1 {
            s.stop_reading();
            s.inject(data(1, at - 1)).drain_for(DELAYED_ACK);
        }
        let number = at + Rel::from(target_isn.wrapping_sub(other_isn) as i32);
        s.inject(Seg { seq: at, ..forged.clone() }.ack(number)).expect(ack(1, at));
        s.expect_no_event();
        s.on_port(target).expect_no_event();
        s.expect_delivered(at - 1);
        s.inject(data(at, 100).ack(at).push()).expect(data(at, 100).ack(at + 100).push());
    }
}
