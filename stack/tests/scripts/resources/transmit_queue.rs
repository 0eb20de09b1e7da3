//! Full transmit queue: the peer's port receives nothing, so the worker's port accepts no more frames.

use crate::harness::*;
use linerate_bypass::memory_nic::LinkConfig;

/// Ports of connections that fill the queue: the sum of their initial windows exceeds the queue and the link.
const OTHERS: std::ops::Range<u16> = 6000..6064;
/// Capacity of the link in frames.
const RING: usize = 64;

/// Returns a connection to `peer` whose service echoes, on a link of small capacity.
fn echoing(peer: Peer) -> Script {
    let link = LinkConfig { checksum_offload: true, ring: RING, pool: 4096, ..LinkConfig::default() };
    let mut s = Script::accepted_over(peer, link);
    s.echo();
    for port in OTHERS {
        s.on_port(port).handshake();
    }
    s.on_port(5000);
    s
}

/// Fills the transmit queue.
fn fill(s: &mut Script) {
    s.set_receiving(false);
    for port in OTHERS {
        s.on_port(port).write(INITIAL_WINDOW * SEG);
    }
    s.on_port(5000);
}

/// Lets the peer's port receive and returns the segments of the connection of port 5000.
fn empty(s: &mut Script) -> Vec<Got> {
    s.set_receiving(true);
    let sent = s.drain();
    let of_others = sent.iter().filter(|got| OTHERS.contains(&got.port) && got.len == SEG).count();
    assert_eq!(of_others, OTHERS.len() * INITIAL_WINDOW as usize, "{sent:?}");
    sent.into_iter().filter(|got| got.port == 5000).collect()
}

#[test]
fn echo_waits_for_space_in_transmit_queue() {
    // RFC 7323 §4.1: TSval is the time of transmission, so an answer is created when the queue has space.
    for turns in [0, 4] {
        let mut s = echoing(peer().timestamps());
        let mut at = 1;
        for _ in 0..turns {
            s.inject(data(at, 100).ack(at)).expect(data(at, 100).ack(at + 100));
            s.pass(ms(1));
            at += 100;
        }
        s.expect_rr(turns > 0);
        fill(&mut s);
        s.inject(data(at, 100).ack(at));
        s.pass(ms(3));
        s.expect_nothing();
        s.expect_rr(turns > 0);
        let sent = empty(&mut s);
        let [got] = &sent[..] else { panic!("{turns} turns: {sent:?}") };
        assert_eq!((got.seq, got.len, got.ack), (at, 100, at + 100), "{turns} turns");
        at += 100;
        let next = s.inject(data(at, 100).ack(at)).expect(data(at, 100).ack(at + 100));
        assert_eq!(got.tsval(), next.tsval(), "{turns} turns");
    }
}
